"""Self-correction: a proposer answers; a checker checks the proposal and gives the final answer. One policy may be both."""

from collections.abc import Callable
from typing import NamedTuple

from rljax.agents.tool_environment import judge_answer
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.rewards import resolve
from rljax.rollout.environment import Step

REQUEST = "There may be an error in this answer. Check it, and give the final answer."
"""Default message to the policy after its proposal."""


ROLES = ("proposer", "checker")
"""The roles, in the order of their turns."""


class CorrectionState(NamedTuple):
    """State of an episode."""

    problem: Problem
    """The problem of the episode."""
    proposal_reward: float | None = None
    """Reward of the proposal; None until there is one."""


class SelfCorrection:
    """The policy proposes an answer in its first turn, and corrects it, if necessary, in its second turn.

    The first turn's reward r_1 is the proposal's reward. With the final answer's reward r_2, the second turn's reward is ::

        r_2 + bonus * (r_2 - r_1)

    A positive bonus rewards corrections, and punishes right proposals that become wrong, so that the second turn does not just
    repeat the first. `--algorithm mt_grpo` gives each turn its own advantage. An episode counts as right if its final answer is
    right. The metrics `corrected` and `spoiled` count the final answers with a higher and with a lower reward than the proposal.

    Args:
        reward: function that judges both answers, or its name, as for `--reward`.
        bonus: weight of the progress r_2 - r_1, at least 0.
        request: message to the policy after its proposal.
        role: the only role of the trained policy, "proposer" or "checker"; `other_policy` has the other role. If None, the trained
            policy has both.
        other_policy: model folder of the other policy, or "past", a past copy of the trained one.
        refresh_every: number of RL steps after which the past copy is replaced.

    Raises:
        InputError: the bonus is negative, the request is empty, the reward or the role does not exist, or only one of `role` and
            `other_policy` is set.

    Example:
        >>> environment, problem = SelfCorrection(bonus=1.0), Problem("2+2=", "4")
        >>> first = environment.step(environment.reset(problem), "#5")
        >>> second = environment.step(first.state, "No, it is #4")
        >>> first.reward, second.reward, second.correct, second.metrics
        (0.0, 2.0, True, {'corrected': 1.0, 'spoiled': 0.0})

    Source:
        The bonus is from Stage II of SCoRe, Kumar et al., arXiv:2409.12917. The paper's Stage I keeps the first turn close to the
        untrained model's; here, both turns are trained from the start.
    """

    max_turns = 2

    def __init__(
        self,
        reward: str | Callable = "exact",
        bonus: float = 0.0,
        request: str = REQUEST,
        *,
        role: str | None = None,
        other_policy: str | None = None,
        refresh_every: int = 20,
    ):
        if not bonus >= 0:
            raise InputError(f"environment_options: bonus must be at least 0; got {bonus!r:.80}.")
        if not request.strip():
            raise InputError("environment_options: request is empty; set it to the message that follows the proposal.")
        if role not in (None, *ROLES) or (role is None) != (other_policy is None):
            raise InputError(
                f"environment_options: role={role!r:.80} and other_policy={other_policy!r:.80}; set both, the role to "
                "'proposer' or 'checker' and the other policy to a model folder or 'past', or leave both out."
            )
        self.reward, self.bonus, self.request, self.role = resolve(reward), bonus, request, role
        self.other_policy, self.refresh_every = other_policy, refresh_every

    def reset(self, problem: Problem) -> CorrectionState:
        """Begin an episode."""
        return CorrectionState(problem)

    def is_others_turn(self, state: CorrectionState) -> bool:
        """Return True if the other policy has the role of the next turn."""
        return self.role not in (None, ROLES[state.proposal_reward is not None])

    def step(self, state: CorrectionState, completion: str) -> Step:
        """Judge the proposal and ask for a check, or judge the final answer.

        Raises:
            RuntimeError: the reward failed on an answer or gave no verdict, so the episode fails as well.
        """
        score, correct = judge_answer(self.reward, state.problem, completion)
        if score is None:
            raise RuntimeError(f"the reward gives no verdict on the answer {completion!r:.80}")
        if state.proposal_reward is None:
            request = [{"role": "user", "content": self.request}]
            return Step(state._replace(proposal_reward=score), request, reward=score, done=False, correct=correct)
        progress = score - state.proposal_reward
        metrics = {"corrected": float(progress > 0), "spoiled": float(progress < 0)}
        return Step(state, reward=score + self.bonus * progress, correct=correct, metrics=metrics)
