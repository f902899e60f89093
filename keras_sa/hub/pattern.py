"""Which attention a swap puts in, checked."""

import dataclasses

from keras_sa.layers.small_world_attention import MERGE
from keras_sa.ops import _validation
from keras_sa.ops.windowed.api import NEIGHBORHOODS

MODES = (
    "full",
    "sliding_window",
    "stochastic",
    "small_world",
    "block_routed",
)
DECODE = ("full", "window")
RESAMPLE = ("training", "never")
_WINDOWED = ("sliding_window", "stochastic", "small_world")
_RANDOM = ("stochastic", "small_world")
# Which modes each option belongs to.
_OPTIONS = {
    "window_size": _WINDOWED,
    "local_window_size": ("small_world",),
    "merge": ("small_world",),
    "neighborhood": _RANDOM,
    "resample": _RANDOM,
    "block_size": ("block_routed",),
    "top_k": ("block_routed",),
    "decode": _WINDOWED,
}
_REQUIRED = {
    **{mode: ("window_size",) for mode in _WINDOWED},
    "block_routed": ("block_size", "top_k"),
    "full": (),
}


@dataclasses.dataclass(frozen=True)
class Pattern:
    """The attention of a swapped layer; arguments as in `swap_attention`."""

    mode: str
    window_size: int | None = None
    local_window_size: int | None = None
    neighborhood: str | None = None
    merge: str | None = None
    decode: str | None = None
    resample: str | None = None
    block_size: int | None = None
    top_k: int | None = None

    def __repr__(self):
        options = self.options().items()
        return ", ".join(f"{name}={value!r}" for name, value in options)

    def options(self):
        """What is not `None`, as arguments of `make_pattern`."""
        return {k: v for k, v in vars(self).items() if v is not None}

    @property
    def is_random(self):
        return self.mode in _RANDOM

    @property
    def has_gates(self):
        return self.mode == "small_world" and self.merge == "gate"

    @property
    def decodes_in_window(self):
        return self.decode == "window"

    @property
    def resamples(self):
        return self.is_random and self.resample != "never"


def make_pattern(mode, **options):
    """A `Pattern` with its defaults filled in.

    Raises:
        ValueError: for an unknown mode, an option that does not belong to the
            mode, or one that is missing or out of range.
    """
    _validation.check_one_of("mode", mode, MODES)
    given = {k: v for k, v in options.items() if v is not None}
    for name in given:
        if mode not in _OPTIONS[name]:
            raise ValueError(_not_an_option(name, mode, given))
    for name in _REQUIRED[mode]:
        if name not in given:
            raise ValueError(
                f"mode={mode!r} expects `{name}`. Received: {name}=None"
            )
    for name in ("window_size", "local_window_size", "block_size", "top_k"):
        if name in given:
            _validation.check_positive_int(name, given[name])
    choices = {
        "neighborhood": NEIGHBORHOODS,
        "merge": MERGE,
        "decode": DECODE,
        "resample": RESAMPLE,
    }
    for name, allowed in choices.items():
        if name in given:
            _validation.check_one_of(name, given[name], allowed)
    return Pattern(mode, **{**_defaults(mode, given), **given})


def _defaults(mode, given):
    if mode not in _WINDOWED:
        return {}
    defaults = {"decode": "full"}
    if mode in _RANDOM:
        defaults |= {"neighborhood": "window", "resample": "training"}
    if mode == "small_world":
        merge = given.get("merge", "gate")
        defaults |= {
            "merge": merge,
            "local_window_size": given["window_size"],
            # The gates belong to the windows: full attention has none.
            "decode": "window" if merge == "gate" else "full",
        }
    return defaults


def _not_an_option(name, mode, given):
    cure = f"leave it out, or take one of the modes {list(_OPTIONS[name])}"
    if name == "decode" and mode == "block_routed":
        cure = (
            "block-routed attention was not made to decode in a window: leave "
            "`decode` out, and new tokens attend to the whole cache"
        )
    return (
        f"mode={mode!r} expects no `{name}`: {cure}. "
        f"Received: {name}={given[name]!r}"
    )
