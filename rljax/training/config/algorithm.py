"""Settings of the algorithm and the reward, and the options of an algorithm's factory."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from rljax.errors import InputError
from rljax.importing import import_function, is_custom
from rljax.settings.checks import check_at_least, check_positive, check_share
from rljax.settings.options import Options
from rljax.text import list_names, nearest_first

if TYPE_CHECKING:
    from rljax.algorithms import Algorithm


@dataclass(frozen=True)
class AlgorithmConfig:
    """The algorithm."""

    name: Annotated[str, tyro.conf.arg(name="algorithm")] = "dapo"
    """Name of an algorithm (`rljax algorithms` lists them), or your own as 'package.module:function' or 'file.py:function': a
    function that returns an `rljax.algorithms.Algorithm`."""
    options: Annotated[Options, tyro.conf.arg(name="algorithm-options")] = field(default_factory=dict)
    """Hyperparameters of the algorithm, e.g. `--algorithm-options clip_high=0.3 cache=8`; by default the paper's values, but the
    lengths `max_length` and `cache` follow --max-response-tokens (the paper's lengths are `max_length=20480 cache=4096`)."""
    teacher: str | None = None
    """Model folder or hub id of the teacher, for 'on_policy_distillation', 'gkd' and 'minillm'. It must have the trained model's
    vocabulary unless --teacher-spans is set, and is never trained; 'self': the trained model itself (SDFT, SDPO)."""
    teacher_spans: bool = False
    """The teacher has another tokenizer: compare spans of text. 'gkd' also needs --with teacher_divergence=matched (GOLD)."""
    teacher_shows: str | None = None
    """With --teacher self, what only the teacher sees: 'demonstration' (SDFT), a group's 'success' (SDPO), or a feedback column."""
    teacher_rate: float | None = None
    """With --teacher self, how far the teacher moves towards the student per step: 0 not at all, 1 completely; by default 0.05."""
    teacher_template: str | None = None
    """With --teacher self, the teacher's prompt: {prompt} is the student's prompt, and {shown} is what only the teacher sees."""
    without: tuple[str, ...] = ()
    """Parts to remove from the algorithm, e.g. `--algorithm vapo --without length_adaptive`; `rljax algorithms` lists them."""
    advantage: str | None = None
    """How the rewards of a group become advantages, in place of the algorithm's own way, e.g. `--algorithm grpo --advantage rank`;
    short for `--with advantage=NAME`. `rljax algorithms --parts` lists all advantages."""
    parts: Annotated[tuple[str, ...], tyro.conf.arg(name="with")] = ()
    """Parts to use in place of the algorithm's own, each as SLOT=PART with its options after commas, and terms to add to the loss,
    e.g. `--with advantage=rank keep_group=difficulty_window,low=0.3,high=0.7 term=entropy,coefficient=0.01`;
    `rljax algorithms --parts` lists all parts. --without is applied first."""
    correction: str = "none"
    """How to weight tokens to which sampler and learner assign different probabilities (another engine, older parameters): 'none',
    'capped', 'masked' (IcePop), 'two_sided', 'sequence', 'sequence_masked' or 'geometric' (`rljax algorithms`); see
    --sampling-mask."""
    correction_low: float | None = None
    """Lower bound of the ratio of the learner's to the sampler's probability; by default the correction's own. 'capped' and
    'sequence' have no lower bound, and 'two_sided' has no default."""
    correction_high: float | None = None
    """Upper bound of this ratio; by default the correction's own. The bounds must enclose 1."""
    off_policy_delta: float | None = None
    """Leave out the surrogate of a response with a negative advantage if the policy has moved away from it by more than this, in
    nats per token (DeepSeek-V3.2). By default none is left out."""
    kl_target: float | None = None
    """Target for the divergence from the reference, in nats per token: after each step, the coefficient of the algorithm's KL
    penalty is adjusted to approach it (Ziegler et al. 2019). The coefficient starts at the algorithm's own, e.g. `--algorithm grpo
    --algorithm-options beta=0.04 --kl-target 0.02`. By default the coefficient is constant."""
    kl_gain: float | None = None
    """With --kl-target: relative change of the coefficient per unit of the divergence's relative error; errors beyond 0.2 count as
    0.2. By default 0.1."""
    reference_period: int | None = None
    """Interval, in RL steps, at which the policy (or the base with the current adapter) becomes the reference and the policy's
    optimizer restarts, including the learning-rate warm-up (ProRL). By default the reference is fixed."""
    worst_kind: float | None = None
    """Rate at which the kind of problem with the lowest reward gains weight (Group DRO), per rollout and unit of reward, e.g. 0.1;
    the data's columns decide the kinds, as in `rljax eval --by`. By default all kinds have the same weight."""
    anchor: float | None = None
    """Weight of a penalty that keeps the policy near its initial parameters in the warm start and in RL, so that it still solves
    the problems that it could solve before (elastic weight consolidation). Each parameter is weighted by its Fisher information,
    estimated once, on 256 of the policy's own responses to such problems. Not with --lora-rank."""
    anchor_problems: str | None = None
    """With --anchor: run folder or dataset with the problems that the policy should keep solving; by default the run whose folder
    contains --model, as in `--model runs/first/last`."""

    @property
    def all_parts(self) -> tuple[str, ...]:
        """Parts to use in the algorithm: `parts`, and the part that `advantage` names.

        Example:
            >>> AlgorithmConfig(advantage="rank", parts=("term=entropy",)).all_parts
            ('advantage=rank', 'term=entropy')
        """
        return (() if self.advantage is None else (f"advantage={self.advantage}",)) + self.parts

    def __post_init__(self):
        """Reject values that cannot work."""
        check_at_least(0, self, ["correction_low", "off_policy_delta"])
        check_positive(self, ["correction_high", "kl_target", "anchor", "worst_kind"])
        check_at_least(1, self, ["reference_period"])
        gain = self.kl_gain
        if gain is not None and self.kl_target is None:
            raise InputError(
                f"kl_gain={gain} sets how fast to approach kl_target, but kl_target is not set; set it, or leave kl_gain out."
            )
        if gain is not None and not 0 <= gain < 5:
            raise InputError(
                f"kl_gain is {gain}; it must be at least 0 and below 5, or one step could make the coefficient negative."
            )
        if self.anchor_problems is not None and self.anchor is None:
            raise InputError(
                f"anchor_problems={self.anchor_problems!r} names the problems for an anchor, but anchor is not set; set --anchor "
                "WEIGHT, or leave anchor_problems out."
            )
        low, high = self.correction_low, self.correction_high
        if self.correction == "none" and (low, high) != (None, None):
            raise InputError(
                f"correction_low={low} and correction_high={high} are bounds of a correction, but correction is 'none'; "
                "choose a correction, or leave the bounds out."
            )
        if (low is not None and low > 1) or (high is not None and high < 1):
            raise InputError(
                f"correction_low={low} and correction_high={high} must enclose 1, the ratio at which sampler and learner agree; "
                "otherwise tokens on which they agree would be cut."
            )


@dataclass(frozen=True)
class RewardConfig:
    """The reward, which judges responses."""

    name: Annotated[str, tyro.conf.arg(name="reward")] = "exact"
    """'exact', 'math', 'gsm8k', 'aime', 'yes_no', 'multiple_choice', 'code', 'code_fraction', 'proof', 'format', 'think_answer',
    'reasoning_gym' (default of the task of that name), 'model:FOLDER' (a reward model), 'brier:VERIFIER' (correctness minus the
    Brier score of the stated confidence), 'constitution:FILE' (rules with weights, in YAML or JSON), 'count_bonus:SCALE' (rewards
    answers rare in their group), 'diversity:SCALE' (rewards responses unlike the rest of their group), 'reflection' (counts
    self-checking; set its weight to 0), 'repetition:SIZE' (repeated runs of words; set a negative weight), or your own function as
    'package.module:function' or 'file.py:function'. Several rewards, separated by commas, are summed (see --reward-combine)."""
    weights: Annotated[tuple[float, ...] | None, tyro.conf.arg(name="reward-weights")] = None
    """Weights of several rewards, one for each; by default 1."""
    environment: str | None = None
    """Multi-turn environment, in place of a reward: 'calculator', 'python', 'search', 'self_correction', 'guessing', 'maze', 'nim',
    'adventure', 'shop', 'gymnasium', 'textarena', 'verifiers', or your 'module:Class' or 'file.py:Class' (notebooks/agents.md)."""
    environment_options: str | None = None
    """Arguments of the environment's class, as a JSON object: '{"reward": "math"}'. Write a folder's path with a slash: "data/"."""
    combine: Annotated[Literal["sum", "min"], tyro.conf.arg(name="reward-combine")] = "sum"
    """How several rewards are combined: their weighted 'sum', or the smallest of them ('min'), for example for an ensemble of
    reward models that must all agree: `--reward model:A,model:B --reward-combine min`."""
    messages: Annotated[bool, tyro.conf.arg(name="reward-messages")] = True
    """Pass prompts that are conversations, and their completions, to your own reward as lists of messages, as TRL does:
    `completions[i][0]["content"]` is the text. Otherwise all rewards get text, as the built-in ones always do."""
    step_reward: str | None = None
    """Reward of each reasoning step, for process supervision: 'equations', 'model:FOLDER' or 'file.py:function'."""
    max_failure_share: float = 0.1
    """Largest fraction of responses that the reward may fail to judge (exception or timeout). If more fail, the run stops."""
    seconds: Annotated[float | None, tyro.conf.arg(name="reward-seconds")] = None
    """Time limit for one call of the reward, in seconds; by default there is none. A call that takes longer is interrupted, and all
    its responses count as failures, so the run stops and names the slow line. For an environment, the limit is per step."""
    groups: Annotated[int | None, tyro.conf.arg(name="reward-groups")] = None
    """Number of groups per call of the reward. A call judges its groups while later responses are sampled, so a slow reward costs
    less time; which groups share a call does not depend on timing. By default one call judges all groups that were sampled
    together, after the last response. With several calls, math and reasoning_gym may exceed their time limits because sampling
    slows them, code waits for the slowest program of each call, your own reward can compare only the responses in its call, and the
    other built-in verifiers gain almost nothing."""

    def __post_init__(self):
        """Reject values that cannot work."""
        check_share(self, ["max_failure_share"])
        check_at_least(1, self, ["groups"])
        if self.seconds is not None and not self.seconds > 0:
            raise InputError(f"reward_seconds is {self.seconds!r}; it must be a positive number of seconds.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rewards.

        Example:
            >>> RewardConfig("math, mine.py:short").names
            ('math', 'mine.py:short')
        """
        return tuple(name.strip() for name in self.name.split(","))


def factory_of(algorithm: str) -> Callable[..., "Algorithm"]:
    """Return the function that makes an algorithm; `algorithm` is a key of `BY_NAME`, `module:function` or `path.py:function`.

    Your own function must return an `rljax.algorithms.Algorithm`; its keyword arguments are the options.

    Raises:
        InputError: the name is unknown, or the function cannot be imported.
    """
    from rljax.algorithms import BY_NAME  # noqa: PLC0415  --help need not wait for JAX

    if is_custom(algorithm):
        return import_function(algorithm, "algorithm")
    if algorithm not in BY_NAME:
        names = list_names(sorted(BY_NAME), "rljax algorithms")
        advice = f"choose one of {names}, or name your own as `module:function` or `path.py:function`."
        raise InputError(f"The algorithm {algorithm!r} is unknown{nearest_first(algorithm, BY_NAME, advice)}")
    return BY_NAME[algorithm]


def option_defaults(algorithm: str) -> dict[str, int | float]:
    """Return the options of an algorithm with their default values.

    Raises:
        InputError: the name is unknown, the function cannot be imported, or one of its arguments has no default.
    """
    parameters = inspect.signature(factory_of(algorithm)).parameters
    missing = [name for name, option in parameters.items() if option.default is option.empty]
    if missing:
        raise InputError(
            f"The algorithm {algorithm!r} needs {', '.join(missing)}; its arguments are its options, so give each a default."
        )
    return {name: option.default for name, option in parameters.items()}
