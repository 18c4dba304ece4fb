"""Every algorithm's losses against loops written from its paper, in value and gradient.

An objective is a function of the log-probabilities `x[p][i][t]`, and of a copy `sg` of them that it may not differentiate.
"""

from itertools import combinations
from math import exp, inf, log, sqrt
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import BY_NAME, Rollout, loss, prepare, value_loss

P, G, T = 3, 4, 6


def make_data() -> SimpleNamespace:
    rng = np.random.default_rng(3)
    lengths = np.array([[6, 2, 4, 1], [3, 5, 6, 2], [4, 1, 3, 6]])
    mask = np.arange(T) < lengths[..., None]

    def draw():
        return rng.normal(size=(P, G, T))

    old = -np.abs(draw()) - 0.2
    return SimpleNamespace(
        lengths=lengths,
        mask=mask,
        old=old,
        x=old + 0.4 * draw(),
        ref=old + 0.3 * draw(),
        rewards=np.array([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]),
        values=draw(),
        new_values=draw(),
        entropy=np.abs(draw()),
        old_entropy=np.abs(draw()),
        teacher=old + 0.5 * np.random.default_rng(4).normal(size=(P, G, T)),
        divergence=np.random.default_rng(5).random((P, G, T)),
        squares=np.random.default_rng(6).uniform(0.1, 1.0, (P, G, T)),
        greedy=np.array([1.0, 0.0, 0.5]),
        form=np.array([[0.0, 0.5, 0.25, 1.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.5]]),
        step_rewards=draw(),
        step_end=mask & (rng.random((P, G, T)) < 0.5),
    )


D = make_data()
ROWS = [(p, i) for p in range(P) for i in range(G)]
MIXED = [(p, i) for p, i in ROWS if p < 2]  # the last group is right throughout


def tokens(rows=ROWS):
    return [(p, i, t) for p, i in rows for t in range(D.lengths[p, i])]


def token_mean(f, rows=ROWS):
    return sum(f(*token) for token in tokens(rows)) / len(tokens(rows))


def sequence_mean(f, rows=ROWS):
    total = 0.0
    for p, i in rows:
        total += sum(f(p, i, t) for t in range(D.lengths[p, i])) / D.lengths[p, i]
    return total / len(rows)


def clip(number, low, high):
    return min(max(number, low), high)


def pessimistic(rho, advantage, low, high):
    return min(rho * advantage, clip(rho, 1 - low, 1 + high) * advantage)


def rho(x, p, i, t):
    return exp(x[p, i, t] - D.old[p, i, t])


def centred(rewards):
    return [r - sum(rewards) / len(rewards) for r in rewards]


def zscores(rewards, eps=1e-6, ddof=1):
    away = centred(rewards)
    return [a / (sqrt(sum(b * b for b in away) / (len(away) - ddof)) + eps) for a in away]


def others(rewards):
    return [r - (sum(rewards) - r) / (len(rewards) - 1) for r in rewards]


def by_group(transform, rewards=D.rewards):
    return [transform(list(group)) for group in rewards]


def over_batch(advantage, eps=1e-8):
    every = [advantage(*token) for token in tokens()]
    mean = sum(every) / len(every)
    std = sqrt(sum((a - mean) ** 2 for a in every) / len(every))
    return lambda p, i, t: (advantage(p, i, t) - mean) / (std + eps)


def k1(x, p, i, t):
    return x[p, i, t] - D.ref[p, i, t]


def k3(x, p, i, t):
    d = D.ref[p, i, t] - x[p, i, t]
    return exp(d) - d - 1


def token_reward(p, i, t, beta=0.0):
    last = t == D.lengths[p, i] - 1
    return (D.rewards[p, i] if last else 0.0) - (beta * k1(D.old, p, i, t) if beta else 0.0)


def gae(p, i, t, lambda_, gamma=1.0, beta=0.0):
    total, n = 0.0, D.lengths[p, i]
    for k in range(t, n):
        following = D.values[p, i, k + 1] if k + 1 < n else 0.0
        total += (gamma * lambda_) ** (k - t) * (token_reward(p, i, k, beta) + gamma * following - D.values[p, i, k])
    return total


def vapo_lambda(p, i, alpha):
    return clip(1 - 1 / (alpha * D.lengths[p, i]), 0, 1)


def positive_nll(x):
    right = [row for row in ROWS if D.rewards[row] > 0]
    return sum(-x[token] for token in tokens(right)) / len(tokens(right))


def cispo(x, sg):
    a = by_group(zscores)
    return token_mean(lambda p, i, t: clip(rho(sg, p, i, t), 0, 1.28) * a[p][i] * (x[p, i, t] - D.old[p, i, t]))


def covariance(a):
    """Of each token with an advantage of its response: over the rollout, before its updates."""
    mean_logp = token_mean(lambda p, i, t: D.old[p, i, t])
    mean_advantage = token_mean(lambda p, i, t: a[p][i])
    return {(p, i, t): (D.old[p, i, t] - mean_logp) * (a[p][i] - mean_advantage) for p, i, t in tokens()}


def clip_cov(x, sg):
    a = by_group(zscores)
    held = covariance(a)

    def surrogate(p, i, t):
        return 0.0 if 0.1 < held[p, i, t] < 0.8 else pessimistic(rho(x, p, i, t), a[p][i], 0.3, 0.3)

    return token_mean(surrogate)


def overlong(length, longest=6, cache=3):
    if length <= longest - cache:
        return 0.0
    return (longest - cache - length) / cache if length <= longest else -1.0


def dapo(x, sg):
    shaped = [[D.rewards[p, i] + overlong(D.lengths[p, i]) for i in range(G)] for p in range(P)]
    a = by_group(zscores, shaped)
    return token_mean(lambda p, i, t: pessimistic(rho(x, p, i, t), a[p][i], 0.2, 0.28), MIXED)


def dapo_grpo(x, sg):
    a = by_group(zscores)
    mean_entropy = token_mean(lambda p, i, t: D.old_entropy[p, i, t], MIXED)

    def surrogate(p, i, t):
        return pessimistic(rho(x, p, i, t), a[p][i] + 0.5 * (D.old_entropy[p, i, t] - mean_entropy), 0.2, 0.28)

    return sequence_mean(surrogate, MIXED)


def dppo(x, sg):
    a = by_group(zscores)

    def surrogate(p, i, t):
        probability, old = exp(sg[p, i, t]), exp(D.old[p, i, t])
        outward = (a[p][i] > 0 and probability > old) or (a[p][i] < 0 and probability < old)
        if outward and abs(probability - old) > 0.1:
            return 0.0
        return min(probability / old, 1.3) * a[p][i] * (x[p, i, t] - D.old[p, i, t])

    return token_mean(surrogate)


def dr_grpo(x, sg):
    a = by_group(centred)
    return sum(pessimistic(rho(x, p, i, t), a[p][i], 0.2, 0.2) / 7 for p, i, t in tokens()) / len(ROWS)


def forking_tokens(x, sg):
    shaped = [[D.rewards[p, i] + overlong(D.lengths[p, i]) for i in range(G)] for p in range(P)]
    a = by_group(zscores, shaped)
    entropies = sorted((D.old_entropy[token] for token in tokens(MIXED)), reverse=True)
    threshold = entropies[round(0.3 * len(entropies)) - 1]

    def surrogate(p, i, t):
        return pessimistic(rho(x, p, i, t), a[p][i], 0.2, 0.28) if D.old_entropy[p, i, t] >= threshold else 0.0

    return token_mean(surrogate, MIXED)


def gdpo(x, sg):
    each = [by_group(zscores), by_group(zscores, D.form)]
    total = [[each[0][p][i] + each[1][p][i] for i in range(G)] for p in range(P)]
    every = [total[p][i] for p, i in ROWS]
    mean, std = sum(every) / len(every), deviation(every)
    return sequence_mean(lambda p, i, t: pessimistic(rho(x, p, i, t), (total[p][i] - mean) / (std + 1e-6), 0.2, 0.2))


def gepo(x, sg):
    a, total = by_group(centred), 0.0
    for p in range(P):
        q, w = [], []
        for i in range(G):
            n = D.lengths[p, i]
            q.append(exp(sum(D.old[p, i, t] for t in range(n)) / n))
            w.append(exp(sum(x[p, i, t] for t in range(n)) / n))
        expected = sum(b * b for b in q) / sum(q)
        total += sum(pessimistic(w[i] / expected, a[p][i], 0.2, 0.2) for i in range(G))
    return total / len(ROWS) - 0.05 * sequence_mean(lambda p, i, t: 1 / rho(x, p, i, t) + log(rho(x, p, i, t)) - 1)


def gkd(x, sg):
    return -sequence_mean(lambda p, i, t: D.divergence[p, i, t])


def gmpo(x, sg):
    a, total = by_group(zscores), 0.0
    for p, i in ROWS:
        n, s = D.lengths[p, i], np.sign(a[p][i])
        logs = [s * log(rho(x, p, i, t)) for t in range(n)]
        total += a[p][i] * exp(sum(s * min(y, clip(y, -0.4, 0.4)) for y in logs) / n)
    return total / len(ROWS)


def gpg(x, sg):
    a = by_group(centred)
    return 3 / (3 - 1) * token_mean(lambda p, i, t: a[p][i] / 2 * (x[p, i, t] - D.old[p, i, t]))


def grpo(x, sg):
    a = by_group(zscores)
    return sequence_mean(lambda p, i, t: pessimistic(rho(x, p, i, t), a[p][i], 0.2, 0.2) - 0.04 * k3(x, p, i, t))


def grpo_process(x, sg):
    a = {}
    for p in range(P):
        steps = [(i, t) for i in range(G) for t in range(T) if D.step_end[p, i, t]]
        normalised = dict(zip(steps, zscores([D.step_rewards[p, i, t] for i, t in steps]), strict=True))
        for i in range(G):
            for t in range(T):
                a[p, i, t] = sum(normalised[j, end] for j, end in steps if j == i and end >= t)
    return sequence_mean(lambda p, i, t: pessimistic(rho(x, p, i, t), a[p, i, t], 0.2, 0.2) - 0.04 * k3(x, p, i, t))


def sequence_ratio(x, p, i):
    n = D.lengths[p, i]
    return exp(sum(x[p, i, t] - D.old[p, i, t] for t in range(n)) / n)


def gspo(x, sg):
    a = by_group(zscores)
    return sum(pessimistic(sequence_ratio(x, p, i), a[p][i], 0.1, 0.15) for p, i in ROWS) / len(ROWS)


def gspo_token(x, sg):
    a = by_group(zscores)

    def surrogate(p, i, t):
        return pessimistic(sequence_ratio(sg, p, i) * exp(x[p, i, t]) / exp(sg[p, i, t]), a[p][i], 0.1, 0.15)

    return sequence_mean(surrogate)


def kl_cov(x, sg):
    a = by_group(zscores)
    held = covariance(a)
    highest = sorted(held.values(), reverse=True)[: round(0.2 * len(held))]

    def surrogate(p, i, t):
        penalty = 0.7 * abs(x[p, i, t] - D.old[p, i, t]) if held[p, i, t] in highest else 0.0
        return rho(x, p, i, t) * a[p][i] - penalty

    return token_mean(surrogate)


def deviation(numbers):
    mean = sum(numbers) / len(numbers)
    return sqrt(sum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1))


def lite_ppo(x, sg):
    a, std = by_group(centred), deviation([D.rewards[row] for row in ROWS])
    return token_mean(lambda p, i, t: pessimistic(rho(x, p, i, t), a[p][i] / (std + 1e-6), 0.2, 0.2))


def luspo(x, sg):
    a, total = by_group(zscores), 0.0
    for p, i in ROWS:
        total += D.lengths[p, i] * pessimistic(sequence_ratio(x, p, i), a[p][i], 0.1, 0.15)
    return total / len(ROWS)


def whole_responses(x, a):
    """REINFORCE, a response as one action."""
    return sum(a[p][i] * (x[p, i, t] - D.old[p, i, t]) for p, i, t in tokens()) / len(ROWS)


def max_rl(x, sg):
    return whole_responses(x, by_group(lambda r: [(one * len(r) - sum(r)) / sum(r) for one in r]))


def on_policy_distillation(x, sg):
    gains = [(D.teacher[p, i, t] - D.old[p, i, t]) * (x[p, i, t] - D.old[p, i, t]) for p, i, t in tokens()]
    return sum(gains) / len(ROWS)


def open_reasoner_zero(x, sg):
    a = over_batch(lambda p, i, t: gae(p, i, t, lambda_=1.0))
    return token_mean(lambda p, i, t: pessimistic(rho(x, p, i, t), a(p, i, t), 0.2, 0.2))


def opo(x, sg):
    a = []
    for p in range(P):
        total = sum(D.lengths[p, i] * D.rewards[p, i] for i in range(G))
        a.append([D.rewards[p, i] - total / sum(D.lengths[p]) for i in range(G)])
    return whole_responses(x, a)


def otb(x, sg):
    def energy(p, i, t):
        return sum(max(1 - 2 * exp(D.old[p, i, k]) + D.squares[p, i, k], 0) for k in range(t + 1))

    total = 0.0
    for p, i, t in tokens():
        rows_at_t = [j for j in range(G) if t < D.lengths[p, j]]
        baseline = sum(energy(p, j, t) * D.rewards[p, j] for j in rows_at_t) / sum(energy(p, j, t) for j in rows_at_t)
        total += (D.rewards[p, i] - baseline) * (x[p, i, t] - D.old[p, i, t])
    return total / len(ROWS)


def best_of_two(rewards):
    """The z-score of each pair's best, averaged over the pairs of a response."""
    pairs = list(combinations(range(len(rewards)), 2))
    best = [max(rewards[i], rewards[j]) for i, j in pairs]
    mean = sum(best) / len(best)
    std = sqrt(sum((b - mean) ** 2 for b in best) / len(best))
    mine = [[b for pair, b in zip(pairs, best, strict=True) if i in pair] for i in range(len(rewards))]
    return [(sum(b) / len(b) - mean) / (std + 1e-6) for b in mine]


def pass_at_k(x, sg):
    a = by_group(best_of_two)
    return sequence_mean(lambda p, i, t: pessimistic(rho(x, p, i, t), a[p][i], 0.2, 0.2))


def gain_in_pairs(rewards):
    """n s_i, over all pairs."""
    pairs = list(combinations(range(len(rewards)), 2))
    gains = [
        sum(max(rewards[a], rewards[b]) - rewards[a + b - i] for a, b in pairs if i in (a, b)) for i in range(len(rewards))
    ]
    return [len(rewards) * gain / len(pairs) for gain in gains]


def pkpo(x, sg):
    return whole_responses(x, by_group(gain_in_pairs))


def ppo(x, sg):
    def surrogate(p, i, t):
        a = gae(p, i, t, lambda_=0.9, gamma=0.95, beta=0.1)
        value = pessimistic(rho(x, p, i, t), a, 0.2, 0.2)
        return (max(value, 1.5 * a) if a < 0 else value) + 0.01 * D.entropy[p, i, t]

    return token_mean(surrogate)


def reinforce_pp(x, sg):
    a = over_batch(lambda p, i, t: D.rewards[p, i] - 0.1 * sum(k1(D.old, p, i, k) for k in range(t, D.lengths[p, i])))
    return token_mean(lambda p, i, t: pessimistic(rho(x, p, i, t), a(p, i, t), 0.2, 0.2))


def reinforce_pp_baseline(x, sg):
    centred_rewards = by_group(centred)
    a = over_batch(lambda p, i, t: centred_rewards[p][i])
    return token_mean(lambda p, i, t: pessimistic(rho(x, p, i, t), a(p, i, t), 0.2, 0.2) - 0.1 * k1(x, p, i, t) ** 2 / 2)


def remax(x, sg):
    return whole_responses(x, [[D.rewards[p, i] - D.greedy[p] for i in range(G)] for p in range(P)])


def rloo(x, sg):
    penalised = [[sum(token_reward(p, i, t, beta=0.1) for t in range(D.lengths[p, i])) for i in range(G)] for p in range(P)]
    a = by_group(others, penalised)
    return sum(a[p][i] * (x[p, i, t] - D.old[p, i, t]) for p, i, t in tokens()) / len(ROWS)


def sapo(x, sg):
    a = by_group(zscores)

    def surrogate(p, i, t):
        tau = 1.0 if a[p][i] > 0 else 1.05
        return 4 / tau / (1 + exp(-tau * (rho(x, p, i, t) - 1))) * a[p][i]

    return sequence_mean(surrogate)


def scale_rl(x, sg):
    a, total = by_group(centred), 0.0
    std = deviation([a[p][i] for p, i in ROWS])
    for group in (0, 1):  # of the mixed ones
        rows = [(group, i) for i in range(G)]

        def surrogate(p, i, t):
            return min(rho(sg, p, i, t), 1.3) * a[p][i] / (std + 1e-6) * (x[p, i, t] - D.old[p, i, t])

        total += token_mean(surrogate, rows) / 2
    return total


def t1(x, sg):
    mean_kl = token_mean(lambda p, i, t: k1(D.old, p, i, t))
    penalised = [
        [D.rewards[p, i] - 0.1 * sum(k1(D.old, p, i, t) - mean_kl for t in range(D.lengths[p, i])) for i in range(G)]
        for p in range(P)
    ]
    a = by_group(others, penalised)
    return sum(a[p][i] * (x[p, i, t] - D.old[p, i, t]) + 0.01 * D.entropy[p, i, t] for p, i, t in tokens()) / len(ROWS)


def vapo(x, sg):
    def surrogate(p, i, t):
        return pessimistic(rho(x, p, i, t), gae(p, i, t, lambda_=vapo_lambda(p, i, alpha=0.5)), 0.2, 0.28)

    return token_mean(surrogate) - 0.1 * positive_nll(x)


def vapo_grpo(x, sg):
    share, group = 0.8 * exp(-2 * 0.25), by_group(zscores)

    def surrogate(p, i, t):
        critic = gae(p, i, t, lambda_=vapo_lambda(p, i, alpha=0.5))
        return pessimistic(rho(x, p, i, t), share * critic + (1 - share) * group[p][i], 0.2, 0.28)

    return token_mean(surrogate) - 0.1 * positive_nll(x)


def vc_ppo(x, sg):
    return token_mean(lambda p, i, t: pessimistic(rho(x, p, i, t), gae(p, i, t, lambda_=0.95), 0.2, 0.2))


def vespo(x, sg):
    a = by_group(zscores)

    def surrogate(p, i, t):
        log_w = sum(sg[p, i, k] - D.old[p, i, k] for k in range(D.lengths[p, i]))
        power, decay = (2.0, 3.0) if a[p][i] >= 0 else (3.0, 2.0)
        weight = exp(log_w) ** power * exp(decay * (1 - exp(log_w)))
        return weight * a[p][i] * (log_w + x[p, i, t] - sg[p, i, t])

    return token_mean(surrogate)


def squared(lambda_):
    def objective(v, sg):
        return token_mean(lambda p, i, t: (v[p, i, t] - gae(p, i, t, lambda_) - D.values[p, i, t]) ** 2 / 2)

    return objective


def open_reasoner_zero_values(v, sg):
    def worse(p, i, t):
        old, target = D.values[p, i, t], D.rewards[p, i]
        return max((v[p, i, t] - target) ** 2, (clip(v[p, i, t], old - 0.3, old + 0.3) - target) ** 2) / 2

    return token_mean(worse)


def ppo_values(v, sg):
    def worse(p, i, t):
        old = D.values[p, i, t]
        target = gae(p, i, t, lambda_=0.9, gamma=0.95, beta=0.1) + old
        return max((v[p, i, t] - target) ** 2, (clip(v[p, i, t], old - 0.4, old + 0.4) - target) ** 2) / 2

    return token_mean(worse)


# Options that put every slot to work on responses this short; the loops have the same numbers.
OPTIONS = {
    "clip_cov": {"share": 1.0, "lower": 0.1, "upper": 0.8, "clip": 0.3},
    "dapo": {"max_length": 6, "cache": 3},
    "dapo_grpo": {"beta": 0.5},
    "dppo": {"threshold": 0.1, "cap": 1.3},
    "dr_grpo": {"max_length": 7},
    "forking_tokens": {"share": 0.3, "max_length": 6, "cache": 3},
    "gepo": {"sampler_kl": 0.05},
    "gpg": {"norm": 2.0},
    "gspo": {"clip_low": 0.1, "clip_high": 0.15},
    "gspo_token": {"clip_low": 0.1, "clip_high": 0.15},
    "kl_cov": {"share": 0.2, "beta": 0.7},
    "luspo": {"clip_low": 0.1, "clip_high": 0.15},
    "open_reasoner_zero": {"value_clip": 0.3},
    "pass_at_k": {"k": 2},
    "pkpo": {"k": 2},
    "ppo": {"beta": 0.1, "entropy": 0.01, "dual_clip": 1.5, "gamma": 0.95, "lambda_": 0.9, "value_clip": 0.4},
    "reinforce_pp": {"beta": 0.1},
    "reinforce_pp_baseline": {"beta": 0.1},
    "rloo": {"beta": 0.1},
    "scale_rl": {"cap": 1.3},
    "t1": {"beta": 0.1, "entropy": 0.01},
    "vapo": {"alpha": 0.5},
    "vapo_grpo": {"alpha": 0.5, "initial": 0.8, "decay": 2.0},
}
OBJECTIVES = {name: value for name, value in globals().items() if name in BY_NAME}
VALUE_LOSSES = {
    "open_reasoner_zero": open_reasoner_zero_values,
    "ppo": ppo_values,
    "vapo": squared(1.0),
    "vapo_grpo": squared(1.0),
    "vc_ppo": squared(1.0),
}


def slope(f, x, step=1e-6):
    """Central differences, the copy held still."""
    gradient = np.zeros_like(x)
    for index in zip(*np.nonzero(D.mask), strict=True):
        around = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            around.append(f(moved, x))
        gradient[index] = (around[0] - around[1]) / (2 * step)
    return gradient


def dirty(x):
    return np.where(D.mask, x, np.nan)


def rows(x):
    return jnp.asarray(x.reshape(P * G, T))


def batch_of(name):
    rollout = Rollout(
        mask=D.mask,
        behaviour_logp=dirty(D.old),
        rewards=D.rewards,
        ref_logp=dirty(D.ref),
        values=dirty(D.values),
        step_rewards=np.where(D.step_end, D.step_rewards, inf),
        step_end=D.step_end,
        behaviour_entropy=dirty(D.old_entropy),
        teacher_logp=dirty(D.teacher),
        square_sum=dirty(D.squares),
        greedy_rewards=D.greedy,
        reward_parts={"answer": D.rewards, "form": D.form},
    )
    algorithm = BY_NAME[name](**OPTIONS.get(name, {}))
    return algorithm, jax.jit(lambda rollout: prepare(algorithm, rollout, progress=0.25))(rollout)


def test_every_algorithm_has_its_loop():
    assert list(OBJECTIVES) == sorted(OBJECTIVES) == list(BY_NAME)
    assert set(VALUE_LOSSES) == {name for name, factory in BY_NAME.items() if factory().critic is not None}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", BY_NAME)
def test_loss_and_gradient(name):
    algorithm, batch = batch_of(name)
    objective = OBJECTIVES[name]
    others = {"entropy": rows(D.entropy), "teacher_divergence": rows(dirty(D.divergence))}
    descend = jax.jit(jax.value_and_grad(lambda logp, batch: loss(algorithm, logp, batch, **others)[0]))
    value, gradient = descend(rows(dirty(D.x)), batch)
    np.testing.assert_allclose(value, -objective(D.x, D.x), rtol=1e-12)
    np.testing.assert_allclose(gradient.reshape(P, G, T), -slope(objective, D.x), rtol=1e-6, atol=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", VALUE_LOSSES)
def test_value_loss_and_gradient(name):
    algorithm, batch = batch_of(name)
    objective = VALUE_LOSSES[name]
    descend = jax.jit(jax.value_and_grad(lambda values, batch: value_loss(algorithm, values, batch)[0]))
    value, gradient = descend(rows(dirty(D.new_values)), batch)
    np.testing.assert_allclose(value, objective(D.new_values, D.new_values), rtol=1e-12)
    np.testing.assert_allclose(gradient.reshape(P, G, T), slope(objective, D.new_values), rtol=1e-6, atol=1e-9)


def test_the_data_reach_every_branch():
    """Otherwise a loop and a loss could agree by never clipping."""
    ratios = np.exp(D.x - D.old)[D.mask]
    assert (ratios < 0.8).any()
    assert (ratios > 1.5).any()
    assert ((ratios > 1.2) & (ratios < 1.28)).any()
    apart = np.abs(np.exp(D.x) - np.exp(D.old))[D.mask]
    assert (apart > 0.1).any()
    assert (apart < 0.1).any()
    lambdas = [vapo_lambda(p, i, 0.5) for p, i in ROWS]
    assert min(lambdas) == 0
    assert max(lambdas) > 0.5
    assert {overlong(n) for n in D.lengths.ravel()} == {0.0, -1 / 3, -2 / 3, -1.0}
    moved = np.abs(D.new_values - D.values)[D.mask]
    assert (moved < 0.4).any()
    assert (moved > 0.4).any()
    assert D.step_end.sum((1, 2)).min() > 1
