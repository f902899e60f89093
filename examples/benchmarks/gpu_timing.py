"""Measures functions on a GPU: ceilings, medians, and a budget of time."""

import dataclasses
import statistics
import time

import torch

# More calls than these would not fit into the queue of launches, and the GPU
# would wait for Python.
REPEATS = 20
# Calls longer than this are repeated less often.
LONG_CALL_SECONDS, LONG_REPEATS = 0.05, 5
WARM_UPS = 3
CYCLES_PER_SECOND = 2e9  # of a GPU, at most
LONGEST_SLEEP_SECONDS = 0.3


@dataclasses.dataclass(frozen=True)
class Measured:
    """Medians in milliseconds.

    Attributes:
        device: on the GPU, with the next call always waiting in the queue.
        host: for Python and torch to put one call into the queue; in eager
            mode a call takes at least the larger of both.
        repeats: calls measured.
    """

    device: float
    host: float
    repeats: int

    @property
    def eager(self):
        return max(self.device, self.host)


class Budget:
    """Seconds that are left, and what was skipped for lack of them."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds
        self.skipped = []

    def left(self):
        return self.end - time.monotonic()

    def has(self, what, seconds=0.0):
        """Whether `seconds` are left; remembers what is skipped if not."""
        if self.left() > seconds:
            return True
        self.skipped.append(what)
        return False


class Stopwatch:
    """Times functions on a device; wall clock on a CPU.

    Args:
        device: `"cuda"` or `"cpu"`.
        is_rehearsal: measures few calls, to exercise the code only.
    """

    def __init__(self, device, is_rehearsal=False):
        self.is_cuda = device == "cuda"
        self.is_rehearsal = is_rehearsal

    def measure(self, function, inputs):
        """`Measured` of a function.

        Args:
            function: called with each of the inputs in turn.
            inputs: list of tuples of tensors, together larger than the L2
                cache; see `rotation`.
        """
        for index in range(0 if self.is_rehearsal else WARM_UPS):
            function(*inputs[index % len(inputs)])
        self.wait()
        start = time.perf_counter()
        function(*inputs[-1])
        host = time.perf_counter() - start
        self.wait()
        whole = time.perf_counter() - start
        repeats = self._repeats(whole)
        measure = self._events if self.is_cuda else self._wall_clock
        return measure(function, inputs, repeats, host)

    def _repeats(self, seconds):
        if self.is_rehearsal:
            return 1
        return LONG_REPEATS if seconds > LONG_CALL_SECONDS else REPEATS

    def _events(self, function, inputs, repeats, host):
        events = [torch.cuda.Event(enable_timing=True)]
        events += [torch.cuda.Event(enable_timing=True) for _ in range(repeats)]
        # While the GPU sleeps, Python fills the queue: no gaps between calls.
        sleep = min(1.5 * repeats * host, LONGEST_SLEEP_SECONDS)
        torch.cuda._sleep(int(sleep * CYCLES_PER_SECOND))
        events[0].record()
        start = time.perf_counter()
        for index in range(repeats):
            function(*inputs[index % len(inputs)])
            events[index + 1].record()
        host = (time.perf_counter() - start) / repeats
        torch.cuda.synchronize()
        times = [a.elapsed_time(b) for a, b in zip(events, events[1:])]
        return Measured(statistics.median(times), 1e3 * host, repeats)

    def _wall_clock(self, function, inputs, repeats, host):
        times = []
        for index in range(repeats):
            start = time.perf_counter()
            function(*inputs[index % len(inputs)])
            times.append(1e3 * (time.perf_counter() - start))
        return Measured(statistics.median(times), 1e3 * host, repeats)

    def wait(self):
        if self.is_cuda:
            torch.cuda.synchronize()


def l2_bytes(device):
    """Size of the L2 cache; 0 on a CPU."""
    if device != "cuda":
        return 0
    properties = torch.cuda.get_device_properties(0)
    return getattr(properties, "L2_cache_size", 64 * 2**20)


def rotation(make, device):
    """Several sets of inputs, together larger than twice the L2 cache.

    Args:
        make: function of a seed that returns a tuple of tensors.
        device: `"cuda"` or `"cpu"`.
    """
    first = make(0)
    size = sum(x.numel() * x.element_size() for x in first)
    count = min(2 + 2 * l2_bytes(device) // max(size, 1), 32)
    return [first, *(make(seed) for seed in range(1, count))]


def measure_copy(stopwatch, device, megabytes):
    """Bytes per second of a copy: each is read and written once."""
    size = megabytes * 2**20 // 2
    source = torch.ones(size, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    measured = stopwatch.measure(target.copy_, [(source,)])
    return 2 * 2 * size / (1e-3 * measured.device)


def measure_products(stopwatch, device, size):
    """Floating-point operations per second of a bfloat16 matrix product."""
    a, b = (
        torch.randn(size, size, device=device).to(torch.bfloat16)
        for _ in range(2)
    )
    measured = stopwatch.measure(torch.matmul, [(a, b)])
    return 2 * size**3 / (1e-3 * measured.device)
