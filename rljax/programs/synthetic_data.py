"""Training data from a model: sampled responses kept as demonstrations, and demonstrations cleaned by the model's votes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax.data.problem import Problem, reward_columns
from rljax.data.problem_datasets import load_problems
from rljax.data.tokenizer_note import MODEL_PREFIX
from rljax.errors import InputError
from rljax.evaluation.answer_sampling import generate_rows
from rljax.evaluation.consistency import CleanedDemonstrations, KeptResponses, clean_demonstrations, keep_responses
from rljax.files import atomic_write
from rljax.preference.step_reward import find_step_reward
from rljax.programs.answer_settings import GenerateSettings, refuse_options, with_changes
from rljax.programs.evaluation import Watch, check_samples, open_sampler
from rljax.programs.trained_policy import find_run
from rljax.rewards.steps import Step, score_steps
from rljax.rewards.votes import vote_reader
from rljax.settings.checks import check_new_file
from rljax.text import json_lines
from rljax.training.config import TrainConfig
from rljax.training.parts.problems import training_problems
from rljax.training.parts.reward import custom_part_names

DEFAULTS = GenerateSettings()
CLEAN_OPTIONS, GENERATE_OPTIONS = ("contradicted",), ("keep", "most", "similarity", "step_reward", "dataset")
"""Options that apply only to `clean`, and options that apply only to `generate`."""
AGREEMENT, MAX_KEPT, SIMILARITY, LIMIT = 0.5, 2, 0.8, 256
"""Defaults: minimum fraction of a problem's responses with the same answer, maximum number of kept responses per problem, their
maximum similarity, and number of problems for `generate`."""


def generate(
    target: str | Path, out: str | Path, settings: GenerateSettings = DEFAULTS, *, watch: Watch = iter, **changes: Any
) -> KeptResponses:
    """Sample responses, keep good and distinct ones, and write them as rows for `rljax train --dataset`.

    Args:
        target: folder of a run, Hugging Face folder, or hub id.
        out: JSON-lines file to write; it must not exist yet.
        settings: which problems to answer, and which responses to keep.
        watch: wraps the iteration over the engine calls, for example to show progress.
        **changes: fields of `settings` by name.

    Raises:
        InputError: the file exists or its folder does not, the target cannot be opened, an argument cannot be used, or no
            response is kept.
    """
    out, settings = Path(out), with_changes(settings, changes)
    refuse_options(settings, CLEAN_OPTIONS, "with --clean")
    keep = "verifier" if settings.keep is None else settings.keep
    if keep != "votes":
        refuse_options(settings, ["agreement"], "with --keep votes or --clean")
    else:
        refuse_options(settings, ["step_reward"], "with --keep verifier")
    check_new_file(out)
    run, _ = find_run(target, settings.checkpoint)
    problems = training_problems(run, target) if settings.dataset is None else None
    limit = LIMIT if settings.limit is None else settings.limit
    opened, worker = open_sampler(target, settings, temperature=settings.temperature, problems=problems, limit=limit)
    vote = vote_reader(opened.config.reward.name)
    options = {"seed": settings.seed, "batch": settings.batch, "vote": vote, "watch": watch}
    rows = generate_rows(worker, opened.params, check_samples(settings.samples), **options)
    problems = worker.prompts.problems
    judged = step_reward_of(settings, opened.config, problems)
    false_steps = set() if judged is None or keep == "votes" else false_steps_of(judged, rows, problems)
    kept = keep_responses(
        rows,
        problems,
        keep=keep,
        most=MAX_KEPT if settings.most is None else settings.most,
        threshold=SIMILARITY if settings.similarity is None else settings.similarity,
        agreement=AGREEMENT if settings.agreement is None else settings.agreement,
        false_steps=false_steps,
    )
    write_rows(out, kept.rows, advice=f"accepted responses: {kept.accepted} of {kept.responses}; raise --samples")
    return kept._replace(dropped=worker.prompts.dropped)


def step_reward_of(settings: GenerateSettings, config: TrainConfig, problems: Sequence[Problem]) -> Callable | None:
    """Return the step reward that detects false steps, or None: that of the settings, the run, or the task for its own problems."""
    name = config.reward.step_reward if settings.step_reward is None else settings.step_reward
    if settings.step_reward is None and name in custom_part_names(config) and not settings.trust:
        raise InputError(
            f"the run judges steps by {name}, which is code that its config.json names; read it, then add --trust (trust=True) to "
            "execute it, or give --step-reward."
        )
    if name is None and settings.dataset is None and config.generated_task is not None:
        name = config.generated_task.step_reward
    if name is None or name == "none":
        return None
    step_reward = find_step_reward(name, problems, devices=config.devices, dtype=config.model.dtype)
    return _above_half(step_reward) if name.startswith(MODEL_PREFIX) else step_reward


def _above_half(probability: Callable) -> Callable:
    """Make a step reward from the probability that a step is right, minus 0.5, so that it is above 0 for likely steps."""

    def margin_above_half(**columns: Sequence) -> list[list[Step]]:
        return [[(end, chance - 0.5) for end, chance in steps] for steps in probability(**columns)]

    return margin_above_half


def false_steps_of(
    step_reward: Callable, rows: Sequence[Mapping[str, Any]], problems: Sequence[Problem]
) -> set[tuple[int, int]]:
    """Find responses with a step whose reward is not above 0, as (problem, sample); a step that ends the text does not count.

    Args:
        step_reward: judges the steps.
        rows: the responses, as `generate_rows` returns them.
        problems: the problems that they answer.
    """
    row_problems = [problems[row["problem"]] for row in rows]
    texts = [row["completion"] for row in rows]
    judged = score_steps(step_reward, [problem.prompt for problem in row_problems], texts, reward_columns(row_problems))
    return {
        (row["problem"], row["sample"])
        for row, text, steps in zip(rows, texts, judged, strict=True)
        if any(reward <= 0 for end, reward in steps if end < len(text))
    }


def clean(
    target: str | Path,
    out: str | Path,
    settings: GenerateSettings = DEFAULTS,
    *,
    dataset: str,
    watch: Watch = iter,
    **changes: Any,
) -> CleanedDemonstrations:
    """Drop or replace the demonstrations of a dataset that a model's answers contradict, and write the remaining rows.

    Args:
        target: folder of a run, Hugging Face folder, or hub id.
        out: JSON-lines file to write; it must not exist yet.
        settings: how to answer the rows, and how to compare the answers.
        dataset: the demonstrations (file or hub id).
        watch: wraps the iteration over the engine calls, for example to show progress.
        **changes: fields of `settings` by name.

    Raises:
        InputError: the file exists or its folder does not, the target or the dataset cannot be opened, an argument cannot be
            used, or no row is left.
    """
    out, settings = Path(out), with_changes(settings, changes)
    refuse_options(settings, GENERATE_OPTIONS, "without --clean")
    check_new_file(out)
    originals = load_problems(dataset)[: settings.limit]
    distinct = list({problem.prompt: problem for problem in originals}.values())
    opened, worker = open_sampler(target, settings, temperature=settings.temperature, problems=distinct)
    vote = vote_reader(opened.config.reward.name)
    options = {"seed": settings.seed, "batch": settings.batch, "vote": vote, "watch": watch}
    rows = generate_rows(worker, opened.params, check_samples(settings.samples), **options)
    agreement = AGREEMENT if settings.agreement is None else settings.agreement
    cleaned = clean_demonstrations(
        originals,
        rows,
        worker.prompts.problems,
        vote,
        agreement=agreement,
        replace=settings.contradicted == "replace",
    )
    write_rows(
        out,
        cleaned.rows,
        advice=f"all {cleaned.contradicted} are contradicted; use another model, or --contradicted replace",
    )
    return cleaned


def write_rows(out: Path, rows: Sequence[dict[str, Any]], *, advice: str) -> None:
    """Write rows of a dataset as JSON lines.

    Raises:
        InputError: there is no row.
    """
    if not rows:
        raise InputError(f"No row is left, so {str(out)!r} is not written; {advice}.")
    atomic_write(out, json_lines(rows))
