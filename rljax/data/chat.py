"""Conversion of chats to text by a tokenizer's chat template, with a time limit, a fixed date and the run's options."""

import ctypes
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from rljax.data.cells import without_nulls
from rljax.errors import InputError
from rljax.text import one_line, parse_json, texts_of

RENDER_SECONDS = 10.0
"""Time limit for rendering one chat, in seconds."""
CHAT_COLUMNS: Mapping[str, type] = {"tools": list, "chat_template_kwargs": dict}
"""Columns that the chat template reads, with their types: the available tools, and the row's template options."""
DESCRIPTIONS = {"tools": "a list of objects, each the JSON schema of a function,", "chat_template_kwargs": "an object"}
"""Chat column -> a description of its type, for error messages."""
THINK, THINK_END = "<think>", "</think>"

_STRFTIME = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)")
Value = TypeVar("Value")


@dataclass(frozen=True)
class ChatFormat:
    """How a run converts chats to text."""

    is_used: bool = False
    """Whether prompts are rendered with the template."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Variables that are passed to the template, such as `enable_thinking`."""
    date: str | None = None
    """The date that the template treats as today, as YYYY-MM-DD; None for the actual date."""
    prefill: str = ""
    """Beginning of each answer. It is appended to the prompt instead of being sampled."""

    def __post_init__(self):
        """Reject an invalid date, and options that would replace arguments that rljax passes to the template."""
        if self.date is not None:
            try:
                datetime.strptime(self.date, "%Y-%m-%d")
            except ValueError as error:
                raise InputError(f"chat_date is {self.date!r}; a date such as 2026-01-31 is expected.") from error
        reserved = {"messages", "tools", "add_generation_prompt", "tokenize", "conversation", "chat_template"} & set(
            self.options
        )
        if reserved:
            raise InputError(f"chat_template_kwargs has {min(reserved)!r}, which the data or rljax sets; leave it out.")


PLAIN = ChatFormat()


def chat_columns(row: Mapping[str, object]) -> dict[str, object]:
    """Return the columns of a row that the chat template reads, unchanged.

    Example:
        >>> chat_columns({"tools": [{"type": "function"}], "answer": "1"})
        {'tools': [{'type': 'function'}]}
    """
    return {name: row[name] for name in CHAT_COLUMNS if row.get(name)}


def parse_chat_columns(columns: Mapping[str, object]) -> dict[str, Any]:
    """Return the non-empty columns of a row that the chat template reads, with JSON text parsed and nulls removed.

    Raises:
        InputError: the tools are not a list of objects, or the options are not an object.

    Example:
        >>> parse_chat_columns({"tools": '[{"type": "function", "strict": null}]', "answer": "1"})
        {'tools': [{'type': 'function'}]}
    """
    found: dict[str, Any] = {}
    for name, kind in CHAT_COLUMNS.items():
        value = columns.get(name)
        if isinstance(value, str) and value.strip():
            try:
                value = parse_json(value)
            except ValueError as error:
                raise InputError(
                    f"the column {name!r} contains text that is not JSON ({one_line(error)}); correct it."
                ) from error
        if not value:
            continue
        value = without_nulls(value)
        if not isinstance(value, kind) or (kind is list and not all(isinstance(tool, Mapping) for tool in value)):
            raise InputError(f"the column {name!r} contains {value!r:.80}; {DESCRIPTIONS[name]} is expected.")
        found[name] = value
    return found


def parse_arguments(value: Any) -> Any:
    """Parse the arguments of a tool call if they are JSON text; return other text and values unchanged.

    Example:
        >>> parse_arguments('{"a": 2}'), parse_arguments({"a": 2}), parse_arguments("two")
        ({'a': 2}, {'a': 2}, 'two')
    """
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _convert_calls(messages: Sequence[Mapping[str, Any]], convert: Callable[[Any], Any]) -> list[Mapping[str, Any]]:
    """Return messages with converted arguments of tool calls."""

    def visit(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: convert(entry) if key == "arguments" else visit(entry) for key, entry in value.items()}
        return [visit(entry) for entry in value] if isinstance(value, (list, tuple)) else value

    return [
        {key: visit(entry) if key in ("tool_calls", "function_call") else entry for key, entry in message.items()}
        for message in messages
    ]


def _arguments_as_object(value: Any) -> Any:
    parsed = parse_arguments(value)
    return parsed if isinstance(parsed, Mapping) else value


def _arguments_as_text(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping) else value


def render_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    chat_format: ChatFormat,
    *,
    name: str,
    opens_turn: bool,
    tools: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> str:
    """Convert a chat to text with the chat template of a `transformers` tokenizer.

    The template receives the arguments of tool calls as objects. If it rejects them or writes an object as Python does, it is a
    template for JSON text, and receives text.

    Args:
        tokenizer: the tokenizer.
        messages: the chat.
        chat_format: the template's options, and the date.
        name: the tokenizer's name, for error messages.
        opens_turn: whether the text ends with the beginning of the assistant's turn.
        tools: the available tools.
        chat_template_kwargs: template options of this chat; they override those of the run.

    Raises:
        InputError: there is no template, the template rejects the chat or does not finish in time, or jinja2 is missing.
    """
    if not tokenizer.chat_template:
        raise InputError(
            f"the tokenizer {name!r} has no chat template; leave out --chat (and use `rljax sample --prompt` in place of "
            "`rljax chat`), or use the tokenizer of a chat model."
        )
    options = {**chat_format.options, **(chat_template_kwargs or {})}
    render = partial(
        _render, tokenizer, chat_format=chat_format, name=name, opens_turn=opens_turn, tools=tools, options=options
    )
    texts = _convert_calls(messages, _arguments_as_text)
    objects = _convert_calls(messages, _arguments_as_object)
    if objects == texts:
        return render(texts)
    try:
        text = render(objects)
    except InputError:
        return render(texts)
    return render(texts) if _has_python_arguments(text, objects, [*messages, {"tools": tools}]) else text


def _has_python_arguments(text: str, objects: Sequence[Mapping[str, Any]], data: Sequence[Any]) -> bool:
    """Decide whether a template wrote the arguments of a call as Python does; the data may contain the same text."""
    forms: list[str] = []
    _convert_calls(objects, lambda value: forms.append(str(value)) if isinstance(value, Mapping) and value else None)
    return any(text.count(form) > sum(own.count(form) for own in texts_of(data)) for form in forms)


def _render(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    chat_format: ChatFormat,
    name: str,
    opens_turn: bool,
    tools: Sequence[Mapping[str, Any]] | None,
    options: Mapping[str, object],
) -> str:
    def render() -> str:
        template = _fix_date(tokenizer.get_chat_template(None, tools), chat_format.date, name)
        return tokenizer.apply_chat_template(
            list(messages),
            tools=tools if tools is None else list(tools),
            chat_template=template,
            add_generation_prompt=opens_turn,
            tokenize=False,
            **options,
        )

    try:
        return run_within(RENDER_SECONDS, render)
    except InputError:
        raise
    except TimeoutError as error:
        raise InputError(
            f"the chat template of {name!r} did not finish within {RENDER_SECONDS:g} seconds; check its loops, or leave out --chat."
        ) from error
    except ImportError as error:
        raise InputError(
            f"the chat template cannot be rendered ({one_line(error)}); run `pip install jinja2`, or leave out --chat."
        ) from error
    except Exception as error:  # a template is a program and may raise anything
        roles = [message["role"] for message in messages]
        raise InputError(
            f"the chat template of {name!r} rejects messages with the roles {roles} ({one_line(error)}); change the messages."
        ) from error


def _fix_date(template: str, date: str | None, name: str) -> str:
    """Return the template with a fixed date in place of today's, so that a resumed run reads the same prompts on another day."""
    if date is None or "strftime_now(" not in template:
        return template
    day = datetime.strptime(date, "%Y-%m-%d")
    dated = _STRFTIME.sub(lambda match: repr(day.strftime(match[2])), template)
    if "strftime_now(" in dated:
        raise InputError(
            f"the chat template of {name!r} calls strftime_now with a format that is not a literal string, so the "
            "date cannot be set; write the date into the template."
        )
    return dated


def run_within(seconds: float, function: Callable[[], Value]) -> Value:
    """Call a Python function in a separate thread, and stop it if it takes too long.

    Raises:
        TimeoutError: the function took longer than `seconds`.
    """
    results: list[Value] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        raise TimeoutError
    if errors:
        raise errors[0]
    return results[0]


def unclosed_thought(prompt: str) -> str:
    """Return the end of a prompt, from its unclosed reasoning tag on; empty if no tag is open.

    Example:
        >>> unclosed_thought("<|im_start|>assistant\\n<think>\\n"), unclosed_thought("<think>\\n\\n</think>\\n\\n")
        ('<think>\\n', '')
    """
    start = prompt.rfind(THINK)
    return "" if start < 0 or THINK_END in prompt[start:] else prompt[start:]
