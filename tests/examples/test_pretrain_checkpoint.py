"""A checkpoint is whole or not there, and only the very model takes it."""

import keras
import numpy as np
import pytest

from examples.pretrain.checkpoint import Checkpoints
from examples.pretrain.checkpoint import write_whole


def make_model(units=3):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])
    model.compile("adam", "mse")
    return model


def weights_of(model):
    return [keras.ops.convert_to_numpy(v) for v in model.variables]


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints")


def files(checkpoints):
    return sorted(path.name for path in checkpoints.folder.iterdir())


def test_brings_back_variables_and_record(checkpoints):
    model = make_model()
    model.fit(np.ones((4, 2)), np.ones((4, 3)), verbose=0)
    record = {"data": {"place": (1, None), "more": {"text": "é"}}}
    checkpoints.save(7, model, record)
    other = make_model()
    assert checkpoints.restore(other) == {**record, "step": 7}
    for before, after in zip(weights_of(model), weights_of(other)):
        np.testing.assert_array_equal(after, before)
    for before, after in zip(
        model.optimizer.variables, other.optimizer.variables
    ):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(after),
            keras.ops.convert_to_numpy(before),
        )
    assert int(other.optimizer.iterations) == 1


def test_nothing_to_restore(checkpoints):
    assert checkpoints.restore(make_model()) is None


def test_two_are_kept(checkpoints):
    model = make_model()
    for step in (2, 4, 10):
        checkpoints.save(step, model, {})
    assert files(checkpoints) == ["step_000000004.npz", "step_000000010.npz"]


def test_what_cannot_be_read_is_not_used(checkpoints, capsys):
    model = make_model()
    for step in (2, 4):
        checkpoints.save(step, model, {})
    last = checkpoints.folder / "step_000000004.npz"
    last.write_bytes(last.read_bytes()[:-100])
    assert checkpoints.restore(make_model())["step"] == 2
    assert "cannot be read" in capsys.readouterr().out


def test_half_a_file_is_never_seen(checkpoints, monkeypatch):
    model = make_model()
    checkpoints.save(2, model, {})

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", stop)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(4, model, {})
    monkeypatch.undo()
    assert checkpoints.restore(make_model())["step"] == 2
    checkpoints.save(4, model, {})
    assert checkpoints.restore(make_model())["step"] == 4


def test_another_model_is_refused(checkpoints):
    checkpoints.save(2, make_model(), {})
    with pytest.raises(SystemExit, match="this very model"):
        checkpoints.restore(make_model(units=4))


def test_a_file_is_written_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def fail(file):
        file.write(b"half")
        raise OSError

    with pytest.raises(OSError):
        write_whole(path, fail)
    assert path.read_bytes() == b"before"
    write_whole(path, lambda file: file.write(b"after"))
    assert path.read_bytes() == b"after"
