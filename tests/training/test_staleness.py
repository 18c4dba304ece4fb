"""Asynchronous training gives the same metrics as a delayed sampler, also after resuming."""

import threading
import time

import jax
import pytest
from shared_run import rows
from small_runs import SEVERAL, STEPPED, even_length, is_time, stopping_after

import rljax
from rljax.errors import InputError
from rljax.options import staleness
from rljax.parallel import make_mesh
from rljax.training import loop
from rljax.training.interrupt import Interrupted

STEPS = 6
RUN = STEPPED.replace(algorithm_options={"beta": 0.05}, steps=STEPS, eval_every=3)
MORE = RUN.replace(**SEVERAL)


def untimed_metrics(folder):
    """All metrics of a run except its times."""
    return [{name: value for name, value in row.items() if not is_time(name)} for row in rows(folder)]


@pytest.fixture(scope="module")
def delayed(tmp_path_factory):
    """A function that returns the metrics of a run with a delayed sampler, and trains each such run once."""
    found = {}

    def trained(name, config, lag):
        if (name, lag) not in found:
            folder = tmp_path_factory.mktemp("delayed") / f"{name}-{lag}"
            rljax.train(config.replace(run=str(folder), sampler_delay=lag), reward=even_length)
            found[name, lag] = untimed_metrics(folder)
        return found[name, lag]

    return trained


@pytest.mark.parametrize(("name", "config", "lag"), [("plain", RUN, 1), ("plain", RUN, 3), ("more", MORE, 2)])
def test_metrics_match_a_delayed_sampler(delayed, tmp_path, name, config, lag):
    rljax.train(config.replace(run=str(tmp_path / "run"), staleness=lag), reward=even_length)
    found = untimed_metrics(tmp_path / "run")
    assert found == delayed(name, config, lag)
    assert [row["staleness"] for row in found if row["phase"] == "rl"][-1] >= lag


@pytest.mark.parametrize("stop", [1, 2, 4])
def test_resumed_run_resamples_waiting_rollouts(delayed, tmp_path, stop):
    config = MORE.replace(run=str(tmp_path / "run"), staleness=2)
    with pytest.raises(Interrupted):
        rljax.train(config, reward=stopping_after(stop))
    rljax.train(resume=tmp_path / "run", reward=even_length)
    assert untimed_metrics(tmp_path / "run") == delayed("more", MORE, 2)


def test_the_next_rollout_is_judged_while_the_learner_updates(tmp_path, monkeypatch):
    judged, threads, calls = threading.Semaphore(0), set(), []

    def reward(completions):
        calls.append(threading.current_thread())
        judged.release()
        return even_length(completions)

    def learn(functions, state, *rest):
        threads.add(threading.current_thread())
        is_last = int(state.step) == STEPS - 1
        assert is_last or judged.acquire(timeout=60), "the next rollout waits for the updates"
        return staleness_learn(functions, state, *rest)

    staleness_learn = staleness.learn
    monkeypatch.setattr(staleness, "learn", learn)
    rljax.train(RUN.replace(run=str(tmp_path / "run"), staleness=1, eval_every=0), reward=reward)
    assert set(calls) == {threading.main_thread()}
    assert threading.main_thread() not in threads
    assert not [thread for thread in threading.enumerate() if thread.name == "rljax-learning"]


def test_at_most_k_rollouts_wait(tmp_path, monkeypatch):
    """The learner is held up, so that the sampler gets as far ahead as it may."""
    steps_ahead, sampled = [], []

    def learn(functions, state, *rest):
        done = int(state.step)
        limit, deadline = min(done + 3, STEPS - 1), time.monotonic() + 60
        while (sampled[-1] if sampled else 0) < limit:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        steps_ahead.append(sampled[-1] - done)
        return staleness_learn(functions, state, *rest)

    def sample_rollout(setup, choose, state, *rest):
        waiting = staleness_sample(setup, choose, state, *rest)
        sampled.append(waiting.step)
        return waiting

    staleness_learn, staleness_sample = staleness.learn, staleness.sample_rollout
    monkeypatch.setattr(staleness, "learn", learn)
    monkeypatch.setattr(staleness, "sample_rollout", sample_rollout)
    rljax.train(RUN.replace(run=str(tmp_path / "run"), staleness=3, eval_every=0), reward=even_length)
    assert steps_ahead == [3, 3, 3, 2, 1, 0]
    assert sampled == [*range(STEPS)]


def test_failing_reward_loses_no_finished_step(tmp_path, monkeypatch):
    calls = []

    def reward(completions):
        calls.append(None)
        if len(calls) >= 4:
            raise RuntimeError("the judge is down")
        return even_length(completions)

    monkeypatch.setattr(loop, "WAITS", ())
    config = RUN.replace(run=str(tmp_path / "run"), staleness=1, eval_every=0, max_failure_share=0.0)
    with pytest.raises(InputError, match=r"the judge is down(.|\n)*No step is lost"):
        rljax.train(config, reward=reward)
    assert [row["step"] for row in rows(tmp_path / "run") if row["phase"] == "rl"] == [1, 2]


def test_an_update_that_fails_ends_the_run(tmp_path, monkeypatch):
    def learn(functions, state, *rest):
        raise FloatingPointError("no update")

    monkeypatch.setattr(staleness, "learn", learn)
    with pytest.raises(FloatingPointError, match="no update"):
        rljax.train(RUN.replace(run=str(tmp_path / "run"), staleness=2), reward=even_length)


def test_settings_that_need_a_single_thread_are_refused(tmp_path):
    with jax.default_matmul_precision("highest"), pytest.raises(InputError, match="--staleness learns in another thread"):
        rljax.train(RUN.replace(run=str(tmp_path / "run"), staleness=1), reward=even_length)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"staleness": 1, "sampler_delay": 1}, "leave one of them out"),
        ({"staleness": 0}, "staleness"),
        ({"staleness": 6, "steps": 6}, "staleness=6 with steps=6"),
        ({"staleness": 1, "remedy": "auto"}, "changes settings between steps"),
    ],
)
def test_invalid_settings_are_refused(tmp_path, settings, message):
    with pytest.raises(InputError, match=message):
        rljax.train(RUN.replace(run=str(tmp_path / "run"), **settings), reward=even_length)


@pytest.mark.parametrize(
    ("settings", "overlaps"),
    [
        ({}, True),
        ({"fsdp": 2}, False),
        ({"fsdp": 2, "engine_url": "http://127.0.0.1:1"}, True),
        ({"fsdp": 2, "engine_url": "http://127.0.0.1:1", "lora_rank": 2}, False),
        ({"fsdp": 2, "engine_url": "http://127.0.0.1:1", "reward": "exact,model:folder"}, False),
        ({"engine_url": "http://127.0.0.1:1", "lora_rank": 2}, True),
    ],
)
def test_only_one_thread_runs_programs_on_several_devices(settings, overlaps):
    config = RUN.replace(staleness=1, **settings)
    assert staleness.can_overlap(config, make_mesh(1, settings.get("fsdp", 1))) == overlaps


def test_threads_take_turns_on_several_devices(tmp_path):
    """Two threads might start programs with collectives in different orders on different devices."""
    config = RUN.replace(run=str(tmp_path / "run"), staleness=1, fsdp=2, eval_every=0, steps=3)
    rljax.train(config, reward=even_length)
    rljax.train(config.replace(run=str(tmp_path / "delayed"), staleness=None, sampler_delay=1), reward=even_length)
    assert untimed_metrics(tmp_path / "run") == untimed_metrics(tmp_path / "delayed")
