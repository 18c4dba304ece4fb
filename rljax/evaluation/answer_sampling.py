"""Sample and judge several answers to every problem. Answers are saved as they arrive, so an interrupted evaluation can continue.

The worker is called several times, each time for the same number of problems and answers. A call's random key is computed from the
seed and the call's index, so no answer depends on whether, or where, the evaluation was interrupted. ::

    NAME.jsonl             one row per answer, in the order of the calls; an incomplete last call is repeated
    NAME.settings.json     settings that the answers depend on; an evaluation with other settings is rejected
    NAME.summary.json      the report, which the caller writes once the evaluation is complete
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

import rljax
from rljax.errors import InputError
from rljax.evaluation.answers import SampledAnswers, gather
from rljax.files import atomic_write
from rljax.models import Params
from rljax.records import required
from rljax.rewards.confidence import read_confidence
from rljax.rewards.reward_scores import only_subtracts
from rljax.rollout import RolloutWorker
from rljax.rollout.continuations import PrefixEvaluator, prefixes_of
from rljax.rollout.groups import correctness_masks
from rljax.text import json_lines

SETTINGS, SUMMARY, SAMPLES = ".settings.json", ".summary.json", ".jsonl"
_EARLIER_NAMES = MappingProxyType({"rows_a_call": "rows_per_call"})  # of saved settings
NO_VALUES: Mapping[str, PrefixEvaluator] = MappingProxyType({})
_HASHED_ENTRIES = 64  # leading entries hashed per parameter; a few suffice, because training changes every parameter


class Call(NamedTuple):
    """One call of the worker."""

    index: int
    """Index of the call, from 0."""
    problems: tuple[int, ...]
    """Indices of the problems. All calls have the same number of problems, so the last may continue with the first problems."""
    first: int
    """Index of the first answer sampled for each problem."""
    group: int
    """Number of answers sampled for each problem, the same in every call."""
    wanted: tuple[int, int]
    """Number of problems to keep, and number of answers per problem to keep."""

    def pairs(self) -> list[tuple[int, int]]:
        """Return (problem index, answer index) for each row that this call adds to the file."""
        problems, group = self.wanted
        return [(problem, self.first + i) for problem in self.problems[:problems] for i in range(group)]


class SampleFiles(NamedTuple):
    """Files of a saved evaluation."""

    samples: Path
    """File of the answers, one row per answer."""
    settings: Path
    """File of the settings that the answers depend on."""
    summary: Path
    """File of the report of the complete evaluation."""


def sample_files(out: Path) -> SampleFiles:
    """Return the paths of an evaluation's files.

    Args:
        out: file of the samples, with any suffix, or a folder, without a suffix; it need not exist.

    Returns:
        The three files.

    Example:
        >>> [path.as_posix() for path in sample_files(Path("a/aime"))]
        ['a/aime/samples.jsonl', 'a/aime/samples.settings.json', 'a/aime/samples.summary.json']
        >>> sample_files(Path("aime.jsonl")).settings.as_posix()
        'aime.settings.json'
    """
    samples = out / f"samples{SAMPLES}" if out.is_dir() or not out.suffix else out
    return SampleFiles(samples, samples.with_suffix(SETTINGS), samples.with_suffix(SUMMARY))


def plan(problems: int, samples: int, *, batch: int) -> list[Call]:
    """Divide the work into calls.

    Args:
        problems: number of problems.
        samples: number of answers to each problem.
        batch: maximum number of answers per call.

    Returns:
        Calls of equal shape that together sample `samples` answers to every problem.

    Example:
        >>> [call.problems for call in plan(3, 2, batch=4)], plan(3, 2, batch=4)[1].pairs()
        ([(0, 1), (2, 0)], [(2, 0), (2, 1)])
        >>> [(call.first, call.wanted) for call in plan(1, 5, batch=3)]
        [(0, (1, 3)), (3, (1, 2))]
    """
    group = min(samples, batch)
    width = max(1, min(problems, batch // group))
    calls = []
    for begin in range(0, problems, width):
        chosen = tuple(index % problems for index in range(begin, begin + width))
        for first in range(0, samples, group):
            wanted = min(width, problems - begin), min(group, samples - first)
            calls.append(Call(len(calls), chosen, first, group, wanted))
    return calls


def answer_all(worker: RolloutWorker, params: Params, samples: int, **options: Any) -> SampledAnswers:
    """Generate `samples` answers to every problem with `generate_rows` and its options, and arrange the answers in arrays."""
    rows = generate_rows(worker, params, samples, **options)
    scored = tuple(options.get("values", NO_VALUES))
    verified = worker.verifies or any(row["correct"] is not None for row in rows)
    found = gather(rows, len(worker.prompts.tokens), samples, verified=verified, scored=scored)
    return found._replace(only_subtracts=worker.environment is None and only_subtracts(worker.judge.reward))


def generate_rows(
    worker: RolloutWorker,
    params: Params,
    samples: int,
    *,
    seed: int,
    batch: int,
    vote: Callable[[str], str | None],
    settings: Mapping[str, object] = MappingProxyType({}),
    out: Path | None = None,
    values: Mapping[str, PrefixEvaluator] = NO_VALUES,
    watch: Callable[[Sequence[Call]], Iterable[Call]] = iter,
) -> list[dict]:
    """Generate `samples` answers to every problem of the worker, except for answers that are already saved.

    Args:
        worker: the worker that samples and judges the answers.
        params: parameters of the policy.
        samples: number of answers to each problem.
        seed: seed of the sampling.
        batch: maximum number of answers per call.
        vote: function that extracts the final answer from a response, for majority votes; None if there is no answer.
        settings: what the answers depend on in addition to `samples`, `seed` and `batch`; must equal those saved with `out`.
        out: where the answers are saved, see `sample_files`; None keeps them only in memory.
        values: functions that score the answers, by the name of the chooser that uses the scores.
        watch: function that iterates over the calls and shows the progress.

    Returns:
        A row for each answer, sampled now or earlier, in the order of the calls.

    Raises:
        InputError: `out` contains answers sampled with other settings or is not an evaluation's file, or judging failed.
    """
    calls = plan(len(worker.prompts.tokens), samples, batch=batch)
    rows: list[dict] = []
    if out is not None:
        shape = {"rows_per_call": len(calls[0].problems) * calls[0].group}
        rows = reopen(sample_files(out), {**settings, "samples": samples, "seed": seed, **shape}, calls)
    complete = complete_calls(calls, len(rows))
    for call in watch(calls[complete:]):
        fresh = _answer_call(worker, params, call, seed, vote, values)
        if out is not None:
            with sample_files(out).samples.open("ab") as file:
                file.write(json_lines(fresh))
        rows += fresh
    return rows


def _answer_call(
    worker: RolloutWorker,
    params: Params,
    call: Call,
    seed: int,
    vote: Callable[[str], str | None],
    values: Mapping[str, PrefixEvaluator],
) -> list[dict]:
    """Sample and judge the answers of one call, and return their rows."""
    key = jax.random.fold_in(jax.random.key(seed), call.index)
    groups = worker.generate(params, list(call.problems), call.group, key)
    rollout, rows = groups.rollout, []
    valid, truncated = required(rollout.valid, "rollout.valid"), required(rollout.truncated, "rollout.truncated")
    right, known = correctness_masks(rollout)
    scores = {name: value(prefixes_of(worker, groups)).reshape(right.shape) for name, value in values.items()}
    for at, (problem_index, sample) in zip(np.ndindex(call.wanted), call.pairs(), strict=True):
        problem = worker.prompts.problems[problem_index]
        completion = worker.text(groups.tokens[at], groups.attention[at])
        rows.append(
            {
                "problem": problem_index,
                "sample": sample,
                "prompt": problem.prompt,
                "completion": completion,
                "answer": problem.answer,
                "given": vote(completion),
                "reward": float(rollout.rewards[at]) if valid[at] else None,
                "correct": bool(right[at]) if known[at] and rollout.correct is not None else None,
                "tokens": int(groups.attention[at].sum()),
                "truncated": bool(truncated[at]),
            }
        )
        confidence = read_confidence(completion)
        if confidence is not None:
            rows[-1]["confidence"] = confidence
        if scores:
            found = {name: float(score[at]) for name, score in scores.items()}
            rows[-1]["scores"] = {name: None if np.isnan(score) else score for name, score in found.items()}
    return rows


def complete_calls(calls: Sequence[Call], rows: int) -> int:
    """Count the calls that are complete when `rows` rows are saved.

    Example:
        >>> [complete_calls(plan(3, 2, batch=4), rows) for rows in (0, 3, 4, 5, 6)]
        [0, 0, 1, 1, 2]
    """
    ends = np.cumsum([len(call.pairs()) for call in calls])
    return int((ends <= rows).sum())


def reopen(files: SampleFiles, settings: dict, calls: Sequence[Call]) -> list[dict]:
    """Read the saved answers, without those of an incomplete last call; create the files if they do not exist.

    Args:
        files: the files of the evaluation.
        settings: what the answers depend on.
        calls: all calls of the evaluation, complete or not.

    Returns:
        The rows of the complete calls.

    Raises:
        InputError: the file was written with other settings, or not by an evaluation, or cannot be read or written.
    """
    settings = json.loads(json.dumps(settings))
    try:
        if not files.samples.exists():
            files.samples.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(files.settings, json.dumps(settings, ensure_ascii=False, indent=2).encode() + b"\n")
            files.samples.touch(exist_ok=False)
            return []
        _refuse_other_settings(files, settings)
        wanted = (pair for call in calls for pair in call.pairs())
        rows = list(_read_rows(files.samples, wanted))
        complete = complete_calls(calls, len(rows))
        rows = rows[: sum(len(call.pairs()) for call in calls[:complete])]
        if json_lines(rows) != files.samples.read_bytes():
            atomic_write(files.samples, json_lines(rows))
    except OSError as error:
        raise InputError(f"{str(files.samples)!r} cannot be written ({error}); choose another --out.") from error
    return rows


def _refuse_other_settings(files: SampleFiles, settings: dict) -> None:
    try:
        saved = json.loads(files.settings.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{str(files.samples)!r} already exists, without readable settings in {files.settings.name} that tell how it was "
            f"written; choose another --out."
        ) from error
    saved = {_EARLIER_NAMES.get(name, name): value for name, value in saved.items()} if isinstance(saved, dict) else {}
    names = sorted(name for name in {*saved, *settings} if saved.get(name) != settings.get(name))
    if names:
        changed = ", ".join(
            f"{name} was {_short(saved.get(name))} and is now {_short(settings.get(name))}" for name in names
        )
        raise InputError(
            f"{str(files.samples)!r} already exists, with answers made under other settings ({changed}); choose another "
            f"--out, or use the settings in {files.settings.name} to continue it."
        )


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read_rows(path: Path, wanted: Iterator[tuple[int, int]]) -> Iterator[dict]:
    """Read the rows, checking their order; an incomplete last line is dropped."""
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            pair = row["problem"], row["sample"]
            fits = {"reward", "correct", "tokens", "truncated", "given", "completion", "prompt", "answer"} <= set(row)
        except (ValueError, KeyError, TypeError):
            row, pair, fits = {}, None, False
        expected = next(wanted, None)
        if not fits or pair != expected:
            raise InputError(
                f"{path} line {number} is not the answer expected there in an evaluation with these settings "
                f"({line.decode(errors='replace')[:80]!r}); remove this line and all that follow it, or choose another --out."
            )
        yield row


def settings_of(worker: RolloutWorker, params: Params, mesh: Mesh) -> dict:
    """Collect the settings that a worker's answers depend on, so that only an identical evaluation can continue a file.

    Args:
        worker: the worker that samples the answers.
        params: parameters of the policy.
        mesh: devices that compute the answers.

    Returns:
        Settings that are valid JSON. They include a hash of the problems and their tokens, a hash of the first entries of every
        parameter, the devices, and the versions of rljax and JAX.
    """
    problems = hashlib.sha256()
    for problem, tokens in zip(worker.prompts.problems, worker.prompts.tokens, strict=True):
        problems.update(json.dumps([problem.prompt, problem.answer, tokens, problem.columns], default=str).encode())
    weights = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        first = np.asarray(leaf[(0,) * max(leaf.ndim - 1, 0)], np.float32).ravel()[:_HASHED_ENTRIES]
        weights.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}".encode() + first.tobytes())
    return {
        "sampling": worker.sampling._asdict()
        | {"stop": list(worker.sampling.stop), "eos_ids": list(worker.sampling.eos_ids)},
        "prompt_length": worker.prompt_length,
        "verifier": worker.verifies,
        "problems_sha256": problems.hexdigest(),
        "model_sha256": weights.hexdigest(),
        "devices": f"{mesh.size} x {mesh.devices.flat[0].device_kind}",
        "versions": {"rljax": rljax.__version__, "jax": jax.__version__},
    }
