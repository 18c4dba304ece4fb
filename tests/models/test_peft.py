"""`peft` opens an exported adapter on top of its base and computes the same logits as the merged model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.families import TOKENS, write_folder
from small_models import SHAPES, random_params

from rljax.models.adapters import init_adapter, merge
from rljax.models.huggingface import load_params, read_config, save_pretrained
from rljax.models.language_model import Model, logits
from rljax.models.peft_folder import load_adapter, save_adapter

torch = pytest.importorskip("torch", reason="needs the extra `parity`: pip install torch")
peft = pytest.importorskip("peft", reason="needs the extra `parity`: pip install peft")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("targets", [("attention", "feed_forward"), ("layers/1/attention/query", "value", "down")])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_peft_computes_the_logits_of_the_merged_model(tmp_path, name, targets):
    import transformers

    config = SHAPES[name]
    params = random_params(config)
    leaves, tree = jax.tree.flatten(init_adapter(jax.random.key(2), params, rank=3, targets=targets))
    keys = jax.random.split(jax.random.key(3), len(leaves))
    adapter = tree.unflatten([x + 0.3 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)])
    save_pretrained(tmp_path / "base", config, params, bos=None, eos=1)
    save_adapter(tmp_path / "adapter", config, adapter, alpha=4.5, base=str(tmp_path / "base"))

    tokens = jax.random.randint(jax.random.key(4), (2, 7), 0, config.vocab_size)
    rows = (tokens, jnp.broadcast_to(jnp.arange(7), (2, 7)), jnp.ones((2, 7), int))
    ours = logits(Model(config), merge(params, adapter, jnp.float32(1.5)), *rows)
    unchanged = logits(Model(config), params, *rows)

    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", attn_implementation="eager")
    with torch.no_grad():
        before = base(torch.from_numpy(np.array(tokens))).logits.numpy()
        theirs = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter"))(torch.from_numpy(np.array(tokens)))
    print("largest difference", np.abs(theirs.logits.numpy() - ours).max(), "of logits up to", np.abs(ours).max())
    np.testing.assert_allclose(before, unchanged, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(theirs.logits.numpy(), ours, rtol=1e-4, atol=5e-5)
    assert np.abs(ours - unchanged).max() > 0.1


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "gpt_oss"])
def test_attention_adapters_of_expert_models_match_peft(tmp_path, name):
    import transformers

    folder = write_folder(tmp_path / "base", name)
    config = read_config(folder)
    params = load_params(folder, config)
    leaves, tree = jax.tree.flatten(init_adapter(jax.random.key(2), params, rank=3, targets=("attention",)))
    keys = jax.random.split(jax.random.key(3), len(leaves))
    adapter = tree.unflatten([x + 0.3 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)])
    save_adapter(tmp_path / "adapter", config, adapter, alpha=4.5, base=str(folder))
    jax.tree.map(np.testing.assert_array_equal, load_adapter(tmp_path / "adapter", config), adapter)

    rows = (jnp.array(TOKENS), jnp.broadcast_to(jnp.arange(10), (2, 10)), jnp.ones((2, 10), int))
    ours = logits(Model(config), merge(params, adapter, jnp.float32(1.5)), *rows)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        theirs = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter"))(torch.tensor(TOKENS))
    np.testing.assert_allclose(theirs.logits.numpy(), ours, rtol=1e-4, atol=5e-5)
    assert np.abs(ours - logits(Model(config), params, *rows)).max() > 0.1
