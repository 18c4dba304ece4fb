"""Correct implementations in different styles; faults are planted in some of them."""

GRPO = """
def loss(logp, old_logp, ref_logp, rewards, mask):
    mean = rewards.mean(axis=1, keepdims=True)
    std = rewards.std(axis=1, ddof=1, keepdims=True)
    advantage = ((rewards - mean) / (std + 1e-6))[:, :, None]
    ratio = np.exp(np.where(mask, logp - old_logp, 0.0))
    clipped = np.clip(ratio, 1 - 0.2, 1 + 0.2)
    surrogate = np.minimum(ratio * advantage, clipped * advantage)
    away = np.where(mask, ref_logp - logp, 0.0)
    penalty = np.exp(away) - away - 1
    per_token = surrogate - 0.04 * penalty
    lengths = mask.sum(axis=2)
    return -((per_token * mask).sum(axis=2) / lengths).mean()
"""

DAPO = """
def loss(logp, old_logp, rewards, mask):
    keep = rewards.max(axis=1) > rewards.min(axis=1)
    if not keep.any():
        return 0.0 * logp.sum()
    logp, old_logp, rewards, mask = logp[keep], old_logp[keep], rewards[keep], mask[keep]
    advantage = (rewards - rewards.mean(axis=1, keepdims=True)) / (rewards.std(axis=1, ddof=1, keepdims=True) + 1e-6)
    advantage = advantage[:, :, None]
    log_ratio = np.where(mask, logp - old_logp, 0.0)
    ratio = np.exp(log_ratio)
    low, high = 1 - 0.2, 1 + 0.28
    clipped = np.clip(ratio, low, high)
    surrogate = np.minimum(ratio * advantage, clipped * advantage)
    return -(surrogate * mask).sum() / mask.sum()
"""

GAE = """
def gae(rewards, values, mask, gamma, lambda_, bootstrap):
    out = np.zeros(rewards.shape)
    advantage = np.zeros(len(rewards))
    following = bootstrap.copy()
    for t in range(rewards.shape[1] - 1, -1, -1):
        is_token = mask[:, t]
        delta = rewards[:, t] + gamma * following - values[:, t]
        new = delta + gamma * lambda_ * advantage
        out[:, t] = new
        advantage = np.where(is_token, new, advantage)
        following = np.where(is_token, values[:, t], following)
    return out
"""

STOPPED = """
def loss(logp, old_logp, ref_logp, rewards, mask):
    sg = jax.lax.stop_gradient
    advantage = rewards - rewards.mean(axis=1, keepdims=True)
    advantage = (advantage / (rewards.std(axis=1, ddof=1, keepdims=True) + 1e-6))[:, :, None]
    weight = mask / mask.sum(axis=2, keepdims=True) / (mask.shape[0] * mask.shape[1])
    log_ratio = np.where(mask, logp - old_logp, 0.0)
    ratio = np.exp(log_ratio)
    held = ((advantage > 0) & (ratio > 1.2)) | ((advantage < 0) & (ratio < 0.8))
    value = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
    follow = np.where(held, 0.0, sg(ratio) * advantage)
    surrogate = sg(value) + follow * (logp - sg(logp))
    away = np.where(mask, ref_logp - logp, 0.0)
    return -(weight * (surrogate - 0.04 * (np.exp(away) - away - 1))).sum()
"""

LOOPS = """
def loss(logp, old_logp, ref_logp, rewards, mask):
    total = 0.0
    P, G, T = mask.shape
    for p in range(P):
        group = [float(r) for r in rewards[p]]
        mean = sum(group) / G
        std = (sum((r - mean) ** 2 for r in group) / (G - 1)) ** 0.5
        for i in range(G):
            a, row = (group[i] - mean) / (std + 1e-6), 0.0
            for t in range(T):
                if mask[p, i, t]:
                    rho = math.exp(logp[p, i, t] - old_logp[p, i, t])
                    d = ref_logp[p, i, t] - logp[p, i, t]
                    row += min(rho * a, min(max(rho, 0.8), 1.2) * a) - 0.04 * (math.exp(d) - d - 1)
            total -= row / mask[p, i].sum() / (P * G)
    return total
"""

FLAT = """
def loss(logp, old_logp, rewards, mask):
    B = mask.shape[0] * mask.shape[1]
    a = rewards - np.mean(rewards, axis=-1, keepdims=True)
    sigma = np.sqrt(np.square(a).sum(axis=-1, keepdims=True) / (rewards.shape[1] - 1))
    uniform = np.repeat(np.all(rewards == rewards[:, :1], axis=-1), rewards.shape[1])
    a = (a / (sigma + 1e-6)).reshape(B, 1)
    logp, old_logp, mask = (x.reshape(B, -1) for x in (logp, old_logp, mask))
    mask = mask & ~uniform[:, None]
    lr = (logp - old_logp) * mask
    loss = np.maximum(-a * np.exp(lr), -a * np.exp(np.minimum(np.maximum(lr, np.log(0.8)), np.log(1.28))))
    return np.sum(loss * mask) / np.maximum(np.sum(mask), 1)
"""

MATRIX = """
def gae(rewards, values, mask, gamma, lam):
    out, returns = np.zeros(rewards.shape), np.zeros(rewards.shape)
    for row in range(len(rewards)):
        at = np.flatnonzero(mask[row])
        v, n = values[row, at], len(at)
        delta = rewards[row, at] + gamma * np.append(v[1:], 0.0) - v
        power = np.arange(n)[None, :] - np.arange(n)[:, None]
        out[row, at] = np.where(power >= 0, (gamma * lam) ** np.maximum(power, 0), 0.0) @ delta
        returns[row, at] = out[row, at] + v
    return out, returns
"""
