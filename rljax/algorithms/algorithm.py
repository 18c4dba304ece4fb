"""An algorithm is a record of functions, one slot for each idea in its paper.

Two phases. `prepare` sees the whole rollout, carries no gradient and runs once: shaped rewards, kept groups, advantages,
loss weights, value targets. `loss` and `value_loss` are row by row and linear in the weights, so micro-batches, padding,
order and device mesh cannot change them.

Axes: P prompts, G responses of a prompt, T tokens; B = P G rows when flat, the responses of a prompt side by side.
"""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int

from rljax.algorithms.value_head import ValueHead, scalar
from rljax.ops.group_history import RewardHistory
from rljax.ops.weights import token_mean


class Rollout(NamedTuple):
    """What was sampled and how it was judged. Data: no gradient flows into it."""

    mask: Bool[Array, "P G T"]
    """Response tokens, EOS included."""
    behaviour_logp: Float[Array, "P G T"]
    """Log-probability under the distribution that was sampled from, nats."""
    rewards: Float[Array, "P G"]
    """The outcome's reward, before any shaping."""
    policy_logp: Float[Array, "P G T"] | None = None
    """Under the policy before the update, when it differs from `behaviour_logp` (top-k, top-p, another engine)."""
    ref_logp: Float[Array, "P G T"] | None = None
    """Under the reference policy; for algorithms that need it."""
    truncated: Bool[Array, "P G"] | None = None
    """The token budget ran out before EOS; for algorithms that need it."""
    valid: Bool[Array, "P G"] | None = None
    """False where the reward had no opinion: such a response takes no part."""
    values: Float[Array, "P G T"] | None = None
    """The critic's estimate before each token, in the reward's unit; for algorithms with a critic."""
    bootstrap: Float[Array, "P G"] | None = None
    """The critic's estimate after the last token, for responses that were cut off; None: every response ended."""
    step_rewards: Float[Array, "P G T"] | None = None
    """Reward of each reasoning step, at the token where the step ends; for process supervision."""
    step_end: Bool[Array, "P G T"] | None = None
    """Tokens at which a reasoning step ends."""
    behaviour_entropy: Float[Array, "P G T"] | None = None
    """Entropy of the policy that sampled, at each token, nats; for algorithms with an exploration bonus."""


class Past(NamedTuple):
    """What is remembered of the prompts of a rollout: temporal groups (MF Algorithm 5)."""

    memory: RewardHistory
    prompt_ids: Int[Array, "P"]
    """Which of the memory's prompts each one is; below 0 for one without a past."""


class Policy(NamedTuple):
    """What the policy says about one row's tokens; `logp` and `entropy` carry the gradient."""

    logp: Float[Array, "B T"]
    entropy: Float[Array, "B T"] | None
    ref_logp: Float[Array, "B T"] | None


class Term(NamedTuple):
    """A summand of the loss beside the surrogate: `coefficient * Σ weights * per_token`, to be minimised."""

    name: str
    coefficient: float
    per_token: Callable[[Policy], Float[Array, "B T"]]
    weights: Callable[[Rollout], Float[Array, "P G T"]] | None = None
    """Rollout (its mask already that of the trained tokens) -> weights; None takes the surrogate's."""
    needs: str = "logp"
    """What else it reads: "logp" (nothing), "ref_logp" or "entropy"."""


class Critic(NamedTuple):
    """One slot for each idea about the value function.

    `advantage` and `target` take `(token rewards, values, mask)` and, when the rollout has one, `bootstrap=`; `advantage` also
    `lambda_=`, when there is a `policy_lambda`.
    """

    advantage: Callable[..., Float[Array, "P G T"]]
    """What the policy learns from."""
    target: Callable[..., Float[Array, "P G T"]]
    """What the critic learns. It takes `lambda_=` too: value pretraining asks for 1, the Monte-Carlo return."""
    loss: Callable[[Array, Array, Array, Array], Float[Array, "B T"]]
    """(values, old values, target, mask) -> loss of each token, to be minimised."""
    weights: Callable[[Bool[Array, "P G T"]], Float[Array, "P G T"]] = token_mean
    """Mask -> how much each token counts for the critic."""
    head: ValueHead = scalar()
    """What the critic's last layer says; `values` are what the head reads from it."""
    blend: Callable[[Array, Array, Array, Array], Float[Array, "P G T"]] | None = None
    """(values of the critic as it was pretrained, values, share of the training that is done, explained variance) -> values
    that credit and targets are made of."""
    policy_lambda: Callable[[Int[Array, "P G"]], Float[Array, "P G"]] | None = None
    """Response lengths in tokens -> λ of each response, which `advantage` then gets as `lambda_=`; None: it has its own."""
    learning_rate_ratio: float = 1.0
    """The critic's learning rate over the policy's. This and the two below are for whoever runs the optimisers."""
    updates: int = 1
    """Critic updates for each update of the policy."""
    pretraining_steps: int = 0
    """Rollouts of the fixed initial policy on which only the critic learns, before anything else."""


class Algorithm(NamedTuple):
    """One slot for each idea; a variant is `algorithm._replace(slot=...)`.

    Credit comes from exactly one of `advantage`, `token_advantage`, `step_advantage` and `critic`, or from `critic` and
    `advantage` together under `mix`.
    """

    advantage: Callable[..., Float[Array, "P G"]] | None
    """Rewards of a prompt's responses (and `valid=`, when the rollout has it) -> their advantages."""
    log_ratio: Callable[[Array, Array, Array], Float[Array, "B T"]]
    """(logp, denominator_logp, mask) -> log importance ratio of each token."""
    surrogate: Callable[[Array, Array], Float[Array, "B T"]]
    """(log_ratio, advantage) -> objective of each token, to be maximised."""
    weights: Callable[[Bool[Array, "P G T"]], Float[Array, "P G T"]]
    """Mask -> how much each token counts."""
    shape_reward: Callable[[Float[Array, "P G"]], Float[Array, "P G"]] | None = None
    """Response lengths in tokens -> what is added to the reward."""
    reward_kl: Callable[[Array, Array, Array, Array], Float[Array, "P G T"]] | None = None
    """(token rewards, logp, ref_logp, mask) -> token rewards less a KL penalty."""
    keep_group: Callable[..., Bool[Array, "P"]] | None = None
    """Unshaped rewards -> which groups are trained on (dynamic sampling refills the others)."""
    filter_tokens: Callable[[Array, Array], Bool[Array, "P G T"]] | None = None
    """(mask, truncated) -> which tokens are trained on."""
    denominator: Callable[[Array, Array], Float[Array, "P G T"]] | None = None
    """(policy_logp, mask) -> log of the ratio's denominator; None takes policy_logp itself."""
    normalize: Callable[[Float[Array, "P G T"], Bool[Array, "P G T"]], Float[Array, "P G T"]] | None = None
    """(advantage, mask) -> advantage, over the whole rollout."""
    terms: tuple[Term, ...] = ()
    """What is added to the loss beside the surrogate."""
    critic: Critic | None = None
    """Credit from a value function."""
    token_advantage: Callable[[Array, Array], Float[Array, "P G T"]] | None = None
    """(token rewards, mask) -> advantage of each token, with neither group nor critic."""
    step_advantage: Callable[[Array, Array], Float[Array, "P G T"]] | None = None
    """(step rewards, step ends) -> advantage of each token."""
    mix: Callable[[Array, Array, Array], Float[Array, "P G T"]] | None = None
    """(critic's advantage, group's advantage, share of the training that is done) -> advantage."""
    bonus: Callable[[Array, Array, Array], Float[Array, "P G T"]] | None = None
    """(advantage, behaviour_entropy, mask) -> advantage with an exploration bonus."""
    scale: Callable[..., Float[Array, ""]] | None = None
    """Unshaped rewards of an optimiser batch -> factor of its surrogate's weights."""
    correction: Callable[[Array, Array, Array], Float[Array, "P G T"]] | None = None
    """(policy_logp, behaviour_logp, mask) -> factor of each weight, where the sampling engine's numbers are another's."""
    reference_rate: float = 0.0
    """Share of the policy's parameters that the reference takes after each rollout's updates (`ops.divergence.ema_update`)."""
    group_size: int | None = None
    """Responses a prompt in the paper; None where it states none. For whoever lays out the rollout: `prepare` takes any."""

    def needs(self, name: str) -> bool:
        """Whether `name`, beyond what every algorithm reads, must be given.

        "entropy" is an argument of `loss` and "progress" one of `prepare`; the others are fields of `Rollout`.

        Raises:
            ValueError: `name` is none of these.
        """
        reads = {
            "behaviour_entropy": self.bonus is not None,
            "entropy": False,
            "policy_logp": self.correction is not None,
            "progress": self.mix is not None,
            "ref_logp": self.reward_kl is not None,
            "step_end": self.step_advantage is not None,
            "step_rewards": self.step_advantage is not None,
            "truncated": self.filter_tokens is not None,
            "values": self.critic is not None,
        }
        if name not in reads:
            raise ValueError(f"name must be one of {', '.join(reads)}, got {name!r}")
        return reads[name] or any(term.needs == name for term in self.terms)


class Batch(NamedTuple):
    """What the losses read beside the network's outputs: rows `[B, T]`, ready to be cut into micro-batches."""

    mask: Bool[Array, "B T"]
    advantage: Float[Array, "B T"]
    weights: Float[Array, "B T"]
    denominator_logp: Float[Array, "B T"]
    policy_logp: Float[Array, "B T"]
    ref_logp: Float[Array, "B T"] | None
    term_weights: tuple[Float[Array, "B T"], ...]
    token_share: Float[Array, "B T"]
    """1 / tokens of the optimiser batch on its tokens: averages of a batch are sums with it."""
    old_values: Float[Array, "B T"] | None = None
    """The critic's values at sampling; None without a critic, as the two below."""
    value_target: Float[Array, "B T"] | None = None
    value_weights: Float[Array, "B T"] | None = None
