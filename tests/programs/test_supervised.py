"""Supervised fine-tuning: the reported perplexity, refused settings, and runs that resume bit for bit."""

import json
import math
import subprocess
import sys
import time
from dataclasses import replace

import chex
import numpy as np
import pytest
from chat_models import save_chat_model
from run_states import read_checkpoint
from small_runs import SMALL, even_length, is_time

import rljax
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.models import Packed
from rljax.programs.supervised import (
    check_trained_tokens,
    describe_outcome,
    heldout_demonstrations,
    heldout_notes,
    lowest_perplexity,
    make_measure,
    read_end_metrics,
    select_demonstrated,
    with_dialogues,
)
from rljax.tracking.rows import read_metrics
from rljax.training.checkpoints.manifest import fault_of
from rljax.training.setup import make_setup

TINY = SMALL.replace(
    name="tiny",
    train_problems=40,
    heldout_problems=6,
    warm_start_steps=8,
    warm_start_batch=8,
    warm_start_eval_every=3,
    checkpoint_every=2,
    reward="none",
)


def read_rows(run):
    return [
        {name: value for name, value in json.loads(line).items() if not is_time(name)}
        for line in (run / "metrics.jsonl").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def sft_result(tmp_path_factory):
    return rljax.sft(TINY.replace(run=str(tmp_path_factory.mktemp("runs") / "done")))


def test_rows_without_perplexity_are_counted():
    setup = make_setup(TINY.replace(steps=0))
    assert heldout_notes(setup) == []
    prompts = setup.heldout.prompts
    problems = [Problem("1+1=", "2", demonstration) for demonstration in ("2", "2" * 1000, None, None)]
    heldout = replace(setup.heldout, prompts=replace(prompts, problems=tuple(problems), tokens=prompts.tokens[:4]))
    assert heldout_notes(setup._replace(heldout=heldout)) == [
        "Left out 1 held-out demonstration longer than the token limit.",
        "The perplexity excludes 2 held-out rows without a demonstration.",
    ]
    check_trained_tokens(setup)
    nothing = setup.demonstrations._replace(response_mask=np.zeros_like(setup.demonstrations.response_mask))
    with pytest.raises(InputError, match="in the training rows has the weight 0, so there is nothing to learn"):
        check_trained_tokens(setup._replace(demonstrations=nothing))


def test_perplexity_matches_a_token_by_token_computation(sft_result):
    """The reference scores the demonstrations one at a time, without padding."""
    config = TINY.replace(steps=0)
    setup = make_setup(config)
    total = count = 0.0
    for problem in setup.heldout.prompts.problems:
        prompt = setup.tokenizer.encode(problem.prompt)
        response = [*setup.tokenizer.encode(problem.demonstration), setup.tokenizer.eos_token_id]
        tokens = np.array([[*prompt, *response]], np.int32)
        positions = np.arange(tokens.shape[1], dtype=np.int32)[None]
        scored = positions[:, len(prompt) :]
        index_in_response = np.arange(len(response), dtype=np.int32)[None]
        packed = Packed(tokens, positions, np.ones_like(tokens), scored, index_in_response, None, None)
        logp = setup.policy.score(sft_result.params, packed, 1.0).logp
        total, count = total - float(np.asarray(logp, np.float64).sum()), count + len(response)
    found = make_measure(setup)(sft_result.params)
    assert found["heldout_loss"] == pytest.approx(total / count, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)
    assert sft_result.after == found


def test_sft_without_reward_measures_only_perplexity(sft_result):
    measured = [row["step"] for row in read_rows(sft_result.run) if "perplexity" in row]
    assert measured == [0, 3, 6, 8]
    assert sft_result.after["perplexity"] < sft_result.before["perplexity"]
    assert {row["phase"] for row in read_rows(sft_result.run)} == {"warm_start"}
    assert [row["step"] for row in read_rows(sft_result.run)] == list(range(9))


def test_sft_with_reward_measures_accuracy_at_the_same_steps(tmp_path):
    found = rljax.sft(TINY.replace(run=str(tmp_path / "run")), even_length)
    judged = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "eval"]
    assert len(judged) == 4
    assert found.after["accuracy"] == judged[-1]["accuracy"]
    assert found.before["accuracy"] == judged[0]["accuracy"]


def test_also_heldout_needs_a_reward(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    config = TINY.replace(also_heldout={"a": str(tmp_path / "a.jsonl")}, warm_start_steps=2, run=str(tmp_path / "run"))
    with pytest.raises(InputError, match=r"also_heldout=.* samples only for a reward; set --reward"):
        rljax.sft(config)
    found = read_rows(rljax.sft(config, reward=even_length).run)
    assert (
        [row["judged_on_a"] for row in found if "accuracy" in row] == [1.0] * sum("accuracy" in row for row in found) != []
    )


def test_sft_equals_the_warm_start_of_train(sft_result, tmp_path):
    trained = rljax.train(TINY.replace(run=str(tmp_path / "run"), steps=0), even_length)
    chex.assert_trees_all_equal(trained.params, sft_result.params)


def test_epochs_count_passes_over_the_rows(tmp_path):
    config = TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0)
    found = rljax.sft(config, epochs=2)
    assert read_metrics(found.run / "metrics.jsonl")[-1]["step"] == 10
    with pytest.raises(InputError, match="epochs is 0; it must be at least 1"):
        rljax.sft(config, epochs=0)


def test_all_turns_of_a_dialogue_are_trained_and_measured(tmp_path):
    def make_turns(number):
        texts = (f"{number}+1", str(number + 1), f"{number}+2", str(number + 2))
        return [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]

    data = tmp_path / "chats.jsonl"
    data.write_text("".join(json.dumps({"messages": make_turns(number)}) + "\n" for number in range(30, 80)))
    config = TINY.flat(
        dataset=str(data),
        model=str(save_chat_model(tmp_path / "model")),
        chat=True,
        reward="none",
        warm_start_steps=1,
        steps=0,
    ).replace(
        warm_start_batch=8, max_prompt_tokens=40, max_response_tokens=8, heldout_problems=6, run=str(tmp_path / "run")
    )
    setup = make_setup(config)
    last, every = setup.demonstrations, with_dialogues(setup).demonstrations
    np.testing.assert_array_equal(last.response_mask.sum(1), 3)  # two digits and the end of the turn
    np.testing.assert_array_equal(every.response_mask.sum(1), 6)
    np.testing.assert_array_equal(heldout_demonstrations(setup).response_mask.sum(1), 6)
    assert every.dropped == 0
    plain = make_setup(config.replace(chat=False))
    np.testing.assert_array_equal(heldout_demonstrations(plain).response_mask.sum(1), 3)
    sft_result = rljax.sft(config)
    measured = make_measure(setup)(sft_result.params)
    assert sft_result.after["heldout_loss"] == pytest.approx(measured["heldout_loss"], rel=1e-5)


def test_rl_continues_an_sft_run_with_a_reward(tmp_path):
    config = TINY.replace(run=str(tmp_path / "run"), reward="exact", prompts=4, group_size=2)
    rljax.sft(config)
    longer = rljax.train(config.replace(steps=1), resume=tmp_path / "run")
    assert [row["step"] for row in read_rows(longer.run) if row["phase"] == "rl"] == [1]


def test_runs_that_cannot_continue_are_refused(sft_result, tmp_path):
    with pytest.raises(InputError, match=r"run of `rljax sft` without a reward\. Start RL from its model"):
        rljax.train(TINY.replace(run=str(sft_result.run), steps=2), resume=sft_result.run)
    run = rljax.train(TINY.replace(run=str(tmp_path / "run"), steps=1, prompts=4, group_size=2), even_length).run
    with pytest.raises(InputError, match="run with 1 RL step; continue it with `rljax train --resume`"):
        rljax.sft(reward=even_length, resume=run)


def test_heldout_row_without_a_demonstration_is_not_measured():
    both = [Problem("a", "b", "c"), Problem("d", "e")]
    assert select_demonstrated(both) == both[:1]
    with pytest.raises(InputError, match="no held-out row has a demonstration"):
        select_demonstrated(both[1:])


def test_outcome_names_the_step_of_lowest_perplexity(tmp_path):
    file = tmp_path / "metrics.jsonl"
    values = {0: 9.0, 4: 3.0, 8: 3.5}
    file.write_text(
        "".join(
            json.dumps({"phase": "warm_start", "step": step, "perplexity": value}) + "\n" for step, value in values.items()
        )
    )
    assert lowest_perplexity(file) == (4, 3.0)
    before, after = ({"perplexity": value, "heldout_loss": math.log(value)} for value in (9.0, 3.5))
    assert "It was lowest after step 4 (3); the later steps overfit." in describe_outcome(before, after, (4, 3.0), 8)[1]
    assert len(describe_outcome(before, before, (0, 9.0), 8)) == 1
    worse = describe_outcome(after, before, (0, 3.5), 8)
    assert worse[1] == "It was lowest before the first step (3.5). Try a lower --learning-rate."


def test_metrics_before_training_are_unknown_if_their_rows_were_lost(tmp_path):
    rows = [{"phase": "warm_start", "step": step, "heldout_loss": 2.0 - step, "perplexity": 3.0} for step in (0, 1)]
    for kept, before in ((rows, 2.0), (rows[1:], math.nan)):
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
        found = read_end_metrics(tmp_path / "metrics.jsonl")
        assert found[0]["heldout_loss"] == pytest.approx(before, nan_ok=True)
        assert found[1]["heldout_loss"] == 1.0


SLOW = """
import sys, time
from rljax.cli import main
from rljax.programs import supervised

def make_slow_measure(setup):
    measure = make_measure(setup)
    return lambda params: time.sleep(1) or measure(params)

make_measure, supervised.make_measure = supervised.make_measure, make_slow_measure
sys.exit(main(sys.argv[1:]))
"""
"""`rljax` with held-out measurements that take a second each."""


def test_killed_run_resumes_exactly(sft_result, tmp_path):
    """The process is killed (SIGKILL) after some steps, and `rljax sft --resume` runs the remaining ones."""
    run, settings = tmp_path / "killed", tmp_path / "settings.json"
    settings.write_text((sft_result.run / "config.json").read_text())
    begin = ["sft", "--config", str(settings), "--run", str(run)]
    process = subprocess.Popen([sys.executable, "-c", SLOW, *begin], stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    while fault_of(run / "checkpoints" / "last" / "1") is not None:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert len(read_rows(run)) < len(read_rows(sft_result.run))
    again = [sys.executable, "-m", "rljax", "sft", "--resume", str(run)]
    subprocess.run(again, check=True, stdout=subprocess.DEVNULL)
    assert read_rows(run) == read_rows(sft_result.run)
    chex.assert_trees_all_equal(*(read_checkpoint(TINY.replace(steps=0), path).state for path in (run, sft_result.run)))
