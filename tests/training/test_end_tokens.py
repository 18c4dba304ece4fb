"""Models with several end tokens: each one ends a response in training, evaluation and search, and an export keeps them."""

import json

import jax
import numpy as np
import pytest
from run_states import first_state, run_without_training
from small_cli import printed, refused
from small_runs import SMALL, even_length

import rljax
from rljax.data.problem import Problem
from rljax.data.tokenizer import CharacterTokenizer
from rljax.data.tokenizer_files import save_tokenizer_files
from rljax.errors import InputError
from rljax.models.huggingface import save_pretrained
from rljax.models.language_model import init_params
from rljax.models.model_folder import end_tokens, read_json
from rljax.rollout.beam_search import Search, beam_search
from rljax.rollout.continuations import prefixes_of
from rljax.training.config import ModelConfig
from rljax.training.parts.policy import make_transformer_config
from rljax.training.parts.tokenizer import all_end_tokens

TOKENIZER = CharacterTokenizer()
CONFIG = SMALL.replace(train_problems=24, heldout_problems=6)
PROBLEMS = [Problem(f"1+{n}=", str(n + 1)) for n in range(8)]


def write_model_folder(path, *, in_config=1, in_generation=None):
    """Write a random model whose files list these end tokens; its tokenizer's end token is 1."""
    shape = make_transformer_config(CONFIG.model, TOKENIZER.vocab_size)
    save_pretrained(path, shape, init_params(shape, jax.random.key(0)), bos=None, eos=1)
    raw = read_json(path / "config.json") | {"eos_token_id": in_config}
    (path / "config.json").write_text(json.dumps(raw))
    if in_generation is not None:
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": in_generation}))
    save_tokenizer_files(TOKENIZER, path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model_folder(tmp_path_factory.mktemp("ends") / "model", in_generation=[1, 7])


def assert_valid_ends(responses, ends, budget):
    """Each response ends at its first end token or at its budget, and every end token ends some response."""
    for tokens in responses:
        assert not set(tokens[:-1]) & set(ends)
        assert tokens[-1] in ends or len(tokens) == budget
    assert {tokens[-1] for tokens in responses} >= set(ends)


@pytest.mark.parametrize(
    ("in_config", "in_generation", "ends"),
    [(1, [1, 7], (1, 7)), ([1, 7], None, (1, 7)), ([1, 7], 3, (1, 3)), (None, None, (1,)), (5, None, (1, 5))],
)
def test_end_tokens_are_read_from_the_model_folder(tmp_path, in_config, in_generation, ends):
    path = write_model_folder(tmp_path / "model", in_config=in_config, in_generation=in_generation)
    assert all_end_tokens(ModelConfig(path=str(path)), TOKENIZER) == ends
    assert all_end_tokens(ModelConfig(path=str(path)), TOKENIZER, (9, 1, 9)) == (*ends, 9)


def test_folder_end_tokens_are_ignored_with_another_tokenizer(tmp_path):
    other = ModelConfig(path=str(write_model_folder(tmp_path / "a", in_config=[4, 7])), tokenizer="characters")
    assert all_end_tokens(other, TOKENIZER) == (1,)
    same = ModelConfig(path=str(write_model_folder(tmp_path / "b", in_config=[1, 7])), tokenizer="characters")
    assert all_end_tokens(same, TOKENIZER) == (1, 7)


@pytest.mark.parametrize("ends", [["</s>"], -1, True, [1, None]])
def test_invalid_end_token_ids_are_refused(tmp_path, ends):
    path = write_model_folder(tmp_path / "model", in_generation=ends)
    with pytest.raises(InputError, match=r"generation_config\.json has eos_token_id=.*; it must be a token id or a list"):
        end_tokens(path)


@pytest.mark.parametrize("ends", [900, [1, 900]])
def test_an_end_token_outside_the_vocabulary_is_refused(tmp_path, ends):
    path = write_model_folder(tmp_path / "model", in_generation=ends)
    with pytest.raises(InputError, match=r"eos_token_id=.*900.*, but the model has only the tokens 0 to \d+"):
        end_tokens(path)


def test_rollout_stops_at_each_end_token(folder):
    setup, state = first_state(CONFIG.replace(model=str(folder), stop_ids=(9,)), reward=even_length)
    assert setup.train.sampling.eos_ids == setup.heldout.sampling.eos_ids == (1, 7, 9)
    groups = setup.train.generate(state.params, list(range(12)), 8, jax.random.key(1))
    tokens, attention = (x.reshape(-1, x.shape[-1]) for x in (groups.tokens, groups.attention))
    responses = [row[present].tolist() for row, present in zip(tokens, attention, strict=True)]
    assert_valid_ends(responses, (1, 7, 9), 12)
    truncated = np.asarray(groups.rollout.truncated).ravel()
    np.testing.assert_array_equal(truncated, [row[-1] not in (1, 7, 9) for row in responses])
    for prefix, row in zip(prefixes_of(setup.train, groups), responses, strict=True):
        assert prefix.ended == (row[-1] in (1, 7, 9))
        assert [*prefix.tokens, *([prefix.end] if prefix.ended else [])] == row
        assert prefix.text == TOKENIZER.decode(row), "the reward must read this text, which includes a visible end token"


def test_search_stops_at_each_end_token(folder):
    setup, state = first_state(CONFIG.replace(model=str(folder)), reward=even_length)
    search = Search(16, 8, ("0",))
    values = lambda prefixes: np.array([-float(len(prefix.tokens)) for prefix in prefixes])  # noqa: E731
    found = beam_search(setup.train, state.params, values, range(12), search=search, key=jax.random.key(2), rows=64)
    best = [result.best.prefix for result in found]
    assert {prefix.end for prefix in best} == {1, 7}
    assert not any(set(prefix.tokens) & {1, 7} for prefix in best)
    for prefix in best:
        assert prefix.text == TOKENIZER.decode([*prefix.tokens, prefix.end])
        assert prefix.text.endswith(TOKENIZER.decode([7])) == (prefix.end == 7)


def test_answers_stop_at_each_end_token(folder, tmp_path, capsys):
    loaded = rljax.load(folder, problems=PROBLEMS, max_response_tokens=12)
    prompts = [TOKENIZER.encode(problem.prompt) for problem in PROBLEMS]
    rows = loaded.sample_ids(prompts, count=8, temperature=1.0)
    assert_valid_ends([row for group in rows for row in group], (1, 7), 12)
    rows = loaded.sample_ids(prompts, count=8, temperature=1.0, stop_ids=(9,))
    assert_valid_ends([row for group in rows for row in group], (1, 7, 9), 12)
    data, out = tmp_path / "sums.jsonl", tmp_path / "answers.jsonl"
    data.write_text(
        "".join(json.dumps({"prompt": problem.prompt, "answer": problem.answer}) + "\n" for problem in PROBLEMS)
    )
    command = [str(folder), "--max-response-tokens", "12", "--temperature", "1.0", "--stop-ids", "9"]
    printed(capsys, "eval", *command, "--dataset", str(data), "--reward", "exact", "--out", str(out))
    texts = [json.loads(line)["completion"] for line in out.read_text().splitlines()]
    ends = set(TOKENIZER.decode([7, 9]))
    assert any(text[-1:] in ends for text in texts)
    assert not any(set(text[:-1]) & ends for text in texts)
    assert json.loads((tmp_path / "answers.settings.json").read_text())["sampling"]["eos_ids"] == [1, 7, 9]
    text = printed(capsys, "sample", *command, "--prompt", "1+1=").strip().removeprefix("1+1=")
    assert not set(text[:-1]) & ends
    refused(
        capsys, "--stop-ids has 99, but there is no such token", "sample", str(folder), "--prompt", "1", "--stop-ids", "99"
    )


@pytest.mark.parametrize("files", [{"in_generation": [1, 7]}, {"in_config": [1, 7]}])
def test_export_keeps_end_tokens_used_in_training(tmp_path, files):
    source = write_model_folder(tmp_path / "source", **files)
    run_without_training(tmp_path / "run", CONFIG.replace(model=str(source), stop_ids=(9,)), which=["best"])
    exported = rljax.export(tmp_path / "run", tmp_path / "model")
    assert read_json(exported / "generation_config.json")["eos_token_id"] == [1, 7, 9]
    assert read_json(exported / "config.json")["eos_token_id"] == [1, 7, 9]
    assert rljax.load(exported, problems=PROBLEMS).worker.sampling.eos_ids == (1, 7, 9)
