"""Settings that must stand before Keras is imported."""

import importlib.util
import os
import pathlib

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

# What numpy or plain Python makes of what patterns, layers and models say,
# which have tests of their own on every backend: once is enough.
NEUTRAL = (
    "analysis/test_*.py",
    "evaluation/test_choosing.py",
    "evaluation/test_draws.py",
    "evaluation/test_evaluation_page.py",
    "evaluation/test_examples_of_tasks.py",
    "evaluation/test_harness.py",
    "evaluation/test_last_word.py",
    "evaluation/test_prompts.py",
    "evaluation/test_task*.py",
    "examples/test_*.py",
    "hub/test_attention_patterns.py",
    "hub/test_attention_weights.py",
    "hub/test_nesting.py",
    "hub/test_patterns_of_layers.py",
    "patterns/test_parsing.py",
)
# Of these, what is about a backend.
NOT_NEUTRAL = {
    "torch": NEUTRAL,
    "jax": (
        "examples/test_attention_benchmark.py",
        "examples/test_pretrain.py",
        "examples/test_pretrain_checkpoint.py",
        "examples/test_pretrain_training.py",
    ),
    "tensorflow": (
        "examples/test_attention_benchmark.py",
        "examples/test_pretrain_training.py",
    ),
}


def pytest_ignore_collect(collection_path, config):
    """Files that run on torch alone; a file that is named runs anywhere."""
    named = {pathlib.Path(x.split("::")[0]).resolve() for x in config.args}
    if collection_path.suffix != ".py" or collection_path in named:
        return None
    path = collection_path.relative_to(pathlib.Path(__file__).parent)
    wanted = NOT_NEUTRAL[keras.config.backend()]
    is_neutral = any(path.match(pattern) for pattern in NEUTRAL)
    is_wanted = any(path.match(pattern) for pattern in wanted)
    return True if is_neutral and not is_wanted else None


@pytest.fixture(autouse=True)
def seeded():
    """Every test draws the same numbers, whatever ran before it."""
    keras.utils.set_random_seed(1234)


@pytest.fixture
def backend():
    return keras.config.backend()
