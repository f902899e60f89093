"""Settings that must stand before Keras is imported."""

import importlib.util
import os

# Before TensorFlow, whose LLVM it would call and crash; torch imports it too:
# https://github.com/tensorflow/tensorflow/issues/124205
if importlib.util.find_spec("triton") is not None:
    import triton  # noqa: F401

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The tests compile many small functions and run each once.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if os.environ.get("KERAS_BACKEND") == "tensorflow":  # the same for its XLA
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_backend_optimization_level=0 "
        "--xla_llvm_disable_expensive_passes=true",
    )

import keras
import pytest


@pytest.fixture(autouse=True)
def seeded():
    """Every test draws the same numbers, whatever ran before it."""
    keras.utils.set_random_seed(1234)


@pytest.fixture
def backend():
    return keras.config.backend()
