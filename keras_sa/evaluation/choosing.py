"""Which pattern each layer of a model bears, within a budget of its loss.

Letters: `N` documents, `n` tokens of a document, `L` layers, `C` candidates.
"""

import dataclasses
import json
import math
import numbers
import pathlib
import time

import keras
import numpy as np

from keras_sa import _validation
from keras_sa import hub
from keras_sa.evaluation import measuring
from keras_sa.evaluation.measuring import PARTS
from keras_sa.evaluation.measuring import Estimate
from keras_sa.evaluation.tokenization import tokens_of_documents
from keras_sa.patterns import Full
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import Pattern
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic


@dataclasses.dataclass(frozen=True)
class ChosenPatterns:
    """A pattern for each layer, from `choose_patterns`.

    `str` of it is a table in markdown: how much the loss rises if one layer
    alone has a candidate, how much it falls if one alone stays full, and what
    was chosen.

    Attributes:
        patterns: dict of layers to patterns, for `swap_attention`. Layers that
            stay full are not in it.
        settings: dict: what all of it was measured with.
        candidates: tuple of the patterns that were tried.
        alone: dict of a layer to the `C` rises of the loss, in nats per token,
            with a candidate in this layer alone.
        kept: dict of a layer to the fall of the loss if it stays full and all
            others have the first candidate, the one with the fewest keys.
        losses: the `N` losses of the documents that were chosen by, under the
            patterns.
        full_losses: the same under full attention.
        held_out_losses: the losses of the other documents.
        held_out_full_losses: the same under full attention.
        visible_keys: float: per token, in the mean over tokens and layers.
        full_visible_keys: the same of full attention.
    """

    patterns: dict
    settings: dict
    candidates: tuple
    alone: dict
    kept: dict
    losses: list
    full_losses: list
    held_out_losses: list
    held_out_full_losses: list
    visible_keys: float
    full_visible_keys: float

    @property
    def increase(self):
        """`Estimate` of the rise of the loss on the documents that the
        patterns were chosen by."""
        return _difference(self.losses, self.full_losses)

    @property
    def held_out_increase(self):
        """`Estimate` of the rise on documents that had no say."""
        return _difference(self.held_out_losses, self.held_out_full_losses)

    def __str__(self):
        columns = ["layer", *map(repr, self.candidates), "kept full", "chosen"]
        rows = [
            [
                str(layer),
                *(f"{rise:+.4f}" for rise in rises),
                f"{-self.kept[layer]:+.4f}",
                repr(self.patterns.get(layer, Full())),
            ]
            for layer, rises in self.alone.items()
        ]
        fraction = self.visible_keys / self.full_visible_keys
        return (
            f"{measuring.tabulate(columns, rows)}\n\n"
            f"{len(self.patterns)} of {len(self.alone)} layers have a pattern: "
            f"{self.visible_keys:.1f} visible keys per token, {fraction:.0%} "
            f"of full attention's. Loss {self.increase}, on held-out documents "
            f"{self.held_out_increase} nats per token."
        )

    def save(self, path):
        """Writes it as JSON, whole or not at all."""
        values = dict(vars(self))
        serialize = keras.saving.serialize_keras_object
        values["patterns"] = {k: serialize(x) for k, x in self.patterns.items()}
        values["candidates"] = [serialize(x) for x in self.candidates]
        measuring.write_json(path, values)

    @classmethod
    def load(cls, path):
        """Reads what `save` wrote; patterns of your own are registered."""
        values = json.loads(pathlib.Path(path).read_text())
        deserialize = keras.saving.deserialize_keras_object
        for name in ("patterns", "alone", "kept"):
            values[name] = {int(k): x for k, x in values[name].items()}
        patterns = values["patterns"]
        values["patterns"] = {k: deserialize(x) for k, x in patterns.items()}
        values["candidates"] = tuple(map(deserialize, values["candidates"]))
        return cls(**values)

    def plot(self, path):
        """Draws how much each layer suffers from each candidate.

        Args:
            path: of the picture, such as a `.png`; needs matplotlib.
        """
        from keras_sa.evaluation.plots import plot_choice

        plot_choice(self).savefig(path, dpi=150)


def _difference(losses, full_losses):
    return Estimate.of(np.array(losses) - np.array(full_losses))


def default_candidates(length):
    """Small worlds with the first tokens, of few keys and of more.

    Args:
        length: `n`, int: about `n / 16`, `n / 8` and `n / 4` keys, a quarter
            of them random.

    Returns:
        A list of patterns.
    """
    sizes = [max(4, length // part) for part in (16, 8, 4)]
    return [
        # Half of a random window is later text and hidden.
        SlidingWindow(size - size // 4)
        | Stochastic(size // 2)
        | GlobalKeys(first=4)
        for size in sizes
    ]


def choose_patterns(
    model,
    documents,
    length,
    candidates=None,
    max_loss_increase=0.05,
    *,
    held_out=None,
    part="all",
    tokenizer=None,
    layers="global",
    seed=0,
    last_tokens=64,
    implementation=None,
    path=None,
    verbose=True,
):
    """The cheapest pattern for each layer that a model bears untrained.

    Measures how much the loss rises with each candidate in each layer alone,
    and how much it falls if a layer stays full where all others are sparse.
    Both rankings make plans, from the one with the fewest visible keys to full
    attention. On each, the cheapest one within the budget is searched by
    halves, by measuring. The one with the fewest keys is returned, after it
    was measured on documents that had no say.

    It reads the documents `1 + L C + L` times and some more, about
    `(C + 1) log2(L C)`; where models are compiled, each of these is compiled.

    Args:
        model: a `keras_hub.models.CausalLM` of text, not swapped.
        documents: two texts or more of more than `length` tokens, of which
            the beginning is read: strings, for a model with a tokenizer, or
            sequences of token ids.
        length: `n`, int: tokens that the model reads.
        candidates: list of `C` patterns without gates. Default:
            `default_candidates(length)`.
        max_loss_increase: float above 0: the budget, in nats per token.
        held_out: documents for the last measurement. Default: the second half
            of `documents`, which then have no say.
        part: `"all"` (default) of the tokens of a document count, its
            `"second half"`, or the `"last"` tokens.
        tokenizer: of strings: a tokenizer of KerasHub, a pair of functions
            (encode, decode), or `"bytes"`. Default: the model's own.
        layers: as in `swap_attention`: among which to choose.
        seed: int: of the permutations. Use it in `swap_attention`, too.
        last_tokens: int up to `length`: how many the part `"last"` has.
        implementation: as in `swap_attention`.
        path: of a JSON file, optional, where measurements are kept. A call
            that finds it goes on with what is missing.
        verbose: whether to print what it is about to cost, and the progress.

    Returns:
        A `ChosenPatterns`; its `patterns` are for `swap_attention`.

    Raises:
        ValueError: for documents that are too few or too short, candidates
            with gates, a model under a swap, a `path` with other results in
            it, or a budget that no plan meets; it names the best one.

    Example:

    >>> import keras_hub
    >>> from keras_sa import hub
    >>> from keras_sa.evaluation import choose_patterns
    >>> from keras_sa.patterns import GlobalKeys, SlidingWindow
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=2, num_query_heads=2,
    ...     num_key_value_heads=1, head_dim=8, hidden_dim=16,
    ...     intermediate_dim=16,
    ... )
    >>> causal_lm = keras_hub.models.Qwen3CausalLM(backbone)
    >>> chosen = choose_patterns(
    ...     causal_lm,
    ...     documents=[[1, 2, 3, 4, 5] * 7, [6, 7, 8] * 11],
    ...     length=32,
    ...     candidates=[SlidingWindow(4) | GlobalKeys(first=2)],
    ...     max_loss_increase=1.0,
    ...     last_tokens=8,
    ...     verbose=False,
    ... )
    >>> sorted(chosen.patterns)
    [0, 1]
    >>> swap = hub.swap_attention(causal_lm, chosen.patterns, seed=0)
    """
    reader = measuring.Reader(model, length, last_tokens)
    _validation.check_one_of("part", part, PARTS)
    _check_budget(max_loss_increase)
    _validation.check_seed(seed)
    options = {"seed": seed, "implementation": implementation}
    candidates, layers = _check_candidates(reader, candidates, layers, options)
    tokens, held_out = _split(documents, held_out, model, length, tokenizer)
    settings = reader.settings(tokens, layers=layers, seed=seed, part=part)
    progress = _Progress(layers, candidates, len(tokens), length, verbose)
    trials = _Trials(reader, tokens, part, options, progress)
    trials.keep_in(path, settings)
    trials({})  # which all others are compared with
    alone = _rises_alone(trials, layers, candidates)
    kept = _falls_if_kept(trials, layers, candidates[0])
    ladders = [
        _ladder_of_rises(alone, reader, candidates),
        *(_ladder_of_kept(kept, candidate) for candidate in candidates),
    ]
    plans = [_search(trials, ladder, max_loss_increase) for ladder in ladders]
    plan = min(plans, key=reader.visible_keys)
    if not plan:
        raise ValueError(_over_budget(trials, max_loss_increase))
    return ChosenPatterns(
        patterns=plan,
        settings=settings,
        candidates=candidates,
        alone=alone,
        kept=kept,
        losses=trials(plan),
        full_losses=trials({}),
        held_out_losses=trials.measure(plan, held_out),
        held_out_full_losses=trials.measure({}, held_out),
        visible_keys=reader.visible_keys(plan),
        full_visible_keys=reader.visible_keys({}),
    )


def _check_budget(max_loss_increase):
    is_number = isinstance(max_loss_increase, numbers.Real)
    if isinstance(max_loss_increase, bool) or not (
        is_number and 0 < max_loss_increase < math.inf
    ):
        raise ValueError(
            "`max_loss_increase` is expected to be a number above 0, in nats "
            f"per token. Received: max_loss_increase={max_loss_increase!r}"
        )


def _check_candidates(reader, candidates, layers, options):
    """The candidates, those of the fewest keys first, and the layers."""
    if candidates is None:
        candidates = default_candidates(reader.length)
    if isinstance(candidates, (str, Pattern, dict)) or not candidates:
        raise ValueError(
            "`candidates` is expected to be a list of one pattern or more. "
            f"Received: candidates={candidates!r}"
        )
    for candidate in candidates:
        swap = reader.check("a candidate", candidate, layers=layers, **options)
        if not isinstance(candidate, Pattern) or candidate == Full():
            raise ValueError(
                "`candidates` are expected to be patterns other than `Full()`: "
                "lists and dicts say more than one layer has. "
                f"Received: {candidate!r} among candidates={candidates!r}"
            )
    keys = _keys(reader, candidates)
    order = np.argsort(keys, kind="stable")
    return tuple(candidates[i] for i in order), swap.layers


def _keys(reader, candidates):
    return [
        candidate.keys_per_token(reader.length, is_causal=True)
        for candidate in candidates
    ]


def _split(documents, held_out, model, length, tokenizer):
    """Tokens of the documents to choose by, and of the others."""
    documents = list(documents)
    if held_out is None:
        if len(documents) < 2:
            raise ValueError(
                "`documents` are expected to be two or more, of which the "
                "second half is held out; or pass `held_out`. "
                f"Received: {len(documents)} documents"
            )
        middle = len(documents) // 2
        documents, held_out = documents[:middle], documents[middle:]
    return [
        tokens_of_documents(x, model, length + 1, tokenizer)
        for x in (documents, held_out)
    ]


class _Trials:
    """The losses of documents under plans, `{layer: pattern}`, each read once.

    Args:
        reader: `Reader`.
        documents: int32 `[N, n + 1]`.
        part: of the documents.
        options: dict for `swap_attention`.
        progress: `_Progress`.
    """

    def __init__(self, reader, documents, part, options, progress):
        self.reader = reader
        self.documents = documents
        self.part = part
        self.options = options
        self.progress = progress
        self.plans = {}  # by what a file calls them
        self._losses = {}
        self._path = None

    def keep_in(self, path, settings):
        """Keeps losses in a file, and takes those that are there."""
        self._path, self._settings = path, settings
        values = measuring.read_json(path, settings)
        if values is None:
            return
        self._losses = values["trials"]
        self.reader.check_same_weights(
            self.documents, self({}), path, self.part
        )

    def __call__(self, plan):
        """The `N` losses under a plan."""
        name = json.dumps({str(k): repr(plan[k]) for k in sorted(plan)})
        self.plans[name] = plan
        if name not in self._losses:
            self._losses[name] = self.measure(plan, self.documents)
            if self._path is not None:
                measuring.write_json(
                    self._path,
                    {"settings": self._settings, "trials": self._losses},
                )
            self.progress(plan, self.rise(plan))
        return self._losses[name]

    def rise(self, plan):
        """Of the mean loss under a plan above that of full attention."""
        return float(np.mean(self(plan)) - np.mean(self({})))

    def measure(self, plan, documents):
        """The losses of any documents under a plan."""
        if not plan:
            return self.reader.losses(documents)[self.part]
        with hub.swap_attention(self.reader.model, plan, **self.options):
            return self.reader.losses(documents)[self.part]


def _rises_alone(trials, layers, candidates):
    """`{layer: rise of the loss with each candidate in it alone}`."""
    return {
        layer: [trials.rise({layer: candidate}) for candidate in candidates]
        for layer in layers
    }


def _falls_if_kept(trials, layers, candidate):
    """`{layer: fall of the loss if it alone stays full}`."""
    sparse = dict.fromkeys(layers, candidate)
    of_all = trials.rise(sparse)
    return {
        layer: of_all - trials.rise(_without(sparse, [layer]))
        for layer in layers
    }


def _without(plan, layers):
    return {k: x for k, x in plan.items() if k not in layers}


def _ladder_of_kept(kept, candidate):
    """Plans with one candidate, and one more layer full in each: those first
    that gain most by it."""
    order = sorted(kept, key=kept.get, reverse=True)
    sparse = dict.fromkeys(kept, candidate)
    return [_without(sparse, order[:num]) for num in range(len(order) + 1)]


def _ladder_of_rises(alone, reader, candidates):
    """Plans from the fewest keys in each layer to full attention.

    As if rises added up: a step gives that layer more keys which gains most by
    each of them.
    """
    keys = {
        layer: [
            *_keys(reader, candidates),
            reader.native[layer].keys_per_token(reader.length, is_causal=True),
        ]
        for layer in alone
    }
    rises = {layer: [*of_layer, 0.0] for layer, of_layer in alone.items()}
    chosen = dict.fromkeys(alone, 0)
    options = [*candidates, None]
    ladder = []
    while True:
        plan = {k: options[i] for k, i in chosen.items()}
        ladder.append({k: x for k, x in plan.items() if x is not None})
        steps = [
            (_gain(rises[layer], keys[layer], now, new), layer, new)
            for layer, now in chosen.items()
            for new in range(now + 1, len(options))
        ]
        if not steps:
            return ladder
        _, layer, new = max(steps, key=lambda step: step[0])
        chosen[layer] = new


def _gain(rises, keys, now, new):
    """By how much the loss falls for each key that is added."""
    return (rises[now] - rises[new]) / max(keys[new] - keys[now], 1e-9)


def _search(trials, ladder, budget):
    """The first plan of a ladder within the budget, by halves.

    The last one is full attention, which always is.
    """
    low, high = 0, len(ladder) - 1
    while low < high:
        middle = (low + high) // 2
        if trials.rise(ladder[middle]) <= budget:
            high = middle
        else:
            low = middle + 1
    return ladder[high]


def _over_budget(trials, budget):
    plan = min(filter(None, trials.plans.values()), key=trials.rise)
    return (
        "`max_loss_increase` is expected to be one that some plan meets: take "
        "other candidates, or a larger budget. Received: max_loss_increase="
        f"{budget}, where the best plan raises the loss by "
        f"{trials.rise(plan):.4f}: {plan}"
    )


class _Progress:
    """Prints what there is to do, and what was done.

    Args:
        layers: among which to choose.
        candidates: patterns.
        num_documents: int.
        length: int.
        verbose: whether to print.
    """

    def __init__(self, layers, candidates, num_documents, length, verbose):
        num_layers, num_candidates = len(layers), len(candidates)
        searches = (num_candidates + 1) * np.log2(num_layers * num_candidates)
        self.total = 2 + num_layers * (num_candidates + 1) + int(searches) + 1
        self.done = 0
        self.verbose = verbose
        self.start = time.monotonic()
        if verbose:
            print(
                f"About {self.total} readings of {num_documents} documents of "
                f"{length} tokens: {num_candidates} candidates in each of "
                f"{num_layers} layers alone, each layer kept full, searches.",
                flush=True,
            )

    def __call__(self, plan, rise):
        self.done += 1
        if not self.verbose:
            return
        seconds = time.monotonic() - self.start
        left = seconds / self.done * max(0, self.total - self.done)
        what = f"{len(plan)} layers sparse"
        if len(plan) == 1:
            ((layer, pattern),) = plan.items()
            what = f"layer {layer} alone with {pattern!r}"
        print(
            f"[{self.done}/{self.total} {seconds:.0f} s, about {left:.0f} s "
            f"left] {what}: {rise:+.4f}",
            flush=True,
        )
