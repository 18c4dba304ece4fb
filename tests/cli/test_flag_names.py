"""Error messages of the command line name flags, not Python settings, and have no trace of the argument parser."""

import pytest

from rljax.cli import COMMANDS, main
from rljax.cli.flag_names import setting_names, write_flags

NAMES = setting_names(COMMANDS["train"][0])


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("group_size is 1; raise it", "--group-size is 1; raise it"),
        ("stop is the text 'a'", "--stop is the text 'a'"),
        (
            "remedy='controller' and kl_limit=0.1 exclude each other",
            "--remedy 'controller' and --kl-limit 0.1 exclude each other",
        ),
        ("leave engine_url out.", "leave --engine-url out."),
        ("no such reward is in run, steps or group", "no such reward is in run, steps or group"),
        ("`kl_limit=0.1`, 'kl_limit' and /tmp/kl_limit/x", "`kl_limit=0.1`, 'kl_limit' and /tmp/kl_limit/x"),
        ("write --column score=reward or --kl-limit 1", "write --column score=reward or --kl-limit 1"),
        ("mine.yaml:2: kl_limit=0.1 is too small", "mine.yaml:2: kl_limit=0.1 is too small"),
        ("the part keep=kl_limit,steps=3 cannot be used", "the part keep=kl_limit,steps=3 cannot be used"),
        ("rewards.kl_limit, kl_limit(1), a_kl_limit", "rewards.kl_limit, kl_limit(1), a_kl_limit"),
        ("cannot change steps: 9 -> 14 or rank: 1 -> 2", "cannot change --steps: 9 -> 14 or rank: 1 -> 2"),
        ("these may change: steps, quiet, kl_limit.", "these may change: --steps, --quiet, --kl-limit."),
        ("in files, steps, and group", "in files, steps, and group"),
    ],
)
def test_settings_become_flags(message, shown):
    assert write_flags(message, NAMES) == shown


def test_a_command_with_shorter_flags_writes_them():
    short = {"--warm-start-steps": "--steps"}
    message = "cannot change warm_start_steps: 9 -> 14; `rljax train --warm-start-steps 9`"
    assert write_flags(message, NAMES, short) == "cannot change --steps: 9 -> 14; `rljax train --warm-start-steps 9`"


def test_other_commands_have_their_own_names():
    names = setting_names(COMMANDS["eval"][0])
    assert "temperature" in names
    assert "kl_limit" not in names
    assert write_flags("the run has kl_limit=0.1", names) == "the run has kl_limit=0.1"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--checkpoint-every 0", "rljax: --checkpoint-every is 0; it must be at least 1.\n"),
        ("--learning-rate -1", "rljax: --learning-rate is -1.0; it must be positive.\n"),
        ("--pixel-noise 0.9 --task digits", "rljax: --pixel-noise is 0.9; it must be at least 0 and below 0.5,"),
    ],
)
def test_invalid_setting_is_one_sentence(flags, message, capsys):
    assert main(["train", *flags.split()]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_values_that_cannot_be_parsed_keep_the_parsers_message(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--steps", "many"])
    assert "Argument helptext" in capsys.readouterr().err
