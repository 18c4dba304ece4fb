"""Check in real training runs that each alarm detects its problem, and that the default run raises no alarm.

Each case is a small run with one built-in fault: a reward that a constant answer maximizes, a reward for length, a critic that
cannot learn, a sampler that keeps its first weights, a learning rate that is far too high, or a reward that always abstains. A case
passes if the expected alarm is raised. The default run passes if no alarm is raised.

Command:

    python tests/alarms/run.py --out tests/alarms/result.json

`--only NAME ...` runs only these cases and keeps the file's other results. `--default-run FOLDER` reads a finished default run of
`rljax train` instead of training one.
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


def reward_even_length(completions: list[str]) -> list[float]:
    """Reward completions with an even number of characters; a random model also writes odd ones."""
    return [float(len(completion) % 2 == 0) for completion in completions]


def reward_sevens(completions: list[str]) -> list[float]:
    """A hackable reward: the constant answer 7 scores best on every problem."""
    return [completion[:1].count("7") - 0.1 * len(completion.replace("7", "", 1)) for completion in completions]


def reward_length(completions: list[str]) -> list[float]:
    """A reward that grows with the completion's length."""
    return [len(completion) / 16 for completion in completions]


def abstain(completions: list[str]) -> list[None]:
    """A reward that always abstains."""
    return [None] * len(completions)


class StaleEngine:
    """A sampler that never receives new parameters."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.params: Params | None = None

    def generate(self, params: Params, requests: Sequence[Request]) -> list[Response]:
        """Sample with the first parameters."""
        if self.params is None:
            self.params = jax.tree.map(jnp.copy, params)  # because an update reuses the old parameters' buffers
        return self.engine.generate(self.params, requests)


class Case(NamedTuple):
    """A training run with a fault, and the alarm that it must raise."""

    alarm: str
    changes: dict[str, Any]
    reward: Callable
    stale: bool = False


CASES = {
    "entropy collapse": Case("entropy_collapse", {"learning_rate": 3e-2}, reward_even_length),
    "reward hacking": Case("one_response", {"learning_rate": 2e-2}, reward_sevens),
    "exploding length": Case("reward_follows_length", {"max_response_tokens": 64, "learning_rate": 3e-3}, reward_length),
    "a critic that does not learn": Case(
        "critic_blind",
        {
            "algorithm": "ppo",
            "critic_learning_rate": 1e-12,
            "value_pretraining_steps": 0,
            "learning_rate": 1e-3,
            "steps": 30,
        },
        reward_even_length,
    ),
    "a stale sampler": Case("sampler_gap", {"steps": 40}, reward_even_length, stale=True),
    "a learning rate that is far too high": Case(
        "large_steps", {"learning_rate": 1.0, "minibatches": 4, "steps": 20}, reward_even_length
    ),
    "a reward without an opinion": Case("reward_absent", {"steps": 8}, abstain),
}


def train_case(case: Case, folder: Path) -> None:
    """Train the run of a case. If training stops early, the alarms raised until then are judged."""
    config = SMALL.replace(run=str(folder), **case.changes)
    engine = StaleEngine(make_setup(config).train.engine) if case.stale else None
    try:
        rljax.train(config, reward=case.reward, engine=engine)
    except InputError as error:
        print(f"The run stopped: {error}", flush=True)


def judge_run(folder: Path, expected: str | None) -> dict[str, Any]:
    """Return the alarms that a run raised, whether it passed, and the seconds that its metrics rows report."""
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
    """Train the runs and write the alarms that they raise."""

    out: Path = Path("alarms.json")
    """Result file."""
    only: tuple[str, ...] = ()
    """Names of the cases to run; by default all cases and the default run."""
    default_run: Path | None = None
    """Folder of a finished default run."""


def main(arguments: Arguments) -> int:
    """Run the cases and return the exit code, which is 1 if any case fails."""
    results = json.loads(arguments.out.read_text())["cases"] if arguments.only and arguments.out.exists() else {}
    for name in arguments.only or (*CASES, DEFAULT):
        with TemporaryDirectory() as scratch:
            folder = Path(scratch) / "run"
            if name != DEFAULT:
                train_case(CASES[name], folder)
            elif arguments.default_run is None:
                rljax.train(load_config("arithmetic_dapo").replace(run=str(folder), quiet=True, keep_warm_start=False))
            run_folder = arguments.default_run if name == DEFAULT and arguments.default_run is not None else folder
            expected = None if name == DEFAULT else CASES[name].alarm
            results[name] = judge_run(run_folder, expected)
        alarms = ", ".join(f"{row['alarm']} at {row['step']}" for row in results[name]["raised"]) or "nothing"
        print(f"{'passed' if results[name]['passed'] else 'FAILED'}  {name}: {alarms}", flush=True)
        about = {"date": f"{datetime.now():%Y-%m-%d}", "jax": jax.__version__, "rljax": rljax.__version__}
        command = "python tests/alarms/run.py --out tests/alarms/result.json"
        arguments.out.write_text(json.dumps({"command": command, **about, "cases": results}, indent=1) + "\n")
    return int(not all(row["passed"] for row in results.values()))


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Arguments)))
