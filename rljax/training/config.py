"""All settings of a run, flat. An experiment is one frozen value of this class."""

from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Literal

from tyro.constructors import PrimitiveConstructorSpec

from rljax.errors import InputError

MICROBATCH_TOKENS = 16_384


def _read_options(words: list[str]) -> dict[str, int | float]:
    """Read `name=number` words."""
    options: dict[str, int | float] = {}
    for word in words:
        name, _, number = word.partition("=")
        try:
            options[name] = int(number) if number.lstrip("+-").isdigit() else float(number)
        except ValueError as error:
            raise ValueError(f"{word!r} is not name=number") from error
    return options


Options = Annotated[
    dict[str, int | float],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=NUMBER",
        instance_from_str=_read_options,
        is_instance=lambda instance: isinstance(instance, dict),
        str_from_instance=lambda instance: [f"{name}={number}" for name, number in instance.items()],
    ),
]


@dataclass(frozen=True)
class TrainConfig:
    """Settings of one training run; `config.json` in the run folder is exactly this."""

    # --- what is trained
    model: str | None = None
    """Hugging Face folder or hub id to start from; without one, a small transformer with random weights."""
    tokenizer: str | None = None
    """'characters', 'bytes', a folder or a hub id; by default the model's own, or characters without a model."""
    algorithm: str = "dapo"
    """Name of the algorithm; `rljax algorithms` lists them."""
    algorithm_options: Options = field(default_factory=dict)
    """Hyper-parameters of the algorithm, e.g. `--algorithm-options clip_high=0.3 cache=8`; the paper's where not given."""
    without: tuple[str, ...] = ()
    """Parts to take out of the algorithm, e.g. `--algorithm vapo --without length_adaptive`; `rljax algorithms` lists them."""

    # --- the small transformer that is made when no model is given
    layers: int = 3
    """Number of layers."""
    width: int = 96
    """Width of the residual stream."""
    heads: int = 4
    """Query heads."""
    kv_heads: int = 2
    """Key and value heads."""
    hidden: int = 256
    """Width of the feed-forward layer."""

    # --- problems and reward
    dataset: str | None = None
    """JSONL / JSON / Parquet file, folder or hub id with prompts and answers; without one, generated problems."""
    on_error: Literal["fatal", "drop", "keep"] = "fatal"
    """What becomes of rows of it that cannot be used."""
    heldout_dataset: str | None = None
    """File or hub id to evaluate on; by default a held-out part of the dataset."""
    prompt_column: str | None = None
    """Column that holds the prompt; by default prompt, question or problem."""
    answer_column: str | None = None
    """Column that holds the answer; by default answer, solution, ground_truth or target."""
    demonstration_column: str | None = None
    """Column that holds a worked response, for the warm start; by default demonstration, where there is one."""
    chat: bool = False
    """Write prompts through the tokenizer's chat template."""
    reward: str = "exact"
    """'exact', 'math', 'gsm8k', 'aime', 'yes_no', 'multiple_choice', 'code', 'code_fraction', 'format', 'think_answer',
    'model:FOLDER' (a reward model), or your own function as 'package.module:function' or 'file.py:function'."""
    max_failure_share: float = 0.1
    """Largest share of the responses that the reward may fail to judge (raise, time out); above it the run stops."""
    step_reward: str | None = None
    """Judges reasoning steps, for process supervision: 'equations', 'package.module:function' or 'file.py:function'."""
    task: str = "sums"
    """What is generated when there is no dataset: 'sums', or 'iteration' for long chains."""
    iterations: tuple[int, int] = (6, 56)
    """Iteration: least and most steps of a problem."""
    lapse_share: float = 0.0
    """Iteration: share of the steps 11, 21, ... at which demonstrations lapse, and of the lapses that they leave open."""
    operands: tuple[int, int] = (3, 6)
    """Arithmetic: least and most numbers in a problem."""
    digits: int = 1
    """Arithmetic: most digits of a number."""
    operators: str = "+"
    """Arithmetic: which of + - * occur."""
    nesting: int = 0
    """Arithmetic: depth of parentheses."""
    unfinished_share: float = 0.0
    """Arithmetic: share of the longer problems whose demonstration stops before it states the answer."""
    unfinished_operands: int = 4
    """Arithmetic: from how many numbers on a problem counts as longer."""
    train_problems: int = 8192
    """How many problems are generated to train on."""
    heldout_problems: int = 256
    """How many problems are evaluated on."""

    # --- supervised warm start on the problems' demonstrations
    warm_start_steps: int = 0
    """Most steps of it; 0 leaves it out."""
    warm_start_batch: int = 64
    """Demonstrations a step."""
    warm_start_learning_rate: float = 2e-3
    """Peak learning rate of it."""
    warm_start_accuracy: float | None = None
    """End it as soon as held-out greedy accuracy reaches this share."""
    warm_start_eval_every: int = 20
    """Steps between the evaluations that look for it."""

    # --- rollouts
    steps: int = 100
    """RL steps; one step is one rollout."""
    prompts: int = 32
    """Prompts (groups) a rollout trains on."""
    group_size: int = 8
    """Responses a prompt."""
    max_prompt_tokens: int = 256
    """Longer prompts are dropped, counted and shown."""
    max_response_tokens: int = 256
    """Budget of a response, EOS included."""
    temperature: float = 1.0
    """Of sampling and scoring alike."""
    top_k: int | None = None
    """Sample from the k likeliest tokens only."""
    top_p: float | None = None
    """Sample from the smallest set of tokens with this share of probability."""
    oversample: float = 1.5
    """Dynamic sampling: prompts sampled at a time, as a multiple of `prompts`."""
    max_tries: int = 4
    """Dynamic sampling: how often to sample for one rollout before training on fewer groups."""

    difficulty_window: tuple[float, float] | None = None
    """Pass over prompts whose pass rate so far lies outside these two shares, e.g. `--difficulty-window 0.1 0.9`."""
    difficulty_window_end: tuple[float, float] | None = None
    """Move that window evenly to these two shares over the run: a curriculum."""
    token_budget: int | None = None
    """Response tokens that a rollout of `prompts` groups may be expected to take. Each prompt gets as many responses as fit its
    share, by the lengths of its responses so far: 2 where they are long, up to `group_size` where they are short."""
    length_weights: tuple[float, ...] | None = None
    """Draw prompts by length: weights of the five bins that end at the 25th, 50th, 75th and 95th percentile of the length of the
    worked response (of the prompt, where there is none), e.g. `--length-weights 1 1 1 1 1`."""
    remembered_rewards: int = 0
    """Temporal groups: how many earlier rewards of a prompt its new responses are compared with as well."""
    history_decay: float = 0.5
    """What is left of a prompt's older counts each time it is asked again."""

    # --- optimisation
    minibatches: int = 1
    """Optimiser updates a rollout."""
    microbatch_rows: int | None = None
    """Responses whose activations are held at once; by default as many as make at most 16,384 tokens."""
    learning_rate: float = 1e-6
    """Peak learning rate of RL."""
    learning_rate_warmup: int = 10
    """Updates over which it rises linearly; afterwards it is constant."""
    adam_b1: float = 0.9
    """Decay of the first moment."""
    adam_b2: float = 0.95
    """Decay of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    dtype: str = "float32"
    """Precision of matrix products: float32 or bfloat16. Parameters stay float32."""
    remat: bool = False
    """Recompute layers in the backward pass to save memory."""
    score_chunk: int = 256
    """Token positions whose logits exist at once."""

    # --- critic, for the algorithms that have one
    critic: str | None = None
    """Where it starts: 'policy' (a copy, the default), 'fresh', or the folder of a run, a critic or a reward model."""
    critic_head: str | None = None
    """What it says: 'scalar' (the algorithms' own), 'mixture', 'two_hot' or 'hl_gauss'."""
    critic_head_options: Options = field(default_factory=dict)
    """Options of the head, e.g. `--critic-head two_hot --critic-head-options low=-1 high=2 bins=31`."""
    critic_frozen_trunk: bool = False
    """Train only the critic's head, on hidden states that stay as they were at the start."""
    critic_surprisal: bool = False
    """Let the critic read, beside each response token, how likely the policy found it; none of the papers' critics does. One that
    starts from a folder must have been trained so."""
    critic_learning_rate: float | None = None
    """Peak learning rate of the critic; by default the policy's times the algorithm's ratio."""
    value_pretraining_steps: int | None = None
    """Rollouts of the fixed policy on which the critic alone learns before RL; by default the algorithm's number."""
    value_pretraining_learning_rate: float | None = None
    """Peak learning rate of that phase, at the end a tenth of it; by default the critic's."""
    value_pretraining_passes: int = 1
    """How often the critic goes through each of those rollouts."""
    value_pretraining_explained_variance: float | None = None
    """End that phase once new rollouts' explained variance reaches this."""
    value_pretraining_loss: float | None = None
    """End it once half the mean squared error on new rollouts' outcomes is at most this (if both are set, once both hold)."""
    mix_pretrained_value: bool = False
    """Blend the critic as it was after that phase into the values, less and less as training goes on."""

    # --- devices
    data: int | None = None
    """Replicas of the model; by default as many as the devices allow."""
    fsdp: int = 1
    """Devices that share one replica's parameters."""

    # --- what is kept and seen
    run: str | None = None
    """Folder of the run; by default runs/NAME-DATE-TIME."""
    name: str = "rljax"
    """Name of the run, for its folder and trackers."""
    seed: int = 0
    """Of everything: parameters, problems, order, sampling."""
    eval_every: int = 20
    """RL steps between held-out evaluations; 0 evaluates only before and after."""
    checkpoint_every: int = 50
    """RL steps between checkpoints; the last step always writes one."""
    sample_every: int = 20
    """RL steps between shown samples; 0 shows none."""
    shown_samples: int = 3
    """How many samples are shown then."""
    wandb: bool = False
    """Log to Weights & Biases too (needs `rljax[wandb]`)."""
    quiet: bool = False
    """Few plain lines instead of the live display."""

    def __post_init__(self):
        """Refuse values that cannot work together, naming the value and the mend."""
        _check_counts(self)
        _check_shares(self)
        _check_window(self)
        low, high = self.operands
        if not 2 <= low <= high:
            raise InputError(f"operands is {self.operands}; give the least (2 or more) and the most numbers of a problem.")
        if self.prompts % self.minibatches:
            raise InputError(f"minibatches={self.minibatches} does not divide prompts={self.prompts}; choose a divisor.")
        rows = self.prompts // self.minibatches * self.group_size
        if self.microbatch_rows is not None and rows % self.microbatch_rows:
            raise InputError(
                f"microbatch_rows={self.microbatch_rows} does not divide the {rows} responses of a mini-batch "
                f"({self.prompts} prompts / {self.minibatches} mini-batches x {self.group_size}); choose a divisor."
            )
        least = 2 * self.prompts * self.max_response_tokens
        if self.token_budget is not None and (self.token_budget < least or self.group_size < 2):
            raise InputError(
                f"token_budget={self.token_budget} with group_size={self.group_size} cannot hold the smallest groups, 2 responses "
                f"of max_response_tokens={self.max_response_tokens} to each of prompts={self.prompts}; give at least {least} and "
                "a group_size of 2 or more."
            )
        if self.task not in ("sums", "iteration"):
            raise InputError(f"task is {self.task!r}; choose sums or iteration.")
        if self.dtype not in ("float32", "bfloat16"):
            raise InputError(f"dtype is {self.dtype!r}; choose float32 or bfloat16.")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise InputError(
                f"width={self.width} over heads={self.heads} must give an even whole number of features a head."
            )

    @property
    def microbatch(self) -> int:
        """Responses whose activations are held at once: a divisor of the mini-batch."""
        if self.microbatch_rows is not None:
            return self.microbatch_rows
        rows = self.prompts // self.minibatches * self.group_size
        tokens = self.max_prompt_tokens + self.max_response_tokens
        return max((n for n in range(1, rows + 1) if rows % n == 0 and n * tokens <= MICROBATCH_TOKENS), default=1)

    @property
    def sampled_prompts(self) -> int:
        """Prompts sampled at a time when groups may be dropped."""
        return round(self.prompts * self.oversample)

    def to_json(self) -> dict:
        """Return a dict that `from_json` reads back to an equal value."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict) -> "TrainConfig":
        """Read what `to_json` gave.

        Raises:
            InputError: a setting that this version does not know.
        """
        unknown = sorted(set(raw) - {field.name for field in fields(cls)})
        if unknown:
            raise InputError(f"The run's config.json has settings unknown to this version of rljax: {', '.join(unknown)}.")
        lists = ("operands", "iterations", "without", "difficulty_window", "difficulty_window_end", "length_weights")
        pairs = [name for name in lists if raw.get(name) is not None]
        return cls(**{**raw, **{name: tuple(raw[name]) for name in pairs}})


_AT_LEAST_ONE = (
    *("layers", "width", "heads", "kv_heads", "hidden", "fsdp", "score_chunk"),
    *("digits", "train_problems", "heldout_problems", "warm_start_batch", "warm_start_eval_every", "checkpoint_every"),
    *(
        "prompts",
        "group_size",
        "max_prompt_tokens",
        "max_response_tokens",
        "max_tries",
        "minibatches",
        "value_pretraining_passes",
    ),
)
_NOT_NEGATIVE = (
    *("warm_start_steps", "steps", "learning_rate_warmup", "eval_every", "sample_every", "shown_samples"),
    *("nesting", "weight_decay", "seed", "remembered_rewards"),
)


def _check_counts(config: TrainConfig) -> None:
    for name in _AT_LEAST_ONE:
        if getattr(config, name) < 1:
            raise InputError(f"{name} is {getattr(config, name)}; it must be at least 1.")
    for name in _NOT_NEGATIVE:
        if getattr(config, name) < 0:
            raise InputError(f"{name} is {getattr(config, name)}; it must not be negative.")
    if config.value_pretraining_steps is not None and config.value_pretraining_steps < 0:
        raise InputError(f"value_pretraining_steps is {config.value_pretraining_steps}; it must not be negative.")
    for name in ("top_k", "microbatch_rows", "data"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}; it must be at least 1.")


def _check_shares(config: TrainConfig) -> None:
    for name in ("temperature", "learning_rate", "warm_start_learning_rate", "max_grad_norm"):
        if not getattr(config, name) > 0:
            raise InputError(f"{name} is {getattr(config, name)}; it must be positive.")
    for name in ("critic_learning_rate", "value_pretraining_learning_rate", "value_pretraining_loss"):
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise InputError(f"{name} is {value}; it must be positive.")
    wanted = config.value_pretraining_explained_variance
    if wanted is not None and not wanted < 1:
        raise InputError(f"value_pretraining_explained_variance is {wanted}; it must be below 1, which is perfect.")
    for name in ("unfinished_share", "lapse_share", "max_failure_share"):
        if not 0 <= getattr(config, name) <= 1:
            raise InputError(f"{name} is {getattr(config, name)}; it must lie between 0 and 1.")
    if config.oversample < 1:
        raise InputError(f"oversample is {config.oversample}; it must be at least 1.")
    for name in ("top_p", "warm_start_accuracy"):
        value = getattr(config, name)
        if value is not None and not 0 < value <= 1:
            raise InputError(f"{name} is {value}; it must be above 0 and at most 1.")


def _check_window(config: TrainConfig) -> None:
    for name in ("difficulty_window", "difficulty_window_end"):
        window = getattr(config, name)
        if window is not None and not 0 <= window[0] <= window[1] <= 1:
            raise InputError(f"{name} is {window}; give two pass rates in order, between 0 and 1.")
    if config.difficulty_window is None and config.difficulty_window_end is not None:
        raise InputError("difficulty_window_end is set and difficulty_window is not; give the window to begin with.")
    if not 0 < config.history_decay <= 1:
        raise InputError(f"history_decay is {config.history_decay}; it must be above 0 and at most 1.")
