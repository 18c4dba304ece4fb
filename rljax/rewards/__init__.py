"""Reward functions, and the names by which users select them."""

from collections.abc import Callable
from types import MappingProxyType

from rljax.errors import InputError
from rljax.importing import import_function, is_custom
from rljax.lazy import LazyTable, lazy_names
from rljax.rewards.correctness import reads as reads
from rljax.rewards.correctness import right_from as right_from
from rljax.rewards.correctness import verifier as verifier
from rljax.text import nearest_first

BY_NAME: LazyTable[Callable[..., list]] = LazyTable(
    {
        "exact": "rljax.rewards.exact:exact",
        "math": "rljax.rewards.math:math",
        "math_or_last_number": "rljax.rewards.math:math_or_last_number",
        "gsm8k": "rljax.rewards.math:gsm8k",
        "aime": "rljax.rewards.math:aime",
        "yes_no": "rljax.rewards.choice:yes_no",
        "multiple_choice": "rljax.rewards.choice:multiple_choice",
        "code": "rljax.rewards.code:code",
        "code_fraction": "rljax.rewards.code:code_fraction",
        "format": "rljax.rewards.format:has_final_answer",
        "think_answer": "rljax.rewards.format:think_answer",
        "reflection": "rljax.rewards.reflection:reflection",
        "reasoning_gym": "rljax.rewards.reasoning_gym:reasoning_gym",
        "proof": "rljax.rewards.proof:proof",
        "none": "rljax.rewards.format:none",
    }
)
"""Name of a built-in reward -> the function, which is imported on first use."""

RUN_PROGRAMS = ("code", "code_fraction")
"""The rewards that run programs in the sandbox."""

REWARD_FAMILIES = MappingProxyType(
    {"brier": "VERIFIER", "constitution": "FILE", "count_bonus": "SCALE", "diversity": "SCALE", "repetition": "SIZE"}
)
"""Reward family -> what follows the colon after its name, as in `brier:exact`."""

__getattr__, __dir__ = lazy_names(__name__)


def resolve(reward: str | Callable) -> Callable:
    """Find a reward function by its name.

    If the reward runs programs, the sandbox is tested as well, so that a run reports at its start how programs are confined.

    Args:
        reward: a key of `BY_NAME`; a key of `REWARD_FAMILIES`, a colon and an argument, such as `brier:exact`; `module:function`;
            `path.py:function`; or the function itself.

    Returns:
        The function. It is called as `f(prompts=..., completions=..., **columns)`.

    Raises:
        InputError: the name is unknown; the module or file cannot be imported, or does not have the function; the argument after
            the colon is not valid; or the reward runs programs, and this machine cannot confine them.

    Example:
        >>> resolve("exact").__name__, resolve("math:sqrt")(4.0)
        ('exact', 2.0)
    """
    if callable(reward):
        return reward
    if not isinstance(reward, str):
        raise InputError(f"the reward {reward!r} is neither a function nor the name of one; {_list_choices()}.")
    if reward in RUN_PROGRAMS:
        from rljax.rewards.sandbox import level  # noqa: PLC0415  most rewards run no programs

        level()
    if reward in BY_NAME:
        return BY_NAME[reward]
    family, _, argument = reward.partition(":")
    if family in REWARD_FAMILIES:
        if not argument:
            raise InputError(
                f"the reward {family!r} needs a {REWARD_FAMILIES[family].lower()}; write {family}:{REWARD_FAMILIES[family]}."
            )
        return _import_makers()[family](argument)
    if not is_custom(reward):
        raise InputError(f"there is no reward {reward!r}{nearest_first(reward, BY_NAME, f'{_list_choices()}.')}")
    return import_function(reward, "reward")


def _import_makers() -> dict[str, Callable[[str], Callable]]:
    """Import the functions that build the rewards in `REWARD_FAMILIES`. They import NumPy, which worker processes do not need."""
    from rljax.rewards.confidence import brier  # noqa: PLC0415
    from rljax.rewards.constitution import read_constitution  # noqa: PLC0415
    from rljax.rewards.count_bonus import count_bonus  # noqa: PLC0415
    from rljax.rewards.diversity import diversity  # noqa: PLC0415
    from rljax.rewards.repetition import read_repetition  # noqa: PLC0415

    return {
        "brier": lambda name: brier(resolve(name)),
        "constitution": read_constitution,
        "count_bonus": count_bonus,
        "diversity": diversity,
        "repetition": read_repetition,
    }


def _list_choices() -> str:
    families = ", ".join(f"{family}:{argument}" for family, argument in REWARD_FAMILIES.items())
    names = ", ".join(map(repr, BY_NAME))
    return f"choose one of {names}, or {families}, or name your own as `module:function` or `path.py:function`"
