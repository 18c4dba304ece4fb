"""Pages about the trainer, generated from its own records: settings, rewards, the Python interface, the commands."""

import contextlib
import inspect
import io
import os
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from unittest import mock

import rljax
from book_site.book import anchors
from book_site.docstrings import escape_text, field_texts, header, label, markdown, sections, table
from rljax.cli import COMMANDS, PROGRAM, parse
from rljax.cli.run_settings import Settings
from rljax.rewards import BY_NAME as REWARDS
from rljax.settings.flat import flat_names
from rljax.tasks import TASKS
from rljax.tracking.glossary import GROUPS as GROUPS_OF_METRICS
from rljax.tracking.glossary import LABELS, Entry
from rljax.training.config import TrainConfig
from rljax.training.config.train_config import GROUPS

FUNCTIONS = ("train", "evaluate", "load", "export", "load_config")
CLASSES = (
    *("Problem", "Policy", "Decoder", "ValueFunction", "Packed", "Scores", "Engine", "Request", "Response"),
    *("Environment", "Step", "Tracker", "Result", "InputError"),
)


def settings_page() -> str:
    """Every setting by group, with its flag, the default of `TrainConfig` and its text."""
    config = TrainConfig()
    records = {name: (getattr(config, name), type(getattr(config, name))) for name in GROUPS}
    records |= {f"task {name}": (record(), record) for name, record in TASKS.items()}
    parts = [
        "(page-settings)=\n# Settings",
        "Every setting has one name: the flag `--learning-rate` is `TrainConfig.flat(learning_rate=...)`, "
        "`config.replace(learning_rate=...)` and `config.optimization.learning_rate`. Below are the defaults of `TrainConfig()`; "
        "`rljax train` without flags starts from `experiments/arithmetic_dapo.py`, and `rljax config` prints the values in force "
        "and where each comes from.",
    ]
    for group, (values, record) in records.items():
        found = sections(inspect.getdoc(record) or "")
        texts = field_texts(record)
        rows = [
            (f"`--{flag.replace('_', '-')}`", f"`{getattr(values, name)!r}`", escape_text(texts[name]))
            for name, flag in flat_names(record).items()
        ]
        parts += [f"## {group}", escape_text(found[""]), table(("flag", "default", "what it does"), rows)]
    return "\n\n".join(parts)


def rewards_page() -> str:
    """The rewards that come with the library, each with its rules."""
    rows = [
        (
            f"[`{name}`](#reward-{name.replace('_', '-')})",
            escape_text(sections(inspect.getdoc(function) or "")[""].split("\n\n")[0]),
        )
        for name, function in REWARDS.items()
    ]
    toc = "\n".join(f"rewards/{name}" for name in REWARDS)
    return f"""(page-rewards)=
# Built-in rewards

`--reward NAME`; [your own reward](../custom_reward.md) is a function with the same arguments.

{table(("reward", "what it judges"), rows)}

```{{toctree}}
:hidden:

{toc}
```
"""


def reward_pages() -> dict[str, str]:
    """A page for each built-in reward, with its rules."""
    pages = {}
    for name, function in REWARDS.items():
        title = f"(reward-{name.replace('_', '-')})=\n# Reward: {name}"
        doc = markdown(inspect.getdoc(function) or "", anchors())
        pages[f"rewards/{name}"] = f"{title}\n\n    rljax train --reward {name}\n\n{doc}"
    return pages


def metrics_page() -> str:
    """Every metric of a run, as `rljax explain` prints it."""
    parts = [
        "(page-numbers)=\n# Metrics",
        "What is in `metrics.jsonl`, in the curves and on the screen. `rljax explain NAME` prints an entry.",
    ]
    for group, entries in GROUPS_OF_METRICS.items():
        parts.append(f"## {group.capitalize()}")
        for entry in entries:
            parts += _metric(entry)
    return "\n\n".join(parts)


def _metric(entry: Entry) -> list[str]:
    """Section of a metric."""
    rows = {
        "on screen": escape_text(LABELS.get(entry.name, "not shown")),
        "unit": escape_text(entry.unit or "none"),
        "formula": f"`{entry.formula}`",
        "phases": escape_text(entry.phases.replace(" ", ", ")),
        "expect": escape_text(entry.expect),
        "otherwise": escape_text(entry.act),
    }
    items = "\n".join(f"- **{title}**: {text}" for title, text in rows.items())
    return [f"### {escape_text(entry.name)}", escape_text(entry.meaning), items]


def interface_page() -> str:
    """What `import rljax` offers: functions first, then the records and protocols that users implement."""
    parts = [
        "(page-interface)=\n# Python interface",
        "`import rljax` imports nothing else; each name below is imported on first use. [Settings](#page-settings) have a page "
        "of their own.",
    ]
    for name in FUNCTIONS:
        parts += _function(name, getattr(rljax, name))
    for name in CLASSES:
        parts += _class(name, getattr(rljax, name))
    return "\n\n".join(parts)


def _function(name: str, function: Callable) -> list[str]:
    return [f"## {name}", f"```python\n{header(function)}\n```", markdown(inspect.getdoc(function) or "", anchors())]


def _class(name: str, record: type) -> list[str]:
    doc = markdown(inspect.getdoc(record) or "", anchors())
    parts = [f"({label(f'interface.{name}')})=\n## {name}", doc]
    names = [field.name for field in fields(record)] if is_dataclass(record) else getattr(record, "_fields", ())
    texts = field_texts(record) if names else {}
    if texts:
        rows = [(f"`{field}`", escape_text(texts[field])) for field in names if field in texts]
        parts.append(table(("field", "what it contains"), rows))
    elif not names:
        methods = [value for key, value in vars(record).items() if inspect.isfunction(value) and not key.startswith("_")]
        for method in methods:
            doc_of_method = markdown(inspect.getdoc(method) or "", {})
            parts += [f"### {name}.{method.__name__}", f"```python\n{header(method)}\n```", doc_of_method]
    return parts


def commands_page() -> str:
    """The overview of all commands, and the help of each."""
    parts = ["(page-commands)=\n# Commands", f"```text\n{PROGRAM}\n```"]
    for name, (record, _) in COMMANDS.items():
        if issubclass(record, Settings):
            continue  # its flags are the settings
        parts += [f"## rljax {name}", f"```text\n{_help(name)}\n```"]
    return "\n\n".join(parts)


def _help(name: str) -> str:
    """What `rljax NAME --help` prints on 80 columns."""
    printed, narrow = io.StringIO(), {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    with mock.patch.dict(os.environ, narrow), contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        parse([name, "--help"])
    return printed.getvalue().rstrip()
