"""Settings of the algorithm and of the reward."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from rljax.errors import InputError
from rljax.records import documented
from rljax.settings.checks import check_at_least, check_positive, check_share
from rljax.settings.options import Options


@documented
@dataclass(frozen=True)
class AlgorithmConfig:
    """The algorithm."""

    name: Annotated[str, tyro.conf.arg(name="algorithm")] = "dapo"
    """Name of the algorithm (`rljax algorithms` lists them), or your own as 'package.module:function' or 'file.py:function': a
    function that returns an `rljax.algorithms.Algorithm`."""
    options: Annotated[Options, tyro.conf.arg(name="algorithm-options")] = field(default_factory=dict)
    """Hyper-parameters of the algorithm, e.g. `--algorithm-options clip_high=0.3 cache=8`; by default those of the paper."""
    teacher: str | None = None
    """Model folder or hub id of the teacher, for 'on_policy_distillation' and 'gkd'. It reads the responses at the sampling
    temperature and never changes. It needs the same tokens as the model that is trained."""
    without: tuple[str, ...] = ()
    """Parts to remove from the algorithm, e.g. `--algorithm vapo --without length_adaptive`; `rljax algorithms` lists them."""
    advantage: str | None = None
    """How the rewards of a group become advantages, in place of the algorithm's own way, e.g. `--algorithm grpo --advantage rank`:
    short for `--with advantage=NAME`. All are listed by `rljax algorithms --parts`."""
    parts: Annotated[tuple[str, ...], tyro.conf.arg(name="with")] = ()
    """Parts to put into the algorithm in place of its own, each SLOT=PART with its numbers behind commas, and terms to add to its
    loss, e.g. `--with advantage=rank keep_group=difficulty_window,low=0.3,high=0.7 term=entropy,coefficient=0.01`; all are listed
    by `rljax algorithms --parts`. --without comes first."""
    correction: str = "none"
    """Weigh tokens to which sampler and learner give different probabilities (another engine, top-k, top-p): 'none', 'capped',
    'masked' (IcePop), 'two_sided', 'sequence', 'sequence_masked' or 'geometric'; `rljax algorithms` explains them."""
    correction_low: float | None = None
    """Lower bound of the ratio of the two; by default the correction's own. 'capped' and 'sequence' have none, 'two_sided' has no
    default."""
    correction_high: float | None = None
    """Upper bound of that ratio; by default the correction's own. 1 lies between the bounds."""
    off_policy_delta: float | None = None
    """Leave out the surrogate of responses with a negative advantage that the policy has moved away from by more than this, in
    nats a token (DeepSeek-V3.2). By default none is left out."""
    kl_target: float | None = None
    """Divergence from the reference, in nats a token, towards which the coefficient of the algorithm's KL penalty is moved after
    each step (Ziegler et al. 2019). It begins at the algorithm's own, e.g. `--algorithm grpo --algorithm-options beta=0.04
    --kl-target 0.02`, where it stays by default."""
    kl_gain: float | None = None
    """With --kl-target: share by which the coefficient changes for a relative error of 1; errors beyond 0.2 count as 0.2. By
    default 0.1."""
    reference_period: int | None = None
    """RL steps after which, again and again, the policy (or the base with the adapter as it is) becomes the reference, and its
    optimiser restarts, learning-rate warm-up included (ProRL). By default the reference stays."""

    anchor: float | None = None
    """Hold the policy near the parameters that it begins with, each by this weight times its Fisher information, in the warm start
    and in RL: the problems that it could solve before stay solved (elastic weight consolidation). The information is estimated
    once, on 256 of its own responses to such problems. Not with --lora-rank."""
    anchor_problems: str | None = None
    """With --anchor: folder of the run, or dataset, with the problems that the policy is to keep solving; by default the run whose
    folder --model lies in, as in `--model runs/first/last`."""

    @property
    def all_parts(self) -> tuple[str, ...]:
        """Parts to put into the algorithm: `parts` and that of `advantage`.

        Example:
            >>> AlgorithmConfig(advantage="rank", parts=("term=entropy",)).all_parts
            ('advantage=rank', 'term=entropy')
        """
        return (() if self.advantage is None else (f"advantage={self.advantage}",)) + self.parts

    def __post_init__(self):
        """Refuse bounds that cannot work."""
        check_at_least(0, self, ["correction_low", "off_policy_delta"])
        check_positive(self, ["correction_high", "kl_target", "anchor"])
        check_at_least(1, self, ["reference_period"])
        self._check_gain()
        if self.anchor_problems is not None and self.anchor is None:
            raise InputError(
                f"anchor_problems={self.anchor_problems!r} are the problems for an anchor, but anchor is not set; give --anchor "
                "WEIGHT, or leave them out."
            )
        low, high = self.correction_low, self.correction_high
        if self.correction == "none" and (low, high) != (None, None):
            raise InputError(
                f"correction_low={low} and correction_high={high} are bounds of a correction, but correction is 'none'; "
                "choose one, or leave them out."
            )
        if (low is not None and low > 1) or (high is not None and high < 1):
            raise InputError(
                f"correction_low={low} and correction_high={high} must lie on both sides of 1, the ratio where sampler and learner "
                "agree; else every token would be cut."
            )

    def _check_gain(self) -> None:
        gain = self.kl_gain
        if gain is not None and self.kl_target is None:
            raise InputError(
                f"kl_gain={gain} is the speed towards kl_target, but kl_target is not set; set it, or leave kl_gain out."
            )
        if gain is not None and not 0 <= gain < 5:
            raise InputError(
                f"kl_gain is {gain}; it must be at least 0 and below 5, or one step could make the coefficient negative."
            )


@documented
@dataclass(frozen=True)
class RewardConfig:
    """The reward, which judges responses."""

    name: Annotated[str, tyro.conf.arg(name="reward")] = "exact"
    """'exact', 'math', 'gsm8k', 'aime', 'yes_no', 'multiple_choice', 'code', 'code_fraction', 'format', 'think_answer',
    'reasoning_gym' (for the task of that name, which has it by default), 'model:FOLDER' (a reward model), 'brier:VERIFIER' (a right
    answer less the Brier score of the confidence that the response states), 'constitution:FILE' (rules with weights, in YAML or
    JSON), 'count_bonus:SCALE' (for answers that are rare in their group), or your own function as 'package.module:function' or
    'file.py:function'. Several, with commas between them, are summed (see
    --reward-combine)."""
    weights: Annotated[tuple[float, ...] | None, tyro.conf.arg(name="reward-weights")] = None
    """Weights of several rewards, one for each; by default 1."""
    combine: Annotated[Literal["sum", "min"], tyro.conf.arg(name="reward-combine")] = "sum"
    """Combination of several rewards: their weighted 'sum', or 'min', the smallest of them, as for an ensemble of reward models, of
    which a response has to please all: `--reward model:A,model:B --reward-combine min`."""
    messages: Annotated[bool, tyro.conf.arg(name="reward-messages")] = True
    """Give your own reward the prompts that are conversations, and their completions, as lists of messages, as TRL does:
    `completions[i][0]["content"]` is the text. Otherwise all rewards get text, as the built-in ones always do."""
    step_reward: str | None = None
    """Reward of each reasoning step, for process supervision: 'equations', 'package.module:function' or 'file.py:function'."""
    max_failure_share: float = 0.1
    """Largest share of responses that the reward may fail to judge (exception or time-out). Above this share the run stops."""
    groups: Annotated[int | None, tyro.conf.arg(name="reward-groups")] = None
    """Groups in one call of the reward, always the same ones. It judges them while the next responses are drawn, so a slow reward
    costs less time. By default one call judges all groups that were sampled together, after the last response: with several calls,
    math and reasoning_gym may exceed their time limits because the drawing slows them, code waits for the slowest program of every
    call, your own reward may compare everything in its call, and the other built-in verifiers take next to no time."""

    def __post_init__(self):
        """Refuse values that cannot work."""
        check_share(self, ["max_failure_share"])
        check_at_least(1, self, ["groups"])
        if self.combine not in ("sum", "min"):
            raise InputError(f"reward_combine is {self.combine!r}; choose sum or min.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rewards.

        Example:
            >>> RewardConfig("math, mine.py:short").names
            ('math', 'mine.py:short')
        """
        return tuple(name.strip() for name in self.name.split(","))
