# pyright: basic
"""Oracles of the critics' losses, as loops over tokens, written for the hyperparameters in `rljax.testing.oracles.OPTIONS`.

A loss takes a rollout `d`, values `v[p, i, t]` in float64, and a copy `sg` of `v` under stop-gradient. It is to be minimized.
"""

from rljax.testing.oracles import _clip, _gae, _token_mean


def _squared(lambda_):
    def objective(d, v, sg):
        return _token_mean(d, lambda p, i, t: (v[p, i, t] - _gae(d, p, i, t, lambda_) - d.values[p, i, t]) ** 2 / 2)

    return objective


def _open_reasoner_zero_values(d, v, sg):
    def worse(p, i, t):
        old, target = d.values[p, i, t], d.rewards[p, i]
        return max((v[p, i, t] - target) ** 2, (_clip(v[p, i, t], old - 0.3, old + 0.3) - target) ** 2) / 2

    return _token_mean(d, worse)


def _ppo_values(d, v, sg):
    def worse(p, i, t):
        old = d.values[p, i, t]
        target = _gae(d, p, i, t, lambda_=0.9, gamma=0.95, beta=0.1) + old
        return max((v[p, i, t] - target) ** 2, (_clip(v[p, i, t], old - 0.4, old + 0.4) - target) ** 2) / 2

    return _token_mean(d, worse)


VALUE_LOSSES = {
    "open_reasoner_zero": _open_reasoner_zero_values,
    "ppo": _ppo_values,
    "vapo": _squared(1.0),
    "vapo_grpo": _squared(1.0),
    "vc_ppo": _squared(1.0),
}
"""Name of an algorithm with a critic -> the critic's loss."""
