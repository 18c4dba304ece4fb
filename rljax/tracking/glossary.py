"""What every number in `metrics.jsonl` is: one table, from which `rljax explain` prints.

`{N}` in a name stands for a number of tokens, `{NAME}` for a name of the run's own.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from rljax.errors import InputError
from rljax.records import documented
from rljax.text import did_you_mean
from rljax.tracking.display_text import CORRECT, IN_ORDER, METRICS, POSITIVE

RL, WARM, VALUE, HELD, PAIRS = "rl", "warm_start", "value", "eval", "pairs"


@documented
class Entry(NamedTuple):
    """One number of a run."""

    name: str
    """Name in `metrics.jsonl`."""
    phases: str
    """Phases whose rows have it; "pairs" stands for `reward_model` and `preference`."""
    unit: str
    """Unit in `metrics.jsonl`."""
    meaning: str
    """What it is."""
    formula: str
    """How it is computed."""
    source: str
    """Function or record that computes it, as a dotted name."""
    expect: str
    """What is usual."""
    act: str
    """What to do if it is not."""


_OUTCOMES = (
    Entry(
        "reward", f"{RL} {HELD}", "that of the reward",
        "Mean reward of the sampled responses (rl), or of the greedy answers to held-out problems (eval). Responses that "
        "could not be judged are left out.",
        "mean of r over responses; before the algorithm shapes it",
        "rljax.training.metrics.rollout_metrics",
        "Rises, with the noise of a few hundred samples. Held-out reward follows it.",
        "If it stays flat: read samples.jsonl, look at filtered_ratio (no group with a signal?) and raise --learning-rate "
        "threefold. If it rises while held-out reward falls, the policy exploits the reward or overfits: stop at the best "
        "checkpoint.",
    ),
    Entry(
        "accuracy", f"{RL} {HELD} {PAIRS}", "share, 0 to 1",
        "Share of responses with a reward above 0. With a reward that checks answers, the share of right answers. For pairs, "
        "the share whose preferred response has the higher score or implicit reward.",
        "mean of [r > 0]; for pairs mean of [chosen > rejected], a tie counts as wrong",
        "rljax.training.metrics.rollout_metrics",
        "Rises. In eval rows answers are greedy, in rl rows they are sampled, so the second is usually lower.",
        "With graded or negative rewards it says little: read reward instead. `rljax eval RUN` gives its 95 % interval.",
    ),
    Entry(
        "accuracy_to_{N}_tokens", HELD, "share, 0 to 1",
        "Held-out accuracy of the answers of at most N tokens and more than N/2 (the first range begins at 1).",
        "mean of [r > 0] over the answers in that range of length",
        "rljax.evaluation.greedy.accuracy_by_length",
        "Long answers are more often wrong.",
        "If only the longest range is bad, answers may be cut off: look at truncated_share and raise --max-response-tokens.",
    ),
    Entry(
        "response_length", f"{RL} {HELD}", "tokens",
        "Mean number of tokens of a response, the end-of-sequence token included.",
        "mean of |o|", "rljax.training.metrics.rollout_metrics",
        "Grows when longer reasoning pays, shrinks when rambling is punished.",
        "If it grows without reward: the loss favours long wrong responses; try --algorithm dr_grpo or dapo, which weigh all "
        "tokens alike.",
    ),
    Entry(
        "truncated_share", f"{RL} {HELD}", "share, 0 to 1",
        "Share of responses that reached the token budget before they ended.",
        "mean of [cut off]", "rljax.training.metrics.rollout_metrics",
        "Below 0.1, and falling.",
        "Raise --max-response-tokens, or use DAPO's overlong penalty (--algorithm-options max_length=... cache=...).",
    ),
    Entry(
        "reward_{NAME}", RL, "that of the part",
        "Mean of one part of a reward of several parts, over the responses that have it.",
        "mean of r_NAME, before its weight", "rljax.training.metrics.part_means",
        "Each part rises, or at least does not fall.",
        "If one part falls while the sum rises, the parts pull against each other: change --reward-weights.",
    ),
)  # fmt: skip
_SAMPLING = (
    Entry(
        "filtered_ratio", RL, "share, 0 to 1",
        "Share of the sampled groups that dynamic sampling dropped because all their responses got the same reward: a "
        "group-relative advantage is 0 there. 0 for algorithms that keep every group.",
        "1 - kept / sampled", "rljax.rollout.collect.collect",
        "0.2 to 0.7; it rises when the problems become too easy.",
        "Near 1 with a low reward: the problems are too hard; easier ones, a warm start or a larger --group-size. Near 1 with "
        "a high reward: too easy; harder ones, or --difficulty-window.",
    ),
    Entry(
        "unfilled_groups", RL, "groups",
        "Groups that dynamic sampling looked for and did not find within --max-tries; the step trains on the others.",
        "prompts - trained_groups", "rljax.training.metrics.rollout_metrics",
        "Mostly 0. Now and then a few are harmless.",
        "If it is often above 0: raise --max-tries or --oversample, and see filtered_ratio.",
    ),
    Entry(
        "trained_groups", RL, "groups", "Groups (prompts with all their responses) that the step trained on.",
        "number of groups", "rljax.training.metrics.rollout_metrics",
        "Equal to --prompts.", "See unfilled_groups. At 0 the step changes nothing.",
    ),
    Entry(
        "group_size", RL, "responses", "Mean number of responses to a prompt.",
        "responses / groups", "rljax.training.metrics.rollout_metrics",
        "Equal to --group-size, or less under a --token-budget.", "Under a token budget: raise it if groups become smaller than 4.",
    ),
    Entry(
        "tries", RL, "rounds", "Sampling rounds that the step needed.",
        "count, at most --max-tries", "rljax.rollout.collect.collect",
        "1 or 2.", "More rounds cost time: raise --oversample, or see filtered_ratio.",
    ),
    Entry(
        "staleness", RL, "RL steps", "Mean age of the responses that were trained on: steps since the policy that drew them.",
        "mean of step - version", "rljax.training.metrics.rollout_metrics",
        "0, or a little more where surplus groups are carried over.",
        "If it grows, use an off-policy correction (--correction).",
    ),
    Entry(
        "unjudged", RL, "responses",
        "Responses on which the reward failed. They are left out: neither right nor wrong.",
        "sum of the kinds reward_raised, reward_timed_out, reward_wrong_count", "rljax.training.metrics.rollout_metrics",
        "0, or a few in thousands.", "The kinds say how it failed. The run ends if more than --max-failure-share of a step fail.",
    ),
    Entry(
        "reward_raised", RL, "responses", "Responses on which the reward function raised, or its process died.",
        "count", "rljax.training.metrics.failure_counts", "0.", "Call the function on the completions in samples.jsonl.",
    ),
    Entry(
        "reward_timed_out", RL, "responses", "Responses on which the reward function exceeded its time limit.",
        "count", "rljax.training.metrics.failure_counts", "0.", "Make the function faster, or its limit longer.",
    ),
    Entry(
        "reward_wrong_count", RL, "responses", "Responses of a call in which the reward returned too few or too many values.",
        "count", "rljax.training.metrics.failure_counts", "0.", "Return one value per completion; None means no opinion.",
    ),
)  # fmt: skip
_POLICY = (
    Entry(
        "loss", f"{WARM} {RL} {PAIRS}", "that of the objective",
        "What the optimiser minimises. rl: the algorithm's loss. warm_start: mean negative log-likelihood of the "
        "demonstrations, in nats per token. pairs: mean loss of a pair.",
        "rl: -Σ w · surrogate + Σ c · term", "rljax.algorithms.losses.loss",
        "It falls in the warm start and on pairs. In RL it does NOT show progress: advantages are centred, so it stays near 0.",
        "In RL read reward and held-out accuracy instead.",
    ),
    Entry(
        "entropy", f"{WARM} {RL}", "nats per token",
        "Mean entropy of the policy's next-token distribution at the sampling temperature; how much it still explores.",
        "-Σ_v π(v) log π(v), mean over trained tokens", "rljax.algorithms.losses.loss",
        "Falls slowly. Above 0.1 or so there is something left to explore.",
        "If it collapses within a few steps: a lower --learning-rate, or clip_high above clip_low (DAPO's clip-higher). If it "
        "explodes: a lower --learning-rate.",
    ),
    Entry(
        "kl", RL, "nats per token",
        "KL divergence between the policy before the updates of this rollout and the policy at each update. It is not the "
        "distance to the starting model: that is reference_kl.",
        "mean of k3 = exp(d) - d - 1, d = log π - log π_before", "rljax.algorithms.losses.loss",
        "0 with --minibatches 1, up to rounding: there is one update, measured before it is made. With several about 1e-4 to 1e-2.",
        "Above 0.1: a lower --learning-rate or fewer --minibatches.",
    ),
    Entry(
        "clip_fraction", RL, "share of tokens, 0 to 1",
        "Share of trained tokens whose surrogate passes no gradient, because the probability ratio has left the clip range in "
        "the direction that the advantage pushes.",
        "share of tokens with ∂surrogate/∂log ρ = 0 and A ≠ 0", "rljax.algorithms.losses.loss",
        "0 with --minibatches 1. With several: 0.001 to 0.1; sequence-level ratios (GSPO) clip far more.",
        "Above 0.3: updates are too large; a lower --learning-rate or fewer --minibatches.",
    ),
    Entry(
        "ratio", RL, "", "Mean importance ratio of the trained tokens.",
        "mean of ρ, as the algorithm defines it: per token, per sequence, ...", "rljax.algorithms.losses.loss",
        "Within a few per cent of 1.",
        "Far from 1: the samples are stale or were drawn differently than scored; use a --correction.",
    ),
    Entry(
        "surrogate_masked", RL, "share of tokens, 0 to 1",
        "Share of trained tokens that the algorithm's off-policy mask leaves out.",
        "share of tokens with M = 0", "rljax.algorithms.losses.loss",
        "Below 0.1.", "If it is large, little is learned from a rollout: fewer --minibatches or a lower --learning-rate.",
    ),
    Entry(
        "reference_kl", RL, "nats per token",
        "Estimate of the KL divergence of the policy from the reference, which is the model before RL unless the reference "
        "follows. The loss has β times it.",
        "mean of k3(log π, log π_ref) unless the algorithm names another estimator", "rljax.algorithms.terms.kl_to_reference",
        "Starts at 0 and grows to 0.01 to 1.", "Grows too fast: raise beta (--algorithm-options beta=...). Stays 0: lower it.",
    ),
    Entry(
        "sampler_kl", RL, "nats per token",
        "Estimate of the KL divergence of the policy from the one that sampled, a term of the loss.",
        "mean of k3(log π, log π_sampler)", "rljax.algorithms.terms.kl_to_sampler",
        "Near 0.", "Large: a lower --learning-rate.",
    ),
    Entry(
        "teacher_divergence", RL, "nats per token", "Divergence of the policy from the teacher over whole distributions (gkd).",
        "Σ w · JSD_β(π_teacher, π)", "rljax.algorithms.terms.distance_from_teacher",
        "Falls towards 0.", "Stays: raise --learning-rate, or the teacher is too far away for this model.",
    ),
    Entry(
        "kl_cov", RL, "nats per token", "Mean |log ρ| of the tokens of highest covariance, a term of the loss of kl_cov.",
        "mean of |log π - log π_old| over these tokens", "rljax.algorithms.clip_cov.kl_cov",
        "Near 0.", "Large: a lower --learning-rate, or a larger beta.",
    ),
    Entry(
        "entropy_bonus", RL, "nats per token", "Entropy as a term of the loss, before its coefficient.",
        "Σ w · H", "rljax.algorithms.terms.entropy_bonus",
        "Follows entropy.", "If entropy explodes, lower the coefficient.",
    ),
    Entry(
        "positive_examples", RL, "nats per token", "Negative log-likelihood of the correct responses, a term of VAPO's loss.",
        "mean of -log π over tokens of responses with r > 0", "rljax.algorithms.terms.positive_examples",
        "Falls with the entropy.", "If entropy collapses, lower its coefficient.",
    ),
    Entry(
        "grad_norm", f"{WARM} {RL} {PAIRS}", "", "Euclidean norm of the gradient before it is clipped to --max-grad-norm.",
        "√Σ g²", "rljax.training.update.make_policy_step",
        "Steady within a factor of ten.",
        "Spikes before a collapse: a lower --learning-rate or --max-grad-norm. Not finite: a fault; try --dtype float32.",
    ),
    Entry(
        "skipped_updates", f"{WARM} {RL}", "share of updates, 0 to 1",
        "Share of the updates that were not made because the loss or the gradient was not finite.",
        "share of updates", "rljax.training.guard.skipped", "0.",
        "Rarely: harmless. Often: a lower --learning-rate, or a reward that returns very large numbers. After five steps without a "
        "sound update the run ends.",
    ),
    Entry(
        "learning_rate", f"{WARM} {RL} {PAIRS}", "", "Learning rate of the last update, after warm-up and schedule.",
        "the schedule's value", "rljax.training.optimizer.learning_rate_of",
        "Rises during --learning-rate-warmup, then follows the schedule.",
        "Absent with an optimiser of your own that does not keep it.",
    ),
    Entry(
        "correction_cut", RL, "share of tokens, 0 to 1",
        "Share of trained tokens whose weight the off-policy correction capped or set to 0.",
        "share of tokens", "rljax.training.learner.cut_share",
        "Below 0.05 where sampler and trainer agree.", "Large: sampler and trainer differ (dtype, truncation, staleness).",
    ),
    Entry(
        "teacher_kl", RL, "nats per token", "Estimate of the KL divergence of the policy from the teacher, before the updates.",
        "mean of log π - log π_teacher", "rljax.training.learner.teacher_kl",
        "Falls towards 0.", "Stays: raise --learning-rate, or the teacher is too far away for this model.",
    ),
)  # fmt: skip
_CRITIC = (
    Entry(
        "explained_variance", f"{VALUE} {RL}", "at most 1",
        "How much of the outcome's variance the critic's values predict, on a rollout that it has not learned from.",
        "1 - Var[r - V] / Var[r], over response tokens; 0 if all outcomes agree", "rljax.training.learner.outcome_explained",
        "Rises from 0; 0.2 to 0.6 is good, since early tokens leave the outcome open.",
        "Below 0: the critic misleads; more --value-pretraining-steps or a lower --critic-learning-rate.",
    ),
    Entry(
        "value", f"{VALUE} {RL}", "that of the reward", "Mean value of the critic over response tokens.",
        "mean of V", "rljax.training.learner.credit_metrics", "Near the mean reward.",
        "Far from it: the critic is biased; as above.",
    ),
    Entry(
        "outcome_loss", f"{VALUE} {RL}", "reward squared", "Error of the critic as a predictor of the outcome.",
        "½ mean of (r - V)²", "rljax.training.learner.credit_metrics", "Falls.", "See explained_variance.",
    ),
    Entry(
        "advantage_correlation", f"{VALUE} {RL}", "-1 to 1",
        "Correlation of a token's advantage with its response's reward: credit that agrees with the outcome.",
        "Pearson's r of A_t and r over response tokens", "rljax.training.learner.credit_metrics",
        "Above 0. A critic that spreads credit over tokens lowers it below 1.",
        "Near or below 0: the advantages are noise; see above.",
    ),
    Entry(
        "value_loss", f"{VALUE} {RL}", "that of the critic's loss", "The critic's loss, mean over its updates of the rollout.",
        "Σ w · critic.loss(V, V_old, R)", "rljax.algorithms.losses.value_loss", "Falls, then follows the policy.",
        "Rises without end: a lower --critic-learning-rate.",
    ),
    Entry(
        "value_explained_variance", f"{VALUE} {RL}", "at most 1",
        "How much of its targets' variance the critic explains, before each of its updates; with several updates it has "
        "learned from the same rollout already.",
        "1 - Var[R - V] / Var[R], R the targets", "rljax.algorithms.metrics.explained_variance_of",
        "Above explained_variance.", "Compare with explained_variance: a wide gap is overfitting.",
    ),
    Entry(
        "value_grad_norm", f"{VALUE} {RL}", "", "Euclidean norm of the critic's gradient before it is clipped.",
        "√Σ g²", "rljax.training.value_update.make_value_step", "Steady.", "Spikes: a lower --critic-learning-rate.",
    ),
    Entry(
        "skipped_value_updates", f"{VALUE} {RL}", "share of updates, 0 to 1",
        "Share of the critic's updates that were not made because the loss or the gradient was not finite.",
        "share of updates", "rljax.training.guard.skipped", "0.", "As for skipped_updates, with --critic-learning-rate.",
    ),
    *(
        Entry(
            f"lambda_{share}", RL, "0 to 1", f"{words} of the policy's λ over responses, where λ depends on the length.",
            "λ = 1 - 1 / (α · length), within 0 and 1", "rljax.ops.gae.length_adaptive_lambda",
            "Nearer to 1 for long responses.", "Change alpha (--algorithm-options alpha=...).",
        )
        for share, words in ((10, "10th percentile"), (50, "Median"), (90, "90th percentile"))
    ),
)  # fmt: skip
_PAIRS = (
    Entry(
        "margin", PAIRS, "nats", "Mean difference of the implicit rewards of the preferred and the other response (preference).",
        "mean of reward(chosen) - reward(rejected)", "rljax.preference.direct_update.judge_logps",
        "Rises from 0.", "Rises on training pairs only: overfitting; fewer --epochs.",
    ),
    Entry(
        "chosen_logp", PAIRS, "nats", "Mean log-probability of a preferred response, summed over its tokens (preference).",
        "mean of Σ_t log π(o_t)", "rljax.preference.direct_update.judge_logps",
        "Often falls a little, while rejected_logp falls more.", "Falls by much: a larger beta, or a loss with a likelihood term.",
    ),
    Entry(
        "rejected_logp", PAIRS, "nats", "The same of the other response.",
        "mean of Σ_t log π(o_t)", "rljax.preference.direct_update.judge_logps", "Falls.", "See chosen_logp.",
    ),
    Entry(
        "reference_point", PAIRS, "nats", "KTO's reference point: estimated KL of the policy from the reference, at least 0.",
        "max(0, mean of log π - log π_ref over mismatched pairs)", "rljax.ops.direct_preference.kto_reference_point",
        "Small.", "Grows: a larger beta or a lower --learning-rate.",
    ),
    Entry(
        "lead", PAIRS, "that of the score", "Mean difference of the scores of the preferred and the other response (reward model).",
        "mean of score(chosen) - score(rejected)", "rljax.preference.pair_update.judge_pairs",
        "Rises.", "See accuracy: that decides.",
    ),
    Entry(
        "score", PAIRS, "that of the score", "Mean score of all responses (reward model).",
        "mean of the scores", "rljax.preference.pair_update.judge_pairs",
        "Anything: the loss sees differences only.", "Nothing.",
    ),
    Entry(
        "score_deviation", PAIRS, "that of the score", "Standard deviation of the scores of held-out responses (reward model).",
        "√ mean of (score - mean)²", "rljax.preference.pair_update.judge_pairs",
        "Grows with confidence.", "Very large with a low accuracy: overfitting; fewer --epochs.",
    ),
)  # fmt: skip
_TIME = (
    Entry(
        "tokens_per_second", RL, "tokens per second", "Sampled tokens divided by the time of the whole step, learning included.",
        "Σ |o| / seconds", "rljax.training.metrics.rollout_metrics",
        "Steady; low in steps that compile.", "Falls: look at tries, response_length and the time that the reward takes.",
    ),
    Entry(
        "seconds", f"{WARM} {VALUE} {RL} {PAIRS}", "seconds", "Time of the whole step.",
        "wall time", "rljax.training.metrics.rollout_metrics", "Steady after the first step, which compiles.",
        "See tokens_per_second.",
    ),
)  # fmt: skip
GLOSSARY = (*_OUTCOMES, *_SAMPLING, *_POLICY, *_CRITIC, *_PAIRS, *_TIME)
"""Every number that `metrics.jsonl` can hold, besides `phase` and `step`."""
LABELS = {metric.key: metric.label for metric in METRICS} | {"accuracy": f"{CORRECT}, {POSITIVE} or {IN_ORDER}"}
"""Names on the screen, where they differ or not."""


def explained(name: str) -> Entry:
    """Find the entry of a number by its name in `metrics.jsonl` or on the screen.

    Raises:
        InputError: there is none; the message has the nearest names.

    Example:
        >>> explained("KL").name, explained("filtered groups").name, explained("accuracy_to_64_tokens").name
        ('kl', 'filtered_ratio', 'accuracy_to_{N}_tokens')
    """
    wanted = _plain(name)
    for entry in GLOSSARY:
        if wanted in (_plain(word) for word in names_of(entry)):
            return entry
    for entry in GLOSSARY:
        parts = re.split(r"\{N\}|\{NAME\}", entry.name)
        if len(parts) > 1 and re.fullmatch(".+".join(map(re.escape, parts)), wanted):
            return entry
    known = [word for entry in GLOSSARY for word in names_of(entry)]
    raise InputError(f"There is no number {name!r}{did_you_mean(wanted, known)} `rljax explain` lists all of them.")


def names_of(entry: Entry) -> Iterator[str]:
    """Names of a number: in `metrics.jsonl`, and on the screen."""
    yield entry.name
    if entry.name in LABELS:
        yield from re.split(", | or ", LABELS[entry.name])


def _plain(name: str) -> str:
    return name.strip().removeprefix("held-out ").lower().replace(" ", "_").replace("-", "_")
