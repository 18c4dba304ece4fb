"""Options of `rljax serve` that choose or judge answers, built from their command-line values."""

import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from rljax.data.problem import Problem
from rljax.data.tokenizer import Tokenizer
from rljax.data.tokenizer_note import MODEL_PREFIX
from rljax.errors import InputError
from rljax.parallel import make_mesh
from rljax.programs.prefix_values import reward_model_value
from rljax.programs.serving import CONFIDENCE, ExtensionSettings
from rljax.programs.trained_policy import OpenPolicy
from rljax.rewards import resolve
from rljax.rewards.reward_scores import judge
from rljax.rewards.votes import vote_reader
from rljax.rollout.continuations import Prefix
from rljax.serving.batching import Batcher, DecodingFailure, Job, Piece, ResponseSampling
from rljax.serving.best_of_n import Chooser, Rank, Ranking, by_confidence, by_votes
from rljax.serving.decoding_rows import RowDecoder
from rljax.serving.extensions import Extension, SampledAnswer, Score, problem_of
from rljax.serving.filters import Filter, Filters
from rljax.serving.protocol import MAX_TEMPERATURE, ApiError, Limits
from rljax.text import counted

if TYPE_CHECKING:
    from rljax.serving.drift import HeldoutAnswers


def score_named(name: str, *, chat: bool) -> Score:
    """Look up a function that scores answers.

    Args:
        name: `model:FOLDER` for a reward model, or a reward, as for `--reward`.
        chat: for a reward model that rljax did not train, whether prompts are formatted with the chat template.

    Raises:
        InputError: there is no such model or reward, or the reward cannot judge without a reference answer.
    """
    if name.startswith(MODEL_PREFIX):
        mesh = make_mesh(1, 1)  # one device, because a second program on several could deadlock with decoding
        value = reward_model_value(name.removeprefix(MODEL_PREFIX), mesh, chat=chat)
        return lambda problems, texts: value(
            [Prefix(problem, (), (), text, (), ended=True) for problem, text in zip(problems, texts, strict=True)]
        )
    reward = resolve(name)
    try:
        judge(reward, ["1"], ["1"], {}, max_failure_share=0)
    except InputError as error:
        raise InputError(
            f"{name!r} cannot judge an answer to a prompt that comes without a reference ({error}); name a reward that reads the "
            f"text alone, such as constitution:FILE, or {MODEL_PREFIX}FOLDER."
        ) from error

    def score(problems: Sequence[Problem], texts: Sequence[str]) -> Float[np.ndarray, "N"]:
        prompts, chats = [problem.prompt for problem in problems], [problem.messages for problem in problems]
        try:
            scores = judge(reward, prompts, texts, {}, max_failure_share=1, chats=chats)
        except InputError as error:
            raise ApiError(500, f"The answer cannot be judged: {error}", code="judging_failed") from error
        return np.where(scores.valid, scores.total, np.nan)

    return score


def by_score(score: Score, tokenizer: Tokenizer) -> Rank:
    """Build a function that ranks answers by a score of their text."""

    def rank(answers: Sequence[SampledAnswer]) -> Ranking:
        problems = [problem_of(answer.prompt, tokenizer) for answer in answers]
        return Ranking(score(problems, [answer.choice.text for answer in answers]), "score")

    return rank


def read_filter(text: str, *, chat: bool) -> Filter:
    """Parse `NAME,least=NUMBER`; the minimum score of a constitution is 0 by default, so that no rule may be broken.

    Args:
        text: the filter as the user types it.
        chat: see `score_named`.

    Raises:
        InputError: there is no such score (see `score_named`), or the minimum score is missing or is not a number.
    """
    name, separator, written = text.rpartition(",least=")
    try:
        least = float(written) if separator else 0.0
    except ValueError:
        least = math.nan
    name = name if separator else text
    if not math.isfinite(least) or not (separator or name.startswith("constitution:")):
        raise InputError(f"the filter {text!r} needs the lowest score that passes; write {name},least=NUMBER.")
    return Filter(name, score_named(name, chat=chat), least)


def answer_heldout(opened: OpenPolicy, decoder: RowDecoder, temperature: float, *, max_tokens: int) -> "HeldoutAnswers":
    """Answer each held-out problem of a run once, with the code that serves requests.

    Args:
        opened: the policy of the run.
        decoder: decoder of the server, with all its rows free.
        temperature: sampling temperature.
        max_tokens: maximum number of tokens of an answer.

    Raises:
        InputError: the policy is not from a run, has too few held-out problems, or answers in several turns; a prompt does not fit;
            or the temperature is out of range.
    """
    from rljax.serving.drift import MIN_HELDOUT, HeldoutAnswers  # noqa: PLC0415  importing SciPy's statistics takes a second

    prompts, stop = [tuple(tokens) for tokens in opened.worker.prompts.tokens], opened.worker.sampling.stop
    if opened.model_folder is not None:
        raise InputError("--drift needs the held-out problems of a run, but this is a model folder; leave --drift out.")
    if opened.worker.environment is not None or opened.skipped is not None:
        raise InputError("--drift compares answers of one turn, but this run has an environment; leave --drift out.")
    if len(prompts) < MIN_HELDOUT:
        raise InputError(
            f"--drift needs at least {MIN_HELDOUT} held-out problems, but the run has {len(prompts)}; leave --drift out."
        )
    if not 0 <= temperature <= MAX_TEMPERATURE or max(map(len, prompts)) >= decoder.slots:
        raise InputError(
            f"--drift {temperature} needs a temperature from 0 to {MAX_TEMPERATURE} and a --context above the "
            f"{max(map(len, prompts))} tokens of the longest held-out prompt."
        )
    pieces: list[list[Piece | DecodingFailure]] = [[] for _ in prompts]
    batcher = Batcher(decoder, opened.tokenizer.decode, queue=len(prompts), version=0)
    jobs = []
    for index, prompt in enumerate(prompts):
        most = min(max_tokens, decoder.slots - len(prompt))
        sampling = ResponseSampling(most, temperature, top_k=None, top_p=None, seed=index, stop=tuple(stop))
        jobs.append(Job(prompt, sampling, pieces[index].append))
    batcher.submit(jobs)
    batcher.start()
    batcher.close(threading.TIMEOUT_MAX)
    if batcher.fault:
        raise InputError(f"the held-out problems cannot be answered: {batcher.fault}.")
    logp = [[value for piece in row if isinstance(piece, Piece) for value in piece.logp] for row in pieces]
    values = np.array([[len(row), np.mean(row)] for row in logp], np.float64)
    return HeldoutAnswers(values, temperature, tuple(stop))


def make_extensions(
    settings: ExtensionSettings,
    opened: OpenPolicy,
    decoder: RowDecoder,
    limits: Limits,
    report: Callable[[str], None],
) -> tuple[Extension, ...]:
    """Build the extensions in the order in which they process answers; the chooser selects among answers that pass the filters.

    Args:
        settings: the options.
        opened: the policy.
        decoder: decoder of the server, with all its rows free.
        limits: limits on the requests that the server accepts.
        report: shows a line of text to the user.

    Raises:
        InputError: an option cannot be used.
    """
    extensions: list[Extension] = []
    if settings.drift is not None:
        from rljax.serving.drift import DriftMonitor  # noqa: PLC0415  as above

        heldout = answer_heldout(opened, decoder, settings.drift, max_tokens=limits.max_tokens)
        length, logprob = heldout.values.mean(0)
        report(
            f"the answers to {counted(len(heldout.values), 'held-out problem')} have {length:.4g} tokens and log-probability "
            f"{logprob:.3g} on average"
        )
        extensions.append(DriftMonitor(heldout, report))
    if settings.filter_prompts or settings.filter_answers:
        prompts, answers = (
            [read_filter(text, chat=opened.config.model.chat) for text in texts]
            for texts in (settings.filter_prompts, settings.filter_answers)
        )
        extensions.append(Filters(prompts, answers, opened.tokenizer))
    return (*extensions, *make_chooser(settings, opened, queue=limits.max_responses))


def make_chooser(settings: ExtensionSettings, opened: OpenPolicy, *, queue: int) -> tuple[Extension, ...]:
    """Build the chooser among several samples, or () for one sample. `queue` is the maximum number of waiting responses."""
    samples = settings.majority if settings.best_of is None else settings.best_of
    if settings.best_of is not None and settings.majority is not None:
        raise InputError("--best-of and --majority each choose the answer; give one of them.")
    if settings.choose_by != CONFIDENCE and settings.best_of is None:
        raise InputError(f"--choose-by {settings.choose_by} needs --best-of, the number of answers to choose from.")
    if samples is None:
        return ()
    if not 2 <= samples <= queue:
        raise InputError(
            f"{counted(samples, 'sample')} per prompt cannot be compared: give 2 to {queue}, the length of the queue."
        )
    if settings.majority is not None:
        rank = by_votes(vote_reader(opened.config.reward.name))
    elif settings.choose_by == CONFIDENCE:
        rank = by_confidence
    else:
        rank = by_score(score_named(settings.choose_by, chat=opened.config.model.chat), opened.tokenizer)
    return (Chooser(samples, rank, max_samples=queue),)
