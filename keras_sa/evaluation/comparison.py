"""What patterns cost a model: its loss, and the time and memory they save.

Letters: `N` documents, `n` tokens of a document that are predicted.
"""

import dataclasses
import functools
import json
import pathlib
import time

import numpy as np
from keras import ops

from keras_sa import _validation
from keras_sa import backend
from keras_sa import hub
from keras_sa.evaluation import cost
from keras_sa.evaluation import measuring
from keras_sa.evaluation.measuring import PARTS
from keras_sa.evaluation.measuring import Estimate
from keras_sa.evaluation.tokenization import tokens_of_documents
from keras_sa.patterns import Full
from keras_sa.patterns import Pattern

_FULL = "full"


@dataclasses.dataclass(frozen=True)
class PatternResult:
    """What was measured of a model under one pattern.

    Attributes:
        name: str.
        swap: dict: `AttentionSwap.get_config()`, which is JSON.
        layers: int: how many layers are not full attention.
        visible_keys: float: per token, in the mean over tokens and layers.
        losses: dict of a part of a document, of `PARTS`, to the `N` losses of
            the documents there, in nats per token.
        seconds: float: of a prefill of `n` tokens, the least of some; `None`
            if none was timed.
        full_seconds: the same of full attention, measured in turn.
        bytes: int: by how much a prefill raises the memory in use, or `None`.
        full_bytes: the same of full attention.
    """

    name: str
    swap: dict
    layers: int
    visible_keys: float
    losses: dict
    seconds: float | None
    full_seconds: float | None
    bytes: int | None
    full_bytes: int | None

    @property
    def speedup(self):
        """How many times faster than full attention a prompt is read; `None`
        if none was timed."""
        if self.seconds is None:
            return None
        return self.full_seconds / self.seconds

    @property
    def memory(self):
        """Peak memory relative to full attention; `None` if unknown."""
        if not self.full_bytes or self.bytes is None:
            return None
        return self.bytes / self.full_bytes


@dataclasses.dataclass(frozen=True)
class PatternComparison:
    """Patterns of one model, side by side, from `compare_patterns`.

    `str` of it is a table in markdown.

    Attributes:
        settings: dict: what all of it was measured with.
        full: `PatternResult` of full attention, the model as it is.
        results: tuple of `PatternResult`, in the order of the patterns.
    """

    settings: dict
    full: PatternResult
    results: tuple[PatternResult, ...]

    def __getitem__(self, name):
        """The result of a pattern by its name."""
        for result in (self.full, *self.results):
            if result.name == name:
                return result
        raise KeyError(name)

    def loss(self, name, part="all"):
        """`Estimate` of the loss under a pattern, in nats per token.

        Args:
            name: of the pattern; `"full"` for full attention.
            part: of the documents: `"all"` of their tokens, the `"second
                half"`, or the `"last"` tokens.
        """
        _validation.check_one_of("part", part, PARTS)
        return Estimate.of(self[name].losses[part])

    def increase(self, name, part="all"):
        """`Estimate` of the loss above that of full attention on the same
        documents; arguments as of `loss`."""
        _validation.check_one_of("part", part, PARTS)
        of_pattern, of_full = (
            np.array(result.losses[part]) for result in (self[name], self.full)
        )
        return Estimate.of(of_pattern - of_full)

    def __str__(self):
        columns = ["pattern", "visible keys", "layers", "loss", "increase"]
        columns += ["second half", f"last {self.settings['last_tokens']}"]
        if self.settings["rounds"]:
            columns += ["prefill s", "times faster", "peak MB", "of full"]
        rows = [self._row(result) for result in (self.full, *self.results)]
        return measuring.tabulate(columns, rows)

    def _row(self, result):
        name = result.name
        increases = ["", "", ""]
        if name != _FULL:
            increases = [str(self.increase(name, x)) for x in PARTS]
        columns = [
            name,
            f"{result.visible_keys:.1f}",
            str(result.layers),
            f"{self.loss(name).mean:.3f}",
            *increases,
        ]
        if not self.settings["rounds"]:
            return columns
        return [
            *columns,
            f"{result.seconds:.3g}",
            f"{result.speedup:.2f}",
            "" if result.bytes is None else f"{result.bytes / 1e6:.0f}",
            "" if result.memory is None else f"{result.memory:.2f}",
        ]

    def save(self, path):
        """Writes it as JSON, whole or not at all."""
        measuring.write_json(path, dataclasses.asdict(self))

    @classmethod
    def load(cls, path):
        """Reads what `save` wrote."""
        return cls._of(json.loads(pathlib.Path(path).read_text()))

    @classmethod
    def _of(cls, values):
        return cls(
            values["settings"],
            PatternResult(**values["full"]),
            tuple(PatternResult(**result) for result in values["results"]),
        )

    def plot(self, path):
        """Draws the increase of the loss against the visible keys.

        Args:
            path: of the picture, such as a `.png`; needs matplotlib.
        """
        from keras_sa.evaluation.plots import plot_comparison

        plot_comparison(self).savefig(path, dpi=150)


def compare_patterns(
    model,
    patterns,
    documents,
    length,
    *,
    tokenizer=None,
    layers="global",
    seed=0,
    last_tokens=64,
    rounds=3,
    implementation=None,
    path=None,
    verbose=True,
):
    """What patterns cost a model untrained, and what they save.

    Each pattern is swapped in, the documents are read under it, and a prompt of
    `length` tokens is timed in turn with full attention. The model is the same
    afterwards.

    Args:
        model: a `keras_hub.models.CausalLM` of text, not swapped.
        patterns: dict of names to what `swap_attention` takes as a pattern: a
            `Pattern`, a list, or a dict of layers; or a list of patterns,
            named by their `repr`. Gates would have to be trained, so there
            are no gated sums.
        documents: `N` texts of more than `length` tokens, of which the
            beginning is read: strings, for a model with a tokenizer, or
            sequences of token ids.
        length: `n`, int: tokens that the model reads, and predicts.
        tokenizer: of strings: a tokenizer of KerasHub, a pair of functions
            (encode, decode), or `"bytes"`. Default: the model's own.
        layers: as in `swap_attention`, of patterns that are no dict.
        seed: int: of the permutations.
        last_tokens: int up to `length`: how many the part `"last"` has. A
            `GlobalQueries(last=last_tokens)` lets these attend to everything.
        rounds: int: how often prefills are timed. 0: there are no times and
            no memory, and nothing is read for them.
        implementation: as in `swap_attention`.
        path: of a JSON file, optional: there the comparison is kept as it
            grows. A call that finds it goes on with what is missing.
        verbose: whether to print each result when it is there.

    Returns:
        A `PatternComparison`.

    Raises:
        ValueError: for documents that are too short, patterns with gates, a
            model under a swap, or a `path` with another comparison in it.

    Example:

    >>> import keras_hub
    >>> from keras_sa.evaluation import compare_patterns
    >>> from keras_sa.patterns import GlobalKeys, SlidingWindow
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=2, num_query_heads=2,
    ...     num_key_value_heads=1, head_dim=8, hidden_dim=16,
    ...     intermediate_dim=16,
    ... )
    >>> comparison = compare_patterns(
    ...     keras_hub.models.Qwen3CausalLM(backbone),
    ...     {"window": SlidingWindow(4), "first": GlobalKeys(2)},
    ...     documents=[[1, 2, 3, 4, 5] * 7, [6, 7, 8] * 11],
    ...     length=32,
    ...     last_tokens=8,
    ...     verbose=False,
    ... )
    >>> comparison["window"].visible_keys
    3.8125
    >>> comparison.increase("full").mean
    0.0
    """
    rounds = _validation.check_non_negative_int("rounds", rounds)
    _validation.check_seed(seed)
    reader = measuring.Reader(model, length, last_tokens)
    plans = {
        name: _Plan(reader, name, pattern, layers, seed, implementation)
        for name, pattern in _named(patterns).items()
    }
    documents = tokens_of_documents(documents, model, length + 1, tokenizer)
    settings = reader.settings(documents, rounds=rounds)
    plan_of_full = _Plan(reader, _FULL, Full(), "all", seed, None)
    measure = _Measure(reader, documents, rounds, plan_of_full)
    kept = measuring.read_json(path, settings)
    if kept is None:
        full = measure(_FULL, plan_of_full)
        kept = PatternComparison(settings, full, ())
    else:
        kept = PatternComparison._of(kept)
        losses = kept.full.losses["all"]
        reader.check_same_weights(documents, losses, path)
    report = _Report(plans, verbose)
    report(kept, kept.full)
    for name, plan in plans.items():
        if plan.find(kept) is None:
            result = measure(name, plan)
            kept = dataclasses.replace(kept, results=(*kept.results, result))
            if path is not None:
                kept.save(path)
            report(kept, result)
    results = tuple(plan.find(kept) for plan in plans.values())
    return dataclasses.replace(kept, results=results)


def _named(patterns):
    """`{name: pattern}`."""
    if not isinstance(patterns, dict):
        if isinstance(patterns, (str, Pattern)):
            patterns = [patterns]
        patterns = {repr(pattern): pattern for pattern in patterns}
    if _FULL in patterns:
        raise ValueError(
            "`patterns` are compared with full attention, which has the name "
            f"{_FULL!r} already. Received: a pattern with that name"
        )
    return patterns


class _Plan:
    """A pattern as it is swapped in.

    Attributes:
        name: of the pattern.
        swap: function that swaps it in.
        patterns: dict of layers to patterns.
        config: dict: `AttentionSwap.get_config()`, as JSON has it.
    """

    def __init__(self, reader, name, pattern, layers, seed, implementation):
        options = {"seed": seed, "implementation": implementation}
        if not isinstance(pattern, dict):  # which names its layers itself
            options["layers"] = layers
        swap = reader.check(repr(name), pattern, **options)
        self.name = name
        self.patterns = swap.patterns
        self.config = measuring.as_json(swap.get_config())
        self.swap = functools.partial(
            hub.swap_attention, reader.model, pattern, **options
        )

    def find(self, comparison):
        """The result of this pattern under this name, or `None`."""
        for result in comparison.results:
            if (result.name, result.swap) == (self.name, self.config):
                return result
        return None


class _Measure:
    """Measures a model under one pattern after the other.

    Args:
        reader: `Reader`.
        documents: int32 `[N, n + 1]`.
        rounds: int.
        full: `_Plan` of full attention.
    """

    def __init__(self, reader, documents, rounds, full):
        self.reader = reader
        self.documents = documents
        self.rounds = rounds
        self.full = full
        self._full_call = self._prefill(), full.swap

    def __call__(self, name, plan):
        """`PatternResult` of a plan."""
        with plan.swap():
            losses = self.reader.losses(self.documents)
        return PatternResult(
            name=name,
            swap=plan.config,
            layers=self.reader.num_sparse(plan.patterns),
            visible_keys=self.reader.visible_keys(plan.patterns),
            losses=losses,
            **self._costs(plan),
        )

    def _costs(self, plan):
        """Times and memory of prefills."""
        if not self.rounds:
            names = ("seconds", "full_seconds", "bytes", "full_bytes")
            return dict.fromkeys(names)
        call = self._full_call  # compiled once
        if plan is not self.full:
            call = self._prefill(), plan.swap
        calls = [self._full_call, call]
        full_seconds, seconds = cost.seconds_side_by_side(calls, self.rounds)
        full_bytes, num_bytes = (self._peak_bytes(*pair) for pair in calls)
        return {
            "seconds": seconds,
            "full_seconds": full_seconds,
            "bytes": num_bytes,
            "full_bytes": full_bytes,
        }

    def _prefill(self):
        """A function that reads a prompt; compiled, with the attention of its
        first call."""
        model, inputs = self.reader.model, self._inputs()

        def read(inputs):
            return model.backbone(inputs, training=False)

        return functools.partial(backend.compile_inference(model, read), inputs)

    def _peak_bytes(self, call, context):
        with context():
            return cost.peak_bytes(call, self._inputs()["token_ids"])

    def _inputs(self):
        token_ids = self.documents[:1, :-1]
        tensors = {
            "token_ids": token_ids,
            "padding_mask": np.ones_like(token_ids),
            "position_ids": np.arange(token_ids.shape[1])[None],
        }
        return {
            name: ops.convert_to_tensor(tensors[name], "int32")
            for name in self.reader.model.backbone.input
        }


class _Report:
    """Prints what is measured.

    Args:
        plans: dict of names: what there is to do beside full attention.
        verbose: whether to print.
    """

    def __init__(self, plans, verbose):
        self.names = [_FULL, *plans]
        self.verbose = verbose
        self.start = time.monotonic()

    def __call__(self, comparison, result):
        if not self.verbose:
            return
        name = result.name
        text = f"loss {comparison.loss(name).mean:.3f}"
        if name != _FULL:
            text += f" ({comparison.increase(name)})"
        seconds = time.monotonic() - self.start
        text += f", {result.visible_keys:.0f} visible keys"
        if result.speedup is not None:
            text += f", prefill {result.speedup:.2f} times as fast"
        print(
            f"[{self.names.index(name) + 1}/{len(self.names)} {seconds:.0f} s] "
            f"{name}: {text}",
            flush=True,
        )
