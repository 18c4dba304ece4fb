"""Supervised fine-tuning (SFT): a run's warm start as a separate program without RL, evaluated on held-out demonstrations.

The run folder has the format of `rljax.train`, so every command can open it, and `rljax train --resume` continues the run with RL
if it has a reward.
"""

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rljax.data.plain_text import is_text
from rljax.data.problem import Problem
from rljax.data.prompts import Demonstrations, count_assistant_turns, encode_demonstrations, move_turns_to_demonstration
from rljax.data.text_blocks import cut_blocks
from rljax.errors import InputError
from rljax.evaluation.heldout import evaluate
from rljax.models import Params
from rljax.options import INSTALLERS
from rljax.parallel import run_on_first
from rljax.programs.train import UNJUDGED, refuse_unused_settings, with_dataset
from rljax.programs.value_pretraining import keep_unevaluated, value_pretraining
from rljax.programs.warm_start import warm_start_phase
from rljax.records import required
from rljax.rollout import sequences_of_demonstrations
from rljax.text import counted
from rljax.tracking.rows import read_metrics
from rljax.training.checkpoints.checkpoint import Checkpoint
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.finish import write_final_models
from rljax.training.lifecycle.start import AUTO, Consent
from rljax.training.loop import Result, run_training
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.parts.problems import make_problems
from rljax.training.parts.reward import custom_reward_names
from rljax.training.phase import Phase, RunStep, StepOutcome, run_phase
from rljax.training.rl_phase import make_rl_phase
from rljax.training.run import Run, evaluate_and_keep_best
from rljax.training.scoring import make_scores
from rljax.training.setup import Setup
from rljax.training.state import RL, VALUE_PRETRAINING, WARM_START

MEASURES = ("heldout_loss", "perplexity")
"""Names of the metrics on the held-out demonstrations."""


class FineTuned(NamedTuple):
    """The outcome of supervised fine-tuning."""

    run: Path
    """Folder of the run."""
    before: dict[str, float]
    """Metrics before the first update: `heldout_loss`, `perplexity` and, with a reward, `accuracy`."""
    after: dict[str, float]
    """The same metrics after the last update."""
    params: Params
    """Parameters of the policy."""


def sft(
    config: TrainConfig | None = None,
    reward: Callable | Sequence[Callable | str] | None = None,
    *,
    dataset: str | Path | Iterable[Mapping[str, object]] | None = None,
    epochs: int | None = None,
    resume: str | Path | None = None,
    trust: bool = False,
    accept_changes: bool = False,
) -> FineTuned:
    """Fine-tune a language model on demonstrations (supervised fine-tuning, SFT).

    ::

        loss = -mean over the assistant's tokens of log π(token | everything before it)        perplexity = exp(held-out loss)

    Args:
        config: all settings; the group `warm_start` sets the steps, the batch and the learning rate. `steps`, the number of RL
            steps, is set to 0. Omit the settings on resume.
        reward: judges greedy answers to held-out prompts, as in `rljax.train`. If it is None and `config.reward.name` is "none",
            nothing is sampled.
        dataset: rows (dicts, or a `datasets.Dataset`), or the name of a file, folder or hub id; instead of `config.data.dataset`.
        epochs: number of passes over the training rows, instead of `config.warm_start.steps`.
        resume: folder of an interrupted run to continue, or "auto"; see `rljax.train`.
        trust: whether to execute a reward that only the config.json of a resumed run names.
        accept_changes: whether to continue a run even if its inputs have changed; see `rljax.train`.

    Returns:
        The run folder, the held-out metrics before and after, and the parameters.

    Raises:
        InputError: the configuration, the data or another argument is invalid, or the run to resume has RL steps.
        Interrupted: Ctrl-C or SIGTERM; the run is saved up to its last step, and can be resumed.
    """
    config, rows = with_dataset(config, dataset)
    if config is not None and not (config.optimization.steps and resume not in (None, AUTO)):
        config = supervised_config(config, epochs, rows)
    if config is not None and config.data.also_heldout and reward is None and is_unjudged(config):
        raise InputError(
            f"also_heldout={config.data.also_heldout} measures answers, which fine-tuning samples only for a reward; set --reward, "
            "or leave also_heldout out."
        )
    custom = CustomParts(reward=reward, dataset=rows)
    if config is not None and resume in (None, AUTO):
        refuse_unused_settings(config, custom)
    consent = Consent(trust=trust, changes=accept_changes)
    command = "pretrain" if config is not None and is_text(config.data.dataset) else "sft"
    result = run_training(config, custom, fine_tune, installers=INSTALLERS, resume=resume, consent=consent, command=command)
    before, after = read_end_metrics(result.run / "metrics.jsonl")
    return FineTuned(result.run, before, after, result.params)


def supervised_config(config: TrainConfig, epochs: int | None, rows: Iterable[Mapping[str, object]] | None) -> TrainConfig:
    """Return the settings with 0 RL steps and the supervised steps that the epochs need; one epoch if neither is set.

    Raises:
        InputError: the number of epochs is below 1, or the data cannot be used.
    """
    config = config.replace(steps=0)
    if is_text(config.data.dataset) and (epochs is not None or not config.warm_start.steps):
        raise InputError(
            "training on plain text has a number of steps, not epochs; set warm_start_steps, and leave epochs out."
        )
    if epochs is None and config.warm_start.steps:
        return config
    if epochs is not None and epochs < 1:
        raise InputError(f"epochs is {epochs}; it must be at least 1.")
    count = len(make_problems(config, rows, needs_answers=False).train)
    return config.replace(warm_start_steps=-(-count * (epochs or 1) // config.warm_start.batch))


def has_judge(run: Run) -> bool:
    """Return whether a reward or an environment judges the run's answers."""
    return not is_unjudged(run.config) or "reward" in run.folder.config["seams"]


def is_unjudged(config: TrainConfig) -> bool:
    """Return whether the settings name neither a reward nor an environment."""
    return config.reward.name == UNJUDGED and config.reward.environment is None


def fine_tune(run: Run, owned: list[Checkpoint]) -> Result:
    """Run the remaining phases: the supervised steps, then RL with 0 steps, which saves the checkpoint that other commands read.

    Args:
        run: the run.
        owned: the checkpoint to continue from; see `rljax.programs.train.run_phases`.

    Raises:
        InputError: the run has RL steps.
    """
    steps = run.config.optimization.steps
    if steps:
        raise InputError(
            f"{str(run.folder.path)!r} is a run with {counted(steps, 'RL step')}; continue it with `rljax train --resume`, not "
            "`rljax sft`."
        )
    if is_text(run.config.data.dataset):
        texts, tokenizer = run.setup.train.prompts.problems, run.setup.tokenizer
        blocks = cut_blocks(texts, tokenizer, run.config.sampling.max_response_tokens)
        run = replace(run, setup=run.setup._replace(demonstrations=blocks))
    elif run.config.model.chat:
        run = replace(run, setup=with_dialogues(run.setup))
    if int(owned[0].state.phase) <= WARM_START:
        run_phase(run, owned, supervised_phase(run))
    final = replace(value_pretraining(run), steps=0, saves_start=False, evaluate_start=partial(evaluate_end, run))
    for number, phase in ((VALUE_PRETRAINING, final), (RL, make_rl_phase(run))):
        if int(owned[0].state.phase) <= number:
            run_phase(run, owned, phase)
    from rljax.tracking.plots import plot_curves  # noqa: PLC0415  the first step need not wait for matplotlib

    checkpoint = owned.pop()
    models = write_final_models(run, checkpoint)
    title = f"{run.config.run.name}: supervised fine-tuning"
    run.write("the curves", lambda: plot_curves(run.folder.metrics, run.folder.curves, title=title))
    run_on_first(lambda: show_end(run, models))
    accuracy = required(checkpoint.notes.quality, "notes.quality").accuracy
    return Result(run.folder.path, accuracy, accuracy, run.setup.full_params(checkpoint.state.params))


def evaluate_end(run: Run, checkpoint: Checkpoint) -> Checkpoint:
    """Evaluate after the last step if there is a reward, and save the best checkpoint, which commands open by default."""
    if has_judge(run):
        run.display.message("Answers after the last supervised step (step 0 of RL):")
        return evaluate_and_keep_best(run, checkpoint, 0)
    return keep_unevaluated(run, checkpoint, 0)


def supervised_phase(run: Run) -> Phase:
    """Return the warm start with held-out measurements before the first step, at intervals, and after the last step."""
    phase, settings, measure = warm_start_phase(run), run.config.warm_start, make_measure(run.setup)
    check_trained_tokens(run.setup)
    for note in heldout_notes(run.setup):
        run.display.warning(note)

    def measure_heldout(params: Params, done: int) -> dict[str, float]:
        run.display.activity("scoring held-out demonstrations", compiles=True)
        metrics = measure(run.setup.full_params(params))
        run.display.message(f"step {done}: held-out perplexity {metrics['perplexity']:.4g}")
        return metrics

    def make_step(checkpoint: Checkpoint) -> RunStep:
        step = phase.make_step(checkpoint)
        if not phase.steps_done(checkpoint.state):
            run.record(phase.name, 0, measure_heldout(checkpoint.state.params, 0))
            evaluate_accuracy(run, checkpoint)

        def step_and_measure(checkpoint: Checkpoint) -> StepOutcome:
            outcome = required(step(checkpoint), "outcome")
            done = phase.steps_done(outcome.checkpoint.state)
            if done % settings.eval_every and done < settings.steps:
                return outcome
            heldout = measure_heldout(outcome.checkpoint.state.params, done)
            return outcome._replace(metrics=outcome.metrics | heldout)

        return step_and_measure

    def evaluate_at(outcome: StepOutcome) -> tuple[Checkpoint, bool]:
        done = phase.steps_done(outcome.checkpoint.state)
        if done % settings.eval_every or done == settings.steps:  # the last evaluation follows when the phase has ended
            return outcome.checkpoint, False
        accuracy = evaluate_accuracy(run, outcome.checkpoint)
        return outcome.checkpoint, settings.accuracy is not None and accuracy >= settings.accuracy

    return replace(
        phase,
        make_step=make_step,
        evaluate=evaluate_at,
        saves_after=lambda done: done == settings.steps or phase.saves_after(done),
    )


def evaluate_accuracy(run: Run, checkpoint: Checkpoint) -> float:
    """Answer the held-out prompts greedily, and log the accuracy; NaN without a reward."""
    if not has_judge(run):
        return math.nan
    run.display.activity("answering held-out problems", compiles=True)
    metrics = evaluate(run.setup.heldout, run.setup.full_params(checkpoint.state.params)).metrics()
    run.record("eval", 0, metrics)
    run.display.evaluated(int(checkpoint.state.warm_step), metrics)
    return metrics["accuracy"]


def make_measure(setup: Setup) -> Callable[[Params], dict[str, float]]:
    """Build the function that measures parameters on the held-out demonstrations.

    Returns:
        A function from parameters to `heldout_loss`, the mean negative log-likelihood of the assistant's tokens, in nats per
        token, and `perplexity`, the exponential of that loss.

    Raises:
        InputError: no held-out row has a demonstration, or none is within the token limit.
    """
    sequences = sequences_of_demonstrations(heldout_demonstrations(setup))
    scores = make_scores(setup.supervised_score, setup.mesh, setup.rows_at_once(len(sequences.tokens)))
    learned = sequences.learned
    if not learned.any():
        raise InputError(
            "every assistant message in the held-out rows has the weight 0, so perplexity cannot be measured; leave "
            "--heldout-dataset out, or give other rows."
        )

    def measure(params: Params) -> dict[str, float]:
        logp = scores(params, sequences).logp
        loss = -np.where(learned, logp, np.float32(0)).sum(dtype=np.float64) / learned.sum()
        return {"heldout_loss": float(loss), "perplexity": float(np.exp(loss))}

    return measure


def heldout_demonstrations(setup: Setup) -> Demonstrations:
    """Return the held-out demonstrations.

    For plain text, these are the first `heldout_problems` blocks of the held-out text; the others count as dropped.

    Raises:
        InputError: no held-out row has a demonstration, or none is within the token limit.
    """
    problems, config = setup.heldout.prompts.problems, setup.config
    budget = config.sampling.max_response_tokens
    if is_text(config.data.dataset):
        blocks = cut_blocks(problems, setup.tokenizer, budget)
        most = config.data.heldout_problems
        return Demonstrations(*(array[:most] for array in blocks[:-1]), dropped=max(len(blocks.response_tokens) - most, 0))
    kept, chat = select_demonstrated(problems), config.model.chat
    return encode_demonstrations(kept, setup.tokenizer, setup.prompt_length, budget, chat=chat, dialogues=chat)


def check_trained_tokens(setup: Setup) -> None:
    """Refuse demonstrations without a token to train on.

    Raises:
        InputError: every assistant message has the weight 0.
    """
    if not required(setup.demonstrations, "setup.demonstrations").response_mask.any():
        raise InputError(
            "every assistant message in the training rows has the weight 0, so there is nothing to learn; give some of them "
            "the weight 1."
        )


def heldout_notes(setup: Setup) -> list[str]:
    """Describe which held-out demonstrations or blocks the perplexity excludes."""
    problems, dropped = setup.heldout.prompts.problems, heldout_demonstrations(setup).dropped
    if is_text(setup.config.data.dataset):
        most = setup.config.data.heldout_problems
        return (
            [f"Left out {counted(dropped, 'held-out block')}: --heldout-blocks {most} measures the first {most}."]
            if dropped
            else []
        )
    without = sum(problem.demonstration is None for problem in problems)
    return [
        *([f"Left out {counted(dropped, 'held-out demonstration')} longer than the token limit."] if dropped else []),
        *([f"The perplexity excludes {counted(without, 'held-out row')} without a demonstration."] if without else []),
    ]


def with_dialogues(setup: Setup) -> Setup:
    """Return the setup with demonstrations of every assistant turn, not only of the last turn, which RL samples."""
    problems, budget = setup.train.prompts.problems, setup.config.sampling.max_response_tokens
    if not any(count_assistant_turns(move_turns_to_demonstration(problem)) > 1 for problem in problems):
        return setup
    length, tokenizer = setup.prompt_length, setup.tokenizer
    return setup._replace(
        demonstrations=encode_demonstrations(problems, tokenizer, length, budget, chat=True, dialogues=True)
    )


def select_demonstrated(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems that have a demonstration.

    Raises:
        InputError: no problem has a demonstration.
    """
    demonstrated = [problem for problem in problems if problem.demonstration is not None]
    if not demonstrated:
        raise InputError(
            "no held-out row has a demonstration, so perplexity cannot be measured; add the assistant's messages, a completion or "
            "the column `demonstration`, or leave --heldout-dataset out to hold out a part of the dataset."
        )
    return demonstrated


def read_end_metrics(metrics: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Read the held-out metrics before the first update and after the last one from a `metrics.jsonl`.

    The metrics before the first update are NaN if their rows were lost.
    """
    rows = [row for row in read_metrics(metrics) if row["phase"] != "rl"]
    names = (*MEASURES, "accuracy")
    series = {name: [row[name] for row in rows if name in row] for name in names}
    before, after = (
        {name: math.nan if values[index] is None else values[index] for name, values in series.items() if values}
        for index in (0, -1)
    )
    is_complete = any(row["step"] == 0 and MEASURES[0] in row for row in rows)
    return before if is_complete else dict.fromkeys(before, math.nan), after


def show_end(run: Run, models: Sequence[Path]) -> None:
    """Show the outcome, the paths of the files, and the next commands."""
    folder, config, heldout = run.folder, run.config, run.setup.heldout
    run.display.finish(
        [
            *describe_outcome(
                *read_end_metrics(folder.metrics), lowest_perplexity(folder.metrics), config.warm_start.steps
            ),
            *([f"Models: {', '.join(map(str, models))}"] if models else []),
            f"Curves: {folder.curves}",
        ]
    )
    prompt = next((p.prompt for p in heldout.prompts.problems if len(p.prompt) <= 40 and p.prompt.isprintable()), "...")
    commands = next_commands(config, folder.path, prompt, judged=has_judge(run), model=models[-1] if models else None)
    run.display.commands("What to type next:", commands)


def lowest_perplexity(metrics: Path) -> tuple[int, float]:
    """Return the first step with the lowest held-out perplexity, and that perplexity."""
    perplexities = [(row["step"], row["perplexity"]) for row in read_metrics(metrics) if row.get("perplexity") is not None]
    return min(perplexities, key=lambda pair: pair[1], default=(0, math.nan))


def describe_outcome(
    before: Mapping[str, float], after: Mapping[str, float], lowest: tuple[int, float], steps: int
) -> list[str]:
    """Describe in words the held-out metrics before and after training.

    Args:
        before: metrics before the first update.
        after: metrics after the last update.
        lowest: step with the lowest perplexity, and that perplexity.
        steps: number of supervised steps.

    Example:
        >>> describe_outcome({"perplexity": 9.0, "heldout_loss": 2.2}, {"perplexity": 4.0, "heldout_loss": 1.4}, (9, 3.5), 12)
        ['Held-out perplexity: 9 before, 4 after (1.4000 nats per token).', 'It was lowest after step 9 (3.5); the later steps overfit. --steps 9 in a new run stops there.']
    """  # noqa: E501
    lines = [
        f"Held-out perplexity: {before['perplexity']:.4g} before, {after['perplexity']:.4g} after "
        f"({after['heldout_loss']:.4f} nats per token)."
    ]
    step, value = lowest
    if step < steps and f"{value:.4g}" != f"{after['perplexity']:.4g}":
        advice = f"after step {step} ({value:.4g}); the later steps overfit. --steps {step} in a new run stops there."
        lines.append(
            f"It was lowest {advice if step else f'before the first step ({value:.4g}). Try a lower --learning-rate.'}"
        )
    if "accuracy" in after:
        lines.append(f"Held-out accuracy: {before['accuracy']:.1%} before, {after['accuracy']:.1%} after (greedy answers).")
    return lines


def next_commands(config: TrainConfig, run: Path, prompt: str, *, judged: bool, model: Path | None) -> list[str]:
    """List commands that use the model: evaluate it with a reward, talk to it, sample from it, train it with RL, export it.

    Args:
        config: settings of the run.
        run: folder of the run.
        prompt: a held-out prompt.
        judged: whether a reward or an environment judges the run's answers.
        model: folder of the model; None if no model was written.
    """
    path, trust = shlex.quote(str(run)), " --trust" * bool(custom_reward_names(config))
    data = "" if config.data.dataset is None else f" --dataset {shlex.quote(config.data.dataset)}"
    chat = " --chat" * config.model.chat
    if is_text(config.data.dataset):
        learn = [] if model is None else [f"rljax sft --model {shlex.quote(str(model))} --dataset FILE.jsonl"]
        return [f"rljax sample {path} --prompt TEXT", *learn, f"rljax export {path} my-model"]
    return [
        f"rljax eval {path}{trust if judged else ' --reward exact'}",
        f"rljax chat {path}" if config.model.chat else f"rljax sample {path} --prompt {shlex.quote(prompt)}",
        *([] if model is None else [f"rljax train --model {shlex.quote(str(model))}{data} --reward exact{chat}"]),
        f"rljax export {path} my-model",
    ]
