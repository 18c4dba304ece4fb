# pyright: basic
"""Every algorithm's objective as loops over prompts, responses and tokens, written from its paper without this library's code.

An objective takes a rollout `d`, log-probabilities `x[p, i, t]` in float64, and a copy `sg` of `x` under stop-gradient. Objectives
are maximized; for critic losses, see `rljax.testing.value_oracles`. Every response must have at least one token, begin
in column 0 and have no gaps (see `Example.compact` of `rljax.testing.example`).

The loops are written for the hyperparameters in `OPTIONS`, which are chosen so that every part of an algorithm has an effect, even
on responses of six tokens.
"""

from itertools import combinations
from math import exp, log, sqrt

import numpy as np

from rljax.testing.online_oracles import _a_star_po, _minillm, _nash_md, _online_dpo, _xpo


def _tokens(d, rows=None):
    return [(p, i, t) for p, i in (d.rows if rows is None else rows) for t in range(d.lengths[p, i])]


def _token_mean(d, f, rows=None):
    counted = _tokens(d, rows)
    return sum(f(*token) for token in counted) / max(len(counted), 1)


def _sequence_mean(d, f, rows=None):
    total, rows = 0.0, d.rows if rows is None else rows
    for p, i in rows:
        total += sum(f(p, i, t) for t in range(d.lengths[p, i])) / max(d.lengths[p, i], 1)
    return total / max(len(rows), 1)


def _clip(number, low, high):
    return min(max(number, low), high)


def _pessimistic(ratio, advantage, low, high):
    return min(ratio * advantage, _clip(ratio, 1 - low, 1 + high) * advantage)


def _rho(d, x, p, i, t):
    return exp(x[p, i, t] - d.old_logp[p, i, t])


def _centered(rewards):
    return [r - sum(rewards) / len(rewards) for r in rewards]


def _zscores(rewards, eps=1e-6, ddof=1):
    deviations = _centered(rewards)
    return [a / (sqrt(sum(b * b for b in deviations) / (len(deviations) - ddof)) + eps) for a in deviations]


def _minus_mean_of_others(rewards):
    return [r - (sum(rewards) - r) / (len(rewards) - 1) for r in rewards]


def _by_group(d, transform, rewards=None):
    return [transform(list(group)) for group in (d.rewards if rewards is None else rewards)]


def _normalize_over_batch(d, advantage, eps=1e-8):
    all_values = [advantage(*token) for token in _tokens(d)]
    mean = sum(all_values) / len(all_values)
    std = sqrt(sum((a - mean) ** 2 for a in all_values) / len(all_values))
    return lambda p, i, t: (advantage(p, i, t) - mean) / (std + eps)


def _k1(d, x, p, i, t):
    return x[p, i, t] - d.ref_logp[p, i, t]


def _k3(d, x, p, i, t):
    log_ratio = d.ref_logp[p, i, t] - x[p, i, t]
    return exp(log_ratio) - log_ratio - 1


def _token_reward(d, p, i, t, beta=0.0):
    last = t == d.lengths[p, i] - 1
    return (d.rewards[p, i] if last else 0.0) - (beta * _k1(d, d.old_logp, p, i, t) if beta else 0.0)


def _gae(d, p, i, t, lambda_, gamma=1.0, beta=0.0):
    total, n = 0.0, d.lengths[p, i]
    for k in range(t, n):
        next_value = d.values[p, i, k + 1] if k + 1 < n else 0.0
        total += (gamma * lambda_) ** (k - t) * (_token_reward(d, p, i, k, beta) + gamma * next_value - d.values[p, i, k])
    return total


def _vapo_lambda(d, p, i, alpha):
    return _clip(1 - 1 / (alpha * d.lengths[p, i]), 0, 1)


def _positive_nll(d, x):
    right = [row for row in d.rows if d.rewards[row] > 0]
    return sum(-x[token] for token in _tokens(d, right)) / max(len(_tokens(d, right)), 1)


def _cispo(d, x, sg):
    a = _by_group(d, _zscores)
    return _token_mean(
        d, lambda p, i, t: _clip(_rho(d, sg, p, i, t), 0, 1.28) * a[p][i] * (x[p, i, t] - d.old_logp[p, i, t])
    )


def _covariance(d, a):
    """Each token's contribution to the rollout's covariance of log-probability and advantage, before the update."""
    mean_logp = _token_mean(d, lambda p, i, t: d.old_logp[p, i, t])
    mean_advantage = _token_mean(d, lambda p, i, t: a[p][i])
    return {(p, i, t): (d.old_logp[p, i, t] - mean_logp) * (a[p][i] - mean_advantage) for p, i, t in _tokens(d)}


def _clip_cov(d, x, sg):
    a = _by_group(d, _zscores)
    covariance = _covariance(d, a)

    def surrogate(p, i, t):
        return 0.0 if 0.1 < covariance[p, i, t] < 0.8 else _pessimistic(_rho(d, x, p, i, t), a[p][i], 0.3, 0.3)

    return _token_mean(d, surrogate)


def _overlong(length, longest=6, cache=3):
    if length <= longest - cache:
        return 0.0
    return (longest - cache - length) / cache if length <= longest else -1.0


def _dapo(d, x, sg):
    shaped = [[d.rewards[p, i] + _overlong(d.lengths[p, i]) for i in range(d.group)] for p in range(d.prompts)]
    a = _by_group(d, _zscores, shaped)
    return _token_mean(d, lambda p, i, t: _pessimistic(_rho(d, x, p, i, t), a[p][i], 0.2, 0.28), d.mixed)


def _dapo_grpo(d, x, sg):
    a = _by_group(d, _zscores)
    mean_entropy = _token_mean(d, lambda p, i, t: d.behaviour_entropy[p, i, t], d.mixed)

    def surrogate(p, i, t):
        return _pessimistic(_rho(d, x, p, i, t), a[p][i] + 0.5 * (d.behaviour_entropy[p, i, t] - mean_entropy), 0.2, 0.28)

    return _sequence_mean(d, surrogate, d.mixed)


def _deepseek_v32(d, x, sg):
    a = _by_group(d, _centered)

    def kept(p, i):
        log_ratios = [d.sampled_logp[p, i, t] - sg[p, i, t] for t in range(d.lengths[p, i])]
        return not (a[p][i] < 0 and sum(log_ratios) / len(log_ratios) > 0.05)

    def objective(p, i, t):
        ratio = exp(x[p, i, t] - d.sampled_logp[p, i, t])
        return kept(p, i) * _pessimistic(ratio, a[p][i], 0.2, 0.2) - 0.5 * ratio * _k3(d, x, p, i, t)

    return _sequence_mean(d, objective)


def _dppo(d, x, sg):
    a = _by_group(d, _centered)

    def surrogate(p, i, t):
        probability, old = exp(sg[p, i, t]), exp(d.sampled_logp[p, i, t])
        outward = (a[p][i] > 0 and probability > old) or (a[p][i] < 0 and probability < old)
        if outward and abs(probability - old) > 0.1:
            return 0.0
        return min(probability / old, 1.3) * a[p][i] * (x[p, i, t] - d.sampled_logp[p, i, t])

    return _token_mean(d, surrogate)


def _dr_grpo(d, x, sg):
    a = _by_group(d, _centered)
    return sum(_pessimistic(_rho(d, x, p, i, t), a[p][i], 0.2, 0.2) / 7 for p, i, t in _tokens(d)) / len(d.rows)


def _forking_tokens(d, x, sg):
    shaped = [[d.rewards[p, i] + _overlong(d.lengths[p, i]) for i in range(d.group)] for p in range(d.prompts)]
    a = _by_group(d, _zscores, shaped)
    entropies = sorted((d.behaviour_entropy[token] for token in _tokens(d, d.mixed)), reverse=True)
    threshold = entropies[round(0.3 * len(entropies)) - 1]

    def surrogate(p, i, t):
        return _pessimistic(_rho(d, x, p, i, t), a[p][i], 0.2, 0.28) if d.behaviour_entropy[p, i, t] >= threshold else 0.0

    return _token_mean(d, surrogate, d.mixed)


def _gdpo(d, x, sg):
    each = [_by_group(d, _zscores), _by_group(d, _zscores, d.form)]
    total = [[each[0][p][i] + each[1][p][i] for i in range(d.group)] for p in range(d.prompts)]
    all_values = [total[p][i] for p, i in d.rows]
    mean, std = sum(all_values) / len(all_values), _deviation(all_values)
    return _sequence_mean(
        d, lambda p, i, t: _pessimistic(_rho(d, x, p, i, t), (total[p][i] - mean) / (std + 1e-6), 0.2, 0.2)
    )


def _gepo(d, x, sg):
    a, total = _by_group(d, _centered), 0.0
    for p in range(d.prompts):
        q, w = [], []
        for i in range(d.group):
            n = d.lengths[p, i]
            q.append(exp(sum(d.old_logp[p, i, t] for t in range(n)) / n))
            w.append(exp(sum(x[p, i, t] for t in range(n)) / n))
        expected = sum(b * b for b in q) / sum(q)
        total += sum(_pessimistic(w[i] / expected, a[p][i], 0.2, 0.2) for i in range(d.group))
    return total / len(d.rows) - 0.05 * _sequence_mean(
        d, lambda p, i, t: 1 / _rho(d, x, p, i, t) + log(_rho(d, x, p, i, t)) - 1
    )


def _gkd(d, x, sg):
    return -_sequence_mean(d, lambda p, i, t: d.teacher_divergence[p, i, t])


def _gmpo(d, x, sg):
    a, total = _by_group(d, _zscores), 0.0
    for p, i in d.rows:
        n, s = d.lengths[p, i], np.sign(a[p][i])
        logs = [s * log(_rho(d, x, p, i, t)) for t in range(n)]
        total += a[p][i] * exp(sum(s * min(y, _clip(y, -0.4, 0.4)) for y in logs) / n)
    return total / len(d.rows)


def _gpg(d, x, sg):
    a = _by_group(d, _centered)
    return 3 / (3 - 1) * _token_mean(d, lambda p, i, t: a[p][i] / 2 * (x[p, i, t] - d.old_logp[p, i, t]))


def _grpo(d, x, sg):
    a = _by_group(d, _zscores)
    return _sequence_mean(
        d, lambda p, i, t: _pessimistic(_rho(d, x, p, i, t), a[p][i], 0.2, 0.2) - 0.04 * _k3(d, x, p, i, t)
    )


def _grpo_process(d, x, sg):
    a = {}
    for p in range(d.prompts):
        steps = [(i, t) for i in range(d.group) for t in range(d.length) if d.step_end[p, i, t]]
        normalized = dict(zip(steps, _zscores([d.step_rewards[p, i, t] for i, t in steps]), strict=True))
        for i in range(d.group):
            for t in range(d.length):
                a[p, i, t] = sum(normalized[j, end] for j, end in steps if j == i and end >= t)
    return _sequence_mean(
        d, lambda p, i, t: _pessimistic(_rho(d, x, p, i, t), a[p, i, t], 0.2, 0.2) - 0.04 * _k3(d, x, p, i, t)
    )


def _mt_grpo(d, x, sg):
    a = {}
    for p in range(d.prompts):
        ends = [[t for t in range(d.length) if d.step_end[p, i, t]] for i in range(d.group)]
        credit = {}
        for turn in range(max(map(len, ends))):
            present = [i for i in range(d.group) if turn < len(ends[i])]
            rewards = [d.step_rewards[p, i, ends[i][turn]] for i in present]
            scores = _zscores(rewards) if len(rewards) > 1 else [0.0]
            credit |= {(i, turn): score for i, score in zip(present, scores, strict=True)}
        for i in range(d.group):
            for t in range(d.length):
                a[p, i, t] = sum(credit[i, turn] for turn, end in enumerate(ends[i]) if end >= t)
    return _sequence_mean(
        d, lambda p, i, t: _pessimistic(_rho(d, x, p, i, t), a[p, i, t], 0.2, 0.2) - 0.04 * _k3(d, x, p, i, t)
    )


def _sequence_ratio(d, x, p, i):
    n = d.lengths[p, i]
    return exp(sum(x[p, i, t] - d.old_logp[p, i, t] for t in range(n)) / n)


def _gspo(d, x, sg):
    a = _by_group(d, _zscores)
    return sum(_pessimistic(_sequence_ratio(d, x, p, i), a[p][i], 0.1, 0.15) for p, i in d.rows) / len(d.rows)


def _gspo_token(d, x, sg):
    a = _by_group(d, _zscores)

    def surrogate(p, i, t):
        return _pessimistic(_sequence_ratio(d, sg, p, i) * exp(x[p, i, t]) / exp(sg[p, i, t]), a[p][i], 0.1, 0.15)

    return _sequence_mean(d, surrogate)


def _kimi_k15(d, x, sg):
    a, total = _by_group(d, _centered), 0.0
    for p, i in d.rows:
        log_ratio = sum(x[p, i, t] - d.old_logp[p, i, t] for t in range(d.lengths[p, i]))
        total += a[p][i] * log_ratio - 0.3 / 2 * log_ratio**2
    return total / len(d.rows)


def _kl_cov(d, x, sg):
    a = _by_group(d, _zscores)
    covariance = _covariance(d, a)
    highest = sorted(covariance.values(), reverse=True)[: int(0.2 * len(covariance))]

    def surrogate(p, i, t):
        penalty = 0.7 * abs(x[p, i, t] - d.old_logp[p, i, t]) if covariance[p, i, t] in highest else 0.0
        return _rho(d, x, p, i, t) * a[p][i] - penalty

    return _token_mean(d, surrogate)


def _deviation(numbers):
    mean = sum(numbers) / len(numbers)
    return sqrt(sum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1))


def _lite_ppo(d, x, sg):
    a, std = _by_group(d, _centered), _deviation([d.rewards[row] for row in d.rows])
    return _token_mean(d, lambda p, i, t: _pessimistic(_rho(d, x, p, i, t), a[p][i] / (std + 1e-6), 0.2, 0.2))


def _luspo(d, x, sg):
    a, total = _by_group(d, _zscores), 0.0
    for p, i in d.rows:
        total += d.lengths[p, i] * _pessimistic(_sequence_ratio(d, x, p, i), a[p][i], 0.1, 0.15)
    return total / len(d.rows)


def _response_reinforce(d, x, a):
    """REINFORCE that treats each response as one action."""
    return sum(a[p][i] * (x[p, i, t] - d.old_logp[p, i, t]) for p, i, t in _tokens(d)) / len(d.rows)


def _max_rl(d, x, sg):
    return _response_reinforce(d, x, _by_group(d, lambda r: [(one * len(r) - sum(r)) / sum(r) for one in r]))


def _on_policy_distillation(d, x, sg):
    gains = [(d.teacher_logp[p, i, t] - d.old_logp[p, i, t]) * (x[p, i, t] - d.old_logp[p, i, t]) for p, i, t in _tokens(d)]
    return sum(gains) / len(d.rows)


def _open_reasoner_zero(d, x, sg):
    a = _normalize_over_batch(d, lambda p, i, t: _gae(d, p, i, t, lambda_=1.0))
    return _token_mean(d, lambda p, i, t: _pessimistic(_rho(d, x, p, i, t), a(p, i, t), 0.2, 0.2))


def _opo(d, x, sg):
    a = []
    for p in range(d.prompts):
        total = sum(d.lengths[p, i] * d.rewards[p, i] for i in range(d.group))
        a.append([d.rewards[p, i] - total / sum(d.lengths[p]) for i in range(d.group)])
    return _response_reinforce(d, x, a)


def _otb(d, x, sg):
    def energy(p, i, t):
        return sum(max(1 - 2 * exp(d.old_logp[p, i, k]) + d.square_sum[p, i, k], 0) for k in range(t + 1))

    total = 0.0
    for p, i, t in _tokens(d):
        rows_at_t = [j for j in range(d.group) if t < d.lengths[p, j]]
        baseline = sum(energy(p, j, t) * d.rewards[p, j] for j in rows_at_t) / sum(energy(p, j, t) for j in rows_at_t)
        total += (d.rewards[p, i] - baseline) * (x[p, i, t] - d.old_logp[p, i, t])
    return total / len(d.rows)


def _best_of_two(rewards):
    """For each response: the z-score of a pair's best reward, averaged over the pairs that contain the response."""
    pairs = list(combinations(range(len(rewards)), 2))
    best = [max(rewards[i], rewards[j]) for i, j in pairs]
    mean = sum(best) / len(best)
    std = sqrt(sum((b - mean) ** 2 for b in best) / len(best))
    mine = [[b for pair, b in zip(pairs, best, strict=True) if i in pair] for i in range(len(rewards))]
    return [(sum(b) / len(b) - mean) / (std + 1e-6) for b in mine]


def _pass_at_k(d, x, sg):
    a = _by_group(d, _best_of_two)
    return _sequence_mean(d, lambda p, i, t: _pessimistic(_rho(d, x, p, i, t), a[p][i], 0.2, 0.2))


def _pkpo_rewards(rewards):
    """Return n times PKPO's transformed reward s_i of each response, for k = 2; n is the number of responses."""
    pairs = list(combinations(range(len(rewards)), 2))
    gains = [
        sum(max(rewards[a], rewards[b]) - rewards[a + b - i] for a, b in pairs if i in (a, b)) for i in range(len(rewards))
    ]
    return [len(rewards) * gain / len(pairs) for gain in gains]


def _pkpo(d, x, sg):
    return _response_reinforce(d, x, _by_group(d, _pkpo_rewards))


def _ppo(d, x, sg):
    def surrogate(p, i, t):
        a = _gae(d, p, i, t, lambda_=0.9, gamma=0.95, beta=0.1)
        value = _pessimistic(_rho(d, x, p, i, t), a, 0.2, 0.2)
        return (max(value, 1.5 * a) if a < 0 else value) + 0.01 * d.entropy[p, i, t]

    return _token_mean(d, surrogate)


def _reinforce_pp(d, x, sg):
    a = _normalize_over_batch(
        d, lambda p, i, t: d.rewards[p, i] - 0.1 * sum(_k1(d, d.old_logp, p, i, k) for k in range(t, d.lengths[p, i]))
    )
    return _token_mean(d, lambda p, i, t: _pessimistic(_rho(d, x, p, i, t), a(p, i, t), 0.2, 0.2))


def _reinforce_pp_baseline(d, x, sg):
    centered_rewards = _by_group(d, _centered)
    a = _normalize_over_batch(d, lambda p, i, t: centered_rewards[p][i])
    return _token_mean(
        d, lambda p, i, t: _pessimistic(_rho(d, x, p, i, t), a(p, i, t), 0.2, 0.2) - 0.1 * _k1(d, x, p, i, t) ** 2 / 2
    )


def _remax(d, x, sg):
    return _response_reinforce(
        d, x, [[d.rewards[p, i] - d.greedy_rewards[p] for i in range(d.group)] for p in range(d.prompts)]
    )


def _rloo(d, x, sg):
    penalized = [
        [sum(_token_reward(d, p, i, t, beta=0.1) for t in range(d.lengths[p, i])) for i in range(d.group)]
        for p in range(d.prompts)
    ]
    a = _by_group(d, _minus_mean_of_others, penalized)
    return sum(a[p][i] * (x[p, i, t] - d.old_logp[p, i, t]) for p, i, t in _tokens(d)) / len(d.rows)


def _sapo(d, x, sg):
    a = _by_group(d, _zscores)

    def surrogate(p, i, t):
        tau = 1.0 if a[p][i] > 0 else 1.05
        return 4 / tau / (1 + exp(-tau * (_rho(d, x, p, i, t) - 1))) * a[p][i]

    return _sequence_mean(d, surrogate)


def _scale_rl(d, x, sg):
    a, total = _by_group(d, _centered), 0.0
    std = _deviation([a[p][i] for p, i in d.rows])
    groups = sorted({p for p, _ in d.mixed})
    for group in groups:
        rows = [(group, i) for i in range(d.group)]

        def surrogate(p, i, t):
            ratio = exp(sg[p, i, t] - d.sampled_logp[p, i, t])
            return min(ratio, 1.3) * a[p][i] / (std + 1e-6) * (x[p, i, t] - d.sampled_logp[p, i, t])

        total += _token_mean(d, surrogate, rows) / len(groups)
    return total


def _t1(d, x, sg):
    mean_kl = _token_mean(d, lambda p, i, t: _k1(d, d.old_logp, p, i, t))
    penalized = [
        [
            d.rewards[p, i] - 0.1 * sum(_k1(d, d.old_logp, p, i, t) - mean_kl for t in range(d.lengths[p, i]))
            for i in range(d.group)
        ]
        for p in range(d.prompts)
    ]
    a = _by_group(d, _minus_mean_of_others, penalized)
    return sum(a[p][i] * (x[p, i, t] - d.old_logp[p, i, t]) + 0.01 * d.entropy[p, i, t] for p, i, t in _tokens(d)) / len(
        d.rows
    )


def _vapo(d, x, sg):
    def surrogate(p, i, t):
        return _pessimistic(_rho(d, x, p, i, t), _gae(d, p, i, t, lambda_=_vapo_lambda(d, p, i, alpha=0.5)), 0.2, 0.28)

    return _token_mean(d, surrogate) - 0.1 * _positive_nll(d, x)


def _vapo_grpo(d, x, sg):
    weight, group = 0.8 * exp(-2 * 0.25), _by_group(d, _zscores)

    def surrogate(p, i, t):
        critic = _gae(d, p, i, t, lambda_=_vapo_lambda(d, p, i, alpha=0.5))
        return _pessimistic(_rho(d, x, p, i, t), weight * critic + (1 - weight) * group[p][i], 0.2, 0.28)

    return _token_mean(d, surrogate) - 0.1 * _positive_nll(d, x)


def _vc_ppo(d, x, sg):
    return _token_mean(d, lambda p, i, t: _pessimistic(_rho(d, x, p, i, t), _gae(d, p, i, t, lambda_=0.95), 0.2, 0.2))


def _vespo(d, x, sg):
    a = _by_group(d, _zscores)

    def surrogate(p, i, t):
        log_w = sum(sg[p, i, k] - d.sampled_logp[p, i, k] for k in range(d.lengths[p, i]))
        power, decay = (2.0, 3.0) if a[p][i] >= 0 else (3.0, 2.0)
        weight = exp(log_w) ** power * exp(decay * (1 - exp(log_w)))
        return weight * a[p][i] * (log_w + x[p, i, t] - sg[p, i, t])

    return _token_mean(d, surrogate)


OPTIONS = {
    "a_star_po": {"beta1": 0.6, "beta2": 0.3},
    "clip_cov": {"share": 1.0, "lower": 0.1, "upper": 0.8, "clip": 0.3},
    "dapo": {"max_length": 6, "cache": 3},
    "dapo_grpo": {"beta": 0.5},
    "deepseek_v32": {"beta": 0.5, "delta": 0.05},
    "dppo": {"threshold": 0.1, "cap": 1.3},
    "dr_grpo": {"max_length": 7},
    "forking_tokens": {"share": 0.3, "max_length": 6, "cache": 3},
    "gepo": {"sampler_kl": 0.05},
    "gpg": {"norm": 2.0},
    "gspo": {"clip_low": 0.1, "clip_high": 0.15},
    "gspo_token": {"clip_low": 0.1, "clip_high": 0.15},
    "kimi_k15": {"tau": 0.3},
    "kl_cov": {"share": 0.2, "beta": 0.7},
    "luspo": {"clip_low": 0.1, "clip_high": 0.15},
    "minillm": {"clip": 0.3},
    "nash_md": {"mixture": 0.4, "tau": 0.2},
    "online_dpo": {"beta": 0.7},
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
    "xpo": {"beta": 0.7, "alpha": 0.3},
}
"""Name of an algorithm -> the hyperparameters of its oracle that differ from the algorithm's defaults."""
OBJECTIVES = {
    "a_star_po": _a_star_po,
    "cispo": _cispo,
    "clip_cov": _clip_cov,
    "dapo": _dapo,
    "dapo_grpo": _dapo_grpo,
    "deepseek_v32": _deepseek_v32,
    "dppo": _dppo,
    "dr_grpo": _dr_grpo,
    "forking_tokens": _forking_tokens,
    "gdpo": _gdpo,
    "gepo": _gepo,
    "gkd": _gkd,
    "gmpo": _gmpo,
    "gpg": _gpg,
    "grpo": _grpo,
    "grpo_process": _grpo_process,
    "gspo": _gspo,
    "gspo_token": _gspo_token,
    "kimi_k15": _kimi_k15,
    "kl_cov": _kl_cov,
    "lite_ppo": _lite_ppo,
    "luspo": _luspo,
    "max_rl": _max_rl,
    "minillm": _minillm,
    "mt_grpo": _mt_grpo,
    "nash_md": _nash_md,
    "on_policy_distillation": _on_policy_distillation,
    "online_dpo": _online_dpo,
    "open_reasoner_zero": _open_reasoner_zero,
    "opo": _opo,
    "otb": _otb,
    "pass_at_k": _pass_at_k,
    "pkpo": _pkpo,
    "ppo": _ppo,
    "reinforce_pp": _reinforce_pp,
    "reinforce_pp_baseline": _reinforce_pp_baseline,
    "remax": _remax,
    "rloo": _rloo,
    "sapo": _sapo,
    "scale_rl": _scale_rl,
    "t1": _t1,
    "vapo": _vapo,
    "vapo_grpo": _vapo_grpo,
    "vc_ppo": _vc_ppo,
    "vespo": _vespo,
    "xpo": _xpo,
}
"""Name of an algorithm -> its objective."""
