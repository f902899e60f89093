"""Who sees whom: the boolean mask and the neighbour list of each pattern.

This is the written meaning of every attention of the package. The oracle, the
attention scores of the layers and the analysis of the attention graph all read
it; the fast implementations are tested against it. Masks are O(n^2) and say
so; neighbour lists are O(n w).
"""

from keras_sa.ops.patterns.budget import union_size
from keras_sa.ops.patterns.budget import visible_keys_per_token
from keras_sa.ops.patterns.masks import block_routed_mask
from keras_sa.ops.patterns.masks import look_up
from keras_sa.ops.patterns.masks import padding_pairs_mask
from keras_sa.ops.patterns.masks import sliding_window_mask
from keras_sa.ops.patterns.masks import stochastic_mask
from keras_sa.ops.patterns.masks import window_reach
from keras_sa.ops.patterns.masks import within_reach
from keras_sa.ops.patterns.neighbors import block_routed_neighbors
from keras_sa.ops.patterns.neighbors import sliding_window_neighbors
from keras_sa.ops.patterns.neighbors import stochastic_neighbors
from keras_sa.ops.patterns.pattern import NEIGHBORHOODS
from keras_sa.ops.patterns.pattern import ORDERS
from keras_sa.ops.patterns.pattern import BlockRouted
from keras_sa.ops.patterns.pattern import Full
from keras_sa.ops.patterns.pattern import Pattern
from keras_sa.ops.patterns.pattern import SlidingWindow
from keras_sa.ops.patterns.pattern import SmallWorld
from keras_sa.ops.patterns.pattern import Stochastic
