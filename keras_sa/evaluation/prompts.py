"""Long prompts of text with short answers, and how many a model gets right.

After the kinds of RULER (arXiv 2404.06654), for any tokenizer: a passkey,
several needles or several values of one, variables that are handed on, the most
frequent words, and few shots of knowledge or of a rule. Made on the fly: the
same arguments give the same prompts on every machine.
"""

import bisect
import dataclasses
import itertools
import math
import re

import numpy as np

from keras_sa import _validation
from keras_sa.evaluation import scoring
from keras_sa.evaluation import shots
from keras_sa.evaluation import tokenization
from keras_sa.evaluation.draws import Draws

QUESTIONS = ("end", "start")
_SENTENCE_ENDS = re.compile(r"(?<=[.!?;])\s+")
_CONFIDENCE = 0.95
_MOST_LETTERS = 16  # of a token of a text, in the mean


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A text and what should follow it.

    Attributes:
        context: str: the text, which ends where the answer begins.
        answer: str: with the white space before it.
    """

    context: str
    answer: str


@dataclasses.dataclass(frozen=True)
class PromptResult:
    """How well prompts are answered, from `evaluate_prompts`.

    Attributes:
        num_prompts: int.
        num_correct: int: answers all of whose tokens are the most probable
            ones after those before them.
        total_loss: float: the sum of the negative log-likelihoods of the
            answers' tokens, in nats.
        num_tokens: int: of all answers.
        num_correct_tokens: int: of these, how many are the most probable one
            after the right ones before it. Of a number whose digits are tokens
            it tells how many digits are found.
    """

    num_prompts: int
    num_correct: int
    total_loss: float
    num_tokens: int
    num_correct_tokens: int

    @property
    def accuracy(self):
        """The fraction of answers that greedy decoding writes."""
        return self.num_correct / self.num_prompts

    @property
    def interval(self):
        """Wilson's confidence interval of 95 % of the accuracy: low, high."""
        from scipy import stats

        test = stats.binomtest(self.num_correct, self.num_prompts)
        interval = test.proportion_ci(_CONFIDENCE, method="wilson")
        return float(interval.low), float(interval.high)

    @property
    def loss(self):
        """Nats per token of the answers."""
        return self.total_loss / self.num_tokens

    @property
    def token_accuracy(self):
        """The fraction of the answers' tokens that are right."""
        return self.num_correct_tokens / self.num_tokens


def evaluate_prompts(
    model, prompts, *, tokenizer=None, add_start_token=None, batch_size=None
):
    """How many answers of prompts a model gets right, and their loss.

    A prompt and its answer are read at once, under the attention of the model:
    a `GlobalQueries(last=m)` that covers question and answer lets both attend
    to everything, as new tokens do in `generate`.

    Args:
        model: a `keras_hub.models.CausalLM`, swapped or not; or a
            `TokenScorer` of one, which keeps what it compiled.
        prompts: `Prompt`s.
        tokenizer: as in `evaluate_last_words`.
        add_start_token: as in `evaluate_last_words`.
        batch_size: prompts at a time, of a model. Default: 8.

    Returns:
        A `PromptResult`.

    Raises:
        ValueError: for no prompts, or a model without a tokenizer.

    Example:

    >>> import keras_hub
    >>> from keras_sa import evaluation
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=256, num_layers=1, num_query_heads=2,
    ...     num_key_value_heads=1, head_dim=8, hidden_dim=16,
    ...     intermediate_dim=16,
    ... )
    >>> causal_lm = keras_hub.models.Qwen3CausalLM(backbone)
    >>> prompts = evaluation.passkey(
    ...     4, 200, haystack="It was dark. The night was long. " * 9,
    ...     tokenizer="bytes", num_digits=3, seed=1,
    ... )
    >>> result = evaluation.evaluate_prompts(
    ...     causal_lm, prompts, tokenizer="bytes"
    ... )
    >>> result.num_prompts, result.num_tokens
    (4, 16)
    """
    scorer = scoring.as_scorer(model, batch_size)
    encode = tokenization.tokenization_of(
        scorer.causal_lm, tokenizer, add_start_token
    ).encode_with_start
    pairs = [
        tokenization.encode_pair(encode, prompt.context, prompt.answer)
        for prompt in prompts
    ]
    if not pairs:
        raise ValueError("`prompts` is expected to hold one. Received: none")
    answers = scorer.score_continuation_tokens(pairs)
    return PromptResult(
        num_prompts=len(pairs),
        num_correct=sum(bool(x.is_greedy.all()) for x in answers),
        total_loss=-math.fsum(
            float(token) for x in answers for token in x.log_probabilities
        ),
        num_tokens=sum(len(answer) for _, answer in pairs),
        num_correct_tokens=sum(int(x.is_greedy.sum()) for x in answers),
    )


def passkey(
    num_prompts,
    length,
    *,
    haystack,
    tokenizer,
    num_digits=5,
    question="end",
    seed,
):
    """A number is hidden in a text, and asked for.

    Args:
        num_prompts: int.
        length: int: tokens of a prompt with its answer, at most; as many
            sentences of the haystack as fit.
        haystack: str: text of sentences, from which a random place is taken.
        tokenizer: a tokenizer of KerasHub; a pair of functions, from a string
            to integers and back; or `"bytes"`: a token is a byte.
        num_digits: int: of the number.
        question: `"end"`: it is asked after the text; `"start"`: before it,
            and at the end there is only the beginning of the answer.
        seed: int of at most 32 bits.

    Returns:
        A list of `Prompt`.

    Raises:
        ValueError: for what does not fit into the length, or a haystack that
            is too short for it.

    Example:

    >>> from keras_sa import evaluation
    >>> [prompt] = evaluation.passkey(
    ...     1, 165, haystack="It was dark. " * 9, tokenizer="bytes",
    ...     num_digits=3, seed=1,
    ... )
    >>> print(prompt.context + prompt.answer)
    There is a pass key hidden in the text. Remember it.
    The pass key is 591. Remember it. 591 is the pass key. It was dark.
    What is the pass key? The pass key is 591

    Reference:
        The needle of Landmark Attention, https://arxiv.org/abs/2305.16300; as
        a task of RULER, https://arxiv.org/abs/2404.06654
    """
    _validation.check_positive_int("num_digits", num_digits)

    def make(draws):
        number = _number(draws, num_digits)
        return _Parts(
            intro="There is a pass key hidden in the text. Remember it.",
            needles=[
                f"The pass key is {number}. Remember it. {number} is the pass "
                "key."
            ],
            question="What is the pass key?",
            cue="The pass key is",
            answer=f" {number}",
        )

    return _hide(num_prompts, length, make, haystack, tokenizer, question, seed)


def needles(
    num_prompts,
    length,
    *,
    haystack,
    tokenizer,
    num_needles=4,
    num_values=1,
    num_digits=5,
    question="end",
    seed,
):
    """Several keys have numbers, hidden in a text; one key is asked for.

    Args:
        num_prompts: int.
        length: int: as in `passkey`.
        haystack: str.
        tokenizer: as in `passkey`.
        num_needles: int: keys.
        num_values: int: numbers of a key. All of them are the answer, in the
            order of the text.
        num_digits: int: of a number.
        question: as in `passkey`.
        seed: int of at most 32 bits.

    Returns:
        A list of `Prompt`.

    Raises:
        ValueError: as `passkey`, or for more needles than there are words.

    Example:

    >>> from keras_sa import evaluation
    >>> [prompt] = evaluation.needles(
    ...     1, 330, haystack="It was dark. The night was long. " * 9,
    ...     tokenizer="bytes", num_needles=2, num_digits=3, seed=1,
    ... )
    >>> prompt.context.count("The number of")
    3

    Reference:
        RULER, https://arxiv.org/abs/2404.06654
    """
    _validation.check_positive_int("num_values", num_values)
    _validation.check_positive_int("num_digits", num_digits)
    _check_num_words("num_needles", num_needles)

    def make(draws):
        keys = _words(draws, num_needles)
        numbers = [
            [_number(draws, num_digits) for _ in range(num_values)]
            for _ in keys
        ]
        said = [
            (key, number) for key, own in zip(keys, numbers) for number in own
        ]
        [order] = draws.orders(1, len(said))
        said = [said[i] for i in order]
        asked = keys[0]
        answer = [number for key, number in said if key == asked]
        plural = "number of" if num_values == 1 else "numbers of"
        verb = "is" if num_values == 1 else "are"
        return _Parts(
            intro="Numbers are hidden in the text. Remember them.",
            needles=[f"The number of {k} is {x}." for k, x in said],
            question=f"What {verb} the {plural} {asked} in the text?",
            cue=f"The {plural} {asked} {verb}",
            answer=" " + ", ".join(answer),
        )

    return _hide(num_prompts, length, make, haystack, tokenizer, question, seed)


def variable_tracking(
    num_prompts,
    length,
    *,
    haystack,
    tokenizer,
    num_hops=3,
    num_chains=2,
    num_digits=5,
    question="end",
    seed,
):
    """A number is handed on from variable to variable: which ones have it?

    Args:
        num_prompts: int.
        length: int: as in `passkey`.
        haystack: str.
        tokenizer: as in `passkey`.
        num_hops: int: how often a number is handed on.
        num_chains: int: numbers; one of them is asked for.
        num_digits: int: of a number.
        question: as in `passkey`.
        seed: int of at most 32 bits.

    Returns:
        A list of `Prompt`. An answer has `num_hops + 1` names, in order.

    Raises:
        ValueError: as `passkey`, or for more variables than there are words.

    Example:

    >>> from keras_sa import evaluation
    >>> [prompt] = evaluation.variable_tracking(
    ...     1, 360, haystack="It was dark. The night was long. " * 9,
    ...     tokenizer="bytes", num_hops=1, num_digits=2, seed=1,
    ... )
    >>> len(prompt.answer.split(", "))
    2

    Reference:
        RULER, https://arxiv.org/abs/2404.06654
    """
    _validation.check_positive_int("num_hops", num_hops)
    _validation.check_positive_int("num_chains", num_chains)
    _validation.check_positive_int("num_digits", num_digits)
    num_links = num_hops + 1
    _check_num_words("num_chains * (num_hops + 1)", num_chains * num_links)

    def make(draws):
        names = [x.upper() for x in _words(draws, num_chains * num_links)]
        numbers = [_number(draws, num_digits) for _ in range(num_chains)]
        chains = [
            names[i : i + num_links] for i in range(0, len(names), num_links)
        ]
        said = [
            [
                f"VAR {name} = {before}."
                for before, name in itertools.pairwise([number, *chain])
            ]
            for number, chain in zip(numbers, chains)
        ]
        # Chains are mixed, each in its order.
        turns = np.repeat(np.arange(num_chains), num_links)
        [order] = draws.orders(1, len(turns))
        iterators = [iter(chain) for chain in said]
        return _Parts(
            intro="Variables are assigned in the text. Remember them.",
            needles=[next(iterators[turn]) for turn in turns[order]],
            question=f"Which variables have the value {numbers[0]}?",
            cue=f"The variables with the value {numbers[0]} are",
            answer=" " + ", ".join(chains[0]),
        )

    return _hide(num_prompts, length, make, haystack, tokenizer, question, seed)


def frequent_words(
    num_prompts,
    length,
    *,
    tokenizer,
    num_answers=1,
    num_times=10,
    question="end",
    seed,
):
    """Words in a random order; those that are there most often are asked for.

    Args:
        num_prompts: int.
        length: int: tokens of a prompt with its answer, at most; other words
            fill it up, each of them up to a third as often.
        tokenizer: as in `passkey`.
        num_answers: int: how many words are frequent. They are the answer, in
            the order of the alphabet.
        num_times: int: how often each of them is there; 3 or more.
        question: as in `passkey`.
        seed: int of at most 32 bits.

    Returns:
        A list of `Prompt`.

    Raises:
        ValueError: for what does not fit into the length, or a length that the
            words do not fill.

    Example:

    >>> from keras_sa import evaluation
    >>> [prompt] = evaluation.frequent_words(
    ...     1, 300, tokenizer="bytes", num_times=6, seed=1
    ... )
    >>> prompt.answer, prompt.context.count("saddle")
    (' saddle', 6)

    Reference:
        RULER, https://arxiv.org/abs/2404.06654
    """
    _validation.check_positive_int("num_times", num_times)
    if num_times < 3:
        raise ValueError(
            "`num_times` is expected to be 3 or more: other words are there up "
            f"to a third as often. Received: num_times={num_times}"
        )
    _check_num_words("num_answers", num_answers)
    many = num_answers > 1
    noun = (
        f"{num_answers} most frequent words" if many else ("most frequent word")
    )
    verb = "are" if many else "is"

    def make(draws):
        words = _words(draws, len(shots.WORDS))
        frequent, others = words[:num_answers], words[num_answers:]
        filler = others * (num_times // 3)
        [order] = draws.orders(1, len(filler))
        return _Parts(
            intro="Here is a list of words.",
            needles=[x for x in frequent for _ in range(num_times)],
            question=f"What {verb} the {noun} of the list?",
            cue=f"The {noun} {verb}",
            answer=" " + ", ".join(sorted(frequent)),
            filler=[filler[i] for i in order],
        )

    return _hide(num_prompts, length, make, None, tokenizer, question, seed)


def few_shot(num_prompts, *, kind="capitals", num_shots=16, seed):
    """Examples of a kind, and one more to be completed.

    Args:
        num_prompts: int.
        kind: `"capitals"` of countries: knowledge; `"antonyms"`;
            `"past_tenses"` of verbs; or `"successors"` of numbers: a rule.
        num_shots: int: examples before the one that is asked for.
        seed: int of at most 32 bits.

    Returns:
        A list of `Prompt`. What is asked for is not among the examples.

    Raises:
        ValueError: for more examples than there are of a kind.

    Example:

    >>> from keras_sa import evaluation
    >>> [prompt] = evaluation.few_shot(1, num_shots=2, seed=1)
    >>> print(prompt.context + prompt.answer)
    Tunisia -> Tunis
    Colombia -> Bogota
    Malaysia -> Kuala Lumpur

    Reference:
        Stochastic Attention, https://arxiv.org/abs/2604.00754, compares
        attentions on few-shot prompts of this length.
    """
    _validation.check_positive_int("num_prompts", num_prompts)
    _validation.check_positive_int("num_shots", num_shots)
    _validation.check_one_of("kind", kind, tuple(shots.PAIRS))
    pairs = shots.PAIRS[kind]
    if num_shots >= len(pairs):
        raise ValueError(
            f"`num_shots` is expected to be below {len(pairs)}, the examples "
            f"that there are. Received: num_shots={num_shots}"
        )
    orders = Draws(seed).orders(num_prompts, len(pairs))[:, : num_shots + 1]
    prompts = []
    for order in orders:
        *examples, (asked, answer) = (pairs[i] for i in order)
        lines = [f"{x} -> {y}" for x, y in examples]
        context = "\n".join([*lines, f"{asked} ->"])
        prompts.append(Prompt(context, f" {answer}"))
    return prompts


@dataclasses.dataclass(frozen=True)
class _Parts:
    """What a prompt is put together from.

    Attributes:
        intro: str, at the beginning.
        needles: list of str, in this order among the filler.
        question: str.
        cue: str: the beginning of the answer.
        answer: str.
        filler: list of str; `None` for sentences of the haystack.
    """

    intro: str
    needles: list
    question: str
    cue: str
    answer: str
    filler: list | None = None


def _hide(num_prompts, length, make, haystack, tokenizer, question, seed):
    """Prompts of what `make` draws, among as much filler as fits."""
    _validation.check_positive_int("num_prompts", num_prompts)
    _validation.check_positive_int("length", length)
    _validation.check_one_of("question", question, QUESTIONS)
    count = _Counter(tokenizer)
    sentences = None
    if haystack is not None:
        sentences = [x for x in _SENTENCE_ENDS.split(haystack) if x.strip()]
    draws = Draws(seed)
    prompts = []
    for _ in range(num_prompts):
        parts = make(draws)
        filler = parts.filler
        if filler is None:
            [start] = draws.integers(max(1, len(sentences)), (1,))
            filler = _beginning(
                [*sentences[start:], *sentences[:start]], length
            )
        depths = draws.integers(2**31, (len(parts.needles),))
        prompts.append(
            _fill(parts, filler, np.sort(depths), length, question, count)
        )
    return prompts


def _beginning(filler, length):
    """More than fits into `length` tokens, if there is as much."""
    ends = np.cumsum([len(piece) for piece in filler])
    num = np.searchsorted(ends, _MOST_LETTERS * length) + 1
    return filler[:num]


def _fill(parts, filler, depths, length, question, count):
    """The prompt with the most filler that fits."""

    def prompt(num):
        return _compose(parts, filler[:num], depths, question)

    def size(num):
        return count(prompt(num))

    if size(0) > length:
        raise ValueError(
            "`length` is expected to hold what is hidden and asked: at least "
            f"{size(0)} tokens. Received: length={length}"
        )
    if size(len(filler)) <= length:
        raise ValueError(
            "There is expected to be more text than fits into `length`, "
            f"{length} tokens: take a longer `haystack`, or a shorter length. "
            f"Received: text for {size(len(filler))} tokens"
        )
    num = bisect.bisect_right(range(len(filler)), length, key=size) - 1
    return prompt(num)


def _compose(parts, filler, depths, question):
    """Needles at their depths, fractions of 2**31, in the filler."""
    places = depths * (len(filler) + 1) // 2**31
    pieces, needles = [], list(zip(places, parts.needles))
    for index, piece in enumerate([*filler, None]):
        while needles and needles[0][0] <= index:
            pieces.append(needles.pop(0)[1])
        if piece is not None:
            pieces.append(piece)
    text = " ".join(pieces)
    before = (
        f"{parts.intro} {parts.question}"
        if question == "start"
        else (parts.intro)
    )
    after = (
        parts.cue if question == "start" else (f"{parts.question} {parts.cue}")
    )
    return Prompt(f"{before}\n{text}\n{after}", parts.answer)


class _Counter:
    """Tokens of a prompt with its answer."""

    def __init__(self, tokenizer):
        self._encode = tokenization.as_tokenization(tokenizer).encode

    def __call__(self, prompt):
        return len(self._encode(prompt.context + prompt.answer))


def _number(draws, num_digits):
    first = 1 + draws.integers(9, (1,))
    others = draws.integers(10, (num_digits - 1,))
    return "".join(map(str, [*first, *others]))


def _words(draws, num_words):
    """Different words."""
    [order] = draws.orders(1, len(shots.WORDS))
    return [shots.WORDS[i] for i in order[:num_words]]


def _check_num_words(name, num_words):
    _validation.check_positive_int(name, num_words)
    if num_words > len(shots.WORDS):
        raise ValueError(
            f"`{name}` is expected to be at most {len(shots.WORDS)}, the words "
            f"that there are. Received: {num_words}"
        )
