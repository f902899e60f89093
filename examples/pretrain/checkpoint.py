"""Checkpoints that are whole or not there, whenever the process is killed.

One file has everything that training goes on from: all variables of the model
and of the optimizer, the place in the data, the step and the place in the log.
"""

import json
import os
import zipfile

import numpy as np
from keras import ops

_KEPT = 2  # the one before the last, in case a disk loses the last
_RECORD = "record"


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: path that keeps them.
    """

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, step, model, record):
        """Keeps the state of a compiled model, and a record beside it.

        Args:
            step: int.
            model: a compiled `keras.Model` that has been trained or restored.
            record: of dicts, tuples, strings, numbers and `None`.
        """
        arrays = {
            name: ops.convert_to_numpy(variable.value)
            for name, variable in _variables_of(model)
        }
        text = json.dumps({**record, "step": step}).encode()
        arrays[_RECORD] = np.frombuffer(text, "uint8")
        path = self.folder / f"step_{step:09d}.npz"
        write_whole(path, lambda file: np.savez(file, **arrays))
        for old in self._paths()[:-_KEPT]:
            old.unlink()

    def restore(self, model):
        """Puts the last checkpoint into a model.

        Args:
            model: a compiled model, built as when the checkpoint was made.

        Returns:
            The record with its `step`, or `None` without checkpoints.
        """
        for path in reversed(self._paths()):
            try:
                with np.load(path) as file:
                    arrays = dict(file)
            except (OSError, ValueError, zipfile.BadZipFile) as error:
                print(f"  {path} cannot be read, so not used: {error}")
                continue
            record = json.loads(arrays.pop(_RECORD).tobytes())
            _assign(model, arrays, path)
            # The states of grain's iterators have tuples, and compare them.
            return with_tuples(record)
        return None

    def _paths(self):
        """Paths of the checkpoints, the last at the end."""
        return sorted(self.folder.glob("step_*.npz"))


def write_whole(path, write):
    """Writes a file that is either as it was before, or whole.

    Args:
        path: of the file.
        write: called with a binary file.
    """
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    _sync_folder(path.parent)


def _sync_folder(folder):
    """A new name is on the disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _variables_of(model):
    """Names and variables: weights, seeds of permutations, the optimizer's.

    Names count: Keras numbers its own by what else the process has built.
    """
    optimizer = model.optimizer
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    for owner, variables in (
        ("model", model.variables),
        ("optimizer", optimizer.variables),
    ):
        for index, variable in enumerate(variables):
            yield f"{owner}_{index:05d}", variable


def _assign(model, arrays, path):
    variables = dict(_variables_of(model))
    shapes = {name: tuple(v.shape) for name, v in variables.items()}
    received = {name: array.shape for name, array in arrays.items()}
    if received != shapes:
        raise SystemExit(
            f"A checkpoint of this very model is expected in {path}. Received: "
            f"{len(received)} variables in the file for {len(shapes)}, or "
            "others"
        )
    for name, variable in variables.items():
        variable.assign(arrays[name])


def with_tuples(value):
    """A value of JSON with tuples for lists."""
    if isinstance(value, dict):
        return {key: with_tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(with_tuples(item) for item in value)
    return value
