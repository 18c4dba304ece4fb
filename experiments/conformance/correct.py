"""Correct losses in five styles, and GAE in two; `faults.py` replaces parts of `GRPO`, `DAPO` and `GAE`."""

GRPO = """
def grpo(logp, old_logp, ref_logp, rewards, mask):
    prompts, group, length = mask.shape
    new, old, ref, m = (x.reshape(prompts * group, length) for x in (logp, old_logp, ref_logp, mask))
    baseline = jnp.repeat(rewards.mean(1), group)
    spread = jnp.repeat(jnp.std(rewards, axis=1, ddof=1), group)
    score = rewards.reshape(-1)
    adv = ((score - baseline) / (spread + 1e-6))[:, None]
    diff = jnp.where(m, new - old, 0.0)
    rho = jnp.exp(diff)
    gain = jnp.minimum(rho * adv, jnp.clip(rho, 1.0 - 0.2, 1.0 + 0.2) * adv)
    delta = jnp.where(m, ref - new, 0.0)
    kl = jnp.exp(delta) - delta - 1.0
    token = jnp.where(m, gain - 0.04 * kl, 0.0)
    per_row = token.sum(axis=1) / m.sum(axis=1)
    return -per_row.mean()
"""
"""GRPO (arXiv:2402.03300, Eq. 3) on responses flattened into rows."""

DAPO = """
def dapo(logp, old_logp, rewards, mask):
    useful = rewards.max(axis=1) > rewards.min(axis=1)
    away = rewards - jnp.mean(rewards, axis=1, keepdims=True)
    sigma = jnp.sqrt(jnp.sum(away**2, axis=1, keepdims=True) / (rewards.shape[1] - 1))
    adv = (away / jnp.where(useful[:, None], sigma + 1e-6, 1.0))[:, :, None]
    counted = mask & useful[:, None, None]
    rho = jnp.exp(jnp.where(counted, logp - old_logp, 0.0))
    loss1 = -adv * rho
    loss2 = -adv * jnp.clip(rho, 1 - 0.2, 1 + 0.28)
    token = jnp.maximum(loss1, loss2)
    total = jnp.sum(jnp.where(counted, token, 0.0))
    return total / jnp.maximum(jnp.sum(counted), 1)
"""
"""DAPO (arXiv:2503.14476, Eq. 8) as a loss, negated before the clipping."""

GAE = """
def gae(rewards, values, mask, gamma, lambda_, bootstrap):
    def step(carry, x):
        adv, next_value = carry
        reward, value, is_token = x
        delta = reward + gamma * next_value - value
        new = delta + gamma * lambda_ * adv
        adv = jnp.where(is_token, new, adv)
        next_value = jnp.where(is_token, value, next_value)
        return (adv, next_value), adv

    start = (jnp.zeros(rewards.shape[0]), bootstrap)
    _, out = jax.lax.scan(step, start, (rewards.T, values.T, mask.T), reverse=True)
    return out.T
"""
"""GAE (arXiv:1506.02438, Eq. 16) as a scan from the last slot to the first."""

RAGGED = """
def grpo(logp, old_logp, ref_logp, rewards, mask):
    losses = []
    for group, rows in enumerate(mask):
        scores = list(rewards[group])
        mean = math.fsum(scores) / len(scores)
        deviation = math.sqrt(math.fsum((s - mean) ** 2 for s in scores) / (len(scores) - 1))
        for row, tokens in enumerate(rows):
            at = (group, row, tokens)
            advantage = (scores[row] - mean) / (deviation + 1e-6)
            terms = []
            for x, y, z in zip(logp[at], old_logp[at], ref_logp[at]):
                r, q = math.exp(x - y), math.exp(z - x)
                bound = 1.2 if advantage > 0 else 0.8
                held = min(r, bound) if advantage > 0 else max(r, bound)
                terms.append(held * advantage - 0.04 * (q - 1 - math.log(q)))
            losses.append(-math.fsum(terms) / len(terms))
    return math.fsum(losses) / len(losses)
"""
"""GRPO token by token in pure Python."""

SEGMENTS = """
def dapo(logp, old_logp, rewards, mask):
    group_of_row = np.repeat(np.arange(len(rewards)), rewards.shape[1])
    scores, size = rewards.ravel(), np.bincount(group_of_row)
    mean = np.bincount(group_of_row, scores) / size
    variance = np.bincount(group_of_row, (scores - mean[group_of_row]) ** 2) / (size - 1)
    row_of_token = np.nonzero(mask.reshape(-1, mask.shape[-1]))[0]
    kept = np.ptp(rewards, axis=1)[group_of_row[row_of_token]] > 0
    if not kept.any():
        return 0.0
    row = row_of_token[kept]
    advantage = (scores - mean[group_of_row])[row] / (np.sqrt(variance[group_of_row])[row] + 1e-6)
    ratio = np.exp((logp[mask] - old_logp[mask])[kept])
    return np.mean(np.where(advantage > 0, -advantage * np.minimum(ratio, 1.28), -advantage * np.maximum(ratio, 0.8)))
"""
"""DAPO on packed tokens, with sums over segments."""

MAPPED = """
def grpo(logp, old_logp, ref_logp, rewards, mask):
    def response(new, old, ref, counted, advantage):
        def token(x, y, z):
            ratio = jnp.exp(x - y)
            return jax.lax.min(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage) - 0.04 * (jnp.expm1(z - x) - (z - x))

        value = jax.vmap(token)(*(jnp.where(counted, x, 0.0) for x in (new, old, ref)))
        return jnp.sum(value, where=counted) / jnp.sum(counted)

    def prompt(new, old, ref, counted, scores):
        advantage = (scores - scores.mean()) / (scores.std(ddof=1) + 1e-6)
        return jax.vmap(response)(new, old, ref, counted, advantage).mean()

    return -jax.vmap(prompt)(logp, old_logp, ref_logp, mask, rewards).mean()
"""
"""GRPO for one token, mapped over tokens, responses and prompts."""

TENSORS = """
class Loss:
    low, high = 0.2, 0.28

    def advantages(self, rewards):
        std, mean = torch.std_mean(rewards, dim=-1, keepdim=True)
        return (rewards - mean) / (std + 1e-6)

    def __call__(self, logp, old_logp, rewards, mask):
        keep = (rewards.std(dim=-1) > 0)[:, None, None]
        weight = (mask & keep).to(logp.dtype)
        ratio = ((logp - old_logp).masked_fill(weight == 0, 0.0)).exp()
        advantage = self.advantages(rewards).unsqueeze(-1)
        surrogate = torch.stack([ratio * advantage, ratio.clamp(1 - self.low, 1 + self.high) * advantage]).amin(0)
        return -(surrogate * weight).sum() / weight.sum().clamp(min=1)


def dapo(logp, old_logp, rewards, mask):
    return Loss()(logp, old_logp, rewards, mask)
"""
"""DAPO as a callable object in PyTorch."""

SUMS = """
def gae(rewards, values, mask, gamma, lam):
    advantages = np.zeros_like(rewards)
    for r, row in enumerate(mask):
        slots = np.flatnonzero(row)
        v = np.append(values[r, slots], 0.0)
        for k, slot in enumerate(slots):
            n_steps = []
            for n in range(1, len(slots) - k + 1):
                reward = sum(gamma**j * rewards[r, slots[k + j]] for j in range(n))
                n_steps.append(reward + gamma**n * v[k + n] - v[k])
            weights = [(1 - lam) * lam**n for n in range(len(n_steps) - 1)] + [lam ** (len(n_steps) - 1)]
            advantages[r, slot] = np.dot(weights, n_steps)
    return advantages, advantages + values
"""
"""GAE as the weighted mean of the n-step advantages."""

CORRECT = {
    "GRPO, flat rows, JAX": ("grpo", "jax", GRPO),
    "DAPO, whole arrays, JAX": ("dapo", "jax", DAPO),
    "GRPO, pure Python": ("grpo", "numpy", RAGGED),
    "DAPO, packed tokens, NumPy": ("dapo", "numpy", SEGMENTS),
    "GRPO, one token mapped, JAX": ("grpo", "jax", MAPPED),
    "DAPO, an object, PyTorch": ("dapo", "torch", TENSORS),
    "GAE, a scan, JAX": ("gae", "jax", GAE),
    "GAE, mean of n-step advantages, NumPy": ("gae", "numpy", SUMS),
}
"""Style -> (name of the algorithm, array library, source)."""
