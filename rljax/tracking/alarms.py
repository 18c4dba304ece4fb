"""Alarms: what is wrong with a run, what that means, and which setting to change. They depend only on metric rows.

An alarm is raised when its condition is met, and cleared when the condition has not been met for `QUIET` rows. So a problem is
reported once, and again only if it disappears and returns. Because alarms depend only on the rows, a resumed run and a report on a
finished run raise the same alarms.
"""

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from rljax.tracking.alarm_conditions import (
    LONG,
    AlarmCondition,
    Either,
    History,
    Limit,
    Row,
    above,
    absent,
    below,
    both,
    fallen_to,
    groups_are_missing,
    has_improved,
    heldout_falls,
    is_one_sided,
    nothing_is_trained,
    reward_falls,
    reward_follows_length,
    risen_to,
    spiked,
    spread_vanished,
    unless,
)
from rljax.tracking.rows import read_metrics
from rljax.tracking.run_folder import RunFolder

QUIET = 10
"""An alarm is cleared once its condition has not been met in this number of consecutive rows."""


class Remedy(NamedTuple):
    """A change to a setting that may help."""

    flag: str
    """The option of `rljax train` to change first."""
    change: str
    """What to change, in the imperative."""
    why: str
    """Why the change helps."""


class Alarm(NamedTuple):
    """A way in which a run can go wrong, and its remedy."""

    name: str
    """Name of the alarm."""
    metrics: tuple[str, ...]
    """Metrics that the alarm depends on."""
    condition: AlarmCondition
    """History -> description of the problem; None if there is none."""
    meaning: str
    """What the alarm means."""
    remedy: Remedy
    """What to change."""
    needed: tuple[tuple[str, ...], ...] | None = None
    """Sets of metrics; the alarm can be raised only if a run measures all metrics of one set. None means all of `metrics`."""
    phase: Literal["rl", "eval"] = "rl"
    """Phase of the rows that the metrics are in: RL steps, or held-out evaluations."""

    def missing_metrics(self, measured: Collection[str]) -> tuple[str, ...]:
        """Return the required metrics that a run does not measure; empty if the alarm can be raised."""
        sets = (self.metrics,) if self.needed is None else self.needed
        if any(set(names) <= set(measured) for names in sets):
            return ()
        wanted = {name for names in sets for name in names}
        return tuple(name for name in self.metrics if name in wanted and name not in measured)


ALARMS = (
    Alarm(
        "reward_absent", ("reward",), absent("reward"),
        "The reward abstains on every response, so nothing is learned.",
        Remedy("--reward", "choose a --reward that judges this data, or test your own on completions from samples.jsonl",
               "a reward that always returns None excludes every response"),
        needed=((),),
    ),
    Alarm(
        "reward_constant", ("reward_variance", "reward"), spread_vanished,
        "Every response gets the same reward, or rewards that 32-bit numbers cannot tell apart, so that advantages within a "
        "group are 0: everything is already learned, everything is too hard, or the reward does not depend on the response.",
        Remedy("--difficulty-window", "set --difficulty-window to 0.1 0.9, or use other problems",
               "the window skips problems that are always right or always wrong"),
    ),
    Alarm(
        "no_answer_stated", ("unstated_share",), above("unstated_share", 0.5),
        "Most responses state no answer in the form that the reward reads, so they earn nothing even when they are right.",
        Remedy("--reward", "use --reward math_or_last_number, which is lenient, or describe the form in the prompt "
               "(`rljax explain REWARD`)",
               "a model that has not been trained on the form writes `12 + 13 = 25` without a box"),
        needed=((),),
    ),
    Alarm(
        "reward_falls", ("reward", "reward_variance"), reward_falls,
        "The policy has become worse at what it is trained for.",
        Remedy("--learning-rate", "divide --learning-rate by 3, and start from the best checkpoint "
               "(`rljax export RUN MODEL`)",
               "updates that are too large destroy more than they improve"),
    ),
    Alarm(
        "heldout_falls", ("accuracy",), heldout_falls,
        "The policy gets worse on problems that it is not trained on: it exploits the reward, or memorizes the training "
        "problems.",
        Remedy("--steps", "stop here, or lower --steps, and use the best checkpoint",
               "later checkpoints are worse on everything but the training problems"),
        phase="eval",
    ),
    Alarm(
        "entropy_collapse", ("entropy",), fallen_to("entropy", 0.1),
        "The policy hardly explores any more: the responses to a prompt become identical, and the reward stops improving. This "
        "is harmless only if the reward is near its maximum.",
        Remedy("--learning-rate", "divide --learning-rate by 3, or use an algorithm with a higher upper clip "
               "(--algorithm dapo)",
               "smaller updates, and room for rare tokens, preserve the policy's alternatives"),
    ),
    Alarm(
        "entropy_explosion", ("entropy",), risen_to("entropy", 3.0, by=0.3),
        "The policy becomes random: it forgets how to write.",
        Remedy("--learning-rate", "divide --learning-rate by 3, and use a smaller entropy bonus if the algorithm has one",
               "noise in large updates, and a bonus for entropy, both flatten the distribution"),
    ),
    Alarm(
        "far_from_reference", ("kl_to_reference",), above("kl_to_reference", 0.1),
        "The policy has moved away from its initial model by more than 0.1 nats per token. It may have lost abilities of "
        "that model.",
        Remedy("--algorithm-options", "double beta in --algorithm-options",
               "beta is the weight of the penalty on the distance from the reference"),
    ),
    Alarm(
        "large_steps", ("kl",), above("kl", 0.1),
        "One rollout's updates change the policy by more than 0.1 nats per token, so the later updates learn from samples that "
        "no longer match the policy.",
        Remedy("--minibatches", "halve --minibatches, or divide --learning-rate by 3",
               "fewer or smaller updates follow each rollout"),
    ),
    Alarm(
        "advantage_jumps", ("advantage_variance",), spiked("advantage_variance", 10.0),
        "The scale of the rewards or critic values, and with it that of the advantages, has changed within a few steps.",
        Remedy("--reward", "look in samples.jsonl for very large values of --reward; with a critic, lower "
               "--critic-learning-rate",
               "one huge reward outweighs all others"),
    ),
    Alarm(
        "gradient_jumps", ("grad_norm",), spiked("grad_norm", 10.0),
        "The gradient is ten times as large as usual, which often comes before a collapse.",
        Remedy("--max-grad-norm", "halve --max-grad-norm, or divide --learning-rate by 3",
               "either limits how much one update can change"),
    ),
    Alarm(
        "updates_skipped", ("skipped_updates",), above("skipped_updates", 0.1, over=LONG),
        "More than a tenth of the updates were skipped, because the loss or gradient was not finite, or the update was far too "
        "large.",
        Remedy("--learning-rate", "divide --learning-rate by 3", "parameters that are too large overflow"),
    ),
    Alarm(
        "critic_blind", ("explained_variance", "accuracy"),
        unless(is_one_sided, below("explained_variance", 0.02, over=LONG, after=20)),
        "The critic does not predict the outcome, so its advantages are noise.",
        Remedy("--value-pretraining-steps", "set --value-pretraining-steps to 50 or more, or try another "
               "--critic-learning-rate",
               "a critic that is trained before the policy changes starts with meaningful values"),
        needed=(("explained_variance",),),
    ),
    Alarm(
        "clipped_low", ("clip_fraction_low",), above("clip_fraction_low", 0.2),
        "More than a fifth of the tokens with a negative advantage are clipped: updates overshoot.",
        Remedy("--minibatches", "halve --minibatches, or divide --learning-rate by 3",
               "the ratio then leaves the clip range more slowly"),
    ),
    Alarm(
        "clipped_high", ("clip_fraction_high",), above("clip_fraction_high", 0.2),
        "More than a fifth of the tokens with a positive advantage are clipped: updates overshoot.",
        Remedy("--minibatches", "halve --minibatches, or divide --learning-rate by 3",
               "the ratio then leaves the clip range more slowly"),
    ),
    Alarm(
        "exploration_clipped", ("clip_fraction_high", "up_clipped_probability"),
        both(above("clip_fraction_high", 0.05), below("up_clipped_probability", 0.1)),
        "The upper clip limits rare tokens that earned a reward, so exploration does not pay off.",
        Remedy("--algorithm-options", "set clip_high to 0.28 or more in --algorithm-options",
               "the upper clip limits how fast rare tokens become more likely"),
    ),
    Alarm(
        "truncated", ("truncated_share",), above("truncated_share", 0.25),
        "Many responses are truncated before they end, mostly without an answer.",
        Remedy("--max-response-tokens", "double --max-response-tokens, or use an algorithm with an overlong penalty, such as dapo",
               "responses then have room to finish, or a reason to be brief"),
    ),
    Alarm(
        "repetition", ("repetition",), above("repetition", 0.5),
        "Most of a response repeats its own earlier text: the policy loops.",
        Remedy("--learning-rate", "divide --learning-rate by 3, and start from the best checkpoint",
               "loops come from updates that damage the model"),
    ),
    Alarm(
        "length_grows", ("response_length", "accuracy", "reward"), unless(has_improved, risen_to("response_length", 2.0)),
        "Responses are twice as long as at the start, are right no more often, and earn no more.",
        Remedy("--algorithm", "use --algorithm dr_grpo or dapo, which weight all tokens equally",
               "dividing by the length favors long wrong responses"),
        needed=(("response_length",),),
    ),
    Alarm(
        "length_shrinks", ("response_length", "accuracy", "reward"),
        unless(has_improved, fallen_to("response_length", 0.4)),
        "Responses are less than half as long as at the start, are right no more often, and earn no more: the policy no longer "
        "works out the problem.",
        Remedy("--reward", "use a --reward that does not pay for brevity, or a weaker length penalty",
               "the present reward pays more for brevity than for the task"),
        needed=(("response_length",),),
    ),
    Alarm(
        "reward_follows_length", ("reward_length_correlation", "response_length"), reward_follows_length,
        "The reward can be earned by length alone, and the policy exploits that.",
        Remedy("--reward", "use a --reward that does not grow with length, or add a length penalty",
               "the policy maximizes whatever it is paid for"),
    ),
    Alarm(
        "one_response", ("commonest_response",), above("commonest_response", 0.8),
        "The policy gives the same response to nearly every prompt. If that response earns a high reward, the policy has "
        "exploited the reward.",
        Remedy("--reward", "use a --reward that compares the response with the problem's answer",
               "a constant response can satisfy the present reward"),
    ),
    Alarm(
        "too_easy", ("groups_all_right",), above("groups_all_right", 0.9, over=LONG),
        "In nine groups of ten, all responses are right: there is little left to learn from these problems.",
        Remedy("--difficulty-window", "set --difficulty-window to 0.1 0.9, or use harder problems",
               "the window skips problems that are always right"),
    ),
    Alarm(
        "too_hard", ("groups_all_wrong",), above("groups_all_wrong", 0.8, over=LONG),
        "In four groups of five, all responses are wrong: almost nothing shows the policy what to do.",
        Remedy("--group-size", "double --group-size, use easier problems, or add a warm start",
               "one right response in a group is enough to learn from"),
    ),
    Alarm(
        "groups_missing", ("unfilled_groups", "trained_groups"), groups_are_missing,
        "Dynamic sampling finds fewer than half of the groups that a step should train on.",
        Remedy("--max-tries", "raise --max-tries, or use other problems",
               "more rounds find more groups whose rewards differ"),
    ),
    Alarm(
        "nothing_trained", ("trained_groups", "grad_norm"), nothing_is_trained,
        "There are groups with a signal, but they produce no gradient: a correction or a mask excludes every token, or all "
        "advantages are 0.",
        Remedy("--sampling-mask", "set --sampling-mask to 512 if --top-k or --top-p is set; otherwise widen the bounds of "
               "--correction",
               "without a mask, a correction mistakes truncated sampling for a changed policy"),
        needed=(("trained_groups",),),
    ),
    Alarm(
        "tokens_masked", ("surrogate_masked",), above("surrogate_masked", 0.25),
        "A large fraction of the tokens is excluded because the sampler and the learner disagree about them.",
        Remedy("--sampling-mask", "set --sampling-mask to 512 if --top-k or --top-p is set; otherwise raise "
               "--off-policy-delta or lower --learning-rate",
               "without a mask, truncated sampling counts as a changed policy"),
        needed=((),),
    ),
    Alarm(
        "sampler_gap", ("sampler_gap", "staleness"), Either(above("sampler_gap", 0.01), above("staleness", 4.0)),
        "The policy that samples differs from the policy that learns: the sampler's weights are stale, or its numerics differ.",
        Remedy("--correction", "use --correction capped, or a sampler with the newest weights",
               "the correction weights each token by how much the two policies disagree"),
        needed=(("sampler_gap",), ("staleness",)),
    ),
)  # fmt: skip
"""All alarms."""
BY_NAME = MappingProxyType({alarm.name: alarm for alarm in ALARMS})
LIMITS = MappingProxyType(
    {
        condition.name: condition.limit
        for alarm in ALARMS
        for condition in (alarm.condition if isinstance(alarm.condition, Either) else (alarm.condition,))
        if isinstance(condition, Limit)
    }
)
"""Metric -> the fixed limit beyond which this metric alone raises an alarm; plots show it."""


class Event(NamedTuple):
    """The raising or clearing of an alarm."""

    step: int
    """RL step."""
    alarm: Alarm
    """The alarm."""
    what: Literal["raised", "cleared"]
    """Whether the alarm is raised or cleared."""
    seen: str
    """Description of the problem that its condition detected; empty if the alarm is cleared."""

    def text(self) -> str:
        """Format the event as a paragraph for the screen and the log."""
        name, remedy = self.alarm.name.replace("_", " "), self.alarm.remedy
        if self.what == "cleared":
            return f"{name}: cleared at step {self.step}."
        return f"{name} at step {self.step}: {self.seen}. {self.alarm.meaning} {advice(remedy)}"

    def to_json(self) -> dict[str, Any]:
        """Return the row of `alarms.jsonl`."""
        row = {"step": self.step, "alarm": self.alarm.name, "event": self.what}
        if self.what == "cleared":
            return row
        row |= {"seen": self.seen, "metrics": list(self.alarm.metrics), "meaning": self.alarm.meaning}
        return row | self.alarm.remedy._asdict()


def advice(remedy: Remedy) -> str:
    """Format a remedy as a sentence.

    Example:
        >>> advice(Remedy("--learning-rate", "divide --learning-rate by 3", "smaller steps destroy less"))
        'Divide --learning-rate by 3: smaller steps destroy less.'
    """
    return f"{remedy.change[0].upper()}{remedy.change[1:]}: {remedy.why}."


class AlarmState(NamedTuple):
    """State of the alarms after some rows of a run."""

    history: History = History()
    """Rows that conditions read."""
    quiet: Mapping[str, int] = MappingProxyType({})
    """Name of each raised alarm -> number of rows since its condition was last met."""

    @property
    def active(self) -> frozenset[str]:
        """Names of the raised alarms whose condition was met at the last row."""
        return frozenset(name for name, rows in self.quiet.items() if rows == 0)

    def after_row(self, row: Row) -> tuple["AlarmState", list[Event]]:
        """Add a row of `metrics.jsonl`; return the new state, and the alarms that the row raises and clears.

        Args:
            row: the row; metrics that are None or not finite count as absent.
        """
        history = self.history.after_row(row)
        if row["phase"] not in ("rl", "eval"):
            return self, []
        quiet, events = dict(self.quiet), []
        for alarm in ALARMS:
            seen, is_raised = alarm.condition(history), alarm.name in quiet
            if seen is not None:
                quiet[alarm.name] = 0
                if not is_raised:
                    events.append(Event(row["step"], alarm, "raised", seen))
            elif is_raised:
                quiet[alarm.name] += 1
                if quiet[alarm.name] >= QUIET:
                    del quiet[alarm.name]
                    events.append(Event(row["step"], alarm, "cleared", ""))
        return AlarmState(history, quiet), events


def watch_rows(rows: Iterable[Row]) -> tuple[AlarmState, list[Event]]:
    """Return the state after all rows of a run, and every alarm that they raised and cleared.

    Example:
        >>> _, events = watch_rows({"phase": "rl", "step": step, "truncated_share": 0.5} for step in range(1, 9))
        >>> [(event.step, event.alarm.name, event.what) for event in events if event.alarm.name == "truncated"]
        [(5, 'truncated', 'raised')]
    """
    watch, events = AlarmState(), []
    for row in rows:
        watch, new = watch.after_row(row)
        events += new
    return watch, events


def unmeasured_alarms(history: History, events: Sequence[Event]) -> dict[str, tuple[str, ...]]:
    """Return the alarms that cannot be raised because the run does not measure their metrics, with the missing metrics.

    Args:
        history: history of the run.
        events: events of the run; alarms that were raised are omitted.

    Example:
        >>> watch, events = watch_rows([{"phase": "rl", "step": 1, "entropy": 0.5}])
        >>> absent = unmeasured_alarms(watch.history, events)
        >>> absent["far_from_reference"], "entropy_collapse" in absent
        (('kl_to_reference',), False)
    """
    rows = {"rl": (*history.first, *history.recent), "eval": history.heldout}
    measured = {phase: {name for row in found for name in row if row[name] is not None} for phase, found in rows.items()}
    raised = {event.alarm.name for event in events}
    missing = {alarm.name: alarm.missing_metrics(measured[alarm.phase]) for alarm in ALARMS if alarm.name not in raised}
    return {name: metrics for name, metrics in missing.items() if metrics}


def list_raised_alarms(folder: RunFolder) -> list[str]:
    """List the alarms that were raised, and the command that explains them; empty if none was raised."""
    _, found = watch_rows(read_metrics(folder.metrics))
    names = [f"{event.alarm.name.replace('_', ' ')} (step {event.step})" for event in found if event.what == "raised"]
    if not names:
        return []
    return [f"Alarms: {', '.join(names)}. `rljax doctor {shlex.quote(str(folder.path))}` explains what to change."]
