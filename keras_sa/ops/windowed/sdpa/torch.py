"""Windows through the fused attention that torch has for CPUs.

A chunk's keys are a view of one padded copy that overlaps the next chunk's. A
few chunks at a time go through the kernel: its gradients of overlapping keys
are five times as large as the keys, and stay in the cache until they are
added up.

`torch.nn.functional.scaled_dot_product_attention` runs the same kernel. It is
called by its operators here, for the log-sum-exp and for a gradient in steps.

Letters: `N` sequences, `n` slots, `H` query heads, `K` key/value heads, `D`
head dim, `E` value head dim, `F` head dim in the kernel, `c` slots in a chunk,
`t` chunks, `S` keys of a chunk.
"""

import functools

import torch
from torch.nn.functional import pad

from keras_sa.backend.torch import bias_of

# The most bytes of keys of chunks, as the kernel sees them, in a step.
KEY_BYTES = 2**22


def why_not():
    if _operators() is None:
        return "`sdpa` needs a torch with a fused attention for CPUs."
    return None


def _operators():
    name = "_scaled_dot_product_flash_attention_for_cpu"
    forward = getattr(torch.ops.aten, name, None)
    backward = getattr(torch.ops.aten, f"{name}_backward", None)
    return forward and backward and (forward, backward)


class WindowedAttention(torch.autograd.Function):
    """Attention of chunks to their neighbors.

    Args:
        query: `[B, n, heads, D]`.
        key: `[B, n, key/value heads, D]`.
        value: `[B, n, key/value heads, E]`.
        order: `None`, or the token of each slot, int32 `[B or 1, h, n]`, one
            order for all heads (`h` = 1) or one for each key/value head.
        inverse: the slot of each token, in the shape of `order`.
        visible: boolean `[N or 1, t, c, S]`, `N = B * h`.
        chunks: `common.Chunks`.
        scale: factor on the scores.
        return_lse: whether the gradient of the log-sum-exp is wanted.
        again: a function of query, key and value that computes the same by
            operations which torch differentiates twice.

    Returns:
        Output `[B, n, heads, E]` and log-sum-exp `[B, n, heads]`.
    """

    @staticmethod
    def forward(
        ctx,
        query,
        key,
        value,
        order,
        inverse,
        visible,
        chunks,
        scale,
        return_lse,
        again,
    ):
        # The kernel takes equal head dims, and zeros add nothing. A feature
        # more, which is 1 in values, has a use in the backward pass.
        features = max(query.shape[3], value.shape[3] + return_lse)
        layout = _Layout(
            chunks, key, order, inverse, visible.shape[1], features
        )
        bias = bias_of(visible[:, :, None], query.dtype)
        ctx.layout, ctx.scale, ctx.return_lse = layout, scale, return_lse
        ctx.again = again
        output, lse = [], []
        for place, *tensors in layout.steps(query, key, value, return_lse):
            step = _operators()[0](
                *tensors, attn_mask=place.of_bias(bias), scale=scale
            )
            output.append(step[0].transpose(1, 2))
            lse.append(step[1].transpose(1, 2))
        output, lse = (
            x[0] if len(x) == 1 else torch.cat(x) for x in (output, lse)
        )
        ctx.save_for_backward(query, key, value, bias, output, lse)
        return (
            layout.join(output)[..., : value.shape[3]],
            layout.join(lse[..., None])[..., 0],
        )

    @staticmethod
    def backward(ctx, gradient, gradient_of_lse):
        query, key, value, bias, output, lse = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is to have a gradient
            outputs, upstream = ctx.again(query, key, value), gradient
            if ctx.return_lse:
                upstream = (gradient, gradient_of_lse)
            gradients = torch.autograd.grad(
                outputs, (query, key, value), upstream, create_graph=True
            )
            return *gradients, *[None] * 7
        layout, value_dim = ctx.layout, value.shape[3]
        gradient = pad(gradient, (0, layout.features - value_dim))
        if ctx.return_lse:
            # The kernel has `grad . value - grad . output` for each score.
            # Its gradient is larger by that of the log-sum-exp: a value of 1
            # that did not enter the output brings it in.
            gradient[..., -1] = gradient_of_lse
            output = output.clone()
            output[..., -1] = 0
        of_query = layout.empty_chunks(query)
        of_key, of_value = (layout.empty_rows(x).zero_() for x in (key, value))
        gradients = layout.source(gradient)
        steps = layout.steps(query, key, value, ctx.return_lse)
        for place, *tensors in steps:
            flat = place.flat
            parts = _operators()[1](
                gradients.queries(place),
                *tensors,
                output[flat].transpose(1, 2),
                lse[flat].transpose(1, 2),
                0.0,
                False,
                attn_mask=place.of_bias(bias),
                scale=ctx.scale,
            )
            of_query[flat] = parts[0].transpose(1, 2)
            layout.add(of_key, place, parts[1])
            layout.add(of_value, place, parts[2])
        return (
            layout.join(of_query)[..., : query.shape[3]],
            layout.own_rows(of_key)[..., : key.shape[3]],
            layout.own_rows(of_value)[..., :value_dim],
            *[None] * 7,
        )


class _Place:
    """Chunks `first` to `last` of a sequence; `flat`: among those of all."""

    def __init__(self, sequence, first, last, num_chunks):
        self.sequence, self.first, self.last = sequence, first, last
        start = sequence * num_chunks
        self.flat = slice(start + first, start + last)

    def of_bias(self, bias):
        """Of `[N or 1, t, 1, c, S]`."""
        sequence = self.sequence if len(bias) > 1 else 0
        return bias[sequence, self.first : self.last]


class _Layout:
    """Where the chunks of sequences are, and which go together."""

    def __init__(self, chunks, key, order, inverse, num_chunks, features):
        self.chunks, self.num_chunks = chunks, num_chunks
        self.order, self.inverse, self.features = order, inverse, features
        self.batch_size, self.length = key.shape[:2]
        self.heads = 1 if order is None else order.shape[1]
        self.num_sequences = self.batch_size * self.heads
        self.front = chunks.before * chunks.size
        self.num_rows = self.front + (num_chunks + chunks.after) * chunks.size
        row_bytes = key.shape[2] // self.heads * features * key.element_size()
        self.step_size = max(KEY_BYTES // (chunks.keys * row_bytes), 1)

    def source(self, x):
        return (_InOrder if self.order is None else _ByOrder)(self, x)

    def steps(self, query, key, value, ones):
        """A place, and its query, key and value as the kernel takes them:
        `[t', H, c, F]`, `[t', K, S, F]`."""
        query, key, value = (self.source(x) for x in (query, key, value))
        for sequence in range(self.num_sequences):
            for first in range(0, self.num_chunks, self.step_size):
                last = min(first + self.step_size, self.num_chunks)
                place = _Place(sequence, first, last, self.num_chunks)
                keys, values = key.keys(place), value.keys(place)
                if ones:
                    values[..., -1] = 1
                yield (
                    place,
                    query.queries(place),
                    self.overlapping(keys),
                    self.overlapping(values),
                )

    def empty_chunks(self, x):
        """`[N * t, c, H, F]` for `[B, n, heads, D]`."""
        return x.new_empty(
            self.num_sequences * self.num_chunks,
            self.chunks.size,
            x.shape[2] // self.heads,
            self.features,
        )

    def empty_rows(self, x):
        """`[N, rows, K, F]` for `[B, n, heads, D]` and the chunks beyond."""
        return x.new_empty(
            self.num_sequences,
            self.num_rows,
            x.shape[2] // self.heads,
            self.features,
        )

    def overlapping(self, rows):
        """Rows `[u, K, F]` as chunks beside their neighbors, a view
        `[t', K, S, F]`."""
        size, num_keys = self.chunks.size, self.chunks.keys
        row, head, feature = rows.stride()
        return rows.as_strided(
            (
                (len(rows) - num_keys) // size + 1,
                rows.shape[1],
                num_keys,
                rows.shape[2],
            ),
            (size * row, head, row, feature),
        )

    def add(self, rows, place, gradient):
        """Adds the gradient of what `overlapping` returns."""
        rows = rows[place.sequence].unflatten(0, (-1, self.chunks.size))
        parts = gradient.transpose(1, 2).unflatten(1, (-1, self.chunks.size))
        for ahead, part in enumerate(parts.unbind(1)):
            rows[place.first + ahead : place.last + ahead] += part

    def join(self, x):
        """`[N * t, c, H, ...]` as `[B, n, heads, ...]`."""
        x = x.reshape(self.num_sequences, -1, *x.shape[2:])
        return self.restore(x, 0)

    def restore(self, x, start):
        """Slots `[N, rows, H, F]` from `start` as `[B, n, heads, F]`."""
        if self.order is None:
            return x[:, start : start + self.length]
        num_rows = x.shape[1]
        sequence = torch.arange(self.num_sequences, dtype=torch.int32)
        index = sequence.view(self.batch_size, self.heads, 1) * num_rows
        index = (index + self.inverse + start).transpose(1, 2)  # [B, n, h]
        table = x.reshape(self.num_sequences * num_rows, -1)
        rows = table.index_select(0, index.reshape(-1))
        shape = (self.batch_size, self.length, self.heads * x.shape[2])
        return rows.view(*shape, x.shape[3])

    def own_rows(self, rows):
        return self.restore(rows, self.front)


class _InOrder:
    """Slots of `x` `[B, n, heads, D]` for a step, where slots are tokens."""

    def __init__(self, layout, x):
        self.layout, self.x = layout, x

    @functools.cached_property
    def _chunks(self):  # [B * t, c, H, F]
        layout, x = self.layout, self.x
        missing = layout.num_chunks * layout.chunks.size - layout.length
        wider = layout.features - x.shape[3]
        if missing or wider:  # torch would copy for nothing
            x = pad(x, (0, wider, 0, 0, 0, missing))
        return x.reshape(-1, layout.chunks.size, *x.shape[2:])

    @functools.cached_property
    def _rows(self):
        layout, x = self.layout, self.x
        back = layout.num_rows - layout.front - layout.length
        wider = layout.features - x.shape[3]
        return pad(x, (0, wider, 0, 0, layout.front, back))

    def queries(self, place):
        """`[t', H, c, F]`."""
        return self._chunks[place.flat].transpose(1, 2)

    def keys(self, place):
        """Rows `[u, K, F]` around the chunks."""
        chunks = self.layout.chunks
        start = place.first * chunks.size
        stop = (place.last - 1) * chunks.size + chunks.keys
        return self._rows[place.sequence, start:stop]


class _ByOrder:
    """The same where slots are tokens in another order: gathered for each
    step, so that they are in the cache."""

    def __init__(self, layout, x):
        self.layout = layout
        self.own_heads = x.shape[2] // layout.heads
        table = layout.batch_size * layout.length * layout.heads
        self.table = x.reshape(table, -1)

    def queries(self, place):
        size = self.layout.chunks.size
        start = self.layout.front + place.first * size
        rows = self._rows(place, start, (place.last - place.first) * size)
        return rows.unflatten(0, (-1, size)).transpose(1, 2)

    def keys(self, place):
        chunks = self.layout.chunks
        start = place.first * chunks.size
        count = (place.last - place.first - 1) * chunks.size + chunks.keys
        return self._rows(place, start, count)

    def _rows(self, place, start, count):
        """`[count, heads, F]` from a padded slot on, 0 beyond the tokens."""
        layout = self.layout
        first = max(start - layout.front, 0)
        last = min(start - layout.front + count, layout.length)
        example, head = divmod(place.sequence, layout.heads)
        order = layout.order[example % len(layout.order), head, first:last]
        index = (order + example * layout.length) * layout.heads + head
        rows = self.table.index_select(0, index)
        rows = rows.unflatten(1, (self.own_heads, -1))
        missing = first + layout.front - start
        beyond = count - missing - len(rows)
        wider = layout.features - rows.shape[2]
        if missing or beyond or wider:
            rows = pad(rows, (0, wider, 0, 0, missing, beyond))
        return rows
