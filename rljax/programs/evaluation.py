"""Evaluate a model on problems whose answers can be checked: open it, sample answers, judge them, report."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.evaluation.answer_sampling import Call, answer_all, sample_files, settings_of
from rljax.evaluation.answers import SampledAnswers
from rljax.evaluation.best_of_n import VERIFIER, VOTES, accuracy_by_chooser
from rljax.evaluation.problem_kinds import choose_columns
from rljax.evaluation.report import Report, make_report
from rljax.evaluation.statistics import MAX_SAMPLES
from rljax.files import atomic_write
from rljax.models import Policy
from rljax.programs.answer_settings import AnswerSettings, EvalSettings, with_changes
from rljax.programs.prefix_values import load_value_function
from rljax.programs.trained_policy import OpenPolicy, load
from rljax.rewards.reward_call import qualified_name
from rljax.rewards.votes import vote_reader
from rljax.rollout import Engine, Environment
from rljax.rollout.budget_forcing import force_budget
from rljax.rollout.continuations import PrefixEvaluator
from rljax.rollout.worker import RolloutWorker
from rljax.tracking.start_records import digest_of, digest_of_name, inputs_of_judge, text_inputs
from rljax.training.parts.reward import digest_of_reward

AIME_PROBLEMS = 15
"""Number of problems in an AIME, each worth one point."""
DEFAULTS = EvalSettings()
Watch = Callable[[Sequence[Call]], Iterable[Call]]
"""A function that wraps the iteration over the engine calls, for example to show progress."""


class EvaluationParts(NamedTuple):
    """Custom parts of an evaluation. None means that the part from the settings or the run is used."""

    problems: Sequence[Problem] | None = None
    """Problems to answer."""
    reward: str | Callable | Sequence[Callable | str] | None = None
    """Reward that judges the answers."""
    policy: Policy | None = None
    """The policy that was passed to `train`."""
    engine: Engine | None = None
    """Engine that samples the answers."""
    environment: Environment | str | None = None
    """The environment that was passed to `train`, or the name of one."""


NO_CUSTOM_PARTS = EvaluationParts()
"""All parts come from the settings or the run."""


class JudgedAnswers(NamedTuple):
    """N judged answers to each of P problems, and how to report them."""

    sampled: SampledAnswers
    """The answers."""
    problems: Sequence[Problem]
    """The P problems."""
    dropped: int
    """Number of problems that were dropped because their prompts are too long."""
    judged_by: str
    """Name of the reward or environment that judged the answers."""
    at: Sequence[int]
    """Values of k for pass@k, maj@k and best@k."""
    columns: Sequence[str]
    """Columns that the problems are grouped by."""
    choosers: Sequence[str]
    """Names of the choosers, which select one answer from k."""


def evaluate(
    target: str | Path,
    settings: EvalSettings = DEFAULTS,
    *,
    problems: Sequence[Problem] | None = None,
    reward: str | Callable | Sequence[Callable | str] | None = None,
    policy: Policy | None = None,
    engine: Engine | None = None,
    environment: Environment | str | None = None,
    watch: Watch = iter,
    **changes: Any,
) -> Report:
    """Answer problems and measure how many answers are right, with 95 % confidence intervals over problems.

    Args:
        target: folder of a run, Hugging Face folder, or hub id.
        settings: which problems are answered, how, and what is reported.
        problems: problems to answer, instead of `settings.dataset`.
        reward: judges the answers, instead of the run's reward.
        policy: the custom policy that was passed to `train`; None means the built-in one.
        engine: samples the answers, instead of the built-in engine.
        environment: the custom environment that was passed to `train`, instead of `settings.environment`.
        watch: wraps the iteration over the engine calls, for example to show progress.
        **changes: fields of `settings` by name: `rljax.evaluate(run, samples=4, temperature=0.6)`.

    Returns:
        The report: `report.headline()` is one line, `report.tables()` are `rich` tables, `report.to_json()` is everything.

    Raises:
        InputError: the target cannot be opened, or an argument cannot be used.
    """
    settings = with_changes(settings, changes)
    parts = EvaluationParts(problems, reward, policy, engine, environment)
    answers = answer_problems(target, settings, parts, watch)
    report = report_of(answers, right_above=settings.right_above)
    if settings.out is not None:
        save_summary(settings.out, report, right_above=settings.right_above)
    return report


def answer_problems(
    target: str | Path, settings: EvalSettings, parts: EvaluationParts = NO_CUSTOM_PARTS, watch: Watch = iter
) -> JudgedAnswers:
    """Open a model, sample answers, and judge them.

    Raises:
        InputError: the target cannot be opened, or an argument cannot be used.
    """
    samples = check_samples(settings.samples)
    reward = settings.reward if parts.reward is None else parts.reward
    environment = settings.environment if parts.environment is None else parts.environment
    options = {name: getattr(settings, name) for name in ("tokenizer", "limit", "environment_options")}
    opened = _open(target, settings, **options, **parts._replace(reward=reward, environment=environment)._asdict())
    if settings.least_tokens is not None:
        opened = opened._replace(worker=force_budget(opened.worker, settings.least_tokens, settings.continuation))
    options = {name: getattr(settings, name) for name in ("top_k", "top_p", "stop", "stop_ids")}
    worker = opened.sampler(temperature=settings.sampling_temperature, **options)
    opened.print_unused_settings(temperature=settings.sampling_temperature, top_k=settings.top_k, top_p=settings.top_p)
    columns = choose_columns(worker.prompts.problems, settings.by)
    named = opened.config.reward.environment or opened.config.reward.name
    judged_by = judge_name(reward if parts.environment is None else parts.environment, named)
    scored = [name for name in settings.choosers if name not in (VERIFIER, VOTES)]  # the others need no score
    scores = {name: load_value_function(name, opened, target, which=settings.checkpoint) for name in scored}
    source = {name: getattr(settings, name) for name in ("checkpoint", "dataset", "limit")}
    source |= {"target": str(target), "reward": judged_by}
    forced = {"least_tokens": settings.least_tokens, "continuation": settings.continuation}
    source |= {} if settings.least_tokens is None else forced
    changed = {
        name: getattr(settings, name) for name in ("quantize", "cache_dtype", "reward_messages", "environment_options")
    }
    source |= {name: value for name, value in changed.items() if value is not None}
    source |= _digest_parts(opened, parts._replace(reward=reward), scored)
    sampling = {"seed": settings.seed, "batch": settings.batch, "out": settings.out, "watch": watch}
    sampled = sample_answers(opened, worker, samples, source=source, scores=scores, **sampling)
    prompts = worker.prompts
    return JudgedAnswers(
        sampled, prompts.problems, prompts.dropped, judged_by, settings.measured_k, columns, settings.choosers
    )


def _digest_parts(opened: OpenPolicy, parts: EvaluationParts, scored: Sequence[str]) -> dict[str, str]:
    """Compute digests of what the answers and their verdicts depend on: tokenizer, judge, custom parts, and reward models.

    Args:
        opened: the policy, with the settings of the evaluation.
        parts: the custom parts, with the reward in use.
        scored: names of the choosers that score answers.
    """
    passed = None if isinstance(parts.reward, str) else parts.reward
    digests = {
        **text_inputs(opened.tokenizer, chat=False),
        **inputs_of_judge(digest_of_reward(opened.config, passed), opened.worker.environment, opened.config),
        "engine": None if parts.engine is None else digest_of(type(parts.engine)),
        "policy": None if parts.policy is None else digest_of(parts.policy),
        **{name: digest_of_name(name, ()) for name in scored},
    }
    return {f"{name}_sha256": digest for name, digest in digests.items() if digest is not None}


def check_samples(samples: int) -> int:
    """Raise an error if more samples per problem are requested than the statistics support.

    Raises:
        InputError: there are more than `MAX_SAMPLES`.
    """
    if samples > MAX_SAMPLES:
        raise InputError(f"--samples is {samples}; at most {MAX_SAMPLES} samples per problem are supported.")
    return samples


def open_sampler(
    target: str | Path,
    settings: AnswerSettings,
    *,
    temperature: float,
    problems: Sequence[Problem] | None = None,
    limit: int | None = None,
) -> tuple[OpenPolicy, RolloutWorker]:
    """Open a policy, and a worker that samples and judges its answers.

    Args:
        target: folder of a run, Hugging Face folder, or hub id.
        settings: the problems, the reward and the checkpoint, and how tokens are sampled.
        temperature: sampling temperature.
        problems: problems to answer, instead of `settings.dataset`.
        limit: maximum number of problems; the first ones are used.

    Raises:
        InputError: the target cannot be opened, an argument cannot be used, or the target has no reward or environment.
    """
    opened = _open(target, settings, problems=problems, limit=limit, reward=settings.reward)
    opened.print_unused_settings(temperature=temperature, top_k=settings.top_k, top_p=settings.top_p)
    return opened, opened.sampler(temperature=temperature, top_k=settings.top_k, top_p=settings.top_p)


def _open(target: str | Path, settings: AnswerSettings, **options: Any) -> OpenPolicy:
    """Open a policy whose answers can be judged; `options` are further arguments of `load`."""
    names = (
        "dataset",
        "max_response_tokens",
        "chat",
        "reward_messages",
        "trust",
        "accept_changes",
        "quantize",
        "cache_dtype",
    )
    shared = {name: getattr(settings, name) for name in names}
    opened = load(target, which=settings.checkpoint, **shared, **options)
    opened.check_can_judge()
    return opened


def judge_name(judge: Environment | Callable | str | Sequence[Callable | str] | None, name_in_settings: str) -> str:
    """Return the name of the environment or rewards that judge the answers; names of several rewards are joined by commas.

    Example:
        >>> judge_name([len, "exact"], "math"), judge_name("gsm8k", "gsm8k")
        ('builtins.len,exact', 'gsm8k')
    """
    if judge is None or isinstance(judge, str):
        return name_in_settings
    parts = judge if isinstance(judge, Sequence) else [judge]
    return ",".join(part if isinstance(part, str) else qualified_name(part) for part in parts)


def sample_answers(
    opened: OpenPolicy,
    worker: RolloutWorker,
    samples: int,
    *,
    source: Mapping[str, Any],
    scores: Mapping[str, PrefixEvaluator],
    **options: Any,
) -> SampledAnswers:
    """Sample answers and judge them; answers are added to an existing file only if its settings match.

    Args:
        opened: the policy.
        worker: samples and judges answers.
        samples: number of answers to each problem.
        source: where the policy and the problems come from, and the reward's name; recorded with the settings of the answers.
        scores: functions that score the answers, by the name of the chooser that uses the scores.
        **options: the other options of `answer_all`.
    """
    choose = {"choose": [*scores]} if scores else {}
    settings = {**source, **choose, **settings_of(worker, opened.params, opened.mesh)}
    vote = vote_reader(source["reward"])
    return answer_all(worker, opened.params, samples, vote=vote, settings=settings, values=scores, **options)


def report_of(answers: JudgedAnswers, *, right_above: float | None = None) -> Report:
    """Compute the report on judged answers.

    Args:
        answers: the answers.
        right_above: an answer is right if its reward is above this; None means that the verifier decides.
    """
    measured = {"at": answers.at, "columns": answers.columns, "right_above": right_above}
    out_of = AIME_PROBLEMS if answers.judged_by == "aime" else None
    report = make_report(answers.sampled, answers.problems, **measured, out_of=out_of)
    chosen = accuracy_by_chooser(answers.sampled, answers.choosers, at=answers.at, right_above=right_above)
    return report._replace(dropped=answers.dropped, chosen=chosen)


def save_summary(out: Path, report: Report, *, right_above: float | None) -> None:
    """Write the report and the settings of the evaluation next to the answers."""
    files = sample_files(out)
    settings = json.loads(files.settings.read_text(encoding="utf-8"))
    content = {"settings": settings, "right_above": right_above, "dropped": report.dropped, **report.to_json()}
    atomic_write(files.summary, json.dumps(content, ensure_ascii=False, indent=2).encode() + b"\n")
