"""Perplexities of one tiny model under every attention, kept in a file.

    KERAS_BACKEND=torch python tests/evaluation/recorded_perplexities.py

writes the file. The tests compare each backend with it: so all of them agree,
without three frameworks in one process. The model's weights and the documents
come from NumPy's generators.
"""

import contextlib
import json
import pathlib

import tiny_models

from keras_sa import hub
from keras_sa.evaluation import TokenScorer
from keras_sa.evaluation import evaluate_documents
from keras_sa.patterns import BlockRouted
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic

FILE = pathlib.Path(__file__).with_suffix(".json")
LENGTH, STRIDE = 32, 16
SWAPS = {
    "full": None,
    "sliding_window": SlidingWindow(5),
    "stochastic": Stochastic(5),
    "stochastic_block": Stochastic(5, neighborhood="block"),
    "small_world": Stochastic(5) | SlidingWindow(5),
    "block_routed": BlockRouted(4, 2),
}


def make_scorer():
    return TokenScorer(tiny_models.build("qwen3"), batch_size=4)


def measure(scorer, name):
    """A `DocumentLoss` under one of the swaps."""
    documents = tiny_models.random_sequences([70, 20, 33], seed=5)
    with swapped(scorer.causal_lm, SWAPS[name]):
        return evaluate_documents(scorer, documents, LENGTH, stride=STRIDE)


def swapped(causal_lm, pattern):
    if pattern is None:
        return contextlib.nullcontext()
    return hub.swap_attention(causal_lm, pattern, seed=11)


def main():
    scorer = make_scorer()
    perplexities = {name: measure(scorer, name).perplexity for name in SWAPS}
    FILE.write_text(json.dumps(perplexities, indent=2) + "\n")
    print(f"wrote {FILE.name}")


if __name__ == "__main__":
    main()
