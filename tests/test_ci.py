"""Continuous integration: one script on every supported Python, the build command of the site, and the issue forms."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
SITE = "sphinx-build -W --keep-going -j auto -b html notebooks build/site"


def test_the_workflow_calls_the_same_script_on_every_python():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["ci"]
    assert {"run": ".ci/run"} in job["steps"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    matches = [re.search(r"Python :: (3\.\d+)$", entry) for entry in project["classifiers"]]
    assert job["strategy"]["matrix"]["python"] == [match[1] for match in matches if match]


def test_the_site_is_built_by_one_command():
    assert SITE in SCRIPT.replace("-q ", "")
    for page in ("README.md", "notebooks/contributing.md", "notebooks/conf.py"):
        assert SITE in (ROOT / page).read_text(encoding="utf-8"), page


def test_every_issue_form_asks_for_the_version():
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        fields = {field["id"]: field for field in yaml.safe_load(form.read_text(encoding="utf-8"))["body"]}
        assert "rljax --version" in fields["version"]["attributes"]["description"]
        assert fields["version"]["validations"]["required"]
