"""Settings in error messages: the library writes their Python names, and the commands show the flags instead."""

import re
from collections.abc import Mapping, Set
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import get_type_hints

from rljax.cli.run_settings import Settings
from rljax.settings.flat import flat_names
from rljax.tasks import TASKS
from rljax.training.config.train_config import GROUPS

NO_FLAGS: Mapping[str, str] = MappingProxyType({})


def setting_names(record: type) -> set[str]:
    """Return the names of all settings that a command's flags set, with underscores.

    Args:
        record: the command's record.

    Example:
        >>> from rljax.cli.train import Train
        >>> {"kl_limit", "group_size"} <= setting_names(Train)
        True
    """
    hints = get_type_hints(record)
    inner = [hint for hint in hints.values() if isinstance(hint, type) and is_dataclass(hint)]
    names = {flat for name, flat in flat_names(record).items() if hints[name] not in inner}
    groups = [*GROUPS.values(), *TASKS.values()] if issubclass(record, Settings) else inner
    return names.union(*(flat_names(group).values() for group in groups))


def write_flags(message: str, names: Set[str], short_flags: Mapping[str, str] = NO_FLAGS) -> str:
    """Write settings as flags: `kl_limit=0.1` and `kl_limit is 0.1` become `--kl-limit 0.1` and `--kl-limit is 0.1`.

    A name without an underscore can also be an ordinary word. It counts as a setting only before `=` or before a change such as
    `: 1 -> 2`, at the start of the message if "is" follows, and in a list of at least three settings. A message that begins with
    FILE:LINE does not change, because a settings file has the Python names. Text in quotes, backticks and paths does not change,
    nor do the keys in a flag's value, as in `--column score=points`.

    Args:
        message: an error message.
        names: the names of the settings.
        short_flags: flag of `rljax train` -> flag of this command.

    Example:
        >>> write_flags("cannot change steps: 1 -> 2; only quiet, steps, kl_limit may change", {"steps", "quiet", "kl_limit"})
        'cannot change --steps: 1 -> 2; only --quiet, --steps, --kl-limit may change'
        >>> write_flags("steps is 0; with kl_limit=0.1 use steps of 'kl_limit'", {"steps", "kl_limit"})
        "--steps is 0; with --kl-limit 0.1 use steps of 'kl_limit'"
    """
    if re.match(r"\S+:\d+", message):  # FILE:LINE
        return message

    def flag(name: str) -> str:
        long = f"--{name.replace('_', '-')}"
        return short_flags.get(long, long)

    def rewrite_list(match: re.Match[str]) -> str:
        listed = match[0].split(", ")
        return ", ".join(map(flag, listed)) if names >= set(listed) else match[0]

    message = re.sub(r"(?<![\w.,=`'/-])[a-z]\w*(?:, [a-z]\w*){2,}", rewrite_list, message)
    unchanged = r"`[^`]*`|--[\w-]+ [\w.-]+=|[\w.-]*[/'\"][^\s,;]*"
    change = r"(?=(?P<change>: [^:;]{1,200} -> ))"
    name = rf"(?<![\w.,=-])(?P<name>[a-z]\w*)(?:(?P<value>=)(?=\S)|(?P<verb> is )|{change}|(?![\w(=]|\.\w))"

    def rewrite(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in names:
            return match[0]
        is_setting = "_" in name or match["value"] or match["change"] or (match["verb"] and match.start() == 0)
        return f"{flag(name)}{' ' if match['value'] else ''}{match['verb'] or ''}" if is_setting else match[0]

    return re.sub(f"{unchanged}|{name}", rewrite, message)
