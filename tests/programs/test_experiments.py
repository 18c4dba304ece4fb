"""An experiment is trained from the command line only if its CONFIG has everything that the run depends on."""

import pytest

from rljax.cli import main
from rljax.errors import InputError
from rljax.programs.base_settings import check_complete


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("constitution", "its code makes the problems and reward"),
        ("adaptation", "its code makes the problems"),
        ("reward_exploit", "its code makes the problems"),
        ("tasks_that_separate", "its code makes the problems"),
        ("federated", "its code makes the problems"),
        ("continual_memory", "its code makes the problems"),
    ],
)
def test_experiment_with_problems_or_reward_in_code_is_refused(name, missing):
    with pytest.raises(InputError, match=rf"{missing}; start it with `python .*{name}\.py`, or give --"):
        check_complete(name, ["steps"])
    check_complete(name, ["dataset", "reward"])


@pytest.mark.parametrize("name", ["arithmetic_dapo", "arithmetic_algorithms", "long_chain_vapo", "tuning"])
def test_complete_experiment_has_no_note(name):
    assert check_complete(name, []) is None


def test_experiment_with_several_arms_has_a_note():
    assert "calculator.py` starts all runs of the experiment" in str(check_complete("calculator", []))


@pytest.mark.parametrize("flag", ["--experiment", "--config"])
def test_file_with_a_reward_in_code_is_refused(tmp_path, capsys, flag):
    file = tmp_path / "mine.py"
    text = "import rljax\n\nCONFIG = rljax.TrainConfig.flat(steps=1)\n\n\ndef run():\n    rljax.train(CONFIG, reward=len)\n"
    file.write_text(text)
    assert main(["config", flag, str(file)]) == 0
    assert main(["train", flag, str(file)]) == 2
    assert "because its code makes the reward; start it with" in " ".join(capsys.readouterr().err.split())
