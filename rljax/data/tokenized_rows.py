"""Rows that are already token ids, with a mask of the tokens to train on, as TRL, Transformers and verl store them."""

from collections.abc import Mapping, Sequence
from typing import Any

from rljax.data.bad_rows import BadRowError, describe_value, short_repr
from rljax.data.cells import answer_of, require
from rljax.data.formats import Format, columns_except
from rljax.data.problem import TokenizedRow

IDS = "input_ids"
LABELS = "labels"
IGNORED = -100
"""Label of a token that is not trained on."""
MASKS = ("assistant_masks", "completion_mask", "loss_mask")
"""Columns with 1 for each token to train on and 0 for the others. If a row has several of these columns, a token needs 1 in all."""
ATTENTION, POSITIONS, LENGTHS = "attention_mask", "position_ids", "seq_lengths"
TOKEN_COLUMNS = (IDS, LABELS, *MASKS, ATTENTION, POSITIONS, LENGTHS)


def is_tokenized(row: Mapping[str, object]) -> bool:
    """Return True if a row has token ids, and labels or a mask of the tokens to train on.

    Example:
        >>> is_tokenized({"input_ids": [1, 2], "labels": [-100, 2]}), is_tokenized({"input_ids": [1, 2], "prompt": "a"})
        (True, False)
    """
    return isinstance(row.get(IDS), list | tuple) and any(name in row for name in (LABELS, *MASKS))


def read_tokens(row: Mapping[str, object]) -> TokenizedRow:
    """Read the tokens of a row without its padding; the response begins at the first token that is trained on.

    The first token of a row is never predicted, so it is part of the prompt even if its mask is 1.

    Args:
        row: a row with `input_ids`, and with `labels` (the same ids, but -100 for a token that is not trained on) or columns of
            `MASKS`. It may also have `attention_mask`, which is 0 at padding, and `position_ids` or `seq_lengths` of one sequence.

    Raises:
        BadRowError: the columns differ in length or have invalid values, no token is trained on, or the row has several sequences.

    Example:
        >>> read_tokens({"input_ids": [5, 6, 7, 8, 9], "labels": [-100, -100, 7, -100, 9]})
        TokenizedRow(prompt=(5, 6), response=(7, 8, 9), mask=(True, False, True))
    """
    ids = _read_numbers(row, IDS)
    trained = [True] * len(ids)
    for name in (name for name in MASKS if name in row):
        trained = [so_far and bool(flag) for so_far, flag in zip(trained, _read_flags(row, name, len(ids)), strict=True)]
    if LABELS in row:
        labels = _same_length(_read_numbers(row, LABELS), LABELS, len(ids))
        index = next((i for i, label in enumerate(labels) if label not in (IGNORED, ids[i])), None)
        if index is not None:
            raise BadRowError(
                f"the label at index {index} is {labels[index]}, but it must be {IGNORED} or the token at that index, {ids[index]}",
                "write labels that are not shifted",
                column=LABELS,
            )
        trained = [so_far and label != IGNORED for so_far, label in zip(trained, labels, strict=True)]
    kept = _unpadded_slice(row, len(ids))
    ids, trained = ids[kept], trained[kept]
    first = next((i for i, is_trained in enumerate(trained) if is_trained and i > 0), None)
    if first is None:
        raise BadRowError("no token is trained on", "remove the row, or correct its mask", column=IDS)
    return TokenizedRow(tuple(ids[:first]), tuple(ids[first:]), tuple(trained[first:]))


def _unpadded_slice(row: Mapping[str, object], length: int) -> slice:
    """Return the slice of a row's tokens that contains no padding."""
    attention = _read_flags(row, ATTENTION, length) if ATTENTION in row else [1] * length
    positions = [i for i, flag in enumerate(attention) if flag]
    kept = slice(positions[0], positions[-1] + 1) if positions else slice(0, 0)
    if len(positions) < kept.stop - kept.start:
        raise BadRowError("there is padding between tokens", "move it to an end, or remove it", column=ATTENTION)
    expected = {POSITIONS: [*range(len(positions))], LENGTHS: [len(positions)]}
    for name, wanted in expected.items():
        found = None if name not in row else _read_numbers(row, name)
        found = found[kept] if found is not None and name == POSITIONS else found
        if found not in (None, wanted):
            fault = "do not count up from 0" if name == POSITIONS else "are not the number of its tokens"
            raise BadRowError(
                f"the row contains several sequences, or its {name} {fault}",
                "write one sequence per row; rljax packs them itself",
                column=name,
            )
    return kept


def _read_numbers(row: Mapping[str, object], name: str) -> list[int]:
    values: Any = require(row, name)
    if not isinstance(values, list | tuple):
        raise BadRowError(f"a list of whole numbers is expected, not {describe_value(values)}", "rewrite it", column=name)
    wrong = [value for value in values if not isinstance(value, int) or (value < 0 and name != LABELS)]
    if wrong:
        numbers = "whole numbers" if name == LABELS else "whole numbers of at least 0"
        raise BadRowError(f"{numbers} are expected, not {short_repr(wrong[0])}", "rewrite it", column=name)
    return [int(value) for value in values]


def _read_flags(row: Mapping[str, object], name: str, length: int) -> list[int]:
    flags = _same_length(_read_numbers(row, name), name, length)
    wrong = next((flag for flag in flags if flag > 1), None)
    if wrong is not None:
        raise BadRowError(f"0 or 1 is expected for each token, not {wrong}", "rewrite it", column=name)
    return flags


def _same_length(values: Sequence[int], name: str, length: int) -> list[int]:
    if len(values) != length:
        raise BadRowError(f"there are {len(values)} values for {length} tokens", "write one per token id", column=name)
    return [*values]


def _as_text(ids: Sequence[int]) -> str:
    """Return the ids as text, separated by spaces."""
    return " ".join(map(str, ids))


TOKENIZED = Format(
    "token ids",
    lambda row: (_as_text(read_tokens(row).prompt), None),
    lambda row: "" if row.get("answer") in (None, "") else answer_of(row, "answer"),
    lambda row: _as_text(read_tokens(row).response),
    columns_except(*TOKEN_COLUMNS),
    lambda row: None,
    read_tokens,
)
"""The format of tokenized rows. The texts of the prompt and demonstration are their ids, separated by spaces."""
