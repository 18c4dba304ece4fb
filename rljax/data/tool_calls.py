"""Parsing of tool calls in the formats of several model families, and JSON schemas of tools.

A malformed call is not dropped: the model gets an error message, and the run counts the call.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljax.data.bad_rows import short_repr
from rljax.data.chat import parse_arguments
from rljax.data.tokenizer import HuggingFaceTokenizer, Tokenizer, completion_text
from rljax.errors import InputError
from rljax.text import one_line

EPISODE_STATE = "episode_state"
"""Parameter through which a tool receives the state that its previous call in the episode kept. The model does not pass it."""


@dataclass(frozen=True)
class ToolCall:
    """One tool call in a turn."""

    name: str
    """Name of the tool."""
    arguments: Mapping[str, Any]
    """Arguments by name."""
    id: str
    """Identifier of the call within its turn; nine letters and digits, which every family accepts."""

    def to_message(self) -> dict[str, Any]:
        """Return the call as an entry of a message's `tool_calls`."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": dict(self.arguments)}}


class Turn(str):
    """Text of one turn of the policy, with its parsed tool calls.

    Args:
        text: the text, with the special tokens of tool calls.
        content: the text outside the calls.
        calls: the calls that can be read, in order.
        malformed: what is wrong with each call that cannot be read.
    """

    content: str
    calls: tuple[ToolCall, ...]
    malformed: tuple[str, ...]

    def __new__(cls, text: str, content: str = "", calls: Sequence[ToolCall] = (), malformed: Sequence[str] = ()) -> "Turn":
        """Create the text, with the other arguments as its attributes."""
        turn = super().__new__(cls, text)
        turn.content, turn.calls, turn.malformed = content, tuple(calls), tuple(malformed)
        return turn


@dataclass(frozen=True)
class Dialect:
    """How a family of models writes tool calls."""

    name: str
    """Name of the family."""
    mark: str
    """Text by which a chat template of this family is recognized."""
    pattern: re.Pattern[str]
    """Matches a region with calls. Group `calls` is JSON; group `name` is the tool's name if the JSON does not contain it."""
    opening: str
    """Text at the beginning of a region; a region without an end is a malformed call."""


DIALECTS = (
    Dialect(
        "deepseek",
        "<｜tool▁call▁begin｜>",
        re.compile(
            r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?(?P<name>[^\n<]+?)(?:<｜tool▁sep｜>|\n```json\n)(?P<calls>.*?)(?:\n```)?"
            r"<｜tool▁call▁end｜>",
            re.DOTALL,
        ),
        "<｜tool▁call▁begin｜>",
    ),
    Dialect(
        "mistral",
        "[TOOL_CALLS]",
        re.compile(
            r"\[TOOL_CALLS\]\s*(?:(?P<name>[\w.-]+)(?:\[CALL_ID\]\w+)?\[ARGS\])?(?P<calls>[^\[{]*[\[{].*?)(?=\[TOOL_CALLS\]|$)",
            re.DOTALL,
        ),
        "[TOOL_CALLS]",
    ),
    Dialect(
        "hermes",
        "<tool_call>",
        re.compile(r"<tool_call>(?P<name>)(?P<calls>.*?)</tool_call>", re.DOTALL),
        "<tool_call>",
    ),
    Dialect(
        "llama",
        "<|python_tag|>",
        re.compile(r"^\s*(?:<\|python_tag\|>)?(?P<name>)(?P<calls>\{.*\"(?:parameters|arguments)\".*)$", re.DOTALL),
        "<|python_tag|>",
    ),
)
"""All dialects. A model uses the first one whose mark is in its template; `dialect_of` also
recognizes a Llama 3 template that lacks the mark."""
HERMES = next(dialect for dialect in DIALECTS if dialect.name == "hermes")
"""Dialect for models whose template does not describe tools; the prompt then describes this dialect."""
LLAMA = next(dialect for dialect in DIALECTS if dialect.name == "llama")
MARKUP = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
"""Markers around a group of calls; they are removed from the content."""
HERMES_TEXT = """You can call these functions:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments between these tags:
<tool_call>
{{"name": "NAME", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>"""


def dialect_of(tokenizer: Tokenizer) -> Dialect:
    """Return the dialect of a tokenizer's chat template; Hermes if there is no template or no dialect matches it.

    Example:
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> dialect_of(ByteTokenizer()).name
        'hermes'
    """
    template = tokenizer.inner.chat_template if isinstance(tokenizer, HuggingFaceTokenizer) else None
    text = template if isinstance(template, str) else json.dumps(template or "", ensure_ascii=False)
    if '"parameters": ' in text and "<|eot_id|>" in text:
        return LLAMA
    return next((dialect for dialect in DIALECTS if dialect.mark in text), HERMES)


def read_turn(tokenizer: Tokenizer, ids: Sequence[int], *, is_first: bool) -> Turn:
    """Decode a turn, and parse its tool calls.

    Args:
        tokenizer: the policy's tokenizer.
        ids: the sampled tokens of the turn.
        is_first: whether the turn follows the prompt directly; the prompt may already contain the turn's first tokens.
    """
    if isinstance(tokenizer, HuggingFaceTokenizer):
        tokenizer = tokenizer.with_settings(tokenizer.chat, keeps_special=True)
    text = completion_text(tokenizer, ids) if is_first else tokenizer.decode(ids)
    return parse_turn(text, dialect_of(tokenizer))


def parse_turn(text: str, dialect: Dialect = HERMES) -> Turn:
    """Parse the tool calls in a text.

    Args:
        text: one turn, with the special tokens of calls and without the end-of-turn token.
        dialect: the format of the calls.

    Example:
        >>> turn = parse_turn('Let me see.<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><tool_call>{"a"</tool_call>')
        >>> turn.content, turn.calls[0].name, dict(turn.calls[0].arguments), len(turn.malformed)
        ('Let me see.', 'add', {'a': 1}, 1)
    """
    calls: list[ToolCall] = []
    malformed: list[str] = []
    for match in dialect.pattern.finditer(text):
        for name, arguments in _parse_calls(match["name"], match["calls"], malformed):
            calls.append(ToolCall(name, arguments, f"call{len(calls):05d}"))
    content = dialect.pattern.sub("", text)
    if dialect.opening in content:
        content, _, rest = content.partition(dialect.opening)
        malformed.append(f"the tool call {short_repr(rest)} has no end")
    for marker in MARKUP:
        content = content.replace(marker, "")
    return Turn(text, content.strip(), calls, malformed)


def _parse_calls(name: str | None, text: str, malformed: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and arguments of each call in a region; append messages about malformed calls to `malformed`."""
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text.strip())
    except (ValueError, RecursionError) as error:
        malformed.append(f"the tool call {short_repr(text)} is not JSON ({one_line(error)})")
        return
    if text.strip()[end:].strip():
        malformed.append(f"the tool call {short_repr(text)} has more text after its JSON value")
        return
    entries = value if isinstance(value, list) and not name else [value]
    for entry in entries:
        call: Any = {"name": name, "arguments": entry} if name else entry
        fault = _fault(call)
        if fault is None:
            yield call["name"].strip(), _arguments(call)
        else:
            malformed.append(f"the tool call {short_repr(json.dumps(call))} {fault}")


def _fault(call: object) -> str | None:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return 'must be a JSON object with "name" and "arguments"'
    if not isinstance(_arguments(call), dict):
        return "must have a JSON object as its arguments"
    return None


def _arguments(call: Mapping[str, Any]) -> Any:
    """Return the arguments of a call; parse them if the model wrote them as JSON text."""
    found = call.get("arguments", call.get("parameters", {}))
    return {} if found is None else parse_arguments(found)


def schema_of(tool: Callable | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON schema of a tool: for a function, from its signature and its docstring; otherwise the schema itself.

    Raises:
        InputError: an argument has no type or no description, or the schema has no name.

    Example:
        >>> def add(a: int, b: int = 0) -> int:
        ...     '''Add two numbers.
        ...
        ...     Args:
        ...         a: the first number.
        ...         b: the second number.
        ...     '''
        ...     return a + b
        >>> schema_of(add)["function"]["parameters"]["required"]
        ['a']
    """
    if isinstance(tool, Mapping):
        function = tool.get("function", tool)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InputError(
                f"the tool {tool!r:.80} has no name; give the JSON schema of a function, or a Python function."
            )
        return tool
    from transformers.utils.chat_template_utils import get_json_schema  # noqa: PLC0415  importing it takes seconds

    if inspect.ismethod(tool):
        tool = tool.__func__
    try:
        return get_json_schema(_without_state(tool))
    except Exception as error:  # get_json_schema raises exceptions of several types
        raise InputError(
            f"the tool {getattr(tool, '__name__', tool)!r:.80} has no JSON schema ({one_line(error)}); describe the tool in the "
            "first line of its docstring; give each argument a type and a line in the section `Args:`."
        ) from error


def keeps_state(tool: Callable) -> bool:
    """Return True if a tool has a parameter `episode_state`."""
    return EPISODE_STATE in inspect.signature(tool).parameters


def _without_state(tool: Callable) -> Callable:
    """Return a function with the tool's signature and docstring, but without `episode_state`, which the model does not pass."""
    if not keeps_state(tool):
        return tool

    def stand_in() -> None:
        """Hold the name, the docstring and the signature, which are set below."""

    signature = inspect.signature(tool)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != EPISODE_STATE]
    stand_in.__name__, stand_in.__doc__ = tool.__name__, tool.__doc__
    stand_in.__annotations__ = {
        name: kind for name, kind in tool.__annotations__.items() if name not in (EPISODE_STATE, "return")
    }
    stand_in.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return stand_in


def name_of(tool: Callable | Mapping[str, Any]) -> str:
    """Return the name of a tool."""
    return schema_of(tool).get("function", tool)["name"] if isinstance(tool, Mapping) else tool.__name__


def tools_as_text(schemas: Sequence[Mapping[str, Any]]) -> str:
    """Write instructions for a model whose chat template does not describe tools."""
    return HERMES_TEXT.format(tools="\n".join(json.dumps(schema) for schema in schemas))
