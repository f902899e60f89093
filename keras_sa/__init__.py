"""Sparse attention for Keras 3: stochastic, sliding-window and small-world.

Reference:
    Stochastic Attention, https://arxiv.org/abs/2604.00754
"""

import importlib

from keras_sa import layers
from keras_sa import ops
from keras_sa import patterns
from keras_sa._version import __version__
from keras_sa.layers import MixtureOfBlockAttention
from keras_sa.layers import SlidingWindowAttention
from keras_sa.layers import SmallWorldAttention
from keras_sa.layers import SparseAttention
from keras_sa.layers import StochasticAttention


def __getattr__(name):
    # They import KerasHub and scipy: only when they are asked for.
    if name in ("analysis", "evaluation", "hub"):
        return importlib.import_module(f"keras_sa.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
