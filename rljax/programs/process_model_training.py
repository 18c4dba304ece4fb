"""Training of a process reward model with the cross-entropy of step labels (`rljax reward-model --process`)."""

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import numpy as np

from rljax.data.bad_rows import Fault
from rljax.data.labeled_solutions import LabeledSolution, read_solutions
from rljax.data.prompts import list_prompt_omissions
from rljax.models import Params, count_parameters
from rljax.parallel import mesh_of, micro_batches, row_shards, shardings
from rljax.preference.config import RewardModelConfig
from rljax.preference.pair_update import problem_from_prompt
from rljax.preference.process_update import (
    EncodedSolutions,
    SolutionRows,
    encode_solutions,
    evaluate_solutions,
    make_process_step,
)
from rljax.preference.reward_model import RewardModel, make_step_scores, save_reward_model
from rljax.programs.pair_training import (
    PairTraining,
    Update,
    check_sizes,
    make_initial_state,
    make_optimizer,
    make_split,
    make_update,
    microbatch_of,
    pair_state,
    steps_of,
)
from rljax.programs.reward_model_training import make_reward_model
from rljax.text import counted
from rljax.tracking.display_text import STEPS_RIGHT
from rljax.training.state import TrainState


def make_process_training(config: RewardModelConfig) -> tuple[PairTraining, TrainState]:
    """Build everything that the training of a process reward model uses, and the initial training state on the mesh.

    Raises:
        InputError: settings or data are invalid; the message explains what to change.
    """
    mesh = mesh_of(config)
    check_sizes(config, mesh)

    def read(dataset: str, split: str) -> tuple[list[LabeledSolution], list[Fault]]:
        return read_solutions(dataset, split=split, prompt_column=config.prompt_column, on_error=config.on_error)

    *rows, faults = make_split(config, read)
    start = make_reward_model(config)._replace(step_separator=config.separator)
    options = {"max_tokens": config.max_tokens, "chat": start.chat, "separator": config.separator}
    train, heldout = (encode_solutions(part, start.tokenizer, **options) for part in rows)
    steps, longest = steps_of(config, len(train.tokens)), max(map(len, train.tokens))
    microbatch = microbatch_of(config, row_shards(mesh), -(-longest // 2))  # a solution counts as a pair of halves
    state = make_initial_state(config, start.params, steps)
    scores = make_step_scores(start.model, mesh)

    def update_of(state: TrainState) -> Update:
        step = make_process_step(start.model, make_optimizer(config, steps)[0], pair_state(state), mesh)
        rows = train.padded(start.tokenizer.pad_token_id)

        def make_batch(indices: list[int]) -> SolutionRows:
            return micro_batches(SolutionRows(*(array[indices] for array in rows)), microbatch)

        return make_update(config, mesh, step, make_batch, pairs=len(train.tokens), steps=steps)

    training = PairTraining(
        phase="reward_model",
        command="reward-model",
        call=None,
        header=[
            f"Process reward model from {config.model or 'random weights'}, {count_parameters(start.params):,} parameters",
            f"{len(train.tokens):,} solutions with {sum(map(len, train.ends)):,} steps, {len(heldout.tokens):,} solutions held "
            f"out; {counted(steps, 'update')} of {counted(config.batch, 'solution')}, {microbatch} at a time",
        ],
        warnings=[*faults, *_notes(config, start, rows, [train, heldout])],
        judged_count=sum(map(len, heldout.ends)),
        fingerprints={"the solutions": _fingerprint([train, heldout])},
        steps=steps,
        make_update=update_of,
        judge=lambda params: evaluate_solutions(scores, params, heldout),
        save=partial(_save, start),
        closing_lines=partial(_describe_outcome, heldout),
        commands=_commands,
        accuracy_label=STEPS_RIGHT,
    )
    return training, jax.device_put(state, shardings(mesh, state))


def _notes(
    config: RewardModelConfig,
    start: RewardModel,
    rows: Sequence[Sequence[LabeledSolution]],
    parts: Sequence[EncodedSolutions],
) -> list[str]:
    """List warnings about omitted parts of chats, overlong solutions, and steps that contain the separator."""
    problems = [problem_from_prompt(solution) for part in rows for solution in part]
    dropped, divided = sum(part.dropped for part in parts), sum(part.steps_with_separator for part in parts)
    notes = [f"Left out {counted(dropped, 'solution')} with more than {config.max_tokens} tokens."] if dropped else []
    if divided:
        notes.append(
            f"{counted(divided, 'step')} {'contains' if divided == 1 else 'contain'} the separator {config.separator!r}, so the "
            "model would judge a response with such a step at more positions than there are labels; choose another "
            "--step-separator."
        )
    return [*list_prompt_omissions(problems, start.tokenizer, chat=start.chat), *notes]


def _fingerprint(parts: Sequence[EncodedSolutions]) -> str:
    """Hash the solutions' tokens and labels, in order."""
    contents = [[part.tokens, part.ends, part.labels] for part in parts]
    return hashlib.sha256(repr(contents).encode()).hexdigest()


def _describe_outcome(
    heldout: EncodedSolutions, before: dict[str, float], after: dict[str, float], folder: Path
) -> list[str]:
    """Describe the outcome in a few lines."""
    right = float((np.concatenate(heldout.labels) > 0.5).mean())
    return [
        f"Held-out steps judged like their labels: {before['accuracy']:.1%} before, {after['accuracy']:.1%} after; "
        f"the more frequent label alone would give {max(right, 1 - right):.1%}.",
        f"Process reward model: {folder}",
    ]


def _commands(folder: str) -> list[str]:
    """Return commands that use the model as a step reward, as a reward, and as the value in a search."""
    return [
        f"rljax train --algorithm grpo_process --step-reward model:{folder} ...",
        f"rljax train --reward model:{folder} ...",
        f"rljax search RUN --value model:{folder}",
    ]


def _save(start: RewardModel, params: Params, folder: Path) -> None:
    save_reward_model(folder, start._replace(params=jax.device_get(params)))
