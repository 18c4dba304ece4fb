"""Judging of responses: decode them, call the reward, and put the rewards of reasoning steps on their tokens."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int, Int8

from rljax.data.problem import Problem, reward_columns
from rljax.data.tokenizer import Tokenizer
from rljax.parallel import divide, of_first, together
from rljax.records import documented
from rljax.rewards import protocol
from rljax.rewards.calling import Answer, Progress, joined
from rljax.rewards.steps import Step, on_tokens, score_steps
from rljax.rollout.request import Response


@documented
class Verdicts(NamedTuple):
    """Outcome of judging N responses."""

    rewards: Float32[np.ndarray, "N"]
    """Reward of each response; 0 where there is none."""
    valid: Bool[np.ndarray, "N"]
    """Whether the reward had an opinion."""
    failed: Int8[np.ndarray, "N"]
    """How judging failed: 0 for no failure, else the position in `rewards.failure.Failures`, counted from 1."""
    reward_parts: dict[str, Float32[np.ndarray, "N"]] | None = None
    """Each part of a reward that has several; NaN where the part has no opinion."""
    correct: Float32[np.ndarray, "N"] | None = None
    """1 where a verifier finds the response correct, 0 where it does not, NaN where it has no opinion; None without a verifier."""
    step_rewards: Float32[np.ndarray, "N T"] | None = None
    """Reward of the reasoning step that ends at a token; for process supervision."""
    step_end: Bool[np.ndarray, "N T"] | None = None
    """Where a reasoning step ends."""


@documented
class Opinion(NamedTuple):
    """Result of one call of the reward."""

    answers: list[Answer]
    """Of each part of the reward."""
    steps: list[tuple[Float32[np.ndarray, "N"], Bool[np.ndarray, "N"]]]
    """For each response the rewards of its steps and their ends, on its tokens; empty if steps are not judged."""


@documented
class Judge(NamedTuple):
    """Judges responses to problems."""

    tokenizer: Tokenizer
    """Turns responses into completions."""
    reward: Callable
    """Called as `reward(prompts=..., completions=..., **columns)`."""
    step_reward: Callable | None = None
    """Called in the same way, for the steps of each completion; None: steps are not judged."""
    messages: bool = True
    """Whether a reward that is not one of rljax gets conversations as lists of messages."""
    max_failure_share: float = protocol.MAX_FAILURE_SHARE
    """Largest share of a call's completions that the reward may fail to judge; on several hosts, of each host's part."""
    progress: Progress | None = None
    """Called with the number of completions judged and their total (on this host), by rewards that report progress."""

    def __call__(self, problems: Sequence[Problem], responses: Sequence[Response], length: int) -> Verdicts:
        """Judge a response to each problem; on several hosts, each judges its part.

        Args:
            problems: one for each response.
            responses: N of them.
            length: T, slots of the arrays over tokens.

        Raises:
            InputError: the reward failed on too many responses, or returned something other than a finite number or None.
        """

        def judge_rows(rows: Int[np.ndarray, "R"]) -> Verdicts:
            return self._judge([problems[row] for row in rows], [responses[row] for row in rows], length)

        if any(protocol.needs_all_hosts(reward) for reward in (self.reward, self.step_reward)):
            return of_first(together(lambda: judge_rows(np.arange(len(problems)))))
        return divide(len(problems), judge_rows)

    def completion(self, response: Response) -> str:
        """Text of the tokens that the policy drew."""
        return self.tokenizer.decode(response.tokens[response.mask].tolist())

    def _judge(self, problems: Sequence[Problem], responses: Sequence[Response], length: int) -> Verdicts:
        return self.verdicts([self.called(problems, responses)], length)

    def called(
        self, problems: Sequence[Problem], responses: Sequence[Response], *, before: int = 0, total: int | None = None
    ) -> Opinion:
        """Call the reward once, on this host.

        Args:
            problems: one for each response.
            responses: those to judge.
            before: responses that earlier calls have judged, for the progress.
            total: responses of all calls; None: of this one.

        Raises:
            InputError: the call as a whole failed, or returned something other than a finite number or None.
        """
        completions = [self.completion(response) for response in responses]
        prompts, columns = [problem.prompt for problem in problems], reward_columns(problems)
        progress, of_all = self.progress, len(responses) if total is None else total
        answers = protocol.answers_of(
            self.reward,
            prompts,
            completions,
            columns,
            max_failure_share=self.max_failure_share,
            progress=None if progress is None else lambda done, _: progress(before + done, of_all),
            chats=[problem.messages for problem in problems] if self.messages else None,
        )
        if self.step_reward is None:
            return Opinion(answers, [])
        steps = score_steps(self.step_reward, prompts, completions, columns)
        return Opinion(answers, [self._on_tokens(*pair) for pair in zip(responses, steps, strict=True)])

    def verdicts(self, opinions: Sequence[Opinion], length: int) -> Verdicts:
        """Join the results of several calls, in order; their failures are counted together.

        Args:
            opinions: of one call or more.
            length: T, slots of the arrays over tokens.

        Raises:
            InputError: the reward failed on too many responses.
        """
        answers = [joined(parts) for parts in zip(*(opinion.answers for opinion in opinions), strict=True)]
        scores = protocol.scores_of(self.reward, answers, max_failure_share=self.max_failure_share)
        parts = scores.parts if len(scores.parts) > 1 else None
        verdicts = Verdicts(scores.total, scores.valid, scores.failed, parts, scores.correct)
        if self.step_reward is None:
            return verdicts
        steps = [row for opinion in opinions for row in opinion.steps]
        step_rewards, step_end = np.zeros((len(steps), length), np.float32), np.zeros((len(steps), length), bool)
        for row, (rewards, end) in enumerate(steps):
            step_rewards[row, : len(rewards)], step_end[row, : len(end)] = rewards, end
        return verdicts._replace(step_rewards=step_rewards, step_end=step_end)

    def _on_tokens(
        self, response: Response, steps: Sequence[Step]
    ) -> tuple[Float32[np.ndarray, "N"], Bool[np.ndarray, "N"]]:
        """Rewards of a response's steps, and their ends, on its tokens."""
        rewards, end = np.zeros(len(response.tokens), np.float32), np.zeros(len(response.tokens), bool)
        places = np.flatnonzero(response.mask)
        rewards[places], end[places] = on_tokens(steps, self.tokenizer.decode, response.tokens[places].tolist())
        return rewards, end
