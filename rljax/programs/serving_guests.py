"""Options of `rljax serve` that choose or judge answers, built from the names that a person types."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from rljax.data.cells import joined
from rljax.data.problem import Problem
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.parallel import make_mesh
from rljax.preference.note import PREFIX
from rljax.programs.prefix_values import reward_model_value
from rljax.programs.serving import CONFIDENCE, GuestSettings
from rljax.programs.trained_policy import OpenPolicy
from rljax.rewards import resolve
from rljax.rewards.ballot import vote_for
from rljax.rewards.protocol import judge
from rljax.rollout.continuations import Prefix
from rljax.serving.choosing import Chooser, Rank, Ranking, by_confidence, by_votes
from rljax.serving.guests import Guest, Prompt, SampledAnswer
from rljax.serving.protocol import ApiError

Score = Callable[[Sequence[Problem], Sequence[str]], Float[np.ndarray, "N"]]
"""(problems, texts) -> score of each text; NaN where there is none."""


def score_named(name: str, *, chat: bool) -> Score:
    """Look up a score of texts.

    Args:
        name: `model:FOLDER` for a reward model, or a reward as `--reward` takes it.
        chat: for a reward model without a note, whether prompts go through its chat template.

    Raises:
        InputError: there is no such model or reward, or the reward cannot judge without a reference answer.
    """
    if name.startswith(PREFIX):
        mesh = make_mesh(1, 1)  # one device: a second program on several could wait for the decoding thread forever
        value = reward_model_value(name.removeprefix(PREFIX), mesh, chat=chat)
        return lambda problems, texts: value(
            [Prefix(problem, (), (), text, (), ended=True) for problem, text in zip(problems, texts, strict=True)]
        )
    reward = resolve(name)
    try:
        judge(reward, ["1"], ["1"], {}, max_failure_share=0)
    except InputError as error:
        raise InputError(
            f"{name!r} cannot judge an answer to a prompt that comes without a reference ({error}); name a reward that reads the "
            f"text alone, such as constitution:FILE, or {PREFIX}FOLDER."
        ) from error

    def score(problems: Sequence[Problem], texts: Sequence[str]) -> Float[np.ndarray, "N"]:
        prompts, chats = [problem.prompt for problem in problems], [problem.messages for problem in problems]
        try:
            scores = judge(reward, prompts, texts, {}, max_failure_share=1, chats=chats)
        except InputError as error:
            raise ApiError(500, f"The answer cannot be judged: {error}", code="judging_failed") from error
        return np.where(scores.valid, scores.total, np.nan)

    return score


def problem_of(prompt: Prompt, tokenizer: Tokenizer) -> Problem:
    """Return a prompt of a request as a reward reads it."""
    written = prompt.written.get("prompt")
    if isinstance(written, str):
        return Problem(written, "")
    if written is None:
        return Problem(tokenizer.decode(prompt.tokens), "")
    columns = {name: value for name, value in prompt.written.items() if name != "prompt"}
    return Problem(joined(written), "", columns=columns, messages=tuple(written))


def by_score(score: Score, tokenizer: Tokenizer) -> Rank:
    """Rank answers by a score of their text."""

    def rank(answers: Sequence[SampledAnswer]) -> Ranking:
        problems = [problem_of(answer.prompt, tokenizer) for answer in answers]
        return Ranking(score(problems, [answer.choice.text for answer in answers]), "score")

    return rank


def make_guests(settings: GuestSettings, opened: OpenPolicy, *, queue: int) -> tuple[Guest, ...]:
    """Build the options, in the order in which they see answers.

    Args:
        settings: the options.
        opened: the policy.
        queue: most responses that wait for a row.

    Raises:
        InputError: an option cannot be used.
    """
    samples = settings.majority if settings.best_of is None else settings.best_of
    if settings.best_of is not None and settings.majority is not None:
        raise InputError("--best-of and --majority each choose the answer; give one of them.")
    if settings.choose_by != CONFIDENCE and settings.best_of is None:
        raise InputError(f"--choose-by {settings.choose_by} needs --best-of, the number of answers to choose from.")
    if samples is None:
        return ()
    if not 2 <= samples <= queue:
        raise InputError(f"{samples} samples per prompt cannot be compared: give 2 up to the queue, {queue}.")
    if settings.majority is not None:
        rank = by_votes(vote_for(opened.config.reward.name))
    elif settings.choose_by == CONFIDENCE:
        rank = by_confidence
    else:
        rank = by_score(score_named(settings.choose_by, chat=opened.config.model.chat), opened.tokenizer)
    return (Chooser(samples, rank, most_rows=queue),)
