"""Analysis of the attention graph; needs `pip install keras_sa[analysis]`."""

from keras_sa.analysis.attention_profile import AttentionProfile
from keras_sa.analysis.attention_profile import attention_profile
from keras_sa.analysis.expected_coverage import expected_coverage
from keras_sa.analysis.graphs import attention_graph
from keras_sa.analysis.graphs import attention_graphs
from keras_sa.analysis.mixing import SpectralGap
from keras_sa.analysis.mixing import TotalVariation
from keras_sa.analysis.mixing import spectral_gap
from keras_sa.analysis.mixing import total_variation
from keras_sa.analysis.mixing import transition_matrices
from keras_sa.analysis.mixing import transition_matrix
from keras_sa.analysis.receptive_field import ReceptiveField
from keras_sa.analysis.receptive_field import receptive_field
from keras_sa.analysis.small_world import SmallWorldMeasures
from keras_sa.analysis.small_world import small_world_measures
from keras_sa.analysis.sources import as_patterns
from keras_sa.analysis.suggestion import WindowSuggestion
from keras_sa.analysis.suggestion import suggest_window
