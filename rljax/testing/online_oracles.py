# pyright: basic
"""Oracles of objectives that use a reference policy or a teacher, as loops over responses and tokens.

They have the same arguments as the functions in `rljax.testing.oracles`, where `OBJECTIVES` lists them: the rollout, the policy's
log-probabilities and a function that stops gradients.
"""

from math import exp, log


def _log_ratio(d, p, i):
    """A response's log-ratio of the policy before the update to the reference, summed over its tokens."""
    return sum(d.old_logp[p, i, t] - d.ref_logp[p, i, t] for t in range(d.lengths[p, i]))


def _logp_change(d, x, p, i):
    return sum(x[p, i, t] - d.old_logp[p, i, t] for t in range(d.lengths[p, i]))


def _reference_weight(d, p, i):
    return exp(-_log_ratio(d, p, i)) / sum(exp(-_log_ratio(d, p, j)) for j in range(d.group))


def _online_dpo(d, x, sg, beta=0.7, alpha=0.0):
    total, pairs = 0.0, d.group * (d.group - 1) / 2
    for p in range(d.prompts):
        for w in range(d.group):
            for other in range(d.group):
                if d.rewards[p, w] > d.rewards[p, other]:
                    margin = _log_ratio(d, p, w) - _log_ratio(d, p, other)
                    total += (
                        beta / (1 + exp(beta * margin)) * (_logp_change(d, x, p, w) - _logp_change(d, x, p, other)) / pairs
                    )
        total -= alpha * sum((_reference_weight(d, p, i) - 1 / d.group) * _logp_change(d, x, p, i) for i in range(d.group))
    return total / d.prompts


def _xpo(d, x, sg):
    return _online_dpo(d, x, sg, alpha=0.3)


def _nash_md(d, x, sg):
    total = 0.0
    for p, i in d.rows:
        others = [j for j in range(d.group) if j != i]
        weights = [exp(-0.4 * _log_ratio(d, p, j)) for j in others]
        wins = [1.0 if d.rewards[p, i] > d.rewards[p, j] else 0.5 * (d.rewards[p, i] == d.rewards[p, j]) for j in others]
        win_rate = sum(weight * win for weight, win in zip(weights, wins, strict=True)) / sum(weights)
        for t in range(d.lengths[p, i]):
            later_log_ratio = sum(d.old_logp[p, i, k] - d.ref_logp[p, i, k] for k in range(t, d.lengths[p, i]))
            total += (win_rate - 0.5 - 0.2 * later_log_ratio) * (x[p, i, t] - d.old_logp[p, i, t])
    return total / len(d.rows)


def _a_star_po(d, x, sg):
    """The paper's squared error (β₁ = 0.6, β₂ = 0.3), divided by -2 β₂, minus its value at the policy before the update."""
    total = 0.0
    for p, i in d.rows:
        value = 0.6 * log(sum(_reference_weight(d, p, j) * exp(d.rewards[p, j] / 0.6) for j in range(d.group)))
        before = 0.3 * _log_ratio(d, p, i) - (d.rewards[p, i] - value)
        now = before + 0.3 * _logp_change(d, x, p, i)
        total += (before**2 - now**2) / (2 * 0.3)
    return total / len(d.rows)


def _minillm(d, x, sg):
    total = 0.0
    for p, i in d.rows:
        n = d.lengths[p, i]
        for t in range(n):
            later = [d.teacher_logp[p, i, k] - d.old_logp[p, i, k] for k in range(t + 1, n)]
            a = sum(later) / len(later) if later else 0.0
            ratio = exp(x[p, i, t] - d.old_logp[p, i, t])
            total += min(ratio * a, min(max(ratio, 0.7), 1.3) * a) - d.teacher_divergence[p, i, t]
    return total / len(d.rows)
