"""Attention in a window of slots, fused: one kernel source for torch and JAX.

A program owns a tile of slots of one head. It reads rows of query, key and
value through the order of the slots and writes its result back to the original
rows, so nothing is ever permuted in memory. In slot order the tokens that see
a key are a window as well: gradients need no atomics.

Every kernel takes its inputs, then its scalars, then its outputs, as
`jax_triton` wants them. `order` is int32 `[B or 1, K or 1, n]`, given by its
strides: the token of each slot, or `-1 - token` where the token is padding.
Padding is seen by nobody and its rows are written as zeros.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `D` head
dim, `E` value head dim, `R` slots of the tile that a program owns, `C` slots
of a tile that it visits, `m` neighbors of a decoding step.
"""

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)
# Scalars that compile nothing anew when they change.
_SIZES = (
    "length",
    "left",
    "right",
    "block_size",
    "order_example_stride",
    "order_head_stride",
)
_STEP_SIZES = (
    "num_new",
    "num_neighbors",
    "key_rows_per_example",
    "value_rows_per_example",
)


@triton.jit
def _tokens(order, slots, length, HAS_ORDER: tl.constexpr):
    """The token in each slot; negative where nobody may look."""
    if HAS_ORDER:
        return tl.load(order + slots, mask=slots < length, other=-1)
    return tl.where(slots < length, slots, -1)


@triton.jit
def _row_offsets(
    tokens, HEADS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr
):
    """Where the rows of tokens start in `[n, HEADS, DIM]`; also of padding."""
    tokens = tl.where(tokens < 0, -1 - tokens, tokens)
    if WIDE:
        tokens = tokens.to(tl.int64)
    return tokens * (HEADS * DIM)


@triton.jit
def _load_rows(
    base,
    tokens,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    WIDE: tl.constexpr,
):
    """`[rows, PADDED]`; zeros for padding and beyond `DIM`."""
    column = tl.arange(0, PADDED)
    offsets = _row_offsets(tokens, HEADS, DIM, WIDE)[:, None] + column[None, :]
    mask = (tokens >= 0)[:, None]
    if DIM != PADDED:
        mask = mask & (column < DIM)[None, :]
    return tl.load(base + offsets, mask=mask, other=0.0)


@triton.jit
def _store_rows(
    base,
    tokens,
    rows,
    exists,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    WIDE: tl.constexpr,
):
    column = tl.arange(0, PADDED)
    offsets = _row_offsets(tokens, HEADS, DIM, WIDE)[:, None] + column[None, :]
    mask = exists[:, None]
    if DIM != PADDED:
        mask = mask & (column < DIM)[None, :]
    tl.store(base + offsets, rows.to(base.dtype.element_ty), mask=mask)


@triton.jit
def _keys_of(
    first,
    last,
    length,
    left,
    right,
    block_size,
    IN_BLOCKS: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """The slots `start .. stop - 1` that queries `first .. last` may see."""
    if IN_BLOCKS:
        start = first // block_size * block_size
        stop = (last // block_size + 1) * block_size
        if CAUSAL:  # the tokens of a block are sorted
            stop = last + 1
    else:
        start = tl.maximum(first - left, 0)
        stop = last + right + 1
    return start, tl.minimum(stop, length)


@triton.jit
def _queries_of(
    first,
    last,
    length,
    left,
    right,
    block_size,
    IN_BLOCKS: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """The slots `start .. stop - 1` that may see keys `first .. last`."""
    if IN_BLOCKS:
        start = first // block_size * block_size
        stop = (last // block_size + 1) * block_size
        if CAUSAL:
            start = first
    else:
        start = tl.maximum(first - right, 0)
        stop = last + left + 1
    return start, tl.minimum(stop, length)


@triton.jit
def _is_visible(
    query_slot,
    key_slot,
    query_token,
    key_token,
    left,
    right,
    block_size,
    IN_BLOCKS: tl.constexpr,
    CAUSAL: tl.constexpr,
    EXCLUDE_LEFT: tl.constexpr,
    EXCLUDE_RIGHT: tl.constexpr,
):
    """Which keys each query attends to; arguments broadcast to the pairs."""
    if IN_BLOCKS:
        visible = query_slot // block_size == key_slot // block_size
    else:
        ahead = query_slot - key_slot
        visible = (ahead <= left) & (ahead >= -right)
    visible = visible & (key_token >= 0) & (query_token >= 0)
    if CAUSAL:
        visible = visible & (key_token <= query_token)
    if EXCLUDE_LEFT >= 0:
        distance = query_token - key_token
        is_local = (distance <= EXCLUDE_LEFT) & (distance >= -EXCLUDE_RIGHT)
        visible = visible & (is_local == 0)
    return visible


@triton.jit
def _tanh(x):
    """Accurate also near 0, where `1 - exp` loses what it subtracts."""
    decay = tl.exp2(tl.abs(x) * (-2 * _LOG2_E))
    far = (1 - decay) / (1 + decay)
    far = tl.where(x < 0, -far, far)
    square = x * x
    near = x * (
        1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315)))
    )
    return tl.where(square < 0.01, near, far)


@triton.jit
def _scores(products, SCALE: tl.constexpr, SOFT_CAP: tl.constexpr):
    """Scores in units of log 2, and the soft cap's tanh if there is one."""
    if SOFT_CAP > 0:
        capped = _tanh(products * (SCALE / SOFT_CAP))
        return capped * (SOFT_CAP * _LOG2_E), capped
    scores = products * (SCALE * _LOG2_E)
    return scores, scores


@triton.jit
def _softmax_step(
    scores, value_rows, highest, total, weighted, PRECISION: tl.constexpr
):
    """Adds the visible keys of a tile to a softmax under way."""
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    # A row that has seen nothing yet: -inf minus -inf would be NaN.
    finite = tl.where(new_highest == -float("inf"), 0.0, new_highest)
    weights = tl.exp2(scores - finite[:, None])
    shrink = tl.exp2(highest - finite)
    total = total * shrink + tl.sum(weights, 1)
    weighted = tl.dot(
        weights.to(value_rows.dtype),
        value_rows,
        acc=weighted * shrink[:, None],
        input_precision=PRECISION,
    )
    return new_highest, total, weighted


@triton.jit
def _add_sink(sink, highest, total, weighted):
    """A sink counts in the denominator and has no value."""
    new_highest = tl.maximum(highest, sink)
    finite = tl.where(new_highest == -float("inf"), 0.0, new_highest)
    shrink = tl.exp2(highest - finite)
    total = total * shrink + tl.exp2(sink - finite)
    return new_highest, total, weighted * shrink[:, None]


@triton.jit(do_not_specialize=_SIZES)
def forward_kernel(
    query,  # [B, n, H, D]
    key,  # [B, n, K, D]
    value,  # [B, n, K, E]
    order,
    sinks,  # [H] float32
    length,
    left,
    right,
    block_size,
    order_example_stride,
    order_head_stride,
    output,  # [B, n, H, E]
    log_sum_exp,  # [B, n, H] float32
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    PADDED_D: tl.constexpr,
    PADDED_E: tl.constexpr,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IN_BLOCKS: tl.constexpr,
    CAUSAL: tl.constexpr,
    EXCLUDE_LEFT: tl.constexpr,
    EXCLUDE_RIGHT: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    num_tiles = tl.cdiv(length, R)
    tile = tl.program_id(0) % num_tiles
    example = (tl.program_id(0) // num_tiles // H).to(tl.int64)
    head = tl.program_id(0) // num_tiles % H
    kv_head = head // (H // K)
    query += example * length * (H * D) + head * D
    key += example * length * (K * D) + kv_head * D
    value += example * length * (K * E) + kv_head * E
    order += example * order_example_stride + kv_head * order_head_stride

    first = tile * R
    query_slot = first + tl.arange(0, R)
    query_token = _tokens(order, query_slot, length, HAS_ORDER)
    query_rows = _load_rows(query, query_token, H, D, PADDED_D, WIDE)

    highest = tl.full([R], -float("inf"), tl.float32)
    total = tl.zeros([R], tl.float32)
    weighted = tl.zeros([R, PADDED_E], tl.float32)
    last = tl.minimum(first + R, length) - 1
    start, stop = _keys_of(
        first, last, length, left, right, block_size, IN_BLOCKS, CAUSAL
    )
    for column in range(start, stop, C):
        key_slot = column + tl.arange(0, C)
        key_token = _tokens(order, key_slot, length, HAS_ORDER)
        key_rows = _load_rows(key, key_token, K, D, PADDED_D, WIDE)
        products = tl.dot(
            query_rows, tl.trans(key_rows), input_precision=PRECISION
        )
        scores, _ = _scores(products, SCALE, SOFT_CAP)
        visible = _is_visible(
            query_slot[:, None],
            key_slot[None, :],
            query_token[:, None],
            key_token[None, :],
            left,
            right,
            block_size,
            IN_BLOCKS,
            CAUSAL,
            EXCLUDE_LEFT,
            EXCLUDE_RIGHT,
        )
        scores = tl.where(visible, scores, -float("inf"))
        value_rows = _load_rows(value, key_token, K, E, PADDED_E, WIDE)
        highest, total, weighted = _softmax_step(
            scores, value_rows, highest, total, weighted, PRECISION
        )

    if HAS_SINKS:
        sink = tl.load(sinks + head) * _LOG2_E
        sink = tl.where(query_token >= 0, sink, -float("inf"))
        highest, total, weighted = _add_sink(sink, highest, total, weighted)
    something = total > 0
    total = tl.where(something, total, 1.0)
    result = weighted / total[:, None]
    log_total = (highest + tl.log2(total)) * _LN_2
    log_total = tl.where(something, log_total, -float("inf"))

    exists = query_slot < length
    output += example * length * (H * E) + head * E
    _store_rows(output, query_token, result, exists, H, E, PADDED_E, WIDE)
    log_sum_exp += example * length * H + head
    at = _row_offsets(query_token, H, 1, WIDE)
    tl.store(log_sum_exp + at, log_total, mask=exists)


@triton.jit(do_not_specialize=_SIZES)
def query_gradient_kernel(
    query,
    key,
    value,
    order,
    output,
    log_sum_exp,
    output_gradient,  # [B, n, H, E]
    lse_gradient,  # [B, n, H] float32
    length,
    left,
    right,
    block_size,
    order_example_stride,
    order_head_stride,
    query_gradient,  # [B, n, H, D]
    delta,  # [B, n, H] float32: output . output_gradient - lse_gradient
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    PADDED_D: tl.constexpr,
    PADDED_E: tl.constexpr,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    HAS_LSE_GRADIENT: tl.constexpr,
    IN_BLOCKS: tl.constexpr,
    CAUSAL: tl.constexpr,
    EXCLUDE_LEFT: tl.constexpr,
    EXCLUDE_RIGHT: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    num_tiles = tl.cdiv(length, R)
    tile = tl.program_id(0) % num_tiles
    example = (tl.program_id(0) // num_tiles // H).to(tl.int64)
    head = tl.program_id(0) // num_tiles % H
    kv_head = head // (H // K)
    query += example * length * (H * D) + head * D
    key += example * length * (K * D) + kv_head * D
    value += example * length * (K * E) + kv_head * E
    output += example * length * (H * E) + head * E
    output_gradient += example * length * (H * E) + head * E
    order += example * order_example_stride + kv_head * order_head_stride
    per_row = example * length * H + head

    first = tile * R
    query_slot = first + tl.arange(0, R)
    query_token = _tokens(order, query_slot, length, HAS_ORDER)
    is_real = query_token >= 0
    exists = query_slot < length
    query_rows = _load_rows(query, query_token, H, D, PADDED_D, WIDE)
    upstream = _load_rows(output_gradient, query_token, H, E, PADDED_E, WIDE)
    outputs = _load_rows(output, query_token, H, E, PADDED_E, WIDE)
    at = _row_offsets(query_token, H, 1, WIDE)
    log_total = tl.load(log_sum_exp + per_row + at, mask=is_real, other=0.0)
    log_total = tl.where(log_total == -float("inf"), 0.0, log_total * _LOG2_E)
    row_delta = tl.sum(outputs.to(tl.float32) * upstream.to(tl.float32), 1)
    if HAS_LSE_GRADIENT:
        row_delta -= tl.load(
            lse_gradient + per_row + at, mask=is_real, other=0.0
        )
    tl.store(delta + per_row + at, row_delta, mask=exists)

    gradient = tl.zeros([R, PADDED_D], tl.float32)
    last = tl.minimum(first + R, length) - 1
    start, stop = _keys_of(
        first, last, length, left, right, block_size, IN_BLOCKS, CAUSAL
    )
    for column in range(start, stop, C):
        key_slot = column + tl.arange(0, C)
        key_token = _tokens(order, key_slot, length, HAS_ORDER)
        key_rows = _load_rows(key, key_token, K, D, PADDED_D, WIDE)
        value_rows = _load_rows(value, key_token, K, E, PADDED_E, WIDE)
        products = tl.dot(
            query_rows, tl.trans(key_rows), input_precision=PRECISION
        )
        scores, capped = _scores(products, SCALE, SOFT_CAP)
        visible = _is_visible(
            query_slot[:, None],
            key_slot[None, :],
            query_token[:, None],
            key_token[None, :],
            left,
            right,
            block_size,
            IN_BLOCKS,
            CAUSAL,
            EXCLUDE_LEFT,
            EXCLUDE_RIGHT,
        )
        scores = tl.where(visible, scores, -float("inf"))
        weights = tl.exp2(scores - log_total[:, None])
        weight_gradient = tl.dot(
            upstream, tl.trans(value_rows), input_precision=PRECISION
        )
        score_gradient = weights * (weight_gradient - row_delta[:, None])
        if SOFT_CAP > 0:
            score_gradient *= 1 - capped * capped
        gradient = tl.dot(
            score_gradient.to(key_rows.dtype),
            key_rows,
            acc=gradient,
            input_precision=PRECISION,
        )
    query_gradient += example * length * (H * D) + head * D
    _store_rows(
        query_gradient,
        query_token,
        gradient * SCALE,
        exists,
        H,
        D,
        PADDED_D,
        WIDE,
    )


@triton.jit(do_not_specialize=_SIZES)
def key_value_gradient_kernel(
    query,
    key,
    value,
    order,
    log_sum_exp,
    output_gradient,
    delta,
    length,
    left,
    right,
    block_size,
    order_example_stride,
    order_head_stride,
    key_gradient,  # [B, n, K, D]
    value_gradient,  # [B, n, K, E]
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    PADDED_D: tl.constexpr,
    PADDED_E: tl.constexpr,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    HAS_ORDER: tl.constexpr,
    IN_BLOCKS: tl.constexpr,
    CAUSAL: tl.constexpr,
    EXCLUDE_LEFT: tl.constexpr,
    EXCLUDE_RIGHT: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    num_tiles = tl.cdiv(length, R)
    tile = tl.program_id(0) % num_tiles
    example = (tl.program_id(0) // num_tiles // K).to(tl.int64)
    kv_head = tl.program_id(0) // num_tiles % K
    query += example * length * (H * D)
    key += example * length * (K * D) + kv_head * D
    value += example * length * (K * E) + kv_head * E
    output_gradient += example * length * (H * E)
    log_sum_exp += example * length * H
    delta += example * length * H
    order += example * order_example_stride + kv_head * order_head_stride

    first = tile * R
    key_slot = first + tl.arange(0, R)
    key_token = _tokens(order, key_slot, length, HAS_ORDER)
    key_rows = _load_rows(key, key_token, K, D, PADDED_D, WIDE)
    value_rows = _load_rows(value, key_token, K, E, PADDED_E, WIDE)
    key_sum = tl.zeros([R, PADDED_D], tl.float32)
    value_sum = tl.zeros([R, PADDED_E], tl.float32)
    last = tl.minimum(first + R, length) - 1
    start, stop = _queries_of(
        first, last, length, left, right, block_size, IN_BLOCKS, CAUSAL
    )
    for head in range(kv_head * (H // K), (kv_head + 1) * (H // K)):
        for row in range(start, stop, C):
            query_slot = row + tl.arange(0, C)
            query_token = _tokens(order, query_slot, length, HAS_ORDER)
            is_real = query_token >= 0
            query_rows = _load_rows(
                query + head * D, query_token, H, D, PADDED_D, WIDE
            )
            upstream = _load_rows(
                output_gradient + head * E, query_token, H, E, PADDED_E, WIDE
            )
            at = _row_offsets(query_token, H, 1, WIDE) + head
            log_total = tl.load(log_sum_exp + at, mask=is_real, other=0.0)
            log_total = tl.where(
                log_total == -float("inf"), 0.0, log_total * _LOG2_E
            )
            row_delta = tl.load(delta + at, mask=is_real, other=0.0)
            products = tl.dot(
                key_rows, tl.trans(query_rows), input_precision=PRECISION
            )
            scores, capped = _scores(products, SCALE, SOFT_CAP)
            visible = _is_visible(
                query_slot[None, :],
                key_slot[:, None],
                query_token[None, :],
                key_token[:, None],
                left,
                right,
                block_size,
                IN_BLOCKS,
                CAUSAL,
                EXCLUDE_LEFT,
                EXCLUDE_RIGHT,
            )
            scores = tl.where(visible, scores, -float("inf"))
            weights = tl.exp2(scores - log_total[None, :])
            value_sum = tl.dot(
                weights.to(upstream.dtype),
                upstream,
                acc=value_sum,
                input_precision=PRECISION,
            )
            weight_gradient = tl.dot(
                value_rows, tl.trans(upstream), input_precision=PRECISION
            )
            score_gradient = weights * (weight_gradient - row_delta[None, :])
            if SOFT_CAP > 0:
                score_gradient *= 1 - capped * capped
            key_sum = tl.dot(
                score_gradient.to(query_rows.dtype),
                query_rows,
                acc=key_sum,
                input_precision=PRECISION,
            )
    exists = key_slot < length
    key_gradient += example * length * (K * D) + kv_head * D
    value_gradient += example * length * (K * E) + kv_head * E
    _store_rows(
        key_gradient, key_token, key_sum * SCALE, exists, K, D, PADDED_D, WIDE
    )
    _store_rows(
        value_gradient, key_token, value_sum, exists, K, E, PADDED_E, WIDE
    )


@triton.jit(do_not_specialize=_STEP_SIZES)
def decode_kernel(
    query,  # [B, T, H, D]
    key,  # [B, S, K, D]
    value,  # [B, S, K, E]
    neighbors,  # int32 [T, m]: rows of the cache, -1 for none
    sinks,  # [H] float32
    num_new,  # T
    num_neighbors,  # m
    key_rows_per_example,  # S, or more in a part of a larger cache
    value_rows_per_example,
    output,  # [B, T, H, E]
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    PADDED_D: tl.constexpr,
    PADDED_E: tl.constexpr,
    SCALE: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    R: tl.constexpr,  # query heads of a group, padded
    C: tl.constexpr,
):
    """All query heads of a group meet the gathered rows of one new token."""
    G: tl.constexpr = H // K
    kv_head = tl.program_id(0) % K
    token = tl.program_id(0) // K % num_new
    example = (tl.program_id(0) // K // num_new).to(tl.int64)
    key += example * key_rows_per_example * (K * D) + kv_head * D
    value += example * value_rows_per_example * (K * E) + kv_head * E
    in_group = tl.arange(0, R)
    # A group's heads are rows of one token: `[G, D]`.
    rows = tl.where(in_group < G, in_group, -1)
    first_head = (example * num_new + token) * H + kv_head * G
    query_rows = _load_rows(query + first_head * D, rows, 1, D, PADDED_D, False)

    highest = tl.full([R], -float("inf"), tl.float32)
    total = tl.zeros([R], tl.float32)
    weighted = tl.zeros([R, PADDED_E], tl.float32)
    for column in range(0, num_neighbors, C):
        at = column + tl.arange(0, C)
        cache_row = tl.load(
            neighbors + token * num_neighbors + at,
            mask=at < num_neighbors,
            other=-1,
        )
        key_rows = _load_rows(key, cache_row, K, D, PADDED_D, WIDE)
        products = tl.dot(
            query_rows, tl.trans(key_rows), input_precision=PRECISION
        )
        scores, _ = _scores(products, SCALE, SOFT_CAP)
        scores = tl.where((cache_row >= 0)[None, :], scores, -float("inf"))
        value_rows = _load_rows(value, cache_row, K, E, PADDED_E, WIDE)
        highest, total, weighted = _softmax_step(
            scores, value_rows, highest, total, weighted, PRECISION
        )
    if HAS_SINKS:
        sink = tl.load(
            sinks + kv_head * G + in_group, mask=in_group < G, other=0.0
        )
        _, total, weighted = _add_sink(sink * _LOG2_E, highest, total, weighted)
    result = weighted / tl.where(total > 0, total, 1.0)[:, None]
    _store_rows(
        output + first_head * E,
        rows,
        result,
        in_group < G,
        1,
        E,
        PADDED_E,
        False,
    )
