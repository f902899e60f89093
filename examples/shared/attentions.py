"""The attentions that the examples compare, at equal numbers of visible keys.

Each has a name, the pattern of its kind that comes closest to a number of
visible keys per token, and a style in plots.

Imports no Keras before it is asked for a pattern: command lines need the names
first.
"""

import bisect
import dataclasses
import typing
from functools import partial

MOBA_TOP_K = 3


def closest(budget, length, pattern_of):
    """The pattern of a width that comes closest to a budget, the narrowest if
    several do. A wider one attends to no fewer keys."""

    def keys(width):
        return pattern_of(width).keys_per_token(length, is_causal=True)

    # A causal mask hides about half of a random window: it is twice as wide.
    widths = range(1, 2 * length + 1)
    above = bisect.bisect_left(widths, budget, key=keys)
    around = widths[max(above - 1, 0) : above + 1]
    reached = keys(min(around, key=lambda width: abs(keys(width) - budget)))
    return pattern_of(widths[bisect.bisect_left(widths, reached, key=keys)])


def _full(budget, length):
    from keras_sa.patterns import Full

    return Full()


def _sliding_window(budget, length):
    from keras_sa.patterns import SlidingWindow

    return closest(budget, length, SlidingWindow)


def _half_window(budget, length):
    return _sliding_window(budget / 2, length)


def _gated_window(budget, length):
    from keras_sa.patterns import GatedSum

    return GatedSum(_sliding_window(budget, length))


def _stochastic(budget, length, **options):
    from keras_sa.patterns import Stochastic

    return closest(budget, length, partial(Stochastic, **options))


def _small_world(budget, length, **options):
    """Half of the keys are neighbors, the others from everywhere."""
    from keras_sa.patterns import Stochastic

    local = _half_window(budget, length)
    return closest(budget, length, lambda w: Stochastic(w, **options) + local)


def _small_world_softmax(budget, length):
    from keras_sa.patterns import Stochastic

    local = _half_window(budget, length)
    return closest(budget, length, lambda w: Stochastic(w) | local)


def _two_windows(budget, length):
    from keras_sa.patterns import SlidingWindow

    local = _half_window(budget, length)
    return closest(budget, length, lambda w: SlidingWindow(w) + local)


def _block_routed(budget, length):
    from keras_sa.patterns import BlockRouted

    return closest(budget, length, partial(BlockRouted, top_k=MOBA_TOP_K))


@dataclasses.dataclass(frozen=True)
class Attention:
    """An attention by name.

    Attributes:
        about: what it is, in words.
        pattern_at: of a budget and a length: the `Pattern`.
        style: colour, marker and line in plots. The colours are those of
            Okabe and Ito, which colour-blind readers tell apart; markers and
            lines differ as well, for print without colours.
        gated: whether there are gates, which have to be trained.
        resample: as in `keras_sa.hub.swap_attention`, if that is what is
            special about it.
    """

    about: str
    pattern_at: typing.Callable
    style: tuple[str, str, str]
    gated: bool = False
    resample: str | None = None


ATTENTIONS = {
    "full": Attention("the model's own", _full, ("black", "*", "--")),
    "sliding_window": Attention(
        "the nearest keys", _sliding_window, ("#0072B2", "o", "-")
    ),
    "stochastic": Attention(
        "a window over a random permutation",
        _stochastic,
        ("#D55E00", "s", "--"),
    ),
    "stochastic_block": Attention(
        "blocks of a random permutation",
        partial(_stochastic, neighborhood="block"),
        ("#D55E00", "x", ":"),
    ),
    "small_world": Attention(
        "half of the keys each, gated",
        _small_world,
        ("#CC79A7", "v", "-."),
        gated=True,
    ),
    "small_world_block": Attention(
        "small_world with blocks of a random permutation",
        partial(_small_world, neighborhood="block"),
        ("#CC79A7", "+", ":"),
        gated=True,
    ),
    "small_world_softmax": Attention(
        "both kinds of keys in one softmax, without gates",
        _small_world_softmax,
        ("#009E73", "^", "-"),
    ),
    "block_routed": Attention(
        f"mixture of block attention, top {MOBA_TOP_K}",
        _block_routed,
        ("#E69F00", "D", ":"),
    ),
    # Controls: what is it that helps?
    "gated_window": Attention(
        "sliding_window with a gate",
        _gated_window,
        ("#56B4E9", "p", "-"),
        gated=True,
    ),
    "half_window": Attention(
        "half of the nearest keys: the local term of small_world, alone",
        _half_window,
        ("#0072B2", ".", ":"),
    ),
    "two_windows": Attention(
        "small_world without the permutation: two sliding windows, gated",
        _two_windows,
        ("#56B4E9", "h", "--"),
        gated=True,
    ),
    "stochastic_per_head": Attention(
        "stochastic with a permutation for each key/value head",
        partial(_stochastic, permutation_per="head"),
        ("#D55E00", "1", "-."),
    ),
    "small_world_per_head": Attention(
        "small_world with a permutation for each key/value head",
        partial(_small_world, permutation_per="head"),
        ("#CC79A7", "2", "--"),
        gated=True,
    ),
    "small_world_fixed": Attention(
        "small_world with one permutation for the whole training",
        _small_world,
        ("#CC79A7", "3", "-"),
        gated=True,
        resample="never",
    ),
}
TRAINING_FREE = (  # those that have no gates
    "full",
    "sliding_window",
    "stochastic",
    "stochastic_block",
    "small_world_softmax",
    "block_routed",
)


def pattern_at(name, budget, length):
    """The pattern of an attention nearest to a budget.

    Args:
        name: of `ATTENTIONS`.
        budget: visible keys per token, in the mean.
        length: tokens of a causal sequence.
    """
    return ATTENTIONS[name].pattern_at(budget, length)
