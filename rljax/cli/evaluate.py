"""`rljax eval`: how good a model is on problems whose answers can be checked."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import tyro

from rljax.errors import InputError


@dataclass(frozen=True)
class Eval:
    """Answer problems and say how many answers are right, with 95 % confidence intervals over problems.

    Each problem is answered once, greedily, or --samples times at a temperature. Printed are pass@k (at least one of k answers
    is right, without bias), avg@N (the share that is right), maj@k (the most frequent of k answers is right), and tables by
    response length and by columns of the data. With --out every answer is saved as it comes; the same command goes on with an
    evaluation that was interrupted.
    """

    target: tyro.conf.Positional[str]
    """Folder of a run, Hugging Face folder, or hub id."""
    dataset: str | None = None
    """Problems to answer (file or hub id); by default the run's held-out ones."""
    reward: str | None = None
    """What judges, in place of the run's reward."""
    right_above: float = 0.0
    """An answer is right when its reward is above this."""
    tokenizer: str | None = None
    """For a model folder without one: 'bytes', 'characters', a folder or a hub id."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of the run."""
    limit: int | None = None
    """Answer only the first so many problems."""
    max_response_tokens: int | None = None
    """Budget of a response; by default the run's."""
    samples: int = 1
    """Answers to each problem."""
    k: tuple[int, ...] | None = None
    """Numbers of answers for pass@k and maj@k, at most --samples; by default the powers of two up to --samples, and --samples."""
    greedy: bool = False
    """Take the likeliest token each time; so it is for a single answer unless --temperature is given."""
    temperature: float | None = None
    """Of the draws; by default 1 for several answers to a problem."""
    top_k: int | None = None
    """Draw from the k likeliest tokens only."""
    top_p: float | None = None
    """Draw from the smallest set of tokens with this share of probability."""
    by: tuple[str, ...] | None = None
    """Columns to tell problems apart by; by default subject, type, level, difficulty and operands, where they are there."""
    batch: int = 256
    """Most answers that are drawn at once."""
    seed: int = 0
    """Of the draws."""
    out: Path | None = None
    """Save every answer here as it comes, and a summary beside it: a file, or a folder where the name has no ending."""


def run_eval(command: Eval) -> int:
    """Answer, save, and print the line and the tables."""
    from rich.console import Console  # noqa: PLC0415  --help need not wait for JAX

    from rljax.data.dataset import load_problems  # noqa: PLC0415
    from rljax.data.prepared_folder import progress_bar  # noqa: PLC0415
    from rljax.rewards.ballot import vote_for  # noqa: PLC0415
    from rljax.evaluation.report import chosen_columns, make_report  # noqa: PLC0415
    from rljax.training.policy import open_policy  # noqa: PLC0415
    from rljax.evaluation.sampled import answer_all, settings_of  # noqa: PLC0415

    check(command)
    temperature = chosen_temperature(command)
    setup, params = open_policy(
        command.target,
        which=command.checkpoint,
        reward=command.reward,
        tokenizer=command.tokenizer,
        problems=load_problems(command.dataset)[: command.limit] if command.dataset is not None else None,
        max_response_tokens=command.max_response_tokens,
    )
    engine = setup.sampler(temperature=temperature, top_k=command.top_k, top_p=command.top_p)
    if command.limit is not None and command.dataset is None:
        engine = engine.first(command.limit)
    problems, reward = engine.prompts.problems, setup.config.reward
    columns = chosen_columns(problems, command.by)
    named = {name: getattr(command, name) for name in ("target", "checkpoint", "dataset", "limit")}
    try:
        sampled = answer_all(
            engine,
            params,
            command.samples,
            seed=command.seed,
            batch=command.batch,
            vote=vote_for(reward),
            settings={**named, "reward": reward, **settings_of(engine, params)},
            out=command.out,
            watch=partial(progress_bar, what="answering"),
        )
    except KeyboardInterrupt:
        if command.out is not None:
            print(f"The answers so far are in {command.out}; the same command goes on from there.")
        raise
    report = make_report(sampled, problems, at=chosen_k(command), columns=columns, right_above=command.right_above)
    if engine.prompts.dropped:
        print(f"{engine.prompts.dropped} problems left out: prompts of more than {setup.config.max_prompt_tokens} tokens.")
    print(report.headline())
    console = Console()
    for table in report.tables():
        console.print(table)
    if command.out is not None:
        save_summary(command, {"dropped": engine.prompts.dropped, **report.to_json()})
    return 0


def check(command: Eval) -> None:
    """Refuse numbers that nothing can be done with.

    Raises:
        InputError: one of them, named.
    """
    from rljax.evaluation.statistics import MOST_SAMPLES  # noqa: PLC0415

    for name in ("limit", "samples", "batch"):
        value = getattr(command, name)
        if value is not None and value < 1:
            raise InputError(f"--{name} is {value}; it must be at least 1.")
    if command.samples > MOST_SAMPLES:
        raise InputError(f"--samples is {command.samples}; at most {MOST_SAMPLES} answers to a problem can be measured.")
    if command.seed < 0:
        raise InputError(f"--seed is {command.seed}; it must be 0 or more.")
    for k in chosen_k(command):
        if not 1 <= k <= command.samples:
            raise InputError(f"--k {k} cannot be measured from --samples {command.samples}; it must be from 1 to that.")


def chosen_k(command: Eval) -> list[int]:
    """Numbers of answers for pass@k and maj@k, in order.

    Example:
        >>> chosen_k(Eval("run", samples=6)), chosen_k(Eval("run", samples=6, k=(5, 1)))
        ([1, 2, 4, 6], [1, 5])
    """
    if command.k is not None:
        return sorted(set(command.k))
    return sorted({*(2**i for i in range(command.samples.bit_length())), command.samples})


def chosen_temperature(command: Eval) -> float:
    """Temperature of the draws; 0 is greedy.

    Raises:
        InputError: settings that contradict each other, or several answers that would all be the same.

    Example:
        >>> [chosen_temperature(Eval("run", **given)) for given in ({}, {"samples": 4}, {"temperature": 0.6})]
        [0.0, 1.0, 0.6]
    """
    if command.greedy and command.temperature:
        raise InputError(f"--greedy and --temperature {command.temperature} contradict each other; give one of them.")
    if command.greedy or (command.temperature is None and command.samples == 1):
        temperature = 0.0
    else:
        temperature = 1.0 if command.temperature is None else command.temperature
    if temperature == 0 and command.samples > 1:
        raise InputError(
            f"the {command.samples} greedy answers to a problem would all be the same; leave --samples out, or draw them at "
            f"a --temperature above 0."
        )
    if temperature == 0 and (command.top_k is not None or command.top_p is not None):
        raise InputError(
            "--top-k and --top-p say what is drawn from, but greedy answers are not drawn; give a --temperature above 0 too."
        )
    return temperature


def save_summary(command: Eval, summary: dict) -> None:
    """Write the report beside the answers, with the settings that both were made with."""
    from rljax.evaluation.sampled import replace_file, sample_files  # noqa: PLC0415

    files = sample_files(command.out)
    settings = json.loads(files.settings.read_text(encoding="utf-8"))
    content = {"settings": settings, "right_above": command.right_above, **summary}
    replace_file(files.summary, json.dumps(content, ensure_ascii=False, indent=2).encode() + b"\n")
    print(f"Answers: {files.samples}")
    print(f"Summary: {files.summary}")
