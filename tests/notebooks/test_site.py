"""The generated pages: formulas keep every sign, docstrings become Markdown, and every equation and setting has a section."""

import doctest
import re
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

import pytest
from book_site import book, changes, claims, docstrings, drawings, families, formulas, trainer
from book_site.docstrings import escape_text, header, label, markdown, sections
from book_site.formulas import ACCENTS, GREEK, SIGNS, tex, tex_lines

from rljax.algorithms import BY_NAME
from rljax.book.claims import VERDICTS, claim_names
from rljax.book.claims_summary import SUMMARY
from rljax.book.equations import equations
from rljax.models.families import FAMILIES
from rljax.ops.gae import gae
from rljax.rewards import BY_NAME as REWARDS
from rljax.tracking.glossary import GLOSSARY
from rljax.training.config import TrainConfig

ROOT = Path(__file__).resolve().parents[2]
ENTRIES = {entry.name: entry for entry in equations()}
LAYOUT_SIGNS = str.maketrans("", "", " \n{}()_^`/&\\⎧⎨⎩|'√")
"""Brackets, script marks and spaces, which typeset mathematics replaces by position and size."""
PLAIN_DIGITS = str.maketrans({"²": "2", "₁": "1", "₂": "2", "½": "12"})


def strip_layout(text):
    """The letters, numbers and signs of a formula, in order."""
    decomposed = "".join(unicodedata.normalize("NFD", sign) if sign.isalpha() else sign for sign in text)
    return decomposed.translate(PLAIN_DIGITS).translate(LAYOUT_SIGNS)


def strip_tex(lines):
    """The letters, numbers and signs of a formula's TeX lines."""
    text = " ".join(lines)
    for accent, command in ACCENTS.items():
        text = re.sub(rf"\\{command}\{{(.)\}}", rf"\1{accent}", text)
    text = re.sub(r"\\(?:mathrm|texttt|text|frac|left|right|qquad|begin\{cases\}|end\{cases\}|sqrt)(?![a-z])", "", text)
    signs = {command: sign for sign, command in SIGNS.items() if re.fullmatch(r"\\[A-Za-z]+", command)}
    signs |= {f"\\{command}": sign for sign, command in GREEK.items()}
    text = re.sub(r"\\[A-Za-z]+", lambda found: signs.get(found[0], found[0][1:]), text)
    return strip_layout(re.sub(r"\\([, ])", "", text).replace("\\#", "#"))


@pytest.mark.parametrize("name", ENTRIES)
def test_formula_keeps_every_sign(name):
    # TeX adds commas only between two subscripts, as in V_old_t.
    commas = len(re.findall(r"[_^][A-Za-z]+_[a-z]", re.sub(r"`[^`]*`", "", ENTRIES[name].equation)))
    actual, expected = strip_tex(tex_lines(ENTRIES[name].equation)), strip_layout(ENTRIES[name].equation)
    if "⎨" in ENTRIES[name].equation:  # plain text has the name before the middle case, so the order differs
        actual, expected = "".join(sorted(actual)), "".join(sorted(expected))
    assert actual.replace(",", "") == expected.replace(",", "")
    assert actual.count(",") == expected.count(",") + commas


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        ("A_it", "A_{i t}"),
        ("(1/|o_i|) Σ_t x_t", r"\frac{1}{\left| o_{i} \right|} \sum _{t} x_{t}"),
        ("G/(G-1)", "G/(G-1)"),
        ("(1/(G-1))", r"\frac{1}{G-1}"),
        ("π(o_t | q, o_<t)", r"\pi (o_{t} \mid q, o_{\lt t})"),
        ("V_old_t", r"V_{\mathrm{old}, t}"),
        ("x^(1/2)", "x^{1/2}"),
        ("γ^{k-t}", r"\gamma ^{k-t}"),
        ("1 if x else 0", r"1\ \mathrm{if}\ x\ \mathrm{else}\ 0"),
        ("k of a group", r"k\ \mathrm{of}\ \mathrm{a}\ \mathrm{group}"),
        ("√(x y)", r"\sqrt{x y}"),
        ("`gae`", r"\texttt{gae}"),
        ("Â_i", r"\hat{A}_{i}"),
        ("j ≠ i", r"j \ne i"),
        ("j ∉ I", r"j \notin I"),
        ("a; V", r"a;\ V"),
    ],
)
def test_signs_become_tex(plain, expected):
    assert tex(plain) == expected


@pytest.mark.parametrize("module", [docstrings, formulas], ids=lambda module: module.__name__)
def test_docstring_examples_are_correct(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed


def test_unknown_sign_is_refused():
    with pytest.raises(ValueError, match="no TeX is known for '☃'"):
        tex("☃")
    with pytest.raises(ValueError, match="a bracket is not closed"):
        tex("x^(1")


def test_long_lines_are_split_into_formulas():
    assert tex_lines("a      b") == [r"a \qquad b"]
    assert len(tex_lines(f"{'a + ' * 20}a      b")) == 2
    assert tex_lines("     ⎧ 1   x\ny =  ⎨\n     ⎩ 2   z") == [r"y = \begin{cases} 1 & x \\ 2 & z \end{cases}"]


def test_prose_is_escaped_and_linked():
    assert escape_text("r_t < *next one* [`a|b`]") == r"r\_t \< *next one* \[`a|b`\]"
    assert escape_text("`gae`, arXiv:1506.02438", {"gae": "there"}) == (
        "[`gae`](#there), [arXiv:1506.02438](https://arxiv.org/abs/1506.02438)"
    )
    assert label("pass_at_k.x") == "book-pass-at-k-x"


def test_docstring_keeps_all_sections():
    found = sections("First.\n\nArgs:\n    a: one,\n        more.\n\nReturns:\n    b.\n\nDeviations: none.")
    assert found == {"": "First.\n\nDeviations: none.", "Args": "a: one,\n    more.", "Returns": "b."}
    text = markdown("First.\n\n::\n\n    a = b\n\nArgs:\n    a: one.\n\nExample:\n    >>> 1\n    1", {})
    assert text == "First.\n\n$$\na = b\n$$\n\n**Args**\n\n- `a`: one.\n\n**Example**\n\n```pycon\n>>> 1\n1\n```"


def test_function_is_shown_with_signature():
    assert header(gae).startswith("def gae(\n    rewards: Float[Array")
    assert header(gae).endswith(') -> Float[Array, "*rows T"]')


def test_every_equation_and_algorithm_has_a_section():
    text = "\n".join([*book.ops_pages().values(), *book.algorithm_pages().values()])
    assert [name for name in ENTRIES if text.count(f"({label(name)})=") != 1] == []
    links = set(re.findall(r"\(#(book-[a-z0-9-]+)\)", text))
    assert links <= set(map(label, ENTRIES))
    assert len(book.algorithm_pages()) == len(BY_NAME) + 1


def test_papers_page_links_equations():
    page = book.papers_page()
    assert "arXiv:2503.14476" in page
    assert "[`dapo`](#book-dapo)" in page


def test_settings_rewards_and_interface_are_complete():
    settings = trainer.settings_page()
    assert [name for name in TrainConfig().to_flat() if f"`--{name.replace('_', '-')}`" not in settings] == []
    pages, index = trainer.reward_pages(), trainer.rewards_page()
    assert [name for name in REWARDS if f"rewards/{name}" not in pages or f"rewards/{name}\n" not in index] == []
    interface = trainer.interface_page()
    assert "def train(" in interface
    assert "| `begin` |" in interface


def test_every_metric_of_a_run_is_explained():
    page = trainer.metrics_page()
    assert [entry.name for entry in GLOSSARY if f"### {escape_text(entry.name)}\n" not in page] == []


def test_commands_are_shown_with_their_help():
    page = trainer.commands_page()
    assert "## rljax eval" in page
    assert "--samples" in page


def test_claims_summary_has_ten_lines_about_existing_claims():
    names = [name for group_claims in SUMMARY.values() for name in group_claims]
    assert len(SUMMARY) == 10
    assert len(set(names)) == len(names)
    assert set(names) <= set(claim_names())
    verdicts = dict(zip(names, (VERDICTS[at % 4] for at in range(len(names))), strict=True))
    lines = claims.summary(verdicts).splitlines()
    assert len(lines) == 10
    for line, group_claims in zip(lines, SUMMARY.values(), strict=True):
        for name, words in group_claims.items():
            group = line[: line.index(escape_text(words))].rsplit("*", 2)[1]
            assert group == f"{verdicts[name]}:"
            assert f"(#{claims.claim_label(name)})" in line


def test_every_claim_has_a_linked_page_with_its_picture():
    """The index has at most 2,300 words, so that it can be read in ten minutes."""
    pages = claims.claims_pages()
    assert len(pages["claims"].partition("```{toctree}")[0].split()) <= 2300
    assert "{image} claims.png" in pages["claims"]
    assert set(pages) == {"claims", *(f"claims/{name}" for name in claim_names())}
    for name in claim_names():
        page = pages[f"claims/{name}"]
        assert page.startswith(f"({claims.claim_label(name)})=")
        assert f"/../experiments/claims/{name}.png" in page
        assert re.search("Deviations from the (paper|document)", page)
        assert f"(#{claims.claim_label(name)})" in pages["claims"]


def test_map_has_every_algorithm_and_drawings_use_theme_colors():
    names = [name for ideas in drawings.MAP.values() for group in ideas.values() for name in group]
    assert sorted(names) == sorted(BY_NAME)
    for drawing in (drawings.data_path(), drawings.algorithm_map(dict.fromkeys(BY_NAME, "#"))):
        root = ElementTree.fromstring(drawing)
        colors = {node.get(key) for node in root.iter() for key in ("fill", "stroke")} - {None}
        assert all(color.startswith("var(--color-") for color in colors)
        _, _, width, height = map(float, root.get("viewBox").split())
        for node in root.iter("{http://www.w3.org/2000/svg}text"):
            assert 0 <= float(node.get("x")) <= width
            assert 0 <= float(node.get("y")) <= height


def test_sidebar_has_at_most_25_entries():
    index = (ROOT / "notebooks" / "index.md").read_text(encoding="utf-8")
    entries = [line for block in re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL) for line in block.split("\n")]
    assert 15 <= sum(bool(re.fullmatch(r"[\w/]+", line)) for line in entries) <= 25


def test_every_model_family_has_a_complete_page():
    pages = families.family_pages()
    assert set(pages) == {f"models/{family}" for family in ("index", *FAMILIES)}
    assert all(f"| [`{family}`](#model-{family}) |" in pages["models/index"] for family in FAMILIES)
    names = [record.class_prefix for record in FAMILIES.values()]
    for family, name in zip(FAMILIES, names, strict=True):
        text = pages[f"models/{family}"]
        assert text.startswith(f"(model-{family})=\n# Model family: {name}\n")
        assert (f"| transformers | {name} | loaded |" in text) != ("tests/models/test_families.py" in text)
        assert not [other for other in names if other != name and f"| {other} |" in text]
        assert "| `rms_norm_eps` |" in text


def test_changelog_begins_with_the_package_version():
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)[1]
    first = re.search(r"^## (?!Unreleased)(\S+)", changes.changes_page(), re.MULTILINE)[1]
    assert first == version
    assert "## Unreleased\n\n## " not in changes.changes_page()


def test_every_equation_and_algorithm_shows_source():
    pages = book.ops_pages() | book.algorithm_pages()
    for entry in ENTRIES.values():
        folder = "algorithms" if entry.name in BY_NAME else "equations"
        page = entry.name if entry.name in BY_NAME else entry.module.removeprefix("rljax.ops.").replace(".", "-")
        section = pages[f"{folder}/{page}"].split(f"({label(entry.name)})=")[1]
        code = section.partition('<details class="source">')[2].partition("</details>")[0]
        assert f"{entry.module.replace('.', '/')}.py, line " in code
        assert re.search(rf"^def {entry.name.rpartition('.')[2]}\(", code, re.MULTILINE)
        assert "Args:" not in code
