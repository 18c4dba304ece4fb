"""`rljax preference`: from a file of pairs to a model that `rljax sample` opens, and what it refuses."""

import json

import pytest
from digit_pairs import even_pairs

from rljax.cli import main

SMALL = (
    *("--layers", "1", "--width", "16", "--heads", "2", "--kv-heads", "1", "--hidden", "16", "--tokenizer", "characters"),
    *("--batch", "4", "--steps", "2", "--max-tokens", "16", "--replicas", "1", "--quiet"),
)


@pytest.fixture
def pairs(tmp_path):
    file = tmp_path / "pairs.jsonl"
    rows = [{"prompt": p.prompt, "chosen": p.chosen, "rejected": p.rejected} for p in even_pairs(40, 3)]
    rows.append({"prompt": "1=", "chosen": "1" * 40, "rejected": "1"})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_preference_trains_a_model_that_other_commands_open(pairs, tmp_path, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(["preference", str(pairs), "--loss", "kto", *SMALL[:-1], "--output", str(first)]) == 0
    output = capsys.readouterr().out
    assert "kto from random weights" in output
    assert "2 updates of 4 pairs, 4 at a time on 1 device" in output
    assert "Left out 1 pair: prompt and response have more than 16 tokens" in output
    assert f"rljax sample {first} --prompt" in output
    assert {"config.json", "model.safetensors", "settings.json", "metrics.jsonl"} <= {file.name for file in first.iterdir()}
    assert main(["sample", str(first), "--prompt", "3=", "--max-response-tokens", "4"]) == 0
    assert capsys.readouterr().out.startswith("3=")
    further = ["--model", str(first), "--batch", "4", "--steps", "1", "--max-tokens", "16", "--replicas", "1", "--quiet"]
    options = ["--loss", "simpo", "--loss-options", "beta=2.5", "margin=0.5"]
    assert main(["preference", str(pairs), *options, *further, "--output", str(second)]) == 0
    assert json.loads((second / "settings.json").read_text())["loss_options"] == {"beta": 2.5, "margin": 0.5}
    evaluated = ["--dataset", str(tmp_path / "problems.jsonl"), "--max-response-tokens", "4"]
    (tmp_path / "problems.jsonl").write_text(json.dumps({"prompt": "3=", "answer": "2"}) + "\n")
    assert main(["eval", str(second), *evaluated]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--loss", "dop"), "The loss 'dop' is unknown"),
        (("--loss-options", "gamma=1"), "dpo has no option 'gamma'; it has beta"),
        (("--max-tokens", "3"), "in every pair, prompt and response have more than --max-tokens 3 tokens"),
        (("--model", "./nowhere"), "The model folder './nowhere' does not exist"),
        (("--chosen-column", "better"), "there is no column 'better'"),
    ],
)
def test_invalid_arguments_give_one_paragraph_and_exit_code_2(pairs, tmp_path, capsys, words, message):
    assert main(["preference", str(pairs), *SMALL, *words, "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not (tmp_path / "out").exists()


def test_an_empty_file_is_refused(tmp_path, capsys):
    (tmp_path / "none.jsonl").write_text("")
    assert main(["preference", str(tmp_path / "none.jsonl"), *SMALL, "--output", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("rljax: ")


def test_help_explains_shared_and_own_settings(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["preference", "--help"])
    assert stopped.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("Number of pairs per update", "simpo", "--loss-options", "the default suits DPO", "Folder to write"):
        assert text in shown, text
