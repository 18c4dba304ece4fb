"""Groups of settings that larger groups inherit: the network, Adam, the held-out problems, the engine and the device mesh."""

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
    """Precision of keys and values while responses are sampled: int8 takes half the memory of bfloat16, and a quarter of float32.
    int8 changes the sampler's log-probabilities, so watch the metric sampler_gap. By default, the precision of matrix products."""
    remat: Literal["none", "full", "dots", "dots_no_batch", "sqrt"] = "none"
    """What the backward pass recomputes to save memory: full (everything; only the input of each layer is kept), sqrt (everything,
    twice; about 2 √L inputs of the L layers are kept), dots_no_batch (everything except products with weights), dots (everything
    except products, with weights or in dense attention) or none."""
    layers: int = 3
    """Number of layers."""
    width: int = 96
    """Width of the residual stream."""
    heads: int = 4
    """Number of query heads."""
    kv_heads: int = 2
    """Number of key and value heads."""
    hidden: int = 256
    """Width of the feed-forward layer."""

    def __post_init__(self):
        """Reject sizes that no transformer can have."""
        check_at_least(1, self, ["layers", "width", "heads", "kv_heads", "hidden"])
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise InputError(f"width={self.width} over heads={self.heads} must give an even number of features per head.")


SIZES = ("layers", "width", "heads", "kv_heads", "hidden")
"""Settings of the small transformer that determine its shapes."""


def unused_sizes(network: NetworkConfig, policy: object | None = None) -> list[str]:
    """Return a note on sizes that have no effect, because the policy, or without one the model's folder, has its own sizes.

    It is only a note, because settings are often derived from those of a small run.

    Args:
        network: the settings of a run with a policy or a model's folder.
        policy: the policy that was passed to `train`, if any.

    Example:
        >>> unused_sizes(NetworkConfig(layers=2, width=64))
        ["layers=2, width=64: no effect, because the model's folder has its own sizes"]
    """
    chosen = [
        f"{name}={getattr(network, name)}" for name in SIZES if getattr(network, name) != getattr(NetworkConfig, name)
    ]
    owner = "model's folder" if policy is None else "policy that was passed"
    return [f"{', '.join(chosen)}: no effect, because the {owner} has its own sizes"] if chosen else []


@dataclass(frozen=True, kw_only=True)
class CombinedPolicyConfig(NetworkConfig):
    """Whether the network is combined with rules, divided into sub-policies, or sharded over devices while it samples."""

    calculator_rate: float | None = None
    """Learn the fraction that --calculator sets, starting from that value. The learning rate of the fraction's log-odds
    is this multiple of --learning-rate, such as 100. Not with --lora-rank or a critic. By default, the fraction is fixed."""
    plan_end: str | None = None
    """Divide each response into a plan, which ends with this text, and the answer after it. The text must be a single token that
    occurs in no prompt. Requires --plans, --sub-policies or both."""
    plans: int | None = None
    """Sample this many plans per prompt, and --group-size / --plans answers per plan. Plans are compared by the mean reward of
    their answers, and each answer with the other answers to its plan. By default, each response has its own plan."""
    sub_policies: int | None = None
    """In RL, train two low-rank adapters of this rank, one for plans and one for answers, on a shared model that only the warm
    start trains. Such a run has no critic, and saves no model folder. By default, one policy writes plans and answers."""
    shard_sampler: bool = False
    """Shard the sampler's weights over the --fsdp devices, too. Each device computes some of the heads, hidden features and
    vocabulary for the sequences of all these devices, and they exchange the results for every token. By default, each device has a
    full copy of the sampler's weights. Tokens stay the same; log-probabilities change by rounding errors."""

    def __post_init__(self):
        """Reject values that cannot work."""
        super().__post_init__()
        check_positive(self, ["calculator_rate"])
        check_at_least(2, self, ["plans"])
        check_at_least(1, self, ["sub_policies"])
        if (self.plan_end is None) != (self.plans is None and self.sub_policies is None):
            raise InputError(
                f"plan_end={self.plan_end!r} with plans={self.plans} and sub_policies={self.sub_policies}: set plan_end together "
                "with plans or sub_policies, or none of them."
            )


@dataclass(frozen=True, kw_only=True)
class AdamConfig:
    """Adam's decay rates, weight decay, and the limit on the gradient norm."""

    adam_b1: float = 0.9
    """Decay of the first moment."""
    adam_b2: float = 0.95
    """Decay of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Maximum global norm of the gradient; a larger gradient is scaled down to this norm."""

    def __post_init__(self):
        """Reject values that cannot work."""
        check_at_least(0, self, ["adam_b1", "adam_b2", "weight_decay"])
        check_positive(self, ["max_grad_norm"])
        for name in ("adam_b1", "adam_b2"):
            if getattr(self, name) >= 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be below 1.")


@dataclass(frozen=True, kw_only=True)
class HeldoutConfig:
    """The problems to evaluate on."""

    heldout_dataset: str | None = None
    """File or hub id of the problems to evaluate on; by default, a part of the dataset is held out."""
    heldout_problems: int = 256
    """Number of problems to evaluate on."""
    also_heldout: Words = field(default_factory=dict)
    """Evaluate on further sets at the same steps: for each set, a name and a file or hub id, e.g. `--also-heldout aime=aime.jsonl
    gsm8k=gsm8k`. Metrics are named after the set, such as accuracy_on_aime. The first --heldout-problems of each set are used.
    These sets do not affect the choice of the best checkpoint, unless --best-metric names such a metric."""

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
    """The engine that samples responses, and the age of the parameters that the engine uses."""

    engine_url: str | None = None
    """Sample on the server at this address, such as http://127.0.0.1:8000 for `rljax serve`; a final /v1 is left out. The server
    gets new weights in each step. By default, the built-in engine samples on the run's devices. Set the API key in the environment
    variable RLJAX_ENGINE_KEY."""
    engine_server: Literal["rljax", "vllm", "sglang"] | None = None
    """With --engine-url: the kind of server; by default rljax."""
    engine_folder: str | None = None
    """With --engine-url: folder that passes the weights to the server. The server must see the folder under the same path. By
    default, a temporary folder, which only works for a server on the same machine."""
    engine_patience: float | None = None
    """With --engine-url: number of seconds to retry a server that does not answer; by default 120. After that time, the run saves
    its work and ends with exit code 75."""
    engine_in_flight: bool | None = None
    """With --engine-url and --staleness: send new weights to the server as soon as the learner has them; unfinished responses
    continue with the new weights. The run records which weights sampled each token. These depend on timing, so no two runs are the
    same."""
    paged_cache: float | None = None
    """Keep keys and values in pages, which are allocated as responses grow. The value is the expected length of a response as a
    fraction of --max-response-tokens, such as 0.15; about as many responses are decoded at once as would fit if each had this
    length. By default, each response has room for the maximum length, because pages change log-probabilities by rounding errors
    and add programs to compile."""
    replay_experts: bool = False
    """For a mixture of experts: record which experts each layer uses for each sampled token, and use the same experts in the
    learner and the reference, whose own routers still weight them (R3, arXiv:2510.11370). Otherwise, rounding errors can make
    sampler and learner choose different experts. Requires the built-in engine without --paged-cache, or an engine of your own that
    returns `Response.experts`."""
    delay: Annotated[int, tyro.conf.arg(name="sampler-delay")] = 0
    """Sample each step's responses with the parameters from this many RL steps ago, like the sampler of an asynchronous trainer;
    the first steps use the initial parameters. One copy of the trained parameters is kept per step of delay. The probability ratio
    is relative to the policy that sampled. With a --correction, the ratio is relative to the policy before the step's updates,
    which rescores the responses, and the correction weights each token by how much the two policies differ. Evaluations use the
    newest parameters."""
    staleness: int | None = None
    """Asynchronous training: compute the same results as with --sampler-delay of this many steps, but sample up to this many
    further rollouts while the learner makes its updates. On a single device, sampling and learning overlap while a server samples
    (--engine-url) and while rewards and environments run. On several devices, they overlap only if a server samples and there is
    neither an adapter nor a reward model. Otherwise, and in a run of several processes, they take turns."""


@dataclass(frozen=True)
class MeshConfig:
    """Axes of the device mesh."""

    replicas: Annotated[int | None, tyro.conf.arg(aliases=["--data"])] = None
    """Number of copies of the model; by default as many as the devices allow."""
    fsdp: int = 1
    """Number of devices over which the parameters of one copy are split; each device processes its own batch rows."""
    tensor: int = 1
    """Number of devices over which one copy's heads, hidden features and vocabulary are split; they process the same batch rows."""
    context: int | None = None
    """Number of devices over which the tokens of each batch row are split in scoring and updates, for sequences too long for one
    device; by default 1. The parameters are split over these devices too, as with --fsdp, and each samples its own responses. In
    attention, each device computes some of the heads, so --context times --tensor must divide the number of heads; if there are
    fewer key/value heads, they are copied."""

    def __post_init__(self):
        """Reject values that cannot work."""
        check_at_least(1, self, ["replicas", "fsdp", "tensor", "context"])
