"""How well language models predict text, under any attention."""

from keras_sa.evaluation.last_word import LastWordResult
from keras_sa.evaluation.last_word import evaluate_last_words
from keras_sa.evaluation.last_word import read_passages
from keras_sa.evaluation.perplexity import ContextLoss
from keras_sa.evaluation.perplexity import DocumentLoss
from keras_sa.evaluation.perplexity import evaluate_documents
from keras_sa.evaluation.scoring import TokenScorer
from keras_sa.evaluation.scoring import TokenScores
