"""What patterns cost a model: its loss, and the time and memory they save.

Letters: `N` documents, `n` tokens of a document that are predicted.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
import time

import numpy as np
from keras import ops

from keras_sa import _validation
from keras_sa import _version
from keras_sa import backend
from keras_sa import hub
from keras_sa.evaluation import cost
from keras_sa.evaluation.scoring import TokenScorer
from keras_sa.evaluation.tokenization import tokens_of_documents
from keras_sa.patterns import Full
from keras_sa.patterns import Pattern

PARTS = ("all", "second half", "last")
CONFIDENCE = 0.95
# How much the loss of a document may differ on a machine that goes on with the
# comparison of another one.
_SAME_LOSS = 1e-3
_FULL = "full"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over documents.

    Attributes:
        mean: float.
        low: float: where its confidence interval of 95 % begins, by Student's
            t over the documents; nan of one document.
        high: float: where it ends.
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values):
        """From one value for each document."""
        from scipy import stats

        mean = float(np.mean(values))
        if len(values) < 2:
            return cls(mean, math.nan, math.nan)
        error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
        reach = error * stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
        return cls(mean, mean - reach, mean + reach)


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
        seconds: float: of a prefill of `n` tokens, the least of some.
        full_seconds: float: the same of full attention, measured in turn.
        bytes: int: by how much a prefill raises the memory in use, or `None`.
        full_bytes: the same of full attention.
    """

    name: str
    swap: dict
    layers: int
    visible_keys: float
    losses: dict
    seconds: float
    full_seconds: float
    bytes: int | None
    full_bytes: int | None

    @property
    def speedup(self):
        """How many times faster than full attention a prompt is read."""
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
        last = self.settings["last_tokens"]
        columns = ["pattern", "visible keys", "layers", "loss"]
        columns += ["increase", "second half", f"last {last}"]
        columns += ["prefill s", "times faster", "peak MB", "of full"]
        rows = [self._row(result) for result in (self.full, *self.results)]
        rule = ["---", *["---:"] * (len(columns) - 1)]
        lines = (columns, rule, *rows)
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def _row(self, result):
        name = result.name
        increases = ["", "", ""]
        if name != _FULL:
            increases = [_in_words(self.increase(name, x)) for x in PARTS]
        return [
            name.replace("|", r"\|"),
            f"{result.visible_keys:.1f}",
            str(result.layers),
            f"{self.loss(name).mean:.3f}",
            *increases,
            f"{result.seconds:.3g}",
            f"{result.speedup:.2f}",
            "" if result.bytes is None else f"{result.bytes / 1e6:.0f}",
            "" if result.memory is None else f"{result.memory:.2f}",
        ]

    def save(self, path):
        """Writes it as JSON, whole or not at all."""
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".unfinished")
        text = json.dumps(dataclasses.asdict(self), indent=1)
        unfinished.write_text(text + "\n")
        os.replace(unfinished, path)

    @classmethod
    def load(cls, path):
        """Reads what `save` wrote."""
        values = json.loads(pathlib.Path(path).read_text())
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
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 4.6))
        FigureCanvasAgg(figure)
        parts = {
            "all": "all tokens",
            "last": f"last {self.settings['last_tokens']} tokens",
        }
        panels = figure.subplots(1, len(parts), sharey=True)
        for axes, (part, title) in zip(panels, parts.items()):
            axes.axhline(0, color="black", linestyle="--", linewidth=1)
            for index, result in enumerate(self.results):
                x = self.increase(result.name, part)
                axes.errorbar(
                    result.visible_keys,
                    x.mean,
                    # Of one document there is no interval to draw.
                    yerr=None if math.isnan(x.low) else x.high - x.mean,
                    marker="os^Dv<>P*X"[index % 10],
                    linestyle="",
                    capsize=3,
                    label=result.name,
                )
            axes.set_title(title)
            axes.set_xlabel("visible keys per token (mean)")
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("loss above full attention (nats per token)")
        panels[-1].legend(fontsize=7)
        figure.tight_layout()
        figure.savefig(path, dpi=150)


def _in_words(estimate):
    if math.isnan(estimate.low):
        return f"{estimate.mean:+.3f}"
    return f"{estimate.mean:+.3f} ± {estimate.high - estimate.mean:.3f}"


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
        rounds: int: how often prefills are timed.
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
    length = _validation.check_positive_int("length", length)
    rounds = _validation.check_positive_int("rounds", rounds)
    last_tokens = _validation.check_positive_int("last_tokens", last_tokens)
    if last_tokens > length:
        raise ValueError(
            f"`last_tokens` is expected to be at most `length`, {length}. "
            f"Received: last_tokens={last_tokens}"
        )
    scorer = TokenScorer(model, batch_size=1, max_length=length)
    _check_not_swapped(model)
    options = {"seed": seed, "implementation": implementation}
    plans = {
        name: (pattern, {**options, **_layers_of(pattern, layers)})
        for name, pattern in _named(patterns).items()
    }
    measured = _Measured(scorer, last_tokens, rounds)
    configs = {
        name: measured.config_of(name, *plan) for name, plan in plans.items()
    }
    measured.documents = tokens_of_documents(
        documents, model, length + 1, tokenizer
    )
    settings = _settings(measured, length, layers, seed, last_tokens, rounds)
    kept = _kept(path, settings)
    if kept is None:
        full = measured.measure(_FULL, Full(), options, None)
        results = []
    else:
        full, results = kept.full, list(kept.results)
        _check_same_model(measured, full, path)
    comparison = _selection(settings, full, configs, results)
    report = _Report(path, verbose, len(plans) + 1)
    report(comparison, full)
    for name, plan in plans.items():
        if _find(comparison.results, name, configs[name]) is None:
            results.append(measured.measure(name, *plan, full))
            # The file keeps the results of earlier calls, too.
            report.keep(PatternComparison(settings, full, tuple(results)))
            comparison = _selection(settings, full, configs, results)
            report(comparison, results[-1])
    return comparison


def _layers_of(pattern, layers):
    return {} if isinstance(pattern, dict) else {"layers": layers}


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


def _check_not_swapped(model):
    swap = hub.current_swap(model)
    if swap is not None:
        raise ValueError(
            "`model` is expected to have its own attention, which the patterns "
            f"are compared with: call `restore()` first. Received: {swap!r}"
        )


class _Measured:
    """A model that is measured under one pattern after the other.

    Args:
        scorer: `TokenScorer` of the model.
        last_tokens: int.
        rounds: int.
    """

    def __init__(self, scorer, last_tokens, rounds):
        self.scorer = scorer
        self.model = scorer.causal_lm
        self.length = scorer.max_length
        self.last_tokens = last_tokens
        self.rounds = rounds
        self.documents = None
        self._full_prefill = None
        self._native = hub.attention_patterns(self.model)

    def config_of(self, name, pattern, options):
        """The configuration of a swap that fits the model and has no gates."""
        with hub.swap_attention(self.model, pattern, **options) as swap:
            if swap.gates:
                raise ValueError(
                    "`patterns` are expected to need no training: the gates of "
                    "a sum (`+`) would have to be trained first. Combine with "
                    f"`|`. Received: {name!r}: {pattern!r}"
                )
            return json.loads(json.dumps(swap.get_config()))

    def losses(self, documents):
        """`{part: losses of the documents}` under the current attention."""
        scores = self.scorer.score_sequences(documents)
        losses = np.array(
            [-x.log_probabilities.astype("float64") for x in scores]
        )  # [N, n]
        first = {"all": 0, "second half": self.length // 2}
        first["last"] = self.length - self.last_tokens
        return {
            part: losses[:, first[part] :].mean(axis=1).tolist()
            for part in PARTS
        }

    def measure(self, name, pattern, options, full):
        """`PatternResult`; `full` is that of full attention, or `None`."""
        swap = hub.swap_attention(self.model, pattern, **options)
        try:
            config = json.loads(json.dumps(swap.get_config()))
            losses = self.losses(self.documents)
            visible, sparse = self._keys(swap)
        finally:
            swap.restore()
        if self._full_prefill is None:
            self._full_prefill = self._prefill(Full(), {})
        calls = [self._full_prefill, self._prefill(pattern, options)]
        full_seconds, seconds = cost.seconds_side_by_side(calls, self.rounds)
        full_bytes, num_bytes = (self._peak_bytes(*pair) for pair in calls)
        return PatternResult(
            name=name,
            swap=config,
            layers=sparse,
            visible_keys=visible,
            losses=losses,
            seconds=seconds,
            full_seconds=full_seconds,
            bytes=num_bytes,
            full_bytes=full_bytes,
        )

    def _keys(self, swap):
        """Visible keys per token, and how many layers are not full."""
        patterns = [
            swap.patterns.get(index, bound.pattern)
            for index, bound in enumerate(self._native)
        ]
        keys = [
            pattern.keys_per_token(self.length, is_causal=True)
            for pattern in patterns
        ]
        sparse = sum(pattern != Full() for pattern in patterns)
        return float(np.mean(keys)), sparse

    def _prefill(self, pattern, options):
        """A function that reads a prompt, and the swap to call it under."""
        inputs = self._inputs()

        def read(inputs):
            return self.model.backbone(inputs, training=False)

        # Compiled with the attention of its first call.
        read = backend.compile_inference(self.model, read)
        swap = functools.partial(
            hub.swap_attention, self.model, pattern, **options
        )
        return functools.partial(read, inputs), swap

    def _peak_bytes(self, call, context):
        with context():
            return cost.peak_bytes(call, self._inputs()["token_ids"])

    def _inputs(self):
        token_ids = self.documents[:1, :-1]
        tensors = {
            "token_ids": token_ids,
            "padding_mask": np.ones_like(token_ids),
            "position_ids": np.arange(self.length)[None],
        }
        return {
            name: ops.convert_to_tensor(tensors[name], "int32")
            for name in self.model.backbone.input
        }


def _settings(measured, length, layers, seed, last_tokens, rounds):
    """What results depend on beside the pattern, as JSON has it."""
    tokens = measured.documents
    settings = {
        "model": type(measured.model).__name__,
        "parameters": int(measured.model.count_params()),
        "documents": len(tokens),
        "tokens": hashlib.sha256(tokens.tobytes()).hexdigest(),
        "length": length,
        "layers": layers if isinstance(layers, str) else list(layers),
        "seed": seed,
        "last_tokens": last_tokens,
        "rounds": rounds,
        "keras_sa": _version.__version__,
    }
    return json.loads(json.dumps(settings))


def _kept(path, settings):
    """The comparison in the file, or `None`."""
    if path is None or not pathlib.Path(path).is_file():
        return None
    kept = PatternComparison.load(path)
    different = [
        f"{key}: {kept.settings.get(key)!r} there, {value!r} here"
        for key, value in settings.items()
        if kept.settings.get(key) != value
    ]
    if different:
        raise ValueError(
            "`path` is expected to hold no other comparison: remove the file, "
            f"or take another. Received: path={str(path)!r} with "
            + "; ".join(different)
        )
    return kept


def _check_same_model(measured, full, path):
    """The loss of a document tells whether the weights are the same."""
    loss = measured.losses(measured.documents[:1])["all"][0]
    kept = full.losses["all"][0]
    if not abs(loss - kept) < _SAME_LOSS:
        raise ValueError(
            "`path` is expected to hold a comparison of the same weights. "
            f"Received: path={str(path)!r}, where the first document has a "
            f"loss of {kept:.4f}, and a model with one of {loss:.4f}"
        )


def _find(results, name, config):
    for result in results:
        if result.swap == config and result.name == name:
            return result
    return None


def _selection(settings, full, configs, results):
    """The comparison of the patterns that are asked for, as far as known."""
    found = (_find(results, *item) for item in configs.items())
    return PatternComparison(settings, full, tuple(x for x in found if x))


class _Report:
    """Keeps and prints what is measured."""

    def __init__(self, path, verbose, total):
        self.path = path
        self.verbose = verbose
        self.total = total
        self.start = time.monotonic()

    def keep(self, comparison):
        if self.path is not None:
            comparison.save(self.path)

    def __call__(self, comparison, result):
        if not self.verbose:
            return
        done = 1 + len(comparison.results)
        text = f"loss {comparison.loss(result.name).mean:.3f}"
        if result.name != _FULL:
            text += f" ({_in_words(comparison.increase(result.name))})"
        seconds = time.monotonic() - self.start
        print(
            f"[{done}/{self.total} {seconds:.0f} s] {result.name}: {text}, "
            f"{result.visible_keys:.0f} visible keys, prefill "
            f"{result.speedup:.2f} times as fast",
            flush=True,
        )
