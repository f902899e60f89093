"""The import arrows, and what importing the package pulls in."""

import ast
import pathlib
import subprocess
import sys

import keras
import pytest

import keras_sa

ROOT = pathlib.Path(keras_sa.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
FRAMEWORKS = ("jax", "jaxlib", "torch", "tensorflow", "flax", "triton")
# What may not be imported in a package: arrows run
# ops -> layers -> hub -> evaluation.
FORBIDDEN = {
    "ops": ("layers", "hub", "analysis", "evaluation", "testing"),
    "layers": ("hub", "analysis", "evaluation", "testing"),
    "hub": ("evaluation", "analysis", "testing"),
    "evaluation": ("analysis", "testing"),
    "autodiff": ("ops", "layers", "hub", "analysis", "evaluation", "testing"),
}
ANALYSIS_MAY = (
    "keras_sa._validation",
    "keras_sa.patterns",
    "keras_sa.analysis",
)


def imports_of(source):
    """Every dotted name that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the arrows"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def begins_with(name, package):
    return name == package or name.startswith(package + ".")


def names_and_files():
    for path in FILES:
        relative = path.relative_to(ROOT)
        for name in imports_of(path.read_text()):
            yield relative, name


def may_import_frameworks(path):
    prefixes = ("torch_", "jax_", "tensorflow_")
    return path.name.startswith(prefixes) or "kernels" in path.name


def offenders(is_bad):
    return [f"{p}: {n}" for p, n in names_and_files() if is_bad(p, n)]


def test_arrows_run_one_way():
    def is_bad(path, name):
        forbidden = FORBIDDEN.get(path.parts[0], ())
        return any(begins_with(name, f"keras_sa.{part}") for part in forbidden)

    assert offenders(is_bad) == []


def test_lower_packages_do_not_import_the_top():
    """`from keras_sa import layers` would hide an arrow in the top package."""

    def is_bad(path, name):
        return len(path.parts) > 1 and name == "keras_sa"

    assert offenders(is_bad) == []


def test_analysis_imports_patterns_only():
    def is_bad(path, name):
        return (
            path.parts[0] == "analysis"
            and begins_with(name, "keras_sa")
            and not any(begins_with(name, allowed) for allowed in ANALYSIS_MAY)
        )

    assert offenders(is_bad) == []


def test_only_marked_files_import_frameworks():
    def is_bad(path, name):
        is_framework = any(begins_with(name, package) for package in FRAMEWORKS)
        return is_framework and not may_import_frameworks(path)

    assert offenders(is_bad) == []


def test_only_hub_and_evaluation_import_keras_hub():
    def is_bad(path, name):
        allowed = path.parts[0] in ("hub", "evaluation")
        return begins_with(name, "keras_hub") and not allowed

    assert offenders(is_bad) == []


def test_only_the_harness_adapter_imports_lm_eval():
    """So that everything else of evaluation needs no more than KerasHub."""
    adapter = pathlib.Path("evaluation/harness.py")

    def is_bad(path, name):
        if begins_with(name, "keras_sa.evaluation.harness"):
            return True
        return begins_with(name, "lm_eval") and path != adapter

    assert offenders(is_bad) == []


def test_only_plots_imports_matplotlib():
    def is_bad(path, name):
        allowed = path == pathlib.Path("analysis/plots.py")
        return begins_with(name, "matplotlib") and not allowed

    assert offenders(is_bad) == []


def test_nobody_imports_the_inside_of_keras():
    assert offenders(lambda path, name: begins_with(name, "keras.src")) == []


@pytest.mark.parametrize(
    "source, name",
    [
        ("import torch.nn", "torch.nn"),
        ("from keras_sa import layers", "keras_sa.layers"),
        ("def f():\n    from keras.src import x", "keras.src.x"),
    ],
)
def test_the_reader_sees_every_form_of_import(source, name):
    assert name in list(imports_of(source))


def loaded_by(statement):
    """Top-level packages that a fresh process has after a statement."""
    names = "{name.split('.')[0] for name in sys.modules}"
    code = f"{statement}\nimport sys\nprint(*{names})"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT.parent,
    )
    return set(result.stdout.split())


def test_a_fresh_import_brings_no_framework_that_was_not_chosen():
    """Beyond what Keras itself imports on the backend of this run."""
    watched = {*FRAMEWORKS, "keras_hub", "matplotlib", "networkx", "pyarrow"}
    new = loaded_by("import keras_sa") - loaded_by("import keras")
    assert new & watched == set(), keras.config.backend()
