"""Prompts as token arrays, and the order in which they are served."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import grain
import numpy as np
from jaxtyping import Bool, Int32

from rljax.data.problem import Problem
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError


@dataclass(frozen=True)
class EncodedPrompts:
    """Problems that fit, beside the tokens of their prompts.

    Args:
        problems: in the order they came.
        tokens: the token ids of each one's prompt.
        dropped: how many problems were left out because their prompt was too long.
    """

    problems: tuple[Problem, ...]
    tokens: tuple[list[int], ...]
    dropped: int


class Demonstrations(NamedTuple):
    """Prompts and worked responses for supervised training, N rows.

    The prompts are padded on their left and the responses on their right, so that both meet in the middle. A response ends
    with the end token, which counts: a model that never sees it never learns to stop.
    """

    prompt_tokens: Int32[np.ndarray, "N P"]
    prompt_mask: Bool[np.ndarray, "N P"]
    response_tokens: Int32[np.ndarray, "N T"]
    response_mask: Bool[np.ndarray, "N T"]
    dropped: int


def encode_prompts(
    problems: Sequence[Problem], tokenizer: Tokenizer, *, max_length: int, chat: bool = False
) -> EncodedPrompts:
    """Turn the prompts of problems into tokens, leaving out those that are too long.

    Args:
        problems: what to encode.
        tokenizer: its opening token, if it has one, is put first.
        max_length: the most tokens that a prompt may have.
        chat: write each prompt through the tokenizer's chat template, as the user's turn where it is plain text; the
            template then brings the special tokens.

    Returns:
        The problems that fit, their tokens, and how many were dropped.

    Raises:
        InputError: no problems, none that fits, or `chat` with a tokenizer that has no template.

    Example:
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> encoded = encode_prompts([Problem("1+1=", "2"), Problem("10+10=", "20")], ByteTokenizer(), max_length=5)
        >>> encoded.tokens, encoded.dropped
        (([1, 52, 46, 52, 64],), 1)
    """
    if not problems:
        raise InputError("there are no problems to encode; give at least one.")
    rows = [(problem, prompt_tokens(problem, tokenizer, chat=chat)) for problem in problems]
    fitting = [(problem, tokens) for problem, tokens in rows if len(tokens) <= max_length]
    if not fitting:
        shortest = min(len(tokens) for _, tokens in rows)
        raise InputError(
            f"every prompt is longer than the limit of {max_length} tokens, the shortest has {shortest}; raise the limit to "
            f"at least {shortest}."
        )
    return EncodedPrompts(
        problems=tuple(problem for problem, _ in fitting),
        tokens=tuple(tokens for _, tokens in fitting),
        dropped=len(rows) - len(fitting),
    )


def prompt_tokens(problem: Problem, tokenizer: Tokenizer, *, chat: bool = False) -> list[int]:
    """Turn one prompt into tokens.

    Args:
        problem: what is asked.
        tokenizer: its opening token, if it has one, is put first.
        chat: write the prompt through the tokenizer's chat template instead, which brings its own special tokens.

    Returns:
        Token ids.

    Raises:
        InputError: text that the tokenizer cannot write, or `chat` with a tokenizer that has no template.

    Example:
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> prompt_tokens(Problem("1+1=", "2"), ByteTokenizer())
        [1, 52, 46, 52, 64]
    """
    if not chat:
        opening = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        return opening + tokenizer.encode(problem.prompt)
    if not hasattr(tokenizer, "apply_chat_template"):
        raise InputError(
            f"a {type(tokenizer).__name__} has no chat template; leave the chat off, or take a model's tokenizer."
        )
    plain = ({"role": "user", "content": problem.prompt},)
    return tokenizer.apply_chat_template(plain if problem.messages is None else problem.messages)


class PromptStream:
    """An endless, shuffled order of records, addressed by position.

    Position 0 is the first record of the first epoch. Each epoch holds every record once, in an order of its own. What stands at
    a position depends on the seed and the number of records alone, so one integer is all there is to save and to resume from.

    Args:
        records: what to serve, for instance `range(n)`.
        seed: of the order, from 0 on.

    Raises:
        InputError: no records, or a negative seed.

    Example:
        >>> stream = PromptStream("abc", seed=0)
        >>> stream.take(0, 7)
        ['c', 'a', 'b', 'b', 'c', 'a', 'b']
        >>> stream.take(5, 2)
        ['a', 'b']
    """

    def __init__(self, records: Sequence, *, seed: int):
        if not len(records):
            raise InputError("there are no records to serve; give at least one.")
        if seed < 0:
            raise InputError(f"the seed of the data order is {seed}; give a whole number of 0 or more.")
        self.records = records
        # Grain shuffles epoch e with seed + e, so epoch 1 of seed 0 would be epoch 0 of seed 1; spread the seeds far apart.
        spread = int(np.random.SeedSequence(seed).generate_state(1)[0])
        self._order = grain.MapDataset.source(range(len(records))).shuffle(seed=spread).repeat()

    def indices(self, position: int, count: int) -> list[int]:
        """Say which records stand at `position`, `position + 1`, ..., `count` of them.

        Args:
            position: 0 or more; how many records were taken before.
            count: may reach past the end of an epoch.

        Returns:
            Indices into the records.

        Raises:
            ValueError: a negative position or count.
        """
        if position < 0 or count < 0:
            raise ValueError(f"position and count must not be negative, got {position} and {count}")
        return [self._order[i] for i in range(position, position + count)]

    def take(self, position: int, count: int) -> list:
        """Take the records themselves; see `indices`."""
        return [self.records[i] for i in self.indices(position, count)]


def left_pad(
    rows: Sequence[Sequence[int]], length: int, pad_id: int
) -> tuple[Int32[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
    """Put token lists of several lengths into one array, each at the right end of its row.

    Args:
        rows: token ids, B lists.
        length: L, the length of every row.
        pad_id: what fills the front.

    Returns:
        Tokens and the mask of what is not padding, `[B, L]` each.

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
    """Put token lists of several lengths into one array, each at the left end of its row.

    Args:
        rows: token ids, B lists.
        length: L, the length of every row.
        pad_id: what fills the end.

    Returns:
        Tokens and the mask of what is not padding, `[B, L]` each.

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


def right_pad_demonstrations(
    problems: Sequence[Problem], tokenizer: Tokenizer, prompt_length: int, response_length: int, *, chat: bool = False
) -> Demonstrations:
    """Turn problems with worked responses into arrays for supervised training.

    Args:
        problems: each with a demonstration.
        tokenizer: for prompts and responses.
        prompt_length: P, the most tokens of a prompt.
        response_length: T, the most tokens of a response, its end token included.
        chat: write the prompts through the tokenizer's chat template.

    Returns:
        The arrays, and how many problems were dropped because their prompt or response was too long.

    Raises:
        InputError: a problem without a demonstration, or none that fits.
    """
    for problem in problems:
        if problem.demonstration is None:
            raise InputError(
                f"the problem {problem.prompt[:60]!r} has no demonstration, so it cannot be trained on by imitation; give one "
                f"in the column `demonstration`, or leave the warm start out."
            )
    prompts = encode_prompts(problems, tokenizer, max_length=prompt_length, chat=chat)
    responses = [[*tokenizer.encode(problem.demonstration), tokenizer.eos_token_id] for problem in prompts.problems]
    fitting = [i for i, response in enumerate(responses) if len(response) <= response_length]
    if not fitting:
        shortest = min(len(response) for response in responses)
        raise InputError(
            f"every demonstration is longer than the limit of {response_length} tokens, the shortest has {shortest} with its "
            f"end token; raise the limit to at least {shortest}."
        )
    prompt_tokens, prompt_mask = left_pad([prompts.tokens[i] for i in fitting], prompt_length, tokenizer.pad_token_id)
    response_tokens, response_mask = right_pad([responses[i] for i in fitting], response_length, tokenizer.pad_token_id)
    return Demonstrations(prompt_tokens, prompt_mask, response_tokens, response_mask, dropped=len(problems) - len(fitting))
