"""Settings of the supervised warm start and of the optimiser."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from rljax.errors import InputError
from rljax.records import documented
from rljax.settings.checks import check_at_least, check_positive, check_positive_share


@documented
@dataclass(frozen=True)
class WarmStartConfig:
    """The supervised warm start on the problems' demonstrations."""

    steps: Annotated[int, tyro.conf.arg(name="warm-start-steps")] = 0
    """Maximum number of warm-start steps; 0 skips the warm start."""
    batch: Annotated[int, tyro.conf.arg(name="warm-start-batch")] = 64
    """Demonstrations per step."""
    learning_rate: Annotated[float, tyro.conf.arg(name="warm-start-learning-rate")] = 2e-3
    """Peak learning rate of the warm start."""
    optimizer: Annotated[Literal["adamw", "muon"], tyro.conf.arg(name="warm-start-optimizer")] = "adamw"
    """Optimiser of the warm start: 'muon' orthogonalises the updates of the layers' matrices. The decay of
    their momentum is 0.95; --adam-b1 and --adam-b2 apply to the other parameters."""
    accuracy: Annotated[float | None, tyro.conf.arg(name="warm-start-accuracy")] = None
    """End the warm start as soon as held-out greedy accuracy reaches this share."""
    eval_every: Annotated[int, tyro.conf.arg(name="warm-start-eval-every")] = 20
    """Warm-start steps between evaluations of this accuracy."""
    keep: Annotated[bool, tyro.conf.arg(name="keep-warm-start")] = False
    """Keep the finished warm start beside the compiled programs, and begin with it in later runs that would compute the same one:
    the same settings of model, task, data and warm start, seed, sources, packages and machine. It applies to generated tasks alone,
    and changes nothing with --warm-start-accuracy, --model, --lora-rank, --anchor, the folder of a tokenizer, parts of your own in
    Python, or several hosts, nor where compiled programs are not kept in a local folder (`rljax --version` names it; in Python it
    is jax_compilation_cache_dir)."""

    def __post_init__(self):
        """Refuse values that cannot work."""
        check_at_least(0, self, ["steps"])
        check_at_least(1, self, ["batch", "eval_every"])
        check_positive(self, ["learning_rate"])
        check_positive_share(self, ["accuracy"])
        if self.optimizer not in ("adamw", "muon"):
            raise InputError(f"warm_start_optimizer is {self.optimizer!r}; choose adamw or muon.")


@documented
@dataclass(frozen=True)
class OptimizationConfig:
    """RL steps and the policy's optimiser."""

    steps: int = 100
    """RL steps; one step is one rollout."""
    minibatches: int = 1
    """Mini-batches of a rollout, each of them one optimiser update in a pass."""
    passes: int = 1
    """Passes over a rollout, those of the critic included; the policy's mini-batches are in a new random order in each but the
    first."""
    kl_limit: float | None = None
    """End the policy's updates on a rollout once its divergence from the policy that sampled, in nats a token, is above this in the
    mean over the updates so far, each measured before it is made (the metric `kl`). By default all updates are made."""
    microbatch_rows: int | None = None
    """Maximum number of rows whose activations are held at once, each of one or several responses; by default as many as fit in
    16,384 tokens."""
    learning_rate: float = 1e-6
    """Peak learning rate of RL."""
    learning_rate_warmup: int = 10
    """Updates over which the learning rate rises linearly; for a critic and before RL, a tenth of the updates if that is less, but
    not fewer than 10."""
    schedule: Literal["constant", "cosine"] = "constant"
    """The policy's learning rate in RL after its warm-up: 'constant', or 'cosine', which falls to 0 at the end of the run."""
    adam_b1: float = 0.9
    """Decay of the first moment."""
    adam_b2: float = 0.95
    """Decay of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Largest global norm of the gradient; a larger gradient is scaled down to it."""
    moments_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the first moment of all optimisers: bfloat16 saves two bytes a parameter."""
    second_moment: Literal["full", "factored"] = "full"
    """Second moment of all optimisers: 'factored' keeps only means over the rows and the columns of large matrices, as Adafactor
    does, and saves nearly four bytes a parameter; it then decays as 1 - t^-0.8, and --adam-b2 does not apply."""
    auxiliary: float = 0.0
    """Weight of a self-supervised loss beside that of RL, in each update of the policy: the mean negative log-likelihood of
    demonstrations, or of the prompts themselves where not every problem has a demonstration. An update takes --warm-start-batch of
    them in one batch, which --microbatch-rows does not split. 0: there is none."""
    remedy: Literal["off", "auto", "controller"] = "off"
    """Treatment of a run that goes wrong: 'auto' lets some alarms change a setting between two steps, as the learning rate to
    a third; the run says so, writes it into remedies.jsonl, and repeats it when it is resumed. 'controller' scales every update,
    the clip range of an algorithm that clips on both sides, and an entropy bonus a little at each step, by how far the last updates
    moved the policy, and begins with updates of a hundredth of their size; it needs at least two updates on a rollout, by
    --minibatches or --passes."""
    freeze: tuple[str, ...] = ()
    """Patterns of the policy's parameters that are not trained, in the warm start and in RL, by neighbouring parts of their paths,
    such as embedding, layers/[0-3] or *_norm; they have no moments."""

    def __post_init__(self):
        """Refuse values that cannot work."""
        choices = {
            "moments_dtype": ("float32", "bfloat16"),
            "second_moment": ("full", "factored"),
            "remedy": ("off", "auto", "controller"),
            "schedule": ("constant", "cosine"),
        }
        for name, values in choices.items():
            if getattr(self, name) not in values:
                raise InputError(f"{name} is {getattr(self, name)!r}; choose {' or '.join(values)}.")
        check_at_least(0, self, ["steps", "learning_rate_warmup", "weight_decay", "auxiliary"])
        check_at_least(1, self, ["minibatches", "passes", "microbatch_rows"])
        check_positive(self, ["learning_rate", "max_grad_norm", "kl_limit"])
        if self.kl_limit is not None and self.minibatches * self.passes == 1:
            raise InputError(
                f"kl_limit={self.kl_limit} ends the updates on a rollout early, but a rollout has only one; raise passes or "
                "minibatches, or leave it out."
            )
        if self.kl_limit is not None and self.schedule != "constant":
            raise InputError(
                f"kl_limit={self.kl_limit} may end the updates on a rollout early, so schedule={self.schedule!r}, which counts the "
                "planned ones, would not reach its end; leave one of the two out."
            )
