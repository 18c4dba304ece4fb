"""Properties that every equation has, tested with one legal call per equation.

Gradients with respect to real arguments match finite differences. A bad argument raises a ValueError that names the argument, even
while tracing if the shape alone is wrong. Compiled, mapped over another axis or in half precision, the results are the same.
"""

import inspect
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from rljax.book.equations import public_ops
from rljax.ops.unpublished.reward_history import empty_history
from rljax.tracking.phase_times import watch_compilation

pytestmark = pytest.mark.usefixtures("without_type_checks")

OPS = {f"{op.__module__.removeprefix('rljax.ops.')}.{op.__name__}": op for op in public_ops()}
WITHOUT_ARRAYS = {"categorical.uniform_support", "unpublished.reward_history.empty_history"}

RNG = np.random.default_rng(0)
X, Y, Z = RNG.uniform(-2.0, -0.5, (3, 2, 2, 3)).astype(np.float32)  # [P, G, T]
MASK = np.array([[[1, 1, 1], [1, 0, 0]], [[1, 0, 1], [0, 1, 1]]], bool)
REWARDS = np.array([[1.03, 0.04], [0.47, 0.23]], np.float32)
RATES = np.array([[0.93, 0.04], [0.47, 0.23]], np.float32)
VERDICTS = np.array([[True, False], [True, True]])
LENGTHS = np.array([3.0, 5.0, 9.0], np.float32)
SUPPORT = np.array([-2.0, -1.0, 0.0], np.float32)
HISTORY, IDS = empty_history(2, 2), np.array([0, 1])
PROBS = RNG.dirichlet(np.ones(3), (2, 2)).astype(np.float32)
FOUR = {"chosen": X, "rejected": Y, "ref_chosen": Z, "ref_rejected": X - Y}
OFFSET = {"gamma": 0.9, "lambda_base": 0.95, "alpha": 0.1, "max_length": 3.0}
LAMBDA = {"lambda_": 0.95, "bootstrap": REWARDS}
PAIR = {"policy_logp": X, "behaviour_logp": Y, "mask": MASK}
COMPARED = {"rewards": REWARDS, "log_ratio": X[..., 0], "valid": VERDICTS}
LENGTH = {"target": 4.0, "threshold": 0.5, "alpha": 0.1, "beta": 0.1}

# Equation -> the arguments of a legal call, by name.
CALLS = {
    "categorical.two_hot": {"target": REWARDS - 1.5, "support": SUPPORT},
    "categorical.hl_gauss": {"target": REWARDS - 1.5, "support": SUPPORT, "sigma_ratio": 0.75},
    "categorical.c51_projection": {"rewards": REWARDS - 1.5, "probs": PROBS, "support": SUPPORT, "discount": 0.5},
    "categorical.categorical_mean": {"probs": PROBS, "support": SUPPORT},
    "categorical.categorical_mean_of_logits": {"logits": X, "support": SUPPORT},
    "categorical.categorical_cross_entropy": {"logits": X, "target_probs": PROBS, "mask": MASK[..., 0]},
    "distillation.generalized_jsd": {"logits": X, "teacher_logits": Y, "beta": 0.3},
    "distillation.sorted_probability_distance": {"logits": X, "teacher_logits": Y},
    "distillation.matched_vocabulary_distance": {
        **{"logits": X, "teacher_logits": Y, "beta": 0.3},
        **{"matched": np.array([0, 2]), "teacher_matched": np.array([1, 0])},
    },
    "distillation.teacher_log_ratio": {"logp": X, "teacher_logp": Y, "mask": MASK},
    "distillation.mean_later_log_ratio": {"logp": X, "teacher_logp": Y, "mask": MASK},
    "online_preference.online_dpo_credit": {**COMPARED, "beta": 0.5},
    "online_preference.xpo_credit": {**COMPARED, "beta": 0.5, "alpha": 0.3},
    "online_preference.reference_weights": COMPARED,
    "online_preference.mixture_win_rate": {**COMPARED, "mixture": 0.4},
    "online_preference.optimal_value": {**COMPARED, "beta": 0.5},
    "divergence.k1": {"logp": X, "ref_logp": Y},
    "divergence.k2": {"logp": X, "ref_logp": Y},
    "divergence.k3": {"logp": X, "ref_logp": Y},
    "divergence.importance_weighted_k3": {"logp": X, "behaviour_logp": Y, "ref_logp": Z},
    "divergence.exact_kl": {"logits": X, "ref_logits": Y},
    "divergence.entropy": {"logits": X},
    "divergence.kl_in_reward": {"rewards": Z, "logp": X, "ref_logp": Y, "mask": MASK, "beta": 0.1},
    "divergence.batch_normalized_kl": {"logp": X, "ref_logp": Y, "mask": MASK},
    "divergence.ema_update": {"reference": X, "params": Y, "rate": 0.1},
    "gae.td_errors": {"rewards": X, "values": Y, "mask": MASK, "gamma": 0.9, "bootstrap": REWARDS},
    "gae.gae": {"rewards": X, "values": Y, "mask": MASK, "gamma": 0.9, **LAMBDA},
    "gae.monte_carlo_returns": {"rewards": X, "mask": MASK, "gamma": 0.9, "bootstrap": REWARDS},
    "gae.lambda_returns": {"rewards": X, "values": Y, "mask": MASK, "gamma": 0.9, **LAMBDA},
    "gae.decoupled_gae": {
        **{"rewards": X, "values": Y, "mask": MASK, "gamma": 0.9, "bootstrap": REWARDS},
        **{"policy_lambda": 0.95, "value_lambda": 1.0},
    },
    "gae.length_adaptive_lambda": {"lengths": LENGTHS, "alpha": 0.5},
    "gae.rewards_at_last_token": {"rewards": REWARDS, "mask": MASK},
    "group.group_centered": {"rewards": REWARDS, "valid": VERDICTS},
    "group.group_normalized": {"rewards": REWARDS, "eps": 1e-6, "ddof": 1, "valid": VERDICTS},
    "group.leave_one_out": {"rewards": REWARDS, "valid": VERDICTS},
    "baseline.soft_centered": {"rewards": REWARDS, "beta": 0.5, "valid": VERDICTS},
    "group.mean_normalized": {"rewards": REWARDS, "eps": 0.0, "valid": VERDICTS},
    "pass_at_k.pass_at_k_credit": {"rewards": REWARDS, "k": 2, "valid": VERDICTS},
    "pass_at_k.pass_at_k_leave_one_out": {"rewards": REWARDS, "k": 1, "valid": VERDICTS},
    "pass_at_k.pass_at_k_marginal": {"rewards": REWARDS, "k": 2, "valid": VERDICTS},
    "pass_at_k.pass_at_k_normalized": {"rewards": REWARDS, "k": 1, "threshold": 0.3, "eps": 1e-6, "valid": VERDICTS},
    "baseline.length_weighted_centered": {"rewards": REWARDS, "lengths": 10 * RATES, "valid": VERDICTS},
    "baseline.length_weighted_returns": {"token_rewards": X, "mask": MASK},
    "baseline.greedy_centered": {"rewards": REWARDS, "greedy_reward": RATES[:, 0]},
    "baseline.optimal_token_baseline": {"returns": X, "logp": Y, "square_sum": -Z / 4, "mask": MASK, "importance": -Y},
    "unpublished.group_baseline.weighted_centered": {"rewards": REWARDS, "weights": RATES, "valid": VERDICTS},
    "unpublished.group_baseline.length_quality": {"lengths": LENGTHS},
    "unpublished.group_baseline.confidence_quality": {"logp": X, "mask": MASK},
    "unpublished.group_baseline.reliability_quality": {"scores": X, "floor": 0.5, "valid": MASK},
    "unpublished.group_baseline.rank_based": {"rewards": REWARDS, "valid": VERDICTS},
    "group.process_normalized": {"step_rewards": X, "step_end": MASK, "eps": 1e-6, "ddof": 1},
    "group.turn_normalized": {"step_rewards": X, "step_end": MASK, "discount": 0.5, "eps": 1e-6, "ddof": 1},
    "unpublished.reward_history.push_history": {
        "history": HISTORY,
        "prompt_ids": IDS,
        "rewards": REWARDS,
        "valid": VERDICTS,
    },
    "unpublished.reward_history.join_history": {
        "history": HISTORY,
        "prompt_ids": IDS,
        "rewards": REWARDS,
        "valid": VERDICTS,
    },
    "unpublished.reward_history.temporal_advantage": {
        "history": HISTORY,
        "prompt_ids": IDS,
        "rewards": REWARDS,
        "valid": VERDICTS,
    },
    "unpublished.group_baseline.hierarchical": {"rewards": REWARDS, "types": IDS, "local_weight": 0.7, "valid": VERDICTS},
    "batch.batch_normalized": {"advantage": X, "mask": MASK, "eps": 1e-8, "ddof": 0},
    "batch.batch_normalized_rewards": {"rewards": REWARDS, "eps": 1e-8, "ddof": 0, "valid": VERDICTS},
    "batch.centered_over_reward_std": {"rewards": REWARDS, "eps": 1e-6, "ddof": 1, "valid": VERDICTS},
    "batch.centered_over_advantage_std": {"rewards": REWARDS, "eps": 1e-6, "ddof": 1, "valid": VERDICTS},
    "batch.decoupled_normalized": {"scores": X, "weights": LENGTHS, "eps": 1e-6, "ddof": 1, "valid": MASK},
    "batch.gpg_scale": {"rewards": REWARDS, "valid": VERDICTS},
    "unpublished.mixture.mix_advantages": {"first": X, "second": Y, "weight": 0.5},
    "unpublished.mixture.with_exploration_bonus": {"advantage": X, "bonus": Y, "beta": 0.1},
    "unpublished.mixture.entropy_bonus": {"entropy": X, "mask": MASK},
    "masked.zero_outside": {"x": X, "mask": MASK},
    "masked.masked_sum": {"x": X, "mask": MASK},
    "masked.masked_mean": {"x": X, "mask": MASK},
    "masked.count_tokens": {"mask": MASK},
    "masked.masked_centered": {"x": X, "mask": MASK},
    "masked.masked_normalized": {"x": X, "mask": MASK, "eps": 0.0, "ddof": 0},
    "masked.group_members": {"rewards": REWARDS, "valid": VERDICTS},
    "unpublished.offset_gae.offset_decayed_gae": {"td": X, "mask": MASK, **OFFSET},
    "unpublished.offset_gae.complexity_weighted_gae": {
        **{"td": X, "complexity": Y, "mask": MASK, **OFFSET},
        **{"beta": 0.1, "max_complexity": 2.0, "chunk": 2},
    },
    "off_policy.whole_response_token_log_ratio": {"logp": X, "old_logp": Y, "mask": MASK},
    "off_policy.gamma_weighted": {
        **{"log_ratio": X / 4, "advantage": Y, "power_positive": 2.0, "decay_positive": 3.0},
        **{"power_negative": 3.0, "decay_negative": 2.0},
    },
    "off_policy.binary_total_variation": {"logp": X, "old_logp": Y},
    "off_policy.binary_kl": {"logp": X, "old_logp": Y},
    "off_policy.in_trust_region": {"log_ratio": X, "advantage": Y, "divergence": -Z, "threshold": 0.2},
    "preference.bradley_terry_loss": {"chosen": X, "rejected": Y, "margin": 0.1},
    "process_reward.process_reward_loss": {"logits": X, "labels": Y, "step_end": MASK},
    "direct_preference.implicit_reward": {"logp": X, "ref_logp": Y, "beta": 0.1},
    "direct_preference.dpo_loss": {**FOUR, "beta": 0.5},
    "direct_preference.conservative_dpo_loss": {**FOUR, "beta": 0.5, "epsilon": 0.1},
    "direct_preference.robust_dpo_loss": {**FOUR, "beta": 0.5, "epsilon": 0.1},
    **{f"direct_preference.{name}_loss": {**FOUR, "beta": 0.5} for name in ("hinge_preference", "apo_zero", "apo_down")},
    "direct_preference.rebel_loss": {**FOUR, "reward_gap": Y, "eta": 0.5},
    "reference_free.cpo_loss": {"chosen": X, "rejected": Y, "beta": 0.5, "coefficient": 0.5},
    "reference_free.tpo_loss": {
        **{"chosen": X, "rejected": Y, "gold": Z, "beta": 0.5, "margin": 0.5, "coefficient": 0.5},
    },
    "direct_preference.ipo_loss": {**FOUR, "tau": 0.5},
    "direct_preference.kto_reference_point": {"logp": X, "ref_logp": Y},
    "direct_preference.kto_loss": {
        **{"logp": X, "ref_logp": Y, "desirable": MASK, "reference_point": 0.1, "beta": 0.5},
        **{"desirable_weight": 1.5, "undesirable_weight": 0.5},
    },
    "binary_feedback.bco_reward_shift": {"logp": X, "ref_logp": Y, "desirable": MASK, "beta": 0.5},
    "binary_feedback.bco_loss": {"logp": X, "ref_logp": Y, "desirable": MASK, "reward_shift": 0.1, "beta": 0.5},
    "weighted_preference.wpo_weight": {"mean_logp": X, "mean_log_expected": Y},
    "weighted_preference.wpo_loss": {**FOUR, "chosen_weight": -X, "rejected_weight": -Y, "beta": 0.5, "cap": 1.5},
    "reference_free.alpha_reward": {"mean_logp": X, "alpha": 0.5},
    "reference_free.alphapo_loss": {"chosen": X, "rejected": Y, "alpha": 0.5, "beta": 2.0, "margin": 0.5},
    "reference_free.simpo_loss": {"chosen": X, "rejected": Y, "beta": 2.0, "margin": 0.5},
    "reference_free.log_odds": {"mean_logp": X},
    "reference_free.odds_ratio_loss": {"chosen": X, "rejected": Y},
    "reference_free.orpo_loss": {"chosen": X, "rejected": Y, "coefficient": 0.1},
    "ratio.token_log_ratio": {"logp": X, "old_logp": Y, "mask": MASK},
    "ratio.sequence_log_ratio": {"logp": X, "old_logp": Y, "mask": MASK},
    "ratio.sequence_token_log_ratio": {"logp": X, "old_logp": Y, "mask": MASK},
    "ratio.group_expectation_log_denominator": {"old_logp": Y, "mask": MASK},
    "ratio.group_expectation_log_ratio": {"logp": X, "old_logp": Y, "mask": MASK},
    "ratio.group_expectation_log_denominator_unnormalized": {"old_logp": Y, "mask": MASK},
    "ratio.group_expectation_log_ratio_unnormalized": {"logp": X, "old_logp": Y, "mask": MASK},
    "ratio.clamp_log_ratio": {"log_ratio": X, "bound": 20.0},
    "unpublished.ratio_bound.bounded_ratio": {"log_ratio": X, "bound": 10.0},
    "correction.truncated_importance_weight": {**PAIR, "cap": 2.0},
    "correction.masked_importance_weight": {**PAIR, "low": 0.5, "high": 5.0},
    "correction.two_sided_importance_weight": {**PAIR, "low": 0.5, "high": 2.0},
    "ratio.response_log_ratio": {"logp": X, "old_logp": Y, "mask": MASK},
    "correction.sequence_truncated_importance_weight": {**PAIR, "cap": 2.0},
    "correction.sequence_masked_importance_weight": {**PAIR, "low": 0.0, "high": 2.0},
    "correction.geometric_rejection": {**PAIR, "low": 0.7, "high": 1.4},
    "correction.ratio_outside_bounds": {"log_ratio": X, "mask": MASK, "low": 0.5, "high": 5.0},
    "correction.off_policy_sequence_mask": {"logp": X, "behaviour_logp": Y, "advantage": Z + 1, "mask": MASK, "delta": 0.1},
    "reference.adaptive_kl_coefficient": {
        **{"coefficient": 0.5, "divergence": 9.0, "target": 6.0},
        **{"gain": 0.1, "bound": 0.2},
    },
    "entropy_control.adaptive_entropy_coefficient": {
        **{"coefficient": 0.5, "entropy": 0.1, "target": 0.2},
        **{"step": 0.1, "high": 1.0},
    },
    "entropy_control.active_entropy_coefficient": {"coefficient": 0.5, "entropy": 0.1, "target": 0.2},
    "reference.reset_reference": {"reference": X, "params": Y, "step": np.array(4), "period": 2},
    "regularization.positive_example_weights": {"correct": VERDICTS, "mask": MASK},
    "regularization.negative_log_likelihood": {"logp": X, "mask": MASK},
    "regularization.dynamic_fine_tuning_loss": {"logp": -abs(X), "mask": MASK},
    "regularization.fisher_anchor": {"params": X, "anchor_params": Y, "fisher": -Z, "coefficient": 0.1},
    "regularization.diagonal_fisher": {"per_example_gradients": X},
    "unpublished.mixture.neural_symbolic_mixture": {"logp": X, "symbolic_logp": Y, "alpha": 0.5},
    "unpublished.schedule.warmup_cosine": {"step": np.array([0, 4]), "peak": 1.0, "warmup_steps": 2, "total_steps": 8},
    "unpublished.schedule.exponential_decay": {"step": np.array([0, 4]), "initial": 0.5, "decay": 2.0, "total_steps": 8},
    "unpublished.schedule.hybrid_weight": {"step": np.array([0, 4]), "initial": 0.5, "decay": 2.0, "total_steps": 8},
    "selection.has_mixed_outcomes": {"rewards": REWARDS, "valid": VERDICTS},
    "selection.pass_rate": {"rewards": REWARDS, "threshold": 0.0, "valid": VERDICTS},
    "selection.in_difficulty_window": {"rewards": REWARDS, "low": 0.2, "high": 0.8, "threshold": 0.0, "valid": VERDICTS},
    "selection.rl_kl_from_pass_rate": {"pass_rate": RATES, "beta": 0.5},
    "unpublished.length.adaptive_group_size": {"lengths": LENGTHS, "base": 8, "reference": 512, "floor": 2},
    "unpublished.length.length_percentiles": {"lengths": LENGTHS, "percentiles": (50.0,)},
    "unpublished.length.length_bins": {"lengths": LENGTHS, "edges": LENGTHS + 1},
    "shaping.rule_reward": {"correct": VERDICTS},
    "shaping.soft_overlong_penalty": {"lengths": LENGTHS, "max_length": 8, "cache": 4},
    "unpublished.length.adaptive_length_penalty": {"lengths": LENGTHS, "rewards": SUPPORT + 1.2, **LENGTH},
    "unpublished.length.quality_aware_length_weight": {"rewards": REWARDS, "threshold": 0.5, "base": 0.05, "gamma": 2.0},
    "unpublished.length.length_shaped_reward": {
        "rewards": SUPPORT + 1.2,
        "lengths": LENGTHS,
        **LENGTH,
        "base": 0.05,
        "gamma": 2.0,
    },
    "shaping.weighted_composite": {"parts": {"a": REWARDS}, "weights": {"a": 0.5}},
    "surrogate.clipped": {"log_ratio": X / 4, "advantage": Y, "low": 0.2, "high": 0.2},
    "surrogate.dual_clipped": {"log_ratio": X / 4, "advantage": Y, "low": 0.2, "high": 0.2, "cap": 3.0},
    "surrogate.reinforce": {"logp": X, "advantage": Y},
    "surrogate.cispo": {"log_ratio": X / 4, "advantage": Y, "low": 0.2, "high": 0.2},
    "length_reward.cosine_length_reward": {
        **{"correct": VERDICTS, "lengths": REWARDS, "max_length": 3.0, "correct_short": 2.0, "correct_long": 1.0},
        **{"wrong_short": -10.0, "wrong_long": 0.0, "cut_off": -10.0},
    },
    "length_reward.group_length_reward": {"correct": VERDICTS, "lengths": REWARDS, "valid": VERDICTS},
    "off_policy.mirror_descent": {"log_ratio": X / 4, "advantage": Y, "tau": 0.5},
    "surrogate.sapo": {"log_ratio": X / 4, "advantage": Y, "tau_positive": 1.0, "tau_negative": 1.05},
    "surrogate.gmpo": {"log_ratio": X / 4, "advantage": Y, "mask": MASK, "clip": 0.4},
    "token_choice.high_entropy_tokens": {"entropy": -X, "mask": MASK, "share": 0.3},
    "token_choice.only_high_entropy": {"advantage": Y, "entropy": -X, "mask": MASK, "share": 0.3},
    "token_choice.token_covariance": {"logp": X, "advantage": Y, "mask": MASK},
    "token_choice.kl_cov_tokens": {"covariance": X, "mask": MASK, "share": 0.3},
    "token_choice.clip_cov_tokens": {
        **{"covariance": X, "draw": -Z / 4, "mask": MASK},
        **{"lower": -3.0, "upper": 3.0, "share": 0.3},
    },
    "value.value_loss": {"values": X, "returns": Y, "mask": MASK},
    "value.clipped_value_loss": {"values": X, "old_values": Z, "returns": Y, "mask": MASK, "clip": 0.2},
    "value.explained_variance": {"values": X, "returns": Y, "mask": MASK},
    "unpublished.mixture.mix_values": {"pretrained": X, "critic": Y, "weight": 0.5},
    "unpublished.mixture.pretrained_value_weight": {
        **{"step": np.array([0, 4]), "total_steps": 8, "initial": 0.8},
        **{"decay": 2.0, "reliability": 0.5, "eta": 1.0},
    },
    "unpublished.mixture.multi_head_value": {"values": X, "weight_logits": Y},
    "weights.token_mean": {"mask": MASK},
    "weights.sequence_mean": {"mask": MASK},
    "weights.constant_length": {"mask": MASK, "max_length": 8},
    "weights.sequence_sum": {"mask": MASK},
    "weights.token_mean_per_group": {"mask": MASK},
    "unpublished.length.median_length": {"mask": MASK},
    "unpublished.length.length_reweighted": {"weights": X, "mask": MASK, "alpha": 0.1, "reference": 2.0},
    "weights.overlong_filter": {"mask": MASK, "truncated": VERDICTS},
}
MASKS = {"mask", "valid", "step_end"}
# Exceptions to the shape test: arguments with any shape, any last axis, or any number of leading axes.
ANY_SHAPE = {
    ("reference.reset_reference", "step"),
    ("categorical.two_hot", "target"),
    ("categorical.hl_gauss", "target"),
    ("unpublished.length.length_bins", "lengths"),
}
ANY_LAST_AXIS = {
    ("baseline.greedy_centered", "rewards"),
    ("categorical.two_hot", "support"),
    ("categorical.hl_gauss", "support"),
    ("distillation.matched_vocabulary_distance", "logits"),
    ("distillation.matched_vocabulary_distance", "teacher_logits"),
    ("distillation.sorted_probability_distance", "logits"),
    ("distillation.sorted_probability_distance", "teacher_logits"),
    ("gae.rewards_at_last_token", "mask"),
    ("regularization.positive_example_weights", "mask"),
    ("unpublished.length.length_bins", "edges"),
    ("weights.overlong_filter", "mask"),
}
ANY_LEADING_AXES = {
    ("categorical.categorical_mean", "probs"),
    ("categorical.categorical_mean_of_logits", "logits"),
}


def array_names(name):
    return [key for key, value in CALLS[name].items() if isinstance(value, np.ndarray)]


def scalar_names(name):
    return [key for key, value in CALLS[name].items() if isinstance(value, float | int)]


def real_arguments(name):
    return {key: x for key, x in CALLS[name].items() if isinstance(x, np.ndarray) and x.dtype.kind == "f"}


def call(name, **changed):
    return OPS[name](
        **{key: jnp.asarray(x) if isinstance(x, np.ndarray) else x for key, x in (CALLS[name] | changed).items()}
    )


def test_calls_are_complete():
    assert set(CALLS) == set(OPS) - WITHOUT_ARRAYS
    for name, arguments in CALLS.items():
        assert set(inspect.signature(OPS[name]).parameters) - set(arguments) <= {"advantage"}, name


# Scalars that are operands of the equation, as arrays are, and therefore positional.
OPERANDS = {
    ("categorical.c51_projection", "discount"),
    *(
        (f"entropy_control.{kind}_entropy_coefficient", name)
        for kind in ("adaptive", "active")
        for name in ("coefficient", "entropy")
    ),
    ("reference.adaptive_kl_coefficient", "coefficient"),
    ("reference.adaptive_kl_coefficient", "divergence"),
    ("unpublished.mixture.mix_values", "weight"),
}


@pytest.mark.parametrize("name", CALLS)
def test_arrays_are_positional_and_hyperparameters_are_keyword_only(name):
    signature = inspect.signature(OPS[name]).parameters
    for argument in array_names(name):
        if signature[argument].default is inspect.Parameter.empty:
            assert signature[argument].kind == inspect.Parameter.POSITIONAL_OR_KEYWORD, argument
    for argument in scalar_names(name):
        if (name, argument) not in OPERANDS:
            assert signature[argument].kind == inspect.Parameter.KEYWORD_ONLY, argument


# Every numeric default, because calls that omit the argument rely on the default.
DEFAULTS = {
    "batch.batch_normalized": {"eps": 1e-8, "ddof": 0},
    "batch.batch_normalized_rewards": {"eps": 1e-8, "ddof": 0},
    "batch.centered_over_reward_std": {"eps": 1e-6, "ddof": 1},
    "batch.centered_over_advantage_std": {"eps": 1e-6, "ddof": 1},
    "batch.decoupled_normalized": {"eps": 1e-6, "ddof": 1},
    "categorical.hl_gauss": {"sigma_ratio": 0.75},
    "correction.truncated_importance_weight": {"cap": 2.0},
    "correction.masked_importance_weight": {"low": 0.5, "high": 5.0},
    "correction.two_sided_importance_weight": {"high": 2.0},
    "correction.sequence_truncated_importance_weight": {"cap": 2.0},
    "correction.sequence_masked_importance_weight": {"low": 0.0, "high": 2.0},
    "correction.geometric_rejection": {"low": 0.999, "high": 1.001},
    "direct_preference.implicit_reward": {"beta": 0.1},
    "direct_preference.dpo_loss": {"beta": 0.1},
    "direct_preference.conservative_dpo_loss": {"beta": 0.1},
    "direct_preference.robust_dpo_loss": {"beta": 0.1},
    "direct_preference.rebel_loss": {"eta": 1.0},
    **{f"direct_preference.{name}_loss": {"beta": 0.1} for name in ("hinge_preference", "apo_zero", "apo_down")},
    "reference_free.cpo_loss": {"beta": 0.1, "coefficient": 1.0},
    "reference_free.tpo_loss": {"beta": 0.01, "margin": 0.0, "coefficient": 1.0},
    "direct_preference.ipo_loss": {"tau": 0.1},
    "direct_preference.kto_loss": {"beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.0},
    "binary_feedback.bco_reward_shift": {"beta": 0.1},
    "binary_feedback.bco_loss": {"beta": 0.1},
    "weighted_preference.wpo_loss": {"beta": 0.01, "cap": np.inf},
    "gae.td_errors": {"gamma": 1.0},
    "gae.gae": {"gamma": 1.0, "lambda_": 0.95},
    "gae.monte_carlo_returns": {"gamma": 1.0},
    "gae.lambda_returns": {"gamma": 1.0, "lambda_": 0.95},
    "gae.decoupled_gae": {"gamma": 1.0, "policy_lambda": 0.95, "value_lambda": 1.0},
    "gae.length_adaptive_lambda": {"alpha": 0.05},
    "group.group_normalized": {"eps": 1e-6, "ddof": 1},
    "group.mean_normalized": {"eps": 0.0},
    "group.process_normalized": {"eps": 1e-6, "ddof": 1},
    "group.turn_normalized": {"discount": 1.0, "eps": 1e-6, "ddof": 1},
    "length_reward.cosine_length_reward": {
        **{"correct_short": 2.0, "correct_long": 1.0, "wrong_short": -10.0, "wrong_long": 0.0, "cut_off": -10.0},
    },
    "off_policy.gamma_weighted": {
        **{"power_positive": 2.0, "decay_positive": 3.0},
        **{"power_negative": 3.0, "decay_negative": 2.0},
    },
    "online_preference.online_dpo_credit": {"beta": 0.1},
    "online_preference.xpo_credit": {"beta": 0.1, "alpha": 1e-5},
    "online_preference.mixture_win_rate": {"mixture": 0.125},
    "online_preference.optimal_value": {"beta": 0.5},
    "pass_at_k.pass_at_k_normalized": {"threshold": 0.0, "eps": 1e-6},
    "preference.bradley_terry_loss": {"margin": 0},
    "reference.adaptive_kl_coefficient": {"gain": 0.1, "bound": 0.2},
    "entropy_control.adaptive_entropy_coefficient": {"target": 0.2, "step": 0.005, "high": np.inf},
    "entropy_control.active_entropy_coefficient": {"target": 0.2},
    "reference_free.alphapo_loss": {"alpha": 0.25, "beta": 2.5, "margin": 0.25},
    "reference_free.simpo_loss": {"beta": 2.0, "margin": 1.0},
    "reference_free.orpo_loss": {"coefficient": 0.1},
    "selection.pass_rate": {"threshold": 0.0},
    "selection.in_difficulty_window": {"threshold": 0.0},
    "surrogate.clipped": {"low": 0.2, "high": 0.2},
    "surrogate.dual_clipped": {"low": 0.2, "high": 0.2, "cap": 3.0},
    "surrogate.sapo": {"tau_positive": 1.0, "tau_negative": 1.05},
    "surrogate.gmpo": {"clip": 0.4},
    "token_choice.high_entropy_tokens": {"share": 0.2},
    "token_choice.only_high_entropy": {"share": 0.2},
    "value.clipped_value_loss": {"clip": 0.2},
    "unpublished.group_baseline.hierarchical": {"local_weight": 0.7},
    "unpublished.length.quality_aware_length_weight": {"base": 0.05, "gamma": 2.0},
    "unpublished.length.length_shaped_reward": {"base": 0.05, "gamma": 2.0},
    "unpublished.length.adaptive_group_size": {"base": 8, "reference": 512, "floor": 2},
    "unpublished.length.length_percentiles": {"percentiles": (25.0, 50.0, 75.0, 95.0)},
    "unpublished.mixture.pretrained_value_weight": {"initial": 0.8, "decay": 2.0},
    "unpublished.offset_gae.offset_decayed_gae": {"gamma": 1.0, "lambda_base": 0.95},
    "unpublished.offset_gae.complexity_weighted_gae": {"gamma": 1.0, "lambda_base": 0.95, "chunk": 128},
}


@pytest.mark.parametrize("name", OPS)
def test_defaults_do_not_change(name):
    defaults = {key: parameter.default for key, parameter in inspect.signature(OPS[name]).parameters.items()}
    assert {key: x for key, x in defaults.items() if isinstance(x, float | int | tuple)} == DEFAULTS.get(name, {})


# Arguments that all rows share, an op with one weight per score of a row, and an op that averages over rows.
SHARED_BY_ROWS = {"support", "edges", "matched", "teacher_matched"}
ONE_WEIGHT_PER_SCORE = {"batch.decoupled_normalized"}
WITHOUT_ROWS = {"regularization.diagonal_fisher"}


def call_with_row(name, row):
    """Call an op with one row of its arrays from `CALLS`; if `row` is a slice, the row keeps an axis of length 1."""
    unsliced = SHARED_BY_ROWS | ({"weights"} if name in ONE_WEIGHT_PER_SCORE else set())
    rows = {key: CALLS[name][key][row] for key in array_names(name) if CALLS[name][key].ndim and key not in unsliced}
    if "parts" in CALLS[name]:
        rows["parts"] = jax.tree.map(lambda x: jnp.asarray(x[row]), CALLS[name]["parts"])
    return call(name, **rows)


def results_agree(some, others):
    pairs = zip(jax.tree.leaves(some), jax.tree.leaves(others), strict=True)
    return all(x.shape == y.shape and np.allclose(x, y, rtol=1e-5, atol=1e-6) for x, y in pairs)


@pytest.mark.parametrize("name", [name for name in CALLS if "history" not in CALLS[name] and name not in WITHOUT_ROWS])
def test_row_result_does_not_depend_on_other_rows(name):
    """Catches axes counted from the front. Ops over the full batch are only compared with a batch of one row."""
    alone = call_with_row(name, 1)
    if not results_agree(jax.tree.map(lambda x: x[1] if x.ndim else x, call(name)), alone):
        batch_of_one = call_with_row(name, slice(1, 2))
        assert results_agree(jax.tree.map(lambda x, y: x.reshape(y.shape), batch_of_one, alone), alone)


def masked_arrays(name):
    """Arrays whose entries or rows a mask selects, and the mask. Lengths are left out, because the test would make them invalid."""
    masks = [CALLS[name][key] for key in array_names(name) if key in MASKS]
    mask = masks[0] if masks else np.array(True)
    real = {key: x for key, x in real_arguments(name).items() if key != "lengths"}
    maskable = {key: x for key, x in real.items() if mask.ndim and x.shape[: mask.ndim] == mask.shape}
    return maskable, mask


def with_other_entries(name, other):
    """Return the arrays that a mask selects from, with another number outside the mask."""
    maskable, mask = masked_arrays(name)
    return {
        key: np.where(mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim)), x, np.float32(other))
        for key, x in maskable.items()
    }


MASKED_OPS = [name for name in CALLS if masked_arrays(name)[0] and not name.endswith("join_history")]


@pytest.mark.parametrize("name", MASKED_OPS)
def test_entries_outside_the_mask_are_not_read(name):
    expected = call(name)
    for other in (np.nan, np.inf, 7.0):
        chex.assert_trees_all_close(call(name, **with_other_entries(name, other)), expected, rtol=1e-6)


# The gradient of an equation with sg[.] is not the derivative of the value. These gradients are tested in `test_ratio.py`,
# `test_surrogate.py`, `test_off_policy.py`, `test_regularization.py`, `test_direct_preference.py`, `test_binary_feedback.py` and
# `test_weighted_preference.py`.
WITH_STOP_GRADIENT = {
    "binary_feedback.bco_reward_shift": {"logp", "ref_logp"},
    "direct_preference.kto_reference_point": {"logp", "ref_logp"},
    "off_policy.gamma_weighted": {"log_ratio"},
    "regularization.dynamic_fine_tuning_loss": {"logp"},
    "weighted_preference.wpo_loss": {"chosen_weight", "rejected_weight"},
    "surrogate.cispo": {"log_ratio"},
    "off_policy.whole_response_token_log_ratio": {"logp", "old_logp"},
    "ratio.sequence_token_log_ratio": {"logp", "old_logp"},
}


def real_outputs(tree):
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]


def in_float64(x):
    return x.astype(np.float64) if np.issubdtype(x.dtype, np.floating) else x


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", [name for name in CALLS if real_arguments(name)])
def test_gradient_matches_finite_differences(name):
    """Also if all entries outside the mask are NaN; their gradient is 0."""
    fixed = {key: jax.tree.map(in_float64, x) if key == "history" else x for key, x in CALLS[name].items()}
    arguments = {key: in_float64(x) for key, x in real_arguments(name).items()}
    fixed = {key: jnp.asarray(x) if isinstance(x, np.ndarray) else x for key, x in fixed.items() if key not in arguments}
    shapes = [leaf.shape for leaf in real_outputs(jax.eval_shape(lambda x: OPS[name](**fixed, **x), arguments))]
    if not shapes:
        return  # counts, booleans and indices have no gradient
    cotangents = [np.random.default_rng(1).normal(size=shape) for shape in shapes]

    def total(arguments):
        leaves = real_outputs(OPS[name](**fixed, **arguments))
        return sum((cotangent * leaf).sum() for cotangent, leaf in zip(cotangents, leaves, strict=True))

    value_and_gradient = jax.jit(jax.value_and_grad(total))
    _, gradient = value_and_gradient(arguments)
    if name in MASKED_OPS:
        poisoned = {key: in_float64(x) for key, x in with_other_entries(name, np.nan).items()}
        chex.assert_trees_all_close(value_and_gradient(arguments | poisoned)[1], gradient, rtol=1e-12)
    for key in set(arguments) - WITH_STOP_GRADIENT.get(name, set()):
        numeric = np.zeros(arguments[key].shape)
        for index in np.ndindex(numeric.shape):
            step = np.zeros(numeric.shape)
            step[index] = 1e-5
            ends = [value_and_gradient(arguments | {key: arguments[key] + sign * step})[0] for sign in (1, -1)]
            numeric[index] = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(gradient[key], numeric, rtol=1e-6, atol=1e-8, err_msg=key)


def assert_refused(name, argument, wrong, *, traced):
    """Assert that a call raises a ValueError that names the argument, or an array whose shape conflicts with it."""
    any_name = "|".join(rf"\b{key}\b" for key in (argument, *array_names(name)))
    with pytest.raises(ValueError, match=any_name):
        jax.eval_shape(lambda x: call(name, **{argument: x}), wrong) if traced else call(name, **{argument: wrong})


KINDS = {
    (name, argument): CALLS[name][argument].dtype.kind
    for name in CALLS
    for argument in array_names(name)
    if argument != "history"
}


@pytest.mark.parametrize(("name", "argument"), [key for key, kind in KINDS.items() if kind == "f" and key[1] != "lengths"])
def test_integer_arrays_are_refused_as_real_arguments(name, argument):
    assert_refused(name, argument, np.ones(CALLS[name][argument].shape, int), traced=True)


@pytest.mark.parametrize(("name", "argument"), [key for key in KINDS if key[1] in MASKS])
def test_invalid_masks_are_refused(name, argument):
    mask = CALLS[name][argument]
    assert_refused(name, argument, 2 * mask, traced=False)
    assert_refused(name, argument, mask / 2, traced=False)
    assert_refused(name, argument, mask * 1j, traced=True)
    assert_refused(name, argument, mask[..., :0], traced=True)
    assert_refused(name, argument, np.array(True), traced=True)


@pytest.mark.parametrize(("name", "argument"), [key for key in KINDS if key[1] != "step"])
def test_lists_are_refused(name, argument):
    assert_refused(name, argument, CALLS[name][argument].tolist(), traced=False)


@pytest.mark.parametrize(
    ("name", "argument"), [key for key in KINDS if len(array_names(key[0])) > 1 and key not in ANY_SHAPE]
)
def test_mismatched_shapes_are_refused(name, argument):
    array = CALLS[name][argument]
    if (name, argument) not in ANY_LAST_AXIS:
        assert_refused(name, argument, np.concatenate([array, array], -1), traced=True)
    if (name, argument) not in ANY_LEADING_AXES:
        assert_refused(name, argument, np.stack([array] * 3), traced=True)
    assert_refused(name, argument, array.ravel()[0], traced=True)


@pytest.mark.parametrize("name", [name for name in CALLS if "rewards" in CALLS[name] and "valid" in CALLS[name]])
def test_group_of_one_is_refused(name):
    alone = {
        argument: CALLS[name][argument][:, :1] for argument in ("rewards", "weights", "valid") if argument in CALLS[name]
    }
    if name.startswith("unpublished.reward_history.") or name.endswith("batch_normalized_rewards"):
        jax.eval_shape(partial(call, name, **alone))  # compared with earlier rewards or the full batch, so accepted
    else:
        with pytest.raises(ValueError, match=r"rewards must contain groups of at least 2 responses .* got \[2, 1\]"):
            jax.eval_shape(partial(call, name, **alone))


@pytest.mark.parametrize(("name", "argument"), [(name, argument) for name in CALLS for argument in scalar_names(name)])
def test_nan_hyperparameters_are_refused(name, argument):
    with pytest.raises(ValueError, match=rf"\b{argument}\b.*nan"):
        call(name, **{argument: float("nan")})


WHOLE = ("k", "bins", "period", "chunk", "prompts", "capacity", "base", "reference", "floor", "total_steps")


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        (name, argument)
        for name, op in OPS.items()
        for argument, parameter in inspect.signature(op).parameters.items()
        if parameter.annotation is int and argument in WHOLE
    ],
)
@pytest.mark.parametrize("wrong", [2.5, True])
def test_counts_that_are_not_integers_are_refused(name, argument, wrong):
    ranges = {"low": -1.0, "high": 1.0} if name == "categorical.uniform_support" else {}
    arguments = CALLS.get(name, {"prompts": 3, "capacity": 2} if "history" in name else ranges)
    with pytest.raises(ValueError, match=rf"{argument} must be an integer, got {wrong}"):
        call(name, **{argument: wrong}) if name in CALLS else OPS[name](**arguments | {argument: wrong})


def calls_with(*argument_names):
    return [(name, argument) for name in CALLS for argument in scalar_names(name) if argument in argument_names]


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        key
        for key in calls_with(
            "gamma", "lambda_", "lambda_base", "policy_lambda", "value_lambda", "discount", "rate", "weight"
        )
        if not key[0].startswith("unpublished.length.")  # there, gamma is the steepness of an exponential
    ],
)
@pytest.mark.parametrize("wrong", [-0.01, 1.01])
def test_fractions_outside_0_to_1_are_refused(name, argument, wrong):
    with pytest.raises(ValueError, match=rf"{argument} must lie in \[0, 1\], got {wrong}"):
        call(name, **{argument: wrong})


@pytest.mark.parametrize(("name", "argument"), calls_with("eps", "eta", "coefficient", "high", "clip"))
def test_negative_sizes_are_refused(name, argument):
    with pytest.raises(ValueError, match=rf"{argument} must (be positive|not be negative|lie in .*), got -0.01"):
        call(name, **{argument: -0.01})


@pytest.mark.parametrize(("name", "argument"), calls_with("ddof"))
def test_ddof_other_than_0_or_1_is_refused(name, argument):
    with pytest.raises(ValueError, match="ddof must be one of 0, 1, got 2"):
        call(name, ddof=2)


def traced_and_fixed(name):
    """The arguments that a compiled call traces, and the op with its other arguments bound."""
    static = {key for key, x in CALLS[name].items() if not all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(x))}
    traced = {key: jax.tree.map(jnp.asarray, x) for key, x in CALLS[name].items() if key not in static}
    return traced, partial(OPS[name], **{key: CALLS[name][key] for key in static})


class EveryOp(chex.TestCase):
    @chex.variants(with_jit=True)
    @parameterized.parameters(*CALLS)
    def test_results_agree_compiled_or_not(self, name):
        traced, op = traced_and_fixed(name)
        once = self.variant(op)(**traced)
        chex.assert_trees_all_close(once, op(**traced), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in CALLS if traced_and_fixed(name)[0]])
def test_vmap_adds_an_axis_and_second_call_is_not_traced(name):
    traced, op = traced_and_fixed(name)
    chex.clear_trace_counter()  # the counter counts by function name, which all cases share

    @jax.jit
    @chex.assert_max_traces(n=1)
    def mapped(rows):
        return jax.vmap(lambda row: op(**row))(rows)

    twice = jax.tree.map(lambda x: jnp.stack([x, x]), traced)
    for _ in range(2):
        chex.assert_trees_all_close(jax.tree.map(lambda x: x[1], mapped(twice)), op(**traced), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CALLS)
def test_second_call_outside_jit_compiles_nothing(name):
    """Otherwise every call in a notebook would take a tenth of a second or more."""
    traced, op = traced_and_fixed(name)
    op(**traced)
    compiled = []
    with watch_compilation(compiled.append):
        op(**traced)
    assert compiled == []


@pytest.mark.parametrize("name", CALLS)
def test_concrete_arrays_are_accepted_while_tracing(name):
    """Arrays may be concrete while an enclosing function is traced; what is computed from them is then traced."""
    traced, op = traced_and_fixed(name)
    shapes = jax.eval_shape(lambda: op(**traced))
    assert all(jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == bool for leaf in jax.tree.leaves(shapes))


KEEPS_DTYPE = {
    "divergence.ema_update",
    "reference.reset_reference",
}  # the result replaces an argument and keeps that argument's dtype


@pytest.mark.parametrize("name", [name for name in CALLS if real_arguments(name) or "parts" in CALLS[name]])
def test_half_precision_arrays_are_computed_in_float32(name):
    traced, op = traced_and_fixed(name)
    halves = jax.tree.map(lambda x: x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x, traced)
    rounded = op(**jax.tree.map(lambda x, half: half.astype(x.dtype), traced, halves))
    if name in KEEPS_DTYPE:
        rounded = rounded.astype(jnp.bfloat16)
    chex.assert_trees_all_equal_shapes_and_dtypes(op(**halves), rounded)
    chex.assert_trees_all_close(op(**halves), rounded, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in CALLS if real_arguments(name) or "parts" in CALLS[name]])
def test_numpy_arrays_in_float64_count_as_float32(name):
    """Without `jax_enable_x64`, JAX has no float64, and would warn of each explicit conversion to it."""
    wide = jax.tree.map(lambda x: in_float64(x) if isinstance(x, np.ndarray) else x, CALLS[name])
    found, expected = OPS[name](**wide), call(name)
    chex.assert_trees_all_equal_shapes_and_dtypes(found, expected)
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-6)


def traceable_options(name):
    """Names of the real hyperparameters that may be arrays."""
    parameters = inspect.signature(OPS[name]).parameters
    return [
        key for key in scalar_names(name) if isinstance(CALLS[name][key], float) and parameters[key].annotation is not float
    ]


@pytest.mark.parametrize("name", [name for name in CALLS if traceable_options(name)])
def test_half_precision_hyperparameters_are_computed_in_float32(name):
    halves = {key: jnp.asarray(CALLS[name][key], jnp.bfloat16) for key in traceable_options(name)}
    rounded = call(name, **{key: half.astype(jnp.float32) for key, half in halves.items()})
    chex.assert_trees_all_equal_shapes_and_dtypes(call(name, **halves), rounded)
    chex.assert_trees_all_close(call(name, **halves), rounded, rtol=1e-6)
