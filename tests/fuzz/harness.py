"""Run commands with bad input: each must exit with 0, or with 2 and a one-paragraph error, never with a traceback.

`train` is stopped before its first step. By then, the same code as in a real run has read and checked the settings, the data,
the tokenizer, and the model folder or run folder.
"""

import contextlib
import io
import os
import time
import traceback
from collections.abc import Collection, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from run_states import first_state
from small_runs import SMALL

from rljax.cli import main
from rljax.data.history import no_history
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.trackers import JsonlTracker
from rljax.training import loop
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.lifecycle.initial_state import first_params
from rljax.training.parts.model_folder import companions, save_model

CONFIG = SMALL.replace(train_problems=8, heldout_problems=2)
LIMIT = 10.0
"""Longest time that one command may take, in seconds."""


class Stopped(BaseException):
    """Raised when a command reaches its first step."""


@dataclass(frozen=True, repr=False)
class ValidInput:
    """Valid input, from which bad input is made by damaging it."""

    folder: Path
    """Folder that contains `run`, `model` and `rows.jsonl`."""
    state: Any
    """The state in the run's checkpoint."""


@dataclass(frozen=True)
class CommandResult:
    """How a command ended."""

    words: tuple[str, ...]
    code: int | None
    """Exit code; None if the command reached its first step."""
    text: str
    """What the command wrote to standard error."""
    seconds: float
    fault: str
    """What is wrong with the result; empty if nothing is wrong."""


def make_valid_input(folder: Path) -> ValidInput:
    """Create a run that stopped before its first step, the run's model, and a dataset."""
    folder.mkdir(parents=True, exist_ok=True)
    setup, state = first_state(CONFIG)
    run = RunFolder.create(folder / "run", CONFIG.replace(run=str(folder / "run")).to_json() | {"seams": []})
    tracker = JsonlTracker(run)
    for step in (1, 2):
        tracker.log("warm_start", step, {"loss": 1.5, "seconds": 0.1})
    tracker.close()
    for number in range(2):
        checkpoints.save(run.checkpoints / "last", checkpoints.Checkpoint(state, no_history(8)), run.file_states())
        del number
    save_model(folder / "model", setup.policy, state.params, companions(CONFIG, setup.tokenizer))
    rows = '{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", "answer": "3", "level": 2, "tags": ["a"]}\n'
    (folder / "rows.jsonl").write_text(rows * 4, encoding="utf-8")
    return ValidInput(folder, state)


@contextlib.contextmanager
def stop_before_computing(good: ValidInput) -> Generator[None]:
    """Make `train` stop before it initializes, loads or restores any array, and skip the code that needs devices."""

    def first_state_of(setup: Any, own_parts: Collection[str] = ()) -> Any:
        del own_parts
        if setup.config.model.path is None:
            return good.state
        first_params(setup)
        raise Stopped

    def stop(*arguments: object) -> Any:
        raise Stopped

    replacements = {"load_initial_state": first_state_of, "new_folder": stop, "introduce": stop}
    with contextlib.ExitStack() as stack:
        for name, function in replacements.items():
            stack.enter_context(mock.patch.object(loop, name, function))
        stack.enter_context(mock.patch.dict(os.environ, {"HF_HUB_OFFLINE": "1"}))
        yield


def run_command(words: list[str], *, limit: float = LIMIT) -> CommandResult:
    """Run a command in this process."""
    output, errors, fault, code, by_tyro, begun = io.StringIO(), io.StringIO(), "", None, False, time.monotonic()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = main(words)
    except Stopped:
        pass
    except SystemExit as ended:  # Tyro prints its error in a box and exits
        code, by_tyro = ended.code if isinstance(ended.code, int) else 1, True
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not error.args:
            raise
        lines = traceback.format_exception(error)
        fault = f"{lines[-1].strip()[:300]} at {lines[-2].strip()[:200]}"
    seconds, text = time.monotonic() - begun, errors.getvalue()
    if not fault and code not in (None, 0, 2):
        fault = f"exit code {code}: {text[-300:]}"
    if not fault and "Traceback" in text:
        fault = f"a traceback: {text[-300:]}"
    if not fault and code == 2 and not by_tyro and text.partition("rljax: ")[2].count("\n") != 1:
        fault = f"not one paragraph: {text[-300:]!r}"
    if not fault and seconds > limit:
        fault = f"{seconds:.1f} s"
    return CommandResult(tuple(words), code, text, seconds, fault)


def describe_result(found: CommandResult) -> str:
    """Describe the result of a command in one line."""
    words = " ".join(repr(word)[:80] for word in found.words)
    return f"{found.fault or 'good'} | {words}"
