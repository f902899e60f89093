"""Documents become batches: every token once, and from any place again."""

import json

import numpy as np
import pytest

from examples.pretrain.batches import held_out_examples
from examples.pretrain.batches import training_batches
from examples.pretrain.checkpoint import with_tuples
from examples.pretrain.tokenizing import Bytes

LENGTH = 15
# Of all lengths, with texts that tell where they come from.
DOCUMENTS = [f"<{index}>" * (1 + index * index % 40) for index in range(20)]
END = b"\0"


def batches(seed=0, shuffle_buffer=7):
    return training_batches(DOCUMENTS, Bytes(), LENGTH, 3, seed, shuffle_buffer)


def rows(iterator, count):
    """Tokens and last targets `[3 * count, LENGTH + 1]`."""
    pairs = [next(iterator) for _ in range(count)]
    return np.concatenate(
        [np.concatenate([x["token_ids"], y[:, -1:]], axis=1) for x, y in pairs]
    )


def test_targets_are_the_next_tokens():
    inputs, targets = next(batches())
    assert inputs["token_ids"].shape == targets.shape == (3, LENGTH)
    assert inputs["token_ids"].dtype == targets.dtype == "int32"
    assert np.all(inputs["padding_mask"] == 1)
    np.testing.assert_array_equal(inputs["token_ids"][:, 1:], targets[:, :-1])


def test_an_epoch_has_every_document_once_with_an_end():
    text = rows(batches(shuffle_buffer=1), 30).astype("uint8").tobytes()
    epoch = text.split(END)[: len(DOCUMENTS)]
    assert sorted(epoch) == sorted(d.encode() for d in DOCUMENTS)
    assert epoch != [d.encode() for d in DOCUMENTS]


def test_epochs_and_seeds_differ():
    # Without shuffling sequences, documents follow one another.
    text = rows(batches(shuffle_buffer=1), 60).astype("uint8").tobytes()
    count = len(DOCUMENTS)
    documents = text.split(END)[: 2 * count]
    epochs = documents[:count], documents[count:]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]
    assert not np.array_equal(rows(batches(seed=1), 5), rows(batches(), 5))
    np.testing.assert_array_equal(rows(batches(), 5), rows(batches(), 5))


@pytest.mark.parametrize("place", [0, 1, 2, 7, 11, 30])
def test_the_state_is_exact(place):
    """Also before a window of shuffled sequences, and at its end."""
    iterator = batches()
    for _ in range(place):
        next(iterator)
    state = with_tuples(json.loads(json.dumps(iterator.get_state())))
    expected = rows(iterator, 20)
    resumed = batches()
    resumed.set_state(state)
    np.testing.assert_array_equal(rows(resumed, 20), expected)


def test_held_out_sequences_are_whole_and_the_same():
    inputs, targets = held_out_examples(
        DOCUMENTS, Bytes(), LENGTH, 1000, batch_size=4
    )
    tokens = sum(len(document) + 1 for document in DOCUMENTS)
    whole = tokens // (LENGTH + 1)
    assert len(targets) == whole // 4 * 4
    again, _ = held_out_examples(DOCUMENTS, Bytes(), LENGTH, 8, batch_size=4)
    np.testing.assert_array_equal(again["token_ids"], inputs["token_ids"][:8])


def test_too_few_held_out_tokens_are_explained():
    with pytest.raises(SystemExit, match="a batch of 4 sequences"):
        held_out_examples(DOCUMENTS[:2], Bytes(), LENGTH, 8, batch_size=4)
