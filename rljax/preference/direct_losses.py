"""Direct preference losses, which train a language model on pairs. Each loss is a record of functions, like an `Algorithm`."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.arrays import check_nonnegative
from rljax.ops.binary_feedback import bco_loss, bco_reward_shift
from rljax.ops.direct_preference import (
    apo_down_loss,
    apo_zero_loss,
    conservative_dpo_loss,
    dpo_loss,
    hinge_preference_loss,
    implicit_reward,
    ipo_loss,
    kto_loss,
    rebel_loss,
    robust_dpo_loss,
)
from rljax.ops.reference_free import alpha_reward, alphapo_loss, cpo_loss, log_odds, orpo_loss, simpo_loss, tpo_loss
from rljax.ops.weighted_preference import wpo_loss, wpo_weight
from rljax.records import required


class PairLogps(NamedTuple):
    """Inputs of a loss for N pairs. On the axis of size 2, the preferred response comes first."""

    logp: Float[Array, "N 2"]
    """Log-probability of each response, summed over its tokens, in nats; carries the gradient."""
    lengths: Float[Array, "N 2"]
    """Number of tokens in each response, including the end token."""
    ref_logp: Float[Array, "N 2"] | None
    """Log-probability of each response under the reference policy, summed over its tokens, in nats. This field and the next ones
    are None for losses that do not read them."""
    reference_point: Float[Array, ""] | None
    """Estimate of the divergence from the reference, in nats."""
    margin: Float[Array, "N"] | None = None
    """Reward of the preferred response minus the reward of the other."""
    reward_shift: Float[Array, ""] | None = None
    """Constant that is subtracted from the batch's implicit rewards."""
    expected_logp: Float[Array, "N 2"] | None = None
    """Log of the expected probability of a token sampled from the policy, summed over the tokens of each response, in nats; no
    gradient flows through it."""
    gold_logp: Float[Array, "N"] | None = None
    """Log-probability of the third response, averaged over its tokens, in nats per token."""

    def mean_logp(self) -> Float[Array, "N 2"]:
        """Return the log-probability averaged over the tokens of each response, in nats per token."""
        return self.logp / self.lengths

    def reference(self) -> Float[Array, "N 2"]:
        """Return `ref_logp`, which must be present."""
        return required(self.ref_logp, "ref_logp")


class DirectLoss(NamedTuple):
    """A direct preference loss, as a record of functions and flags; make a variant with `loss._replace(slot=...)`."""

    loss: Callable[[PairLogps], Float[Array, "N"]]
    """Log-probabilities -> loss of each pair; the mean is minimized."""
    reward: Callable[[PairLogps], Float[Array, "N 2"]]
    """Log-probabilities -> implicit reward of each response, for the metrics `accuracy` and `margin`."""
    reads_reference: bool = False
    """Whether the loss reads `ref_logp`, the log-probabilities under the policy before training."""
    reads_reference_point: bool = False
    """Whether the loss reads `reference_point`, for which responses are scored under the prompts of other pairs."""
    reads_margin: bool = False
    """Whether the loss reads `margin`, a column of the pairs."""
    reward_shift: Callable[[Float[Array, "*M N 2"], Float[Array, "*M N 2"]], Float[Array, ""]] | None = None
    """(log-probabilities of the full batch under the policy, under the reference) -> `reward_shift`; None if it is not read."""
    reads_expected_logp: bool = False
    """Whether the loss reads `expected_logp`, for which the policy's full distribution at every token is computed."""
    reads_gold: bool = False
    """Whether the loss reads `gold_logp`, for which every prompt needs a third response."""


def _split(sides: Float[Array, "N 2"]) -> tuple[Float[Array, "N"], Float[Array, "N"]]:
    """Split pairs into the preferred responses and the others."""
    return sides[:, 0], sides[:, 1]


def _mark_preferred(logp: Float[Array, "*M N 2"]) -> Bool[Array, "*M N 2"]:
    """Mark the preferred responses."""
    return jnp.broadcast_to(jnp.arange(2) == 0, logp.shape)


def _reference_loss(equation: Callable[..., Float[Array, "N"]], *, beta: float, **options: float) -> DirectLoss:
    """Build a loss from an equation of both responses' summed log-probabilities under the policy and the reference."""

    def loss(pairs: PairLogps) -> Float[Array, "N"]:
        return equation(*_split(pairs.logp), *_split(pairs.reference()), beta=beta, **options)

    return DirectLoss(loss, _log_ratio_reward(beta), reads_reference=True)


def dpo(*, beta: float = 0.1) -> DirectLoss:
    """DPO: direct preference optimization (arXiv:2305.18290, Eq. 7).

    Args:
        beta: β = 0.1 (its authors' and TRL's), strength of the regularization towards the reference.

    Deviations: AdamW with a cosine schedule; the paper uses RMSprop. Other settings of the paper: learning rate 1e-6, 64 pairs per
    batch.
    """
    return _reference_loss(dpo_loss, beta=beta)


def dpo_average(*, beta: float = 5.0) -> DirectLoss:
    """Length-normalized DPO: DPO on log-probabilities averaged over the tokens (Tülu 3, arXiv:2411.15124).

    Args:
        beta: β = 5 (Tülu 3's); larger than DPO's, since an average is smaller than a sum.
    """

    def loss(pairs: PairLogps) -> Float[Array, "N"]:
        return dpo_loss(*_split(pairs.mean_logp()), *_split(pairs.reference() / pairs.lengths), beta=beta)

    return DirectLoss(loss, _average_reward(beta), reads_reference=True)


def rpo(*, beta: float = 0.1, coefficient: float = 1.0) -> DirectLoss:
    """DPO plus imitation of the preferred response: iterative reasoning preference optimization (arXiv:2404.19733, Eq. 1).

    Args:
        beta: β = 0.1 (the paper's).
        coefficient: α = 1 (the paper's), weight of the negative log-likelihood per token of the preferred response.
    """
    check_nonnegative(coefficient=coefficient)

    def loss(pairs: PairLogps) -> Float[Array, "N"]:
        preferred = pairs.mean_logp()[:, 0]
        return dpo_loss(*_split(pairs.logp), *_split(pairs.reference()), beta=beta) - coefficient * preferred

    return DirectLoss(loss, _log_ratio_reward(beta), reads_reference=True)


def hinge(*, beta: float = 0.1) -> DirectLoss:
    """Hinge loss on the log-ratio margin relative to the reference: the hinge-norm loss of RSO (arXiv:2309.06657), after SLiC-HF.

    Args:
        beta: β = 0.1 (DPO's); a pair whose margin exceeds 1/β nats has no gradient.
    """
    return _reference_loss(hinge_preference_loss, beta=beta)


def apo_zero(*, beta: float = 0.1) -> DirectLoss:
    """APO-zero: preferred responses become more likely, the others less likely (arXiv:2408.06266).

    Args:
        beta: β = 0.1 (DPO's).
    """
    return _reference_loss(apo_zero_loss, beta=beta)


def apo_down(*, beta: float = 0.1) -> DirectLoss:
    """APO-down: both responses become less likely, the rejected one more strongly (arXiv:2408.06266).

    Args:
        beta: β = 0.1 (DPO's).
    """
    return _reference_loss(apo_down_loss, beta=beta)


def cdpo(*, beta: float = 0.1, epsilon: float = 0.1) -> DirectLoss:
    """Conservative DPO, for partly wrong labels (Mitchell 2023, "A note on DPO with noisy preferences", Eq. 3).

    Args:
        beta: β = 0.1 (DPO's).
        epsilon: ε = 0.1, the fraction of wrong labels, which the note leaves to the user; 0 is DPO itself.
    """
    return _reference_loss(conservative_dpo_loss, beta=beta, epsilon=epsilon)


def robust_dpo(*, beta: float = 0.1, epsilon: float = 0.1) -> DirectLoss:
    """Robust DPO, for partly wrong labels, with a loss that stays unbiased despite them (rDPO, arXiv:2403.00409).

    Args:
        beta: β = 0.1 (DPO's).
        epsilon: ε = 0.1, the fraction of wrong labels, below 0.5; 0 is DPO itself.
    """
    return _reference_loss(robust_dpo_loss, beta=beta, epsilon=epsilon)


def ipo(*, tau: float = 0.1) -> DirectLoss:
    """IPO: identity preference optimization (arXiv:2310.12036, Eq. 17), on complete responses, as in the paper.

    Args:
        tau: τ = 0.1 (TRL's), strength of the regularization; the target margin is 1/(2τ) nats.
    """

    def loss(pairs: PairLogps) -> Float[Array, "N"]:
        return ipo_loss(*_split(pairs.logp), *_split(pairs.reference()), tau=tau)

    return DirectLoss(loss, _log_ratio_reward(tau), reads_reference=True)


def ipo_average(*, tau: float = 0.1) -> DirectLoss:
    """IPO on log-probabilities averaged over the tokens (arXiv:2310.12036, Eq. 17), as in TRL, on IPO's authors' advice.

    Args:
        tau: τ = 0.1 (TRL's), strength of the regularization; the target margin is 1/(2τ) nats per token.
    """

    def loss(pairs: PairLogps) -> Float[Array, "N"]:
        return ipo_loss(*_split(pairs.mean_logp()), *_split(pairs.reference() / pairs.lengths), tau=tau)

    return DirectLoss(loss, _average_reward(tau), reads_reference=True)


def rebel(*, eta: float = 1.0) -> DirectLoss:
    """REBEL: fits the difference in log-ratios to the difference in reward, the pair's `margin` (arXiv:2404.16767, Algorithm 1).

    Args:
        eta: η = 1 (its authors' for summaries), size of the policy's step in nats per unit of reward.

    Deviations: this is one iteration of the algorithm, from the model before training. The paper samples pairs (two random
    responses to a prompt) from the current policy, and repeats sampling and training. The implicit reward is the log-ratio
    divided by η.
    """

    def loss(pairs: PairLogps) -> Float[Array, "N"]:
        return rebel_loss(*_split(pairs.logp), *_split(pairs.reference()), required(pairs.margin, "margin"), eta=eta)

    def reward(pairs: PairLogps) -> Float[Array, "N 2"]:
        return implicit_reward(pairs.logp, pairs.reference(), beta=1.0) / eta

    return DirectLoss(loss, reward, reads_reference=True, reads_margin=True)


def kto(*, beta: float = 0.1, desirable_weight: float = 1.0, undesirable_weight: float = 1.0) -> DirectLoss:
    """KTO: Kahneman-Tversky optimization (arXiv:2402.01306, Eq. 8); a pair is one desirable and one undesirable example.

    Args:
        beta: β = 0.1 (its authors' and TRL's), how fast utility saturates.
        desirable_weight: λ_D = 1, weight of preferred responses.
        undesirable_weight: λ_U = 1, weight of the other responses.

    Deviations: the reference point uses the responses of the next pair with a different prompt, in dataset order, so that the
    reference policy scores each prompt with these responses only once; the paper uses the next example of the microbatch.
    """

    def loss(pairs: PairLogps) -> Float[Array, "N"]:
        examples = kto_loss(
            pairs.logp,
            pairs.reference(),
            _mark_preferred(pairs.logp),
            reference_point=required(pairs.reference_point, "reference_point"),
            beta=beta,
            desirable_weight=desirable_weight,
            undesirable_weight=undesirable_weight,
        )
        return examples.mean(-1)

    return DirectLoss(loss, _log_ratio_reward(beta), reads_reference=True, reads_reference_point=True)


def bco(*, beta: float = 0.1) -> DirectLoss:
    """BCO: binary classifier optimization (arXiv:2404.04656, Eq. 8); a pair is one wanted and one unwanted response.

    Args:
        beta: β = 0.1 (its authors').

    Deviations: the reward shift δ is the mean reward of the batch under the policy before the update; the paper uses a moving
    average over the updates. TRL's loss "bco_pair" is this loss with δ = 0. Other settings of the paper: learning rate 5e-7.
    """

    def shift(logp: Float[Array, "*M N 2"], ref_logp: Float[Array, "*M N 2"]) -> Float[Array, ""]:
        return bco_reward_shift(logp, ref_logp, _mark_preferred(logp), beta=beta)

    def loss(pairs: PairLogps) -> Float[Array, "N"]:
        reward_shift = required(pairs.reward_shift, "reward_shift")
        both = bco_loss(pairs.logp, pairs.reference(), _mark_preferred(pairs.logp), reward_shift=reward_shift, beta=beta)
        return both.sum(-1)

    return DirectLoss(loss, _log_ratio_reward(beta), reads_reference=True, reward_shift=shift)


def wpo(*, beta: float = 0.01, cap: float = math.inf) -> DirectLoss:
    """WPO: DPO on pairs weighted by how likely the policy is to generate them (arXiv:2406.11827, Eqs. 1-2).

    Args:
        beta: β = 0.01 (its authors').
        cap: largest weight of a pair; the paper has no cap, and its authors' code uses 1.

    Deviations: none known. Other settings of the paper: learning rate 5e-7 for Mistral, 128 pairs per batch.
    """

    def loss(pairs: PairLogps) -> Float[Array, "N"]:
        expected = required(pairs.expected_logp, "expected_logp") / pairs.lengths
        weights = wpo_weight(pairs.mean_logp(), expected)
        return wpo_loss(*_split(pairs.logp), *_split(pairs.reference()), *_split(weights), beta=beta, cap=cap)

    return DirectLoss(loss, _log_ratio_reward(beta), reads_reference=True, reads_expected_logp=True)


def simpo(*, beta: float = 2.0, margin: float = 1.0) -> DirectLoss:
    """SimPO: simple preference optimization with the average log-probability as reward (arXiv:2405.14734, Eq. 6).

    Args:
        beta: β = 2 (its authors' for Llama 3 Base), scale of the reward.
        margin: γ = 1 (likewise), target margin of the preferred response.

    Deviations: none known. Other settings: learning rate 6e-7.
    """

    def loss(pairs: PairLogps) -> Float[Array, "N"]:
        return simpo_loss(*_split(pairs.mean_logp()), beta=beta, margin=margin)

    return DirectLoss(loss, lambda pairs: beta * pairs.mean_logp())


def alphapo(*, alpha: float = 0.25, beta: float = 2.5, margin: float = 0.25) -> DirectLoss:
    """AlphaPO: SimPO with a power of the length-normalized probability in place of its logarithm (arXiv:2501.03884).

    Args:
        alpha: α = 0.25 (its authors' for Mistral Instruct), shape of the reward; 0 is SimPO.
        beta: β = 2.5 (likewise), scale of the reward.
        margin: γ = 0.25 (likewise: γ/β = 0.1), target margin of the preferred response.

    Deviations: none known. Other settings: learning rate 7e-7.
    """

    def loss(pairs: PairLogps) -> Float[Array, "N"]:
        return alphapo_loss(*_split(pairs.mean_logp()), alpha=alpha, beta=beta, margin=margin)

    return DirectLoss(loss, lambda pairs: beta * alpha_reward(pairs.mean_logp(), alpha=alpha))


def cpo(*, beta: float = 0.1, coefficient: float = 1.0) -> DirectLoss:
    """CPO: contrastive preference optimization, plus imitation of the preferred response (arXiv:2401.08417).

    Args:
        beta: β = 0.1 (its authors'), scale of the reward.
        coefficient: λ = 1, weight of the negative log-likelihood of the preferred response, summed over its tokens as in the paper.
    """

    def loss(pairs: PairLogps) -> Float[Array, "N"]:
        return cpo_loss(*_split(pairs.logp), beta=beta, coefficient=coefficient)

    return DirectLoss(loss, lambda pairs: beta * pairs.logp)


def tpo(*, beta: float = 0.01, coefficient: float = 1.0) -> DirectLoss:
    """TPO: triple preference optimization, plus imitation of a third, gold response (arXiv:2405.16681).

    Args:
        beta: β = 0.01 (its authors'), scale of the reward.
        coefficient: α = 1 (likewise, for base models; 0.05 for instruct models), weight of the negative log-likelihood per token of
            the gold response.

    Deviations: the negative log-likelihood is averaged over the tokens of each response, then over the pairs; its authors' code
    and TRL average over all tokens of the batch. Other settings: learning rate 5e-7.
    """

    def loss(pairs: PairLogps) -> Float[Array, "N"]:
        return tpo_loss(*_split(pairs.logp), required(pairs.gold_logp, "gold_logp"), beta=beta, coefficient=coefficient)

    return DirectLoss(loss, lambda pairs: beta * pairs.logp, reads_gold=True)


def tpo_average(*, beta: float = 2.0, margin: float = 1.6, coefficient: float = 0.05) -> DirectLoss:
    """Length-controlled TPO: TPO on log-probabilities averaged over the tokens, with a margin (TPO-L, arXiv:2405.16681).

    Args:
        beta: β = 2 (its authors' for Mistral Base), scale of the reward.
        margin: γ = 1.6 (likewise), target margin of the preferred response.
        coefficient: α = 0.05 (likewise), weight of the negative log-likelihood per token of the gold response.

    Deviations: as for `tpo`.
    """

    def loss(pairs: PairLogps) -> Float[Array, "N"]:
        gold = required(pairs.gold_logp, "gold_logp")
        return tpo_loss(*_split(pairs.mean_logp()), gold, beta=beta, margin=margin, coefficient=coefficient)

    return DirectLoss(loss, lambda pairs: beta * pairs.mean_logp(), reads_gold=True)


def orpo(*, coefficient: float = 0.1) -> DirectLoss:
    """ORPO: odds ratio preference optimization, plus imitation of the preferred response (arXiv:2403.07691, Eqs. 6-7).

    Args:
        coefficient: λ = 0.1 (its authors' for Mistral), weight of the odds ratio.

    Deviations: the likelihood covers only the response, as in the paper; its authors' code and TRL include the prompt. The
    implicit reward is the log of the odds. Other settings: learning rate 5e-6.
    """

    def loss(pairs: PairLogps) -> Float[Array, "N"]:
        return orpo_loss(*_split(pairs.mean_logp()), coefficient=coefficient)

    return DirectLoss(loss, lambda pairs: log_odds(pairs.mean_logp()))


def _log_ratio_reward(beta: float) -> Callable[[PairLogps], Float[Array, "N 2"]]:
    """Make a reward that is β times the log-ratio to the reference."""
    return lambda pairs: implicit_reward(pairs.logp, pairs.reference(), beta=beta)


def _average_reward(beta: float) -> Callable[[PairLogps], Float[Array, "N 2"]]:
    """Make a reward that is β times the log-ratio to the reference, averaged over the tokens."""
    return lambda pairs: implicit_reward(pairs.mean_logp(), pairs.reference() / pairs.lengths, beta=beta)


BY_NAME: dict[str, Callable[..., DirectLoss]] = {
    "dpo": dpo,
    "dpo_average": dpo_average,
    "rpo": rpo,
    "hinge": hinge,
    "apo_zero": apo_zero,
    "apo_down": apo_down,
    "cdpo": cdpo,
    "robust_dpo": robust_dpo,
    "ipo": ipo,
    "ipo_average": ipo_average,
    "rebel": rebel,
    "kto": kto,
    "bco": bco,
    "wpo": wpo,
    "simpo": simpo,
    "alphapo": alphapo,
    "cpo": cpo,
    "tpo": tpo,
    "tpo_average": tpo_average,
    "orpo": orpo,
}


def check_loss(loss: DirectLoss) -> None:
    """Trace a loss without data, so that its equation raises a `ValueError` if a hyperparameter is invalid."""
    sides = jnp.zeros((1, 2), jnp.float32)
    zero = jnp.zeros((), jnp.float32)
    blank = PairLogps(
        sides, sides + 1, sides, zero, sides[:, 0], reward_shift=zero, expected_logp=sides, gold_logp=sides[:, 0]
    )
    jax.eval_shape(lambda: (loss.loss(blank), loss.reward(blank)))
