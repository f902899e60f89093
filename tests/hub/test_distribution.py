"""Swapped models on several devices compute what they do on one.

Each test starts processes of its own: how many devices there are is settled
when a framework starts. The scripts are in `distribution/`.
"""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

pytest.importorskip("keras_hub")

from keras_sa import hub  # noqa: E402
from keras_sa.patterns import SlidingWindow  # noqa: E402
from keras_sa.patterns import Stochastic  # noqa: E402
from tests.hub import models  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "hub" / "distribution"
SWAPS = ("gates", "gates_resampled", "stochastic")
TIMEOUT = 600
# Against float64, one device is off by 2e-7 of the losses (near 4) and by
# 1.2e-7 in the gates (near 0.01); weights are near 1.
LOSS_RTOL = 1e-6
GATE_ATOL = 5e-7
WEIGHT_ATOL = 1e-6


def on(backend):
    return pytest.mark.skipif(
        keras.config.backend() != backend, reason=f"needs the {backend} backend"
    )


def start(script, *arguments, **environment):
    """A process that runs one of the scripts."""
    return subprocess.Popen(
        [sys.executable, str(SCRIPTS / script), *map(str, arguments)],
        env={
            **os.environ,
            "KERAS_BACKEND": keras.config.backend(),
            "PYTHONPATH": str(ROOT),
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outputs(*processes):
    """What they print; all end, whatever happens to one."""
    try:
        results = [p.communicate(timeout=TIMEOUT) for p in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    failures = [
        errors[-4000:]
        for process, (_, errors) in zip(processes, results)
        if process.returncode != 0
    ]
    assert not failures, "\n\n".join(failures)
    return [printed for printed, _ in results]


def run(script, *arguments, **environment):
    """The JSON on the last line that a script prints."""
    [printed] = outputs(start(script, *arguments, **environment))
    return json.loads(printed.splitlines()[-1])


def unpack(results):
    assert results
    return [(result["one"], result["many"]) for result in results.values()]


def check_same(one, many):
    """The same training, and the same tokens after it."""
    np.testing.assert_allclose(many["losses"], one["losses"], rtol=LOSS_RTOL)
    assert one["losses"][-1] != one["losses"][0]
    assert many["gates"].keys() == one["gates"].keys()
    for path, gate in one["gates"].items():
        assert np.any(gate), path  # they start at zero
        np.testing.assert_allclose(many["gates"][path], gate, atol=GATE_ATOL)
    assert many.get("tokens") == one.get("tokens")


def gate_entries(layout_map):
    return [
        layout_map[f"attention_gate_11/{name}"].axes
        for name in ("kernel", "bias")
    ]


def layout_map(mesh_shape=(2, 4)):
    devices = [f"cpu:{i}" for i in range(np.prod(mesh_shape))]
    mesh = keras.distribution.DeviceMesh(
        mesh_shape, ("batch", "model"), devices
    )
    return keras.distribution.LayoutMap(mesh)


def test_gates_are_sharded_by_heads():
    layouts = layout_map()
    hub.add_gate_layouts(layouts, num_heads=8)
    assert gate_entries(layouts) == [(None, None, "model"), (None, "model")]
    layouts = layout_map()
    hub.add_gate_layouts(layouts, num_heads=8, model_axis="batch")
    assert gate_entries(layouts) == [(None, None, "batch"), (None, "batch")]


def test_gates_whose_heads_the_devices_do_not_divide_are_replicated():
    layouts = layout_map()
    hub.add_gate_layouts(layouts, num_heads=6)
    assert gate_entries(layouts) == [(None, None, None), (None, None)]


def test_the_layouts_are_of_gates_and_of_nothing_else():
    causal_lm = models.build("llama")
    swap = hub.swap_attention(causal_lm, Stochastic(4) + SlidingWindow(4))
    layouts = layout_map()
    hub.add_gate_layouts(layouts, num_heads=4)
    with_layout = {
        variable.path
        for variable in causal_lm.variables
        if layouts[variable.path] is not None
    }
    gates = [variable for gate in swap.gates for variable in gate.variables]
    assert len(gates) == 4
    assert with_layout == {variable.path for variable in gates}
    for variable in gates:
        assert len(layouts[variable.path].axes) == len(variable.shape)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (({}, 4), "`keras.distribution.LayoutMap` with a device mesh"),
        (
            (keras.distribution.LayoutMap(None), 4),
            "`keras.distribution.LayoutMap` with a device mesh",
        ),
        ((layout_map(), 0), "`num_heads` .* positive integer"),
        ((layout_map(), 4, "heads"), "`model_axis` .*'batch', 'model'"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message + r".*Received: "):
        hub.add_gate_layouts(*arguments)


@on("jax")
@pytest.mark.parametrize(
    "scenario, heads_on_a_device",
    [
        ("data_parallel", 4),
        ("model_parallel", 1),
        pytest.param("model_parallel_gemma", 2, marks=pytest.mark.slow),
        pytest.param("more_devices_than_heads", 4, marks=pytest.mark.slow),
    ],
)
def test_jax_devices(scenario, heads_on_a_device):
    results = run(
        "jax_devices.py",
        scenario,
        XLA_FLAGS="--xla_force_host_platform_device_count=8",
    )
    for one, many in unpack(results):
        check_same(one, many)
        for path, gate in one["gates"].items():
            shape = [*np.shape(gate)[:-1], heads_on_a_device]
            assert many["shards"][path] == shape, path
        # Else model parallelism has not begun.
        is_sharded = many["shards"] != one["shards"]
        assert is_sharded == (scenario != "data_parallel")


@on("tensorflow")
def test_tensorflow_replicas():
    for one, many in unpack(run("tensorflow_replicas.py")):
        check_same(one, many)


@on("torch")
def test_torch_processes(tmp_path):
    outputs(*(start("torch_processes.py", i, tmp_path) for i in range(2)))
    for swap in SWAPS:
        first, second, alone = (
            np.load(tmp_path / f"{swap}_{name}.npz")
            for name in ("0", "1", "alone")
        )
        has_gates = any("attention_gate_" in path for path in first)
        assert has_gates == swap.startswith("gates")
        for path in first:
            np.testing.assert_array_equal(first[path], second[path])
            np.testing.assert_allclose(
                first[path], alone[path], atol=WEIGHT_ATOL, err_msg=path
            )
            if "attention_gate_" in path:
                assert np.any(first[path]), path
