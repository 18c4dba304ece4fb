"""`rljax pretrain` trains on text files, measures held-out perplexity, and resumes bit for bit."""

import signal

import chex
import numpy as np
import pytest
from run_states import read_checkpoint
from small_cli import printed, refused
from small_runs import is_time

import rljax
from rljax.cli import main, parse
from rljax.data.plain_text import text_dataset
from rljax.errors import InputError
from rljax.programs import supervised
from rljax.tracking.rows import read_metrics
from rljax.tracking.run_folder import RunFolder
from rljax.training.config import TrainConfig
from rljax.training.interrupt import INTERRUPTED
from rljax.training.parts.custom_parts import read_saved_settings

SIZES = ("--layers", "1", "--width", "16", "--heads", "2", "--kv-heads", "1", "--hidden", "32", "--replicas", "1")
FLAGS = (
    *SIZES,
    *("--block", "24", "--batch", "8", "--steps", "80", "--eval-every", "40", "--learning-rate", "2e-2", "--quiet"),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two texts over the same alphabet, in which each letter determines the next."""
    folder = tmp_path_factory.mktemp("texts")
    for name, count in (("one.txt", 90), ("two words.txt", 40)):
        (folder / name).write_text("abcdefghij klm\n" * count)
    return [str(file) for file in sorted(folder.iterdir())]


@pytest.fixture(scope="module")
def finished_run(files, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "done"
    assert main(["pretrain", *files, *FLAGS, "--run", str(run)]) == 0
    return run


def rows_without_times(run):
    return [
        {name: value for name, value in row.items() if not is_time(name)} for row in read_metrics(run / "metrics.jsonl")
    ]


def test_pretrain_learns_a_text_and_other_commands_open_the_run(finished_run, files, tmp_path, capsys):
    measured = {row["step"]: row["perplexity"] for row in rows_without_times(finished_run) if "perplexity" in row}
    assert list(measured) == [0, 40, 80]
    assert measured[0] > 200  # close to 259, the size of the vocabulary
    assert measured[80] < 8  # a model that knows only the frequencies of the 15 characters has 15
    assert all(np.isfinite(row["loss"]) for row in rows_without_times(finished_run)[1:])
    assert printed(capsys, "sample", str(finished_run), "--prompt", "abc", "--max-response-tokens", "4")
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f'{{"prompt": "{n}=", "completion": "{n}"}}\n' for n in range(30)))
    more = ("--max-response-tokens", "4", "--steps", "1", "--batch", "4", "--replicas", "1", "--quiet")
    printed(
        capsys, "sft", "--model", str(finished_run / "last"), "--dataset", str(data), *more, "--run", str(tmp_path / "sft")
    )
    shown = printed(capsys, "runs", str(finished_run.parent))
    assert "80/80" in shown


def test_a_resumed_run_ends_with_the_same_bits(finished_run, files, tmp_path, monkeypatch, capsys):
    """Ctrl-C arrives during the second measurement; `--resume` needs no file names."""
    run, make, calls = tmp_path / "run", supervised.make_measure, []

    def make_interrupting_measure(setup):
        measure = make(setup)

        def interrupt_second_measure(params):
            calls.append(1)
            if len(calls) == 2:
                signal.raise_signal(signal.SIGINT)
            return measure(params)

        return interrupt_second_measure

    monkeypatch.setattr(supervised, "make_measure", make_interrupting_measure)
    assert main(["pretrain", *files, *FLAGS, "--run", str(run)]) == INTERRUPTED
    assert f"rljax pretrain --resume {run}" in capsys.readouterr().out
    assert len(rows_without_times(run)) < len(rows_without_times(finished_run))
    monkeypatch.undo()
    assert main(["pretrain", "--resume", str(run)]) == 0
    assert rows_without_times(run) == rows_without_times(finished_run)
    config, _ = read_saved_settings(RunFolder.open(finished_run).config)
    chex.assert_trees_all_equal(*(read_checkpoint(config, path).state for path in (run, finished_run)))


def test_invalid_arguments_give_one_paragraph_and_exit_code_2(files, tmp_path, capsys):
    refused(capsys, "name at least one text file", "pretrain")
    refused(capsys, "write the files first", "pretrain", "--steps", "3", files[0])
    refused(capsys, "--dataset cannot be used", "pretrain", files[0], "--dataset", "rows.jsonl")
    refused(capsys, "does not exist", "pretrain", str(tmp_path / "absent.txt"), "--run", str(tmp_path / "run"))
    refused(capsys, "learn it with `rljax pretrain FILES`", "train", "--dataset", text_dataset(files))
    with pytest.raises(InputError, match="set warm_start_steps, and leave epochs out"):
        rljax.sft(TrainConfig.flat(dataset=text_dataset(files), warm_start_steps=3), epochs=2)


def test_help_shows_the_commands_own_flags_and_they_parse(capsys):
    shown = printed(capsys, "pretrain", "--help")
    flags = {word for word in shown.split() if word.startswith("--") and "," not in word}
    assert {"--steps", "--batch", "--block", "--heldout-blocks", "--learning-rate"} <= flags
    assert "--epochs" not in shown
    assert max(map(len, shown.splitlines())) <= 84
    config = parse(["pretrain", "a.txt", "--block", "9", "--heldout-blocks=3"]).config
    assert (config.sampling.max_response_tokens, config.data.heldout_problems, config.warm_start.steps) == (9, 3, 500)
