"""Two roles for one policy: it proposes an answer, then checks the proposal and gives the final answer."""

from collections.abc import Callable
from typing import NamedTuple

from rljax.agents.tools import judge_answer
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.rewards import resolve
from rljax.rollout.environment import Step

REQUEST = "There may be an error in this answer. Check it, and give the final answer."
"""What the policy is asked after its proposal."""


class CorrectionState(NamedTuple):
    """State of an episode."""

    problem: Problem
    """The problem of the episode."""
    proposal: float | None = None
    """Reward of the proposal; None before it."""


class SelfCorrection:
    """The policy proposes an answer in its first turn, and corrects it, if necessary, in its second.

    The first turn's reward is r_1, that of the proposal. With r_2, the reward of the final answer, the second turn's reward is ::

        r_2 + bonus * (r_2 - r_1)

    A positive bonus rewards corrections, and punishes right proposals that become wrong, so that the second turn does not just
    repeat the first. `--algorithm mt_grpo` gives each turn an advantage of its own. An episode counts as right if its final answer
    is. The metrics `corrected` and `spoiled` count the answers that became better, and those that became worse.

    Args:
        reward: function that judges both answers, or its name, as for `--reward`.
        bonus: weight of the progress between the turns, at least 0.
        request: what the policy is asked after its proposal.

    Raises:
        InputError: the bonus is negative, the request is empty, or the reward does not exist.

    Example:
        >>> environment, problem = SelfCorrection(bonus=1.0), Problem("2+2=", "4")
        >>> first = environment.step(environment.reset(problem), "#5")
        >>> second = environment.step(first.state, "No, it is #4")
        >>> first.reward, second.reward, second.correct, second.metrics
        (0.0, 2.0, True, {'corrected': 1.0, 'spoiled': 0.0})

    Source:
        SCoRe, Kumar et al., arXiv:2409.12917, Stage II: the bonus. The paper trains in two stages, the first of which keeps the
        first turn near that of the untrained model; here both turns are trained from the start.
    """

    max_turns = 2

    def __init__(self, reward: str | Callable = "exact", bonus: float = 0.0, request: str = REQUEST):
        if not bonus >= 0:
            raise InputError(f"environment_options: bonus must be at least 0; got {bonus!r:.80}.")
        if not request.strip():
            raise InputError("environment_options: request is empty; write what the policy is asked after its proposal.")
        self.reward, self.bonus, self.request = resolve(reward), bonus, request

    def reset(self, problem: Problem) -> CorrectionState:
        """Begin an episode."""
        return CorrectionState(problem)

    def step(self, state: CorrectionState, completion: str) -> Step:
        """Judge the proposal and ask for a check, or judge the final answer.

        Raises:
            RuntimeError: the reward failed on an answer, or gives no verdict, so the episode fails as well.
        """
        score, correct = judge_answer(self.reward, state.problem, completion)
        if score is None:
            raise RuntimeError(f"the reward gives no verdict on the answer {completion!r:.80}")
        if state.proposal is None:
            request = [{"role": "user", "content": self.request}]
            return Step(state._replace(proposal=score), request, reward=score, done=False, correct=correct)
        progress = score - state.proposal
        metrics = {"corrected": float(progress > 0), "spoiled": float(progress < 0)}
        return Step(state, reward=score + self.bonus * progress, correct=correct, metrics=metrics)
