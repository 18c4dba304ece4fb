"""Encode the messages between the policy's turns of an episode as tokens, following the chat template.

Sampled text is never rendered again: the template writes only the text between the end of a turn and the beginning of the next. A
template is rejected if the result differs from rendering the full dialogue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rljax.data.chat import THINK_END, parse_chat_columns
from rljax.data.problem import Problem
from rljax.data.prompts import chat_messages
from rljax.data.tokenizer import HuggingFaceTokenizer, Tokenizer
from rljax.data.tool_calls import ToolCall, Turn, schema_of, tools_as_text
from rljax.errors import InputError
from rljax.text import replace_surrogates

Message = Mapping[str, Any]
STAND_IN = "4711"
"""Placeholder for the text that the policy sampled."""
THOUGHT = "<think>\n1\n</think>\n\n"
"""Placeholder for the reasoning that the policy sampled."""
NO_CALLS: Sequence[ToolCall] = ()


def encode_messages(tokenizer: Tokenizer, problem: Problem, turn: str, messages: Sequence[Message]) -> list[int]:
    """Return the token ids of the messages after a turn of the policy, up to the beginning of its next turn.

    Args:
        tokenizer: the policy's tokenizer. If it applies no chat template, each message is encoded as a line of text.
        problem: the episode's problem.
        turn: text of the policy's turn; a `Turn` also contains the tool calls.
        messages: the messages after the turn.

    Raises:
        InputError: the template rejects the messages, or it writes the text before them differently once they follow.
    """
    if not (isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.chat.is_used):
        return tokenizer.encode(replace_surrogates("".join(f"{message['content']}\n" for message in messages)))
    calls = turn.calls if isinstance(turn, Turn) else NO_CALLS
    before = _end_text(tokenizer) or replace_surrogates(turn)
    return tokenizer.encode_after(before, replace_surrogates(text_between(tokenizer, problem, messages, calls=calls)))


def _end_text(tokenizer: HuggingFaceTokenizer) -> str:
    """Return the token with which the template ends a turn, as text; empty if there is none."""
    return "" if tokenizer.turn_end is None else str(tokenizer.inner.convert_ids_to_tokens(tokenizer.turn_end))


def text_between(
    tokenizer: HuggingFaceTokenizer, problem: Problem, messages: Sequence[Message], *, calls: Sequence[ToolCall] = NO_CALLS
) -> str:
    """Return what the template writes between the end of the policy's turn and the beginning of its next turn.

    Args:
        tokenizer: a tokenizer with a chat template.
        problem: the episode's problem.
        messages: the messages that follow the turn.
        calls: the tool calls of the turn.

    Raises:
        InputError: the template rejects the messages, or writes the text before the messages differently once they follow.
    """
    prompt, columns = chat_messages(problem), parse_chat_columns(problem.columns)
    messages = _adapt_messages(tokenizer, messages)
    has_tool_results = any(message["role"] == "tool" for message in messages)
    prompt_text = tokenizer.render(prompt, opens_turn=True, **columns)
    turn, dialogue_text = _placeholder_turn(
        tokenizer, prompt, prompt_text, calls if has_tool_results else NO_CALLS, columns
    )
    full = tokenizer.render([*prompt, turn, *messages], opens_turn=True, **columns)
    roles = " and ".join(dict.fromkeys(message["role"] for message in messages))
    if not dialogue_text.startswith(prompt_text) or not full.startswith(prompt_text):
        raise InputError(
            f"the chat template of {tokenizer.name!r} writes the prompt differently once {roles} messages follow it (for example, "
            "it lists the tools before the last user message, or only the newest turn has an empty thought), so an episode cannot "
            "be continued as it was sampled; return the observations as plain text, give them another role, or change the template."
        )
    if not full.startswith(dialogue_text):
        raise InputError(
            f"the chat template of {tokenizer.name!r} writes an assistant turn differently once {roles} messages follow it "
            "(for example, without its reasoning), so an episode cannot be continued as it was sampled; return the observations as "
            "plain text, give them another role, or change the template."
        )
    closing = _end_text(tokenizer)
    tail = dialogue_text[len(prompt_text) :].rpartition(closing)[2] if closing else ""
    return tail + full[len(dialogue_text) :]


def _placeholder_turn(
    tokenizer: HuggingFaceTokenizer,
    prompt: Sequence[Message],
    prompt_text: str,
    calls: Sequence[ToolCall],
    columns: Mapping[str, Any],
) -> tuple[Message, str]:
    """Return a placeholder for the sampled turn, and the dialogue rendered up to the end of that turn."""
    thinks = THINK_END in str(tokenizer.inner.chat_template) and not prompt_text.rstrip().endswith(THINK_END)
    content = (THOUGHT if thinks else "") + ("" if calls and not thinks else STAND_IN)
    turn: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        turn["tool_calls"] = [call.to_message() for call in calls]
    return turn, tokenizer.render([*prompt, turn], opens_turn=False, **columns)


def _adapt_messages(tokenizer: HuggingFaceTokenizer, messages: Sequence[Message]) -> list[Message]:
    """Return the messages; if the template does not support tools, tool results become one user message."""
    if "tool" in str(tokenizer.inner.chat_template) or all(message["role"] != "tool" for message in messages):
        return list(messages)
    return [{"role": "user", "content": "\n".join(message["content"] for message in messages)}]


def with_tools(problems: Sequence[Problem], tools: Sequence[Any], tokenizer: Tokenizer) -> list[Problem]:
    """Add tools to the prompts of problems.

    The tools go into the column `tools` if the chat template writes it, and otherwise into instructions before the first message.
    Without a chat template, the problems are returned unchanged.

    Args:
        problems: the problems; tools that a problem already has are kept.
        tools: functions or JSON schemas.
        tokenizer: the policy's tokenizer.

    Raises:
        InputError: a tool has no JSON schema.
    """
    if not tools or not (isinstance(tokenizer, HuggingFaceTokenizer) and tokenizer.inner.chat_template):
        return list(problems)
    schemas = [dict(schema_of(tool)) for tool in tools]
    probe = [{"role": "user", "content": STAND_IN}]
    if tokenizer.render(probe, opens_turn=True) != tokenizer.render(probe, opens_turn=True, tools=schemas):
        return [replace(problem, columns={"tools": schemas, **problem.columns}) for problem in problems]
    text = tools_as_text(schemas)
    return [replace(problem, messages=_add_instructions(chat_messages(problem), text)) for problem in problems]


def _add_instructions(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """Put instructions before the text of the first message."""
    first, *rest = messages
    return ({**first, "content": f"{text}\n\n{first['content']}"}, *rest)
