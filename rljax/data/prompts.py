"""Tokenized prompts and demonstrations, and the order in which prompts are used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import grain
import numpy as np
from jaxtyping import Bool, Int32

from rljax.data.cells import join_contents
from rljax.data.chat import CHAT_COLUMNS, parse_chat_columns
from rljax.data.problem import Problem, TokenizedProblem
from rljax.data.tokenizer import ChatTokenizer, HuggingFaceTokenizer, Tokenizer, prefix_ids
from rljax.errors import InputError
from rljax.records import is_finite_number, required


@dataclass(frozen=True)
class EncodedPrompts:
    """Problems whose prompts fit within a maximum length, and the tokens of these prompts.

    Args:
        problems: the problems, in their original order.
        tokens: the token ids of each prompt.
        dropped: the number of problems whose prompt was too long.
    """

    problems: tuple[Problem, ...]
    tokens: tuple[list[int], ...]
    dropped: int


class Demonstrations(NamedTuple):
    """Prompts and worked responses for supervised training, N rows.

    Prompts are padded on the left and responses on the right, so that each response directly follows its prompt. A response
    includes its end token, because a model that never sees an end token never learns to stop.
    """

    prompt_tokens: Int32[np.ndarray, "N P"]
    """Token ids of the prompts."""
    prompt_attention: Bool[np.ndarray, "N P"]
    """Whether each prompt position contains a token rather than padding."""
    response_tokens: Int32[np.ndarray, "N T"]
    """Token ids of the responses."""
    response_attention: Bool[np.ndarray, "N T"]
    """Whether each response position contains a token rather than padding."""
    response_mask: Bool[np.ndarray, "N T"]
    """Whether each response token is trained on; only tokens that the assistant wrote are."""
    dropped: int
    """Number of problems left out because the prompt or response is too long."""


def encode_prompts(
    problems: Sequence[Problem], tokenizer: Tokenizer, *, max_length: int, chat: bool = False, name: str = "prompt"
) -> EncodedPrompts:
    """Tokenize the prompts of problems, and drop those that are too long.

    Args:
        problems: the problems.
        tokenizer: the tokenizer; its bos token, if it has one, starts every prompt.
        max_length: the maximum number of tokens of a prompt.
        chat: format each prompt with the tokenizer's chat template, which adds the special tokens. A plain prompt becomes the
            user's turn.
        name: what the prompts are called in an error message, for example "held-out prompt".

    Returns:
        The problems that fit, their tokens, and the number of dropped problems.

    Raises:
        InputError: there are no problems, none fits, or `chat` is set and the tokenizer has no template.

    Example:
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> encoded = encode_prompts([Problem("1+1=", "2"), Problem("10+10=", "20")], ByteTokenizer(), max_length=5)
        >>> encoded.tokens, encoded.dropped
        (([1, 52, 46, 52, 64],), 1)
    """
    if not problems:
        raise InputError(f"there are no problems to encode as {name}s; give at least one.")
    rows = [(problem, prompt_tokens(problem, tokenizer, chat=chat)) for problem in problems]
    fitting = [(problem, tokens) for problem, tokens in rows if len(tokens) <= max_length]
    if not fitting:
        shortest = min(len(tokens) for _, tokens in rows)
        raise InputError(
            f"every {name} is longer than the limit of {max_length} tokens: the shortest has {shortest}; raise the limit to "
            f"at least {shortest}."
        )
    return EncodedPrompts(
        problems=tuple(problem for problem, _ in fitting),
        tokens=tuple(tokens for _, tokens in fitting),
        dropped=len(rows) - len(fitting),
    )


def check_has_token(problem: Problem, tokens: Sequence[int]) -> None:
    """Reject a prompt without tokens, because a response must follow a token.

    Args:
        problem: the problem.
        tokens: the token ids of its prompt.

    Raises:
        InputError: the prompt has no token.

    Example:
        >>> check_has_token(Problem("1+1=", "2"), [52, 46, 52, 64])
    """
    if not len(tokens):
        raise InputError(
            f"the prompt {problem.prompt!r:.80} has no token, but a response must follow one; give it text, or use a "
            "tokenizer with a bos token."
        )


def prompt_tokens(problem: Problem, tokenizer: Tokenizer, *, chat: bool = False) -> list[int]:
    """Tokenize one prompt.

    Args:
        problem: the problem.
        tokenizer: the tokenizer; its bos token, if it has one, comes first.
        chat: format the prompt with the tokenizer's chat template, which adds the special tokens.

    Returns:
        Token ids.

    Raises:
        InputError: the tokenizer cannot encode the text, or `chat` is set and the tokenizer has no template.

    Example:
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> prompt_tokens(Problem("1+1=", "2"), ByteTokenizer())
        [1, 52, 46, 52, 64]
    """
    if isinstance(problem, TokenizedProblem):
        return _check_ids(problem.tokens.prompt, tokenizer)
    if not chat:
        return prefix_ids(tokenizer) + tokenizer.encode(problem.prompt)
    if not isinstance(tokenizer, ChatTokenizer):
        raise InputError(
            f"a {type(tokenizer).__name__} has no chat template; leave out --chat (and use `rljax sample --prompt` in place of "
            "`rljax chat`), or use the tokenizer of a chat model."
        )
    return tokenizer.apply_chat_template(chat_messages(problem), **parse_chat_columns(problem.columns))


def chat_messages(problem: Problem) -> tuple[Mapping[str, Any], ...]:
    """Return the prompt as a chat; a plain text becomes the user's turn."""
    return ({"role": "user", "content": problem.prompt},) if problem.messages is None else problem.messages


def response_tokens(problem: Problem, tokenizer: Tokenizer, *, chat: bool = False) -> tuple[list[int], list[bool]]:
    """Tokenize the demonstration of a problem, and end it with the end token.

    With a chat template, the template writes the turns, and its end-of-turn token is used instead of the end token.

    Args:
        problem: the problem, with a demonstration.
        tokenizer: the tokenizer.
        chat: whether to use the tokenizer's chat template.

    Returns:
        Token ids, and whether each is trained on: the assistant wrote it, in a message whose `weight` is not 0.

    Raises:
        InputError: the demonstration needs a chat template and `chat` is not set, or the template rejects it.

    Example:
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> response_tokens(Problem("1+1=", "2", "2"), ByteTokenizer())
        ([53, 2], [True, True])
    """
    if isinstance(problem, TokenizedProblem):
        return _check_ids(problem.tokens.response, tokenizer), [*problem.tokens.mask]
    text = required(problem.demonstration, "problem.demonstration")
    if chat and isinstance(tokenizer, HuggingFaceTokenizer):
        turns = problem.turns or ({"role": "assistant", "content": text},)
        pieces = tokenizer.encode_turns(chat_messages(problem), turns, **parse_chat_columns(problem.columns))
        return [i for ids, _ in pieces for i in ids], [is_own for ids, is_own in pieces for _ in ids]
    if problem.turns is not None:
        roles = ", ".join(turn["role"] for turn in problem.turns)
        raise InputError(
            f"the demonstration of {problem.prompt[:60]!r} is a chat (roles: {roles}) with several turns, tool calls or reasoning, "
            "which only a chat template can write; turn chat on (--chat)."
        )
    ids = (
        tokenizer.encode_after(problem.prompt, text)
        if isinstance(tokenizer, HuggingFaceTokenizer)
        else tokenizer.encode(text)
    )
    ids = ids if ids and ids[-1] == tokenizer.eos_token_id else [*ids, tokenizer.eos_token_id]
    return ids, [True] * len(ids)


def _check_ids(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Return token ids unchanged.

    Raises:
        InputError: an id is not in the vocabulary.
    """
    if max(ids) >= tokenizer.vocab_size:
        raise InputError(
            f"a row of the dataset has the token id {max(ids)}, but the vocabulary has only {tokenizer.vocab_size} tokens; "
            "tokenize the rows with the tokenizer of this model."
        )
    return [*ids]


def count_assistant_turns(problem: Problem) -> int:
    """Count the assistant's messages in a demonstration."""
    return sum(turn["role"] == "assistant" for turn in problem.turns or ())


def move_turns_to_demonstration(problem: Problem) -> Problem:
    """Move the assistant's first answer and all later turns into the demonstration, to train on all of the assistant's turns.

    In `problem`, the prompt contains all turns except the last, because RL samples only the last turn.

    Example:
        >>> chat = [{"role": role, "content": text} for role, text in (("user", "1+1="), ("assistant", "2"), ("user", "2+1="))]
        >>> full = move_turns_to_demonstration(Problem("1+1=\\n2\\n2+1=", "3", "3", messages=tuple(chat)))
        >>> full.prompt, [turn["content"] for turn in full.turns]
        ('1+1=', ['2', '2+1=', '3'])
    """
    messages = problem.messages or ()
    question = next((index for index, message in enumerate(messages) if message["role"] == "user"), len(messages))
    first = next((index for index in range(question, len(messages)) if messages[index]["role"] == "assistant"), None)
    if first is None or problem.demonstration is None:
        return problem
    last = problem.turns or ({"role": "assistant", "content": problem.demonstration},)
    return replace(
        problem, prompt=join_contents(messages[:first]), messages=messages[:first], turns=(*messages[first:], *last)
    )


WEIGHT_COLUMNS = ("weight", "weights", "sample_weight", "loss_weight")
"""Columns that other libraries read as the weights of rows."""
COLUMNS_NOT_IN_PROMPTS = (
    *("system", "system_prompt", "functions", "documents", "instruction", "input", "context", "passage"),
    *("choices", "options", "starter_code", "image", "images", "video", "videos", "audio", "audios"),
)
"""Columns that other programs write into prompts. rljax does not; it passes them to the rewards, like all other columns."""
CHATS_NOT_IN_PROMPTS = ("messages", "conversation", "conversations", "history")
"""Columns with chats that other programs write into prompts; an assistant message in such a chat may be the
answer, so prompts are not searched for it."""
SCORE_COLUMNS = tuple(
    (name.format("chosen"), name.format("rejected")) for name in ("score_{}", "{}_score", "{}-rating", "{}_rating")
)
"""Columns with the scores of the two responses of a pair."""
FALSE_LABELS, TRUE_LABELS = {"false", "0", "0.0"}, {"true", "1", "1.0"}
"""Labels of unwanted and wanted completions, as lower-case text."""
MAX_SHAPES = 64
"""Maximum number of different chats compared with the template's output; chats with the same fields and roles count once."""


def list_prompt_omissions(problems: Sequence[Problem], tokenizer: Tokenizer, *, chat: bool) -> list[str]:
    """List what the tokenized prompts and demonstrations omit from the data.

    Args:
        problems: the problems.
        tokenizer: the tokenizer of the prompts.
        chat: whether the prompts are formatted with the tokenizer's chat template.

    Returns:
        The sentences of `list_columns_left_out`; then, if chat is off, a sentence per lost column, or one about the lost roles; if
        chat is on, a sentence each about prompts that are already formatted, fields that the template omits, and template options
        that it does not read.

    Example:
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> messages = ({"role": "system", "content": "Add."}, {"role": "user", "content": "1+1="})
        >>> list_prompt_omissions([Problem("Add.\\n1+1=", "2", messages=messages)], ByteTokenizer(), chat=False)
        ['1 prompt is a chat (roles: system, user), but chat is off: the texts are joined by newlines without roles; use --chat']
    """
    return list_columns_left_out(problems) + _list_chat_omissions(problems, tokenizer, chat=chat)


def list_columns_left_out(problems: Sequence[Problem]) -> list[str]:
    """Describe the columns that the prompts leave out, and the columns or entries that have no effect, one sentence per kind.

    Columns that are left out contain, for example, instructions, choices, chats or images. Entries without effect are weights of
    rows, weights of messages that the assistant did not write, labels of unwanted completions, and scores that rank a pair's
    rejected response higher.

    Example:
        >>> list_columns_left_out([Problem("Which is even?", "1", columns={"choices": ["3", "4"]})])
        ["the prompts leave out the column 'choices'; add it to the prompts"]
        >>> list_columns_left_out([Problem("Which is even? A. 3 B. 4", "B", columns={"choices": ["3", "4"]})])
        []
    """
    unread = [
        name
        for name in COLUMNS_NOT_IN_PROMPTS
        if any(
            problem.columns.get(name) and not _occurs_in_prompt(problem.columns[name], problem.prompt)
            for problem in problems
        )
    ]
    unread += [
        name
        for name in CHATS_NOT_IN_PROMPTS
        if any(
            not _occurs_in_prompt(_contents_of_others(problem.columns.get(name)), problem.prompt) for problem in problems
        )
    ]
    weights = [name for name in WEIGHT_COLUMNS if any(problem.columns.get(name) not in (None, 1) for problem in problems)]
    notes = [
        *(f"the column {name!r} is ignored: each row counts once in the loss" for name in weights),
        *_list_labels_without_effect(problems),
    ]
    if not unread:
        return notes
    columns, pronoun = ("column", "it") if len(unread) == 1 else ("columns", "them")
    return [f"the prompts leave out the {columns} {', '.join(map(repr, unread))}; add {pronoun} to the prompts", *notes]


def _contents_of_others(chat: object) -> list[object]:
    """Return the contents of a chat's messages, except the assistant's."""
    messages = [message for message in chat if isinstance(message, Mapping)] if isinstance(chat, list | tuple) else []
    others = [
        message for message in messages if message.get("role", message.get("from")) not in ("assistant", "gpt", "model")
    ]
    return [message.get("content", message.get("value", "")) or "" for message in others]


def _list_labels_without_effect(problems: Sequence[Problem]) -> list[str]:
    """Return one sentence per kind of message weight, label or score that contradicts how the rows are used."""
    notes = []
    chats = [(*(problem.messages or ()), *(problem.turns or ())) for problem in problems]
    roles = {message["role"] for chat in chats for message in chat if message.get("weight") == 1} - {"assistant"}
    if roles:
        notes.append(
            f"messages of role {' or '.join(map(repr, sorted(roles)))} have weight 1, which has no effect: only assistant "
            "messages are trained on"
        )
    labels = [str(problem.columns.get("label")).lower() for problem in problems if problem.demonstration is not None]
    unwanted = sum(label in FALSE_LABELS for label in labels)
    if unwanted and {*labels} <= {*FALSE_LABELS, *TRUE_LABELS, "none"}:
        notes.append(
            f"{unwanted} of {len(problems)} completions are labeled false (unwanted), but are used like all others; leave these "
            "rows out"
        )
    for better, worse in SCORE_COLUMNS:
        pairs = [(problem.columns.get(better), problem.columns.get(worse)) for problem in problems]
        scores = [(float(x), float(y)) for x, y in pairs if is_finite_number(x) and is_finite_number(y)]
        contrary = sum(chosen < rejected for chosen, rejected in scores)
        if contrary:
            notes.append(
                f"in {contrary} of {len(scores)} pairs the rejected response has the higher score ({better} < {worse}); the scores "
                "are not used"
            )
    return notes


def _occurs_in_prompt(value: object, prompt: str) -> bool:
    """Return True if all texts in a column's value occur in a prompt; values such as numbers never do."""
    if isinstance(value, str):
        return value.strip() in prompt
    values = [*value.values()] if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else None
    return values is not None and all(_occurs_in_prompt(each, prompt) for each in values)


def _list_chat_omissions(problems: Sequence[Problem], tokenizer: Tokenizer, *, chat: bool) -> list[str]:
    if not chat:
        chats = [problem for problem in problems if problem.messages is not None]
        lost = [name for name in CHAT_COLUMNS if any(problem.columns.get(name) for problem in problems)]
        if not chats:
            return [f"chat is off, so the prompts leave out the column {name!r}; use --chat" for name in lost]
        count = f"{len(chats)} prompts are chats" if len(chats) > 1 else "1 prompt is a chat"
        roles = ", ".join(sorted({message["role"] for problem in chats for message in problem.messages or ()}))
        without = " or ".join(["roles", *lost])
        return [
            f"{count} (roles: {roles}), but chat is off: the texts are joined by newlines without {without}; use --chat"
        ]
    chats = [problem for problem in problems if problem.messages is not None or parse_chat_columns(problem.columns)]
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        return []
    unread: set[str] = set()
    seen: set[tuple[str, ...]] = set()
    for problem in chats:
        messages, columns = (*chat_messages(problem), *(problem.turns or ())), parse_chat_columns(problem.columns)
        names = {name for message in messages for name in message} | set(columns)
        shape = (*sorted(names), *(message["role"] for message in messages))
        if shape not in seen and len(seen) < MAX_SHAPES:
            seen.add(shape)
            unread |= tokenizer.list_ignored_parts(messages, **columns)
    lost, options = ", ".join(sorted(unread)), ", ".join(map(repr, tokenizer.list_unread_options()))
    opening = tokenizer.turn_opening
    formatted = sum(problem.messages is None and opening in problem.prompt for problem in problems) if opening else 0
    notes = {
        "the chat template omits these fields of the chats in the data, so the model does not see them": lost,
        "the chat template does not read these entries of chat_template_kwargs": options,
    }
    twice = f"{formatted} of {len(problems)} prompts already contain {opening!r}, which the chat template adds; leave out --chat"
    return [*([twice] if formatted else []), *(f"{note}: {names}" for note, names in notes.items() if names)]


class PromptStream:
    """An endless, shuffled stream of records, addressed by position.

    Position 0 is the first record of the first epoch. Each epoch contains every record once, in a new order. The index
    at a position depends only on the seed and the number of records, so a checkpoint has to save only the position.

    Args:
        records: the records, for instance `range(n)`.
        seed: the seed of the order, 0 or more.

    Raises:
        InputError: there are no records, or the seed is negative.

    Example:
        >>> stream = PromptStream("abc", seed=0)
        >>> stream.take(0, 7)
        ['c', 'a', 'b', 'b', 'c', 'a', 'b']
        >>> stream.take(5, 2)
        ['a', 'b']
    """

    def __init__(self, records: Sequence, *, seed: int):
        if not len(records):
            raise InputError("there are no records to sample from; give at least one.")
        if seed < 0:
            raise InputError(f"the seed of the data order is {seed}; it must be a non-negative integer.")
        self.records = records
        # Grain shuffles epoch e with seed + e, so epoch 1 of seed 0 would equal epoch 0 of seed 1. Hashed seeds are far apart.
        self._order = _Shuffled(len(records), int(np.random.SeedSequence(seed).generate_state(1)[0]))

    def indices(self, position: int, count: int) -> list[int]:
        """Return the indices of `count` records from `position` on.

        Args:
            position: the number of records taken earlier, 0 or more.
            count: the number of records; they may continue into the next epoch.

        Returns:
            Indices into the records.

        Raises:
            ValueError: `position` or `count` is negative.
        """
        if position < 0 or count < 0:
            raise ValueError(f"position and count must not be negative, got {position} and {count}")
        return [self._order[index] for index in range(position, position + count)]

    def take(self, position: int, count: int) -> list:
        """Return the records themselves; see `indices`."""
        return [self.records[i] for i in self.indices(position, count)]


@dataclass(frozen=True)
class _Shuffled:
    """The index at each position of the endless, shuffled order of `count` records."""

    count: int
    seed: int

    def __getitem__(self, position: int) -> int:
        return _index(self, position)


@lru_cache(maxsize=8)
def _grain_order(order: _Shuffled) -> grain.MapDataset[int]:
    """Return Grain's order. NumPy cannot reproduce it, and another order would change the results of earlier runs."""
    return grain.MapDataset.source(range(order.count)).shuffle(seed=order.seed).repeat()


@lru_cache(maxsize=1 << 16)
def _index(order: _Shuffled, position: int) -> int:
    """Look up an index in Grain's order; all streams share the cache, because Grain takes 8 ms per lookup."""
    return int(required(_grain_order(order)[position], "index"))


def padded_length(length: int) -> int:
    """Round a number of tokens up to 16 times a power of two, so that few programs are compiled.

    Example:
        >>> [padded_length(n) for n in (1, 16, 17, 100)]
        [16, 16, 32, 128]
    """
    return max(16, 1 << (length - 1).bit_length())


def left_pad(
    rows: Sequence[Sequence[int]], length: int, pad_id: int
) -> tuple[Int32[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
    """Pad token lists of different lengths on the left, into one array.

    Args:
        rows: B lists of token ids.
        length: L, the length of every row.
        pad_id: the token id of the padding.

    Returns:
        The tokens, and a mask that is True where there is no padding, `[B, L]` each.

    Raises:
        ValueError: a list is longer than `length`.

    Example:
        >>> tokens, mask = left_pad([[5, 6], [7]], 3, pad_id=0)
        >>> tokens.tolist(), mask.tolist()
        ([[0, 5, 6], [0, 0, 7]], [[False, True, True], [False, False, True]])
    """
    tokens, mask = right_pad([row[::-1] for row in rows], length, pad_id)
    return np.ascontiguousarray(tokens[:, ::-1]), np.ascontiguousarray(mask[:, ::-1])


def right_pad(
    rows: Sequence[Sequence[int]], length: int, pad_id: int
) -> tuple[Int32[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
    """Pad token lists of different lengths on the right, into one array.

    Args:
        rows: B lists of token ids.
        length: L, the length of every row.
        pad_id: the token id of the padding.

    Returns:
        The tokens, and a mask that is True where there is no padding, `[B, L]` each.

    Raises:
        ValueError: a list is longer than `length`.
    """
    tokens = np.full((len(rows), length), pad_id, np.int32)
    mask = np.zeros((len(rows), length), bool)
    for i, row in enumerate(rows):
        if len(row) > length:
            raise ValueError(f"row {i} has {len(row)} tokens, more than the length {length}")
        tokens[i, : len(row)] = row
        mask[i, : len(row)] = True
    return tokens, mask


def encode_demonstrations(
    problems: Sequence[Problem],
    tokenizer: Tokenizer,
    prompt_length: int,
    response_length: int,
    *,
    chat: bool = False,
    dialogues: bool = False,
) -> Demonstrations:
    """Turn problems with demonstrations into arrays for supervised training.

    Args:
        problems: the problems, each with a demonstration.
        tokenizer: the tokenizer of prompts and responses.
        prompt_length: P, the maximum number of tokens of a prompt.
        response_length: T, the maximum number of tokens of a response, its end token included.
        chat: format the prompts with the tokenizer's chat template.
        dialogues: train on all of the assistant's turns, not only the last; see `move_turns_to_demonstration`. If a dialogue then
            has several assistant turns, prompt and response share a limit of P + T tokens, as for a `TokenizedProblem`.

    Returns:
        The arrays, and the number of problems whose prompt or response was too long. Prompts are padded to P tokens, responses to
        the length of the longest one that fits.

    Raises:
        InputError: a problem has no demonstration, or none fits.
    """
    for problem in problems:
        if problem.demonstration is None:
            raise InputError(
                f"the problem {problem.prompt[:60]!r} has no demonstration, which the warm start needs; add one in the column "
                f"`demonstration`, or turn the warm start off."
            )
    if dialogues:
        problems = [move_turns_to_demonstration(problem) for problem in problems]
    prompts = encode_prompts(problems, tokenizer, max_length=prompt_length, chat=chat)
    limits = [
        prompt_length + response_length - len(tokens)
        if isinstance(problem, TokenizedProblem) or (dialogues and count_assistant_turns(problem) > 1)
        else response_length
        for problem, tokens in zip(prompts.problems, prompts.tokens, strict=True)
    ]
    responses, masks = zip(*(response_tokens(problem, tokenizer, chat=chat) for problem in prompts.problems), strict=True)
    fitting = [i for i, response in enumerate(responses) if len(response) <= limits[i]]
    if not fitting:
        shortest = min(len(response) for response in responses)
        raise InputError(
            f"every demonstration is longer than the limit of {response_length} tokens: the shortest has {shortest} with its "
            f"end token; raise the limit to at least {shortest}."
        )
    prompt_tokens, prompt_attention = left_pad([prompts.tokens[i] for i in fitting], prompt_length, tokenizer.pad_token_id)
    longest = max(len(responses[i]) for i in fitting)
    response_ids, response_attention = right_pad([responses[i] for i in fitting], longest, tokenizer.pad_token_id)
    response_mask, _ = right_pad([[int(is_own) for is_own in masks[i]] for i in fitting], longest, 0)
    return Demonstrations(
        prompt_tokens,
        prompt_attention,
        response_ids,
        response_attention,
        response_mask.astype(bool),
        dropped=len(problems) - len(fitting),
    )
