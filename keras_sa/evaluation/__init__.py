"""What a model can do with a long context."""

from keras_sa.evaluation.examples import Examples
from keras_sa.evaluation.task_accuracy import BucketAccuracy
from keras_sa.evaluation.task_accuracy import accuracy_by_distance
from keras_sa.evaluation.task_accuracy import evaluate_task
from keras_sa.evaluation.tasks import associative_recall
from keras_sa.evaluation.tasks import copy_at_distance
from keras_sa.evaluation.tasks import induction
from keras_sa.evaluation.tasks import needle_in_text
