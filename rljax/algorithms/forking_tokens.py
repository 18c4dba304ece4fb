"""Policy gradient on forking tokens: beyond the 80/20 rule (arXiv:2506.01939)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.algorithms.dapo import dapo
from rljax.ops.token_choice import only_high_entropy


def forking_tokens(
    *,
    share: float = 0.2,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    max_length: int = 20480,
    cache: int = 4096,
    eps: float = 1e-6,
    ddof: int = 1,
) -> Algorithm:
    """Policy gradient on forking tokens (arXiv:2506.01939): DAPO, trained only on the fifth of the tokens with the highest entropy.

    ::

        J = (1/Σ|o_i|) Σ_i Σ_t 1[H_it ≥ τ] min(ρ_it A_i, clip(ρ_it, 1-ε_low, 1+ε_high) A_i)      0 < #correct < G
        A_i = (R_i - mean R) / std R      R_i = r_i + overlong(|o_i|)      τ keeps a fraction `share` of the batch's tokens

    Args:
        share: fraction of the tokens to train on, 0.2 in the paper, which calls it ρ.
        clip_low: ε_low = 0.2, as in DAPO.
        clip_high: ε_high = 0.28, as in DAPO.
        max_length: DAPO's L_max, in tokens.
        cache: DAPO's L_cache, in tokens.
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: as in `dapo`. In addition, the entropy is the sampling policy's and the threshold is per rollout, whereas the
    paper computes both for each batch that it trains on.
    """
    return dapo(clip_low=clip_low, clip_high=clip_high, max_length=max_length, cache=cache, eps=eps, ddof=ddof)._replace(
        bonus=partial(only_high_entropy, share=share)
    )
