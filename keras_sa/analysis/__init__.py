"""Analysis of the attention graph; needs `pip install keras_sa[analysis]`."""

from keras_sa.analysis.estimation import EstimatorError
from keras_sa.analysis.estimation import estimator_error
from keras_sa.analysis.graphs import attention_graph
from keras_sa.analysis.graphs import attention_graphs
from keras_sa.analysis.mixing import SpectralGap
from keras_sa.analysis.mixing import TotalVariation
from keras_sa.analysis.mixing import spectral_gap
from keras_sa.analysis.mixing import total_variation
from keras_sa.analysis.mixing import transition_matrices
from keras_sa.analysis.mixing import transition_matrix
from keras_sa.analysis.sources import as_patterns
