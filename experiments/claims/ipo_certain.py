"""Does IPO stay nearer its reference than DPO where preferences are certain?

IPO's authors show that DPO's pull to the reference fades as preferences become certain: it drives the probability of a
rejected response to 0 at any strength, while IPO stops at a lead of 1/(2 tau).

Setting: 8 codes of 6 tokens out of 4. 256 pairs of responses of the first policy, which is the reference; the one with
more right tokens is preferred, always, and a coin decides once between equals. 2,000 updates on all pairs. Every seed
has another first policy and other pairs.

Deviations from the paper: the policy is a table of logits over tokens, so that pairs share the logits of their tokens;
the paper's example has one logit a response. Pairs contradict each other in that they share tokens, which holds DPO
back, too. Adam at 0.05 for both; both have the same strength, 1, and none is tuned, as no pass rate is compared. A
finite training shows how far each has gone, not the limit.

Command: rljax claims --rerun ipo_certain
"""

import jax

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


def dpo(pairs):
    """DPO of strength 1."""
    return dpo_loss(pairs.chosen, pairs.rejected, pairs.ref_chosen, pairs.ref_rejected, beta=1.0)


def ipo(pairs):
    """IPO of strength 1, which stops at a lead of half a nat."""
    return ipo_loss(pairs.chosen, pairs.rejected, pairs.ref_chosen, pairs.ref_rejected, tau=1.0)


ARMS = {"dpo": run(dpo), "ipo": run(ipo)}

CLAIM = Claim(
    paper="IPO, arXiv:2310.12036",
    place="Section 4.2",
    text="with certain preferences of the same strength, IPO takes less probability from rejected responses than DPO",
    arms=ARMS,
    measure=measure_pairs,
    statistic=difference("rejected", "ipo", "dpo"),
    unit="mean log-probability of a rejected response under IPO, less that under DPO, nats",
    margin=0.5,
    figures={
        "lead of a preferred response under DPO, nats": lambda arms: arms["dpo"]["lead"],
        "lead of a preferred response under IPO, nats": lambda arms: arms["ipo"]["lead"],
        "pass rate at the end, IPO less DPO": difference("success", "ipo", "dpo"),
    },
)
