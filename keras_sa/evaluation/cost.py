"""What a forward pass costs: time and peak memory, beside another one."""

import ctypes
import pathlib
import time

import numpy as np

from keras_sa import backend

_STATUS = pathlib.Path("/proc/self/status")
_CLEAR = pathlib.Path("/proc/self/clear_refs")


def seconds_side_by_side(calls, rounds):
    """The least seconds of each of several calls, made in turn.

    Whatever disturbs the machine for a while disturbs all of them.

    Args:
        calls: functions without arguments that return tensors, each with a
            function that returns a context to call it in. The context is not
            timed. Each is called once before, for what it compiles.
        rounds: int: how often all of them are called.

    Returns:
        A list of seconds, one for each call.
    """
    for call, context in calls:
        with context():
            backend.wait(call())
    seconds = np.zeros((rounds, len(calls)))
    for of_round in seconds:
        for index, (call, context) in enumerate(calls):
            with context():
                start = time.perf_counter()
                backend.wait(call())
                of_round[index] = time.perf_counter() - start
    return seconds.min(axis=0).tolist()


def peak_bytes(call, tensor):
    """By how many bytes a call raises the memory in use, at its peak.

    On a CPU that of the process, as Linux counts it, after its C library has
    given back what it kept of earlier calls (glibc does). On a GPU what the
    framework has allocated.

    Args:
        call: function without arguments that returns tensors.
        tensor: any tensor, on the device of the call.

    Returns:
        int, or `None` where nobody counts: on a CPU without Linux or with
        TensorFlow, whose pool keeps what it had, and on GPUs with JAX, whose
        peak cannot be set back.
    """
    if backend.device_kind(tensor) != "cpu":
        return backend.peak_bytes_of_device(call, tensor)
    if not backend.gives_memory_back():
        return None
    _give_back()
    try:
        _CLEAR.write_text("5")  # sets the peak back: `man 5 proc`
        before = _kilobytes("VmRSS")
        backend.wait(call())
        return max(0, _kilobytes("VmHWM") - before) * 1024
    except (OSError, KeyError):
        return None


def _give_back():
    """Memory that is free, but still the process's, to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _kilobytes(name):
    lines = _STATUS.read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return int(values[name].split()[0])
