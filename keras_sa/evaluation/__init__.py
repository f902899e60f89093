"""How well language models predict text and use a long context, under any
attention."""

from keras_sa.evaluation.choosing import ChosenPatterns
from keras_sa.evaluation.choosing import choose_patterns
from keras_sa.evaluation.comparison import PatternComparison
from keras_sa.evaluation.comparison import PatternResult
from keras_sa.evaluation.comparison import compare_patterns
from keras_sa.evaluation.examples import Examples
from keras_sa.evaluation.last_word import LastWordResult
from keras_sa.evaluation.last_word import evaluate_last_words
from keras_sa.evaluation.last_word import read_passages
from keras_sa.evaluation.measuring import Estimate
from keras_sa.evaluation.perplexity import ContextLoss
from keras_sa.evaluation.perplexity import DocumentLoss
from keras_sa.evaluation.perplexity import evaluate_documents
from keras_sa.evaluation.prompts import Prompt
from keras_sa.evaluation.prompts import PromptResult
from keras_sa.evaluation.prompts import evaluate_prompts
from keras_sa.evaluation.prompts import few_shot
from keras_sa.evaluation.prompts import frequent_words
from keras_sa.evaluation.prompts import needles
from keras_sa.evaluation.prompts import passkey
from keras_sa.evaluation.prompts import variable_tracking
from keras_sa.evaluation.scoring import TokenScorer
from keras_sa.evaluation.scoring import TokenScores
from keras_sa.evaluation.task_accuracy import BucketAccuracy
from keras_sa.evaluation.task_accuracy import accuracy_by_distance
from keras_sa.evaluation.task_accuracy import evaluate_task
from keras_sa.evaluation.tasks import associative_recall
from keras_sa.evaluation.tasks import copy_at_distance
from keras_sa.evaluation.tasks import induction
from keras_sa.evaluation.tasks import needle_in_text
