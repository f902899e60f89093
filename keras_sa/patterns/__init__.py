"""Which tokens a token attends to, as plain data.

`a | b` attends to the keys of both in one softmax; `a + b` is the gated sum of
two attentions. Masks are O(n^2) and say so; neighbor lists are O(n w).
"""

import keras

from keras_sa.patterns.block_routed import BlockRouted
from keras_sa.patterns.bound import BoundPattern
from keras_sa.patterns.combined import GatedSum
from keras_sa.patterns.combined import Union
from keras_sa.patterns.full import Full
from keras_sa.patterns.global_keys import GlobalKeys
from keras_sa.patterns.global_queries import GlobalQueries
from keras_sa.patterns.parsing import parse_pattern
from keras_sa.patterns.pattern import Pattern
from keras_sa.patterns.pattern import check_pattern
from keras_sa.patterns.per_layer import patterns_by_layer
from keras_sa.patterns.sliding_window import SlidingWindow
from keras_sa.patterns.sliding_window import window_reach
from keras_sa.patterns.sliding_window import within_reach
from keras_sa.patterns.stochastic import Stochastic

for _pattern in (
    BlockRouted,
    Full,
    GatedSum,
    GlobalKeys,
    GlobalQueries,
    SlidingWindow,
    Stochastic,
    Union,
):
    keras.saving.register_keras_serializable("keras_sa")(_pattern)
