"""Analysis of the attention graph; needs `pip install keras_sa[analysis]`."""

from keras_sa.analysis.expected_coverage import expected_coverage
from keras_sa.analysis.graphs import attention_graph
from keras_sa.analysis.graphs import attention_graphs
from keras_sa.analysis.receptive_field import ReceptiveField
from keras_sa.analysis.receptive_field import receptive_field
from keras_sa.analysis.sources import as_patterns
