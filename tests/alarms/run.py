"""Check in real runs that each alarm is raised by the problem that it is for, and that the default run raises none.

Each case is a small run with one built-in fault: a reward that a constant answer satisfies, one that rewards length, a critic that
cannot learn, a sampler that keeps the first weights, a learning rate that is far too high, a reward that always abstains. The case
passes if the expected alarm is raised. The default run passes if nothing is raised.

Command:

    python tests/alarms/run.py --out tests/alarms/result.json

`--only NAME ...` runs some of the cases, and keeps the other results of the file. `--default-run FOLDER` reads a finished run of
`rljax train` instead of training it.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import tyro

import rljax
from rljax import load_config
from rljax.errors import InputError
from rljax.models import Params
from rljax.rollout import Engine, Request, Response
from rljax.tracking.summary import open_run, rows_so_far, summarize
from rljax.training.config import TrainConfig
from rljax.training.setup import make_setup

SMALL = TrainConfig.flat(
    layers=1,
    width=32,
    heads=2,
    kv_heads=1,
    hidden=64,
    operands=(2, 3),
    max_prompt_tokens=8,
    max_response_tokens=16,
    prompts=8,
    group_size=8,
    minibatches=1,
    steps=60,
    algorithm="grpo",
    learning_rate=1e-2,
    train_problems=64,
    heldout_problems=16,
    eval_every=0,
    sample_every=0,
    quiet=True,
)
DEFAULT = "default"


def even(completions: list[str]) -> list[float]:
    """1 for a completion with an even number of characters; a random model writes both kinds."""
    return [float(len(completion) % 2 == 0) for completion in completions]


def sevens(completions: list[str]) -> list[float]:
    """A reward that can be hacked: the constant answer 7 is the best answer to every problem."""
    return [completion[:1].count("7") - 0.1 * len(completion.replace("7", "", 1)) for completion in completions]


def long(completions: list[str]) -> list[float]:
    """A reward that grows with the length."""
    return [len(completion) / 16 for completion in completions]


def silent(completions: list[str]) -> list[None]:
    """A reward that always abstains."""
    return [None] * len(completions)


class StaleEngine:
    """A sampler that never gets new weights."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.params: Params | None = None

    def generate(self, params: Params, requests: Sequence[Request]) -> list[Response]:
        """Sample with the first parameters."""
        if self.params is None:
            self.params = jax.tree.map(jnp.copy, params)  # an update reuses the buffers of the old parameters
        return self.engine.generate(self.params, requests)


class Case(NamedTuple):
    """A run with a fault, and the alarm that it has to raise."""

    alarm: str
    changes: dict[str, Any]
    reward: Callable
    stale: bool = False


CASES = {
    "entropy collapse": Case("entropy_collapse", {"learning_rate": 3e-2}, even),
    "reward hacking": Case("one_response", {"learning_rate": 2e-2}, sevens),
    "exploding length": Case("reward_follows_length", {"max_response_tokens": 64, "learning_rate": 3e-3}, long),
    "a critic that does not learn": Case(
        "critic_blind",
        {
            "algorithm": "ppo",
            "critic_learning_rate": 1e-12,
            "value_pretraining_steps": 0,
            "learning_rate": 1e-3,
            "steps": 30,
        },
        even,
    ),
    "a stale sampler": Case("sampler_gap", {"steps": 40}, even, stale=True),
    "a learning rate that is far too high": Case(
        "large_steps", {"learning_rate": 1.0, "minibatches": 4, "steps": 20}, even
    ),
    "a reward without an opinion": Case("reward_absent", {"steps": 8}, silent),
}


def train_case(case: Case, folder: Path) -> None:
    """Train the run of a case; if it stops by itself, it is judged by the alarms that it raised before."""
    config = SMALL.replace(run=str(folder), **case.changes)
    engine = StaleEngine(make_setup(config).train.engine) if case.stale else None
    try:
        rljax.train(config, reward=case.reward, engine=engine)
    except InputError as error:
        print(f"The run stopped: {error}", flush=True)


def result(folder: Path, expected: str | None) -> dict[str, Any]:
    """What a run raised, whether that was expected, and how long it took by its own rows."""
    summary = summarize(open_run(folder))
    raised = [{"alarm": e.alarm.name, "step": e.step, "seen": e.seen} for e in summary.events if e.what == "raised"]
    names = {row["alarm"] for row in raised}
    return {
        "expected": expected,
        "passed": expected in names if expected else not names,
        "raised": raised,
        "steps": summary.steps,
        "seconds": round(sum(row.get("seconds", 0.0) for row in rows_so_far(open_run(folder)))),
    }


@dataclass
class Arguments:
    """Train the runs, and write the alarms that they raised."""

    out: Path = Path("alarms.json")
    """File of the result."""
    only: tuple[str, ...] = ()
    """Names of the cases to run; by default all cases and the default run."""
    default_run: Path | None = None
    """Folder of a default run that already exists."""


def main(arguments: Arguments) -> int:
    """Run the cases; the exit code is 1 if one of them fails."""
    results = json.loads(arguments.out.read_text())["cases"] if arguments.only and arguments.out.exists() else {}
    for name in arguments.only or (*CASES, DEFAULT):
        with TemporaryDirectory() as scratch:
            folder = Path(scratch) / "run"
            if name != DEFAULT:
                train_case(CASES[name], folder)
            elif arguments.default_run is None:
                rljax.train(load_config("arithmetic_dapo").replace(run=str(folder), quiet=True, keep_warm_start=False))
            place = arguments.default_run if name == DEFAULT and arguments.default_run is not None else folder
            expected = None if name == DEFAULT else CASES[name].alarm
            results[name] = result(place, expected)
        alarms = ", ".join(f"{row['alarm']} at {row['step']}" for row in results[name]["raised"]) or "nothing"
        print(f"{'passed' if results[name]['passed'] else 'FAILED'}  {name}: {alarms}", flush=True)
        about = {"date": f"{datetime.now():%Y-%m-%d}", "jax": jax.__version__, "rljax": rljax.__version__}
        command = "python tests/alarms/run.py --out tests/alarms/result.json"
        arguments.out.write_text(json.dumps({"command": command, **about, "cases": results}, indent=1) + "\n")
    return int(not all(row["passed"] for row in results.values()))


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Arguments)))
