"""Names of other libraries: every one of ours in the table exists, and the page and the table are equal."""

from pathlib import Path

import pytest

from rljax.algorithms import BY_NAME
from rljax.cli import COMMANDS, main
from rljax.cli.elsewhere import IN_COMMAND, SHORT, TABLE, as_markdown, foreign_names, ours_for, plain
from rljax.cli.flags import flags_of, known_flags
from rljax.cli.starting import Settings
from rljax.training.config import TrainConfig
from rljax.training.config.algorithm_options import option_names

PAGE = Path(__file__).resolve().parents[2] / "notebooks" / "coming_from.md"
FLAGS = known_flags(COMMANDS["train"][0], TrainConfig())


@pytest.mark.parametrize("ours", [*(row.ours for row in TABLE), *SHORT.values()])
def test_what_the_table_answers_can_be_typed(ours):
    flag, *rest = ours.split()
    assert flag in FLAGS
    for word in rest if flag == "--algorithm-options" else ():
        assert any(word.split("=")[0] in option_names(algorithm) for algorithm in BY_NAME)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.ours)
def test_every_name_of_another_library_is_answered(row):
    for _, name in foreign_names(row):
        assert ours_for(name).startswith(row.ours)
        assert ours_for(name.replace("_", "-")).startswith(row.ours)


def test_page_and_table_are_equal():
    assert as_markdown() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", [name for name, (record, _) in COMMANDS.items() if not issubclass(record, Settings)])
def test_every_flag_of_a_command_is_known_and_no_other(command, capsys):
    record = COMMANDS[command][0]
    with pytest.raises(SystemExit):
        main([command, "--help"])
    words = capsys.readouterr().out.replace(",", " ").replace("|", " ").split()
    printed = {word for word in words if word.startswith("--") and plain(word) == word}
    assert printed >= flags_of(record) - {"--help-all"}
    for name, ours in IN_COMMAND.get(command, {}).items():
        assert name == plain(name)
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
def test_a_flag_that_another_command_does_not_have_is_answered(line, answer, capsys):
    assert main(line.split()) == 2
    assert answer in capsys.readouterr().err
