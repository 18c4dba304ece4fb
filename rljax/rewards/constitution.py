"""A constitution: rules that responses must follow, read from a file, each with a penalty for breaking it."""

import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import yaml

from rljax.errors import InputError
from rljax.files import check_local
from rljax.records import is_finite_number
from rljax.rewards.correctness import Failed
from rljax.rewards.pool import shared_pool
from rljax.rewards.reward_call import Progress
from rljax.rewards.reward_scores import Weighted
from rljax.text import one_line

SECONDS = 2.0
"""Time limit of one pattern on one response."""
_MEMORY_BYTES = 2 * 2**30
_TEXT = "tag:yaml.org,2002:str"
OPTIONAL_KEYS = frozenset({"weight", "users"})
"""Optional keys of a rule, in addition to the required key, which names the kind of rule."""
ViolationTest = Callable[[Sequence[str], Progress | None], list[bool | Failed]]
"""(texts, progress) -> whether each text breaks a rule, or `Failed` if that could not be decided."""


def _build_occurrence_test(value: object) -> ViolationTest:
    """Build the test for `must_not`, whose value is a pattern. Worker processes search for it, as a search may never finish."""
    if not isinstance(value, str):
        raise TypeError("the pattern must be text")
    re.compile(value)
    pool = shared_pool("rljax.rewards.pattern_search:occurs", seconds=SECONDS, memory=_MEMORY_BYTES)

    def occurs(texts: Sequence[str], progress: Progress | None) -> list[bool | Failed]:
        results = pool.map([{"pattern": value, "text": text} for text in texts], progress)
        return [result if isinstance(result, Failed) else bool(result) for result in results]

    return occurs


def _negate(test: ViolationTest) -> ViolationTest:
    return lambda texts, progress: [one if isinstance(one, Failed) else not one for one in test(texts, progress)]


def _build_size_test(value: object, size: Callable[[str], int]) -> ViolationTest:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError("the limit must be a whole number, 0 or more")
    return lambda texts, _: [size(text) > value for text in texts]


def _build_model_test(value: object) -> ViolationTest:
    """Build the test for `judged`: a model on a server answers a question, and the rule is broken if the answer is no."""
    if not (isinstance(value, Mapping) and {"question", "at"} <= value.keys() <= {"question", "at", "model"}):
        raise TypeError("give `question`, `at` (a server's address) and optionally `model`")
    if not all(isinstance(part, str) for part in value.values()):
        raise TypeError("question, at and model must be text")
    from rljax.rewards.served_judge import yes_or_no  # noqa: PLC0415  most constitutions need no server

    return _negate(yes_or_no(value["question"], value["at"], value.get("model")))


RULE_KINDS: Mapping[str, Callable[[object], ViolationTest]] = MappingProxyType(
    {
        "must": lambda value: _negate(_build_occurrence_test(value)),
        "must_not": _build_occurrence_test,
        "max_characters": lambda value: _build_size_test(value, len),
        "max_words": lambda value: _build_size_test(value, lambda text: len(text.split())),
        "judged": _build_model_test,
    }
)
"""Kind of a rule -> the function that builds a test from the rule's value in the file. The test finds texts that break the rule."""


def constitution(rules: object) -> Weighted:
    """Make a reward from rules: each rule that a response breaks costs the rule's weight.

    ::

        R = -Σ_i w_i [y breaks rule i]

    Args:
        rules: a mapping from a name to a rule. A rule is a mapping with exactly one of these keys: `must` or `must_not` (a regular
            expression that must or must not occur), `max_characters` or `max_words` (the most that is allowed), or `judged` (a
            mapping of `question` and `at`: the model on the server at this address must answer yes to the question about the
            response; see `rljax.rewards.served_judge`). Optional keys are `weight`, by default 1, and `users`, a list of names. A
            rule with `users` applies only if the data's column `user` has one of the names; other responses do not break it. A
            pattern is searched for in the full response, for at most two seconds, in a worker process.

    Returns:
        One reward with one part per rule: 1 for a response that breaks the rule, else 0, with the weight -w. The mean of a part,
        `reward_constitution/NAME` in the metrics, is therefore the fraction of responses that break the rule. If a pattern exceeds
        its time limit, the part is `Failed` for that response.

    Raises:
        InputError: there is no rule, a rule cannot be read, or its name is not text.

    Example:
        >>> reward = constitution({"brief": {"max_words": 2, "weight": 0.5}, "kind": {"must_not": "(?i)fool"}})
        >>> reward(prompts=["?"] * 3, completions=["It is 4.", "4, fool", "4"])
        [-0.5, -1.0, 0.0]
        >>> personal = constitution({"brief": {"max_words": 2, "users": ["Ada"]}})
        >>> personal(prompts=["?"] * 2, completions=["It is 4."] * 2, user=["Ada", "Bob"])
        [-1.0, 0.0]

    Source:
        Written principles as a signal: Bai et al., arXiv:2212.08073; weighted rules in addition to a reward: Mu et al.,
        arXiv:2411.01111. In both papers models judge; here code judges, except for rules of the kind `judged`.
        `rljax.rewards.composite.weighted` computes such a sum from functions.
    """
    if not isinstance(rules, Mapping) or not rules:
        raise InputError("a constitution needs at least one rule: a name, and below it for example `must_not: PATTERN`.")
    for name in rules:
        if not isinstance(name, str):
            raise InputError(f"the name of the rule {name!r} is not text; put it in quotes.")
    parts_and_weights = {name: _read_rule(name, rule) for name, rule in rules.items()}
    parts = {name: part for name, (part, _) in parts_and_weights.items()}
    weights = {name: -weight for name, (_, weight) in parts_and_weights.items()}
    return Weighted(parts, weights, name="constitution")


def read_constitution(path: str | Path) -> Weighted:
    """Make a reward from the rules in a file.

    Args:
        path: a YAML or JSON file with a mapping from names to rules, as `constitution` accepts it.

    Returns:
        The reward.

    Raises:
        InputError: the file cannot be read, a key is not text or occurs twice, or a rule cannot be read.
    """
    check_local(path, "constitution")
    file = Path(path).expanduser()
    try:
        rules = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InputError(
            f"the constitution {str(file)!r} cannot be read ({one_line(error)}); give a YAML or JSON file of rules."
        ) from error
    try:
        return constitution(rules)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


class _Loader(yaml.SafeLoader):
    """YAML loader that rejects keys that are not text or occur twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        """Check the keys of a mapping and build it.

        Raises:
            ConstructorError: a key is not text, or occurs twice.
        """
        seen = set()
        for key, _ in node.value:
            fault = "is not text; put it in quotes" if key.tag != _TEXT else "occurs twice" if key.value in seen else None
            if fault is not None:
                line = key.start_mark.line + 1
                raise yaml.constructor.ConstructorError(None, None, f"line {line}: the key {key.value!r} {fault}")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read_rule(name: str, rule: object) -> tuple[Callable, float]:
    """Return a rule's reward and weight."""
    if (
        not isinstance(rule, Mapping)
        or len(kinds := rule.keys() & RULE_KINDS.keys()) != 1
        or rule.keys() - RULE_KINDS - OPTIONAL_KEYS
    ):
        raise InputError(
            f"the rule {name!r} is {rule!r}; a rule has exactly one of {', '.join(RULE_KINDS)}, and may have `weight` and `users`."
        )
    (kind,) = kinds
    weight = rule.get("weight", 1.0)
    if not is_finite_number(weight) or weight < 0:
        raise InputError(f"the weight of the rule {name!r} is {weight!r:.80}; it must be a number, 0 or more.")
    try:
        violates = RULE_KINDS[kind](rule[kind])
    except (TypeError, re.error, OverflowError, RecursionError) as error:
        raise InputError(
            f"the rule {name!r} has {kind}: {reprlib.repr(rule[kind])} ({one_line(error)}); correct it."
        ) from error

    def score_violations(
        completions: Sequence[str], progress: Progress | None = None, **columns: Sequence
    ) -> list[float | Failed | None]:
        del columns
        return [result if isinstance(result, Failed) else float(result) for result in violates(completions, progress)]

    part = score_violations if "users" not in rule else _restrict_to_users(name, score_violations, rule["users"])
    part.__qualname__ = f"constitution({name})"
    return part, float(weight)


def _restrict_to_users(name: str, score_violations: Callable, users: object) -> Callable:
    """Restrict a rule to responses for some users.

    Raises:
        InputError: the users are not a list of names.
    """
    if not (isinstance(users, list) and users and all(isinstance(user, str) for user in users)):
        raise InputError(f"the rule {name!r} has users: {users!r:.80}; give a list of names from the data's column `user`.")

    def score_for_users(
        completions: Sequence[str], user: Sequence, progress: Progress | None = None, **columns: Sequence
    ) -> list[float | Failed | None]:
        del columns
        chosen = [position for position, value in enumerate(user) if str(value) in users]
        results: list[float | Failed | None] = [0.0] * len(completions)
        for position, result in zip(chosen, score_violations([completions[i] for i in chosen], progress), strict=True):
            results[position] = result
        return results

    return score_for_users
