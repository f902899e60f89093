"""Patterns from text, as a command line has them."""

import ast
import operator

from keras_sa.patterns.block_routed import BlockRouted
from keras_sa.patterns.combined import GatedSum
from keras_sa.patterns.combined import Union
from keras_sa.patterns.full import Full
from keras_sa.patterns.global_keys import GlobalKeys
from keras_sa.patterns.global_queries import GlobalQueries
from keras_sa.patterns.sliding_window import SlidingWindow
from keras_sa.patterns.stochastic import Stochastic

_CLASSES = {
    x.__name__: x
    for x in (
        BlockRouted,
        Full,
        GatedSum,
        GlobalKeys,
        GlobalQueries,
        SlidingWindow,
        Stochastic,
        Union,
    )
}
_OPERATORS = {ast.BitOr: operator.or_, ast.Add: operator.add}


def parse_pattern(text):
    """The pattern that an expression of Python says; nothing is evaluated.

    Args:
        text: what the `repr` of a pattern of `keras_sa.patterns` looks like:
            their names called with integers and strings, `|`, `+` and
            parentheses.

    Returns:
        A `Pattern`.

    Raises:
        ValueError: for anything else.

    Example:

    >>> from keras_sa.patterns import parse_pattern
    >>> parse_pattern("SlidingWindow(64) | GlobalKeys(first=4)")
    SlidingWindow(64) | GlobalKeys(first=4)
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        raise _error(text, "an expression") from None
    return _pattern(tree.body, text)


def _pattern(node, text):
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        combine = _OPERATORS[type(node.op)]
        return combine(_pattern(node.left, text), _pattern(node.right, text))
    name = node.func if isinstance(node, ast.Call) else node
    if not isinstance(name, ast.Name) or name.id not in _CLASSES:
        raise _error(text, f"one of {', '.join(_CLASSES)}", node)
    if name is node:
        raise _error(text, f"{name.id}(...) with its arguments", node)
    make = _CLASSES[name.id]
    read = _pattern if make in (Union, GatedSum) else _value
    positional = [read(x, text) for x in node.args]
    keywords = {x.arg: read(x.value, text) for x in node.keywords}
    try:
        return make(*positional, **keywords)
    except TypeError as error:
        raise _error(text, f"other arguments: {error}", node) from None


def _value(node, text):
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, str)):
        return node.value
    raise _error(text, "an integer or a string", node)


def _error(text, expected, node=None):
    found = "" if node is None else f" for {ast.unparse(node)!r}"
    return ValueError(
        "A pattern is expected as Python writes it, such as 'Stochastic(64) | "
        f"SlidingWindow(64)'; here {expected}{found}. Received: {text!r}"
    )
