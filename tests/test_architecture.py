"""The import arrows, and what importing the package pulls in."""

import ast
import importlib
import pathlib
import subprocess
import sys

import keras
import pytest

import keras_sa

ROOT = pathlib.Path(keras_sa.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
FRAMEWORKS = ("jax", "jaxlib", "torch", "tensorflow", "flax", "triton")
# The floors, from the ground up: a package imports those below it only.
# Plain checks and what a framework needs have no floor of their own.
GROUND = ("_validation", "backend", "triton")
FLOORS = ("patterns", "ops", "layers", "hub", "evaluation")
ANALYSIS_MAY = (
    "keras_sa._validation",
    "keras_sa.patterns",
    "keras_sa.analysis",
)
# Folders of implementations, and what they may share.
IMPLEMENTATIONS = {
    "ops/windowed": (
        "portable",
        "native_block",
        "looped",
        "sdpa",
        "flex",
        "xla",
        "triton",
    ),
    "ops/neighbors": ("portable", "triton"),
}


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
    if path == pathlib.Path("triton/__init__.py"):
        return False  # it is there to load Triton later
    if path.parts[0] in ("backend", "triton"):
        return True
    names = ("jax", "torch", "tensorflow")
    return any(pathlib.Path(part).stem in names for part in path.parts)


def part_of(name):
    """The package or file of ours that a dotted name is in, or `None`."""
    parts = name.split(".")
    return parts[1] if parts[0] == "keras_sa" and len(parts) > 1 else None


def offenders(is_bad):
    return [f"{p}: {n}" for p, n in names_and_files() if is_bad(p, n)]


def test_arrows_run_one_way():
    def is_bad(path, name):
        own, other = path.parts[0].removesuffix(".py"), part_of(name)
        if other is None or own == other or own not in (*GROUND, *FLOORS):
            return False
        if own in GROUND:
            return other not in GROUND
        below = FLOORS[: FLOORS.index(own)]
        return other not in (*GROUND, *below, "_version")

    assert offenders(is_bad) == []


def test_implementations_never_import_each_other():
    def is_bad(path, name):
        folder, own = path.parts[:2], path.parts[2:]
        implementations = IMPLEMENTATIONS.get("/".join(folder), ())
        if not own or own[0].removesuffix(".py") not in implementations:
            return False
        others = set(implementations) - {own[0].removesuffix(".py")}
        package = ".".join(("keras_sa", *folder))
        return any(begins_with(name, f"{package}.{x}") for x in others)

    assert offenders(is_bad) == []


@pytest.mark.parametrize("folder", IMPLEMENTATIONS)
def test_an_implementation_is_named_as_its_module(folder):
    package = f"keras_sa.{folder.replace('/', '.')}"
    api = importlib.import_module(f"{package}.api")
    names = set()
    for table in api.IMPLEMENTATIONS.values():
        for name, module in table.items():
            assert module.__name__ == f"{package}.{name}"
            names.add(name)
    assert names == set(IMPLEMENTATIONS[folder])


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
        allowed = path.name == "plots.py"
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
