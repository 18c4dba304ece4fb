"""Blocks of plain text: the examples of next-token pretraining."""

from collections.abc import Sequence

import numpy as np

from rljax.data.problem import Problem
from rljax.data.prompts import Demonstrations, right_pad
from rljax.data.tokenizer import Tokenizer, prefix_ids


def cut_blocks(problems: Sequence[Problem], tokenizer: Tokenizer, length: int) -> Demonstrations:
    """Join documents into one token stream, and cut it into blocks with `length` prediction targets each.

    ::

        stream = start, document 1, end, start, document 2, end, ...        block i = stream[iT], predicts stream[iT+1 ... (i+1)T]

    Each token of the stream except the first is predicted once, from the earlier tokens of its block, including other documents'.

    Args:
        problems: the documents, in the column `text`.
        tokenizer: the tokenizer. Its prefix starts each document, and its end token ends each document. Without a prefix, an
            end token starts the stream.
        length: T, the number of predicted tokens per block.

    Returns:
        One row per block: a prompt of one token, and a response of T tokens (the last block may have fewer).

    Example:
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> blocks = cut_blocks([Problem("0", "", columns={"text": "abc"})], ByteTokenizer(), 3)
        >>> blocks.prompt_tokens.tolist(), blocks.response_tokens.tolist(), blocks.response_mask.sum()
        ([[1], [102]], [[100, 101, 102], [2, 0, 0]], np.int64(4))
    """
    start = prefix_ids(tokenizer)
    stream = [] if start else [tokenizer.eos_token_id]
    for problem in problems:
        stream += [*start, *tokenizer.encode(str(problem.columns["text"])), tokenizer.eos_token_id]
    starts = range(0, len(stream) - 1, length)
    tokens, attention = right_pad(
        [stream[begin + 1 : begin + 1 + length] for begin in starts], length, tokenizer.pad_token_id
    )
    first = np.array([[stream[begin]] for begin in starts], np.int32)
    return Demonstrations(first, np.ones(first.shape, bool), tokens, attention, attention, dropped=0)
