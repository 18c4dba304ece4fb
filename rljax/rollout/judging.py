"""Judge responses: decode them, call the reward, and assign the rewards of reasoning steps to tokens."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Bool, Float32, Int, Int8

from rljax.data.problem import Problem, reward_columns
from rljax.data.tokenizer import Tokenizer, completion_text
from rljax.parallel import copy_from_first, divide, run_together
from rljax.rewards import reward_scores
from rljax.rewards.reward_call import CallResult, FailedJudgeError, OutOfRangeError, Progress, join_results
from rljax.rewards.steps import Step, assign_to_tokens, score_steps
from rljax.rollout.engine_protocols import Response

WAITS = (1.0, 5.0, 25.0)
"""Seconds to wait before each retry."""
PAUSE = 0.05
"""Seconds between two checks of whether the run should stop."""
MISTAKES = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, SyntaxError, TypeError)
"""Exceptions that point to a bug. They are retried only once, since a server's bad answer can raise them too."""
Result = TypeVar("Result")


class Patience(NamedTuple):
    """Settings for calling a failing judge again."""

    waits: Sequence[float] = ()
    """Seconds to wait before each retry; if empty, the first failure is final."""
    tell: Callable[[str], None] = print
    """Function that shows a warning."""
    stopped: Callable[[], bool] = lambda: False
    """Function that returns whether the run should stop; if so, the next failure is final."""

    def retry(self, call: Callable[[], Result]) -> Result:
        """Call a judge until it succeeds, with one retry after each wait.

        Args:
            call: calls the judge, from the beginning each time.

        Raises:
            FailedJudgeError: a call failed, and no retry is left or allowed; the last error is raised.
            OutOfRangeError: a call returned invalid rewards; such a call is not repeated.

        Example:
            >>> answers = iter([FailedJudgeError("down"), 3])
            >>> def call():
            ...     answer = next(answers)
            ...     if isinstance(answer, Exception):
            ...         raise answer
            ...     return answer
            >>> Patience((0.0,)).retry(call)
            down Retrying in 0 s.
            3
        """
        for number, wait in enumerate(self.waits):
            try:
                return call()
            except OutOfRangeError:
                raise
            except FailedJudgeError as error:
                is_mistake = number > 0 and isinstance(error.__cause__, MISTAKES)
                if is_mistake or self.stopped():
                    raise
                self.tell(f"{error} Retrying in {wait:g} s.")
            self._pause(wait)
        return call()

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.stopped():
            time.sleep(PAUSE)


IMPATIENT = Patience()


class Verdicts(NamedTuple):
    """Outcome of judging N responses."""

    rewards: Float32[np.ndarray, "N"]
    """Reward of each response; 0 if it has none."""
    valid: Bool[np.ndarray, "N"]
    """Whether the response has a reward; False if the reward function abstained or failed."""
    failed: Int8[np.ndarray, "N"]
    """How judging failed: 0 for no failure, else the position in `rewards.correctness.Failures`, counted from 1."""
    reward_parts: dict[str, Float32[np.ndarray, "N"]] | None = None
    """The parts of the reward by name, if there are several; NaN if a part abstains."""
    correct: Float32[np.ndarray, "N"] | None = None
    """1 if a verifier finds the response correct, 0 if not, NaN if it abstains; None if there is no verifier."""
    step_rewards: Float32[np.ndarray, "N T"] | None = None
    """Reward of each reasoning step, at the last token of the step; for process supervision."""
    step_end: Bool[np.ndarray, "N T"] | None = None
    """Whether a reasoning step, or a turn of an episode, ends at the token."""
    turn_rewards: Float32[np.ndarray, "N T"] | None = None
    """Reward of each turn of an episode, at the last token of the turn."""
    metrics: dict[str, Float32[np.ndarray, "N"]] | None = None
    """The environment's metrics of each episode, by name; NaN if an episode lacks the metric."""


class RewardOutput(NamedTuple):
    """Result of one call of the reward function."""

    results: list[CallResult]
    """What each part of the reward returned, in order."""
    steps: list[tuple[Float32[np.ndarray, "N"], Bool[np.ndarray, "N"]]]
    """For each response, the step rewards and step ends at its tokens; empty if steps are not judged."""


class Judge(NamedTuple):
    """Judges responses to problems."""

    tokenizer: Tokenizer
    """Decodes responses into completions."""
    reward: Callable
    """The reward function, called as `reward(prompts=..., completions=..., **columns)`."""
    step_reward: Callable | None = None
    """Called in the same way to judge the steps of each completion; None if steps are not judged."""
    messages: bool = True
    """Whether a reward function from outside rljax receives conversations as lists of messages."""
    seconds: float | None = None
    """Time limit for a call of the reward; None for no limit."""
    max_failure_share: float = reward_scores.MAX_FAILURE_SHARE
    """Largest fraction of a call's completions that the reward may fail to judge; on several hosts, the
    limit applies to each host's completions."""
    progress: Progress | None = None
    """Called with the number of completions judged and their total (on this host), by rewards that report progress."""
    patience: Patience = IMPATIENT
    """Settings for calling a failing reward function again."""

    def __call__(self, problems: Sequence[Problem], responses: Sequence[Response], length: int) -> Verdicts:
        """Judge one response per problem; on several hosts, each host judges a part, unless the reward needs all hosts.

        Args:
            problems: the problem of each response.
            responses: the N responses to judge.
            length: T, length of the arrays over tokens.

        Raises:
            InputError: the reward failed on too many responses, or returned something other than a finite number or None.
        """

        def judge_rows(rows: Int[np.ndarray, "R"]) -> Verdicts:
            part = [problems[row] for row in rows], [responses[row] for row in rows]
            return self.patience.retry(lambda: self.verdicts([self._call(*part)], length))

        if any(reward_scores.needs_all_hosts(reward) for reward in (self.reward, self.step_reward)):
            return copy_from_first(run_together(lambda: judge_rows(np.arange(len(problems)))))
        return divide(len(problems), judge_rows)

    def completion(self, response: Response) -> str:
        """Return the answer's text: what the policy sampled, after the beginning of the answer in the prompt, if it has one."""
        return completion_text(self.tokenizer, response.tokens[response.mask].tolist())

    def call_reward(
        self, problems: Sequence[Problem], responses: Sequence[Response], *, before: int = 0, total: int | None = None
    ) -> RewardOutput:
        """Call the reward function for some responses, on this host; `patience` repeats a failing call.

        Args:
            problems: the problem of each response.
            responses: the responses to judge.
            before: number of responses judged by earlier calls, for the progress display.
            total: number of responses in all calls; None if this is the only call.

        Raises:
            InputError: every call failed, or a call returned something other than a finite number or None.
        """
        return self.patience.retry(lambda: self._call(problems, responses, before=before, total=total))

    def _call(
        self, problems: Sequence[Problem], responses: Sequence[Response], *, before: int = 0, total: int | None = None
    ) -> RewardOutput:
        completions = [self.completion(response) for response in responses]
        prompts, columns = [problem.prompt for problem in problems], reward_columns(problems)
        progress, of_all = self.progress, len(responses) if total is None else total
        results = reward_scores.call_reward(
            self.reward,
            prompts,
            completions,
            columns,
            max_failure_share=self.max_failure_share,
            seconds=self.seconds,
            progress=None if progress is None else lambda done, _: progress(before + done, of_all),
            chats=self._chats(problems),
        )
        if self.step_reward is None:
            return RewardOutput(results, [])
        steps = score_steps(self.step_reward, prompts, completions, columns)
        return RewardOutput(results, [self._assign_to_tokens(*pair) for pair in zip(responses, steps, strict=True)])

    def score_texts(self, problems: Sequence[Problem], texts: Sequence[str]) -> reward_scores.RewardScores:
        """Judge texts with the reward function, one per problem, on this host.

        Args:
            problems: the problem of each text.
            texts: complete responses.

        Raises:
            InputError: the reward failed on too many texts, or returned something other than a finite number or None.
        """
        prompts = [problem.prompt for problem in problems]
        return reward_scores.judge(self.reward, prompts, texts, reward_columns(problems), chats=self._chats(problems))

    def _chats(self, problems: Sequence[Problem]) -> list[reward_scores.Messages | None] | None:
        return [problem.messages for problem in problems] if self.messages else None

    def verdicts(self, outputs: Sequence[RewardOutput], length: int) -> Verdicts:
        """Join the results of several calls, in order; the limit on failures applies to all calls together.

        Args:
            outputs: results of one or more calls.
            length: T, length of the arrays over tokens.

        Raises:
            InputError: the reward failed on too many responses.
        """
        results = [join_results(parts) for parts in zip(*(output.results for output in outputs), strict=True)]
        scores = reward_scores.combine_scores(self.reward, results, max_failure_share=self.max_failure_share)
        parts = scores.parts if len(scores.parts) > 1 else None
        verdicts = Verdicts(scores.total, scores.valid, scores.failed, parts, scores.correct)
        if self.step_reward is None:
            return verdicts
        steps = [row for output in outputs for row in output.steps]
        step_rewards, step_end = np.zeros((len(steps), length), np.float32), np.zeros((len(steps), length), bool)
        for row, (rewards, end) in enumerate(steps):
            step_rewards[row, : len(rewards)], step_end[row, : len(end)] = rewards, end
        return verdicts._replace(step_rewards=step_rewards, step_end=step_end)

    def _assign_to_tokens(
        self, response: Response, steps: Sequence[Step]
    ) -> tuple[Float32[np.ndarray, "N"], Bool[np.ndarray, "N"]]:
        """Return the step rewards and the step ends at the tokens of a response."""
        rewards, end = np.zeros(len(response.tokens), np.float32), np.zeros(len(response.tokens), bool)
        sampled = np.flatnonzero(response.mask)
        rewards[sampled], end[sampled] = assign_to_tokens(steps, self.tokenizer.decode, response.tokens[sampled].tolist())
        return rewards, end
