"""How the Triton kernels are launched: constants, grids, tile sizes.

Plain Python, one for torch and JAX. There is no autotuning: a static table
compiles ahead of time, so that its registers and shared memory are known
without a GPU (`examples/benchmarks/kernel_resources.py` prints them).
"""

import dataclasses

import keras

_LARGEST_INT32 = 2**31 - 1
SMALLEST_DIM, LARGEST_DIM = 16, 256  # what a matrix product of a tile takes
_ITEMSIZES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Tile sizes of one kernel.

    Attributes:
        own: slots of the tile that a program owns.
        visited: slots of a tile that it visits per step.
        num_warps: warps of a program.
        num_stages: steps whose loads are in flight.
    """

    own: int
    visited: int
    num_warps: int
    num_stages: int


# By kernel, bytes of a number, and head dim padded to a power of two (the
# larger of key and value).
CONFIGURATIONS = {
    ("forward", 2, 16): Configuration(64, 64, 4, 2),
    ("forward", 2, 32): Configuration(64, 64, 4, 2),
    ("forward", 2, 64): Configuration(64, 64, 4, 2),
    ("forward", 2, 128): Configuration(64, 32, 4, 2),
    ("forward", 2, 256): Configuration(64, 32, 8, 2),
    ("forward", 4, 16): Configuration(64, 32, 4, 2),
    ("forward", 4, 32): Configuration(64, 32, 4, 2),
    ("forward", 4, 64): Configuration(64, 32, 8, 2),
    ("forward", 4, 128): Configuration(16, 32, 8, 1),
    ("forward", 4, 256): Configuration(32, 16, 8, 1),
    ("query_gradient", 2, 16): Configuration(64, 64, 4, 2),
    ("query_gradient", 2, 32): Configuration(64, 64, 4, 2),
    ("query_gradient", 2, 64): Configuration(64, 32, 4, 2),
    ("query_gradient", 2, 128): Configuration(64, 64, 8, 2),
    ("query_gradient", 2, 256): Configuration(32, 32, 4, 2),
    ("query_gradient", 4, 16): Configuration(64, 32, 4, 2),
    ("query_gradient", 4, 32): Configuration(64, 32, 8, 1),
    ("query_gradient", 4, 64): Configuration(64, 32, 8, 2),
    ("query_gradient", 4, 128): Configuration(32, 32, 4, 2),
    ("query_gradient", 4, 256): Configuration(16, 16, 4, 2),
    ("key_value_gradient", 2, 16): Configuration(64, 64, 4, 2),
    ("key_value_gradient", 2, 32): Configuration(64, 64, 8, 1),
    ("key_value_gradient", 2, 64): Configuration(64, 32, 4, 1),
    ("key_value_gradient", 2, 128): Configuration(64, 32, 8, 2),
    ("key_value_gradient", 2, 256): Configuration(32, 32, 8, 1),
    ("key_value_gradient", 4, 16): Configuration(64, 32, 8, 2),
    ("key_value_gradient", 4, 32): Configuration(64, 32, 8, 1),
    ("key_value_gradient", 4, 64): Configuration(32, 32, 8, 2),
    ("key_value_gradient", 4, 128): Configuration(16, 16, 4, 2),
    ("key_value_gradient", 4, 256): Configuration(16, 16, 8, 2),
    ("decode", 2, 16): Configuration(16, 64, 4, 2),
    ("decode", 2, 32): Configuration(16, 64, 4, 2),
    ("decode", 2, 64): Configuration(16, 64, 4, 2),
    ("decode", 2, 128): Configuration(16, 64, 4, 2),
    ("decode", 2, 256): Configuration(16, 32, 4, 2),
    ("decode", 4, 16): Configuration(16, 32, 4, 2),
    ("decode", 4, 32): Configuration(16, 64, 4, 2),
    ("decode", 4, 64): Configuration(16, 64, 4, 2),
    ("decode", 4, 128): Configuration(16, 64, 4, 2),
    ("decode", 4, 256): Configuration(16, 16, 4, 2),
}
# What differs on compute capability 9.0, which has more shared memory and
# multiplies with a warp group where a tile has 64 rows. Products are fast
# there, and what tiles read again and again from the L2 cache is the limit:
# tiles of twice the slots read 40 % less.
HOPPER = {
    **CONFIGURATIONS,
    ("forward", 2, 64): Configuration(128, 32, 8, 2),
    ("forward", 2, 128): Configuration(128, 64, 8, 2),
    ("query_gradient", 2, 64): Configuration(128, 32, 8, 2),
    ("query_gradient", 2, 128): Configuration(128, 32, 8, 2),
    ("query_gradient", 2, 256): Configuration(64, 32, 8, 2),
    ("key_value_gradient", 2, 64): Configuration(128, 32, 8, 2),
    ("key_value_gradient", 2, 128): Configuration(128, 32, 8, 2),
}


def table_of(capability):
    """The table for GPUs of a compute capability, 80 for 8.0."""
    return HOPPER if capability == 90 else CONFIGURATIONS


@dataclasses.dataclass(frozen=True)
class Problem:
    """All of a windowed attention that is not the contents of a tensor.

    Attributes:
        batch_size: `B`.
        length: `n`.
        num_heads: `H`.
        num_key_value_heads: `K`.
        head_dim: `D`.
        value_dim: `E`.
        itemsize: bytes of a number of query, key and value.
        left: slots that a token attends to before its own.
        right: slots that a token attends to after its own.
        block_size: slots in a block, 0 for a window.
        is_causal: whether a token attends to no later original position.
        exclude_local: `(left, right)` distances of pairs to hide, or `None`.
        scale: factor on the scores.
        attn_logits_soft_cap: `c` of `c * tanh(score / c)`, or `None`.
        order_shape: shape of the order `[B or 1, K or 1, n]`, or `None`.
        has_sinks: whether there are attention sinks.
        capability: compute capability of the GPU, 80 for 8.0; a newer one
            may have tiles of its own.
    """

    batch_size: int
    length: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    value_dim: int
    itemsize: int
    left: int
    right: int
    block_size: int
    is_causal: bool
    exclude_local: tuple | None
    scale: float
    attn_logits_soft_cap: float | None
    order_shape: tuple | None
    has_sinks: bool
    capability: int = 80

    @property
    def scalars(self):
        """The scalar arguments of every kernel but the decoding one."""
        strides = (0, 0)
        if self.order_shape is not None:
            examples, heads, slots = self.order_shape
            strides = (
                heads * slots if examples > 1 else 0,
                slots if heads > 1 else 0,
            )
        return (self.length, self.left, self.right, self.block_size, *strides)


def why_not(arguments):
    """What the kernels of `windowed` cannot do, on every backend."""
    if arguments.attention_mask is not None:
        return "`triton` has no attention_mask."
    if arguments.dropout:
        return "`triton` has no dropout."
    if arguments.hidden_first is not None:
        return "`triton` has no hidden_first."
    windows = arguments.hidden_windows
    if len(windows) > 1 or any(dilation > 1 for _, _, dilation in windows):
        return "`triton` hides one window at most, and none that is dilated."
    return why_not_rows(arguments)


def exclude_local_of(arguments):
    """The `exclude_local` of a `Problem`."""
    windows = arguments.hidden_windows
    return windows[0][:2] if windows else None


def why_not_rows(arguments):
    """What no kernel can do with query, key, value and their scores."""
    a = arguments
    dtypes = [
        keras.backend.standardize_dtype(x.dtype)
        for x in (a.query, a.key, a.value)
    ]
    if dtypes[0] not in _ITEMSIZES or len(set(dtypes)) > 1:
        return (
            "`triton` needs query, key and value of one dtype of "
            f"{tuple(_ITEMSIZES)}; these are {tuple(dtypes)}."
        )
    largest = max(a.query.shape[3], a.value.shape[3])
    if largest > LARGEST_DIM:
        return f"`triton` has no head dims above {LARGEST_DIM}."
    if not isinstance(a.scale, (int, float)):
        return "`triton` has no scale that is a tensor."
    if not isinstance(a.attn_logits_soft_cap, (int, float, type(None))):
        return "`triton` has no soft cap that is a tensor."
    return None


def by_default():
    """Unless the user has called `keras.config.disable_flash_attention()`."""
    return keras.config.is_flash_attention_enabled() is not False


def problem_of(arguments, order, capability=80):
    """The `Problem` of checked arguments; `order` as `order_of` gives it."""
    a = arguments
    batch_size, length, num_heads, head_dim = a.query.shape
    return Problem(
        batch_size=batch_size,
        length=length,
        num_heads=num_heads,
        num_key_value_heads=a.key.shape[2],
        head_dim=head_dim,
        value_dim=a.value.shape[3],
        itemsize=_ITEMSIZES[keras.backend.standardize_dtype(a.query.dtype)],
        left=a.left,
        right=a.right,
        block_size=a.window_size if a.neighborhood == "block" else 0,
        is_causal=a.is_causal,
        exclude_local=exclude_local_of(a),
        scale=float(a.scale),
        attn_logits_soft_cap=a.attn_logits_soft_cap,
        order_shape=None if order is None else tuple(order.shape),
        has_sinks=a.sinks is not None,
        capability=capability,
    )


@dataclasses.dataclass(frozen=True)
class Launch:
    """How one kernel is launched.

    Attributes:
        grid: programs along each axis.
        constants: its `tl.constexpr` arguments, by name.
        num_warps: warps of a program.
        num_stages: steps whose loads are in flight.
        capability: compute capability of the GPU, 80 for 8.0.
    """

    grid: tuple
    constants: dict
    num_warps: int
    num_stages: int
    capability: int


def forward(problem):
    return _launch("forward", problem, HAS_SINKS=problem.has_sinks)


def query_gradient(problem, has_lse_gradient):
    return _launch("query_gradient", problem, HAS_LSE_GRADIENT=has_lse_gradient)


def key_value_gradient(problem):
    return _launch("key_value_gradient", problem)


def _launch(kernel, problem, **flags):
    p = problem
    chosen = configuration(kernel, p)
    owners = (
        p.num_key_value_heads if kernel == "key_value_gradient" else p.num_heads
    )
    tiles = -(-p.length // chosen.own)
    exclude_left, exclude_right = p.exclude_local or (-1, -1)
    return Launch(
        grid=(tiles * p.batch_size * owners,),
        constants={
            **_shape_constants(p),
            "HAS_ORDER": p.order_shape is not None,
            "IN_BLOCKS": p.block_size > 0,
            "CAUSAL": p.is_causal,
            "EXCLUDE_LEFT": exclude_left,
            "EXCLUDE_RIGHT": exclude_right,
            **flags,
            "R": chosen.own,
            "C": chosen.visited,
        },
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages + _is_order_read_ahead(chosen, problem),
        capability=p.capability,
    )


def _is_order_read_ahead(chosen, problem):
    """Rows are copied asynchronously from where the order says: to know it in
    time, the order is read one step before. That step holds no rows, so it
    takes next to no shared memory. (In float32 it takes registers.)"""
    return (
        problem.order_shape is not None
        and problem.itemsize == 2
        and chosen.num_stages > 1
    )


def decode_problem(
    query, key, value, scale, attn_logits_soft_cap, has_sinks, capability
):
    """The `Problem` of a decoding step: its length is the cache's.

    Args:
        query: `[B, T, H, D]`.
        key: `[B, S, K, D]`.
        value: `[B, S, K, E]`.
        Others: as in `Problem`.
    """
    return Problem(
        batch_size=query.shape[0],
        length=key.shape[1],
        num_heads=query.shape[2],
        num_key_value_heads=key.shape[2],
        head_dim=query.shape[3],
        value_dim=value.shape[3],
        itemsize=_ITEMSIZES[keras.backend.standardize_dtype(query.dtype)],
        left=0,
        right=0,
        block_size=0,
        is_causal=True,
        exclude_local=None,
        scale=float(scale),
        attn_logits_soft_cap=attn_logits_soft_cap,
        order_shape=None,
        has_sinks=has_sinks,
        capability=capability,
    )


def decode(problem, num_new):
    """The decoding kernel for `T` new tokens."""
    p = problem
    chosen = configuration("decode", p)
    group = p.num_heads // p.num_key_value_heads
    return Launch(
        grid=(p.batch_size * num_new * p.num_key_value_heads,),
        constants={
            **_shape_constants(p),
            "HAS_SINKS": p.has_sinks,
            "R": max(padded(group), chosen.own),
            "C": chosen.visited,
        },
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
        capability=p.capability,
    )


def _shape_constants(problem):
    p = problem
    widest = max(p.num_heads, p.num_key_value_heads) * max(
        p.head_dim, p.value_dim
    )
    return {
        "H": p.num_heads,
        "K": p.num_key_value_heads,
        "D": p.head_dim,
        "E": p.value_dim,
        "PADDED_D": padded(p.head_dim),
        "PADDED_E": padded(p.value_dim),
        "SCALE": float(p.scale),
        "SOFT_CAP": float(p.attn_logits_soft_cap or 0.0),
        # Offsets within an example; those of examples are 64 bits wide always.
        "WIDE": p.length * widest > _LARGEST_INT32,
        # float32 means float32, as in torch and JAX' own matrix products.
        "PRECISION": "ieee" if p.itemsize == 4 else "tf32",
    }


def configuration(kernel, problem):
    """The row of the table for a kernel and a problem."""
    dim = max(padded(problem.head_dim), padded(problem.value_dim))
    return table_of(problem.capability)[kernel, problem.itemsize, dim]


def padded(size):
    """The next power of two that a matrix product of a tile takes."""
    return max(1 << (size - 1).bit_length(), SMALLEST_DIM)
