"""The cost of the main programs at the widths of real models, as counted by the compiler: operations, bytes and programs.

At these widths, nothing runs and no weights are allocated. The bounds apply to every machine, because nothing is timed.
"""

import itertools
from dataclasses import replace
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import SMALL, even_length

import rljax
from rljax.models import TransformerConfig, transformer_policy
from rljax.models.adapters import Base, effective_params, init_adapter, unmerged_params
from rljax.models.token_scores import default_chunk, token_scores
from rljax.parallel import make_mesh
from rljax.programs.compiled_updates import measuring_options
from rljax.programs.planned_algorithm import plan_algorithm
from rljax.rollout import Request, Sampling, Sequences, pack_one_per_row
from rljax.rollout.engine import blocks_of
from rljax.rollout.sampling import empty_rows, fill_rows, read_prompts
from rljax.tracking.phase_times import watch_compilation
from rljax.training.memory_plan import bytes_on_a_device, state_shapes

QWEN = TransformerConfig(
    vocab_size=151_936, width=1024, layers=28, heads=16, kv_heads=8, head_dim=128, hidden=3072, qk_norm=True
)
"""Qwen3-0.6B."""
LLAMA = TransformerConfig(
    vocab_size=128_256, width=4096, layers=32, heads=32, kv_heads=8, head_dim=128, hidden=14_336, tied_head=False
)
"""Llama-3.1-8B."""
GB = 10**9
KEY = jax.eval_shape(lambda: jax.random.key(0))
"""Shape of a random key."""
LAYER_WEIGHTS = 2 * QWEN.width * QWEN.head_dim * (QWEN.heads + QWEN.kv_heads) + 3 * QWEN.width * QWEN.hidden
"""Number of weights in the matrices of a layer of `QWEN`."""


def abstract_array(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def compile_program(function, *shapes):
    """Compile a program that is measured, but not run."""
    return jax.jit(function).lower(*shapes).compile(compiler_options=measuring_options(make_mesh(1, 1)))


def temporaries(program):
    return program.memory_analysis().temp_size_in_bytes


def operations(program):
    return program.cost_analysis()["flops"]


@pytest.fixture(scope="module")
def log_probs():
    """Number of chunks -> compiled gradient of the log-probabilities with respect to the hidden states and the head."""

    def total(hidden, head, tokens):
        return token_scores(hidden, head, tokens, chunk=default_chunk(QWEN.vocab_size))[0].sum()

    def gradient(chunks):
        tokens = chunks * default_chunk(QWEN.vocab_size)
        head = abstract_array(QWEN.vocab_size, QWEN.width)
        return compile_program(
            jax.grad(total, (0, 1)), abstract_array(1, tokens, QWEN.width), head, abstract_array(1, tokens, dtype=jnp.int32)
        )

    return {chunks: gradient(chunks) for chunks in (8, 16)}


def test_log_probs_of_2104_tokens_need_at_most_1_2_gb(log_probs):
    hidden = 8 * default_chunk(QWEN.vocab_size) * QWEN.width * 4
    assert temporaries(log_probs[8]) <= 1.2 * GB
    assert temporaries(log_probs[16]) - temporaries(log_probs[8]) <= 3 * hidden, "a few vectors per token, but no logits"


def test_log_probs_compute_the_logits_twice(log_probs):
    """The compiler counts a loop's body once: a chunk's logits in each pass, and two matrix products for the gradient."""
    once = 2 * default_chunk(QWEN.vocab_size) * QWEN.vocab_size * QWEN.width
    assert operations(log_probs[8]) == operations(log_probs[16]), "the same loop over more chunks"
    assert 4 * once <= operations(log_probs[8]) <= 4.2 * once


def test_prompts_of_512_responses_need_at_most_half_a_gb():
    """Prompts of 1,024 tokens, 16 responses each; one layer."""
    prompts = [tuple(np.random.default_rng(index).integers(0, 9, 1024).tolist()) for index in range(32)]
    requests = [Request(prompts[index // 16], 0, index // 16, Sampling(128, (0,)), 0) for index in range(512)]
    rows = next(blocks_of(requests, 256, 1024, 1)).rows
    policy = transformer_policy(replace(QWEN, layers=1), eos=0)
    params, attention = jax.eval_shape(policy.init, jax.random.key(0)), abstract_array(rows, 1024, dtype=jnp.bool_)
    lowered = read_prompts.lower(policy.decoder, params, abstract_array(rows, 1024, dtype=jnp.int32), attention, budget=128)
    program = lowered.compile(compiler_options=measuring_options(make_mesh(1, 1)))
    assert temporaries(program) <= 0.5 * GB
    once = 2 * rows * (1024 * LAYER_WEIGHTS + QWEN.vocab_size * QWEN.width)
    assert operations(program) <= 1.1 * once, "only the last token of a prompt has logits"


def test_long_prompt_needs_only_its_cache_and_a_chunk():
    """Prompts of 8,192 and 32,768 tokens, with room for 1,024 more."""
    policy = transformer_policy(replace(QWEN, vocab_size=64, width=256, heads=4, kv_heads=2, hidden=512, layers=2), eos=0)
    params = jax.eval_shape(policy.init, jax.random.key(0))

    def measure(length):
        prompt = abstract_array(1, length, dtype=jnp.int32), abstract_array(1, length, dtype=jnp.bool_)
        lowered = read_prompts.lower(policy.decoder, params, *prompt, budget=1024)
        program = lowered.compile(compiler_options=measuring_options(make_mesh(1, 1)))
        state = jax.eval_shape(partial(read_prompts, policy.decoder, budget=1024), params, *prompt).state
        return temporaries(program), sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))

    (short, small_cache), (long, large_cache) = measure(8192), measure(32_768)
    assert long - short <= 1.1 * (large_cache - small_cache), "the cache, plus a few numbers per token"
    assert short - small_cache <= 0.2 * GB


def test_four_blocks_of_prompts_rewrite_the_rows_once():
    policy = transformer_policy(replace(QWEN, vocab_size=64, width=64, head_dim=16, hidden=64, layers=1), eos=0)
    params, length, budget = jax.eval_shape(policy.init, jax.random.key(0)), 256, 128
    sampling = Sampling(budget, (0,))
    rows = jax.eval_shape(
        lambda params: empty_rows(policy.decoder, params, rows=64, length=length, room=budget, sampling=sampling), params
    )
    prompts, attention = abstract_array(2, length, dtype=jnp.int32), abstract_array(2, length, dtype=jnp.bool_)
    block = jax.eval_shape(partial(read_prompts, policy.decoder, budget=0), params, prompts, attention)

    def bytes_accessed(blocks):
        source = abstract_array(64, dtype=jnp.int32)
        lowered = fill_rows.lower(policy.decoder, rows, [block] * blocks, source, rows.inputs, sampling=sampling)
        return lowered.compile(compiler_options=measuring_options(make_mesh(1, 1))).cost_analysis()["bytes accessed"]

    state_size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(rows.state))
    assert bytes_accessed(1) >= 2 * state_size, "the count would show a second rewrite"
    assert bytes_accessed(4) - bytes_accessed(1) <= 0.2 * state_size


def temporaries_of_gradient(layers, remat):
    """Return the temporary bytes of the gradient of layers with 256 features, over 4 rows of 256 tokens."""
    config = replace(
        QWEN, vocab_size=64, width=256, heads=4, kv_heads=2, head_dim=64, hidden=512, layers=layers, remat=remat
    )
    one = np.ones((4, 128), np.int32)
    rows = jax.tree.map(
        lambda array: abstract_array(*array.shape, dtype=array.dtype),
        pack_one_per_row(Sequences(one, one > 0, one, one > 0, one.astype(np.float32))),
    )
    policy = transformer_policy(config, eos=0)
    loss = jax.grad(lambda params, rows: policy.score(params, rows, 1.0).logp.sum())
    return temporaries(compile_program(loss, jax.eval_shape(policy.init, KEY), rows))


def test_more_recomputation_needs_less_memory():
    """The test compares the temporary bytes that two additional layers add to a gradient."""
    added_bytes = [
        temporaries_of_gradient(4, remat) - temporaries_of_gradient(2, remat)
        for remat in ("none", "dots", "dots_no_batch", "full")
    ]
    assert min(more / less for more, less in itertools.pairwise(added_bytes)) > 1.2, added_bytes


def test_remat_sqrt_keeps_two_sqrt_of_layers_inputs():
    """With sqrt, 16 layers form 4 blocks of 4. A gradient keeps the inputs of 4 blocks and 4 layers; with full, of 16 layers."""
    one_input = 4 * 256 * 256 * 4
    full, root, smaller = (
        temporaries_of_gradient(16, "full"),
        temporaries_of_gradient(16, "sqrt"),
        temporaries_of_gradient(4, "sqrt"),
    )
    assert (full - root) / one_input == pytest.approx(16 - 8, abs=1.1)
    assert (root - smaller) / one_input == pytest.approx(8 - 4, abs=1.1)


def test_row_of_8704_tokens_needs_one_layers_memory():
    """With remat full, each additional layer keeps only its input in a gradient, so all 28 layers need less than 4 GB."""
    prompt, sampled = np.ones((1, 512), np.int32), np.ones((1, 8192), np.int32)
    rows = pack_one_per_row(Sequences(prompt, prompt > 0, sampled, sampled > 0, sampled.astype(np.float32)))
    packed = jax.tree.map(lambda array: abstract_array(*array.shape, dtype=array.dtype), rows)

    def measure(layers, *, remat):
        policy = transformer_policy(replace(QWEN, layers=layers, remat=remat), eos=0)
        params = jax.eval_shape(policy.init, jax.random.key(0))
        return temporaries(
            compile_program(jax.grad(lambda params, rows: policy.score(params, rows, 1.0).logp.sum()), params, packed)
        )

    two, three = (measure(layers, remat="full") for layers in (2, 3))
    assert two <= 2.1 * GB, "a chunk's logits, the head's gradient, and one layer's activations"
    input_bytes = 4 * QWEN.width * 8704
    assert three - two <= 2 * input_bytes, "the layer's input, plus what the compiler adds"
    assert two + (QWEN.layers - 2) * (three - two) <= 4 * GB


def test_adapter_gradient_needs_half_the_merged_memory():
    """Two layers of Qwen3-0.6B, 128 tokens. The merged form copies each matrix and computes its gradient."""
    config = replace(QWEN, vocab_size=64, layers=2)
    policy = transformer_policy(config, eos=0)
    params = jax.eval_shape(policy.init, jax.random.key(0))
    adapter = jax.eval_shape(partial(init_adapter, params=params, rank=8, targets=("attention", "feed_forward")), KEY)
    one = np.ones((1, 64), np.int32)
    rows = jax.tree.map(
        lambda array: abstract_array(*array.shape, dtype=array.dtype),
        pack_one_per_row(Sequences(one, one > 0, one, one > 0, one.astype(np.float32))),
    )

    def measure(form):
        def total(adapter, params, rows):
            return policy.score(form(Base(params, jnp.float32(2.0)), adapter), rows, 1.0).logp.sum()

        return temporaries(compile_program(jax.grad(total), adapter, params, rows))

    matrix_bytes = 2 * LAYER_WEIGHTS * 4
    separate, merged = measure(unmerged_params), measure(effective_params)
    assert merged >= matrix_bytes, "the count would notice a copy"
    assert merged - separate >= 0.55 * matrix_bytes
    assert separate <= 0.6 * merged, "the rest is the compiler's transposes for matrix products on a CPU"


def test_8b_parameters_need_at_most_24_gb_per_device():
    """Parameters, Adam's moments and the reference, all in float32."""
    config = SMALL.replace(dataset="rows.jsonl", algorithm="grpo", algorithm_options={"beta": 0.1}, replicas=1, fsdp=8)
    algorithm, config = plan_algorithm(config)
    mesh = make_mesh(1, 8)
    state, _ = state_shapes(config, algorithm, transformer_policy(LLAMA, eos=0, mesh=mesh), mesh)
    sizes = {name: bytes_on_a_device(getattr(state, name)) for name in ("params", "opt_state", "reference")}
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert count == 8_030_261_248
    assert sum(sizes.values()) <= 24 * GB
    chex.assert_trees_all_close(sizes, {"params": count / 2, "opt_state": count, "reference": count / 2}, rtol=1e-3)


class CompilationCounter:
    """Records how many programs had been compiled when each step was logged."""

    def __init__(self):
        self.programs, self.programs_at_step = [], {}

    def log(self, phase, step, metrics):
        if phase == "rl":
            self.programs_at_step[step] = len(self.programs)

    def samples(self, step, rows):
        pass

    def close(self):
        pass


def test_run_compiles_nothing_after_its_second_step(tmp_path):
    """Lengths and rewards differ from step to step, but the first steps' programs are reused."""
    config = SMALL.replace(run=str(tmp_path / "run"), algorithm="grpo", algorithm_options={}, prompts=4, group_size=4)
    config = config.replace(train_problems=40, heldout_problems=4, warm_start_steps=0, steps=5, microbatch_rows=8)
    config = config.replace(
        temperature=0.97
    )  # no other test has this value; otherwise this run would share that test's programs
    counter = CompilationCounter()
    with watch_compilation(lambda name: counter.programs.append(name) if name is not None else None):
        rljax.train(config, even_length, trackers=[counter])
    assert counter.programs_at_step[1] > 0, "the count would notice a program"
    assert counter.programs[counter.programs_at_step[2] :] == []
