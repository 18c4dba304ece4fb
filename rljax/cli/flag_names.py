"""Settings in error messages: the library writes their Python names, and the commands show the flags instead."""

import re
from collections.abc import Set
from dataclasses import is_dataclass
from typing import get_type_hints

from rljax.cli.run_settings import Settings
from rljax.settings.flat import flat_names
from rljax.tasks import TASKS
from rljax.training.config.train_config import GROUPS


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


def write_flags(message: str, names: Set[str]) -> str:
    """Write settings as flags: `kl_limit=0.1` and `kl_limit is 0.1` become `--kl-limit 0.1` and `--kl-limit is 0.1`.

    A name without an underscore can also be an ordinary word, so it counts as a setting only before `=`, or at the start of the
    message if "is" follows. A message that begins with FILE:LINE does not change, because a settings file has the Python names.
    Text in quotes, backticks and paths does not change, nor do the keys in a flag's value, as in `--column score=points`.

    Args:
        message: an error message.
        names: the names of the settings.

    Example:
        >>> write_flags("steps is 0; with kl_limit=0.1 use steps of 'kl_limit'", {"steps", "kl_limit"})
        "--steps is 0; with --kl-limit 0.1 use steps of 'kl_limit'"
    """
    if re.match(r"\S+:\d+", message):  # FILE:LINE
        return message
    unchanged = r"`[^`]*`|--[\w-]+ [\w.-]+=|[\w.-]*[/'\"][^\s,;]*"
    name = r"(?<![\w.,=-])(?P<name>[a-z]\w*)(?:(?P<value>=)(?=\S)|(?P<verb> is )|(?![\w(=]|\.\w))"

    def rewrite(match: re.Match[str]) -> str:
        name = match["name"]
        is_setting = name in names and ("_" in name or match["value"] or (match["verb"] and match.start() == 0))
        return f"--{name.replace('_', '-')}{' ' if match['value'] else ''}{match['verb'] or ''}" if is_setting else match[0]

    return re.sub(f"{unchanged}|{name}", rewrite, message)
