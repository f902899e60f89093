"""Attention under any pattern, exactly, at the pattern's cost.

One table says how each class of patterns is computed. A pattern that is not in
it is computed by a gather of its neighbors. A union is computed part by part:
each part hides the keys that earlier ones have, so that the parts are disjoint
and merge by their log-sum-exp.

Letters: `B` batch, `n` tokens, `H` query heads, `K` key/value heads, `D` head
dim, `E` value head dim, `m` neighbors.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_sa import _validation
from keras_sa import patterns
from keras_sa.ops import global_tokens
from keras_sa.ops import inputs as checks
from keras_sa.ops import merging
from keras_sa.ops.dense import dense_attention
from keras_sa.ops.neighbors import gathered
from keras_sa.ops.routed import api as routed
from keras_sa.ops.windowed import api as windowed
from keras_sa.ops.windowed.sliding_window import attend_to_window
from keras_sa.ops.windowed.stochastic import attend_in_order
from keras_sa.patterns import permutation as permutations


def attention(
    query,
    key,
    value,
    pattern,
    *,
    seed=None,
    is_causal=False,
    padding_mask=None,
    attention_mask=None,
    scale=None,
    attn_logits_soft_cap=None,
    sinks=None,
    gates=None,
    return_lse=False,
    dropout=0.0,
    dropout_seed=None,
    implementation=None,
):
    """Attention to the keys that a pattern says.

    The result is exact and costs what the pattern costs: O(n w) time and
    memory for windows of w. In a union every key counts once, whatever
    overlaps.

    Args:
        query: `[B, n, H, D]`, any float dtype; position encodings (rotary)
            are applied before and are not moved.
        key: `[B, n, K, D]`; `K` divides `H`.
        value: `[B, n, K, E]`.
        pattern: a `keras_sa.patterns.Pattern`.
        seed: int of at most 32 bits or int32 scalar tensor, of the pattern's
            permutations; or what `pattern.draw` returned. Default: 0.
        is_causal: whether a token attends to no later token.
        padding_mask: optional `[B, n]`, true or 1 for real tokens. Padding is
            attended to by nobody and takes no place, and its output is 0.
        attention_mask: optional `[B or 1, n, n]`, true or 1 where a row may
            attend to a column, in addition to the pattern.
        scale: factor on the scores; default `1 / sqrt(D)`.
        attn_logits_soft_cap: optional `c`: scores become
            `c * tanh(score / c)`.
        sinks: optional `[H]`: one extra logit per head in the denominator, of
            each term of a gated sum.
        gates: of a gated sum: a list of one tensor for each term, that
            broadcasts to `[B, n, H, E]`, such as `[B, n, H, 1]`.
        return_lse: whether to return the log-sum-exp of the scores as well;
            not of a gated sum, which is no softmax.
        dropout: rate of dropout on the attention weights.
        dropout_seed: `keras.random.SeedGenerator` or int for the dropout.
        implementation: `None` for the best one for the backend, or the name
            of one for windows, as in `sliding_window_attention`; "dense" for
            the oracle, which computes all pairs. A named one never falls back.

    Returns:
        `[B, n, H, E]` in the dtype of `value`; with `return_lse` also
        `[B, n, H]`, float32 at least. A row that attends to nobody has output
        0 and log-sum-exp -inf (a real token with sinks: the sink).

    Raises:
        ValueError: if a shape, dtype or argument is not as above.

    Example:

    >>> from keras_sa.patterns import GlobalKeys, SlidingWindow, Stochastic
    >>> x = keras.random.normal((2, 100, 4, 16), seed=0)
    >>> pattern = SlidingWindow(8) | Stochastic(8) | GlobalKeys(first=4)
    >>> keras_sa.ops.attention(x, x, x, pattern, is_causal=True).shape
    (2, 100, 4, 16)

    Reference:
        Stochastic Attention, https://arxiv.org/abs/2604.00754
    """
    patterns.check_pattern(pattern)
    checked = checks.check_inputs(
        query,
        key,
        value,
        is_causal=is_causal,
        padding_mask=padding_mask,
        attention_mask=attention_mask,
        scale=scale,
        attn_logits_soft_cap=attn_logits_soft_cap,
        sinks=sinks,
        return_lse=return_lse,
        dropout=dropout,
        dropout_seed=dropout_seed,
    )
    _check_gates(pattern, gates, return_lse)
    use = Use(checked, 0 if seed is None else seed, gates, implementation)
    check_implementation(implementation)
    if checked.is_empty:
        return checks.empty_attention(checked)
    if implementation == "dense":
        output, lse, _ = _densely(pattern, use)
    else:
        output, lse = _attend(pattern, use)
    return (output, lse) if return_lse else output


def attention_weights(
    query,
    key,
    value,
    pattern,
    *,
    seed=None,
    gates=None,
    **others,
):
    """Attention to the keys that a pattern says, and its weights, in O(n^2).

    Args:
        query, key, value, pattern, seed, gates: as in `attention`.
        **others: more keywords of `attention`, without `return_lse` and
            `implementation`.

    Returns:
        `[B, n, H, E]` in the dtype of `value`, and the weights before dropout
        `[B, H, n, n]`, float32 at least; of a gated sum the gated sum of the
        weights, which needs gates `[B, n, H, 1]`.

    Raises:
        ValueError: as `attention`, or for gates per channel.

    Example:

    >>> from keras_sa.patterns import SlidingWindow
    >>> x = keras.random.normal((2, 10, 4, 16), seed=0)
    >>> output, weights = keras_sa.ops.attention_weights(
    ...     x, x, x, SlidingWindow(3)
    ... )
    >>> weights.shape
    (2, 4, 10, 10)
    """
    patterns.check_pattern(pattern)
    checked = checks.check_inputs(query, key, value, **others)
    _check_gates(pattern, gates, return_lse=False)
    use = Use(checked, 0 if seed is None else seed, gates)
    output, _, weights = _densely(pattern, use)
    return output, weights


@dataclasses.dataclass(frozen=True)
class Use:
    """What is known of one attention beside its pattern.

    Attributes:
        inputs: `Inputs`, checked.
        seed: of the permutations.
        gates: a list of tensors, or `None`.
        implementation: a name, or `None`.
    """

    inputs: checks.Inputs
    seed: Any
    gates: Any = None
    implementation: str | None = None

    def member(self, index, seed, **inputs):
        """That of a member of a combination, with a dropout of its own."""
        dropout_seed = self.inputs.dropout_seed
        if isinstance(dropout_seed, int):
            dropout_seed = (dropout_seed + index * _SEED_STRIDE) % 2**31
        inputs = dataclasses.replace(
            self.inputs, dropout_seed=dropout_seed, **inputs
        )
        return dataclasses.replace(self, seed=seed, inputs=inputs)


@dataclasses.dataclass(frozen=True)
class Hidden:
    """The keys that earlier parts of a union have.

    Attributes:
        first: keys of a lower rank among the real tokens.
        windows: tuples `(left, right, dilation)` of distances.
    """

    first: int = 0
    windows: tuple = ()


_NOTHING = Hidden()
# An odd number far from small seeds: the golden ratio of 2**31.
_SEED_STRIDE = 1327217885


@dataclasses.dataclass(frozen=True)
class Executor:
    """How patterns of one class are computed.

    Attributes:
        attend: function of the pattern, `Use` and `Hidden` that returns the
            output and, where wanted, the log-sum-exp.
        hide: function of the pattern, `Use` and `Hidden` that returns what is
            hidden from the parts after it; `None` if they can't hide its keys.
        place: function of the pattern, `Use`, output and log-sum-exp that
            puts whole rows in place, whatever other parts have there.
    """

    attend: Callable
    hide: Callable | None = None
    place: Callable | None = None


def _attend(pattern, use, hidden=_NOTHING):
    return executor_of(pattern).attend(pattern, use, hidden)


def executor_of(pattern):
    """By the exact class: a subclass may have other neighbors."""
    return EXECUTORS.get(type(pattern), _GATHERED)


# One class of patterns each.


def _full(pattern, use, hidden):
    """One block that holds everything."""
    length = ops.shape(use.inputs.key)[1]
    permutation = ops.arange(length, dtype="int32")
    if use.inputs.padding_mask is not None:
        permutation = permutations.padding_last(
            permutation, use.inputs.padding_mask
        )
    return _pair(
        windowed.windowed_attention(
            use.inputs,
            permutation,
            reach=(0, 0),
            window_size=length,
            neighborhood="block",
            implementation=use.implementation,
        )
    )


def _sliding_window(pattern, use, hidden):
    return _pair(
        attend_to_window(
            use.inputs,
            window_size=pattern.window_size,
            dilation=pattern.dilation,
            **_hiding(use, hidden),
            implementation=use.implementation,
        )
    )


def _hide_window(pattern, use, hidden):
    reach = patterns.window_reach(pattern.window_size, use.inputs.is_causal)
    left, right = (x * pattern.dilation for x in reach)
    window = (left, right, pattern.dilation)
    return dataclasses.replace(hidden, windows=(*hidden.windows, window))


def _stochastic(pattern, use, hidden):
    inputs = use.inputs
    drawn = pattern.draw(
        ops.shape(inputs.key)[1],
        seed=use.seed,
        num_key_value_heads=inputs.key.shape[2],
        padding_mask=inputs.padding_mask,
    )
    permutation = drawn.permutation
    if drawn.per_head and len(permutation.shape) == 2:
        permutation = permutation[None]
    return _pair(
        attend_in_order(
            inputs,
            permutation,
            window_size=pattern.window_size,
            neighborhood=pattern.neighborhood,
            **_hiding(use, hidden),
            implementation=use.implementation,
        )
    )


def _pair(result):
    """Output and log-sum-exp, `None` where it was not wanted."""
    return result if isinstance(result, tuple) else (result, None)


def _hiding(use, hidden):
    """Keywords of windows."""
    first = None
    if hidden.first:
        first = global_tokens.position_of_rank(use.inputs, hidden.first)
    return {"hidden_first": first, "hidden_windows": hidden.windows}


def _global_keys(pattern, use, hidden):
    return global_tokens.attend_to_first(use.inputs, pattern.first)


def _hide_first(pattern, use, hidden):
    return dataclasses.replace(hidden, first=max(hidden.first, pattern.first))


def _global_queries(pattern, use, hidden):
    """Alone: the other rows attend to nobody."""
    output, lse = global_tokens.nothing(use.inputs)
    return _place_rows(pattern, use, output, lse)


def _place_rows(pattern, use, output, lse):
    return global_tokens.place_rows(pattern, use.inputs, output, lse)


def _block_routed(pattern, use, hidden):
    if use.implementation not in (None, "portable"):
        raise ValueError(
            "BlockRouted expects implementation=None or 'portable'. "
            f"Received: implementation={use.implementation!r}"
        )
    return _pair(
        routed.attend_to_blocks(
            use.inputs, block_size=pattern.block_size, top_k=pattern.top_k
        )
    )


def _gathered(pattern, use, hidden):
    return _gather([(pattern, use.seed)], use, hidden)


def _gather(members, use, hidden):
    """Attention to the distinct neighbors of patterns, whatever they are.

    Args:
        members: `[(pattern, seed)]`.
    """
    inputs = use.inputs
    lists = [
        pattern.token_neighbors(
            ops.shape(inputs.key)[1],
            is_causal=inputs.is_causal,
            seed=seed,
            num_key_value_heads=inputs.key.shape[2],
            padding_mask=inputs.padding_mask,
        )
        for pattern, seed in members
    ]
    return gathered.attend_to_lists(inputs, lists, **_hiding(use, hidden))


# Combinations.


def _union(pattern, use, hidden):
    """Disjoint parts, merged; rows that attend to everybody are put in place.

    Parts whose keys can be hidden come first. If several others are left,
    their distinct neighbors are gathered.
    """
    members = _needed(list(zip(pattern.parts, pattern.seeds(use.seed))))
    executors = [executor_of(part) for part, _ in members]
    rows, hideable, others = [], [], []
    for member, executor in zip(members, executors):
        kind = rows if executor.place else hideable if executor.hide else others
        kind.append(member)
    hideable.sort(key=lambda member: _PLACES[type(member[0])])
    output, lse = _merged(hideable, others, use, hidden)
    for index, (part, seed) in enumerate(rows):
        row_use = use.member(len(members) + index, seed)
        place = executor_of(part).place
        output, lse = place(part, row_use, output, lse)
    return output, lse


def _needed(members):
    """Without the patterns that others contain."""

    def is_needed(index):
        pattern = members[index][0]
        return not any(
            other.contains(pattern)
            and (i < index or not pattern.contains(other))
            for i, (other, _) in enumerate(members)
            if i != index
        )

    return [x for i, x in enumerate(members) if is_needed(i)]


def _merged(hideable, others, use, hidden):
    num_outputs = len(hideable) + bool(others)
    if num_outputs == 0:
        return global_tokens.nothing(use.inputs)
    part_inputs = {}
    if num_outputs > 1:  # sinks are in the one denominator once
        part_inputs = {"sinks": None, "return_lse": True}
    outputs = []
    for index, (part, seed) in enumerate(hideable):
        executor = executor_of(part)
        part_use = use.member(index, seed, **part_inputs)
        outputs.append(executor.attend(part, part_use, hidden))
        hidden = executor.hide(part, use, hidden)
    if others:
        part_use = use.member(len(hideable), others[0][1], **part_inputs)
        if len(others) == 1:
            outputs.append(_attend(others[0][0], part_use, hidden))
        else:
            outputs.append(_gather(others, part_use, hidden))
    if num_outputs == 1:
        return outputs[0]
    inputs = use.inputs
    output, lse = merging.merge_attention(*zip(*outputs), return_lse=True)
    output, lse = merging.with_sinks(
        output, lse, inputs.sinks, inputs.padding_mask
    )
    return output, lse if inputs.return_lse else None


def _gated_sum(pattern, use, hidden):
    pairs = zip(pattern.terms, pattern.seeds(use.seed))
    outputs = [
        _attend(term, use.member(index, seed))[0]
        for index, (term, seed) in enumerate(pairs)
    ]
    return merging.gated_sum(outputs, use.gates), None


EXECUTORS = {
    patterns.Full: Executor(_full),
    patterns.GlobalKeys: Executor(_global_keys, hide=_hide_first),
    patterns.SlidingWindow: Executor(_sliding_window, hide=_hide_window),
    patterns.Stochastic: Executor(_stochastic),
    patterns.GlobalQueries: Executor(_global_queries, place=_place_rows),
    patterns.BlockRouted: Executor(_block_routed),
    patterns.Union: Executor(_union),
    patterns.GatedSum: Executor(_gated_sum),
}
_PLACES = {cls: place for place, cls in enumerate(EXECUTORS)}
_GATHERED = Executor(_gathered)


# The oracle.


def _densely(pattern, use):
    """Output, log-sum-exp or `None`, and weights `[B, H, n, n]`."""
    if "gates" in pattern.needs():
        return _gated_densely(pattern, use)
    inputs = use.inputs
    mask = _mask(pattern, use)
    output, lse, weights = dense_attention(
        inputs.query,
        inputs.key,
        inputs.value,
        mask,
        scale=inputs.scale,
        attn_logits_soft_cap=inputs.attn_logits_soft_cap,
        sinks=inputs.sinks,
        return_lse=True,
        return_weights=True,
        dropout=inputs.dropout,
        dropout_seed=inputs.dropout_seed,
    )
    if inputs.padding_mask is not None and inputs.sinks is not None:
        real = inputs.padding_mask[:, :, None]
        lse = ops.where(real, lse, -float("inf"))
    return output, lse, weights


def _mask(pattern, use):
    """Boolean, broadcasts to `[B, H, n, n]`."""
    inputs = use.inputs
    length = ops.shape(inputs.key)[1]
    num_heads, num_kv_heads = inputs.query.shape[2], inputs.key.shape[2]
    more = {}
    if "routes" in pattern.needs():
        more["routes"] = routed.route_to_blocks(
            inputs.query,
            inputs.key,
            block_size=pattern.block_size,
            top_k=pattern.top_k,
            is_causal=inputs.is_causal,
            padding_mask=inputs.padding_mask,
        )
    mask = pattern.mask(
        length,
        is_causal=inputs.is_causal,
        seed=use.seed,
        num_key_value_heads=num_kv_heads,
        padding_mask=inputs.padding_mask,
        **more,
    )
    rank_without_heads = 2 if inputs.padding_mask is None else 3
    if len(mask.shape) == rank_without_heads:
        mask = ops.expand_dims(mask, -3)
    elif mask.shape[-3] != num_heads:
        mask = ops.repeat(mask, num_heads // num_kv_heads, axis=-3)
    if len(mask.shape) == 3:
        mask = mask[None]
    if inputs.attention_mask is not None:
        mask = ops.logical_and(mask, inputs.attention_mask[:, None])
    return mask


def _gated_densely(pattern, use):
    if any(gate.shape[-1] != 1 for gate in map(_shaped, use.gates)):
        raise ValueError(
            "The weights of a gated sum expect gates per head `[B, n, H, 1]`: "
            "a gate per channel has no weights per pair of tokens. "
            f"Received: gates of shapes {[tuple(x.shape) for x in use.gates]}"
        )
    pairs = zip(pattern.terms, pattern.seeds(use.seed))
    parts = [
        _densely(term, use.member(index, seed))
        for index, (term, seed) in enumerate(pairs)
    ]
    outputs, _, weights = zip(*parts)
    of_weights = [  # [B, n, H, 1] as [B, H, n, 1]
        ops.transpose(gate, (0, 2, 1, 3)) if len(gate.shape) == 4 else gate
        for gate in map(_shaped, use.gates)
    ]
    return (
        merging.gated_sum(outputs, use.gates),
        None,
        merging.gated_sum(weights, of_weights),
    )


def _shaped(gate):
    return ops.reshape(gate, (1, 1, 1, 1)) if not ops.shape(gate) else gate


# Checks.


def _check_gates(pattern, gates, return_lse):
    if "gates" not in pattern.needs():
        if gates is not None:
            raise ValueError(
                "`gates` belong to a gated sum, as Stochastic(w) + "
                f"SlidingWindow(w). Received: gates with {pattern!r}"
            )
        return
    if gates is None or len(gates) != len(pattern.terms):
        received = "None" if gates is None else f"{len(gates)} gates"
        raise ValueError(
            f"`gates` is expected to be a list of {len(pattern.terms)} "
            f"tensors, one for each term of {pattern!r}, such as "
            "`[B, n, H, 1]`. Without gates write `|`, one softmax that needs "
            f"no training. Received: gates={received}"
        )
    if return_lse:
        raise ValueError(
            "return_lse=True expects a pattern of one softmax; a gated sum has "
            f"no log-sum-exp. Received: {pattern!r}"
        )


def check_implementation(name):
    """Returns the name of an implementation of this backend, or `None`."""
    known = (None, "dense", *windowed.IMPLEMENTATIONS[keras.config.backend()])
    return _validation.check_one_of("implementation", name, known)
