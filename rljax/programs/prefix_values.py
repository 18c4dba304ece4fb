"""Sources of values for response prefixes: the critic of a run, or a reward model."""

import math
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from rljax.data.problem import Problem
from rljax.data.prompts import left_pad, padded_length, right_pad
from rljax.data.tokenizer_note import MODEL_PREFIX
from rljax.errors import InputError
from rljax.importing import check_trusted, is_custom
from rljax.models import Policy
from rljax.models.policy import Params
from rljax.parallel import add_shardings, policy_shardings, put, row_shards, shardings
from rljax.preference.reward_model import (
    load_reward_model,
    lowest_score,
    make_score,
    make_step_judge,
    sequence_tokens,
)
from rljax.programs.trained_policy import OpenPolicy, find_run
from rljax.rewards.correctness import Failed
from rljax.rollout import Sequences
from rljax.rollout.continuations import Prefix, PrefixEvaluator
from rljax.tracking.run_folder import RunFolder
from rljax.training.checkpoints.checkpoint import restore_params
from rljax.training.config import TrainConfig
from rljax.training.objective.algorithm import add_correction, make_algorithm
from rljax.training.objective.critic import CriticModel, make_critic
from rljax.training.parts.custom_parts import read_saved_settings, refuse_missing
from rljax.training.value_update import make_values

CRITIC = "critic"
"""Name that selects the run's critic; `model:FOLDER` selects a reward model."""
ROWS = 32
"""Number of prefixes that are evaluated at once."""


def load_value_function(name: str, opened: OpenPolicy, target: str | Path, *, which: str = "best") -> PrefixEvaluator:
    """Look up a value function: `critic` is the critic of the run, `model:FOLDER` a reward model.

    Args:
        name: `critic` or `model:FOLDER`.
        opened: the policy of the run.
        target: folder of the run, or of its checkpoint.
        which: checkpoint of the run.

    Raises:
        InputError: the name is neither of these, the run has no critic, or the folder contains no reward model.
    """
    if name.startswith(MODEL_PREFIX):
        return reward_model_value(name.removeprefix(MODEL_PREFIX), opened.mesh, chat=opened.config.model.chat)
    if name != CRITIC:
        raise InputError(
            f"There is no value {name!r}; choose {CRITIC!r}, or {MODEL_PREFIX + 'FOLDER'!r} for a reward model."
        )
    return critic_value(opened, target, which=which)


def critic_value(opened: OpenPolicy, target: str | Path, *, which: str = "best") -> PrefixEvaluator:
    """Make a function that returns the critic's value after a prefix, in units of the reward.

    For a complete response, this is the value at the state before the end token, the last state that the critic saw in training.

    Args:
        opened: the policy of the run.
        target: folder of the run, or of its checkpoint.
        which: checkpoint of the run.

    Raises:
        InputError: the target is not a run, its algorithm has no critic, or its algorithm cannot be restored, because it was passed
            to `train` as an argument.
    """
    path, checkpoint = find_run(target, which)
    if path is None:
        raise InputError(
            f"{str(target)!r} is not the folder of a run, so it has no critic; give {MODEL_PREFIX}FOLDER instead."
        )
    run = RunFolder.open(path)
    config, needed = read_saved_settings(run.config)
    refuse_missing([name for name in needed if name == "algorithm"])
    check_trusted(run.path, [name for name in (config.algorithm.name,) if is_custom(name)], trust=opened.trust)
    critic = _critic_of(config, opened)
    params = _critic_params(critic, opened.policy, opened.params, opened.mesh, run.checkpoints / checkpoint)
    compiled = make_values(critic, opened.mesh, -(-ROWS // row_shards(opened.mesh)) * row_shards(opened.mesh))
    end = opened.worker.sampling.eos_ids[0]

    def value(prefixes: Sequence[Prefix]) -> Float[np.ndarray, "N"]:
        found = np.zeros(len(prefixes), np.float32)
        ends = np.array([len(prefix.tokens) for prefix in prefixes], int)
        lengths = np.array([padded_length(length + 1) for length in ends.tolist()], int)
        for length in np.unique(lengths):
            indices = np.flatnonzero(lengths == length)
            values = compiled(params, _rows_with_end([prefixes[row] for row in indices.tolist()], int(length), end))
            found[indices] = values[np.arange(len(indices)), ends[indices]]
        return found

    return value


def _critic_of(config: TrainConfig, opened: OpenPolicy) -> CriticModel:
    """Make the critic of these settings.

    Raises:
        InputError: the algorithm has no critic.
    """
    tokenizer = opened.tokenizer
    ends = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id}
    critic = make_critic(add_correction(make_algorithm(config), config), config, opened.policy, opened.mesh, **ends)
    if critic is None:
        raise InputError(
            f"The algorithm of the run, {config.algorithm.name}, has no critic; give {MODEL_PREFIX}FOLDER for a reward model, or a "
            "run of ppo, vc_ppo, vapo or open_reasoner_zero."
        )
    return critic


def _critic_params(critic: CriticModel, policy: Policy, policy_params: Params, mesh: Mesh, folder: Path) -> Params:
    """Restore the critic's parameters from a checkpoint onto the devices."""
    shapes = jax.eval_shape(critic.function.init, jax.random.key(0), policy_params)
    critic_shardings = policy_shardings(mesh, shapes, policy_params, policy.partition)
    return restore_params(folder, add_shardings(shapes, critic_shardings), within=("critic", "params"))


def _rows_with_end(prefixes: Sequence[Prefix], length: int, end: int) -> Sequences:
    """Pack prefixes into rows, each with the end token appended, because the critic returns the value before each token."""
    prompts = left_pad([prefix.prompt for prefix in prefixes], padded_length(max(len(p.prompt) for p in prefixes)), 0)
    tokens, attention = right_pad([[*prefix.tokens, end] for prefix in prefixes], length, 0)
    logp = np.zeros(tokens.shape, np.float32)
    for row, prefix in enumerate(prefixes):
        logp[row, : len(prefix.logp)] = prefix.logp
    return Sequences(*prompts, tokens, attention, logp)


def reward_model_value(folder: str, mesh: Mesh, *, chat: bool) -> PrefixEvaluator:
    """Make a function that scores prefixes with a reward model.

    The value is the model's output at the last token, or at the end token if the prefix is finished. For a process reward model,
    it is the score of the prefix's worst step. If the model's tokenizer cannot encode a prefix, the value is NaN.

    Args:
        folder: folder of the reward model, or a hub id.
        mesh: the devices.
        chat: for a model that rljax did not train, whether prompts are formatted with the chat template.

    Raises:
        InputError: the folder contains no reward model that can be loaded; see `load_reward_model`.
    """
    trained = load_reward_model(folder, chat=chat)
    if trained.step_separator is not None:
        judge = make_step_judge(trained, mesh, rows=ROWS)

        def score_worst_steps(prefixes: Sequence[Prefix]) -> Float[np.ndarray, "N"]:
            judged = judge([prefix.problem for prefix in prefixes], [prefix.text for prefix in prefixes])
            return np.array(
                [math.nan if isinstance(steps, Failed) else lowest_score(steps) for steps in judged], np.float32
            )

        return score_worst_steps
    params = put(trained.params, shardings(mesh, trained.params))
    score = make_score(trained.model, mesh, rows=ROWS)

    def encode(problem: Problem, text: str, *, ended: bool) -> list[int] | None:
        try:
            tokens = sequence_tokens(
                problem.prompt,
                text,
                trained.tokenizer,
                chat=trained.chat,
                messages=problem.messages,
                columns=problem.columns,
            )
        except InputError:  # the tokenizer cannot encode the text, so the value is NaN
            return None
        return tokens if ended else tokens[:-1]

    def value(prefixes: Sequence[Prefix]) -> Float[np.ndarray, "N"]:
        rows = [encode(prefix.problem, prefix.text, ended=prefix.ended) for prefix in prefixes]
        found = np.full(len(rows), np.nan, np.float32)
        indices = [index for index, row in enumerate(rows) if row is not None]
        found[indices] = score(params, [row for row in rows if row is not None])
        return found

    return value
