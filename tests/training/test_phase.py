"""The training loop: the order of its actions, skipped updates, stops, and what it saves if a step fails."""

import ast
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import optax
import pytest

from rljax.data.history import no_history
from rljax.errors import InputError
from rljax.training import phase as module
from rljax.training.checkpoints.checkpoint import Checkpoint
from rljax.training.interrupt import Interrupted
from rljax.training.phase import MAX_CONSECUTIVE_SKIPS, Phase, RunResources, StepOutcome, run_phase
from rljax.training.state import create

PACKAGE = Path(module.__file__).parents[1]


@pytest.fixture
def first():
    return Checkpoint(create({"weight": jnp.ones(2)}, optax.sgd(0.1), 0, with_reference=False), no_history(1))


@pytest.fixture
def calls():
    return []


@pytest.fixture
def run(calls, tmp_path):
    """A fake run that records the calls it receives."""
    notes = SimpleNamespace(
        update=lambda *arguments: None,
        **{
            name: lambda *arguments, name=name, **keywords: calls.append((name, *arguments))
            for name in ("warning", "phase")
        },
        finish=lambda lines: calls.append(("finish", *lines)),
        commands=lambda title, lines: calls.append(("commands", *lines)),
        activity=lambda *arguments: None,
    )
    saver = SimpleNamespace(
        save=lambda which, checkpoint, file_states: calls.append(("save", int(checkpoint.state.step))),
        wait=lambda: None,
        has_failed=False,
    )
    return RunResources(
        folder=SimpleNamespace(file_states=dict, has_progress=True),
        display=notes,
        trackers=SimpleNamespace(log=lambda phase, step, metrics: calls.append((phase, step))),
        stop=SimpleNamespace(requested=False),
        disk=SimpleNamespace(attempt=lambda what, work: work()),
        saver=saver,
        stopwatch=mock.MagicMock(),
        resume="rljax train --resume RUN",
    )


def advance(checkpoint, *, skipped=0.0):
    state = checkpoint.state._replace(step=checkpoint.state.step + 1)
    return StepOutcome(checkpoint._replace(state=state), {"loss": 1.0}, skipped)


def phase_of(step, **changes):
    settings = {"name": "rl", "steps": 4, "steps_done": lambda state: int(state.step), "make_step": lambda checkpoint: step}
    settings |= {"explain_stop": lambda count, outcome: f"gave up after {count}", "saves_after": lambda done: done == 2}
    return Phase(**settings | changes)


pytestmark = pytest.mark.usefixtures("without_type_checks")


def test_steps_are_logged_and_saved(run, calls, first):
    owned = [first]
    left = []
    run_phase(run, owned, phase_of(advance, leave=lambda checkpoint: left.append(int(checkpoint.state.step))))
    assert calls == [("phase", "rl", 4), ("rl", 1), ("rl", 2), ("save", 2), ("rl", 3), ("rl", 4)]
    assert [int(checkpoint.state.step) for checkpoint in owned] == left == [4]


def test_phase_without_steps_evaluates_saves_and_ends(run, calls, first):
    def enter(checkpoint):
        return checkpoint._replace(state=checkpoint.state._replace(phase=jnp.int32(2)))

    def evaluate(checkpoint):
        calls.append("evaluated")
        return checkpoint

    owned = [first]
    run_phase(
        run, owned, phase_of(None, steps=0, enter=enter, evaluate_start=evaluate, leave=lambda _: calls.append("left"))
    )
    assert calls == ["evaluated", ("save", 0)]
    assert int(owned[0].state.phase) == 2


def test_too_many_skipped_updates_end_the_run_with_a_save(run, calls, first):
    with pytest.raises(InputError, match=f"gave up after {MAX_CONSECUTIVE_SKIPS}"):
        run_phase(run, [first], phase_of(lambda checkpoint: advance(checkpoint, skipped=1.0), steps=99))
    assert calls[-2:] == [("rl", MAX_CONSECUTIVE_SKIPS), ("save", MAX_CONSECUTIVE_SKIPS)]


def test_stop_saves_but_reached_goal_does_not(run, calls, first):
    def step(checkpoint):
        run.stop.requested = int(checkpoint.state.step) == 2
        return advance(checkpoint)

    with pytest.raises(Interrupted):
        run_phase(run, [first], phase_of(step))
    assert calls[-3:] == [("save", 3), ("finish", mock.ANY), ("commands", "rljax train --resume RUN")]
    calls.clear()
    owned = [first]
    run_phase(
        run, owned, phase_of(step, evaluate=lambda outcome: (outcome.checkpoint, int(outcome.checkpoint.state.step) == 3))
    )
    assert calls[-1] == ("rl", 3), "no save: a resumed run repeats the last step"
    assert int(owned[0].state.step) == 3


def test_unbounded_phase_ends_when_a_step_returns_none(run, calls, first):
    """The run is saved when the phase ends; if it is stopped, it prints how to continue."""

    def step(checkpoint):
        return None if int(checkpoint.state.step) == 3 else advance(checkpoint)

    owned = [first]
    run_phase(run, owned, phase_of(step, steps=None, saves_after=lambda done: True))
    assert calls == [("rl", 1), ("save", 1), ("rl", 2), ("save", 2), ("rl", 3), ("save", 3)]
    run.stop.requested = True
    with pytest.raises(Interrupted):
        run_phase(run, owned, phase_of(step, steps=None))
    assert calls[-3:] == [("save", 3), ("finish", mock.ANY), ("commands", "rljax train --resume RUN")]


def test_failed_step_saves_earlier_steps(run, calls, first):
    def failing(error):
        def step(checkpoint):
            if int(checkpoint.state.step) == 3:
                raise error
            return advance(checkpoint)

        return step

    with pytest.raises(InputError, match=r"the judge is down. No step is lost. To continue: .* --resume RUN"):
        run_phase(run, [first], phase_of(failing(InputError("the judge is down."))))
    assert calls[-2:] == [("rl", 3), ("save", 3)]
    calls.clear()
    with pytest.raises(ZeroDivisionError):
        run_phase(run, [first], phase_of(failing(ZeroDivisionError())))
    assert calls[-2] == ("save", 3)
    assert "The run failed. No step is lost." in calls[-1][1]


def test_a_second_signal_saves_the_steps_before_the_interrupted_one(run, calls, first):
    def interrupted(checkpoint):
        if int(checkpoint.state.step) == 3:
            raise KeyboardInterrupt
        return advance(checkpoint)

    with pytest.raises(Interrupted):
        run_phase(run, [first], phase_of(interrupted))
    assert calls[-3:] == [
        ("save", 3),
        ("finish", "Stopped in the middle of a step. No step is lost."),
        ("commands", "rljax train --resume RUN"),
    ]


def test_a_failed_evaluation_is_repeated_first_on_resume(run, calls, first, monkeypatch):
    kept, down = [], True
    monkeypatch.setattr(run.saver, "save", lambda which, checkpoint, file_states: kept.append(checkpoint))

    def evaluate(outcome):
        if down and int(outcome.checkpoint.state.step) == 3:
            raise InputError("the judge is down.")
        calls.append(("evaluated", int(outcome.checkpoint.state.step)))
        return outcome.checkpoint, False

    with pytest.raises(InputError, match=r"No step is lost\. To continue"):
        run_phase(run, [first], phase_of(advance, evaluate=evaluate))
    assert kept[-1].notes.awaits_evaluation
    assert int(kept[-1].state.step) == 3
    down = False
    owned = [kept[-1]]
    run_phase(run, owned, phase_of(advance, evaluate=evaluate))
    assert [call for call in calls if call[0] == "evaluated"] == [("evaluated", step) for step in (1, 2, 3, 4)]
    assert not owned[0].notes.awaits_evaluation


def test_messages_for_unsaved_step_and_run_without_progress(run, calls, first):
    def fail(checkpoint):
        raise InputError("at once")

    run.folder.has_progress = False
    with pytest.raises(InputError, match=r"^at once$"):
        run_phase(run, [first], phase_of(fail))
    run.folder.has_progress = True

    def consume_state(checkpoint):
        if int(checkpoint.state.step) == 1:
            jax.tree.leaves(checkpoint.state.params)[0].delete()
            raise InputError("within the update")
        return advance(checkpoint)

    with pytest.raises(
        InputError, match=r"^within the update The last step is not saved and will be repeated\. To continue: "
    ):
        run_phase(run, [first], phase_of(consume_state))
    assert not [call for call in calls if call[0] == "save"]


def files_that_call(name):
    """Files of the package with a call of a function or method of this name."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        if any(name in (getattr(call, "attr", None), getattr(call, "id", None)) for call in calls):
            found.add(file.relative_to(PACKAGE).as_posix())
    return found


@pytest.mark.parametrize("name", ["count_consecutive_skips", "stop_if_asked", "Saver", "StopRequest"])
def test_guard_stop_check_and_saver_have_one_caller(name):
    assert files_that_call(name) == {"training/phase.py"}


def test_training_programs_run_phases_and_write_no_checkpoint():
    programs = {f"programs/{name}.py" for name in ("pair_training", "adaptation_run", "supervised")}
    assert files_that_call("run_phase") == {"programs/train.py", *programs}
    assert files_that_call("begin_save") == {"training/checkpoints/checkpoint.py", "training/checkpoints/saver.py"}
    assert files_that_call("prune") == {"training/checkpoints/saver.py"}
