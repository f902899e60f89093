"""The tokens of each example in order, padding last, cut in blocks.

Letters: as in `api.py`.
"""

from keras import ops

from keras_sa.ops import ordering
from keras_sa.ops import softmax
from keras_sa.patterns import permutation as permutations


class Slots:
    """The tokens of each example in order, padding last, cut in blocks."""

    def __init__(self, key, block_size, padding_mask):
        self.batch_size, self.length, self.num_kv_heads = ops.shape(key)[:3]
        if isinstance(self.length, int):  # one block holds everything
            block_size = min(block_size, self.length)
        self.block_size = block_size
        self.num_blocks = (self.length + block_size - 1) // block_size
        self.padding_mask = padding_mask
        self.order = None  # [B, n], or `None` for the identity
        if padding_mask is not None:
            order = ops.arange(self.length, dtype="int32")
            self.order = permutations.padding_last(order, padding_mask)

    @property
    def are_full(self):
        """Whether all blocks are known to be full of real tokens."""
        is_known = self.padding_mask is None and isinstance(self.length, int)
        return is_known and self.length % self.block_size == 0

    def shape(self, *features):
        """`(N, n, *features)`."""
        rows = self.batch_size * self.num_kv_heads
        return (rows, self.length, *features)

    def own_block(self):
        """The block of each slot `[n]`."""
        return ops.arange(self.length, dtype="int32") // self.block_size

    def heads(self, x):
        """`[B, n, K * G, F]` in slot order `[N, n, G * F]`, padding zero."""
        x = ordering.zero_padding(x, self.padding_mask)
        features = x.shape[2] // self.num_kv_heads * x.shape[3]
        shape = (self.batch_size, self.length, self.num_kv_heads, features)
        x = ordering.permute_heads(ops.reshape(x, shape), self.order)
        return ops.cast(x, softmax.compute_dtype(x.dtype))

    def blocks(self, x):
        """`[N, n, ...]` as `[N, c, b, ...]`."""
        rows, length, *features = ops.shape(x)
        missing = self.num_blocks * self.block_size - length
        x = ordering.pad_end(x, missing, 0, axis=1)
        return ops.reshape(
            x, (rows, self.num_blocks, self.block_size, *features)
        )

    def flat_blocks(self, x):
        """`[N, n, ...]` as `[N * c, b, ...]`."""
        return ops.reshape(self.blocks(x), (-1, self.block_size, *x.shape[2:]))

    def is_real(self):
        """Boolean `[N, n]`: the slots that hold real tokens."""
        rows, length = self.shape()
        if self.padding_mask is None:
            return ops.ones((rows, length), dtype="bool")
        real = ordering.is_real(self.order, length, self.padding_mask)
        return ops.repeat(real, self.num_kv_heads, axis=0)

    def restore(self, x):
        """`[N, n, F]` in slot order as `[B, n, K, F]`."""
        inverse = None
        if self.order is not None:
            inverse = permutations.invert_permutation(self.order)
        return ordering.unpermute_heads(
            x, inverse, self.batch_size, self.num_kv_heads
        )
