"""The examples in the docstrings run."""

import doctest
import importlib
import pathlib
import re

import keras
import pytest

import keras_sa
import keras_sa.ops

ROOT = pathlib.Path(keras_sa.__file__).parent
OPTIONAL = (
    "keras_hub",
    "lm_eval",
    "matplotlib",
    "networkx",
    "scipy",
)


def module_names():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        if not is_for_another_backend(parts):
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_for_another_backend(parts):
    """Whether a file or a folder is named after another framework, holds
    kernels, or has nothing that depends on the backend."""
    others = {"torch", "jax", "tensorflow"} - {keras.config.backend()}
    if keras.config.backend() != "torch":
        others = others | {"analysis"}  # numpy's work: see tests/conftest.py
    return "kernels" in parts or not others.isdisjoint(parts)


def import_module(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name in OPTIONAL:
            pytest.skip(f"{error.name} is not installed")
        raise


class ShapesAreTuples(doctest.OutputChecker):
    """torch and TensorFlow write a shape as `Size([2, 3])`."""

    def check_output(self, want, got, optionflags):
        got = re.sub(r"(torch\.Size|TensorShape)\(\[(.*?)\]\)", r"(\2)", got)
        return super().check_output(want, got, optionflags)


@pytest.mark.parametrize("name", module_names())
def test_examples(name):
    module = import_module(name)
    runner = doctest.DocTestRunner(
        checker=ShapesAreTuples(),
        optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS,
    )
    names = {"keras_sa": keras_sa, "keras": keras}
    for test in doctest.DocTestFinder().find(module, name, globs=names):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_the_public_ops_have_examples():
    for name in dir(keras_sa.ops):
        op = getattr(keras_sa.ops, name)
        if callable(op) and not name.startswith("_"):
            assert ">>> " in op.__doc__, name
