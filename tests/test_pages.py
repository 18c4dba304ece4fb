"""The documentation pages: their links resolve, their Python runs, and their commands parse."""

import ast
import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

import jax
import pytest
from book_site import book

from lab.rows import rows_of
from rljax.algorithms import BY_NAME
from rljax.cli import COMMANDS, parse
from rljax.cli.tune import candidates_of
from rljax.models.families import FAMILIES
from rljax.programs.base_settings import load_config
from rljax.programs.tuning import plan_of, rungs_of
from rljax.tracking.glossary import GLOSSARY

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
PAGES = [ROOT / "README.md", *sorted((ROOT / ".github").glob("*.md")), *sorted(NOTEBOOKS.glob("*.md"))]
TRAINS = re.compile(
    r"^(?:\w+ = )?(?:rljax\.(?:train|evaluate)|AutoTokenizer\.from_pretrained)\(.*", re.MULTILINE | re.DOTALL
)
"""Blocks are not run from the first line that trains or loads a model: it takes minutes or needs a missing folder."""
REFUSED = ("--num-generations",)
"""Flags that a page shows as examples of refused flags."""
PLACEHOLDERS = ("--config", "--resume")
"""Options whose value is one of the reader's own files."""


def python_blocks(page):
    """The Python code blocks of a page, in order."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def commands(page):
    """Yield the words of every rljax command on a page, in a block or in a sentence."""
    text = re.sub(r"```python\n.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL).replace("\\\n", " ")
    lines = re.findall(r"^ {4}(?:\.venv/bin/)?(rljax .*)$", text, re.MULTILINE)
    in_sentences = re.findall(r"`(rljax [^`]+)`", text.replace("\n", " "))
    lines += [line for line in in_sentences if line.split()[1] in COMMANDS and not set(REFUSED) & set(line.split())]
    for line in lines:
        words = shlex.split(re.split(r"\s#|\s>|\s&&|\sadds", line)[0].replace("...", ""))
        yield words[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_existing_files(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=lambda page: page.name)
def test_python_blocks_run_up_to_their_training_calls(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__page__"}
    blocks = python_blocks(page)
    uses_optax = any("import optax" in block for block in blocks)  # it needs JAX's default promotion
    with jax.numpy_dtype_promotion("standard" if uses_optax else "strict"):
        for block in blocks:
            ast.parse(block)
            exec(compile(TRAINS.sub("", block), str(page), "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if [*commands(page)]], ids=lambda page: page.name)
def test_commands_parse(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("\n".join(TRAINS.sub("", block) for block in python_blocks(page)), encoding="utf-8")
    for words in commands(page):
        if words[0].startswith("-"):
            assert words in (["--version"], ["--help"])
            continue
        if len(words) == 1 or {"--help", "--help-all", "[FLAGS]"} & set(words):
            assert words[0] in COMMANDS
            continue
        rest = list(words)
        for option in PLACEHOLDERS:
            if option in rest:
                at = rest.index(option)
                del rest[at : at + 2]
        try:
            parse(rest)
        except SystemExit:
            pytest.fail(f"{page.name}: {' '.join(words)}")


def test_every_page_and_notebook_is_in_a_toctree():
    pages = book.algorithm_pages() | book.ops_pages()
    texts = [page.read_text(encoding="utf-8") for page in NOTEBOOKS.glob("*.md")] + list(pages.values())
    toctrees = re.findall(r"```\{toctree\}\n(.*?)```", "\n".join(texts), re.DOTALL)
    listed = {line.rpartition("/")[2] for block in toctrees for line in block.split("\n")}
    assert {file.stem for file in NOTEBOOKS.iterdir() if file.suffix in (".ipynb", ".md")} - {"index"} <= listed


def test_the_readme_links_the_site_and_has_at_most_900_words():
    readme = PAGES[0].read_text(encoding="utf-8")
    assert "(notebooks/index.md)" in readme
    assert len(readme.split()) <= 900


def test_the_page_on_own_parts_lists_every_package_and_subfolder_of_training():
    page = (NOTEBOOKS / "own_parts.md").read_text(encoding="utf-8")
    packages = {file.parent.name for file in (ROOT / "rljax").glob("*/__init__.py")}
    assert set(re.findall(r"^ {4}rljax/(\w+)/ ", page, re.MULTILINE)) == packages
    training = page[page.index("    rljax/training/") : page.index("    rljax/options/")]
    subfolders = {file.parent.name for file in (ROOT / "rljax" / "training").glob("*/__init__.py")}
    assert set(re.findall(r"[ (](\w+)/", training)) - {"rljax"} == subfolders


def test_the_readme_lists_all_algorithms_and_model_families():
    readme = PAGES[0].read_text(encoding="utf-8")
    count, listed = re.search(r"^(\d+) algorithms: (.*?)\.$", readme, re.MULTILINE | re.DOTALL).groups()
    assert re.findall(r"`(\w+)`", listed) == sorted(BY_NAME)
    assert int(count) == len(BY_NAME)
    families = re.search(r"^Model families: (.*?)\.", readme, re.MULTILINE)[1].split(", ")
    assert sorted(families) == sorted(record.class_prefix for record in FAMILIES.values())
    for page in ("faq.md", "your_model_and_data.md"):  # both link to the table that is generated from the families
        assert "(#page-models)" in (NOTEBOOKS / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [PAGES[0], NOTEBOOKS / "faq.md"], ids=lambda page: page.name)
def test_the_speed_on_a_page_matches_the_committed_benchmark(page):
    cases = json.loads((ROOT / "experiments" / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    text = page.read_text(encoding="utf-8")
    shown = re.search(
        r"(\d\.\d) (?:x|times)(?: as fast as)? TRL's and (\d\.\d) (?:x|times)(?: as fast as)?\s+Tunix's", text
    ).groups()
    assert shown == tuple(f"{cases[f'rl_step/{peer}']['ratio']:.1f}" for peer in ("trl", "tunix"))


def load_experiment(name):
    """Import an experiment and read its committed JSON file; return both."""
    file = ROOT / "experiments" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    experiment = importlib.util.module_from_spec(spec)
    sys.modules[name] = experiment  # its dataclass looks the module up there
    spec.loader.exec_module(experiment)
    return experiment, json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))


WITH_ROWS = (
    "adaptation",
    "calculator",
    "constitution",
    "continual_anchor",
    "continual_memory",
    "federated",
    "images_of_digits",
    "reward_exploit",
)
"""Experiments whose committed results are rows, from five seeds."""


@pytest.mark.parametrize("name", [*WITH_ROWS, "tuning"])
def test_the_page_of_an_experiment_matches_its_committed_rows(name):
    experiment, found = load_experiment(name)
    rows = found if isinstance(found, list) else found["trials"]
    assert len({row["seed"] for row in rows}) == 5
    assert (ROOT / "experiments" / f"{name}.md").read_text(encoding="utf-8").endswith(experiment.report(found))


@pytest.mark.parametrize("name", WITH_ROWS)
def test_committed_rows_are_read_only_under_their_settings(name, monkeypatch):
    experiment, rows = load_experiment(name)
    file = ROOT / "experiments" / f"{name}.json"
    assert rows_of(file, experiment.hash_settings) == rows
    monkeypatch.setattr(experiment, "CONFIG", experiment.CONFIG.replace(learning_rate=1e-5))
    assert rows_of(file, experiment.hash_settings) == []


def test_the_committed_tuning_run_matches_its_command():
    experiment, found = load_experiment("tuning")
    words = experiment.words_of(experiment.Arguments())
    command = parse(words)
    configs = {name: parse(["train", *flags]).config for name, flags in candidates_of(command, words[1:]).items()}
    plan = plan_of(configs, range(command.seeds), rungs_of(len(configs), command.config.optimization.steps, command.cut))
    assert {name: found[name] for name in plan} == plan


@pytest.mark.parametrize("name", ["calculator", "images_of_digits"])
def test_an_experiment_with_a_picture_has_rows_of_all_arms(name):
    experiment, rows = load_experiment(name)
    assert {row["arm"] for row in rows} == set(experiment.ARMS)
    assert (ROOT / "experiments" / f"{name}.png").stat().st_size > 10_000


def test_the_tasks_page_shows_the_experiments_accuracies_before_rl():
    """The accuracy is the last cell of a task's row, rounded to two decimals."""
    cells = [line.split("|") for line in (NOTEBOOKS / "tasks.md").read_text(encoding="utf-8").splitlines()]
    shown = {row[1].strip().strip("`"): row[-2].strip() for row in cells if len(row) == 7}
    measured = (ROOT / "experiments" / "tasks_that_separate.md").read_text(encoding="utf-8")
    found = re.findall(r"^## (\w+)$.*?accuracy before RL ([\d.]+)", measured, re.MULTILINE | re.DOTALL)
    assert len(found) == 10
    # the page has no row for `stale`, which is `sums` with other settings
    expected = {task: f"{float(accuracy):.2f}" for task, accuracy in found if task != "stale"}
    assert {task: shown[task] for task in expected} == expected


def test_metrics_on_the_curves_page_are_in_the_glossary():
    page = (NOTEBOOKS / "curves.md").read_text(encoding="utf-8")
    names = re.findall(r"^- `(\w+)`", page, re.MULTILINE)
    assert len(names) > 4
    assert {entry.name for entry in GLOSSARY} >= set(names)


def test_every_message_on_the_troubleshooting_page_is_in_the_code():
    program = " ".join(
        node.value
        for file in (ROOT / "rljax").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    page = (NOTEBOOKS / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = [
        words
        for line in re.findall(r"^- \*\*(?:\.\.\. )?(`.*)\*\*\\$", page, re.MULTILINE)
        for words in re.findall(r"`([^`]+)`", line)
    ]
    assert len(quoted) > 6
    assert [words for words in quoted if words not in program and words not in ("RESOURCE_EXHAUSTED", "rljax")] == []


def test_the_readme_quotes_the_committed_runs_and_their_accuracy_rises():
    runs = json.loads((ROOT / "experiments" / "arithmetic_dapo.json").read_text(encoding="utf-8"))
    steps, readme = load_config("arithmetic_dapo").optimization.steps, PAGES[0].read_text(encoding="utf-8")
    ends = [f"{100 * run['accuracy'][str(steps)]:.1f}" for run in runs]
    assert f"from about 2 % to {', '.join(ends[:-1])} and {ends[-1]} % (seeds 0 to 4;" in readme
    for run in runs:
        curve = {int(step): accuracy for step, accuracy in run["accuracy"].items()}
        assert round(curve[0], 2) in (0.02, 0.03)
        first_half = [curve[step] for step in sorted(curve) if step <= steps / 2]
        assert first_half == sorted(first_half)
        assert curve[steps] > first_half[-1] > max(first_half[:-1])
    assert [run["seed"] for run in runs] == [0, 1, 2, 3, 4]
    mean = sum(run["accuracy"][str(steps)] for run in runs) / len(runs)
    assert mean >= 0.9
    assert f"mean {mean:.1%}".replace("%", " %") in readme
    assert f"to {mean:.0%} (mean of five seeds)".replace("%", " %") in (NOTEBOOKS / "index.md").read_text(encoding="utf-8")
