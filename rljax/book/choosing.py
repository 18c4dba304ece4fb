"""Choose an algorithm for a task: the rules in `choosing.toml` map facts about the task to an algorithm, parts and flags.

A part is an addition to the algorithm. A rule is data: a case, conditions on facts, what it chooses, and why. Its claims name
experiments that support or contradict the reason; their results are looked up, not written into the rule.
"""

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

from rljax.errors import InputError
from rljax.files import read_toml
from rljax.text import counted

Bearing = Literal["for", "against"]
Support = Literal["supports", "contradicts", "is open"]


@dataclass(frozen=True)
class Facts:
    """Facts about a task that determine the algorithm."""

    reward: Literal["verifier", "learned", "steps", "turns", "several", "pairs"] = "verifier"
    """What rewards responses: a 'verifier' of final answers; a 'learned' reward model; a reward for a response's 'steps'; an
    environment that rewards 'turns'; 'several' rewards of different scales; or, instead of a reward, 'pairs' of a preferred and a
    rejected response."""
    length: int = 1024
    """Maximum length of a response, in tokens."""
    budget: int = 100_000
    """Maximum number of responses that the run samples."""
    group: int = 8
    """Responses per prompt in each step."""
    updates: int = 1
    """Optimizer updates per rollout."""
    staleness: int = 0
    """Number of steps by which the sampler's weights lag behind the learner's; if above 0, `--staleness` is
    added to the command."""
    critic: bool = False
    """Whether memory and time suffice for a critic, a second model of the policy's size."""
    pass_k: int = 1
    """The k of pass@k, if pass@k is the metric to improve."""
    teacher: str | None = None
    """Folder or hub id of a better model with the same tokenizer."""
    outliers: bool = False
    """Whether the reward has outliers or an unreliable scale."""
    experts: bool = False
    """Whether the model is a mixture of experts."""
    wish: Literal["none", "near_start", "entropy", "brevity", "less_noise"] = "none"
    """What matters besides the reward: 'near_start', to stay close to the initial policy; 'entropy', to keep the entropy up (it
    fell too fast in an earlier run); 'brevity', to keep answers short (wrong ones grew longer); or 'less_noise', to get a less
    noisy gradient at the cost of memory."""
    model: str = "Qwen/Qwen3-0.6B"
    """Folder or hub id of the model in the command."""
    dataset: str = "my_data.jsonl"
    """File of problems or preference pairs in the command."""


MINIMUM = {"length": 1, "budget": 1, "group": 1, "updates": 1, "staleness": 0, "pass_k": 1}


def check_facts(facts: Facts) -> None:
    """Reject impossible values.

    Raises:
        InputError: a fact has an impossible value; the message names the fact.
    """
    for name, least in MINIMUM.items():
        if getattr(facts, name) < least:
            raise InputError(f"{name} is {getattr(facts, name)}; it must be at least {least}.")
    if facts.group == 1 and (facts.reward in ("steps", "turns", "several") or facts.pass_k > 1):
        raise InputError(
            "group is 1, but rewards of steps or turns, several rewards and pass@k need a comparison within a group; set "
            "--group 2 or more."
        )
    if facts.budget < facts.group:
        raise InputError(
            f"budget is {facts.budget}, but a step samples at least the {facts.group} responses of one group; set --budget "
            f"{facts.group} or more."
        )
    if facts.staleness >= (steps := flag_values(facts)["steps"]) and facts.reward != "pairs":
        raise InputError(
            f"staleness is {facts.staleness}, but a budget of {facts.budget} responses allows only {counted(steps, 'step')}, "
            "so all responses would be sampled with the initial weights; set a lower --staleness, or a larger --budget."
        )
    if facts.pass_k > facts.group:
        raise InputError(
            f"pass_k is {facts.pass_k}, but pass@k needs k responses to a prompt and group is {facts.group}; set --group "
            f"{facts.pass_k} or more."
        )


COMPARISONS = {"is": operator.eq, "is not": operator.ne, "at least": operator.ge, "at most": operator.le}


class Condition(NamedTuple):
    """A condition on one fact."""

    fact: str
    """Name of the fact."""
    test: Literal["is", "is not", "at least", "at most"]
    """How the fact is compared."""
    value: Any
    """The value to compare with. "is not" with None means that the fact is set."""

    def holds(self, facts: Facts) -> bool:
        """Return True if the facts satisfy the condition.

        Example:
            >>> Condition("length", "at least", 2000).holds(Facts(length=1024))
            False
        """
        return COMPARISONS[self.test](getattr(facts, self.fact), self.value)

    def flag(self) -> str:
        """Return the flag of `rljax recommend` for a fact that satisfies the condition.

        Example:
            >>> Condition("length", "at least", 2000).flag(), Condition("critic", "is", True).flag()
            ('--length 2000', '--critic')
        """
        name = f"--{self.fact.replace('_', '-')}"
        if self.value is True:
            return name
        return f"{name} {self.fact.upper()}" if self.test == "is not" else f"{name} {self.value}"

    def text(self) -> str:
        """Return the flag, and words that say which other values satisfy the condition.

        Example:
            >>> Condition("length", "at least", 2000).text(), Condition("reward", "is", "pairs").text()
            ('--length 2000 or more', '--reward pairs')
        """
        return self.flag() + self.suffix()

    def suffix(self) -> str:
        """Return the words that follow the flag in `text`."""
        return {"at least": " or more", "at most": " or less"}.get(self.test, "")


class Rule(NamedTuple):
    """The recommendation for one case."""

    case: str
    """The case in words, as shown in the table."""
    where: tuple[Condition, ...]
    """Conditions, all of which must hold."""
    choice: str
    """Name of an algorithm, or description of a part."""
    because: str
    """Reason, in a phrase."""
    flags: Mapping[str, str]
    """Flag -> its value; placeholders such as `{length}` are filled in from `flag_values`."""
    claims: Mapping[str, Bearing]
    """Name of a claim, or of an experiment with the trainer -> whether its confirmation would support or contradict the reason."""
    source: str
    """Paper or document that gives the advice."""
    algorithms: tuple[str, ...] = ()
    """For a part: names of the algorithms that the part fits; empty: all algorithms."""

    def applies(self, facts: Facts) -> bool:
        """Return True if every condition holds."""
        return all(condition.holds(facts) for condition in self.where)


class ClaimEvidence(NamedTuple):
    """The verdict on a claim, and what the verdict means for the reason of a rule."""

    claim: str
    """Name of the claim, or of the experiment with the trainer."""
    verdict: str
    """Verdict of the claim's experiment; for an experiment with the trainer, the count of each verdict on the rule's choice."""
    says: Support
    """What the verdict means for the reason."""
    text: str
    """The claim and its statistic; for an experiment with the trainer, its question."""


class Recommendation(NamedTuple):
    """The recommended algorithm, parts and flags."""

    facts: Facts
    """The facts about this task."""
    chosen: Rule
    """The rule that chooses the algorithm."""
    parts: tuple[Rule, ...]
    """The rules that add flags."""
    alternatives: tuple[Rule, ...]
    """The rules for other algorithms that apply as well, the most specific first."""
    command: tuple[str, ...]
    """The words of the command."""
    without_effect: Mapping[str, str]
    """Name of a fact that is not the default but has no effect here -> the reason."""


MOST_PROMPTS, FEWEST_STEPS = 64, 100
"""Maximum number of prompts per step, and minimum number of steps; with a small budget, the number of prompts
is lowered first, then the number of steps."""


def flag_values(facts: Facts) -> dict[str, Any]:
    """Return the values that can be substituted into flags.

    Example:
        >>> values = flag_values(Facts(budget=8000, group=8, length=1000))
        >>> values["prompts"], values["steps"]
        (8, 125)
    """
    prompts = _largest_power_of_two(min(max(facts.budget // (facts.group * FEWEST_STEPS), 1), MOST_PROMPTS))
    return asdict(facts) | {
        "k": facts.pass_k,
        "prompts": prompts,
        "minibatches": (minibatches := math.gcd(facts.updates, prompts)),
        "passes": facts.updates // minibatches,
        "steps": max(facts.budget // (facts.group * prompts), 1),
    }


def _largest_power_of_two(limit: int) -> int:
    """Return the largest power of two up to `limit`; it can be split into 2, 4, 8 or more equal minibatches."""
    return 2 ** (limit.bit_length() - 1)


def recommend(facts: Facts, algorithms: Sequence[Rule], parts: Sequence[Rule]) -> Recommendation:
    """Choose by rules: the first matching rule for an algorithm, and all matching parts that fit that algorithm.

    Args:
        facts: facts about the task.
        algorithms: rules for algorithms, the most specific first; the last must have no condition.
        parts: rules that add flags.

    Raises:
        InputError: a fact has an impossible value.
    """
    check_facts(facts)
    recommendation = _apply_rules(facts, algorithms, parts)
    defaults = asdict(Facts())
    without_effect = {}
    for name, value in asdict(facts).items():
        if value != (default := defaults[name]):
            other = _apply_rules(replace(facts, **{name: default}), algorithms, parts)
            if _case_and_command(recommendation) == _case_and_command(other):
                without_effect[name] = _why_without_effect(name, recommendation, (*algorithms, *parts))
    return recommendation._replace(without_effect=without_effect)


def _case_and_command(advice: Recommendation) -> tuple[str, tuple[str, ...]]:
    """Return the case and the command without the model's name, to compare recommendations."""
    return advice.chosen.case, tuple(word for word in advice.command if word not in (EXPERTS_MODEL, advice.facts.model))


def _why_without_effect(name: str, advice: Recommendation, rules: Sequence[Rule]) -> str:
    """Explain why a fact has no effect: for each rule that reads it, what prevents that rule from applying."""
    why = []
    for rule in (rule for rule in rules if any(condition.fact == name for condition in rule.where)):
        unmet = [condition.text() for condition in rule.where if not condition.holds(advice.facts)]
        if unmet:
            why.append(f"{rule.choice} needs {' and '.join(unmet)}")
        elif rule in advice.alternatives:
            why.append(f"{advice.chosen.choice} takes precedence over {rule.choice}")
        elif rule not in (advice.chosen, *advice.parts):
            why.append(f"{rule.choice} does not fit {advice.chosen.choice}")
    return "; ".join(dict.fromkeys(why)) or f"the command for {advice.chosen.choice} has no flag for this fact"


def _apply_rules(facts: Facts, algorithms: Sequence[Rule], parts: Sequence[Rule]) -> Recommendation:
    """Return the recommendation, with an empty `without_effect`."""
    matching = [rule for rule in algorithms if rule.applies(facts)]
    chosen = matching[0]
    fitting = tuple(
        rule for rule in parts if rule.applies(facts) and (not rule.algorithms or chosen.choice in rule.algorithms)
    )
    has_loss = "--loss" in chosen.flags
    alternatives = tuple(rule for rule in matching[1:] if rule.where and ("--loss" in rule.flags) == has_loss)
    command = build_command(facts, chosen, fitting)
    return Recommendation(facts, chosen, () if has_loss else fitting, alternatives, command, {})


def build_command(facts: Facts, chosen: Rule, parts: Iterable[Rule]) -> tuple[str, ...]:
    """Build the words of the command. If several rules set a flag in `MULTI_VALUE_FLAGS`, the flag gets all their values.

    For a mixture of experts, the default model, which is dense, is replaced by `EXPERTS_MODEL`.
    """
    if facts.experts and facts.model == Facts().model:
        facts = replace(facts, model=EXPERTS_MODEL)
    values = flag_values(facts)
    if "--loss" in chosen.flags:
        flags = {"--model": "{model}", "--chat": "", **chosen.flags, "--max-tokens": "{length}"}
        return ("rljax", "preference", facts.dataset, *_words(flags, values))
    flags = {
        **{"--model": "{model}", "--chat": "", "--dataset": "{dataset}", "--algorithm": chosen.choice},
        **{"--reward": "math", "--max-response-tokens": "{length}"},
        **{"--prompts": "{prompts}", "--group-size": "{group}", "--steps": "{steps}"},
    }
    if facts.staleness:
        flags["--staleness"] = "{staleness}"
    for rule in (chosen, *parts):
        joined = {
            name: f"{flags.get(name, '')} {value}".strip()
            for name, value in rule.flags.items()
            if name in MULTI_VALUE_FLAGS
        }
        flags |= {**rule.flags, **joined}
    return ("rljax", "train", *_words(flags, values))


EXPERTS_MODEL = "Qwen/Qwen3-30B-A3B"
"""The model in the command for a mixture of experts, unless another model is named."""
MULTI_VALUE_FLAGS = ("--algorithm-options", "--with", "--without")
"""Flags that take several values."""


def _words(flags: Mapping[str, str], values: Mapping[str, Any]) -> list[str]:
    return [word.format(**values) for name, value in flags.items() for word in (name, *value.split())]


def weigh_verdict(bearing: Bearing, verdict: str) -> Support:
    """Return what the verdict on a claim means for a reason that depends on the claim.

    Example:
        >>> weigh_verdict("for", "holds here"), weigh_verdict("against", "holds here"), weigh_verdict("for", "not decided")
        ('supports', 'contradicts', 'is open')
    """
    if verdict not in ("holds here", "contradicted"):
        return "is open"
    return "supports" if (verdict == "holds here") == (bearing == "for") else "contradicts"


def table(algorithms: Sequence[Rule], parts: Sequence[Rule]) -> str:
    """Format the rules as a Markdown table: case, facts, algorithm or part, reason."""
    lines = ["| your case | facts | try | because |", "| --- | --- | --- | --- |"]
    for rule in algorithms:
        tried = f"`rljax preference PAIRS --loss {rule.choice}`" if "--loss" in rule.flags else f"`{rule.choice}`"
        lines.append(_row(rule, tried))
    return "\n".join([*lines, *(_row(rule, f"{rule.choice}: `{_flags(rule)}`") for rule in parts)])


def _row(rule: Rule, tried: str) -> str:
    facts = ", ".join(f"`{condition.flag()}`{condition.suffix()}" for condition in rule.where) or "-"
    return f"| {rule.case} | {facts} | {tried} | {rule.because} |"


def _flags(rule: Rule) -> str:
    text = " ".join(f"{name} {value}" for name, value in rule.flags.items())
    return re.sub(r"{(\w+)}", lambda found: found[1].upper(), text)


def read_rule(row: Mapping[str, Any]) -> Rule:
    """Build a rule from a row of `choosing.toml`; a condition without a value compares with None."""
    where = tuple(Condition(fact, test, value[0] if value else None) for fact, test, *value in row.get("where", ()))
    names = tuple(row.get("algorithms", ()))
    return Rule(**{"flags": {}, "claims": {}, **row, "where": where, "algorithms": names})


_RULES = read_toml("rljax.book", "choosing.toml")
ALGORITHMS = tuple(map(read_rule, _RULES["algorithm"]))
"""The rules that choose an algorithm, the most specific first."""
PARTS = tuple(map(read_rule, _RULES["part"]))
"""The rules that add flags to those of the algorithm."""
