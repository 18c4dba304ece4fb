"""Alarms: what is wrong with a run, what that means, and which setting to change. One table, pure over the rows of metrics.

An alarm is raised when its crossing sees something, and cleared when the crossing has seen nothing for `QUIET` rows. So each
trouble is said once, until it has gone and comes back. What is raised depends on the rows alone: a resumed run, and a report on a
finished one, find the same.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from rljax.records import documented
from rljax.tracking.crossings import (
    LONG,
    Crossing,
    History,
    Row,
    above,
    absent,
    below,
    both,
    either,
    fallen_to,
    groups_are_missing,
    heldout_falls,
    is_one_sided,
    learning_shows,
    reward_falls,
    reward_follows_length,
    risen_to,
    spiked,
    unless,
    vanished,
)

QUIET = 10
"""Rows without a crossing after which an alarm is cleared."""


@documented
class Remedy(NamedTuple):
    """A change of a setting that may help."""

    flag: str
    """Flag of `rljax train`."""
    change: str
    """How to change it."""
    why: str
    """Why that helps."""


@documented
class Alarm(NamedTuple):
    """A way in which a run goes wrong."""

    name: str
    """Its name."""
    metrics: tuple[str, ...]
    """Numbers that it looks at."""
    crossing: Crossing
    """History -> what was seen, in words; None if all is well."""
    meaning: str
    """What it means."""
    remedy: Remedy
    """What to change."""
    needed: tuple[tuple[str, ...], ...] | None = None
    """Sets of these numbers, of which a run has to measure one, whole, for the alarm to be raised; None: all of `metrics`."""

    def lacking(self, measured: Collection[str]) -> tuple[str, ...]:
        """Numbers without which it cannot be raised, and that are not among those which a run measures; empty if it can be."""
        sets = (self.metrics,) if self.needed is None else self.needed
        if any(set(names) <= set(measured) for names in sets):
            return ()
        wanted = {name for names in sets for name in names}
        return tuple(name for name in self.metrics if name in wanted and name not in measured)


ALARMS = (
    Alarm(
        "reward_absent", ("reward",), absent("reward"),
        "The reward has no opinion on any response, so nothing is learned.",
        Remedy("--reward", "choose one that judges this data, or call yours on completions of samples.jsonl",
               "a reward that returns None throughout leaves every response out"),
        needed=((),),
    ),
    Alarm(
        "reward_constant", ("reward_variance",), vanished("reward_variance"),
        "Every response gets the same reward: everything is learned already, everything is too hard, or the reward does not look "
        "at the response. Advantages within a group are 0.",
        Remedy("--difficulty-window", "0.1 0.9, or other problems", "it leaves out problems that are always right or always wrong"),
    ),
    Alarm(
        "reward_falls", ("reward", "reward_variance"), reward_falls,
        "The policy has become worse at what it is trained for.",
        Remedy("--learning-rate", "a third of it, from the best checkpoint (`rljax export RUN MODEL`)",
               "updates that are too large destroy more than they teach"),
    ),
    Alarm(
        "heldout_falls", ("accuracy",), heldout_falls,
        "The policy becomes worse on problems that it is not trained on: it exploits the reward, or learns the training problems "
        "by heart.",
        Remedy("--steps", "stop here, and use the best checkpoint", "later ones are worse on everything but the training problems"),
    ),
    Alarm(
        "entropy_collapse", ("entropy",), fallen_to("entropy", 0.1),
        "The policy hardly explores any more: the responses to a prompt become equal, and the reward stops where it is. Harmless "
        "only if the reward is near its maximum.",
        Remedy("--learning-rate", "a third of it, or an algorithm with a higher upper clip (--algorithm dapo)",
               "smaller updates, and room for rare tokens, keep the policy's alternatives alive"),
    ),
    Alarm(
        "entropy_explosion", ("entropy",), risen_to("entropy", 3.0, by=0.3),
        "The policy becomes random: it forgets how to write.",
        Remedy("--learning-rate", "a third of it; and a smaller entropy bonus, if the algorithm has one",
               "noise in large updates, and a bonus for entropy, both flatten the distribution"),
    ),
    Alarm(
        "far_from_reference", ("kl_to_reference",), above("kl_to_reference", 0.1),
        "The policy has moved away from the model that it began as, by more than 0.1 nats a token. It may have lost what "
        "that could do.",
        Remedy("--algorithm-options", "beta=... twice as large", "beta weighs the penalty for the distance"),
    ),
    Alarm(
        "large_steps", ("kl",), above("kl", 0.1),
        "One rollout's updates change the policy by more than 0.1 nats a token, so the later ones learn from samples that "
        "no longer fit.",
        Remedy("--minibatches", "half as many, or a third of --learning-rate", "fewer and smaller updates follow one rollout"),
    ),
    Alarm(
        "advantage_jumps", ("advantage_variance",), spiked("advantage_variance", 10.0),
        "The advantage has changed its scale within a few steps: the reward, or the critic, has.",
        Remedy("--reward", "look for very large values in samples.jsonl; with a critic, lower --critic-learning-rate",
               "one huge reward outweighs all others"),
    ),
    Alarm(
        "gradient_jumps", ("grad_norm",), spiked("grad_norm", 10.0),
        "The gradient is ten times as large as usual, which often comes before a collapse.",
        Remedy("--max-grad-norm", "half of it, or a third of --learning-rate", "it bounds the length of an update"),
    ),
    Alarm(
        "updates_skipped", ("skipped_updates",), above("skipped_updates", 0.1, over=LONG),
        "More than a tenth of the updates were skipped, because loss or gradient was not finite or the update far too large.",
        Remedy("--learning-rate", "a third of it", "parameters that are too large overflow"),
    ),
    Alarm(
        "critic_blind", ("explained_variance", "accuracy"),
        unless(is_one_sided, below("explained_variance", 0.02, over=LONG, after=20)),
        "The critic does not predict the outcome: its advantages are noise.",
        Remedy("--value-pretraining-steps", "50 or more; or another --critic-learning-rate",
               "a critic that is trained before the policy moves starts with values that mean something"),
        needed=(("explained_variance",),),
    ),
    Alarm(
        "clipped_low", ("clip_fraction_low",), above("clip_fraction_low", 0.2),
        "A fifth of the tokens with a negative advantage are clipped: updates overshoot.",
        Remedy("--minibatches", "half as many, or a third of --learning-rate", "the ratio leaves the clip range more slowly"),
    ),
    Alarm(
        "clipped_high", ("clip_fraction_high",), above("clip_fraction_high", 0.2),
        "A fifth of the tokens with a positive advantage are clipped: updates overshoot.",
        Remedy("--minibatches", "half as many, or a third of --learning-rate", "the ratio leaves the clip range more slowly"),
    ),
    Alarm(
        "exploration_clipped", ("clip_fraction_high", "up_clipped_probability"),
        both(above("clip_fraction_high", 0.05), below("up_clipped_probability", 0.1)),
        "The upper clip holds back tokens that were rare and earned a reward, so exploration does not pay.",
        Remedy("--algorithm-options", "clip_high=0.28 or more", "the upper clip bounds how fast a rare token may become likelier"),
    ),
    Alarm(
        "truncated", ("truncated_share",), above("truncated_share", 0.25),
        "Many responses are cut off before they end, mostly without an answer.",
        Remedy("--max-response-tokens", "twice as many; or DAPO's overlong penalty (max_length and cache in --algorithm-options)",
               "room to finish, or a reason to be brief"),
    ),
    Alarm(
        "repetition", ("repetition",), above("repetition", 0.5),
        "Most of a response repeats what it said before: the policy loops.",
        Remedy("--learning-rate", "a third of it, from the best checkpoint", "loops come from updates that damage the model"),
    ),
    Alarm(
        "length_grows", ("response_length", "accuracy", "reward"), unless(learning_shows, risen_to("response_length", 2.0)),
        "Responses are twice as long as at the start, are not more often right and earn no more.",
        Remedy("--algorithm", "dr_grpo or dapo, which weigh all tokens alike",
               "dividing by the length favours long wrong responses"),
        needed=(("response_length",),),
    ),
    Alarm(
        "length_shrinks", ("response_length", "accuracy", "reward"),
        unless(learning_shows, fallen_to("response_length", 0.4)),
        "Responses are less than half as long as at the start, are not more often right and earn no more: the policy no longer "
        "works the problem out.",
        Remedy("--reward", "one that does not pay for brevity; or a weaker length penalty", "a penalty outweighs the task"),
        needed=(("response_length",),),
    ),
    Alarm(
        "reward_follows_length", ("reward_length_correlation", "response_length"), reward_follows_length,
        "The reward can be earned by length alone, and the policy does that.",
        Remedy("--reward", "one that does not grow with length, or with a length penalty", "the policy maximises what is rewarded"),
    ),
    Alarm(
        "one_response", ("commonest_response",), above("commonest_response", 0.8),
        "The policy gives one and the same response to nearly every prompt. If its reward is good, the reward is hacked.",
        Remedy("--reward", "one that compares with each problem's answer", "a constant can satisfy this one"),
    ),
    Alarm(
        "too_easy", ("groups_all_right",), above("groups_all_right", 0.9, over=LONG),
        "In nine groups of ten, all responses are right: there is little left to learn from these problems.",
        Remedy("--difficulty-window", "0.1 0.9, or harder problems", "it leaves out problems that are always right"),
    ),
    Alarm(
        "too_hard", ("groups_all_wrong",), above("groups_all_wrong", 0.8, over=LONG),
        "In four groups of five, all responses are wrong: almost nothing shows the policy what to do.",
        Remedy("--group-size", "twice as many responses, or easier problems, or a warm start",
               "one right response in a group is enough to learn from"),
    ),
    Alarm(
        "groups_missing", ("unfilled_groups", "trained_groups"), groups_are_missing,
        "Dynamic sampling finds fewer than half of the groups that a step should train on.",
        Remedy("--max-tries", "more, or other problems", "more rounds find more groups whose rewards differ"),
    ),
    Alarm(
        "sampler_gap", ("sampler_gap", "staleness"), either(above("sampler_gap", 0.01), above("staleness", 4.0)),
        "The policy that sampled is not the one that learns: its weights are stale, or its numbers differ.",
        Remedy("--correction", "capped, or a sampler with the newest weights", "it weighs tokens by how far the two disagree"),
        needed=(("sampler_gap",), ("staleness",)),
    ),
)  # fmt: skip
"""All alarms."""
BY_NAME = MappingProxyType({alarm.name: alarm for alarm in ALARMS})


@documented
class Event(NamedTuple):
    """An alarm that is raised or cleared."""

    step: int
    """Step of RL."""
    alarm: Alarm
    """Which one."""
    what: Literal["raised", "cleared"]
    """Whether it begins or ends."""
    seen: str
    """What its crossing saw, in words; empty where it is cleared."""

    def text(self) -> str:
        """One paragraph for the screen and the log."""
        name, remedy = self.alarm.name.replace("_", " "), self.alarm.remedy
        if self.what == "cleared":
            return f"{name}: over at step {self.step}."
        return f"{name} at step {self.step}: {self.seen}. {self.alarm.meaning} {advice(remedy)}"

    def to_json(self) -> dict[str, Any]:
        """The row of `alarms.jsonl`."""
        row = {"step": self.step, "alarm": self.alarm.name, "event": self.what}
        if self.what == "cleared":
            return row
        row |= {"seen": self.seen, "metrics": list(self.alarm.metrics), "meaning": self.alarm.meaning}
        return row | self.alarm.remedy._asdict()


def advice(remedy: Remedy) -> str:
    """A remedy as a sentence.

    Example:
        >>> advice(Remedy("--learning-rate", "a third of it", "smaller steps destroy less"))
        'Change --learning-rate: a third of it, since smaller steps destroy less.'
    """
    return f"Change {remedy.flag}: {remedy.change}, since {remedy.why}."


@documented
class Watch(NamedTuple):
    """State of a run from which its next alarms are raised."""

    history: History = History()
    """Rows that crossings look at."""
    quiet: Mapping[str, int] = MappingProxyType({})
    """Name of each alarm that is raised -> rows since its crossing last saw something."""

    @property
    def seen(self) -> frozenset[str]:
        """Names of the alarms that are raised and whose crossing saw something in the last row."""
        return frozenset(name for name, rows in self.quiet.items() if rows == 0)

    def followed_by(self, row: Row) -> tuple["Watch", list[Event]]:
        """The watch with one more row of `metrics.jsonl`, and the alarms that the row raises and clears.

        Args:
            row: has "phase" and "step"; numbers that are None or not finite count as absent.
        """
        history = self.history.followed_by(row)
        if row["phase"] not in ("rl", "eval"):
            return self, []
        quiet, events = dict(self.quiet), []
        for alarm in ALARMS:
            seen, is_raised = alarm.crossing(history), alarm.name in quiet
            if seen is not None:
                quiet[alarm.name] = 0
                if not is_raised:
                    events.append(Event(row["step"], alarm, "raised", seen))
            elif is_raised:
                quiet[alarm.name] += 1
                if quiet[alarm.name] >= QUIET:
                    del quiet[alarm.name]
                    events.append(Event(row["step"], alarm, "cleared", ""))
        return Watch(history, quiet), events


def watch_rows(rows: Iterable[Row]) -> tuple[Watch, list[Event]]:
    """The watch after all rows of a run, and every alarm that they raised and cleared.

    Example:
        >>> _, events = watch_rows({"phase": "rl", "step": step, "truncated_share": 0.5} for step in range(1, 9))
        >>> [(event.step, event.alarm.name, event.what) for event in events if event.alarm.name == "truncated"]
        [(5, 'truncated', 'raised')]
    """
    watch, events = Watch(), []
    for row in rows:
        watch, new = watch.followed_by(row)
        events += new
    return watch, events


def not_measured(history: History, events: Sequence[Event]) -> dict[str, tuple[str, ...]]:
    """Alarms that cannot be raised, because the run does not have their numbers, and which numbers these are.

    Args:
        history: of the run.
        events: alarms that it raised and cleared; these are left out.

    Example:
        >>> watch, events = watch_rows([{"phase": "rl", "step": 1, "entropy": 0.5}])
        >>> absent = not_measured(watch.history, events)
        >>> absent["far_from_reference"], "entropy_collapse" in absent
        (('kl_to_reference',), False)
    """
    measured = {name for row in (*history.first, *history.recent, *history.heldout) for name in row}
    raised = {event.alarm.name for event in events}
    lacking = {alarm.name: alarm.lacking(measured) for alarm in ALARMS if alarm.name not in raised}
    return {name: metrics for name, metrics in lacking.items() if metrics}
