"""Patterns from text: what Python would make of it, and nothing else."""

import pytest

from keras_sa.patterns import BlockRouted
from keras_sa.patterns import Full
from keras_sa.patterns import GatedSum
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import GlobalQueries
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from keras_sa.patterns import Union
from keras_sa.patterns import parse_pattern


@pytest.mark.parametrize(
    "pattern",
    [
        Full(),
        SlidingWindow(64),
        SlidingWindow(64, dilation=16),
        Stochastic(8, neighborhood="block", permutation_per="head"),
        GlobalKeys(first=4),
        GlobalQueries(last=3),
        BlockRouted(64, 4) + SlidingWindow(2),
        Stochastic(8) | SlidingWindow(4) | GlobalKeys(1),
        (Stochastic(8) | GlobalKeys(1)) + (SlidingWindow(4) | GlobalKeys(1)),
        Union(Full()),
        GatedSum(SlidingWindow(4)),
    ],
    ids=repr,
)
def test_a_repr_is_read_again(pattern):
    assert parse_pattern(repr(pattern)) == pattern


@pytest.mark.parametrize(
    "text, pattern",
    [
        ("  SlidingWindow(window_size=3)\n", SlidingWindow(3)),
        ("Stochastic(3)|SlidingWindow(2)", Stochastic(3) | SlidingWindow(2)),
        ("Full() + (Full())", Full() + Full()),
        ("GlobalQueries(first = 2)", GlobalQueries(first=2)),
    ],
)
def test_other_spellings(text, pattern):
    assert parse_pattern(text) == pattern


@pytest.mark.parametrize(
    "text, cure",
    [
        ("", "an expression"),
        ("Stochastic(3", "an expression"),
        ("x = Full()", "an expression"),
        ("stochastic", "one of BlockRouted, Full"),
        ("ring(3)", r"one of .* for 'ring\(3\)'"),
        ("3", "one of .* for '3'"),
        ("Full", r"Full\(...\) with its arguments"),
        ("Full() & Full()", "one of"),
        ("Full() * 2", "one of"),
        ("Full().mask(3)", "one of"),
        ("__import__('os')", "one of"),
        ("patterns.Full()", "one of"),
        ("[Full()]", "one of"),
        ("Stochastic(2 + 2)", "an integer or a string for '2 \\+ 2'"),
        ("Stochastic(w)", "an integer or a string for 'w'"),
        ("Stochastic(*[3])", "an integer or a string"),
        ("Stochastic(**x)", "an integer or a string"),
        ("Stochastic(2.5)", "an integer or a string"),
        ("Stochastic()", "other arguments: .*window_size"),
        ("Stochastic(3, size=2)", "other arguments: .*size"),
        ("SlidingWindow(1, 2, 3)", "other arguments"),
    ],
)
def test_what_is_no_pattern(text, cure):
    match = f"such as 'Stochastic.*here .*{cure}.*Received: "
    with pytest.raises(ValueError, match=match):
        parse_pattern(text)


@pytest.mark.parametrize(
    "text, match",
    [
        ("SlidingWindow(0)", "`window_size` is expected.*Received"),
        ("SlidingWindow(True)", "`window_size` is expected.*Received"),
        ("Stochastic(3, 'ring')", "`neighborhood` is expected.*Received"),
        ("Full() | (Full() + Full())", "parentheses.*Received"),
    ],
)
def test_what_patterns_say_themselves(text, match):
    with pytest.raises(ValueError, match=match):
        parse_pattern(text)
