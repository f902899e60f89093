"""Which attention a swap puts in, checked."""

import dataclasses

from keras_sa import _validation
from keras_sa.layers.small_world_attention import MERGE
from keras_sa.ops import patterns

MODES = (
    "full",
    "sliding_window",
    "stochastic",
    "small_world",
    "block_routed",
)
DECODE = ("full", "window")
RESAMPLE = ("training", "never")
PERMUTE = ("layer", "head")
_WINDOWED = ("sliding_window", "stochastic", "small_world")
_RANDOM = ("stochastic", "small_world")
# Which modes each option belongs to.
_OPTIONS = {
    "window_size": _WINDOWED,
    "local_window_size": ("small_world",),
    "merge": ("small_world", "sliding_window"),
    "neighborhood": _RANDOM,
    "permute": _RANDOM,
    "order": _RANDOM,
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
    permute: str | None = None
    order: str | None = None
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
        return self.merge == "gate"

    @property
    def gated_paths(self):
        """How many paths have a gate."""
        if not self.has_gates:
            return 0
        return 2 if self.mode == "small_world" else 1

    @property
    def decodes_in_window(self):
        return self.decode == "window"

    @property
    def has_random_order(self):
        return self.is_random and self.order == "random"

    @property
    def resamples(self):
        return self.has_random_order and self.resample != "never"


def make_patterns(mode, **options):
    """Patterns that take turns along the layers.

    Args:
        mode: a mode, or several: each a mode or a dict of a `mode` and options
            of its own.
        **options: of all modes that they belong to.

    Raises:
        ValueError: as `make_pattern`, and for an option that belongs to none
            of the modes.
    """
    if isinstance(mode, str):
        return (make_pattern(mode, **options),)
    turns = [_as_options(turn) for turn in _as_list(mode)]
    modes = [turn["mode"] for turn in turns]
    for turn_mode in modes:
        _validation.check_one_of("mode", turn_mode, MODES)
    given = {k: v for k, v in options.items() if v is not None}
    for name, value in given.items():
        if not any(turn_mode in _OPTIONS[name] for turn_mode in modes):
            raise ValueError(
                f"mode={mode!r} expects no `{name}`, which belongs to "
                f"{list(_OPTIONS[name])}. Received: {name}={value!r}"
            )
    return tuple(
        make_pattern(
            **{k: v for k, v in given.items() if turn["mode"] in _OPTIONS[k]}
            | turn
        )
        for turn in turns
    )


def _as_list(mode):
    if isinstance(mode, (list, tuple)) and mode:
        return list(mode)
    raise ValueError(
        f"`mode` is expected to be one of {list(MODES)}, or a list of these "
        "or of dicts with a `mode` and its options, to take turns along the "
        f"layers. Received: mode={mode!r}"
    )


def _as_options(turn):
    if isinstance(turn, str):
        return {"mode": turn}
    allowed = {"mode", *_OPTIONS}
    if isinstance(turn, dict) and "mode" in turn and set(turn) <= allowed:
        return {k: v for k, v in turn.items() if v is not None}
    raise ValueError(
        "`mode` is expected to list modes or dicts of a `mode` and of "
        f"{sorted(_OPTIONS)}. Received: {turn!r}"
    )


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
        "neighborhood": patterns.NEIGHBORHOODS,
        "merge": MERGE,
        "decode": DECODE,
        "resample": RESAMPLE,
        "permute": PERMUTE,
        "order": patterns.ORDERS,
    }
    if mode == "sliding_window":
        choices["merge"] = ("gate",)
    for name, allowed in choices.items():
        if name in given:
            _validation.check_one_of(name, given[name], allowed)
    if given.get("permute") == "head" and given.get("decode") == "window":
        raise ValueError(
            "permute='head' expects decode='full': a step of decoding looks "
            "up one order for all heads. Received: decode='window'"
        )
    return Pattern(mode, **{**_defaults(mode, given), **given})


def _defaults(mode, given):
    if mode not in _WINDOWED:
        return {}
    merge = given.get("merge")
    if mode == "small_world" and merge is None:
        merge = "gate"
    per_head = given.get("permute") == "head"
    defaults = {
        "merge": merge,
        # The gates belong to the windows: full attention has none.
        "decode": "window" if merge == "gate" and not per_head else "full",
    }
    if mode in _RANDOM:
        defaults |= {
            "neighborhood": "window",
            "permute": "layer",
            "order": "random",
            "resample": "training",
        }
    if mode == "small_world":
        defaults["local_window_size"] = given["window_size"]
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
