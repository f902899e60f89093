"""What README.md says, works."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_there_are_snippets():
    assert len(SNIPPETS) == 3


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet_runs(snippet):
    exec(compile(snippet, "README.md", "exec"), {})


def test_ci_runs_the_test_command():
    command = re.findall(r"```bash\n(.*tests/run.py)\n```", README)
    assert len(command) == 1
    assert command[0] in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    for link in links:
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name}: {link}"
