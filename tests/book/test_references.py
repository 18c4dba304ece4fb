"""The BibTeX file: it has an entry for every document that the library cites, and no others."""

import re
from pathlib import Path

import pytest

from rljax.book.equations import equations
from rljax.book.references import ENTRY, find_citations, references

PACKAGE = Path(__file__).resolve().parents[2] / "rljax"
FILES = sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.toml")])
TEXT = "\n".join(file.read_text(encoding="utf-8") for file in FILES)
IDS = sorted(set(re.findall(r"\b[12]\d[01]\d\.\d{5}\b", TEXT)))
WITHOUT_DOCUMENT = {
    "correction.two_sided_importance_weight",
    "masked.group_members",
    "masked.zero_outside",
    "ratio.clamp_log_ratio",
}
"""Equations that are conventions of this code, without a published source."""


def test_cited_arxiv_ids_match_the_entries():
    assert len(IDS) > 50
    eprints = [entry.fields["eprint"] for entry in references() if "eprint" in entry.fields]
    assert eprints == sorted(set(eprints))
    assert set(IDS) == set(eprints)


def test_entries_without_arxiv_id_are_cited():
    words = " ".join(TEXT.split())
    for entry in references():
        if "eprint" not in entry.fields:
            assert entry.fields["cited"] in words, entry.key


@pytest.mark.parametrize("entry", references(), ids=lambda entry: entry.key)
def test_entry_is_complete(entry):
    assert entry.fields["author"]
    assert entry.fields["title"]
    year = int(entry.fields["year"])
    assert 1950 < year < 2030
    if "eprint" in entry.fields:
        assert entry.fields["archiveprefix"] == "arXiv"
        assert entry.fields["url"] == f"https://arxiv.org/abs/{entry.fields['eprint']}"
        assert year == 2000 + int(entry.fields["eprint"][:2])
    else:
        assert "cited" in entry.fields
    assert entry.text.count("{") == entry.text.count("}")
    names = entry.fields["author"].split(" and ")
    assert all(", " in name or name == "others" or name.startswith("{") for name in names), "Last, First"
    assert re.search(rf"{year}\w+$", entry.key)


def test_file_contains_only_entries():
    source = (PACKAGE / "book" / "references.bib").read_text(encoding="utf-8")
    assert not ENTRY.sub("", source).strip()
    assert len({entry.key for entry in references()}) == len(references()) == source.count("\n@") + 1


@pytest.mark.parametrize("entry", equations(), ids=lambda entry: entry.name)
def test_every_published_source_has_bibtex(entry):
    published = not entry.source.startswith("unpublished: ") and entry.name not in WITHOUT_DOCUMENT
    assert bool(find_citations(entry.source)) == published or not published


def test_find_citations_by_id_and_by_title():
    assert [entry.key for entry in find_citations("PPO, arXiv:1707.06347, Eq. 7")] == ["schulman2017ppo"]
    assert [entry.key for entry in find_citations('Ionides, "Truncated\n   Importance Sampling" (2008)')] == [
        "ionides2008truncated"
    ]
    assert find_citations("Convention: masks select") == ()
