"""Pages for people: their links lead somewhere, and their Python can be read."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "notebooks").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_can_be_read(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
        ast.parse(block)


def test_every_notebook_is_named_in_the_readme():
    readme = PAGES[0].read_text(encoding="utf-8")
    for file in (ROOT / "notebooks").iterdir():
        if file.suffix in (".ipynb", ".md"):
            assert file.name in readme, file.name
