"""Meaning of every number in `metrics.jsonl`: one table, from which `rljax explain` prints.

`{N}` in a name stands for a number of tokens, `{NAME}` for a name of the run's own.
"""

import re
from collections.abc import Iterator

from rljax.errors import InputError
from rljax.text import did_you_mean
from rljax.tracking.display_text import CORRECT, IN_ORDER, METRICS, POSITIVE
from rljax.tracking.glossary_entry import HELD, PAIRS, RL, VALUE, WARM, Entry
from rljax.tracking.glossary_learning import CRITIC, POLICY
from rljax.tracking.glossary_rollout import OUTCOMES, SAMPLING

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
        "seconds", f"{WARM} {VALUE} {RL} {HELD} {PAIRS}", "seconds",
        "Time of the whole step, or of the held-out evaluation (eval). Saving is not in it.",
        "wall time", "rljax.training.metrics.rollout_metrics", "Steady after the first step, which compiles.",
        "See the times of its parts (sample_seconds and so on), and tokens_per_second.",
    ),
    Entry(
        "sample_seconds", RL, "seconds", "Time in which responses were drawn and arranged in groups, judging left out.",
        "wall time", "rljax.tracking.phase_times.Stopwatch",
        "The largest part where responses are long. It follows the longest response and tries.",
        "Too large: more rows at once (--cache-memory), a smaller --max-response-tokens, and see tries.",
    ),
    Entry(
        "judge_seconds", RL, "seconds", "Time in which the reward or the environment judged the responses.",
        "wall time", "rljax.tracking.phase_times.Stopwatch",
        "Small beside sample_seconds.",
        "Too large: the devices wait for the reward. Make it faster, or let it judge meanwhile (--reward-groups).",
    ),
    Entry(
        "score_seconds", RL, "seconds",
        "Time in which scores of the rollout were computed before its updates: those of the reference, the teacher and the critic.",
        "wall time", "rljax.tracking.phase_times.Stopwatch",
        "Near 0 without reference, teacher and critic; else up to half of update_seconds.",
        "Larger than update_seconds: a smaller teacher or critic, or an algorithm without a reference.",
    ),
    Entry(
        "update_seconds", RL, "seconds", "Time in which the batch was prepared, and policy and critic were updated.",
        "wall time", "rljax.tracking.phase_times.Stopwatch",
        "Steady after the first step, which compiles.",
        "Too large: a larger --microbatch-rows if memory allows it, and no remat that is not needed; see `rljax plan`.",
    ),
    Entry(
        "save_seconds", RL, "seconds",
        "Time in which the state was copied for a checkpoint after the step before; the disk is written to beside the steps.",
        "wall time", "rljax.tracking.phase_times.Stopwatch",
        "Small, and absent where nothing was saved.",
        "Too large: a larger --checkpoint-every.",
    ),
    Entry(
        "wait_seconds", RL, "seconds", "Time in which the loop waited for the checkpoint before to be on the disk.",
        "wall time", "rljax.tracking.phase_times.Stopwatch",
        "Near 0, and absent where nothing was waited for.",
        "Above save_seconds: the disk is slower than the steps; a larger --checkpoint-every, or another disk.",
    ),
)  # fmt: skip
GLOSSARY = (*OUTCOMES, *SAMPLING, *POLICY, *CRITIC, *_PAIRS, *_TIME)
"""Every number that `metrics.jsonl` can hold, besides `phase` and `step`."""
LABELS = {metric.key: metric.label for metric in METRICS} | {"accuracy": f"{CORRECT}, {POSITIVE} or {IN_ORDER}"}
"""Names on the screen, where they differ or not."""


def find_entry(name: str) -> Entry:
    """Find the entry of a number by its name in `metrics.jsonl` or on the screen.

    Raises:
        InputError: there is none; the message has the nearest names.

    Example:
        >>> find_entry("KL").name, find_entry("filtered groups").name, find_entry("accuracy_to_64_tokens").name
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
