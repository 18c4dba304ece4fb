"""Settings of the warm start, optimizer, adapter, critic, dataset, run folder and sampling, one record for each."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from rljax.errors import InputError
from rljax.files import check_local
from rljax.settings.checks import (
    check_at_least,
    check_at_most_a_year,
    check_engine,
    check_positive,
    check_positive_share,
    check_sampling_mask,
    check_stop,
)
from rljax.settings.options import Options
from rljax.settings.shared_groups import AdamConfig, EngineConfig, HeldoutConfig
from rljax.settings.sizes import byte_count


@dataclass(frozen=True)
class WarmStartConfig:
    """The supervised warm start on the problems' demonstrations."""

    steps: Annotated[int, tyro.conf.arg(name="warm-start-steps")] = 0
    """Maximum number of warm-start steps; 0 skips the warm start."""
    batch: Annotated[int, tyro.conf.arg(name="warm-start-batch")] = 64
    """Number of demonstrations per step."""
    learning_rate: Annotated[float, tyro.conf.arg(name="warm-start-learning-rate")] = 2e-3
    """Peak learning rate of the warm start."""
    optimizer: Annotated[Literal["adamw", "muon"], tyro.conf.arg(name="warm-start-optimizer")] = "adamw"
    """'muon' orthogonalizes the momentum (decay rate 0.95) of the layers' matrices; --adam-b1 and --adam-b2 apply to the other
    parameters."""
    loss: Annotated[Literal["dft"] | None, tyro.conf.arg(name="warm-start-loss")] = None
    """'dft' (dynamic fine-tuning, for pretrained models): multiply each token's loss by the policy's probability of this token."""
    accuracy: Annotated[float | None, tyro.conf.arg(name="warm-start-accuracy")] = None
    """End the warm start as soon as held-out greedy accuracy reaches this value, from 0 to 1."""
    eval_every: Annotated[int, tyro.conf.arg(name="warm-start-eval-every")] = 20
    """Number of warm-start steps between evaluations of this accuracy."""
    keep: Annotated[bool, tyro.conf.arg(name="keep-warm-start")] = False
    """Cache the finished warm start next to the compiled programs, and reuse it in later runs with the same settings (model, task,
    data and warm start), seed, source code, packages and machine. It applies only to generated tasks, and has no effect with
    --warm-start-accuracy, --model, --lora-rank, --anchor, a tokenizer folder, your own parts in Python, or several hosts, or if
    compiled programs are not cached in a local folder (`rljax --version` names the folder; in Python it is
    jax_compilation_cache_dir)."""

    def __post_init__(self):
        """Reject values that cannot work."""
        check_at_least(0, self, ["steps"])
        check_at_least(1, self, ["batch", "eval_every"])
        check_positive(self, ["learning_rate"])
        check_positive_share(self, ["accuracy"])


@dataclass(frozen=True)
class OptimizationConfig(AdamConfig):
    """RL steps and the policy's optimizer."""

    steps: int = 100
    """Number of RL steps; one step is one rollout."""
    minibatches: int = 1
    """Number of mini-batches per rollout; each pass makes one optimizer update per mini-batch."""
    passes: int = 1
    """Number of passes over a rollout, for the policy and the critic. After the first, each pass takes the policy's mini-batches
    in a new random order."""
    kl_limit: float | None = None
    """Skip a rollout's remaining policy updates once the policy's KL divergence from the sampling policy exceeds this, in nats per
    token; it is measured before each update (`kl`), and averaged over the updates so far. By default all updates are made."""
    microbatch_rows: int | None = None
    """Maximum number of rows whose activations are in memory at once; a row has one or several responses or demonstrations. By
    default as many as have at most 16,384 tokens together; on CPUs fewer, if this reduces padding."""
    learning_rate: float = 1e-6
    """Peak learning rate of RL."""
    learning_rate_warmup: int = 10
    """Number of updates over which the learning rate rises linearly. In the warm start and for the critic, it is at most a tenth of
    all updates or 10, whichever is larger; for the policy in RL with --schedule linear or cosine, at most half of all updates."""
    schedule: Literal["constant", "linear", "cosine", "quarter_cosine"] = "constant"
    """The policy's learning rate in RL after the warm-up: 'constant', or falling to 0 over the run: linearly ('linear'), along half
    a cosine wave ('cosine', the usual one) or along a quarter ('quarter_cosine'). Skipped updates also advance the schedule."""
    moments_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the first moment of all optimizers: bfloat16 saves two bytes per parameter."""
    second_moment: Literal["full", "factored"] = "full"
    """Second moment of all optimizers: 'factored' keeps only means over the rows and the columns of large matrices, as Adafactor
    does, and saves nearly four bytes per parameter; its decay rate is then 1 - t^-0.8, and --adam-b2 does not apply."""
    auxiliary: float = 0.0
    """Weight of a self-supervised loss in each policy update: mean negative log-likelihood of --warm-start-batch demonstrations, or
    prompts if some problem has no demonstration. They form one batch, which --microbatch-rows does not split."""
    prompt_consistency: Options = field(default_factory=dict)
    """Weights of a loss that makes right answers likelier after perturbed prompts (`rljax eval --perturb`), e.g. `order=0.1`."""
    remedy: Literal["off", "auto", "controller"] = "off"
    """What to do when a run goes wrong: 'auto' lets some alarms change a setting between two steps, e.g. divide the learning rate
    by 3; the run reports the change, writes it to remedies.jsonl, and repeats it when resumed. 'controller' adjusts the size of
    the updates, a two-sided clip range and an entropy bonus after each step, depending on how far the step moved the policy. The
    updates start at a hundredth of their usual size. 'controller' needs several --minibatches or --passes."""
    keep_zeros: bool = False
    """Leave weights that are zero unchanged in RL, so that a pruned model (`rljax export --prune`) stays pruned."""
    freeze: tuple[str, ...] = ()
    """Patterns of the policy's parameters that are not trained, in the warm start and in RL. A pattern matches adjacent parts of a
    parameter's path, such as embedding, layers/[0-3] or *_norm; frozen parameters have no moments."""

    def __post_init__(self):
        """Reject values that cannot work."""
        super().__post_init__()
        check_at_least(0, self, ["steps", "learning_rate_warmup", "auxiliary"])
        check_at_least(1, self, ["minibatches", "passes", "microbatch_rows"])
        check_positive(self, ["learning_rate", "kl_limit"])
        if self.kl_limit is not None and self.minibatches * self.passes == 1:
            raise InputError(
                f"kl_limit={self.kl_limit} ends the updates on a rollout early, but a rollout has only one update; raise "
                "passes or minibatches, or leave kl_limit out."
            )


@dataclass(frozen=True)
class AdapterConfig:
    """The low-rank adapter (LoRA): the model stays unchanged, α/r · A B is added to its matrices, and only A and B are trained."""

    rank: Annotated[int | None, tyro.conf.arg(name="lora-rank")] = None
    """Rank r of the change to each matrix; by default the full model is trained. An adapter needs about ten times the learning
    rate of the full model."""
    alpha: Annotated[float, tyro.conf.arg(name="lora-alpha")] = 32.0
    """Scale α of the adapter: the product A B is multiplied by α/r."""
    targets: Annotated[tuple[str, ...], tyro.conf.arg(name="lora-targets")] = ("attention", "feed_forward")
    """Patterns of the matrices to adapt. A pattern matches adjacent parts of a path, such as query, attention/* or layers/[0-3];
    by default all matrices of all layers are adapted."""
    start: Annotated[str | None, tyro.conf.arg(name="lora-start")] = None
    """Folder of an adapter, in PEFT format, to continue from. If --model is the folder of an adapter, that folder
    is used here, and the rank, α, targets and model are read from it."""
    quantize: Literal["int8", "nf4"] | None = None
    """Store the matrices of the model under the adapter in 8 or 4 bits, plus half a bit per weight for the scales of blocks of 64
    weights (QLoRA); by default the matrices are float32."""

    def __post_init__(self):
        """Reject values that cannot work."""
        check_at_least(1, self, ["rank"])
        check_positive(self, ["alpha"])
        if self.quantize is not None and self.rank is None:
            raise InputError(
                f"quantize={self.quantize!r} quantizes the model under an adapter, but there is no adapter, and quantized weights "
                "cannot be trained. Set lora_rank, or leave quantize out."
            )
        if not self.targets:
            raise InputError("lora_targets is empty; name at least one matrix, such as query.")


@dataclass(frozen=True)
class CriticConfig:
    """The critic, for the algorithms that have one."""

    start: Annotated[str | None, tyro.conf.arg(name="critic")] = None
    """Initial parameters of the critic: 'policy' (a copy of the policy, the default), 'fresh' (random weights), or the folder of a
    run, a critic or a reward model."""
    head: Annotated[str | None, tyro.conf.arg(name="critic-head")] = None
    """Last layer of the critic: 'scalar' (the algorithms' default), 'mixture', 'two_hot', 'c51' (the same
    as 'two_hot', because C51's projection of a full return is its two-hot encoding) or 'hl_gauss'."""
    head_options: Annotated[Options, tyro.conf.arg(name="critic-head-options")] = field(default_factory=dict)
    """Options of the critic's head, e.g. `--critic-head two_hot --critic-head-options low=-1 high=2 bins=31`."""
    frozen_trunk: Annotated[bool, tyro.conf.arg(name="critic-frozen-trunk")] = False
    """Train only the critic's head; its trunk keeps the initial parameters."""
    surprisal: Annotated[bool, tyro.conf.arg(name="critic-surprisal")] = False
    """Give the critic the policy's log-probability of each response token as an extra input, which the papers' critics do not
    have. A critic from a folder must have been trained with the same setting."""
    learning_rate: Annotated[float | None, tyro.conf.arg(name="critic-learning-rate")] = None
    """Peak learning rate of the critic; by default the policy's learning rate times the algorithm's ratio."""
    pretraining_steps: Annotated[int | None, tyro.conf.arg(name="value-pretraining-steps")] = None
    """Maximum number of value pretraining steps: before RL, only the critic is trained, on one rollout of the fixed policy per
    step. By default the algorithm's number."""
    pretraining_learning_rate: Annotated[float | None, tyro.conf.arg(name="value-pretraining-learning-rate")] = None
    """Peak learning rate of value pretraining, by default the critic's. The rate falls to a tenth of the peak by the end."""
    pretraining_passes: Annotated[int, tyro.conf.arg(name="value-pretraining-passes")] = 1
    """Number of passes over each rollout in value pretraining."""
    pretraining_explained_variance: Annotated[float | None, tyro.conf.arg(name="value-pretraining-explained-variance")] = (
        None
    )
    """End value pretraining once the explained variance on new rollouts reaches this value."""
    pretraining_loss: Annotated[float | None, tyro.conf.arg(name="value-pretraining-loss")] = None
    """End value pretraining once the loss on the outcomes of new rollouts (half the mean squared error) is at most this value. If
    both thresholds are set, both must be reached."""
    mix_pretrained_value: bool = False
    """Blend the values of the pretrained critic into the critic's current values, with a weight that falls during RL."""

    def __post_init__(self):
        """Reject values that cannot work."""
        check_at_least(0, self, ["pretraining_steps"])
        check_at_least(1, self, ["pretraining_passes"])
        check_positive(self, ["learning_rate", "pretraining_learning_rate", "pretraining_loss"])
        threshold = self.pretraining_explained_variance
        if threshold is not None and not threshold < 1:
            raise InputError(
                f"value_pretraining_explained_variance is {threshold}; it must be below 1, the value of a perfect critic."
            )


@dataclass(frozen=True)
class DataConfig(HeldoutConfig):
    """The dataset and the selection of prompts."""

    dataset: str | None = None
    """JSONL / JSON / Parquet file, folder or hub id with prompts and answers; without one, problems are generated."""
    on_error: Literal["fatal", "drop", "keep"] = "fatal"
    """What to do with a bad row: stop the run, drop the row, or keep it if its prompt can be used."""
    prompt_column: str | None = None
    """Column with the prompt; by default prompt, question or problem."""
    answer_column: str | None = None
    """Column with the answer; by default answer, solution, ground_truth or target."""
    demonstration_column: str | None = None
    """Column with a demonstration for the warm start; by default demonstration, if the dataset has this column."""
    max_prompt_tokens: int = 256
    """Maximum length of a prompt; longer prompts are dropped, and their number is shown."""
    difficulty_window: tuple[float, float] | None = None
    """Skip prompts whose pass rate so far is outside this interval, e.g. `--difficulty-window 0.1 0.9`."""
    difficulty_window_end: tuple[float, float] | None = None
    """Move the difficulty window linearly to this interval over the run, as a curriculum."""
    length_weights: tuple[float, ...] | None = None
    """Sample prompts by length: weights of the five bins separated by the 25th, 50th, 75th and 95th percentiles of the length of
    the demonstrations (or of the prompts, if some problem has no demonstration), e.g. `--length-weights 1 1 1 1 1`."""
    perturb_prompts: Options = field(default_factory=dict)
    """Fraction of the training prompts to perturb in RL, per perturbation of `rljax eval --perturb`, e.g. `order=0.3 typos=0.1`."""
    history_decay: float = 0.5
    """Factor applied to a prompt's earlier counts of attempts, right answers and tokens each time the prompt is sampled again."""

    def __post_init__(self):
        """Reject values that cannot work."""
        super().__post_init__()
        check_at_least(1, self, ["max_prompt_tokens"])
        check_positive_share(self, ["history_decay"])
        for name in ("difficulty_window", "difficulty_window_end"):
            window = getattr(self, name)
            if window is not None and not 0 <= window[0] <= window[1] <= 1:
                raise InputError(f"{name} is {window}; give two pass rates in ascending order, between 0 and 1.")
        if self.difficulty_window is None and self.difficulty_window_end is not None:
            raise InputError(
                "difficulty_window_end is set, but difficulty_window, the window at the start of the run, is not; set both."
            )


@dataclass(frozen=True)
class RunConfig:
    """The run folder, checkpoints and output."""

    folder: Annotated[str | None, tyro.conf.arg(name="run")] = None
    """Folder of the run; by default runs/NAME-DATE-TIME."""
    name: str = "rljax"
    """Name of the run, for its folder and trackers."""
    seed: int = 0
    """Random seed for everything: parameters, problems, their order, and sampling."""
    eval_every: int = 20
    """Number of RL steps between held-out evaluations; 0 evaluates only before and after RL."""
    skip_first_eval: bool = False
    """Do not evaluate before RL; the accuracy before RL is then not known."""
    checkpoint_every: int = 50
    """Number of RL steps between checkpoints; the last step always writes one."""
    max_to_keep: int = 2
    """Number of most recent checkpoints to keep; older ones are deleted."""
    max_best_to_keep: int = 2
    """Number of best checkpoints to keep."""
    best_metric: str | None = None
    """The checkpoint with the highest value of this held-out metric is the best: accuracy, reward, reward_PART, ...; by default
    the accuracy if rewards or the environment report what is correct, else the mean reward. Ties are broken by the mean reward,
    and then in favor of the newer checkpoint."""
    keep_period: int | None = None
    """Also keep the checkpoints of RL steps that are multiples of this, as checkpoints/step-N. A multiple of --checkpoint-every."""
    models: Literal["both", "best", "last", "none"] = "both"
    """Models to write when the run ends, as RUN/best and RUN/last: folders that AutoModelForCausalLM can open."""
    sample_every: int = 20
    """Number of RL steps between displays of sampled responses; 0 shows none."""
    shown_samples: int = 3
    """Number of sampled responses shown each time."""
    logged_rollouts: int | None = None
    """Number of responses written to rollouts.jsonl, with their tokens, each time responses are shown: by default 8; 0 for none."""
    grace: float | None = None
    """Seconds after SIGTERM until an RL step that is still sampling or judging is abandoned, and the earlier steps are saved. By
    default, and always with several hosts, the step in progress is finished."""
    wandb: bool = False
    """Also log to Weights & Biases (needs the package wandb)."""
    mlflow: bool = False
    """Also log to MLflow (needs the package mlflow or mlflow-skinny)."""
    quiet: bool = False
    """Print a few plain lines instead of the live display."""

    def __post_init__(self):
        """Reject values that cannot work."""
        if self.folder is not None:
            check_local(self.folder, "run")
        check_at_least(0, self, ["seed", "eval_every", "sample_every", "shown_samples", "logged_rollouts", "grace"])
        check_at_most_a_year(self, ["grace"])
        check_at_least(1, self, ["checkpoint_every", "max_to_keep", "max_best_to_keep", "keep_period"])


@dataclass(frozen=True)
class SamplingConfig(EngineConfig):
    """Rollouts: how many responses are sampled, and how their tokens are sampled."""

    prompts: int = 32
    """Number of prompts (groups) to train on per rollout."""
    group_size: int = 8
    """Number of responses per prompt."""
    max_response_tokens: int = 256
    """Maximum number of tokens in a response, including EOS."""
    temperature: float = 1.0
    """Temperature of sampling, and of the log-probabilities in training."""
    top_k: int | None = None
    """Sample from the k most likely tokens only."""
    top_p: float | None = None
    """Sample from the smallest set of most likely tokens with at least this total probability."""
    sampling_mask: int | None = None
    """With --top-k or --top-p: record the tokens that remain, at most this many (e.g. 512), and normalize the probabilities of
    learner and reference over these tokens (DeepSeek-V3.2), so that --correction and --off-policy-delta do not mistake truncation
    for drift."""
    stratified: bool = False
    """Sample each token of a group's responses from different quantiles of the policy: the responses differ more from each other,
    and each is still an exact sample."""
    stop: tuple[str, ...] = ()
    """Texts that end a response, as EOS does, such as `--stop "</answer>"`. The token that completes such a text is the last of the
    response: the reward sees the stop text, and the text's tokens are trained on. A text may begin and end inside tokens. A special
    token, such as `<|im_end|>`, is not text: pass its id to --stop-ids."""
    stop_ids: tuple[int, ...] = ()
    """Ids of further tokens that end a response and remain part of it: `--stop-ids 7 13`. The tokenizer's end token always ends a
    response, as do all tokens that the model's generation_config.json, or else its config.json, names as `eos_token_id`."""
    decode_slots: int | None = None
    """Maximum number of responses decoded at once, each in a row of the key/value cache; the others wait until a row is free. By
    default as many as fit into --cache-memory; on CPUs, if that is not set, at most 256."""
    cache_memory: str | None = None
    """Memory for the key/value cache on each device, such as 8GB: as many rows are decoded at once as would fit if every prompt and
    every response had its full length. By default, nine tenths of the device's memory (on several hosts, of the smallest
    device) minus the state and the weights, or 256 rows if the memory is unknown."""
    oversample: float = 1.5
    """Dynamic sampling: number of prompts sampled at a time, as a multiple of --prompts."""
    max_tries: int = 4
    """Dynamic sampling: maximum number of sampling rounds per rollout; after them, the step trains on fewer groups."""
    token_budget: int | None = None
    """Upper bound on the expected number of response tokens in a rollout, divided equally among its prompts. Each
    prompt gets as many responses as fit if they are as long as its earlier responses, at least 2 and at most `group_size`."""
    remembered_rewards: int = 0
    """Temporal groups: new responses are compared with each other and with up to this many earlier rewards of the same prompt."""

    def __post_init__(self):
        """Reject values that cannot work."""
        check_engine(self)
        check_at_least(1, self, ["prompts", "group_size", "max_response_tokens", "decode_slots", "max_tries", "oversample"])
        check_at_least(1, self, ["top_k", "sampling_mask", "token_budget"])
        check_at_least(0, self, ["remembered_rewards"])
        check_positive(self, ["temperature"])
        check_positive_share(self, ["top_p"])
        check_sampling_mask(self.sampling_mask, self.top_k, self.top_p)
        check_stop(self.stop)
        if self.stratified and self.group_size < 2:
            raise InputError(f"stratified needs a group_size of at least 2, got {self.group_size}.")
        if self.cache_memory is not None:
            byte_count(self.cache_memory)
        least = 2 * self.prompts * self.max_response_tokens
        if self.token_budget is not None and (self.token_budget < least or self.group_size < 2):
            raise InputError(
                f"token_budget={self.token_budget} with group_size={self.group_size} does not allow 2 responses of "
                f"{self.max_response_tokens} tokens (max_response_tokens) per prompt (prompts={self.prompts}); set "
                f"token_budget to at least {least}, and group_size to at least 2."
            )

    @property
    def lag(self) -> int:
        """Maximum number of RL steps by which the sampler's parameters lag behind the learner's."""
        return max(self.delay, self.staleness or 0)
