"""Setting names of other libraries: each exists there, its counterpart exists in rljax, and coming_from.md has the table."""

import inspect
import re
from pathlib import Path

import pytest

import rljax
from rljax.algorithms import BY_NAME
from rljax.algorithms.parts import find_part
from rljax.cli import COMMANDS, main
from rljax.cli.flags import flags_of, known_flags
from rljax.cli.other_libraries import (
    explain_missing,
    find_counterpart,
    foreign_names,
    normalize_name,
    peer_settings,
    tables,
)
from rljax.cli.run_settings import Settings
from rljax.training.config import TrainConfig
from rljax.training.config.algorithm import option_defaults

TABLES = tables()
PAGE = Path(__file__).resolve().parents[2] / "notebooks" / "coming_from.md"
FLAGS = known_flags(COMMANDS["train"][0], TrainConfig())


def read_refusal(capsys) -> str:
    """Return, on one line, the error message of a refused command."""
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("ours", [*(row.ours for row in TABLES.settings), *TABLES.short.values()])
def test_counterparts_can_be_typed(ours):
    call = re.fullmatch(r"rljax\.train\((\w+)=.*\)", ours)
    if call:
        assert call[1] in inspect.signature(rljax.train).parameters
        return
    command, *rest = ours.removeprefix("rljax ").split()
    flags = flags_of(COMMANDS[command][0]) if command in COMMANDS else FLAGS
    assert {word for word in (command, *rest) if word.startswith("--")} <= flags
    for word in rest if command == "--algorithm-options" else ():
        assert any(word.split("=")[0] in option_defaults(algorithm) for algorithm in BY_NAME)
    if command == "--with":
        find_part(*rest[0].split("="))
    if command == "--algorithm":
        assert not rest or rest[0] in BY_NAME


@pytest.mark.parametrize("row", TABLES.settings, ids=lambda row: row.ours)
def test_foreign_names_exist_and_have_counterparts(row):
    for library, name in foreign_names(row):
        assert normalize_name(name) in peer_settings()[library]
        assert find_counterpart(name) is not None
        assert find_counterpart(name.replace("_", "-")) == find_counterpart(name)


def test_every_foreign_setting_is_answered():
    """The answer is the rljax counterpart, or why there is none; a page named in the answer must exist."""
    for library, names in peer_settings().items():
        for name in names:
            answer = find_counterpart(name) or explain_missing(name)
            assert answer is not None, name
            page = re.search(r"see notebooks/(\w+\.md)\.$", answer)
            assert name in map(normalize_name, TABLES.short) or library in answer or page is None
            assert page is None or (PAGE.parent / page[1]).is_file()
    assert len(set().union(*peer_settings().values())) > 900
    assert explain_missing("no-such-setting") is None


@pytest.mark.parametrize(
    ("flag", "answer"),
    [
        ("--vllm-mode", "TRL has it; rljax has no such setting: the built-in engine shares the mesh"),
        ("--use-vllm", "use --engine-server vllm"),
        ("--max-turns", "verifiers has it"),
        ("--num_rollouts", "use --group-size"),
        ("--done-right", "did you mean|`rljax train --help-all` lists all"),
    ],
)
def test_foreign_flags_are_answered(flag, answer, capsys):
    assert main(["train", flag, "2"]) == 2
    assert re.search(answer, read_refusal(capsys))


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("train --algorithm drgrpo", "did you mean 'dr_grpo'?"),
        ("train --algorithm GRPO", "did you mean 'grpo'?"),
        ("train --schedule cosin", "did you mean 'cosine'? Choose one of constant, linear, cosine, quarter_cosine"),
        ("train --dtype=bf16", "did you mean 'bfloat16'?"),
        ("train --reward mth", "did you mean 'math'?"),
        ("train --with advantage=rnk", "did you mean 'rank'?"),
        ("train --algorithm-options clip_hihg=1", "did you mean 'clip_high'?"),
        ("eval runs/a --perturb typo", "did you mean 'typos'?"),
        ("recommend --reward lernd", "did you mean 'learned'?"),
        ("preference pairs.jsonl --loss dop", "did you mean 'dpo'?"),
    ],
)
def test_wrong_value_suggests_the_nearest(line, answer, capsys):
    assert main(line.split()) == 2
    assert answer in read_refusal(capsys)


def as_markdown():
    """Write the table of settings as Markdown."""
    lines = ["| rljax | TRL | verl | Tunix | verifiers | difference |", "| --- | --- | --- | --- | --- | --- |"]
    for row in TABLES.settings:
        cells = [f"`{name}`" if name else "" for name in row[:5]]
        line = f"| {' | '.join([*cells, row.note])} |"
        while "|  |" in line:
            line = line.replace("|  |", "| |")
        lines.append(line)
    return "\n".join(lines)


def test_page_contains_the_table():
    assert as_markdown() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", [name for name, (record, _) in COMMANDS.items() if not issubclass(record, Settings)])
def test_help_lists_every_known_flag(command, capsys):
    record = COMMANDS[command][0]
    with pytest.raises(SystemExit):
        main([command, "--help"])
    words = capsys.readouterr().out.replace(",", " ").replace("|", " ").split()
    printed = {word for word in words if word.startswith("--") and normalize_name(word) == word}
    assert printed >= flags_of(record) - {"--help-all"}
    for name, ours in TABLES.by_command.get(command, {}).items():
        assert name == normalize_name(name)
        assert f"--{name}" not in flags_of(record)
        assert not ours.startswith("--") or ours.split()[0] in flags_of(record)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("eval runs/a --max_new_tokens 4", "use --max-response-tokens."),
        ("preference pairs.jsonl --beta=0.1", "use --loss-options beta=0.1."),
        ("reward-model --dataset pairs.jsonl", "give the dataset without a flag."),
        ("runs --jsno", "did you mean '--json'?"),
    ],
)
def test_unknown_flag_is_answered(line, answer, capsys):
    assert main(line.split()) == 2
    assert answer in read_refusal(capsys)
