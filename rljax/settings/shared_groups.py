"""Groups of settings that larger records inherit: the network, Adam, the held-out problems, the engine and the device mesh."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from rljax.errors import InputError
from rljax.settings.checks import check_at_least, check_positive
from rljax.settings.options import Words


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Precision, memory and sizes of the network. The sizes apply to the small transformer that is built if no model is named."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products. Parameters stay float32. NVIDIA GPUs before the A100 (compute capability 8.0) cannot multiply
    in bfloat16, so bfloat16 is rejected there."""
    cache_dtype: Literal["int8"] | None = None
    """Precision of keys and values while responses are sampled: int8 halves the cache of bfloat16 (a fourth of float32). It changes
    the sampler's log-probabilities: watch sampler_gap. By default the precision of matrix products."""
    remat: Literal["none", "full", "dots", "dots_no_batch", "sqrt"] = "none"
    """What the backward pass computes again to save memory: full (all; only the input of each layer is kept), sqrt (all, twice;
    about 2 √L inputs of L layers are kept), dots_no_batch (all except products with weights), dots (all except products, including
    those of dense attention) or none."""
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

    def __post_init__(self):
        """Reject sizes that no transformer can have."""
        check_at_least(1, self, ["layers", "width", "heads", "kv_heads", "hidden"])
        if self.dtype not in ("float32", "bfloat16"):
            raise InputError(f"dtype is {self.dtype!r}; choose float32 or bfloat16.")
        if self.remat not in ("none", "full", "dots", "dots_no_batch", "sqrt"):
            raise InputError(f"remat is {self.remat!r}; choose none, full, sqrt, dots or dots_no_batch.")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise InputError(f"width={self.width} over heads={self.heads} must give an even number of features per head.")


@dataclass(frozen=True, kw_only=True)
class CombinedPolicyConfig(NetworkConfig):
    """How the network is combined with rules, divided into sub-policies, or divided among devices while it samples."""

    calculator_rate: float | None = None
    """Learn the fraction of --calculator, which is its start, with this multiple of --learning-rate, such as 100, for its log-odds.
    Not with --lora-rank or a critic. By default the fraction is fixed."""
    plan_end: str | None = None
    """Divide responses into a plan, up to and including this text, and an answer after it; the text must be one token and in no
    prompt. With it, set --plans, --sub-policies or both."""
    plans: int | None = None
    """Sample this many plans for each prompt, and --group-size divided by it answers to each plan. Plans are compared by the mean
    reward of their answers, and answers with the other answers to their plan. By default each response has its own plan."""
    sub_policies: int | None = None
    """Train two low-rank adapters of this rank in RL, one for plans and one for answers, over a shared model that only the warm
    start trains. Such a run has no critic and no model folder. By default one policy writes both."""
    shard_sampler: bool = False
    """Divide the weights that sample among the devices of --fsdp, too: each computes a part of the heads, hidden features and
    vocabulary for the rows of all, and exchanges the results for every token. By default each of them has a full copy of these
    weights. Tokens stay the same; log-probabilities change by rounding."""

    def __post_init__(self):
        """Reject values that cannot work."""
        super().__post_init__()
        check_positive(self, ["calculator_rate"])
        check_at_least(2, self, ["plans"])
        check_at_least(1, self, ["sub_policies"])
        if (self.plan_end is None) != (self.plans is None and self.sub_policies is None):
            raise InputError(
                f"plan_end={self.plan_end!r} with plans={self.plans} and sub_policies={self.sub_policies}: set plan_end, and plans "
                "or sub_policies, or none of them."
            )


@dataclass(frozen=True, kw_only=True)
class AdamConfig:
    """Adam's decay rates, weight decay, and the limit of the gradient norm."""

    adam_b1: float = 0.9
    """Decay of the first moment."""
    adam_b2: float = 0.95
    """Decay of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Largest global norm of the gradient; a larger gradient is scaled down to it."""

    def __post_init__(self):
        """Reject values that cannot work."""
        check_at_least(0, self, ["weight_decay"])
        check_positive(self, ["max_grad_norm"])


@dataclass(frozen=True, kw_only=True)
class HeldoutConfig:
    """The problems to evaluate on."""

    heldout_dataset: str | None = None
    """File or hub id of the problems to evaluate on; by default, a part of the dataset is held out."""
    heldout_problems: int = 256
    """Number of problems to evaluate on."""
    also_heldout: Words = field(default_factory=dict)
    """Evaluate on further sets at the same steps: a name and a file or hub id for each, e.g. `--also-heldout aime=aime.jsonl
    gsm8k=gsm8k`. Metrics are named after the set, such as accuracy_on_aime. The first --heldout-problems of each set are used. The
    best checkpoint depends on the problems above, unless --best-metric names such a metric."""

    def __post_init__(self):
        """Reject values that cannot work."""
        check_at_least(1, self, ["heldout_problems"])
        for name, source in self.also_heldout.items():
            if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or not isinstance(source, str):
                raise InputError(
                    f"also_heldout is {self.also_heldout}; give each set a name of letters, digits, - and _, and a file, such as "
                    "aime=aime.jsonl."
                )


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The engine that samples responses, and the age of the parameters that it samples with."""

    engine_url: str | None = None
    """Sample on the server at this address, such as http://127.0.0.1:8000 of `rljax serve`; it gets the weights of each step. By
    default the built-in engine samples on the devices of the run. The environment variable RLJAX_ENGINE_KEY has the API key."""
    engine_server: Literal["rljax", "vllm", "sglang"] | None = None
    """With --engine-url: the kind of server; by default rljax."""
    engine_folder: str | None = None
    """With --engine-url: folder through which the weights reach the server, which must see it under the same path. By default a
    temporary folder, for a server on the same machine."""
    engine_patience: float | None = None
    """With --engine-url: number of seconds to retry a server that does not answer, by default 120. Then the run saves its work and
    ends with exit code 75."""
    engine_in_flight: bool | None = None
    """With --engine-url and --staleness: the server gets new weights as soon as the learner has them, and running responses
    continue with them. Which tokens have which weights is recorded; it depends on timing, so no two runs are the same."""
    paged_cache: float | None = None
    """Keep keys and values in pages that responses take as they grow. The number is the expected length of a response as a share of
    --max-response-tokens, such as 0.15: about as many responses are decoded at once as fit with this length. By default each has
    room for the longest response, because pages change log-probabilities by rounding and add programs to compile."""
    replay_experts: bool = False
    """For a mixture of experts: record which experts each layer uses for each token while it samples, and use the same ones in the
    learner and the reference, whose routers still weight them (R3, arXiv:2510.11370). Otherwise rounding lets the two choose
    different experts. For the built-in engine without pages; an engine of your own returns them as `Response.experts`."""
    delay: Annotated[int, tyro.conf.arg(name="sampler-delay")] = 0
    """Sample the responses of a step with the parameters of this many RL steps ago, like the sampler of an asynchronous trainer;
    the first steps use the initial parameters. This keeps one copy of the trained parameters per step of delay. The ratio is
    relative to the policy that sampled. With a --correction it is relative to the policy before the updates, which rescores the
    responses, and the correction weights tokens by how far the two policies differ. Evaluations use the newest parameters."""
    staleness: int | None = None
    """Asynchronous training: compute the same results as --sampler-delay of this many steps, but sample the next rollouts, at most
    this many, while the learner makes its updates. Sampling and learning overlap if a server samples (--engine-url), and, on a
    single device, while rewards and environments run. Otherwise they take turns, as they do on several devices with an adapter or a
    reward model."""


@dataclass(frozen=True)
class MeshConfig:
    """Axes of the device mesh."""

    replicas: Annotated[int | None, tyro.conf.arg(aliases=["--data"])] = None
    """Number of copies of the model; by default as many as the devices allow."""
    fsdp: int = 1
    """Number of devices that share the parameters of one copy; each has its own rows."""
    tensor: int = 1
    """Number of devices that share the heads, hidden features and vocabulary of one copy, and work on the same rows."""
    context: int | None = None
    """Number of devices that share the tokens of each row in scoring and updates, for sequences too long for one device; by default
    1. They also share the parameters, like those of --fsdp, and have rows of their own while responses are sampled. In attention
    each has some of the heads, so --context times --tensor must divide the number of heads; key/value heads are copied if there
    are fewer."""

    def __post_init__(self):
        """Reject values that cannot work."""
        check_at_least(1, self, ["replicas", "fsdp", "tensor", "context"])
