"""A dilated window as plain windows: one over every residue class.

Positions `c, c + d, c + 2 d, ...` are a sequence of their own for each `c`
below the dilation `d`. Classes are examples of one batch, and every
implementation of the plain window computes them.

Letters: `B` batch, `n` tokens, `d` classes, `m` slots of a class.
"""

import dataclasses
import math

from keras import ops

from keras_sa.ops import ordering


def attend_to_classes(attend, inputs, dilation, hidden_first, hidden_windows):
    """Runs a windowed attention over residue classes.

    Args:
        attend: function of `Inputs` with the keywords `hidden_first` and
            `hidden_windows`.
        inputs: `Inputs`.
        dilation: int > 1.
        hidden_first, hidden_windows: as in `WindowedArguments`.

    Returns:
        What `attend` returns, for the tokens in their order.
    """
    length = inputs.query.shape[1]
    if isinstance(length, int):  # beyond, every token is a class of its own
        dilation = dilation if dilation < length else length
    classes = _Classes(inputs, dilation)
    result = attend(
        classes.inputs(),
        hidden_first=classes.hidden_first(hidden_first),
        hidden_windows=tuple(
            _in_slots(window, dilation) for window in hidden_windows
        ),
    )
    if inputs.return_lse:
        return tuple(classes.unfold(x) for x in result)
    return classes.unfold(result)


def _in_slots(window, dilation):
    """A hidden window over positions as one over the slots of a class."""
    left, right, step = window
    return (
        left // dilation,
        right // dilation,
        step // math.gcd(step, dilation),
    )


class _Classes:
    """Tokens `[B, n, ...]` as classes `[B * d, m, ...]`."""

    def __init__(self, inputs, dilation):
        self.whole, self.dilation = inputs, dilation
        self.batch_size, self.length = ops.shape(inputs.query)[:2]
        self.slots = (self.length + dilation - 1) // dilation

    def inputs(self):
        w = self.whole
        return dataclasses.replace(
            w,
            query=self.fold(w.query),
            key=self.fold(w.key),
            value=self.fold(w.value),
            padding_mask=self._padding_mask(),
            attention_mask=self._attention_mask(),
        )

    def fold(self, x):
        """`[B, n, ...]` as `[B * d, m, ...]`, filled up with zeros."""
        missing = self.slots * self.dilation - self.length
        x = ordering.pad_end(x, missing, 0, axis=1)
        rest = x.shape[2:]
        shape = (self.batch_size, self.slots, self.dilation, *rest)
        axes = (0, 2, 1, *range(3, 3 + len(rest)))
        x = ops.transpose(ops.reshape(x, shape), axes)
        return ops.reshape(x, (-1, self.slots, *rest))

    def unfold(self, x):
        """`[B * d, m, ...]` as `[B, n, ...]`."""
        rest = x.shape[2:]
        shape = (self.batch_size, self.dilation, self.slots, *rest)
        axes = (0, 2, 1, *range(3, 3 + len(rest)))
        x = ops.transpose(ops.reshape(x, shape), axes)
        x = ops.reshape(x, (self.batch_size, -1, *rest))
        return x[:, : self.length]

    def hidden_first(self, hidden_first):
        """How many slots of each class are hidden."""
        if hidden_first is None:
            return None
        if isinstance(hidden_first, int) and hidden_first % self.dilation == 0:
            return hidden_first // self.dilation
        first = ops.cast(ops.convert_to_tensor(hidden_first), "int32")
        first = ops.broadcast_to(first, (self.batch_size,))[:, None]
        first = first - ops.arange(self.dilation, dtype="int32")
        first = (first + self.dilation - 1) // self.dilation
        return ops.reshape(ops.maximum(first, 0), (-1,))

    def _padding_mask(self):
        mask, length = self.whole.padding_mask, self.length
        if mask is None:
            if isinstance(length, int) and length % self.dilation == 0:
                return None
            mask = ops.ones((self.batch_size, length), dtype="bool")
        return self.fold(mask)

    def _attention_mask(self):
        """`[B or 1, n or 1, n]` as `[B * d, m or 1, m]`: pairs within a
        class."""
        mask = self.whole.attention_mask
        if mask is None:
            return None
        position = ops.arange(self.dilation, dtype="int32")[:, None]
        slot = ops.arange(self.slots, dtype="int32")
        position = ops.minimum(
            position + self.dilation * slot, self.length - 1
        )  # [d, m]
        row = position[:, :1] * 0 if mask.shape[1] == 1 else position
        pair = row[:, :, None] * self.length + position[:, None, :]
        mask = ops.reshape(mask, (ops.shape(mask)[0], -1))
        mask = ops.take(mask, pair, axis=1)  # [B or 1, d, m or 1, m]
        shape = (self.batch_size, *ops.shape(mask)[1:])
        mask = ops.broadcast_to(mask, shape)
        return ops.reshape(mask, (-1, *ops.shape(mask)[2:]))
