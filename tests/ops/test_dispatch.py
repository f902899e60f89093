"""The choice of an implementation from a plain table."""

import types

import pytest

from keras_sa.ops import dispatch

willing = types.SimpleNamespace(why_not=lambda arguments: None)
unable = types.SimpleNamespace(
    why_not=lambda arguments: f"no {arguments} here."
)

# What runs only when it is named, as its third function says.
reserved = types.SimpleNamespace(
    why_not=lambda arguments: f"no {arguments} here." if arguments else None,
    by_default=lambda arguments: False,
)


def test_the_first_without_an_objection_runs():
    other = types.SimpleNamespace(why_not=lambda arguments: None)
    table = {"unable": unable, "willing": willing, "other": other}
    assert dispatch.choose(table, None, "x") is willing


def test_a_name_decides():
    table = {"first": willing, "second": types.SimpleNamespace(**vars(willing))}
    assert dispatch.choose(table, "second", "x") is table["second"]


def test_a_named_one_raises_its_own_words():
    table = {"unable": unable, "willing": willing}
    with pytest.raises(ValueError, match="(?s)no masks here.*Received"):
        dispatch.choose(table, "unable", "masks")


def test_unknown_names_list_the_known():
    with pytest.raises(ValueError, match="(?s)expected.*willing.*Received"):
        dispatch.choose({"willing": willing}, "other", "x")


def test_if_nothing_can_every_objection_is_told():
    with pytest.raises(ValueError, match="(?s)a: no x here.*b: no x here"):
        dispatch.choose({"a": unable, "b": unable}, None, "x")


def test_what_is_not_a_default_runs_when_named():
    table = {"reserved": reserved, "willing": willing}
    assert dispatch.choose(table, None, "") is willing
    assert dispatch.choose(table, "reserved", "") is reserved


def test_what_may_be_a_default_is_one_where_it_says_so():
    able = types.SimpleNamespace(
        why_not=lambda arguments: None,
        by_default=lambda arguments: arguments == "gpu",
    )
    table = {"able": able, "willing": willing}
    assert dispatch.choose(table, None, "gpu") is able
    assert dispatch.choose(table, None, "cpu") is willing


def test_an_objection_stands_also_for_what_is_not_a_default():
    with pytest.raises(ValueError, match="(?s)no x here.*Received"):
        dispatch.choose({"reserved": reserved}, "reserved", "x")
    with pytest.raises(ValueError, match="a: no x here.*b: no x here"):
        dispatch.choose({"a": reserved, "b": unable}, None, "x")


def test_if_only_the_unnamed_could_it_is_told():
    with pytest.raises(ValueError, match="only when it is named"):
        dispatch.choose({"reserved": reserved}, None, "")
