"""Glossary of the numbers of sampling: what the responses are like, and which of them are trained on."""

from rljax.tracking.glossary_entry import HELD, PAIRS, RL, Entry

OUTCOMES = (
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
        "Share of responses that a verifier finds correct; without a verifier, of those with a reward above 0. For pairs, "
        "the share whose preferred response has the higher score or implicit reward.",
        "mean of [correct], or of [r > 0] without a verifier; for pairs of [chosen > rejected], a tie counts as wrong",
        "rljax.training.metrics.rollout_metrics",
        "Rises. In eval rows answers are greedy, in rl rows they are sampled, so the second is usually lower.",
        "With graded or negative rewards it says little: read reward instead. `rljax eval RUN` gives its 95 % interval.",
    ),
    Entry(
        "accuracy_to_{N}_tokens", HELD, "share, 0 to 1",
        "Held-out accuracy of the answers of at most N tokens and more than N/2 (the first range begins at 1).",
        "as accuracy, over the answers in that range of length",
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
        "turns", RL, "turns",
        "Mean number of turns of the policy in a response: 1 without an environment.",
        "mean of the turns of a response", "rljax.training.metrics.rollout_metrics",
        "What the task needs; it changes as the policy learns to ask or to act.",
        "Near the environment's max_turns: episodes are cut off; read truncated_share. Falling to 1: the policy no longer uses "
        "what the environment answers; read samples.jsonl.",
    ),
    Entry(
        "truncated_share", f"{RL} {HELD}", "share, 0 to 1",
        "Share of responses that reached the token budget, or an environment's limit of turns, before they ended.",
        "mean of [cut off]", "rljax.training.metrics.rollout_metrics",
        "Below 0.1, and falling.",
        "Raise --max-response-tokens, or use DAPO's overlong penalty (--algorithm-options max_length=... cache=...).",
    ),
    Entry(
        "reward_variance", RL, "reward squared", "Variance of the reward over all sampled responses.",
        "mean of (r - mean)²", "rljax.training.metrics.rollout_metrics",
        "Above 0. With rewards of 0 and 1 it is at most 0.25, and small where nearly all are right or wrong.",
        "At 0 the reward does not tell responses apart, and group-relative advantages are 0: see groups_all_right and "
        "groups_all_wrong.",
    ),
    Entry(
        "reward_length_correlation", RL, "-1 to 1", "Correlation of a response's reward with its number of tokens.",
        "Pearson's r of r and |o|; absent if one of them is the same for all",
        "rljax.training.monitoring.response_statistics.correlation",
        "Within -0.5 and 0.5. In a task whose right answers are long it is higher.",
        "Near 1 while responses grow: the reward pays for length. Read samples.jsonl; subtract a length penalty from the reward.",
    ),
    Entry(
        "repetition", RL, "share, 0 to 1", "Share of the runs of 8 tokens that occurred earlier in the same response.",
        "1 - distinct runs / runs, mean over responses", "rljax.training.monitoring.response_statistics.repetition",
        "Below 0.3. Tables and code repeat more than prose.",
        "Above 0.5: responses loop. Lower --learning-rate, and see truncated_share.",
    ),
    Entry(
        "commonest_response", RL, "share, 0 to 1", "Share of the responses that are the most frequent one, whatever the prompt.",
        "largest count of equal responses / responses", "rljax.training.monitoring.response_statistics.commonest_share",
        "Near 0, or the share of the most frequent choice where a response is a single choice.",
        "Near 1: one answer serves every prompt, so the reward can be earned without reading it. Look at samples.jsonl, and make "
        "the reward depend on the answer.",
    ),
    Entry(
        "reward_{NAME}", f"{RL} {HELD}", "that of the part",
        "Mean of one part of a reward of several parts, over the responses that have it. Of a rule of a constitution it is the "
        "share of responses that break it.",
        "mean of r_NAME, before its weight", "rljax.rollout.groups.part_means",
        "Each part of positive weight rises, or at least does not fall.",
        "If one part falls while the sum rises, the parts pull against each other: change --reward-weights.",
    ),
)  # fmt: skip
SAMPLING = (
    Entry(
        "filtered_ratio", RL, "share, 0 to 1",
        "Share of the sampled groups that dynamic sampling dropped because all their responses are right or all are wrong "
        "(without a verifier: got the same reward). 0 for algorithms that keep every group.",
        "1 - kept / sampled", "rljax.rollout.collect.collect",
        "0.2 to 0.7; it rises when the problems become too easy.",
        "Near 1 with a low reward: the problems are too hard; easier ones, a warm start or a larger --group-size. Near 1 with "
        "a high reward: too easy; harder ones, or --difficulty-window.",
    ),
    Entry(
        "groups_all_right", RL, "share, 0 to 1",
        "Share of the sampled groups whose responses are all right; without a verifier, of those with one reward, above 0. "
        "Groups of one response are left out.",
        "mean of [all correct], or of [all r equal, and > 0], over groups",
        "rljax.training.monitoring.response_statistics.share_of_groups",
        "Below 0.8; it rises as the problems are learned.",
        "Near 1: too easy; harder problems, or --difficulty-window 0.1 0.9.",
    ),
    Entry(
        "groups_all_wrong", RL, "share, 0 to 1",
        "Share of the sampled groups whose responses are all wrong; without a verifier, of those with one reward, 0 or below. "
        "Groups of one response are left out.",
        "mean of [none correct], or of [all r equal, and <= 0], over groups",
        "rljax.training.monitoring.response_statistics.share_of_groups",
        "Below 0.5, and falling.",
        "Near 1: too hard; easier problems, a warm start, or a larger --group-size.",
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
        "0, or --sampler-delay; a little more where surplus groups are carried over.",
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
