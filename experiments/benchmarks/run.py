"""rljax compared with TRL, google-tunix, rlax and `transformers.generate`: time for the same work.

    python experiments/benchmarks/run.py trl tunix rlax transformers        (about 15 minutes on two idle CPU cores)
    python experiments/benchmarks/run.py transformers --cases decode_spread --rounds 3

Each peer gets its own environment under --work. Both sides of a case are processes that take turns: in each round, one side
works and then the other, so that a busy machine slows both. The ratio of a round is the peer's time divided by rljax's; a
case reports the median, lowest and highest ratio of its rounds. Both sides read the same model with random weights; see
`workloads.py`.

Writes results.json, results.md and results.png next to this file; earlier results of cases that are not measured are kept.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import tyro
import workloads as work
from report import describe_machine, write_results
from virtual_environments import PACKAGES, environment_variables, own_versions, package_versions, python_of

from rljax.models import TransformerConfig, init_params
from rljax.models.huggingface import model_contents
from rljax.models.model_folder import write_model

HERE = Path(__file__).resolve().parent
Measured = TypeVar("Measured")


class Case(NamedTuple):
    """Work that is measured on both sides."""

    peer: str
    """The library that rljax is compared with."""
    name: str
    """Name of the case in `CASES` of both sides."""
    title: str
    """Description of the work."""
    target: float | None
    """Ratio to reach; None without a target."""
    rounds: int
    """Number of measured rounds."""
    warm: int = 2
    """Number of warm-up rounds before the measured rounds, because functions compile."""
    is_new_process: bool = False
    """Whether each round is a new process."""

    @property
    def key(self) -> str:
        """Name of the case in the results."""
        return f"{self.name}/{self.peer}"


CASES = (
    Case("trl", "rl_step", "RL step, spread lengths", 1.5, 9, 3),
    Case("tunix", "rl_step", "RL step, spread lengths", 2.5, 9, 3),
    Case("trl", "training_step", "training step, equal lengths", None, 9),
    Case("tunix", "training_step", "training step, equal lengths", 1.5, 9),
    Case("transformers", "decode_equal", "decode, equal lengths", 1.2, 9),
    Case("transformers", "decode_spread", "decode, lengths spread 1:10", 2.0, 9),
    Case("trl", "log_probs", "log-prob gradient, vocabulary 151,936", None, 9),
    Case("rlax", "gae", "GAE 64 x 16,384, ten times", 3.0, 25),
    Case("trl", "import", "import", None, 3, 1, is_new_process=True),
    Case("tunix", "import", "import", None, 3, 1, is_new_process=True),
    Case("trl", "first_step", "start of the process to the end of the first RL step", None, 3, 1, is_new_process=True),
    Case("tunix", "first_step", "start of the process to the end of the first RL step", None, 3, 1, is_new_process=True),
)


@dataclass(frozen=True)
class Arguments:
    """Arguments of the comparison."""

    peers: tyro.conf.Positional[tuple[str, ...]]
    """The peers: trl, tunix, rlax, transformers."""
    cases: tuple[str, ...] = ()
    """Cases; by default all cases of these peers."""
    rounds: int | None = None
    """Measured rounds of each case; by default the number in `CASES`."""
    work: Path = field(default_factory=lambda: Path.home() / ".cache" / "rljax" / "benchmarks")
    """Folder for the environments."""
    out: Path = HERE
    """Folder for the results."""


class Side:
    """A process that runs one side's rounds.

    Args:
        side: rljax or a peer.
        case: name of the case in the side's `CASES`.
        python: the side's interpreter.
        folder: the model's folder, to which the process's log is written.
        platform: JAX's platform.
        cache: folder of programs that earlier processes of rljax compiled; None compiles everything.
    """

    def __init__(self, side: str, case: str, python: Path | str, folder: Path, platform: str, *, cache: Path | None = None):
        self._log = folder / f"{side}.log"
        self._name = f"{case} of {side}"
        command = [str(python), str(HERE / "child.py"), f"{side}_cases", case, str(folder)]
        with self._log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment_variables(side, platform, cache=cache),
            )

    def round(self) -> dict[str, float]:
        """Run one round and return its timings, in seconds."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError(f"{self._name} has no pipe")
        try:
            stdin.write("go\n")
            stdin.flush()
            answer = stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(f"{self._name} has ended; its log ends with:\n{self._log.read_text()[-3000:]}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


@contextmanager
def side(
    name: str, case: str, python: Path | str, folder: Path, platform: str = "cpu", *, cache: Path | None = None
) -> Generator[Side]:
    """Start a side's process, and end the process when the context exits; see `Side`."""
    opened = Side(name, case, python, folder, platform, cache=cache)
    try:
        yield opened
    finally:
        opened.close()


def take_turns(sides: Sequence[str], rounds: int, measure: Callable[[str], Measured]) -> list[dict[str, Measured]]:
    """Measure both sides in each round; the sides take turns in beginning a round."""
    return [{name: measure(name) for name in sides[:: 1 if turn % 2 else -1]} for turn in range(rounds)]


def rounds_of(case: Case, count: int, pythons: dict[str, Path | str], folder: Path) -> list[tuple[float, float]]:
    """Return the seconds of both sides for each round, rljax's first."""
    sides, rounds = ("rljax", case.peer), case.warm + count
    if case.is_new_process:
        times = take_turns(sides, rounds, lambda name: measure_new_process(name, case.name, pythons[name], folder))
    else:
        with (
            side("rljax", case.name, pythons["rljax"], folder) as ours,
            side(case.peer, case.name, pythons[case.peer], folder) as theirs,
        ):
            both = {"rljax": ours, case.peer: theirs}
            times = take_turns(sides, rounds, lambda name: both[name].round()["seconds"])
    return [(found["rljax"], found[case.peer]) for found in times[case.warm :]]


def measure_new_process(name: str, case: str, python: Path | str, folder: Path) -> float:
    """Measure the seconds from the start of a new process to the end of its first round."""
    with side(name, case, python, folder) as opened:
        return opened.round()["since_start"]


def comparison_row(case: Case, times: list[tuple[float, float]]) -> dict[str, Any]:
    """Build a case's row of the results."""
    ratios = [theirs / ours for ours, theirs in times]
    return {
        "peer": case.peer,
        "title": case.title,
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "rljax_seconds": statistics.median(ours for ours, _ in times),
        "peer_seconds": statistics.median(theirs for _, theirs in times),
        "rounds": len(times),
        "target": case.target,
        "date": f"{date.today()}",
        "machine": describe_machine(),
    }


SHAPE = TransformerConfig(
    vocab_size=work.TOKENS,
    width=work.WIDTH,
    layers=work.LAYERS,
    heads=work.HEADS,
    kv_heads=work.KV_HEADS,
    head_dim=work.HEAD_DIM,
    hidden=work.HIDDEN,
    qk_norm=True,
)
"""Shape of the model that both sides read."""


def write_random_model(folder: Path, shape: TransformerConfig) -> None:
    """Write a model with random weights, stored in its compute dtype, and a tokenizer of characters."""
    contents = model_contents(shape, init_params(shape, jax.random.key(0)), bos=None, eos=work.EOS)
    write_model(folder, contents.stored_as(shape.compute_dtype))
    work.write_tokenizer(folder, shape.vocab_size)


def main(arguments: Arguments) -> None:
    """Measure, and write the results after each case."""
    unknown = {*arguments.peers} - {*PACKAGES} | {*arguments.cases} - {case.name for case in CASES}
    if unknown:
        raise SystemExit(
            f"There is no {', '.join(sorted(unknown))}; peers: {', '.join(PACKAGES)}; "
            f"cases: {', '.join(sorted({case.name for case in CASES}))}."
        )
    chosen = [case for case in CASES if case.peer in arguments.peers and case.name in (arguments.cases or (case.name,))]
    if not chosen:
        pairs = ", ".join(case.key for case in CASES)
        raise SystemExit(
            f"None of these peers has one of these cases, so nothing would be measured; the cases are {pairs}."
        )
    pythons: dict[str, Path | str] = {"rljax": sys.executable}
    pythons |= {peer: python_of(peer, arguments.work) for peer in {case.peer for case in chosen}}
    known = {name: own_versions() if name == "rljax" else package_versions(python) for name, python in pythons.items()}
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        write_random_model(Path(scratch), SHAPE)
        for case in chosen:
            times = rounds_of(case, arguments.rounds or case.rounds, pythons, Path(scratch))
            row = comparison_row(case, times) | {"versions": {name: known[name] for name in ("rljax", case.peer)}}
            write_results(arguments.out, case.key, row, order=[other.key for other in CASES])
            print(f"{case.key}: {row['ratio']:.2f} ({row['lowest']:.2f} to {row['highest']:.2f})", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
