"""A ten-line summary of the claims, shown at the beginning of `rljax claims` and of the page of claims."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

SUMMARY: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "Many updates on a rollout": {
            "cispo": "CISPO learns faster than DAPO's clip",
            "sapo": "SAPO's gate finishes ahead of GRPO's clip",
            "gmpo_stability": "GMPO finishes ahead of GRPO with many updates per rollout",
            "dppo": "DPPO's bound learns more than ratio clipping",
        },
        "Which prompts": {
            "dynamic_sampling": "replacing groups without a signal learns more",
            "difficulty_window": "prompts of intermediate difficulty teach more",
            "group_size": "groups of 8 finish ahead of groups of 2",
        },
        "Baseline and scale within a group": {
            "zscore_rloo": "leave-one-out learns more than z-scores",
            "batch_deviation": "dividing by batch deviation beats dividing by group deviation",
            "rank_outliers": "ranks lose less to outliers than z-scores",
            "hierarchical_kinds": "a baseline per kind of problem beats one per prompt",
        },
        "With or without a critic": {
            "rloo_ppo": "RLOO finishes ahead of PPO",
            "value_pretraining": "a pretrained critic beats one with biased values",
            "lambda_of_length": "a length-adaptive lambda finishes ahead of 0.95",
            "distributional_critic": "a distributional critic beats a scalar one",
        },
        "Length of responses": {
            "length_bias": "wrong responses grow longer under GRPO than under Dr.GRPO",
            "soft_overlong": "a soft punishment of overlong responses finishes ahead of none",
            "length_shaped": "the length-shaped reward spares difficult problems",
        },
        "Entropy": {
            "entropy_term": "an entropy term of 0.01 finishes ahead of none",
            "clip_higher_entropy": "clip-higher keeps the entropy up",
            "clip_cov": "Clip-Cov finishes ahead of GRPO",
        },
        "Distance from the reference": {
            "kl_in_reward": "k1 in the reward finishes ahead of k3 in the loss",
            "k3_gradient": "the gradient of k3 in the loss is biased",
        },
        "A sampler with stale weights or different numerics": {
            "truncated_weights": "truncated importance weights finish ahead of none",
            "masked_weights": "masking extreme weights finishes ahead of capping them",
            "staleness_gepo": "a delay costs GEPO less than GRPO",
            "bounded_ratio": "bounding the ratio finishes ahead of not bounding it",
        },
        "pass@k": {
            "pass_at_k_after_rl": "RL raises pass@1 and lowers pass@256",
            "pkpo_pass_at_k": "training for pass@8 raises it more than training for pass@1",
            "max_rl_pass_at_16": "MaxRL has a better pass@16 than RLOO",
        },
        "Complete recipes": {
            "dapo_ladder": "DAPO's parts help in the order of its table",
            "vapo_parts": "VAPO's parts matter in the order of its table",
            "lite_ppo": "Lite PPO finishes ahead of DAPO",
        },
    }
)
"""Topic -> name of a claim -> the claim in a few words, whether or not it holds; the verdicts are in the results."""
LABELS = ("updates", "prompts", "baseline", "critic", "length", "entropy", "reference", "sampler", "pass@k", "recipes")
"""One word per topic, shown in a terminal."""
SIGNS = MappingProxyType({"holds here": "+", "contradicted": "-", "not seen at this scale": "~", "not decided": "?"})
"""A sign for each verdict."""


def summary_lines(verdicts: Mapping[str, str]) -> Sequence[str]:
    """Return ten lines for a terminal: the claims on each topic, each after the sign of its verdict.

    Args:
        verdicts: claim -> its verdict.

    Example:
        >>> summary_lines({name: "holds here" for claims in SUMMARY.values() for name in claims})[1]
        'prompts   +dynamic_sampling +difficulty_window +group_size'
    """
    return [
        f"{label:<10}{' '.join(f'{SIGNS[verdicts[name]]}{name}' for name in claims)}"
        for label, claims in zip(LABELS, SUMMARY.values(), strict=True)
    ]


def sign_legend() -> str:
    """Return a line that explains the signs."""
    return "  ".join(f"{sign} {verdict}" for verdict, sign in SIGNS.items())
