"""Training that is stopped anywhere ends as if it had not been."""

import csv

import keras
import numpy as np
import pytest
from example_runs import TINY_MODEL
from keras import ops

from examples.pretrain.batches import held_out_examples
from examples.pretrain.batches import training_batches
from examples.pretrain.checkpoint import Checkpoints
from examples.pretrain.log import TIMING
from examples.pretrain.log import CsvLog
from examples.pretrain.log import mean_gates
from examples.pretrain.model import build_model
from examples.pretrain.optimizer import compile_for_training
from examples.pretrain.optimizer import is_decayed
from examples.pretrain.sizes import Shape
from examples.pretrain.tokenizing import Bytes
from examples.pretrain.training import Plan
from examples.pretrain.training import Training
from keras_sa import hub
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic

SHAPE = Shape(**TINY_MODEL)
LENGTH = 12
ACCUMULATION = 2
PLAN = Plan(
    steps=5,
    log_every=1,
    evaluate_every=2,
    checkpoint_every=2,
    batch_size=2,
    accumulation=ACCUMULATION,
    tokens_per_step=LENGTH * 2 * ACCUMULATION,
)
DOCUMENTS = [f"number {index} of many, " * index for index in range(12)]


def make_model():
    """With seeds that advance, gates, and gradients that add up."""
    keras.utils.set_random_seed(0)
    model = build_model(SHAPE, 256, "float32")
    swap = hub.swap_attention(
        model, Stochastic(4) + SlidingWindow(4), gate_bias=(0, 0), seed=0
    )
    compile_for_training(
        model,
        steps=PLAN.steps,
        warmup_steps=2,
        learning_rate=1e-2,
        weight_decay=0.1,
        global_clipnorm=1.0,
        accumulation=ACCUMULATION,
    )
    return model, swap.gates


def make_batches():
    return training_batches(
        DOCUMENTS, Bytes(), LENGTH, PLAN.batch_size, 0, shuffle_buffer=5
    )


class Stopping:
    """Batches of which some are left."""

    def __init__(self, batches, after):
        self.batches = batches
        self.left = after

    def __next__(self):
        if not self.left:
            raise RuntimeError("the process ends here")
        self.left -= 1
        return next(self.batches)

    def __getattr__(self, name):
        return getattr(self.batches, name)


def train(folder, batches):
    """The variables at the end, and the rows of the log."""
    held_out = held_out_examples(DOCUMENTS, Bytes(), LENGTH, 4, PLAN.batch_size)
    model, gates = make_model()
    training = Training(
        model, gates, batches, held_out, PLAN, Checkpoints(folder / "kept")
    )
    training.run(
        CsvLog(folder / "log.csv", training.num_gates, training.log_size)
    )
    return variables_of(model), read_log(folder / "log.csv")


def variables_of(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [ops.convert_to_numpy(v) for v in variables]


def read_log(path):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in r.items() if k not in TIMING} for r in rows]


def stop(folder, after):
    # TensorFlow wraps what its thread of data raises.
    with pytest.raises(Exception, match="the process ends here"):
        train(folder, Stopping(make_batches(), after))


def test_a_stopped_run_ends_like_another(tmp_path, backend):
    batches = make_batches()
    variables, log = train(tmp_path / "whole", batches)
    check_log(log)
    check_place(batches)
    stop(tmp_path / "stopped", after=7)  # batches
    logged = read_log(tmp_path / "stopped" / "log.csv")
    assert len(logged) == 3  # one more than the checkpoint
    resumed = train(tmp_path / "stopped", make_batches())
    if backend == "jax":
        assert resumed[1] == log
    for received, expected in zip(resumed[0], variables, strict=True):
        if backend == "jax":
            np.testing.assert_array_equal(received, expected)
        else:
            np.testing.assert_allclose(received, expected, atol=1e-5)


def check_log(log):
    assert [row["step"] for row in log] == ["1", "2", "3", "4", "5"]
    has_held_out = [bool(row["held_out_loss"]) for row in log]
    assert has_held_out == [False, True, False, True, True]
    # The warm-up counts steps, not batches.
    rates = [float(row["learning_rate"]) for row in log]
    assert rates[1] == max(rates) == pytest.approx(1e-2)
    assert rates[-1] == pytest.approx(1e-3)


def check_place(batches):
    """All batches of all steps were read, and no more."""
    reference = make_batches()
    for _ in range(PLAN.steps * ACCUMULATION):
        next(reference)
    assert batches.get_state() == reference.get_state()


def test_matrices_decay_and_nothing_else():
    model, _ = make_model()
    decayed = {
        v.path.split("/")[-2]
        for v in model.trainable_variables
        if is_decayed(v)
    }
    assert decayed == {
        *("query", "key", "value", "attention_output"),
        "feedforward_gate_dense",
        "feedforward_intermediate_dense",
        "feedforward_output_dense",
    }


def test_gates_are_means_over_heads(tmp_path):
    model, gates = make_model()
    bias = np.log([[3.0, 1.0], [1 / 3, 1.0]])  # gates of 3/4, 1/4 and 1/2
    gates[0].bias.assign(bias)
    tokens = np.ones((3, LENGTH), "int32")
    held_out = {"token_ids": tokens, "padding_mask": tokens}, tokens
    checkpoints = Checkpoints(tmp_path / "kept")
    training = Training(model, gates, None, held_out, PLAN, checkpoints)
    means = training.measure_gates()
    np.testing.assert_allclose(means, [[0.625, 0.375]], rtol=1e-6)


def test_layers_without_a_random_path_count_for_the_local_one():
    means = mean_gates([[0.2, 0.4], [0.8]])
    assert means == {"gate_1": pytest.approx(0.5), "gate_2": 0.4}
    assert mean_gates([[0.8]]) == {"gate_1": 0.8}
    assert mean_gates([]) == {}


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path):
    model, gates = make_model()
    checkpoints = Checkpoints(tmp_path / "kept")
    training = Training(model, gates, make_batches(), None, PLAN, checkpoints)
    training._fit = lambda num_batches: np.nan
    with pytest.raises(SystemExit, match="finite"):
        training.run(CsvLog(tmp_path / "log.csv"))
    assert not list(checkpoints.folder.iterdir())
