"""Conversations in the form that TRL's rewards read: a prompt is a list of messages, a completion is a list of one message."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljax.rewards.calling import called_name

Messages = Sequence[Mapping[str, str]]


def reads_text(reward: Callable) -> bool:
    """True if a reward is one of rljax, which read prompts and completions as text.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> reads_text(BY_NAME["exact"]), reads_text(functools.partial(BY_NAME["math"])), reads_text(len)
        (True, True, False)
    """
    while isinstance(reward, functools.partial):
        reward = reward.func
    return called_name(reward).startswith("rljax.")


def as_messages(
    prompts: Sequence[str], completions: Sequence[str], chats: Sequence[Messages | None]
) -> tuple[list[Any], list[Any]]:
    """Write the prompts that are conversations as lists of messages, and their completions as lists of one message.

    Args:
        prompts: N prompts as text.
        completions: one per prompt.
        chats: the messages of each prompt; None for a prompt that is plain text.

    Returns:
        N prompts and N completions. Every message is a new dict, because a reward may change its arguments.

    Example:
        >>> as_messages(["1+1", "2+2"], ["2", "4"], [[{"role": "user", "content": "1+1"}], None])
        ([[{'role': 'user', 'content': '1+1'}], '2+2'], [[{'role': 'assistant', 'content': '2'}], '4'])
    """
    chat_prompts = [
        text if chat is None else [dict(message) for message in chat] for text, chat in zip(prompts, chats, strict=True)
    ]
    chat_completions = [
        text if chat is None else [{"role": "assistant", "content": text}]
        for text, chat in zip(completions, chats, strict=True)
    ]
    return chat_prompts, chat_completions
