"""docs/extending.md, followed to the letter."""

import pathlib
import re
import types

import keras
import numpy as np
import pytest
from keras import ops

from keras_sa.ops.windowed import api

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs/extending.md"
SNIPPETS = re.findall(
    r"<!-- (\w+)(?:: (\S+))? -->\n```python\n(.*?)```",
    PAGE.read_text(),
    flags=re.DOTALL,
)


def run(section):
    """The names that the snippets of a section leave behind."""
    names = {"__name__": "extending"}
    for which, file, code in SNIPPETS:
        if which != section:
            continue
        compiled = compile(code, f"{PAGE.name}: {section}", "exec")
        if file:  # a module of its own
            module = types.ModuleType(file.removesuffix(".py"))
            exec(compiled, vars(module))
            names[module.__name__] = module
        else:
            exec(compiled, names)
    return types.SimpleNamespace(**names)


def test_every_snippet_belongs_to_a_section():
    assert PAGE.read_text().count("```python") == len(SNIPPETS)
    assert {which for which, *_ in SNIPPETS} == {
        "pattern",
        "implementation",
        "family",
    }


def test_a_pattern():
    names = run("pattern")
    count = names.pattern.keys_per_token(100, is_causal=True)
    mask = ops.convert_to_numpy(names.pattern.mask(100, is_causal=True))
    assert f"each key once: {count}" in PAGE.read_text()
    assert count == mask.sum() / 100
    hidden = ops.convert_to_numpy(names.scores)[0, 0] == 0
    np.testing.assert_array_equal(~hidden, mask)
    assert hidden[:, 50].sum() > 50
    assert names.hub.current_swap(names.again).patterns == {
        0: names.pattern,
        1: names.pattern,
    }
    assert names.tokens["token_ids"].shape == (1, 32)
    assert names.bound[0].pattern == names.pattern


def test_an_implementation(monkeypatch):
    table = dict(api.IMPLEMENTATIONS[keras.config.backend()])
    monkeypatch.setitem(api.IMPLEMENTATIONS, keras.config.backend(), table)
    names = run("implementation")
    assert table["masked"] is names.masked
    done = [
        case.name
        for case in names.testing.CASES
        if names.testing.objection(case, "masked") is None
    ]
    assert len(done) > 5


def test_a_family():
    names = run("family")
    assert names.output.shape == (1, 100, 16)
    wrong = names.MyFamily(
        "MyDecoder", attention="attention", mask_method="_make_mask"
    )
    # Untrained scores are tiny: a scale that shows.
    type(wrong).scale = lambda self, attention: 1e5
    names.hub.register_family(wrong)
    with pytest.raises(ValueError, match="does not understand"):
        names.hub.swap_attention(names.backbone, names.pattern, verify=True)
