"""Scores are those of the model's logits, whatever the batch."""

import keras
import keras_hub
import numpy as np
import pytest
import tiny_models

from keras_sa import hub
from keras_sa.evaluation import TokenScorer
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic

LENGTHS = (9, 4, 12, 1, 7)
# Log-probabilities reach -10, and the norms of float32 logits are off by 1e-6.
ATOL = 2e-5


@pytest.fixture(scope="module")
def sequences():
    return tiny_models.random_sequences(LENGTHS)


def expected_scores(causal_lm, tokens):
    log_softmax = tiny_models.log_softmax(causal_lm, [tokens[:-1]])[0]
    targets = np.array(tokens[1:])
    of_targets = np.take_along_axis(log_softmax, targets[:, None], -1)[:, 0]
    return of_targets, log_softmax.argmax(-1) == targets


def assert_same(scores, expected, **tolerance):
    for of_sequence, of_other in zip(scores, expected, strict=True):
        np.testing.assert_allclose(of_sequence[0], of_other[0], **tolerance)
        np.testing.assert_array_equal(of_sequence[1], of_other[1])


# Beside the plain one: a soft cap on logits, absolute positions, positions as
# an input.
@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt2", "gemma4"])
def test_scores_are_those_of_the_logits(name):
    if name == "gemma2":
        tiny_models.skip_where_compiled("the cap is within the model")
    model = tiny_models.build(name)
    tokens = tiny_models.random_sequences([13])[0]
    log_softmax = tiny_models.log_softmax(model, [tokens[:-1]])[0]
    tokens[-1] = int(log_softmax[-1].argmax())  # a greedy token among others
    scores = TokenScorer(model, batch_size=1).score_sequences([tokens])
    expected = expected_scores(model, tokens)
    assert expected[1][-1] and not expected[1].all()
    assert_same(scores, [expected], atol=ATOL)


def test_padding_batch_and_order_change_nothing(causal_lm, scorer, sequences):
    one_by_one = TokenScorer(causal_lm, batch_size=1)
    expected = one_by_one.score_sequences(sequences)
    assert [len(x.log_probabilities) for x in expected] == [
        n - 1 for n in LENGTHS
    ]
    assert_same(scorer.score_sequences(sequences), expected, atol=ATOL)
    backwards = scorer.score_sequences(sequences[::-1])[::-1]
    assert_same(backwards, expected, atol=ATOL)


@pytest.mark.parametrize("side", ["right", "left"])
def test_arrays_are_scored_where_they_are(scorer, sequences, side):
    token_ids, mask = tiny_models.pad(sequences, side)
    scores = scorer(token_ids, mask)
    assert scores.log_probabilities.dtype == "float32"
    assert scores.log_probabilities.shape == (5, 11)
    is_target = mask[:, 1:] & mask[:, :-1]
    for index, of_row in enumerate(scorer.score_sequences(sequences)):
        received = [x[index][is_target[index]] for x in scores]
        assert_same([received], [of_row], rtol=0)
    assert not scores.log_probabilities[~is_target].any()
    assert not scores.is_greedy[~is_target].any()


def test_probabilities_of_half_precision_sum_to_one():
    model = tiny_models.build("qwen3", dtype="bfloat16", num_layers=1)
    prefix = tiny_models.random_sequences([6])[0]
    scores = TokenScorer(model, batch_size=16).score_sequences(
        [[*prefix, token] for token in range(tiny_models.VOCABULARY_SIZE)]
    )
    probabilities = [np.exp(x.log_probabilities[-1]) for x in scores]
    assert np.sum(probabilities) == pytest.approx(1, abs=1e-5)
    assert sum(x.is_greedy[-1] for x in scores) == 1


def test_swaps_are_noticed(causal_lm, scorer, sequences):
    before = scorer.score_sequences(sequences)
    with hub.swap_attention(causal_lm, SlidingWindow(3)):
        swapped = scorer.score_sequences(sequences)
        expected = [expected_scores(causal_lm, sequences[0])]
        assert_same(swapped[:1], expected, atol=ATOL)
    with hub.swap_attention(causal_lm, SlidingWindow(2)):
        narrower = scorer.score_sequences(sequences)
    for some, others in [(before, swapped), (swapped, narrower)]:
        difference = some[0].log_probabilities - others[0].log_probabilities
        assert np.abs(difference).max() > 0.01
    assert_same(scorer.score_sequences(sequences), before, rtol=0)


def test_a_random_order_is_the_same_at_every_call(causal_lm, scorer, sequences):
    with hub.swap_attention(causal_lm, Stochastic(3), seed=1):
        first = scorer.score_sequences(sequences)
        assert_same(scorer.score_sequences(sequences), first, rtol=0)


def test_new_weights_and_new_variables_are_noticed(sequences):
    model = tiny_models.build("qwen3")
    scorer = TokenScorer(model, batch_size=3)

    def total():
        scores = scorer.score_sequences(sequences)
        return float(scores[0].log_probabilities.sum())

    totals = [total()]
    embedding = model.backbone.token_embedding.embeddings
    embedding.assign(embedding + 0.1)
    totals.append(total())
    model.backbone.enable_lora(2)
    for variable in model.trainable_variables:
        variable.assign(np.ones(variable.shape))
    totals.append(total())
    assert len(np.unique(np.round(totals, 3))) == 3


class Shapes:
    """Stands for the model, and keeps the shapes it was given."""

    def __init__(self):
        self.seen = set()

    def __call__(self, inputs, targets):
        self.seen.add(tuple(targets.shape))
        return keras.ops.cast(targets, "float32"), targets > 0


def test_few_shapes_are_compiled(causal_lm):
    scorer = TokenScorer(causal_lm, batch_size=2, max_length=100)
    scorer._score_on_device = shapes = Shapes()
    lengths = [2, 3, 5, 17, 18, 40, 60, 61, 66, 101]
    sequences = tiny_models.random_sequences(lengths)
    scores = scorer.score_sequences(sequences)
    assert shapes.seen == {(2, 16), (2, 32), (2, 64), (2, 100)}
    for tokens, of_sequence in zip(sequences, scores):
        np.testing.assert_array_equal(
            of_sequence.log_probabilities, np.array(tokens[1:], "float32")
        )


def test_continuations_are_the_ends_of_sequences(causal_lm):
    scorer = TokenScorer(causal_lm, batch_size=3, max_length=8)
    tokens = tiny_models.random_sequences([12])[0]
    pairs = [(tokens[:4], tokens[4:6]), (tokens[:10], tokens[10:])]
    expected = scorer.score_sequences([tokens[:6], tokens[3:]])
    received = scorer.score_continuations(pairs)
    for (total, is_greedy), of_sequence in zip(received, expected):
        last_two = of_sequence.log_probabilities[-2:]
        assert total == pytest.approx(last_two.sum(), abs=1e-6)
        assert is_greedy == of_sequence.is_greedy[-2:].all()


def test_greedy_continuations_are_greedy(causal_lm, scorer):
    tokens = tiny_models.random_sequences([5])[0]
    for _ in range(2):
        log_softmax = tiny_models.log_softmax(causal_lm, [tokens])
        tokens.append(int(log_softmax[0, -1].argmax()))
    wrong = [*tokens[:-1], (tokens[-1] + 1) % tiny_models.VOCABULARY_SIZE]
    pairs = [(x[:5], x[5:]) for x in (tokens, wrong)]
    assert [x for _, x in scorer.score_continuations(pairs)] == [True, False]


def test_a_backbone_s_positions_are_the_longest_input():
    model = tiny_models.build("gpt2", max_sequence_length=8)
    scorer = TokenScorer(model, batch_size=1)
    tokens = tiny_models.random_sequences([10])[0]
    scores = scorer.score_sequences([tokens[:9]])
    assert_same(scores, [expected_scores(model, tokens[:9])], atol=ATOL)
    with pytest.raises(ValueError, match="at most 9 tokens"):
        scorer.score_sequences([tokens])
    with pytest.raises(ValueError, match="Received: max_length=9"):
        TokenScorer(model, max_length=9)


def test_nothing_to_score(scorer):
    assert scorer.score_sequences([]) == []
    (scores,) = scorer.score_sequences([[]])
    assert scores.log_probabilities.shape == (0,)
    assert scorer(np.zeros((2, 1), int)).log_probabilities.shape == (2, 0)
    padding = np.zeros((2, 4), bool)
    assert not scorer(np.ones((2, 4), int), padding).is_greedy.any()


@pytest.mark.parametrize(
    "token_ids, mask, message",
    [
        ([1, 2], None, "shape \\[N, n\\]"),
        ([[1, 2.5]], None, "integers.*float64"),
        ([[1, 32]], None, "from 0 to 31.*from 1 to 32"),
        ([[-1, 3]], None, "from 0 to 31.*from -1 to 3"),
        ([[1, 2]], [[1, 1, 1]], "padding_mask.shape=\\(1, 3\\)"),
        ([[1, 2]], [[1.0, 1.0]], "padding_mask.dtype=float64"),
        ([[1, 2, 3]], [[1, 0, 1]], "not among them"),
    ],
)
def test_bad_arrays(scorer, token_ids, mask, message):
    with pytest.raises(ValueError, match=message):
        scorer(token_ids, mask)


@pytest.mark.parametrize(
    "pair, message",
    [
        (([], [1]), "0 and 1 tokens"),
        (([1], []), "1 and 0 tokens"),
        (([1], [1, 2, 3]), "reads at once, 2. Received: 3 tokens"),
    ],
)
def test_bad_continuations(causal_lm, pair, message):
    with pytest.raises(ValueError, match=message):
        TokenScorer(causal_lm, max_length=2).score_continuations([pair])


def test_sequences_have_one_dimension(scorer):
    with pytest.raises(ValueError, match="shape \\(1, 2\\)"):
        scorer.score_sequences([[[1, 2]]])


def test_bad_models_and_options(causal_lm):
    with pytest.raises(ValueError, match="CausalLM.*Received.*Qwen3Backbone"):
        TokenScorer(causal_lm.backbone)
    with pytest.raises(ValueError, match="batch_size=0"):
        TokenScorer(causal_lm, batch_size=0)
    with pytest.raises(ValueError, match="max_length=-1"):
        TokenScorer(causal_lm, max_length=-1)


def test_models_of_images_are_refused():
    class Captioner(keras_hub.models.CausalLM):
        def __init__(self):
            names = ["images", "token_ids"]
            inputs = {name: keras.Input((4,), name=name) for name in names}
            super().__init__(inputs, inputs["images"])

    with pytest.raises(ValueError, match="text alone.*\\['images'\\]"):
        TokenScorer(Captioner())
