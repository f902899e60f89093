"""From documents to batches: shuffled, tokenized, packed, read ahead.

Letters: `B` sequences of a batch, `n` tokens of a sequence.
"""

import itertools

import grain
import numpy as np

from examples.shared import byte_text

_READERS = 2  # threads
_DOCUMENTS_AHEAD = 16
_BATCHES_AHEAD = 4
_HELD_OUT_SHUFFLE_BUFFER = 1024  # sequences


def training_batches(
    documents, tokenizer, length, batch_size, seed, shuffle_buffer
):
    """An iterator over batches without an end, with an exact state.

    Documents come in a new order in each epoch, are joined with an end token
    after each, and cut into sequences, which are shuffled again: those of a
    long document would follow one another.

    Args:
        documents: strings, with `len` and an index.
        tokenizer: of tokenizing.py.
        length: `n`.
        batch_size: `B`.
        seed: int.
        shuffle_buffer: sequences that are shuffled together; as many are in
            memory.

    Returns:
        An iterator over inputs of the model and targets, both int32 `[B, n]`,
        with `get_state()` and `set_state(state)`.
    """
    documents = grain.MapDataset.source(documents).shuffle(seed=seed).repeat()
    dataset = _sequences(documents, tokenizer, length, seed, shuffle_buffer)
    dataset = dataset.batch(batch_size).map(
        lambda batch: byte_text.as_examples(batch["tokens"])
    )
    return iter(
        grain.experimental.ThreadPrefetchIterDataset(
            dataset, prefetch_buffer_size=_BATCHES_AHEAD
        )
    )


def held_out_examples(documents, tokenizer, length, num_sequences, batch_size):
    """Inputs and targets `[N, n]`: the same for every seed of a run.

    Args: as in `training_batches`, and
        num_sequences: `N`, at most; whole batches are kept.
    """
    documents = grain.MapDataset.source(documents).shuffle(seed=0)
    sequences = _sequences(
        documents, tokenizer, length, 0, _HELD_OUT_SHUFFLE_BUFFER
    )
    whole = (
        sequence["tokens"]
        for sequence in sequences
        if sequence["tokens_segment_ids"][-1] > 0  # else padded, at the end
    )
    chosen = list(itertools.islice(whole, num_sequences))
    num_kept = len(chosen) // batch_size * batch_size
    if not num_kept:
        raise SystemExit(
            "The held-out documents are expected to fill a batch of "
            f"{batch_size} sequences of --length {length}. "
            f"Received: {len(chosen)} sequences"
        )
    return byte_text.as_examples(np.stack(chosen[:num_kept]))


def _sequences(documents, tokenizer, length, seed, shuffle_buffer):
    """Of one token more than the model reads: the target of the last."""

    def tokens_of(text):
        tokens = np.append(tokenizer.encode(text), tokenizer.end_token)
        return {"tokens": tokens.astype("int32")}

    options = grain.ReadOptions(
        num_threads=_READERS, prefetch_buffer_size=_DOCUMENTS_AHEAD
    )
    packed = grain.experimental.ConcatThenSplitIterDataset(
        documents.map(tokens_of).to_iter_dataset(options),
        length_struct={"tokens": length + 1},
    )
    return grain.experimental.WindowShuffleIterDataset(
        packed, window_size=shuffle_buffer, seed=seed
    )
