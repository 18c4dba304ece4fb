"""A second set of correct implementations (as source text), and of faults to put into them.

Both were written without reading the conformance kit's tests, and no fault of `faults.py` is repeated. A fault is a name,
followed by pairs of texts: the text to replace in a correct source, and its replacement.
"""

GRPO = """
def grpo(logp, old_logp, ref_logp, rewards, mask):
    prompts, group, width = mask.shape
    mu = jnp.einsum("pg->p", rewards) / group
    away = rewards - mu[:, None]
    variance = jnp.einsum("pg,pg->p", away, away) / (group - 1)
    scale = jnp.sqrt(variance) + 1e-6
    advantage = away / scale[:, None]
    x, y, z = (jnp.where(mask, each, 0.0) for each in (logp, old_logp, ref_logp))
    length = jnp.sum(mask, axis=-1, keepdims=True)
    weight = mask / length / (prompts * group)
    a = jnp.broadcast_to(advantage[:, :, None], mask.shape)
    ratio = jnp.exp(x - y)
    held = jnp.where(a > 0, jnp.minimum(ratio, 1.2), jnp.maximum(ratio, 0.8))
    surrogate = held * a
    quotient = z - x
    kl = jnp.expm1(quotient) - quotient
    return -jnp.sum(weight * (surrogate - 0.04 * kl))
"""
"""GRPO (arXiv:2402.03300, Eq. 3) as one weighted sum over `[P, G, T]`."""

GRPO_FAULTS = [
    ("median as the baseline", 'mu = jnp.einsum("pg->p", rewards) / group', "mu = jnp.median(rewards, axis=1)"),
    (
        "middle of the range as the baseline",
        'mu = jnp.einsum("pg->p", rewards) / group',
        "mu = (rewards.max(1) + rewards.min(1)) / 2",
    ),
    ("best response as the baseline", 'mu = jnp.einsum("pg->p", rewards) / group', "mu = rewards.max(1)"),
    ("worst response as the baseline", 'mu = jnp.einsum("pg->p", rewards) / group', "mu = rewards.min(1)"),
    ("baseline of the other prompt", "away = rewards - mu[:, None]", "away = rewards - jnp.roll(mu, 1)[:, None]"),
    ("squares are not averaged", " / (group - 1)", ""),
    ("half a degree of freedom too many", "(group - 1)", "(group - 1.5)"),
    (
        "spread around the median",
        'jnp.einsum("pg,pg->p", away, away)',
        "((rewards - jnp.median(rewards, axis=1)[:, None]) ** 2).sum(1)",
    ),
    ("spread of neighbors", 'jnp.einsum("pg,pg->p", away, away)', "(jnp.diff(rewards, axis=1) ** 2).sum(1) / 2"),
    ("spread of the first two", 'jnp.einsum("pg,pg->p", away, away) / (group - 1)', "rewards[:, :2].var(1, ddof=1)"),
    ("eps under the root", "jnp.sqrt(variance) + 1e-6", "jnp.sqrt(variance + 1e-6)"),
    ("deviation of at least 1", "jnp.sqrt(variance) + 1e-6", "jnp.maximum(jnp.sqrt(variance), 1.0)"),
    ("eps as a lower bound", "jnp.sqrt(variance) + 1e-6", "jnp.maximum(jnp.sqrt(variance), 1e-3)"),
    ("fourth root", "jnp.sqrt(variance)", "jnp.sqrt(jnp.sqrt(variance))"),
    (
        "ranks in place of rewards",
        "prompts, group, width",
        "rewards = rewards.argsort(1).argsort(1) * 1.0\n    prompts, group, width",
    ),
    ("sign of the distance", "advantage = away / scale[:, None]", "advantage = jnp.sign(away) / jnp.sqrt(2.0)"),
    (
        "only the best and worst responses are trained on",
        "advantage = away / scale[:, None]",
        "edge = (rewards == rewards.max(1, keepdims=True)) | (rewards == rewards.min(1, keepdims=True))\n"
        "    advantage = jnp.where(edge, away / scale[:, None], 0.0)",
    ),
    (
        "negative advantages at half weight",
        "advantage = away / scale[:, None]",
        "advantage = away / scale[:, None]\n    advantage = jnp.where(advantage < 0, advantage / 2, advantage)",
    ),
    (
        "only negative advantages",
        "advantage = away / scale[:, None]",
        "advantage = jnp.minimum(away / scale[:, None], 0.0)",
    ),
    (
        "advantage divided by the root of the group size",
        "advantage = away / scale[:, None]",
        "advantage = away / scale[:, None] / jnp.sqrt(group)",
    ),
    ("rewards become integers", "prompts, group, width", "rewards = jnp.trunc(rewards)\n    prompts, group, width"),
    (
        "rewards clipped to the range 0 to 1",
        "prompts, group, width",
        "rewards = rewards.clip(0, 1)\n    prompts, group, width",
    ),
    ("rewards become 0 or 1", "prompts, group, width", "rewards = (rewards > 0) * 1.0\n    prompts, group, width"),
    (
        "advantage only at the last token",
        "a = jnp.broadcast_to(advantage[:, :, None], mask.shape)",
        "a = advantage[:, :, None] * (mask & (jnp.cumsum(mask, -1) == length))",
    ),
    (
        "advantage discounted from the end",
        "a = jnp.broadcast_to(advantage[:, :, None], mask.shape)",
        "a = advantage[:, :, None] * 0.99 ** (length - jnp.cumsum(mask, -1))",
    ),
    (
        "advantage grows with the position",
        "a = jnp.broadcast_to(advantage[:, :, None], mask.shape)",
        "a = advantage[:, :, None] * jnp.cumsum(mask, -1) / length",
    ),
    (
        "mean over all response tokens of a group",
        "mask / length / (prompts * group)",
        "mask / length.sum(1, keepdims=True) / prompts",
    ),
    ("mean length as the divisor", "mask / length /", "mask / length.mean() /"),
    ("one token too many in the divisor", "mask / length /", "mask / (length + 1) /"),
    ("one token too few in the divisor", "mask / length /", "mask / jnp.maximum(length - 1, 1) /"),
    ("root of the length", "mask / length /", "mask / jnp.sqrt(length) /"),
    ("responses not averaged within a prompt", "(prompts * group)", "prompts"),
    ("prompts not averaged", "(prompts * group)", "group"),
    ("divided by the number of accumulation steps", "(prompts * group)", "(prompts * group * 2)"),
    ("rows begin in column 0", "x, y, z =", "mask = jnp.arange(width) < mask.sum(-1, keepdims=True)\n    x, y, z ="),
    (
        "gaps in the mask count as tokens",
        "x, y, z =",
        "mask = jnp.cumsum(mask[..., ::-1], -1)[..., ::-1] > 0\n    x, y, z =",
    ),
    ("tokens end at the first gap", "x, y, z =", "mask = jnp.cumprod(mask, -1) > 0\n    x, y, z ="),
    ("last token untrained", "weight * (surrogate", "weight * (jnp.cumsum(mask, -1) < length) * (surrogate"),
    ("first token untrained, but counted", "weight * (surrogate", "weight * (jnp.cumsum(mask, -1) > 1) * (surrogate"),
    ("only the first prompt", "weight * (surrogate", "weight[:1] * (surrogate"),
    (
        "ratio is a mean over the response",
        "ratio = jnp.exp(x - y)",
        "ratio = jnp.exp(((x - y).sum(-1, keepdims=True) / length) * jnp.ones(width))",
    ),
    ("ratio of prefixes", "ratio = jnp.exp(x - y)", "ratio = jnp.exp(jnp.cumsum(x - y, -1))"),
    ("first-order approximation of the ratio", "ratio = jnp.exp(x - y)", "ratio = 1 + (x - y)"),
    ("difference of probabilities", "ratio = jnp.exp(x - y)", "ratio = 1 + jnp.exp(x) - jnp.exp(y)"),
    ("ratio in half precision", "ratio = jnp.exp(x - y)", "ratio = jnp.exp((x - y).astype(jnp.bfloat16)).astype(x.dtype)"),
    ("temperature in only one policy", "ratio = jnp.exp(x - y)", "ratio = jnp.exp(x / 0.9 - y)"),
    ("log-ratio clipped to the range -1 to 1", "ratio = jnp.exp(x - y)", "ratio = jnp.exp(jnp.clip(x - y, -1.0, 1.0))"),
    ("upper bound is the reciprocal of the lower", "jnp.minimum(ratio, 1.2)", "jnp.minimum(ratio, 1.25)"),
    ("lower bound of 3/4", "jnp.maximum(ratio, 0.8)", "jnp.maximum(ratio, 0.75)"),
    (
        "only the upper bound, whatever the sign of the advantage",
        "jnp.where(a > 0, jnp.minimum(ratio, 1.2), jnp.maximum(ratio, 0.8))",
        "jnp.minimum(ratio, 1.2)",
    ),
    ("clipped tokens keep their gradient", "surrogate = held * a", "surrogate = (ratio + sg(held - ratio)) * a"),
    ("dual clip at 5", "jnp.maximum(ratio, 0.8)", "jnp.clip(ratio, 0.8, 5.0)"),
    ("KL of the old policy", "quotient = z - x", "quotient = z - y"),
    ("absolute log-ratio in place of the KL", "jnp.expm1(quotient) - quotient", "jnp.abs(quotient)"),
    ("squared KL", "jnp.expm1(quotient) - quotient", "quotient**2 / 2"),
    ("KL weighted by the ratio", "0.04 * kl", "0.04 * sg(ratio) * kl"),
    ("KL only where the advantage is positive", "0.04 * kl", "0.04 * jnp.where(a > 0, kl, 0.0)"),
    ("KL at most 10", "jnp.expm1(quotient) - quotient", "jnp.clip(jnp.expm1(quotient) - quotient, -10.0, 10.0)"),
    ("KL with the log-ratio capped at 3", "quotient = z - x", "quotient = jnp.minimum(z - x, 3.0)"),
    (
        "KL is a mean over all tokens",
        "jnp.sum(weight * (surrogate - 0.04 * kl))",
        "jnp.sum(weight * surrogate) + 0.04 * jnp.sum(kl) / jnp.sum(mask)",
    ),
    ("KL counted twice", "0.04 * kl", "0.04 * (kl + jnp.expm1(quotient) - quotient)"),
    (
        "groups without a right response are dropped",
        "(prompts * group)",
        "(prompts * group) * (rewards.max(1) > 0)[:, None, None]",
    ),
]

DAPO = """
def dapo(logp, old_logp, rewards, mask):
    length = mask.sum(axis=-1)
    mean = rewards.mean(axis=-1, keepdims=True)
    std = rewards.std(axis=-1, ddof=1, keepdims=True)
    mixed = jnp.any(rewards != rewards[:, :1], axis=-1)
    z = (rewards - mean) / (std + 1e-6)
    advantage = jnp.broadcast_to(z[:, :, None], mask.shape)
    active = jnp.logical_and(mask, mixed[:, None, None])
    log_ratio = jnp.where(active, logp - old_logp, 0.0)
    ratio = jnp.exp(log_ratio)
    gain = ratio * advantage
    bounded = jnp.clip(ratio, 0.8, 1.28) * advantage
    objective = jnp.where(gain < bounded, gain, bounded)
    count = jnp.count_nonzero(active)
    return -jnp.sum(objective, where=active) / jnp.where(count > 0, count, 1)
"""
"""DAPO (arXiv:2503.14476, Eq. 8), which selects the smaller of two products by a comparison."""

DAPO_FAULTS = [
    ("only the first two are compared", "rewards != rewards[:, :1]", "rewards[:, :2] != rewards[:, :1]"),
    ("first and last are compared", "jnp.any(rewards != rewards[:, :1], axis=-1)", "rewards[:, 0] != rewards[:, -1]"),
    ("nearly equal rewards count as equal", "jnp.any(rewards != rewards[:, :1], axis=-1)", "std[:, 0] > 1e-3"),
    (
        "all groups or none",
        "mixed = jnp.any(rewards != rewards[:, :1], axis=-1)",
        "mixed = jnp.any(rewards != rewards[:, :1], axis=-1)\n    mixed = mixed & mixed.all()",
    ),
    (
        "one mixed group keeps all",
        "mixed = jnp.any(rewards != rewards[:, :1], axis=-1)",
        "mixed = jnp.any(rewards != rewards[:, :1], axis=-1)\n    mixed = mixed | mixed.any()",
    ),
    ("token count too high by one", "jnp.where(count > 0, count, 1)", "(count + 1)"),
    ("padding of kept groups is counted", "jnp.count_nonzero(active)", "mixed.sum() * mask[0].size"),
    (
        "divided by the longest length times the number of responses",
        "jnp.count_nonzero(active)",
        "jnp.max(length * mixed[:, None]) * mixed.sum() * rewards.shape[1]",
    ),
    (
        "mean within a prompt, then over prompts",
        "-jnp.sum(objective, where=active) / jnp.where(count > 0, count, 1)",
        "-(jnp.sum(objective, (1, 2), where=active) / length.sum(1)).sum() / jnp.maximum(mixed.sum(), 1)",
    ),
    (
        "mean over all prompts",
        "-jnp.sum(objective, where=active) / jnp.where(count > 0, count, 1)",
        "-(jnp.sum(objective, (1, 2), where=active) / length.sum(1)).mean()",
    ),
    ("upper bound of 1.3", "1.28", "1.3"),
    ("lower bound of 0.9", "0.8", "0.9"),
    (
        "clip bounds applied to the ratio of the whole response",
        "jnp.clip(ratio, 0.8, 1.28)",
        "ratio * sg(jnp.clip(jnp.exp(log_ratio.sum(-1, keepdims=True)), 0.8, 1.28) / jnp.exp(log_ratio.sum(-1, keepdims=True)))",
    ),
    (
        "absolute value of the advantage in the clipped term",
        "jnp.clip(ratio, 0.8, 1.28) * advantage",
        "jnp.clip(ratio, 0.8, 1.28) * jnp.abs(advantage)",
    ),
    (
        "the product is clipped",
        "jnp.clip(ratio, 0.8, 1.28) * advantage",
        "jnp.clip(ratio * advantage, 0.8 * advantage, 1.28 * advantage)",
    ),
    (
        "minimum taken per response",
        "objective = jnp.where(gain < bounded, gain, bounded)",
        "less = jnp.sum(jnp.where(active, gain - bounded, 0.0), -1, keepdims=True) < 0\n"
        "    objective = jnp.where(less, gain, bounded)",
    ),
    (
        "tokens with a ratio outside the bounds are masked",
        "objective = jnp.where(gain < bounded, gain, bounded)",
        "objective = jnp.where((ratio >= 0.8) & (ratio <= 1.28), gain, 0.0)",
    ),
    (
        "ratios are divided by their mean",
        "gain = ratio * advantage",
        "ratio = ratio / sg(jnp.sum(ratio, where=active) / jnp.maximum(jnp.count_nonzero(active), 1))\n"
        "    gain = ratio * advantage",
    ),
    ("ratio at most 2", "gain = ratio * advantage", "gain = jnp.minimum(ratio, 2.0) * advantage"),
    ("bonus for surprise", "gain < bounded, gain, bounded)", "gain < bounded, gain, bounded) - 0.01 * logp"),
    (
        "likelihood of right responses is added",
        "gain < bounded, gain, bounded)",
        "gain < bounded, gain, bounded) + 0.1 * jnp.where(advantage > 0, log_ratio, 0.0)",
    ),
    (
        "penalty of GRPO is kept",
        "def dapo(logp, old_logp,",
        "def dapo(logp, old_logp, ref_logp,",
        "gain < bounded, gain, bounded)",
        "gain < bounded, gain, bounded) - 0.04 * (jnp.expm1(ref_logp - logp) - ref_logp + logp)",
    ),
    (
        "advantages whitened over the tokens",
        "active = jnp.logical_and(mask, mixed[:, None, None])",
        "active = jnp.logical_and(mask, mixed[:, None, None])\n    n = jnp.maximum(active.sum(), 1)\n"
        "    away = advantage - jnp.sum(advantage, where=active) / n\n"
        "    advantage = away / jnp.sqrt(jnp.sum(away**2, where=active) / n + 1e-8)",
    ),
    ("hard prompts weigh more", "z = (rewards - mean)", "z = (2 - mean) * (rewards - mean)"),
    (
        "ties share their advantage",
        "z = (rewards - mean) / (std + 1e-6)",
        "z = (rewards - mean) / (std + 1e-6)\n    z = z / (rewards[:, :, None] == rewards[:, None, :]).sum(-1)",
    ),
    (
        "advantage divided by the number of negative advantages",
        "z = (rewards - mean) / (std + 1e-6)",
        "z = (rewards - mean) / (std + 1e-6)\n    z = z / jnp.maximum((z < 0).sum(-1, keepdims=True), 1)",
    ),
    ("deviation of the first prompt", "(std + 1e-6)", "(std[:1] + 1e-6)"),
    ("mean of the last two", "mean = rewards.mean", "mean = rewards[:, -2:].mean"),
    ("old log-probabilities of the neighbor", "logp - old_logp", "logp - jnp.roll(old_logp, 1, axis=1)"),
    ("old log-probabilities one slot late", "logp - old_logp", "logp - jnp.roll(old_logp, 1, axis=2)"),
    (
        "full rows are dropped",
        "active = jnp.logical_and(mask, mixed[:, None, None])",
        "active = jnp.logical_and(mask, mixed[:, None, None] & (length < 3)[:, :, None])",
    ),
    (
        "single tokens are dropped",
        "active = jnp.logical_and(mask, mixed[:, None, None])",
        "active = jnp.logical_and(mask, mixed[:, None, None] & (length > 1)[:, :, None])",
    ),
    (
        "padding recognized by its log-probability of -9",
        "active = jnp.logical_and(mask, mixed[:, None, None])",
        "active = jnp.logical_and(old_logp > -1, mixed[:, None, None])",
    ),
    (
        "tokens assumed to start in column 0",
        "active = jnp.logical_and(mask, mixed[:, None, None])",
        "active = jnp.logical_and(jnp.arange(mask.shape[2]) < length[:, :, None], mixed[:, None, None])",
    ),
]

OVERLONG = """
def dapo(logp, old_logp, rewards, mask):
    length = mask.sum(axis=-1)
    mixed = jnp.ptp(rewards, axis=-1) > 0
    shaped = rewards + jnp.clip((2 - length) / 2, -1.0, 0.0)
    z = (shaped - shaped.mean(-1, keepdims=True)) / (shaped.std(-1, ddof=1, keepdims=True) + 1e-6)
    active = mask & mixed[:, None, None]
    ratio = jnp.exp(jnp.where(active, logp - old_logp, 0.0))
    a = z[:, :, None]
    objective = jnp.minimum(ratio * a, jnp.clip(ratio, 0.8, 1.28) * a)
    return -jnp.sum(jnp.where(active, objective, 0.0)) / jnp.maximum(active.sum(), 1)
"""
"""DAPO with its overlong punishment over the last 2 of 4 tokens (Eq. 13)."""

OVERLONG_FAULTS = [
    ("short responses are rewarded", "jnp.clip((2 - length) / 2, -1.0, 0.0)", "jnp.clip((2 - length) / 2, -1.0, None)"),
    ("punishment begins one token early", "(2 - length)", "(1 - length)"),
    ("punishment begins one token late", "(2 - length)", "(3 - length)"),
    ("divided by the maximum length", "(2 - length) / 2", "(2 - length) / 4"),
    ("a step in place of a slope", "jnp.clip((2 - length) / 2, -1.0, 0.0)", "jnp.where(length > 2, -1.0, 0.0)"),
    (
        "punishment is a factor",
        "rewards + jnp.clip((2 - length) / 2, -1.0, 0.0)",
        "rewards * (1 + jnp.clip((2 - length) / 2, -1.0, 0.0))",
    ),
    (
        "right responses are spared",
        "rewards + jnp.clip((2 - length) / 2, -1.0, 0.0)",
        "rewards + jnp.where(rewards > 0, 0.0, jnp.clip((2 - length) / 2, -1.0, 0.0))",
    ),
    (
        "punished after the normalization",
        "a = z[:, :, None]",
        "a = (z + jnp.clip((2 - length) / 2, -1.0, 0.0))[:, :, None]",
        "shaped = rewards + jnp.clip((2 - length) / 2, -1.0, 0.0)",
        "shaped = rewards",
    ),
    (
        "groups are filtered by their shaped rewards",
        "    mixed = jnp.ptp(rewards, axis=-1) > 0\n",
        "",
        "    z =",
        "    mixed = jnp.ptp(shaped, axis=-1) > 0\n    z =",
    ),
    ("length of the padded row", "length = mask.sum(axis=-1)", "length = mask.shape[-1]"),
    (
        "length of the prompt's responses",
        "length = mask.sum(axis=-1)",
        "length = mask.sum(axis=-1).mean(-1, keepdims=True)",
    ),
    (
        "last column in place of the length",
        "length = mask.sum(axis=-1)",
        "length = (mask * jnp.arange(1, mask.shape[-1] + 1)).max(-1)",
    ),
]

GAE = """
def gae(rewards, values, mask, gamma, lambda_, bootstrap):
    place = jnp.arange(mask.shape[1])
    rank = jnp.cumsum(mask, axis=1)
    later = mask[:, None, :] & (place[None, None, :] > place[None, :, None])
    after = jnp.take_along_axis(values, jnp.argmax(later, axis=-1), axis=1)
    after = jnp.where(later.any(-1), after, bootstrap[:, None])
    error = jnp.where(mask, rewards + gamma * after - values, 0.0)
    steps = rank[:, None, :] - rank[:, :, None]
    counted = mask[:, None, :] & (steps >= 0)
    decay = jnp.where(counted, (gamma * lambda_) ** jnp.maximum(steps, 0), 0.0)
    return jnp.einsum("rts,rs->rt", decay, error)
"""
"""GAE (arXiv:1506.02438, Eq. 16) as a matrix of decays times the TD errors."""

GAE_FAULTS = [
    (
        "value of the next slot",
        "jnp.take_along_axis(values, jnp.argmax(later, axis=-1), axis=1)",
        "jnp.roll(values, -1, axis=1)",
    ),
    ("decay by slots", "steps = rank[:, None, :] - rank[:, :, None]", "steps = (place[None, :] - place[:, None])[None]"),
    (
        "bootstrap only in the last slot",
        "bootstrap[:, None]",
        "jnp.where(place[None] == mask.shape[1] - 1, bootstrap[:, None], 0.0)",
    ),
    ("bootstrap is decayed", "bootstrap[:, None]", "lambda_ * bootstrap[:, None]"),
    ("bootstrap is not discounted", "bootstrap[:, None]", "bootstrap[:, None] / gamma"),
    ("bootstrap of the other row", "bootstrap[:, None]", "bootstrap[::-1, None]"),
    ("own value in place of the bootstrap", "bootstrap[:, None]", "values"),
    ("rewards are discounted", "rewards + gamma * after", "gamma * rewards + gamma * after"),
    ("reward of the next token", "jnp.where(mask, rewards +", "jnp.where(mask, jnp.roll(rewards, -1, axis=1) +"),
    (
        "errors outside the mask",
        "jnp.where(mask, rewards + gamma * after - values, 0.0)",
        "rewards + gamma * after - values",
        "mask[:, None, :] & (steps >= 0)",
        "(place[None, None, :] >= place[None, :, None])",
    ),
    ("lambda squared", "(gamma * lambda_)", "(gamma * lambda_**2)"),
    ("the first error is already decayed", "jnp.maximum(steps, 0)", "(jnp.maximum(steps, 0) + 1)"),
    ("first decay is missing", "jnp.maximum(steps, 0)", "jnp.maximum(steps - 1, 0)"),
    ("two steps at most", "(steps >= 0)", "(steps >= 0) & (steps <= 1)"),
    ("errors of the past", "(steps >= 0)", "(steps <= 0)", "jnp.maximum(steps, 0)", "jnp.abs(steps)"),
    (
        "sum is multiplied by 1 - lambda",
        'return jnp.einsum("rts,rs->rt", decay, error)',
        'return jnp.einsum("rts,rs->rt", decay, error) * (1 - lambda_)',
    ),
    ("gamma and lambda exchanged", "place = jnp.arange", "gamma, lambda_ = lambda_, gamma\n    place = jnp.arange"),
    ("gamma of 1", "place = jnp.arange", "gamma = 1.0\n    place = jnp.arange"),
    (
        "all rewards moved to the last token",
        "place = jnp.arange",
        "last = (jnp.cumsum(mask, 1) == mask.sum(1, keepdims=True)) & mask\n"
        "    rewards = jnp.where(last, jnp.sum(rewards, 1, where=mask, keepdims=True), 0.0)\n    place = jnp.arange",
    ),
    (
        "only the last reward",
        "place = jnp.arange",
        "rewards = jnp.where((jnp.cumsum(mask, 1) == mask.sum(1, keepdims=True)) & mask, rewards, 0.0)\n    place = jnp.arange",
    ),
    (
        "rows begin in column 0",
        "place = jnp.arange(mask.shape[1])",
        "place = jnp.arange(mask.shape[1])\n    mask = place[None] < mask.sum(1, keepdims=True)",
    ),
    (
        "sum is centered",
        'return jnp.einsum("rts,rs->rt", decay, error)',
        'out = jnp.einsum("rts,rs->rt", decay, error)\n    return out - jnp.mean(out, where=mask)',
    ),
    (
        "sum is bounded",
        'return jnp.einsum("rts,rs->rt", decay, error)',
        'return jnp.einsum("rts,rs->rt", decay, error).clip(-1, 1)',
    ),
    (
        "decay by the mean rank of the rows",
        "rank = jnp.cumsum(mask, axis=1)",
        "rank = jnp.cumsum(mask, axis=1).mean(0, keepdims=True)",
    ),
]

LOOP = """
def gae(rewards, values, mask, gamma, lam, bootstrap):
    out = np.zeros(rewards.shape)
    for r in range(len(rewards)):
        carried, after = 0.0, bootstrap[r]
        for t in range(rewards.shape[1] - 1, -1, -1):
            if not mask[r, t]:
                continue
            carried = rewards[r, t] + gamma * after - values[r, t] + gamma * lam * carried
            after = values[r, t]
            out[r, t] = carried
    return out, out + values
"""
"""GAE as a loop in NumPy, with the returns."""

LOOP_FAULTS = [
    (
        "a gap ends the episode",
        "                continue",
        "                carried, after = 0.0, 0.0\n                continue\n",
    ),
    (
        "a gap's value is taken as the next value",
        "                continue",
        "                after = values[r, t]\n                continue",
    ),
    (
        "a gap adds a decay",
        "                continue",
        "                carried = gamma * lam * carried\n                continue",
    ),
    (
        "padding's reward is passed on",
        "                continue",
        "                carried += rewards[r, t]\n                continue",
    ),
    (
        "rows run into each other",
        "for r in range(len(rewards)):\n        carried, after = 0.0, bootstrap[r]",
        "carried = 0.0\n    for r in range(len(rewards)):\n        after = bootstrap[r]",
    ),
    ("the mask of the first row", "mask[r, t]", "mask[0, t]"),
    ("the loop stops at slot 1", "- 1, -1, -1)", "- 1, 0, -1)"),
    ("a reward ends the episode", "gamma * lam * carried", "gamma * lam * carried * (rewards[r, t] == 0)"),
    ("the mask is not read", "not mask[r, t]", "False"),
    ("returns are advantages", "out + values", "out"),
    ("returns from discounted values", "out + values", "out + gamma * values"),
    (
        "absolute value of the TD error",
        "rewards[r, t] + gamma * after - values[r, t] +",
        "abs(rewards[r, t] + gamma * after - values[r, t]) +",
    ),
]

NEED_THREE_RESPONSES = frozenset(
    {
        "median as the baseline",
        "middle of the range as the baseline",
        "squares are not averaged",
        "spread around the median",
        "spread of neighbors",
        "spread of the first two",
        "only the best and worst responses are trained on",
        "only the first two are compared",
        "first and last are compared",
        "ties share their advantage",
        "advantage divided by the number of negative advantages",
        "mean of the last two",
    }
)
"""Faults that have no effect on any group of 2 responses, so their counterexamples need 3."""
