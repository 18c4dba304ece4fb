"""The name and links of the Python package come from the project's metadata."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import rljax
from rljax import package_metadata

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


class Metadata:
    """Distribution metadata with two links."""

    def get_all(self, name):
        assert name == "Project-URL"
        return ["Repository, https://example.org/a, b", "Issues, https://example.org/c"]


def test_name_and_version_match_pyproject():
    assert package_metadata.NAME == PROJECT["name"] != "rljax"
    assert PROJECT["version"] == rljax.__version__
    assert PROJECT["name"].replace("-", "_") + "-*.whl" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_links_come_from_the_metadata(monkeypatch):
    monkeypatch.setattr(package_metadata, "metadata", lambda name: Metadata())
    assert package_metadata.links() == {"repository": "https://example.org/a, b", "issues": "https://example.org/c"}


def test_without_installed_metadata_there_are_no_links(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(package_metadata, "metadata", missing)
    assert package_metadata.links() == {}


def test_no_source_file_names_the_unrelated_rljax_package():
    wrong = ('version("rljax")', 'requires("rljax")', 'metadata("rljax")', "rljax[")
    request = re.compile(r"install '?rljax(?!-lm)")
    texts = {file: file.read_text(encoding="utf-8") for file in (ROOT / "rljax").rglob("*.py")}
    assert [(file, words) for file, text in texts.items() for words in wrong if words in text] == []
    assert [file for file, text in texts.items() if request.search(text)] == []


def test_the_changelog_has_dates_and_the_groups_of_keep_a_changelog():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert titles[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d{2}-\d{2}", title) for title in titles[1:])
    assert titles[1].split()[0] == PROJECT["version"] == rljax.__version__
    released = text.partition(f"## {titles[1]}")[2]
    groups = re.findall(r"^### (.*)$", released, re.MULTILINE)
    assert set(groups) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert len(groups) >= 4
