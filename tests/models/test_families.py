"""Model families: parity with `transformers`, cached decoding, exports, meshes, and context limits."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.families import CASES, TOKENS, write_folder
from safetensors.numpy import load_file

import rljax
from rljax.errors import InputError
from rljax.models import Model
from rljax.models.checkpoint_tensors import entries_by_stored_name, get_at, joiner_of
from rljax.models.families import FAMILIES, NEAREST
from rljax.models.huggingface import check_length, load_params, model_contents, read_config, save_pretrained
from rljax.models.language_model import advance_decode, begin_decode, logits, score_tokens
from rljax.models.model_folder import select_expert, write_model
from rljax.models.packed import Packed
from rljax.parallel import make_mesh

COMMITTED = json.loads(Path(__file__).with_name("family_logits.json").read_text())["logits"]
POSITIONS = jnp.broadcast_to(jnp.arange(TOKENS.shape[1]), TOKENS.shape)


@pytest.fixture(scope="module", params=CASES)
def loaded(request, tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("family") / request.param, request.param)
    config = read_config(folder)
    return request.param, folder, config, load_params(folder, config)


def all_logits(config, params, mesh=None):
    return logits(Model(config, mesh), params, jnp.array(TOKENS), POSITIONS, jnp.ones_like(POSITIONS))


def test_logits_match_those_recorded_from_transformers(loaded):
    name, _, config, params = loaded
    np.testing.assert_allclose(all_logits(config, params)[:, ::3], COMMITTED[name], rtol=1e-4, atol=2e-5)


def gradient_of(named, stored, entry):
    """Return the gradient of a stored tensor; `transformers` stacks the experts of a layer, and the gate on the up projection."""
    stored = stored.replace(".block_sparse_moe.", ".mlp.")
    if entry.index is None:
        return named[stored].grad.numpy()
    layer, kind = stored.split(".experts.")[0], entry.path[-1].removeprefix("expert_")
    if kind == "down":
        return named[f"{layer}.experts.down_proj"].grad[entry.index].numpy()
    gate, up = np.split(named[f"{layer}.experts.gate_up_proj"].grad[entry.index].numpy(), 2)
    return gate if kind == "gate" else up


def test_logits_and_gradients_match_transformers(loaded):
    torch = pytest.importorskip("torch", reason="parity with transformers needs PyTorch: pip install torch")
    from transformers import AutoModelForCausalLM

    _, folder, config, params = loaded
    theirs, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    torch.log_softmax(theirs(torch.tensor(TOKENS)).logits, -1)[..., 5].sum().backward()
    named = dict(theirs.named_parameters())
    ours = jax.grad(lambda p: jax.nn.log_softmax(all_logits(config, p))[..., 5].sum())(params)
    for stored, parts in entries_by_stored_name(config).items():
        expected = gradient_of(named, stored, parts[0])
        found = joiner_of(parts)(*(np.asarray(select_expert(get_at(ours, part.path), part.index)) for part in parts))
        scale = np.abs(expected).max() or 1.0  # 0 if no token chose this expert
        np.testing.assert_allclose(found / scale, expected / scale, atol=2e-5, err_msg=stored)


def test_scores_are_the_log_softmax_of_the_models_logits(loaded):
    _, _, config, params = loaded
    ones, later = jnp.ones_like(POSITIONS), jnp.arange(1, TOKENS.shape[1])
    place = jnp.arange(len(TOKENS) * len(later)).reshape(len(TOKENS), -1)
    packed = Packed(jnp.array(TOKENS), POSITIONS, ones, jnp.broadcast_to(later, place.shape), place)
    logp = jax.nn.log_softmax(all_logits(config, params)[:, :-1] / 0.7)
    expected = jnp.take_along_axis(logp, jnp.array(TOKENS)[:, 1:, None], axis=-1)[..., 0]
    scores = score_tokens(Model(config), params, packed, 0.7, chunk=7)
    np.testing.assert_allclose(scores.logp, expected, atol=1e-5)
    np.testing.assert_allclose(scores.entropy, -(jnp.exp(logp) * logp).sum(-1), atol=1e-5)


def test_cached_decoding_matches_the_full_forward_pass(loaded):
    _, _, config, params = loaded
    model, tokens, expected = Model(config), jnp.array(TOKENS), all_logits(config, params)
    out, state = begin_decode(model, params, tokens[:, :4], jnp.ones((2, 4), bool), 6)
    np.testing.assert_allclose(out, expected[:, 3], atol=1e-4)
    for slot in range(4, 10):
        out, state = advance_decode(model, params, tokens[:, slot], state)
        np.testing.assert_allclose(out, expected[:, slot], atol=1e-4)


def test_an_exported_model_equals_its_source(loaded, tmp_path):
    _, folder, config, params = loaded
    write_model(tmp_path / "out", model_contents(config, params, bos=None, eos=1, source=folder))
    assert read_config(tmp_path / "out") == config
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "out"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        np.testing.assert_array_equal(after[name], tensor)


def test_a_mesh_computes_the_same_logits(loaded):
    _, _, config, params = loaded
    mesh = make_mesh(1, 2, 2)
    np.testing.assert_allclose(
        jax.jit(lambda p: all_logits(config, p, mesh))(params), all_logits(config, params), atol=1e-4
    )


def test_only_llama_models_are_saved_without_a_source_folder(loaded, tmp_path):
    name, _, config, params = loaded
    if name == "llama-mlp_bias":
        save_pretrained(tmp_path / "own", config, params, bos=None, eos=1)
        assert read_config(tmp_path / "own") == config
        return
    with pytest.raises(
        InputError, match=r"(This model would be written as a|A) \w+ model(, which cannot have \w+=| has a window in all)"
    ):
        save_pretrained(tmp_path / "own", config, params, bos=None, eos=1)


def test_every_supported_family_has_a_test_case():
    assert {case["model_type"] for case in CASES.values()} | {"mistral", "qwen2", "qwen3"} == set(FAMILIES)
    assert not set(NEAREST) & set(FAMILIES)
    assert {near for near, _ in NEAREST.values()} <= set(FAMILIES)


@pytest.mark.parametrize(("name", "longest"), [("phi3-part", 16), ("llama-dynamic", 64)])
def test_runs_beyond_the_original_context_are_refused(tmp_path, name, longest):
    folder = write_folder(tmp_path / name, name)
    check_length(folder, longest)
    with pytest.raises(InputError, match=f"have up to {longest + 1} tokens, but the rotary frequencies .* change beyond"):
        check_length(folder, longest + 1)
    rows = [json.dumps({"prompt": f"3 {token}", "answer": "6"}) for token in range(4, 18)]
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    options = {"max_response_tokens": longest, "tokenizer": "ids", "run": str(tmp_path / "run"), "quiet": True}
    config = rljax.TrainConfig.flat(model=str(folder), dataset=str(tmp_path / "data.jsonl"), **options)
    with pytest.raises(InputError, match=f"the rotary frequencies .* change beyond {longest}"):
        rljax.train(config, reward=lambda completions: [0.0 for _ in completions])


def copy_with_short_factors(folder, target, factors):
    """Copy a folder, with other LongRoPE factors for sequences up to the original context."""
    target.mkdir()
    raw = json.loads((folder / "config.json").read_text())
    raw["rope_parameters"] |= {"short_factor": factors}
    (target / "config.json").write_text(json.dumps(raw))
    (target / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return target


def test_equal_longrope_factors_allow_any_length(tmp_path):
    long = write_folder(tmp_path / "long", "phi3-long")
    check_length(long, 64)
    assert read_config(long).longest is None
    both = copy_with_short_factors(long, tmp_path / "both", [1.0, 1.5])
    check_length(both, 6)
    with pytest.raises(InputError, match=r"change beyond 6, .* write the list long_factor in place of short_factor"):
        check_length(both, 7)
    with pytest.raises(InputError, match=r"change beyond 64, .* lower max_prompt_tokens or max_response_tokens\.$"):
        check_length(write_folder(tmp_path / "dynamic", "llama-dynamic"), 65)


def test_equal_longrope_factors_match_transformers(tmp_path):
    """With two lists, `transformers` uses the long list for all tokens of a longer sequence, but not for those cached earlier."""
    torch = pytest.importorskip("torch", reason="parity with transformers needs PyTorch: pip install torch")
    from transformers import AutoModelForCausalLM, DynamicCache

    long = write_folder(tmp_path / "long", "phi3-long")
    config = read_config(long)
    ours = np.asarray(all_logits(config, load_params(long, config)))
    theirs = AutoModelForCausalLM.from_pretrained(copy_with_short_factors(long, tmp_path / "both", [1.0, 1.5]))
    with torch.no_grad():
        np.testing.assert_allclose(ours, theirs(torch.tensor(TOKENS)).logits.numpy(), atol=2e-5)
        cache = DynamicCache(config=theirs.config)
        found = [theirs(torch.tensor(token)[:, None], cache=cache).logits[:, 0].numpy() for token in TOKENS.T]
        short = theirs(torch.tensor(TOKENS[:, :6])).logits.numpy()
    np.testing.assert_allclose(np.stack(found[:6], 1), short, atol=2e-5)
    assert np.abs(np.stack(found[6:], 1) - ours[:, 6:]).max() > 1e-2, (
        "the cache mixes keys rotated with both lists of factors"
    )
