"""If preferences are certain, does IPO stay closer to its reference than DPO?

IPO's authors show that DPO's pull towards the reference fades as preferences become certain. At any strength of this
pull, DPO drives the probability of a rejected response to 0, while IPO stops at a margin of 1/(2 tau).

Setting: 8 contexts (distinct prompts), each with a target sequence of 6 tokens from a vocabulary of 4. The initial
policy, which is also the reference, samples 256 pairs of responses. In each pair, the response with more right tokens
is always preferred; ties are broken once, at random. Training makes 2,000 updates on all pairs. The initial policy and
the pairs differ from seed to seed. Each loss is trained at strengths 0.01, 0.1 and 1 (beta of DPO, tau of IPO). At each
strength, the rejected responses' mean log-probability under DPO is subtracted from that under IPO; the smallest of the
three differences is the seed's statistic. The minima of the losses already imply that IPO stops and DPO does not; the
experiment shows only that this happens within this training run. It does not show that IPO is the better choice: the
pass rate of IPO at its best strength, 0.01, is below that of DPO at strength 1, and DPO at strength 1 has also lowered
the probability of rejected responses less than IPO at strength 0.01.

Deviations from the paper: the policy is a table of logits over tokens, so pairs share the logits of their tokens; the
paper's example has one logit per response. Pairs that share tokens contradict each other, which also limits DPO. The
optimizer is Adam with an untuned learning rate of 0.05. Finite training shows how far each loss has moved the policy,
not the limit.

Command: rljax claims --rerun ipo_certain
"""

import jax
import numpy as np

from lab.claims import Claim, difference
from lab.preference_pairs import PairSetting, measure_pairs
from lab.worlds import codes, leaning
from rljax.ops.direct_preference import dpo_loss, ipo_loss

WORLD = codes(contexts=8, length=6, tokens=4)


def more_right_tokens(key, one, other):
    """Prefer the response with more right tokens (token 0 is right at every position); break ties at random."""
    coin = 0.5 * jax.random.bernoulli(key, 0.5, one.reward.shape)
    return (one.tokens == 0).sum(-1) > (other.tokens == 0).sum(-1) - coin


def make_arm(loss):
    """Build the settings of an arm."""
    return PairSetting(WORLD, leaning(WORLD), loss, more_right_tokens, steps=2000)


def dpo(beta):
    """Build the DPO loss of one strength."""
    return lambda p: dpo_loss(p.chosen, p.rejected, p.ref_chosen, p.ref_rejected, beta=beta)


def ipo(tau):
    """Build the IPO loss of one strength, which stops at a margin of 1/(2 tau) nats."""
    return lambda p: ipo_loss(p.chosen, p.rejected, p.ref_chosen, p.ref_rejected, tau=tau)


LOSSES = {"dpo": dpo, "ipo": ipo}
STRENGTHS = (0.01, 0.1, 1.0)
ARMS = {f"{name} {strength:g}": make_arm(loss(strength)) for name, loss in LOSSES.items() for strength in STRENGTHS}


def at(strength, metric):
    """Build the statistic that is IPO's metric minus DPO's, at the same strength."""
    return difference(metric, f"ipo {strength:g}", f"dpo {strength:g}")


CLAIM = Claim(
    paper="IPO, arXiv:2310.12036",
    place="Section 4.2",
    text="at the same strength, IPO lowers rejected responses less than DPO, as the minima of the losses imply",
    arms=ARMS,
    measure=measure_pairs,
    budget="2000 updates on the same 256 pairs in every arm; one fixed learning rate",
    statistic=lambda arms: np.min([at(strength, "rejected")(arms) for strength in STRENGTHS], axis=0),
    unit="mean log-probability of a rejected response under IPO, minus that under DPO, nats; minimum over three strengths",
    margin=0.5,
    pilot="A first run had only strength 1. A second compared the losses, each at the strength with its highest pass rate, which "
    "was the smallest strength for both.",
    figures={
        "log-probability of a rejected response, nats, IPO of strength 0.01 minus DPO of strength 1": difference(
            "rejected", "ipo 0.01", "dpo 1"
        ),
        "pass rate at the end, IPO of strength 0.01 minus DPO of strength 1": difference("success", "ipo 0.01", "dpo 1"),
    }
    | {f"pass rate at the end, IPO minus DPO, both of strength {s:g}": at(s, "success") for s in STRENGTHS}
    | {f"lead of a preferred response, nats, {arm}": lambda arms, arm=arm: arms[arm]["lead"] for arm in ARMS},
)
