"""Does IPO stay nearer its reference than DPO where preferences are certain?

IPO's authors show that DPO's pull to the reference fades as preferences become certain: it drives the probability of a
rejected response to 0 at any strength, while IPO stops at a lead of 1/(2 tau).

Setting: 8 codes of 6 tokens out of 4. 256 pairs of responses of the first policy, which is the reference; the one with
more right tokens is preferred, always, and a coin decides once between equals. 2,000 updates on all pairs. Every seed
has another first policy and other pairs. Strengths of 0.01, 0.1 and 1 for both losses; each seed compares them at the
strength that has the best pass rate on the other half of the seeds.

Deviations from the paper: that IPO stops and DPO does not, at one strength, follows from the minima of the two losses,
and is no experiment; so each has the strength of its best pass rate here, which the paper does not. The policy is a
table of logits over tokens, so that pairs share the logits of their tokens; the paper's example has one logit a
response. Pairs contradict each other in that they share tokens, which holds DPO back, too. Adam at 0.05, untuned. A
finite training shows how far each has gone, not the limit.

Command: rljax claims --rerun ipo_certain
"""

import jax
import numpy as np

from rljax.book.claims import Claim, difference
from rljax.book.pairs import PairSetting, measure_pairs
from rljax.book.worlds import codes, leaning
from rljax.ops.direct_preference import dpo_loss, ipo_loss

WORLD = codes(contexts=8, length=6, tokens=4)


def more_right_tokens(key, one, other):
    """The response with more right tokens; a coin between equals."""
    coin = 0.5 * jax.random.bernoulli(key, 0.5, one.reward.shape)
    return (one.tokens == 0).sum(-1) > (other.tokens == 0).sum(-1) - coin


def run(loss):
    """One arm."""
    return PairSetting(WORLD, leaning(WORLD), loss, more_right_tokens, steps=2000)


def dpo(beta):
    """DPO of a strength."""
    return lambda p: dpo_loss(p.chosen, p.rejected, p.ref_chosen, p.ref_rejected, beta=beta)


def ipo(tau):
    """IPO of a strength, which stops at a lead of 1/(2 tau) nats."""
    return lambda p: ipo_loss(p.chosen, p.rejected, p.ref_chosen, p.ref_rejected, tau=tau)


LOSSES = {"dpo": dpo, "ipo": ipo}
STRENGTHS = (0.01, 0.1, 1.0)
ARMS = {f"{name} {strength:g}": run(loss(strength)) for name, loss in LOSSES.items() for strength in STRENGTHS}


def at_best(name, number):
    """A number of a loss at the strength with the best pass rate on the other half of the seeds, for each seed."""

    def statistic(arms):
        rates, values = (
            np.stack([arms[f"{name} {strength:g}"][of] for strength in STRENGTHS]) for of in ("success", number)
        )
        half = np.arange(rates.shape[1]) * 2 < rates.shape[1]
        best = np.where(half, rates[:, ~half].mean(-1).argmax(), rates[:, half].mean(-1).argmax())
        return values[best, np.arange(len(half))]

    return statistic


def ipo_less_dpo(number):
    """What IPO has over DPO, each at its best strength."""
    return lambda arms: at_best("ipo", number)(arms) - at_best("dpo", number)(arms)


CLAIM = Claim(
    paper="IPO, arXiv:2310.12036",
    place="Section 4.2 (place not checked)",
    text="with certain preferences, each at the strength of its best pass rate, IPO takes less from rejected responses than DPO",
    arms=ARMS,
    measure=measure_pairs,
    statistic=ipo_less_dpo("rejected"),
    unit="mean log-probability of a rejected response under IPO, less that under DPO, nats",
    margin=0.5,
    pilot="A first run had the strength 1 alone, where IPO hardly learns; the strengths were added after it.",
    figures={
        "pass rate at the end, the same arms": ipo_less_dpo("success"),
        "lead of a preferred response under DPO, nats": at_best("dpo", "lead"),
        "lead of a preferred response under IPO, nats": at_best("ipo", "lead"),
    }
    | {
        f"the statistic, both of strength {strength:g}": difference("rejected", f"ipo {strength:g}", f"dpo {strength:g}")
        for strength in STRENGTHS
    },
)
