"""`--teacher self`: the model is its own teacher, whose prompt adds a demonstration, a successful response or feedback.

The student samples from the plain prompt. The teacher scores the same response after the longer prompt, and the log-ratio is the
student's advantage (`rljax.ops.distillation.teacher_log_ratio`). On average, this gives the gradient of the reverse KL per token ::

    A_it = log π_ϕ(o_it | s(x), o_i,<t) - log π(o_it | x, o_i,<t)        ϕ ← (1 - r) ϕ + r θ after each step

where s(x) is the prompt with the text shown to the teacher, θ and ϕ are the parameters of student and teacher, and r is
`teacher_rate`.

Sources: SDFT, arXiv:2601.19897, which shows a demonstration; SDPO, arXiv:2601.20802, which shows a successful response of the
group, and feedback. In both, the teacher slowly follows the student. Both papers compute the KL over the vocabulary, or its most
likely tokens; here the sampled token estimates the KL. If there is nothing to show for a response, the response has no gradient,
but still counts in the denominator of the loss.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from rljax.algorithms import Algorithm
from rljax.data.problem import Problem
from rljax.data.prompts import left_pad, padded_length, prompt_tokens
from rljax.errors import InputError
from rljax.options.distillation import teacher_kl
from rljax.options.moving_reference import average_program
from rljax.rollout import Groups, Sequences
from rljax.rollout.groups import correctness_masks
from rljax.training.config import TrainConfig
from rljax.training.metrics import LearnMetrics
from rljax.training.rollout_data import FieldScore, ScoreInputs, make_policy_scores
from rljax.training.scoring import policy_params
from rljax.training.setup import Setup
from rljax.training.state import Option, TrainState, Updates

NAME, SELF = "self_distillation", "self"
DEMONSTRATION, SUCCESS = "demonstration", "success"
"""Values of `teacher_shows` that are not columns: the problem's demonstration, or another right response of the group."""
TEMPLATE = "{prompt}\n\nFor your information:\n\n{shown}\n\nNow respond to the request above."
DEFAULT_RATE = 0.05


class SelfTeacher(NamedTuple):
    """The teacher of a run of self-distillation, in place of `rljax.options.distillation.Teacher`."""

    make_logp: Callable[[Setup], FieldScore]
    """Builds the function that scores a rollout."""


def install(setup: Setup) -> Setup:
    """Make the model its own teacher."""
    check_settings(setup.algorithm, setup.config)
    if setup.tokenizer is None:  # `rljax plan` has no tokenizer, and does not count the teacher
        return setup
    problems, shown = setup.train.prompts.problems, setup.config.algorithm.teacher_shows
    if shown != SUCCESS and not any(text_shown(problem, shown or "") for problem in problems):
        what = "a demonstration" if shown == DEMONSTRATION else f"a text in the column {shown}"
        raise InputError(
            f"teacher_shows={shown!r}: no problem has {what}; choose {DEMONSTRATION!r}, {SUCCESS!r}, or a column with texts."
        )
    check_prompts(setup)
    rate = setup.config.algorithm.teacher_rate
    follow = _follow(DEFAULT_RATE if rate is None else rate)
    option = Option(NAME, init=partial(jax.tree.map, jnp.copy), measure=teacher_kl, after_updates=follow)
    return setup._replace(teacher=SelfTeacher(make_logp)).with_option(option)


def check_settings(algorithm: Algorithm, config: TrainConfig) -> None:
    """Raise an `InputError` if self-distillation cannot work with the settings."""
    settings = config.algorithm
    if settings.teacher != SELF:
        raise InputError(
            "teacher_shows, teacher_rate and teacher_template apply only to a model that is its own teacher; set --teacher self, "
            "or leave these settings out."
        )
    if not algorithm.needs("teacher_logp") or algorithm.teacher_divergence is not None:
        raise InputError(
            f"teacher='self' is for on_policy_distillation, but the algorithm is {settings.name}; choose on_policy_distillation."
        )
    if not settings.teacher_shows:
        raise InputError(
            "teacher='self' without a text that only the teacher sees teaches nothing; set --teacher-shows to "
            f"{DEMONSTRATION!r} (SDFT), {SUCCESS!r} (SDPO) or a column of the dataset."
        )
    template = settings.teacher_template
    if template is not None and ("{prompt}" not in template or "{shown}" not in template):
        raise InputError(f"teacher_template={template!r} must contain {{prompt}} and {{shown}}.")
    if settings.teacher_rate is not None and not 0 <= settings.teacher_rate <= 1:
        raise InputError(f"teacher_rate={settings.teacher_rate} must be from 0 (the initial model) to 1 (the latest).")


def check_prompts(setup: Setup) -> None:
    """Encode the teacher's prompts once, so that a run does not fail after its warm start; sampled text needs no check.

    Raises:
        InputError: the tokenizer cannot encode a prompt.
    """
    shown, template = setup.config.algorithm.teacher_shows or "", setup.config.algorithm.teacher_template or TEMPLATE
    for problem in setup.train.prompts.problems:
        text = "" if shown == SUCCESS else text_shown(problem, shown)
        if text or shown == SUCCESS:
            try:
                prompt_tokens(teacher_problem(problem, text, template), setup.tokenizer, chat=setup.config.model.chat)
            except InputError as error:
                raise InputError(
                    f"The teacher's prompt cannot be encoded: {error} Or set --teacher-template to a text with {{prompt}} and "
                    "{shown} that the tokenizer can encode."
                ) from error


def text_shown(problem: Problem, shown: str) -> str:
    """Return the text that the teacher is shown for a problem: the demonstration or a column's text; empty if there is none.

    Example:
        >>> problem = Problem("1+1=", "2", "1+1=2", {"hint": "Count."})
        >>> text_shown(problem, "demonstration"), text_shown(problem, "hint"), text_shown(problem, "other")
        ('1+1=2', 'Count.', '')
    """
    text = problem.demonstration if shown == DEMONSTRATION else problem.columns.get(shown)
    return text if isinstance(text, str) else ""


def teacher_problem(problem: Problem, text: str, template: str = TEMPLATE) -> Problem:
    """Return a problem with a text added to its prompt or, in a chat, to the last message.

    Args:
        problem: the student's problem.
        text: what the teacher is shown.
        template: the teacher's prompt, in which `{prompt}` and `{shown}` stand for the student's prompt and the text.

    Example:
        >>> teacher_problem(Problem("1+1=", "2"), "It is even.", "({shown}) {prompt}").prompt
        '(It is even.) 1+1='
    """

    def fill(prompt: str) -> str:
        parts = re.split(r"(\{prompt\}|\{shown\})", template)
        return "".join({"{prompt}": prompt, "{shown}": text}.get(part, part) for part in parts)

    if problem.messages is None:
        return replace(problem, prompt=fill(problem.prompt))
    *others, last = problem.messages
    return replace(problem, messages=(*others, {**last, "content": fill(last["content"])}))


def next_right_responses(right: Bool[np.ndarray, "P G"]) -> Int[np.ndarray, "P G"]:
    """Choose for each response the next right response of its group, wrapping around; -1 if there is no other.

    Example:
        >>> next_right_responses(np.array([[True, False, True, False], [False, True, False, False]])).tolist()
        [[2, 2, 0, 0], [1, -1, 1, 1]]
    """
    size = right.shape[1]
    steps = np.arange(1, size)
    candidates = (np.arange(size)[:, None] + steps) % size
    is_right = right[:, candidates]
    first = np.take_along_axis(np.broadcast_to(candidates, is_right.shape), is_right.argmax(-1)[..., None], -1)[..., 0]
    return np.where(is_right.any(-1), first, -1)


def list_shown_texts(setup: Setup, groups: Groups) -> list[str]:
    """Return the text that the teacher is shown for each response, group by group; empty if there is none."""
    problems, shown = setup.train.prompts.problems, setup.config.algorithm.teacher_shows or ""
    if shown != SUCCESS:
        by_group = ["" if index < 0 else text_shown(problems[index], shown) for index in groups.prompt_ids]
        return [text for text in by_group for _ in range(groups.tokens.shape[1])]
    rollout = (
        groups.rollout
        if groups.rollout.valid is not None
        else groups.rollout._replace(valid=np.ones(groups.turns.shape, bool))
    )
    right, known = correctness_masks(rollout)
    chosen = next_right_responses(right & known)

    def text(group: int, member: int) -> str:
        return "" if member < 0 else setup.train.text(groups.tokens[group, member], groups.attention[group, member])

    return [text(group, member) for group, members in enumerate(chosen.tolist()) for member in members]


def teacher_sequences(setup: Setup, inputs: ScoreInputs) -> tuple[Sequences, Bool[np.ndarray, "N"]]:
    """Return the responses after the teacher's prompts, and a mask of the rows for which the teacher is shown a text.

    Raises:
        InputError: the tokenizer cannot encode a prompt.
    """
    groups, problems = inputs.groups, setup.train.prompts.problems
    template = setup.config.algorithm.teacher_template or TEMPLATE
    texts, size = list_shown_texts(setup, groups), groups.tokens.shape[1]
    plain = [tokens[mask].tolist() for tokens, mask in zip(groups.prompt_tokens, groups.prompt_attention, strict=True)]

    def tokens_of(row: int) -> list[int]:
        if not texts[row]:
            return plain[row // size]
        problem = teacher_problem(problems[groups.prompt_ids[row // size]], texts[row], template)
        return prompt_tokens(problem, setup.tokenizer, chat=setup.config.model.chat)

    rows = [tokens_of(row) for row in range(len(texts))]
    prompts = left_pad(rows, padded_length(max(map(len, rows))), setup.tokenizer.pad_token_id)
    sequences = inputs.sequences._replace(prompt_tokens=prompts[0], prompt_attention=prompts[1])
    return sequences, np.array([bool(text) for text in texts])


def make_logp(setup: Setup) -> FieldScore:
    """Build the function that scores a rollout with the teacher; without a text to show, a response keeps the student's scores."""
    scores = make_policy_scores(setup)

    def logp(inputs: ScoreInputs) -> np.ndarray:
        sequences, is_shown = teacher_sequences(setup, inputs)
        found = np.asarray(scores(policy_params(setup.base, inputs.state.options[NAME]), sequences).logp)
        own = np.asarray(inputs.groups.rollout.policy_logp).reshape(found.shape)
        return np.where(is_shown[:, None], found, own)

    return logp


def _follow(rate: float) -> Callable[[TrainState, LearnMetrics, Updates], tuple[TrainState, dict[str, float]]]:
    """Build the function that moves the teacher towards the student, by `rate` of the distance, after each step."""
    average = average_program(rate)

    def move(state: TrainState, metrics: LearnMetrics, updates: Updates) -> tuple[TrainState, dict[str, float]]:
        del metrics, updates
        return state._replace(options=state.options | {NAME: average(state.options[NAME], state.params)}), {}

    return move
