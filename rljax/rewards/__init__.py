"""Floor 2: functions that judge responses, and the names under which users select them."""

import hashlib
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType, ModuleType

from rljax.errors import InputError
from rljax.rewards import choice, code, exact, format, math
from rljax.text import one_line

BY_NAME = MappingProxyType(
    {
        "exact": exact.exact,
        "math": math.math,
        "math_or_last_number": math.math_or_last_number,
        "gsm8k": math.gsm8k,
        "aime": math.aime,
        "yes_no": choice.yes_no,
        "multiple_choice": choice.multiple_choice,
        "code": code.code,
        "code_fraction": code.code_fraction,
        "format": format.has_final_answer,
        "think_answer": format.think_answer,
    }
)
"""The rewards that come with the library."""


def resolve(reward: str | Callable) -> Callable:
    """Find a reward function by its name.

    Args:
        reward: a key of `BY_NAME`; `module:function`; `path.py:function`; or the function itself.

    Returns:
        The function. It is called as `f(prompts=..., completions=..., **columns)`.

    Raises:
        InputError: the name is unknown, the module or file cannot be imported, or it has no such function.

    Example:
        >>> resolve("exact").__name__, resolve("math:sqrt")(4.0)
        ('exact', 2.0)
    """
    if callable(reward):
        return reward
    if not isinstance(reward, str):
        raise InputError(f"the reward {reward!r} is neither a function nor the name of one; {_choices()}.")
    if reward in BY_NAME:
        return BY_NAME[reward]
    source, colon, name = reward.rpartition(":")
    if not (source and colon and name):
        raise InputError(f"there is no reward {reward!r}; {_choices()}.")
    module = _import_file(Path(source).expanduser(), reward) if source.endswith(".py") else _import_module(source, reward)
    function = vars(module).get(name)
    if not callable(function):
        state = "has no" if function is None else "holds no function"
        functions = ", ".join(key for key, value in vars(module).items() if callable(value) and not key.startswith("_"))
        raise InputError(f"the reward {reward!r}: {source} {state} {name!r}; it has {functions if functions else 'none'}.")
    return function


def _choices() -> str:
    return f"choose one of {', '.join(map(repr, BY_NAME))}, or name your own as `module:function` or `path.py:function`"


def _import_module(name: str, reward: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # importing runs user code
        raise InputError(
            f"the reward {reward!r}: the module {name!r} cannot be imported ({one_line(error)}); install it, or give its file "
            f"as `path.py:function`."
        ) from error


def _import_file(path: Path, reward: str) -> ModuleType:
    if not path.is_file():
        raise InputError(f"the reward {reward!r}: the file {str(path)!r} does not exist; check the path.")
    # Files of the same name are different modules. They are registered because dataclasses and pickle look up modules by name.
    name = f"{path.stem}_{hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()}"
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise InputError(f"the reward {reward!r}: {str(path)!r} cannot be imported; give a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except Exception as error:  # importing runs user code
        del sys.modules[name]
        raise InputError(
            f"the reward {reward!r}: running {str(path)!r} failed ({one_line(error)}); fix the file."
        ) from error
    return module
