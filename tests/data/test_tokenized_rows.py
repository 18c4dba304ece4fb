"""Rows of token ids with a mask: valid rows are read exactly, invalid rows are refused, and SFT trains on the ids."""

import json

import numpy as np
import pytest
from chat_models import save_chat_model
from small_cli import printed

from rljax.data.bad_rows import BadRowError
from rljax.data.problem import TokenizedRow
from rljax.data.problem_datasets import read_problems
from rljax.data.prompts import encode_demonstrations
from rljax.data.tokenized_rows import read_tokens
from rljax.data.tokenizer import ByteTokenizer, load_tokenizer
from rljax.errors import InputError
from rljax.tracking.rows import read_metrics

IDS = [5, 6, 7, 8, 9]
EXPECTED = TokenizedRow((5, 6), (7, 8, 9), (True, False, True))


@pytest.mark.parametrize(
    "row",
    [
        {"input_ids": IDS, "assistant_masks": [0, 0, 1, 0, 1]},
        {"input_ids": IDS, "completion_mask": [0, 0, 1, 0, 1]},
        {"input_ids": IDS, "loss_mask": [False, False, True, False, True]},
        {"input_ids": IDS, "labels": [-100, -100, 7, -100, 9]},
        {"input_ids": tuple(IDS), "assistant_masks": [1, 0, 1, 1, 1], "completion_mask": [1, 1, 1, 0, 1]},
        {"input_ids": IDS, "labels": [5, -100, 7, 8, 9], "assistant_masks": [1, 1, 1, 0, 1]},
        {
            "input_ids": [0, *IDS, 0, 0],
            "labels": [-100, -100, -100, 7, -100, 9, -100, -100],
            "attention_mask": [0, 1, 1, 1, 1, 1, 0, 0],
            "position_ids": [0, 0, 1, 2, 3, 4, 0, 0],
            "seq_lengths": [5],
        },
    ],
)
def test_read_tokens_mask_formats(row):
    assert read_tokens(row) == EXPECTED


def test_read_tokens_first_token_is_prompt():
    assert read_tokens({"input_ids": [5, 6], "labels": [5, 6]}) == TokenizedRow((5,), (6,), (True,))


@pytest.mark.parametrize(
    ("row", "column", "message"),
    [
        ({"input_ids": IDS, "assistant_masks": [0, 1]}, "assistant_masks", "2 values for 5 tokens"),
        ({"input_ids": IDS, "labels": [-100] * 6}, "labels", "6 values for 5 tokens"),
        (
            {"input_ids": IDS, "labels": [6, 7, 8, 9, -100]},
            "labels",
            "label at index 0 is 6, .* or the token at that index, 5",
        ),
        ({"input_ids": IDS, "loss_mask": [0, 0, 2, 0, 1]}, "loss_mask", "0 or 1 is expected for each token, not 2"),
        ({"input_ids": IDS, "loss_mask": [0, 0, 0.5, 0, 1]}, "loss_mask", "whole numbers .* not 0.5"),
        ({"input_ids": IDS, "loss_mask": None}, "loss_mask", "list of whole numbers is expected, not null"),
        ({"input_ids": [5, None], "loss_mask": [0, 1]}, "input_ids", "whole numbers of at least 0 are expected, not None"),
        ({"input_ids": [5, -6], "loss_mask": [0, 1]}, "input_ids", "whole numbers of at least 0 are expected, not -6"),
        ({"input_ids": IDS, "assistant_masks": [1, 0, 0, 0, 0]}, "input_ids", "no token is trained on"),
        ({"input_ids": [], "assistant_masks": []}, "input_ids", "no token is trained on"),
        (
            {"input_ids": IDS, "loss_mask": [0, 1, 1, 1, 1], "attention_mask": [1, 1, 0, 1, 1]},
            "attention_mask",
            "padding between tokens",
        ),
        (
            {"input_ids": IDS, "loss_mask": [0, 1, 1, 1, 1], "position_ids": [0, 1, 2, 0, 1]},
            "position_ids",
            "several sequences",
        ),
        ({"input_ids": IDS, "loss_mask": [0, 1, 1, 1, 1], "seq_lengths": [3, 2]}, "seq_lengths", "several sequences"),
    ],
)
def test_read_tokens_refuses_invalid_rows(row, column, message):
    with pytest.raises(BadRowError, match=message) as caught:
        read_tokens(row)
    assert caught.value.column == column


def test_encode_demonstrations_keeps_tokens_and_mask():
    rows = [
        {"input_ids": IDS, "labels": [-100, -100, 7, -100, 9], "source": "a", "text": "other"},
        {"input_ids": [5, 6, 7, 8, 9, 10, 11, 12], "labels": [-100, 6, 7, 8, 9, 10, 11, 12], "source": "b", "text": "more"},
    ]
    problems = read_problems(rows, tokenized=True).problems
    assert [problem.tokens for problem in problems] == [read_tokens(row) for row in rows]
    assert problems[0].columns == {"source": "a", "text": "other"}
    found = encode_demonstrations(problems, ByteTokenizer(), 4, 5, chat=False)
    assert found.dropped == 0, "a row may be as long as both limits together (4 prompt tokens and 5 response tokens)"
    for index, row in enumerate(rows):
        ids = [*found.prompt_tokens[index][found.prompt_attention[index]], *found.response_tokens[index]]
        mask = [*np.zeros(found.prompt_attention[index].sum(), bool), *found.response_mask[index]]
        assert ids[: len(row["input_ids"])] == row["input_ids"]
        assert [label != -100 for label in row["labels"]] == mask[: len(row["labels"])]
    assert encode_demonstrations(problems, ByteTokenizer(), 4, 3, chat=False).dropped == 1
    large = read_problems([{"input_ids": [1, 9000], "labels": [-100, 9000]}], tokenized=True).problems
    with pytest.raises(InputError, match="has the token id 9000, but the vocabulary has only 259 tokens"):
        encode_demonstrations(large, ByteTokenizer(), 4, 4)


def test_token_ids_need_tokenized_option():
    rows = [{"input_ids": IDS, "labels": IDS, "prompt": "1+1=", "answer": "2"}]
    assert read_problems(rows).problems[0].prompt == "1+1="
    with pytest.raises(InputError, match="rows of token ids have no prompt text; only `rljax sft` can read such rows"):
        read_problems([{"input_ids": IDS, "labels": IDS}])


def write_rows(tokenizer, chats_file, ids_file, numbers):
    """Write dialogues twice: as messages, and as token ids and masks according to the template of `save_chat_model`."""
    with chats_file.open("w") as chats, ids_file.open("w") as tokens:
        for number in numbers:
            turns = [
                ("user", f"{number}="),
                ("assistant", "ab" * (number % 3 + 1)),
                ("user", "again"),
                ("assistant", f"#{number}"),
            ]
            chats.write(json.dumps({"messages": [{"role": role, "content": text} for role, text in turns]}) + "\n")
            ids, mask = [], []
            for role, text in turns:
                opening, end = tokenizer.inner.convert_tokens_to_ids([f"<{role[0]}>", "<end>"])
                content = [*tokenizer.encode(text), end]
                ids += [opening, *content]
                mask += [0] + [int(role == "assistant")] * len(content)
            tokens.write(json.dumps({"input_ids": ids, "assistant_masks": mask}) + "\n")


@pytest.mark.parametrize("packed", [False, True])
def test_sft_on_token_ids_matches_sft_on_chats(tmp_path, capsys, packed):
    model = save_chat_model(tmp_path / "model")
    files = {name: (tmp_path / f"{name}.jsonl", tmp_path / f"{name}_heldout.jsonl") for name in ("chats", "ids")}
    for split, numbers in enumerate((range(24), range(100, 104))):
        write_rows(load_tokenizer(str(model)), files["chats"][split], files["ids"][split], numbers)
    flags = ["--steps", "2", "--batch", "8", "--learning-rate", "1e-3", "--max-response-tokens", "24", "--replicas", "1"]
    flags += ["--microbatch-rows", "4"] if packed else []
    runs = {}
    for name, (train, heldout) in files.items():
        data = ["--dataset", str(train), "--heldout-dataset", str(heldout), *(["--chat"] if name == "chats" else [])]
        printed(capsys, "sft", "--model", str(model), *data, *flags, "--quiet", "--run", str(tmp_path / name))
        rows = read_metrics(tmp_path / name / "metrics.jsonl")
        runs[name] = [[row[key] for row in rows if key in row] for key in ("loss", "perplexity")]
    assert len(runs["ids"][0]) == 2
    for from_ids, from_chats in zip(runs["ids"], runs["chats"], strict=True):
        np.testing.assert_allclose(from_ids, from_chats, rtol=1e-6)
