"""Glossary of the numbers of the updates: those of the policy and those of the critic."""

from rljax.tracking.glossary_entry import PAIRS, RL, VALUE, WARM, Entry

POLICY = (
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
        "0 with one update a rollout, up to rounding: it is measured before it is made. With several about 1e-4 to 1e-2.",
        "Above 0.1: a lower --learning-rate, fewer --minibatches or --passes, or a --kl-limit.",
    ),
    Entry(
        "clip_fraction", RL, "share of tokens, 0 to 1",
        "Share of trained tokens whose surrogate passes no gradient, because the probability ratio has left the clip range in "
        "the direction that the advantage pushes.",
        "share of tokens with ∂surrogate/∂log ρ = 0 and A ≠ 0", "rljax.algorithms.losses.loss",
        "0 with one update a rollout. With several: 0.001 to 0.1; sequence-level ratios (GSPO) clip far more.",
        "Above 0.3: updates are too large; a lower --learning-rate or fewer --minibatches.",
    ),
    Entry(
        "clip_fraction_low", RL, "share of tokens, 0 to 1", "The part of clip_fraction whose advantage is negative.",
        "share of tokens with ∂surrogate/∂log ρ = 0 and A < 0", "rljax.algorithms.losses.loss",
        "0 with one update a rollout. Below 0.1 otherwise.",
        "Large: updates push bad tokens down too fast; a lower --learning-rate or fewer --minibatches.",
    ),
    Entry(
        "clip_fraction_high", RL, "share of tokens, 0 to 1", "The part of clip_fraction whose advantage is positive.",
        "share of tokens with ∂surrogate/∂log ρ = 0 and A > 0", "rljax.algorithms.losses.loss",
        "0 with one update a rollout. Below 0.1 otherwise.",
        "Large: good tokens cannot become likelier; see up_clipped_probability, or fewer --minibatches.",
    ),
    Entry(
        "up_clipped_probability", RL, "probability, 0 to 1",
        "Mean probability, before the update, of the tokens of clip_fraction_high; absent if there are none.",
        "mean of π_before over these tokens", "rljax.algorithms.metrics.LossMetrics",
        "Anything, while clip_fraction_high is small.",
        "Below 0.1 with a clip_fraction_high above 0.05: the clip holds back rare tokens that earned a reward; raise the upper "
        "clip (--algorithm-options clip_high=0.28).",
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
        "kl_to_reference", RL, "nats per token",
        "KL divergence of the policy from the reference, measured before the updates, whether or not the loss has it. Absent "
        "for an algorithm that needs no reference.",
        "mean of k3 = exp(d) - d - 1, d = log π_ref - log π", "rljax.training.monitoring.batch_statistics.kl_to_reference",
        "Starts at 0 and grows. At most 0.1 is a cautious target.",
        "Above it: raise beta (--algorithm-options beta=...), name the distance (--kl-target), or lower --learning-rate.",
    ),
    Entry(
        "kl_coefficient", RL, "reward or loss per nat",
        "Coefficient β of the penalty towards the reference in the updates of this step; only with --kl-target, which moves it.",
        "β' = β (1 + K_β clip(KL / target - 1, -0.2, 0.2))", "rljax.ops.reference.adaptive_kl_coefficient",
        "Settles where kl_to_reference is near the target.",
        "Grows without end: the reward pulls harder than this can hold; a lower --learning-rate. Falls towards 0: the policy stays "
        "within the target anyway, and no penalty is needed.",
    ),
    Entry(
        "update_scale", RL, "factor",
        "Factor of the updates of this step, and so of the learning rate; only with --remedy controller, which moves it.",
        "s' = s exp(clip(⅛ log(target / d), -1, log 2 if s < 1 else ¼)), d the divergence by one update for each nat of entropy",
        "rljax.training.controller.next_control",
        "Begins at 0.01, and settles within some 20 steps, where d is near its target.",
        "At 0.01 or 100 it can do no more: --learning-rate is wrong by more than that.",
    ),
    Entry(
        "clip_scale", RL, "factor",
        "Factor of both sides of the clip range in this step; only with --remedy controller, and an algorithm that clips on both.",
        "clip(√(target / d), ½, 1)", "rljax.training.controller.next_control", "1, but for steps after too large a one.",
        "Stays at 0.5: the updates are still too large; see update_scale.",
    ),
    Entry(
        "entropy_weight", RL, "loss per nat",
        "Coefficient of the entropy bonus in this step; only with --remedy controller.",
        "w' = clip(w + 0.001 clip(1 - H / (0.1 H₀), -1, 1), 0, 0.01)", "rljax.training.controller.next_control",
        "0 while the entropy is above a tenth of its first value.",
        "At 0.01 while the entropy stays low: harmless if the reward is near its maximum; else a lower --learning-rate.",
    ),
    Entry(
        "sampler_gap", RL, "nats per token",
        "KL divergence of the policy that learns from the one that sampled, measured before an update changes anything: in the "
        "first update, or, with --sampler-delay and a --correction, when the rollout is scored again.",
        "mean of k3(log π as sampled, log π as scored)", "rljax.training.learner.sampler_gap",
        "0 up to rounding: below 1e-5 in float32, below 1e-3 in bfloat16; more with --sampler-delay.",
        "Larger: the samples are stale, or the sampling engine computes other numbers than the learner. Use a --correction.",
    ),
    Entry(
        "updates", RL, "updates", "Policy updates that were made on the rollout; only with --kl-limit, which may end them early.",
        "number of updates until the mean of their kl is above the limit", "rljax.training.passes.is_beyond",
        "planned_updates, or somewhat less.",
        "Always 1 or 2: the limit is tight or the rate high; raise --kl-limit or lower --learning-rate. Always all: it never acts.",
    ),
    Entry(
        "planned_updates", RL, "updates",
        "Policy updates that a rollout has without --kl-limit: mini-batches with a trained token, times passes.",
        "mini-batches x passes", "rljax.training.passes.update_order",
        "--minibatches times --passes.", "Less: some mini-batches have no group to learn from.",
    ),
    Entry(
        "advantage_variance", RL, "advantage squared", "Variance of the advantage over the trained tokens, before the updates.",
        "mean of (A - mean)²", "rljax.training.monitoring.batch_statistics.measured_batch",
        "Near 1 for normalised advantages. For others it falls as the policy becomes sure of its answers.",
        "At 0 there is nothing to learn. Tenfold within a few steps: the reward or the critic has changed its scale.",
    ),
    Entry(
        "sampler_kl", RL, "nats per token",
        "Estimate of the KL divergence of the policy from the one that sampled, a term of the loss.",
        "mean of k3(log π, log π_behaviour)", "rljax.algorithms.terms.kl_to_sampler",
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
        "auxiliary_loss", RL, "nats per token",
        "Negative log-likelihood of the examples of --auxiliary (demonstrations or prompts), before its weight.",
        "mean of -log π over tokens of the examples", "rljax.training.objective.auxiliary.make_auxiliary",
        "Falls, or stays low after a warm start.",
        "If it falls while the reward does too, the weight is too high; lower --auxiliary.",
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
        "share of updates", "rljax.training.monitoring.guard.skip_count", "0.",
        "Rarely: harmless. Often: a lower --learning-rate, or a reward that returns very large numbers. After five steps without a "
        "sound update the run ends.",
    ),
    Entry(
        "learning_rate", f"{WARM} {RL} {PAIRS}", "", "Learning rate of the last update, after warm-up and schedule.",
        "the schedule's value", "rljax.training.objective.optimizer.learning_rate_of",
        "Rises during --learning-rate-warmup, then follows the schedule.",
        "Absent with an optimiser of your own that does not keep it.",
    ),
    Entry(
        "anchor_penalty", f"{WARM} {RL}", "nats times the weight", "Penalty on leaving the first parameters, by --anchor.",
        "(λ/2) Σ F (θ - θ*)²", "rljax.training.objective.anchor.make_pull",
        "Rises from 0, then stays.",
        "The earlier problems are forgotten: a larger --anchor. Nothing new is learned: a smaller one.",
    ),
    Entry(
        "correction_cut", RL, "share of tokens, 0 to 1",
        "Share of trained tokens whose weight the off-policy correction capped or set to 0.",
        "share of tokens", "rljax.training.monitoring.batch_statistics.cut_share",
        "Below 0.05 where sampler and trainer agree.", "Large: sampler and trainer differ (dtype, truncation, staleness).",
    ),
    Entry(
        "teacher_kl", RL, "nats per token", "Estimate of the KL divergence of the policy from the teacher, before the updates.",
        "mean of log π - log π_teacher", "rljax.training.monitoring.batch_statistics.teacher_kl",
        "Falls towards 0.", "Stays: raise --learning-rate, or the teacher is too far away for this model.",
    ),
)  # fmt: skip
CRITIC = (
    Entry(
        "explained_variance", f"{VALUE} {RL}", "at most 1",
        "How much of the outcome's variance the critic's values predict, on a rollout that it has not learned from.",
        "1 - Var[r - V] / Var[r], over response tokens; 0 if all outcomes agree", "rljax.training.lesson.outcome_explained",
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
        "share of updates", "rljax.training.monitoring.guard.skip_count", "0.",
        "As for skipped_updates, with --critic-learning-rate.",
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
