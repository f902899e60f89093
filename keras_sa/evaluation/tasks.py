"""Tasks whose answers stand further back than a window shows.

Made on the fly: the same arguments give the same examples on every machine.
Answers are drawn independently of everything but their source, so whoever
does not see the source can only guess.

Letters: `N` examples, `n` tokens, `P` pairs, `Q` questions.
"""

import numpy as np

from keras_sa import _validation
from keras_sa.evaluation.draws import Draws
from keras_sa.evaluation.examples import from_sequences

_FILLER = 0
_MARKER = 1  # of `copy_at_distance`


def associative_recall(
    num_examples,
    length,
    *,
    vocabulary_size,
    num_pairs,
    num_queries,
    distances=None,
    seed,
):
    """Recall of the values that followed keys.

    A sequence begins with pairs of a key and a value. Later, between filler
    tokens, some keys come again: what was the value? The keys of an example
    differ, none is asked twice, and any may follow any. Values are drawn
    independently of the keys and of one another.

    Token 0 is filler; of the others the lower half are keys and the upper
    half values. Pairs and questions begin at even positions. Filler stands
    after a question, not its answer: the values that were answered would
    tell which are left.

    Args:
        num_examples: int `N`.
        length: int `n`: tokens of a sequence.
        vocabulary_size: int: tokens there are.
        num_pairs: int: pairs of an example.
        num_queries: int: questions of an example, at most `num_pairs`.
        distances: optional pair of ints `(low, high)`: every value stands from
            `low` to `high - 1` tokens before its question. It has to leave
            room for any question to ask for any pair. Default: the questions
            are anywhere after the pairs.
        seed: int of at most 32 bits.

    Returns:
        `Examples` of `num_queries` answers each.

    Raises:
        ValueError: if the vocabulary, the length or the distances are too
            small for that many pairs and questions.

    Example:

    >>> from keras_sa import evaluation
    >>> examples = evaluation.associative_recall(
    ...     1, 14, vocabulary_size=9, num_pairs=3, num_queries=2, seed=2
    ... )
    >>> examples.token_ids
    array([[4, 7, 1, 7, 2, 5, 0, 0, 4, 0, 1, 0, 0, 0]], dtype=int32)
    >>> examples.distance[examples.is_answer]
    array([7, 7], dtype=int32)

    Reference:
        Zoology: Measuring and Improving Recall in Efficient Language Models,
        https://arxiv.org/abs/2312.04927
    """
    _check_positive(
        num_examples=num_examples,
        length=length,
        num_pairs=num_pairs,
        num_queries=num_queries,
    )
    num_keys, num_values = _split_vocabulary(vocabulary_size, num_pairs)
    _check_num_queries(num_queries, num_pairs)
    first, last = _slots_of_questions(length, num_pairs, num_queries, distances)

    draws = Draws(seed)
    keys = 1 + draws.orders(num_examples, num_keys)[:, :num_pairs]  # [N, P]
    values = 1 + num_keys + draws.integers(num_values, keys.shape)
    asked = draws.orders(num_examples, num_pairs)[:, :num_queries]  # [N, Q]
    slots = draws.orders(num_examples, last - first)[:, :num_queries] + first

    sequences = np.full((num_examples, length + 1), _FILLER)
    sequences[:, 0 : 2 * num_pairs : 2] = keys
    sequences[:, 1 : 2 * num_pairs : 2] = values
    questions, sources = 2 * slots, 2 * asked + 1
    _put(sequences, questions, np.take_along_axis(keys, asked, axis=1))
    return from_sequences(sequences, questions, sources, 1 / num_values)


def _split_vocabulary(vocabulary_size, num_pairs):
    """How many keys and how many values there are."""
    num_keys = (vocabulary_size - 1) // 2
    if num_keys < num_pairs:
        raise ValueError(
            "`vocabulary_size` is expected to hold a filler, a key for every "
            f"pair and as many values: {2 * num_pairs + 1} tokens or more. "
            f"Received: vocabulary_size={vocabulary_size}, "
            f"num_pairs={num_pairs}"
        )
    return num_keys, vocabulary_size - 1 - num_keys


def _check_num_queries(num_queries, num_pairs):
    if num_queries > num_pairs:
        raise ValueError(
            "`num_queries` is expected to be at most `num_pairs`: no key is "
            f"asked twice. Received: num_queries={num_queries}, "
            f"num_pairs={num_pairs}"
        )


def _slots_of_questions(length, num_pairs, num_queries, distances):
    """Range of the slots, of two tokens each, that questions may take.

    From slot s the value in slot p is 2 (s - p) - 1 tokens away. Every pair
    has to be in the range from each of the slots: then a question's place
    says nothing of its pair.
    """
    first, last = num_pairs, (length + 1) // 2
    if distances is not None:
        low, high = _check_range("distances", distances, 1, length)
        first = max(first, num_pairs + low // 2)
        last = min(last, (high + 2) // 2)
    if last - first < num_queries:
        raise ValueError(
            "`length` and `distances` are expected to leave room for the "
            "questions, two tokens each, where every pair is in the range: "
            f"{num_queries} of them after {2 * num_pairs} tokens of pairs. "
            f"There is room for {max(0, last - first)}. Received: "
            f"length={length}, distances={distances}, num_pairs={num_pairs}, "
            f"num_queries={num_queries}"
        )
    return first, last


def copy_at_distance(
    num_examples,
    length,
    *,
    vocabulary_size,
    string_length,
    distances=None,
    seed,
):
    """A random string, filler, a marker, and the string again.

    Token 0 is filler, token 1 the marker; the string's tokens are drawn
    independently from the others. The marker asks for the first of them, and
    each for the next.

    Args:
        num_examples: int `N`.
        length: int `n`: tokens of a sequence.
        vocabulary_size: int: tokens there are.
        string_length: int: tokens of the string.
        distances: optional pair of ints `(low, high)`: how many tokens the
            original of a token stands before the one that asks for it, from
            `low` to `high - 1`; drawn for each example. Default: all that fit,
            from `string_length` to `length - string_length`.
        seed: int of at most 32 bits.

    Returns:
        `Examples` of `string_length` answers each.

    Raises:
        ValueError: if the length is too short for the string and distances.

    Example:

    >>> from keras_sa import evaluation
    >>> examples = evaluation.copy_at_distance(
    ...     1, 10, vocabulary_size=9, string_length=3, seed=4
    ... )
    >>> examples.token_ids
    array([[5, 8, 2, 0, 0, 0, 0, 1, 5, 8]], dtype=int32)
    >>> examples.targets[examples.is_answer]
    array([5, 8, 2], dtype=int32)
    """
    _check_positive(
        num_examples=num_examples, length=length, string_length=string_length
    )
    _check_at_least("vocabulary_size", vocabulary_size, 4)
    if length < 2 * string_length:
        raise ValueError(
            "`length` is expected to be at least twice `string_length`. "
            f"Received: length={length}, string_length={string_length}"
        )
    low, high = _check_range(
        "distances", distances, string_length, length - string_length + 1
    )
    draws = Draws(seed)
    distance = low + draws.integers(high - low, (num_examples, 1))
    num_tokens = vocabulary_size - 2
    string = 2 + draws.integers(num_tokens, (num_examples, string_length))

    sequences = np.full((num_examples, length + 1), _FILLER)
    sequences[:, :string_length] = string
    sources = np.arange(string_length)[None]
    questions = distance + sources  # [N, Q]
    _put(sequences, distance, _MARKER)
    _put(sequences, questions + 1, string)
    return from_sequences(sequences, questions, sources, 1 / num_tokens)


def induction(num_examples, length, *, vocabulary_size, distances=None, seed):
    """A token comes for the second time: what followed the first?

    All other tokens are drawn independently from the rest of the vocabulary,
    so nothing but its return marks the token. It returns at the end.

    Args:
        num_examples: int `N`.
        length: int `n`: tokens of a sequence.
        vocabulary_size: int: tokens there are, 3 or more.
        distances: optional pair of ints `(low, high)`: the answer stands from
            `low` to `high - 1` tokens before the question. Default: all that
            fit, from 1 to `length - 2`.
        seed: int of at most 32 bits.

    Returns:
        `Examples` of one answer each.

    Raises:
        ValueError: if the distances do not fit into the length.

    Example:

    >>> from keras_sa import evaluation
    >>> examples = evaluation.induction(
    ...     1, 8, vocabulary_size=9, distances=(4, 5), seed=1
    ... )
    >>> examples.token_ids, examples.targets[examples.is_answer]
    (array([[1, 7, 8, 3, 6, 3, 4, 8]], dtype=int32), array([3], dtype=int32))

    Reference:
        In-context Learning and Induction Heads,
        https://arxiv.org/abs/2209.11895
    """
    _check_positive(num_examples=num_examples)
    _check_at_least("length", length, 3)
    _check_at_least("vocabulary_size", vocabulary_size, 3)
    low, high = _check_range("distances", distances, 1, length - 1)
    draws = Draws(seed)
    distance = low + draws.integers(high - low, (num_examples, 1))
    token = draws.integers(vocabulary_size, (num_examples, 1))
    other = draws.integers(vocabulary_size - 1, (num_examples, length + 1))

    sequences = (token + 1 + other) % vocabulary_size  # never the token itself
    questions = np.full((num_examples, 1), length - 1)
    sources = questions - distance
    _put(sequences, sources - 1, token)
    _put(sequences, questions, token)
    return from_sequences(
        sequences, questions, sources, 1 / (vocabulary_size - 1)
    )


def needle_in_text(
    num_examples,
    length,
    *,
    text,
    sentence,
    key_tokens,
    value_tokens,
    key_length=4,
    value_length=4,
    depths=(0.0, 1.0),
    seed,
):
    """One sentence, hidden in a text, is asked for at the end.

    The sentence says the value of a key. At the end it begins again, up to the
    value, which is asked for token by token. Texts are places of one long
    text; keys and values are drawn independently of it and of one another.

    Args:
        num_examples: int `N`.
        length: int `n`: tokens of a sequence, of all its parts together.
        text: the tokens of the text: ints `[t]`, or `bytes` for a model of
            bytes.
        sentence: three lists of ints, or `bytes`: what stands before the
            key, between key and value, and after the value. The first must
            not occur in the text.
        key_tokens: ints or `bytes`: what keys are drawn from.
        value_tokens: ints or `bytes`: what values are drawn from.
        key_length: int: tokens of a key.
        value_length: int: tokens of a value.
        depths: `(low, high)`: share of the text that stands before the
            sentence, from 0 to 1; drawn for each example.
        seed: int of at most 32 bits.

    Returns:
        `Examples` of `value_length` answers each.

    Raises:
        ValueError: if the parts do not fit into the length, the text is too
            short, or it holds the beginning of the sentence.

    Example:

    >>> from keras_sa import evaluation
    >>> examples = evaluation.needle_in_text(
    ...     1, 60, text=b"It was a dark and stormy night. " * 2,
    ...     sentence=(b" Code ", b" is ", b"."), key_tokens=b"ABCD",
    ...     value_tokens=b"0123456789", key_length=2, depths=(0.5, 0.5), seed=1,
    ... )
    >>> bytes(examples.token_ids[0].astype("uint8"))
    b'stormy night.  Code AD is 3484.It was a dark  Code AD is 348'

    Reference:
        RULER: What's the Real Context Size of Your Long-Context Language
        Models?, https://arxiv.org/abs/2404.06654
    """
    _check_positive(
        num_examples=num_examples,
        length=length,
        key_length=key_length,
        value_length=value_length,
    )
    text = _as_tokens("text", text)
    before, between, after = _check_sentence(sentence, text)
    key_tokens = _check_different("key_tokens", key_tokens)
    value_tokens = _check_different("value_tokens", value_tokens)
    low, high = _check_depths(depths)
    num_question = len(before) + key_length + len(between)
    num_sentence = num_question + value_length + len(after)
    num_text = length + 1 - num_sentence - num_question - value_length
    _check_num_text(num_text, length, len(text))

    draws = Draws(seed)
    shape = (num_examples, 1)
    start = draws.integers(len(text) - num_text + 1, shape)
    first, last = int(low * num_text), int(high * num_text)
    depth = first + draws.integers(last - first + 1, shape)
    keys = _choose(draws, key_tokens, (num_examples, key_length))
    values = _choose(draws, value_tokens, (num_examples, value_length))

    question = _concatenate(before, keys, between)
    needle = _concatenate(question, values, after)
    index = np.arange(num_text)
    sequences = np.empty((num_examples, length + 1), "int32")
    _put(
        sequences, index + num_sentence * (index >= depth), text[start + index]
    )
    _put(sequences, depth + np.arange(num_sentence), needle)
    sequences[:, num_text + num_sentence :] = _concatenate(question, values)
    step = np.arange(value_length)
    sources = depth + num_question + step
    questions = np.broadcast_to(length - value_length + step, sources.shape)
    return from_sequences(sequences, questions, sources, 1 / len(value_tokens))


def _as_tokens(name, tokens):
    """int32 `[t]`."""
    if isinstance(tokens, bytes):
        return np.frombuffer(tokens, "uint8").astype("int32")
    array = np.asarray(tokens)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"`{name}` is expected to be bytes or a list of integers. "
            f"Received: {name} of shape {array.shape} and type {array.dtype}"
        )
    return array.astype("int32")


def _check_sentence(sentence, text):
    if len(sentence) != 3:
        raise ValueError(
            "`sentence` is expected to have three parts: before the key, "
            "between key and value, after the value. "
            f"Received: sentence={sentence!r}"
        )
    parts = [_as_tokens("sentence", part) for part in sentence]
    if not len(parts[0]) or _occurs(parts[0], text):
        raise ValueError(
            "`sentence` is expected to begin with tokens that do not follow "
            "one another in the text: otherwise it would not be the only "
            f"answer. Received: sentence={sentence!r}"
        )
    return parts


def _occurs(part, text):
    if len(text) < len(part):
        return False
    views = np.lib.stride_tricks.sliding_window_view(text, len(part))
    return bool((views == part).all(axis=1).any())


def _check_different(name, tokens):
    tokens = _as_tokens(name, tokens)
    if not len(tokens) or len(np.unique(tokens)) != len(tokens):
        raise ValueError(
            f"`{name}` is expected to hold different tokens, one or more. "
            f"Received: {name}={tokens.tolist()}"
        )
    return tokens


def _check_depths(depths):
    if np.shape(depths) != (2,) or not 0 <= depths[0] <= depths[1] <= 1:
        raise ValueError(
            "`depths` is expected to be (low, high) with "
            f"0 <= low <= high <= 1. Received: depths={depths!r}"
        )
    return depths


def _check_num_text(num_text, length, text_length):
    if num_text < 1:
        raise ValueError(
            "`length` is expected to hold the sentence, the question and some "
            f"text: {length + 1 - num_text} tokens or more. "
            f"Received: length={length}"
        )
    if text_length < num_text:
        raise ValueError(
            f"`text` is expected to have at least {num_text} tokens, to fill "
            f"the length. Received: {text_length} tokens, length={length}"
        )


def _choose(draws, tokens, shape):
    return tokens[draws.integers(len(tokens), shape)]


def _concatenate(*parts):
    """Parts of `[N, t]` or `[t]`, which all examples share."""
    num_examples = max(len(p) for p in parts if p.ndim == 2)
    parts = [np.broadcast_to(p, (num_examples, p.shape[-1])) for p in parts]
    return np.concatenate(parts, axis=1)


def _put(sequences, positions, tokens):
    np.put_along_axis(sequences, positions, tokens, axis=1)


def _check_positive(**values):
    for name, value in values.items():
        _validation.check_positive_int(name, value)


def _check_at_least(name, value, least):
    _validation.check_positive_int(name, value)
    if value < least:
        raise ValueError(
            f"`{name}` is expected to be at least {least}. "
            f"Received: {name}={value}"
        )


def _check_range(name, given, least, limit):
    """The range that is given, or all of `least .. limit - 1`."""
    if given is None:
        return least, limit
    if np.shape(given) != (2,) or not least <= given[0] < given[1] <= limit:
        raise ValueError(
            f"`{name}` is expected to be (low, high) with "
            f"{least} <= low < high <= {limit}, at this length. "
            f"Received: {name}={given!r}"
        )
    return int(given[0]), int(given[1])
