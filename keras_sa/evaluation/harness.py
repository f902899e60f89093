"""KerasHub models for lm-evaluation-harness, swapped or not.

    python -m keras_sa.evaluation.harness run --model keras_hub --tasks ... \\
        --model_args "preset=qwen3_0.6b_en,pattern=SlidingWindow(512)"

Needs the extra `eval`.
"""

import collections
import pathlib

import keras_hub
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows
from lm_eval.utils import make_disjoint_window

from keras_sa import _validation
from keras_sa import hub
from keras_sa.evaluation import generation
from keras_sa.evaluation import scoring
from keras_sa.evaluation import tokenization
from keras_sa.hub.preset import CONFIG_FILE
from keras_sa.patterns import parse_pattern

# Of models that say nothing of their own; that of the harness.
_MAX_LENGTH = 2048
_SAMPLING = ("temperature", "top_k", "top_p")


@register_model("keras_hub")
class KerasHubLM(TemplateLM):
    """Any causal language model of KerasHub in lm-evaluation-harness.

    Log-likelihoods are those of a `TokenScorer`: on any backend, compiled,
    batched; a swap of the model's attention is noticed. Long inputs are cut at
    their beginning, and long texts read in windows, as the harness does with
    its own models. Of the harness's features there are no chat templates, no
    automatic batch sizes and no data parallelism.

    Args:
        causal_lm: a `keras_hub.models.CausalLM`. Either it or a preset.
        preset: name or folder of a preset of KerasHub. A folder that
            `keras_sa.hub.save_to_preset` wrote comes with its swap.
        tokenizer: a tokenizer of KerasHub, a pair of functions (encode,
            decode), or `"bytes"`. Default: that of the preprocessor.
        batch_size: requests at a time.
        max_length: tokens that the model reads at once, at most. Default: as
            many as its backbone has positions for, otherwise 2048.
        max_gen_toks: new tokens of a request that does not say.
        prefix_token_id: what stands before a text without context. Default:
            the start token of the tokenizer, otherwise its end token.
        add_start_token: whether contexts begin with the start token. Default:
            what the model's preprocessor does; False for another tokenizer.
        dtype: of a preset's model.
        seed: of sampling, where a task asks for it.
        max_batch_size: handed over by the harness, of no effect.
        device: the same: Keras chooses the device. The harness's command line
            says "cuda:0" wherever it runs.
        **swap: arguments of `keras_sa.hub.swap_attention` with which the
            model is swapped: `pattern` and its options. A pattern may be text
            as Python writes it, of a command line, where commas separate
            arguments: a pattern that has some comes with a preset.

    Raises:
        ValueError: for none or both of model and preset, or options as those
            of `TokenScorer` and `swap_attention`.

    Example:

    >>> import keras_hub
    >>> from keras_sa.evaluation.harness import KerasHubLM
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=256, num_layers=1, num_query_heads=2,
    ...     num_key_value_heads=1, head_dim=8, hidden_dim=16,
    ...     intermediate_dim=16,
    ... )
    >>> causal_lm = keras_hub.models.Qwen3CausalLM(backbone)
    >>> lm = KerasHubLM(causal_lm, tokenizer="bytes", prefix_token_id=0)
    >>> lm.tok_encode("gate")
    [103, 97, 116, 101]

    Reference:
        https://github.com/EleutherAI/lm-evaluation-harness
    """

    def __init__(
        self,
        causal_lm=None,
        *,
        preset=None,
        tokenizer=None,
        batch_size=scoring.BATCH_SIZE,
        max_length=None,
        max_gen_toks=256,
        prefix_token_id=None,
        add_start_token=None,
        dtype=None,
        seed=0,
        max_batch_size=None,
        device=None,
        **swap,
    ):
        super().__init__()
        batch_size = _check_batch_size(batch_size)
        swap = _check_swap(swap)
        self.causal_lm = _load(causal_lm, preset, dtype)
        self.scorer = scoring.TokenScorer(
            self.causal_lm, batch_size, max_length
        )
        if self.scorer.max_length is None:
            self.scorer.max_length = _MAX_LENGTH
        self.tokenization = tokenization.tokenization_of(
            self.causal_lm, tokenizer, add_start_token
        )
        self.max_gen_toks = _validation.check_positive_int(
            "max_gen_toks", max_gen_toks
        )
        self._generator = generation.TokenGenerator(
            self.causal_lm,
            batch_size=self.batch_size,
            max_length=self.max_length,
            stop_token_ids=self.tokenization.end_token_ids,
            seed=_validation.check_seed(seed),
        )
        self._prefix_token_id = prefix_token_id
        if swap:
            hub.swap_attention(self.causal_lm, **swap)

    @property
    def max_length(self):
        """Tokens that the model reads at once, at most."""
        return self.scorer.max_length

    @property
    def batch_size(self):
        """Requests at a time."""
        return self.scorer.batch_size

    @property
    def eot_token_id(self):
        """The token that ends a text, or `None`."""
        end_tokens = self.tokenization.end_token_ids
        return end_tokens[0] if end_tokens else None

    @property
    def prefix_token_id(self):
        """What stands before a text without context.

        Raises:
            ValueError: if there is no such token.
        """
        candidates = (
            self._prefix_token_id,
            self.tokenization.start_token_id,
            self.eot_token_id,
        )
        for token in candidates:
            if token is not None:
                return token
        raise ValueError(
            "`prefix_token_id` is expected: texts without a context need a "
            "token before them, and the tokenizer has no start and no end "
            "token. Received: prefix_token_id=None"
        )

    def tok_encode(self, string, add_special_tokens=None, **kwargs):
        """Tokens of a string.

        Args:
            string: the text.
            add_special_tokens: whether a start token is put in front. Default:
                as the model was given.
            **kwargs: other options of the harness, of no effect.
        """
        if add_special_tokens is False:
            return self.tokenization.encode(string)
        return self.tokenization.encode_with_start(string)

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        """Log-likelihoods of whole texts, each after the prefix token.

        A text is read in windows of `max_length` tokens as by
        `evaluate_documents` with that length, the same stride and the prefix
        token as start token.

        Args:
            requests: with a string each.
            disable_tqdm: there is no progress bar.

        Returns:
            A list of floats.
        """
        windows = [self._windows(*request.args) for request in requests]
        scores = iter(
            self.scorer.score_continuations(
                [window for of_text in windows for window in of_text]
            )
        )
        results = []
        for request, of_text in zip(requests, windows):
            result = sum(next(scores)[0] for _ in of_text)
            self.cache_hook.add_partial(
                "loglikelihood_rolling", request.args, result
            )
            results.append(result)
        return results

    def _windows(self, text):
        windows = get_rolling_token_windows(
            self.tokenization.encode(text),
            self.prefix_token_id,
            max_seq_len=self.max_length,
            context_len=1,
        )
        return [make_disjoint_window(window) for window in windows]

    def _loglikelihood_tokens(self, requests, disable_tqdm=False, **kwargs):
        """Scores `[(strings, context tokens, continuation tokens)]`."""
        results = self.scorer.score_continuations(
            [tokens for _, *tokens in requests]
        )
        for (strings, *_), result in zip(requests, results):
            if strings is not None:
                self.cache_hook.add_partial("loglikelihood", strings, result)
        return results

    def generate_until(self, requests, disable_tqdm=False):
        """Texts that follow prompts, up to stop strings.

        Greedy, unless a request has `do_sample` or a temperature. Prompts of
        one batch are equally long, so that the other requests do not change
        what one gets. Stop strings are looked for when all is written; end
        tokens of the tokenizer stop earlier.

        Args:
            requests: with a string and a dictionary each: `until`,
                `max_gen_toks`, `do_sample`, `temperature`, `top_k`, `top_p`.
            disable_tqdm: there is no progress bar.

        Returns:
            A list of strings.

        Raises:
            ValueError: for other options, or where `max_gen_toks` leaves no
                room for a prompt.
        """
        options = [
            normalize_gen_kwargs(request.args[1], self.max_gen_toks)
            for request in requests
        ]
        members = collections.defaultdict(list)
        for index, of_request in enumerate(options):
            key = of_request["max_gen_toks"], *_sampling(of_request).items()
            members[key].append(index)
        results = [None] * len(requests)
        for (max_gen_toks, *sampling), indices in members.items():
            contexts = [requests[index].args[0] for index in indices]
            texts = self._generate(contexts, max_gen_toks, dict(sampling))
            for index, text in zip(indices, texts):
                results[index] = _cut(text, options[index]["until"])
                self.cache_hook.add_partial(
                    "generate_until", requests[index].args, results[index]
                )
        return results

    def _generate(self, contexts, max_gen_toks, sampling):
        """All that is written after each of the strings."""
        prompts = [
            self.tok_encode(context) or [self.prefix_token_id]
            for context in contexts
        ]
        written = self._generator.generate(prompts, max_gen_toks, **sampling)
        return [self.tokenization.decode(tokens) for tokens in written]


def _check_batch_size(batch_size):
    """An int, also of a command line."""
    if isinstance(batch_size, str) and batch_size.isdecimal():
        return int(batch_size)
    return _validation.check_positive_int("batch_size", batch_size)


def _check_swap(swap):
    """Arguments of a swap, also of a command line."""
    if swap and "pattern" not in swap:
        raise ValueError(
            "`pattern` is expected with the options of a swap, as in "
            f"`keras_sa.hub.swap_attention`. Received: {sorted(swap)} alone"
        )
    if isinstance(swap.get("pattern"), str):
        return {**swap, "pattern": parse_pattern(swap["pattern"])}
    return swap


def _load(causal_lm, preset, dtype):
    if (causal_lm is None) == (preset is None):
        raise ValueError(
            "Either `causal_lm` or `preset` is expected. "
            f"Received: causal_lm={causal_lm!r}, preset={preset!r}"
        )
    if preset is None:
        return causal_lm
    options = {} if dtype is None else {"dtype": dtype}
    if (pathlib.Path(preset) / CONFIG_FILE).is_file():
        return hub.from_preset(preset, **options)
    return keras_hub.models.CausalLM.from_preset(preset, **options)


def _sampling(options):
    """How tokens are drawn; nothing if they are not."""
    rest = set(options) - {*_SAMPLING, "do_sample", "until", "max_gen_toks"}
    if rest:
        raise ValueError(
            "Options of generation are expected to be of 'until', "
            "'max_gen_toks', 'do_sample', 'temperature', 'top_k' and 'top_p'. "
            f"Received: {sorted(rest)}"
        )
    if not options["do_sample"]:
        return {}
    given = {name: options[name] for name in _SAMPLING if name in options}
    return {"temperature": 1.0, **given}


def _cut(text, stops):
    """A text up to the first of some strings."""
    for stop in filter(None, stops):
        text = text.split(stop)[0]
    return text


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
