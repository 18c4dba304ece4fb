"""Is it better to drop tokens with extreme importance ratios than to cap their weights?

IcePop drops a token if the ratio of the learner's probability to the sampling engine's is outside (0.5, 5); truncated
importance sampling caps the ratio at 2. IcePop's authors report stable training when capping is not enough.

Setting: 8 contexts (distinct prompts), each with a code of 6 tokens from a vocabulary of 4. A response that equals the
code gets a reward of 1, any other 0. The verifier errs on one response in 20. The initial policy (`leaning`: random
logits, plus 1.5 for right tokens) is right on about one response in 50, and differs from seed to seed. The engine
rounds log-probabilities to multiples of 4 nats. Of the tokens that it samples with the initial policy, IcePop's mask
drops one in 7, and one in 110 has a ratio above 5. Two further arms sample with top-p 0.9, while the learner's
probabilities are those before truncation. In these arms, the ratio is between 0.9 and 1, so the mask drops nothing, and
a cap would give the same weights. The ratio is the same for all tokens that can be sampled at a position, so weights
change little. The tokens that top-p excludes are never sampled, which no weight can repair.

Deviations from the paper: the policy is a table of logits, so nothing learned on one prompt helps another. The policy
has no experts, whose routing makes ratios extreme in the paper; the paper's mask drops far fewer tokens. The rounding
is coarse so that the mask has something to drop in a vocabulary of 4. Most of the dropped tokens have a ratio below
0.5; the arm with the cap keeps them with this small weight. The optimizer is Adam; each arm's learning rate is the one
of 0.03, 0.1, 0.3 and 1 with the best final pass rate on 8 other seeds. There is one update per rollout, so only the
engine makes the data off-policy.

Command: rljax claims --rerun masked_weights
"""

import jax
import jax.numpy as jnp
import numpy as np

from lab.claims import RATES_AFTER_PILOT, Claim, Interval, difference
from lab.judges import fallible
from lab.learning_rate_search import measure_tuned
from lab.tabular_training import Setting
from lab.worlds import codes, leaning
from rljax.algorithms import grpo
from rljax.algorithms.corrections import capped, masked
from rljax.rollout.top_k_and_top_p import keep_top_p

WORLD = codes(contexts=8, length=6, tokens=4)


def rounded(key, logp):
    """Round log-probabilities to multiples of 4 nats."""
    del key
    return 4.0 * jnp.round(logp / 4.0)


def nucleus(key, logp):
    """Compute the log-probabilities of an engine with top-p 0.9; excluded tokens get -60, so they are never sampled."""
    del key
    return jnp.maximum(keep_top_p(logp, 0.9), -60.0)


def make_arm(correction, sampler=rounded):
    """Build the settings of an arm."""
    return Setting(
        WORLD,
        leaning(WORLD, lean=1.5),
        grpo(beta=0.0)._replace(correction=correction),
        judge=fallible(0.05),
        steps=150,
        sampler=sampler,
    )


MASK = masked(low=0.5, high=5.0)
ARMS = {
    "capped at 2": make_arm(capped(high=2.0)),
    "masked outside (0.5, 5)": make_arm(MASK),
    "uncorrected, top-p": make_arm(None, nucleus),
    "masked, top-p": make_arm(MASK, nucleus),
}


def masked_share(setting, seed):
    """Return the share of tokens, sampled by the engine from the initial policy, whose ratio is outside (0.5, 5)."""
    logp = jax.nn.log_softmax(setting.initial(jax.random.split(jax.random.key(seed), 3)[0]))
    engine = jax.nn.log_softmax(setting.sampler(None, logp))
    ratio = jnp.exp(logp - engine)
    return float((jnp.exp(engine) * ((ratio < 0.5) | (ratio > 5.0))).sum(-1).mean())


def measure(setting, seeds):
    """Train at the best learning rate; return the metrics, and the share of the initial policy's tokens that the mask drops."""
    share = np.array([masked_share(setting, seed) for seed in seeds])
    return measure_tuned(setting, seeds, number="success") | {"masked_share": share}


CLAIM = Claim(
    paper="IcePop in Every step evolves, arXiv:2510.18855",
    place="Section 2.3.2",
    text="masking tokens with extreme ratios finishes ahead of capping their weight",
    arms=ARMS,
    measure=measure,
    statistic=difference("success", "masked outside (0.5, 5)", "capped at 2"),
    unit="pass rate at the end with the mask, minus that with the cap",
    margin=0.01,
    seeds=64,
    first_look=Interval(-0.0351, -0.0888, 0.0187, 16),
    condition=(
        "share of the first policy's tokens that the mask drops, minus 0.02",
        lambda arms: arms["masked outside (0.5, 5)"]["masked_share"] - 0.02,
    ),
    pilot=RATES_AFTER_PILOT
    + " The rounding was made coarser after a run in which the mask hardly acted. The arms with top-p were added later.",
    figures={
        "mean pass rate during training, the same arms": difference("area", "masked outside (0.5, 5)", "capped at 2"),
        "pass rate at the end under top-p, mask minus none": difference("success", "masked, top-p", "uncorrected, top-p"),
        "mean pass rate during training under top-p, mask minus none": difference(
            "area", "masked, top-p", "uncorrected, top-p"
        ),
        "learning rate with the mask": lambda arms: arms["masked outside (0.5, 5)"]["learning_rate"],
        "learning rate with the cap": lambda arms: arms["capped at 2"]["learning_rate"],
    },
)
