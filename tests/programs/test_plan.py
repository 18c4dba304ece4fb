"""A plan's figures, checked against a run's memory and the compiler's counts."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import jax
import optax
import pytest
from run_states import first_state, make_rl_state
from small_cli import refused
from small_runs import SMALL, even_length

from rljax.cli import main, parse
from rljax.cli.plan import simulate_devices
from rljax.errors import InputError
from rljax.models import TransformerConfig, abstract_params, count_parameters, transformer_policy
from rljax.models.paged_cache import PAGE
from rljax.parallel import make_mesh
from rljax.programs import compiled_updates, plan
from rljax.programs.compiled_updates import (
    MeasuredUpdates,
    MicroBatch,
    arrangement,
    compile_critic_update,
    compile_policy_update,
    data_shapes,
    extrapolate,
    mask_bytes,
    measure_updates,
    memory_options,
    micro_batch_of,
    temporaries,
)
from rljax.programs.model_memory import check_model_fits
from rljax.programs.plan import Plan, make_plan, plan_of
from rljax.programs.planned_algorithm import plan_algorithm
from rljax.programs.roofline import (
    DEVICES,
    StepMemory,
    Work,
    forward_flops,
    matrix_sizes,
    peak_cache_bytes,
    speed_of,
    step_work,
    update_flops,
)
from rljax.programs.smaller_runs import changes_to_try, cheaper_remat
from rljax.rollout.layout import lay_out, lay_out_shared
from rljax.rollout.paged_sampling import pool_sizes
from rljax.training import setup
from rljax.training.config import TrainConfig
from rljax.training.memory_plan import (
    USABLE_SHARE,
    bytes_on_a_device,
    check_room,
    parameter_shapes,
    sampling_memory,
    state_bytes,
    state_shapes,
    try_changes,
)
from rljax.training.objective.optimizer import policy_optimizer
from rljax.training.parts.custom_parts import BUILT_IN
from rljax.training.parts.policy import make_transformer_config
from rljax.training.parts.tokenizer import make_tokenizer
from rljax.training.setup import plan_setup
from rljax.training.state import shardings_of
from rljax.training.update import policy_program

SHAPE = TransformerConfig(vocab_size=512, width=64, layers=4, heads=4, kv_heads=4, head_dim=16, hidden=128)
CONFIG = SMALL.replace(
    dataset="rows.jsonl",
    algorithm="grpo",
    algorithm_options={"beta": 0.1},
    width=32,
    kv_heads=2,
    max_response_tokens=12,
    prompts=4,
    group_size=4,
    minibatches=2,
)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": "ppo", "algorithm_options": {}},
        {"lora_rank": 2},
        {"lora_rank": 2, "quantize": "nf4", "width": 128, "hidden": 128},
        {"freeze": ("embedding",)},
        {"algorithm": "t1", "lora_rank": 2},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())) or "grpo",
)
def test_planned_state_bytes_match_a_run(changes):
    """The test compares the bytes on device 0 of eight, during RL."""
    settings = CONFIG.replace(replicas=2, fsdp=2, tensor=2, **({"algorithm_options": {}} | changes))
    real = settings.replace(task="sums", dataset=None, train_problems=16, heldout_problems=4)
    setup, state = first_state(real, reward=even_length)
    state = make_rl_state(setup, state)
    algorithm, settings = plan_algorithm(settings)
    shape = make_transformer_config(settings.model, setup.tokenizer.vocab_size)
    planned, base = state_shapes(settings, algorithm, transformer_policy(shape, eos=0, mesh=setup.mesh), setup.mesh)

    def count_bytes(tree):
        first = setup.mesh.devices.flat[0]
        shards = [shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]
        return sum(shard.data.nbytes for shard in shards if shard.device == first)

    for name in ("params", "opt_state", "reference", "critic"):
        assert bytes_on_a_device(getattr(planned, name)) == count_bytes(getattr(state, name)), name
    assert (base is None) == (setup.base is None)
    if base is not None:
        assert bytes_on_a_device(base.params) == count_bytes(setup.base.params)


def test_deep_model_is_extrapolated_from_shallow_ones():
    mesh = make_mesh(1, 2)
    direct = measure_updates(CONFIG, SHAPE, mesh, 20)
    extrapolated = extrapolate(
        lambda layers: measure_updates(CONFIG, replace(SHAPE, layers=layers), mesh, 20), SHAPE.layers
    )
    assert extrapolated.temporaries == pytest.approx(direct.temporaries, rel=0.1)
    assert extrapolated.sent == pytest.approx(direct.sent, rel=0.02)
    assert direct.temporaries > 4 * SHAPE.vocab_size * SHAPE.width
    params = state_shapes(CONFIG, plan_algorithm(CONFIG)[0], transformer_policy(SHAPE, eos=0, mesh=mesh), mesh)[0].params
    parameter_bytes = sum(4 * leaf.size for leaf in jax.tree.leaves(params))
    assert direct.sent >= CONFIG.optimization.minibatches * parameter_bytes, (
        "a device sends half of each matrix, and half of its gradient"
    )


def test_plan_of_remat_sqrt():
    """Its temporary memory is that of full; each matrix is gathered once more, for the second recomputation of its layer."""
    full_plan, sqrt_plan = (plan_of(CONFIG.replace(layers=4, remat=remat, fsdp=2), 2, 20) for remat in ("full", "sqrt"))
    assert (sqrt_plan.temporaries, sqrt_plan.critic_temporaries) == (full_plan.temporaries, full_plan.critic_temporaries)
    full_update, sqrt_update = full_plan.phases["update"], sqrt_plan.phases["update"]
    assert sqrt_update.flops > full_update.flops
    assert sqrt_update.moved > full_update.moved
    assert sqrt_update.sent > full_update.sent
    assert sqrt_plan.phases["sample"] == full_plan.phases["sample"]


def test_mixed_windows_are_planned_as_full_attention(monkeypatch):
    """The rows stay those of a model with windows, which cannot share prompts."""
    shapes, arrangements = [], []

    def measure(_config, shape, *rest):
        shapes.append(shape)
        arrangements.append(rest[-1])
        return MeasuredUpdates(temporaries=shape.layers, sent=0)

    monkeypatch.setattr(plan, "measure_updates", measure)
    mixed = make_plan(CONFIG, replace(SHAPE, window=8, full_layers=(3,)), make_mesh(1, 1), 20)
    assert mixed.temporaries == SHAPE.layers
    make_plan(CONFIG, replace(SHAPE, window=8), make_mesh(1, 1), 20)
    assert {shape.windows for shape in shapes} == {(None,) * 2, (None,) * 3, (8,) * 2, (8,) * 3}
    assert set(arrangements) == {lay_out}


def test_quick_compilation_has_the_usual_temporaries():
    mesh, shape = make_mesh(1, 1), replace(SHAPE, layers=1)
    quick = compile_policy_update(CONFIG, shape, mesh, 20)
    algorithm, config = plan_algorithm(CONFIG)
    policy = transformer_policy(shape, eos=0, mesh=mesh)
    state, base = state_shapes(config, algorithm, policy, mesh)
    layout, batch = data_shapes(config, algorithm, mesh, 20, minibatches=2, arrange=lay_out_shared)
    setup = plan_setup(config, algorithm, mesh, policy, policy_optimizer(config))
    frozen = {} if base is None else {"base": base}
    step = policy_program(setup, shardings_of(state))
    usual = step.lower(state, frozen, layout, batch, {}).compile(compiler_options=memory_options(mesh))
    assert temporaries(quick) == temporaries(usual)


def test_update_flops_match_the_compilers_count():
    """There is one micro-batch and one chunk of logits, because the compiler counts a loop's body once.

    The four responses of 12 tokens to a prompt of 20 share a row.
    """
    config, mesh = CONFIG.replace(minibatches=1, microbatch_rows=16), make_mesh(1, 1)
    counted = compile_policy_update(config, SHAPE, mesh, 20).cost_analysis()["flops"]
    layout, _ = data_shapes(config, plan_algorithm(config)[0], mesh, 20, minibatches=1, arrange=lay_out_shared)
    _, rows, slots = layout.packed.tokens.shape
    scored = rows * layout.packed.scored.shape[-1]
    assert (len(layout.packed.tokens), rows, slots) == (1, 4, 71)
    assert update_flops(SHAPE, rows * slots, slots, scored=scored) == pytest.approx(counted, rel=0.15)


@pytest.mark.parametrize(
    ("settings", "shape", "expected"),
    [
        ({}, {}, lay_out_shared),
        ({"lora_rank": 2}, {}, lay_out_shared),
        ({}, {"window": 8}, lay_out),
        ({}, {"window": 8, "full_layers": (0,)}, lay_out),
        ({"attention": "splash"}, {}, lay_out),
        ({"freeze": ("embedding",)}, {}, lay_out),
        ({"algorithm": "on_policy_distillation", "algorithm_options": {}, "teacher": "FOLDER"}, {}, lay_out),
    ],
)
def test_a_plan_shares_prompts_only_where_a_run_does(settings, shape, expected):
    config, mesh = CONFIG.replace(**settings), make_mesh(1, 1)
    assert arrangement(config, replace(SHAPE, **shape), mesh) is expected
    shared = 4 if expected is lay_out_shared else 1
    assert micro_batch_of(config, replace(SHAPE, **shape), mesh, 20).shared == shared


def test_micro_batches_of_shared_prompts():
    """Four rows on a device become one row with eight responses, so that 32 responses take two micro-batches on two devices."""
    config = CONFIG.replace(algorithm_options={}, prompts=4, group_size=8, minibatches=1, microbatch_rows=8)
    config, mesh = config.replace(max_response_tokens=10, attention="cudnn"), make_mesh(1, 2)
    assert micro_batch_of(config, SHAPE, mesh, 1000) == MicroBatch(rows=1, slots=999 + 8 * 11, shared=8)
    algorithm, config = plan_algorithm(config)
    work = step_work(config, SHAPE, algorithm, mesh, 1000, StepMemory(1000, 0, 0, 0, 16, 0))["update"]
    assert work.moved == 2 * 2 * 1000, "two micro-batches read the weights, forward and backward"
    assert mask_bytes(config, SHAPE, mesh, 1000) == 4 * (999 + 8 * 11) ** 2
    with_critic = config.replace(algorithm="ppo", algorithm_options={})
    assert mask_bytes(with_critic, SHAPE, mesh, 1000) == 4 * 8 * 1010**2, "the critic does not share prompts"


def test_critic_update_is_compiled_and_counted():
    config = CONFIG.replace(algorithm="ppo", algorithm_options={}, microbatch_rows=16, minibatches=1)
    shape, mesh = replace(SHAPE, layers=1), make_mesh(1, 1)
    program = compile_critic_update(config, shape, mesh, 20)
    assert update_flops(shape, 16 * 32, 32, scored=0) == pytest.approx(program.cost_analysis()["flops"], rel=0.15)
    weights = 4 * matrix_sizes(shape)
    assert temporaries(program) > weights, "the gradient of its matrices"
    algorithm, config = plan_algorithm(config)
    phases = step_work(config, shape, algorithm, mesh, 20, StepMemory(weights, weights, weights, 1, 16, weights))
    assert set(phases) == {"sample", "score", "update", "critic"}
    assert phases["critic"].flops == phases["score"].flops * 3, "forward, and twice as much backward"
    assert Plan(1, 2, 3, 4, 5, 6, 7, critic_temporaries=20, phases=phases, mask=3).peak == 10 + 20 + 3


@pytest.mark.parametrize("part", ["advantage=hierarchical", "advantage=reliability_quality", "advantage=length_quality"])
def test_advantages_are_planned(part):
    algorithm, config = plan_algorithm(CONFIG.replace(algorithm_options={}, **{"with": (part,)}))
    _, batch = data_shapes(config, algorithm, make_mesh(1, 1), 20, minibatches=2)
    assert batch.advantage.shape == (2 * 4, 12)


def test_masked_update_is_planned():
    """`keep_zeros` changes the optimizer but not its state, so the plan's state fits the run's update."""
    plain, masked = (
        compile_policy_update(CONFIG.replace(keep_zeros=kept), SHAPE, make_mesh(1, 1), 20) for kept in (False, True)
    )
    assert temporaries(masked) <= 1.05 * temporaries(plain)


def test_step_work_matches_a_hand_count():
    """16 responses of 20 + 12 tokens, in two rounds of decoding, without reference and without remat.

    In the update, the four responses to a prompt share a row of 71 slots.
    """
    config = CONFIG.replace(algorithm_options={"beta": 0.0}, microbatch_rows=4)
    algorithm, config = plan_algorithm(config)
    shape = replace(SHAPE, layers=1)
    work = step_work(
        config, shape, algorithm, make_mesh(1, 1), 20, StepMemory(1000, 300, 0, 3200, rows=8, sampling_weights=1000)
    )
    layer = 4 * 64 * 64 + 3 * 64 * 128
    assert forward_flops(shape, 1, 10, scored=1) == 2 * (layer + 2 * 64 * 10 + 64 * 512)
    windows = replace(shape, layers=2, window=4, full_layers=(0,))
    assert forward_flops(windows, 1, 10, scored=0) == 2 * (2 * layer + 2 * 64 * (10 + 4))
    assert set(work) == {"sample", "update"}
    logits = 16 * 12 * 4 * 2 * 64 * 512
    assert work["update"].flops == 4 * 71 * 3 * 2 * (layer + 2 * 64 * 71) + logits
    read = 4 * (20 * 2 * (layer + 2 * 64 * 20) + 2 * 64 * 512)
    assert work["sample"].flops == read + 16 * 12 * 2 * (layer + 2 * 64 * 26 + 64 * 512)
    assert work["sample"].moved == 2 * 12 * (1000 + 3200 * 26 / 32), (
        "per round and token: the weights and the average cache"
    )
    assert work["update"].moved == 4 * 2 * 1000 + 2 * 2 * 300, (
        "weights per micro-batch and pass; state per update, both ways"
    )
    for remat, matrices, mixing in (("full", 4, 4), ("sqrt", 5, 5), ("dots_no_batch", 3, 4), ("dots", 3, 3)):
        update = step_work(
            config, replace(shape, remat=remat), algorithm, make_mesh(1, 1), 20, StepMemory(1, 0, 0, 0, 16, 1)
        )["update"]
        assert update.flops == 4 * 71 * 2 * (matrices * layer + mixing * 2 * 64 * 71) + logits, remat
    apart = step_work(config, replace(shape, window=8), algorithm, make_mesh(1, 1), 20, StepMemory(1, 0, 0, 0, 16, 1))[
        "update"
    ]
    assert apart.flops == 16 * 32 * 3 * 2 * (layer + 2 * 64 * 8) + logits, "with a window, each response has its own row"


@pytest.mark.parametrize(
    "loss", [{"auxiliary": 0.5, "warm_start_batch": 8}, {"prompt_consistency": {"order": 0.1, "spaces": 0.1}}]
)
def test_rows_of_additional_losses_are_planned(loss):
    """The additional loss adds a micro-batch of eight rows of 20 + 12 tokens to each of two updates."""
    with_examples = CONFIG.replace(algorithm_options={"beta": 0.0}, microbatch_rows=8, **loss)
    shape, mesh, off = replace(SHAPE, layers=1), make_mesh(1, 1), {"auxiliary": 0.0, "prompt_consistency": {}}
    plain, with_loss = (
        step_work(config, shape, algorithm, mesh, 20, StepMemory(1000, 0, 0, 3200, 16, 1000))["update"]
        for algorithm, config in map(plan_algorithm, (with_examples.replace(**off), with_examples))
    )
    assert with_loss.flops - plain.flops == update_flops(shape, 2 * 8 * 32, 32, scored=2 * 8 * 12)
    assert with_loss.moved == 2 * plain.moved
    counted = compile_policy_update(with_examples, shape, mesh, 20).cost_analysis()["flops"]
    assert with_loss.flops / 2 == pytest.approx(counted, rel=0.15)


def test_indivisible_warm_start_batch_is_refused():
    config = CONFIG.replace(algorithm_options={"beta": 0.0}, auxiliary=0.5, warm_start_batch=3)
    with pytest.raises(InputError, match="warm_start_batch"):
        compile_policy_update(config, replace(SHAPE, layers=1), make_mesh(1, 2), 20)


def test_updates_of_all_passes_are_counted(monkeypatch):
    """The critic makes 24 updates on 4 prompts, so it also makes several passes."""
    once = CONFIG.replace(algorithm="open_reasoner_zero", algorithm_options={})
    thrice, shape, mesh = once.replace(passes=3), replace(SHAPE, layers=1), make_mesh(1, 2)
    one, three = (
        step_work(config, shape, algorithm, mesh, 20, StepMemory(1000, 300, 200, 3200, 16, 1000))
        for algorithm, config in map(plan_algorithm, (once, thrice))
    )
    assert {name for name in one if three[name] != one[name]} == {"update", "critic"}
    for name in ("update", "critic"):
        assert (three[name].flops, three[name].moved) == (3 * one[name].flops, 3 * one[name].moved)
    for name, value in {"compile_policy_update": 0, "compile_critic_update": 0, "temporaries": 5, "sent_bytes": 7}.items():
        monkeypatch.setattr(compiled_updates, name, lambda *_, value=value: value)  # compiling is tested elsewhere
    assert measure_updates(once, shape, mesh, 20) == MeasuredUpdates(5, 2 * 7, 5, 24 * 7)
    assert measure_updates(thrice, shape, mesh, 20) == MeasuredUpdates(5, 6 * 7, 5, 72 * 7)


def test_minimum_time_is_set_by_the_scarcest_resource():
    device = DEVICES["h100"]
    assert Work(989e12 * 8).seconds(device, 4) == pytest.approx(2.0)
    assert Work(989e12 * 8).seconds(device, 4, speed=speed_of("float32")) == pytest.approx(4.0)
    assert Work(0.0, 3.35e12 * 3).seconds(device, 4) == pytest.approx(3.0)
    assert Work(989e12, 3.35e12, 450e9 * 5).seconds(device, 1) == pytest.approx(5.0)


def test_oversized_state_is_refused_with_remedies():
    config = CONFIG.replace(width=64)
    algorithm, config = plan_algorithm(config)
    mesh = make_mesh(8, 1)
    policy = transformer_policy(SHAPE, eos=0, mesh=mesh)
    needed = state_bytes(*state_shapes(config, algorithm, policy, mesh))
    for available in (None, 8 * needed):
        check_room(config, algorithm, policy, mesh, available)
    with pytest.raises(InputError, match=r"takes 0\.00 GB on each of 8 devices, and .* With --fsdp 8 it would"):
        check_room(config, algorithm, policy, mesh, 8 * (needed - 1))
    with pytest.raises(InputError, match=r"It still does not fit with --fsdp 8 --lora-rank 16: .* Use more devices"):
        check_room(config, algorithm, policy, mesh, 8)


def test_memory_check_counts_the_sampler():
    """Eight devices share the state; each also has the sampler's complete weights and a cache for one row and one prompt."""
    algorithm, config = plan_algorithm(CONFIG.replace(fsdp=8))
    mesh = make_mesh(1, 8)
    policy = transformer_policy(SHAPE, eos=0, mesh=mesh)
    state, sampled = (
        state_bytes(*state_shapes(config, algorithm, policy, mesh)),
        sampling_memory(config, policy, mesh, 20, left=0),
    )
    assert sampled.weights == 4 * count_parameters(policy.shapes())
    assert (sampled.rows, sampled.cache // 2**14) == (8, 2 * 4 * (32 + 20) * 64 * 4 // 2**14)
    needed = state + sampled.weights + sampled.cache
    check = partial(check_room, config, algorithm, policy, mesh)
    assert check(8 * needed, prompt_length=20) == int(USABLE_SHARE * needed) - state - sampled.weights
    assert check(8 * state) == int(USABLE_SHARE * state) - state, "a custom engine is not counted"
    assert check(None, prompt_length=20) is None
    with pytest.raises(InputError, match=r", sampling takes .* GB more for weights and .* GB for keys and values, "):
        check(8 * (needed - 1), prompt_length=20)
    with pytest.raises(InputError, match=rf"With --cache-memory {sampled.cache}B it would"):
        check_room(config.replace(cache_memory="1GB"), algorithm, policy, mesh, 8 * needed, prompt_length=20)
    assert check_room(
        config.replace(cache_memory=f"{sampled.cache}B"), algorithm, policy, mesh, 8 * needed, prompt_length=20
    )


def test_opened_model_needs_its_parameters_and_a_row():
    with_adapter = CONFIG.replace(lora_rank=2)
    mesh = make_mesh(8, 1)
    policy = transformer_policy(SHAPE, eos=0, mesh=mesh)
    params, cache = 4 * count_parameters(policy.shapes()), sampling_memory(CONFIG, policy, mesh, 20, left=0).cache
    for config, length, needed in (
        (CONFIG, None, params),
        (CONFIG, 20, params + cache),
        (with_adapter, 20, 2 * params + cache),
    ):
        assert check_model_fits(config, policy, mesh, 8 * needed, prompt_length=length) is not None
        with pytest.raises(
            InputError, match=r"The model takes .* GB on each of 8 devices.* It needs devices with more memory"
        ):
            check_model_fits(config, policy, mesh, 8 * (needed - 1), prompt_length=length)


def test_memory_check_counts_a_custom_optimizer():
    algorithm, config = plan_algorithm(CONFIG)
    mesh = make_mesh(1, 1)
    policy = transformer_policy(SHAPE, eos=0, mesh=mesh)
    adam, plain = (
        state_bytes(*state_shapes(config, algorithm, policy, mesh, optimizer=each)) for each in (None, optax.sgd(1.0))
    )
    parameters = bytes_on_a_device(parameter_shapes(policy, mesh))
    assert adam - plain == pytest.approx(2 * parameters, rel=1e-3)
    check_room(config, algorithm, policy, mesh, plain, optimizer=optax.sgd(1.0))
    with pytest.raises(InputError, match="it does not fit"):
        check_room(config, algorithm, policy, mesh, plain)
    several = optax.chain(*[optax.scale_by_adam()] * 8)  # more moments than any built-in optimizer has
    with pytest.raises(InputError, match="it does not fit"):
        check_room(config, algorithm, policy, mesh, 10 * parameters, optimizer=several)


def test_cheapest_remat_that_fits_is_proposed():
    sizes = {"none": 90, "dots": 80, "dots_no_batch": 60, "full": 30, "sqrt": 20}
    for room, chosen in ((90, "none"), (85, "dots"), (60, "dots_no_batch"), (40, "full"), (25, None)):
        found = cheaper_remat(CONFIG.replace(remat="sqrt"), lambda config: sizes[config.model.remat], room)
        assert (found and found[0]) == chosen
    remats = [change for change in changes_to_try(CONFIG.replace(remat="none"), 1) if "remat" in change[1]]
    trial = try_changes(CONFIG.replace(remat="none"), remats, lambda config: sizes[config.model.remat], 40)
    assert (trial.flags, trial.needed, trial.fits) == (["--remat full"], 30, True)


def test_unusable_adapter_is_not_proposed():
    for settings in ({"anchor": 1.0}, {"freeze": ("embedding",)}, {"lora_rank": 2}):
        assert "--lora-rank 16" not in dict(changes_to_try(TrainConfig.flat(**settings), 1))
    assert "--lora-rank 16" in dict(changes_to_try(TrainConfig(), 1))
    assert dict(changes_to_try(TrainConfig.flat(lora_rank=2), 1))["--quantize nf4"]["lora_rank"] == 2
    assert "--quantize nf4" not in dict(changes_to_try(TrainConfig.flat(lora_rank=2, quantize="int8"), 1))


@pytest.mark.parametrize("replicas", [None, 1, 2])
def test_proposed_mesh_flags_override_the_runs(replicas):
    config = TrainConfig.flat(replicas=replicas, fsdp=2, tensor=2)
    flags, settings = changes_to_try(config, 8)[0]
    words = flags.split()
    typed = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    axes = config.replace(**{name.removeprefix("--"): size for name, size in typed.items()}).devices
    mesh, proposed = make_mesh(axes.replicas, axes.fsdp, axes.tensor), config.replace(**settings).devices
    assert (
        mesh.shape
        == make_mesh(proposed.replicas, proposed.fsdp, proposed.tensor).shape
        == {"data": 1, "fsdp": 4, "tensor": 2}
    )


def test_adapter_and_sharding_need_less_memory():
    one, eight = (make_plan(CONFIG, replace(SHAPE, layers=1), make_mesh(1, n), 20) for n in (1, 8))
    adapted = make_plan(CONFIG.replace(lora_rank=2), replace(SHAPE, layers=1), make_mesh(1, 1), 20)
    assert eight.state < one.state / 7
    assert adapted.optimizer < one.optimizer / 4
    assert (adapted.reference, one.reference) == (0, one.parameters)
    assert one.peak == one.state + max(one.temporaries, one.sampler + one.cache)
    slots = 16 * 32 + 4 * 20
    assert one.cache == 2 * 1 * slots * 64 * 4, "keys and values x layers x slots of rows and prompts x features x bytes"


@pytest.mark.parametrize(
    ("rows", "budget", "slots"),
    [
        (16, 60, 16 * 80 + 4 * 20),
        (16, 100, (16 + 8) * 120),
        (8, 130, 8 * (150 + 20 + 66) + 2 * 20),
        (16, 130, 16 * (150 + 20 + 66) + 4 * 20),
        (16, 512, (16 + 12) * 532),
    ],
)
def test_long_decoding_copies_its_cache(rows, budget, slots):
    """The larger of two copies: from 128 tokens on, to twice the room while prompts wait; from 64 on, of 16 rows to fewer rows."""
    config = CONFIG.replace(max_response_tokens=budget)
    found = peak_cache_bytes(config, replace(SHAPE, layers=1), make_mesh(1, 1), 20, rows)
    assert found == 2 * 1 * slots * 64 * 4


@pytest.mark.parametrize("share", [None, 0.5])
def test_environment_plan_counts_the_rows_that_read_turns(share):
    """These rows (an eighth of all, but at least eight) are copied, with pages twice: out of the pages and back."""
    shape, mesh = replace(SHAPE, layers=1), make_mesh(1, 1)
    config = CONFIG.replace(paged_cache=share, prompts=16, max_response_tokens=108, decode_slots=64)
    plan = make_plan(config.replace(environment="guessing"), shape, mesh, 20, room=10**9)
    token_bytes, row_bytes = 2 * 64 * 4, 2 * 128 * 64 * 4
    sizes = pool_sizes(64, 20, 108, 54, 4)
    cache_bytes_of_rows = 64 * row_bytes if share is None else (sizes.shared + sizes.own) * PAGE * token_bytes
    assert plan.rows == 64
    assert plan.cache == pytest.approx(cache_bytes_of_rows + (1 if share is None else 2) * 8 * row_bytes, rel=0.01)


def test_oversized_run_is_refused_before_initialization(monkeypatch):
    """The memory has room for the parameters, but not for the optimizer's moments."""
    real = CONFIG.replace(task="sums", dataset=None, train_problems=16, heldout_problems=4, algorithm_options={"beta": 0.0})
    shape = make_transformer_config(real.model, make_tokenizer(real).vocab_size)
    room = 5 * count_parameters(abstract_params(shape))
    monkeypatch.setattr(setup, "agreed_device_bytes", lambda mesh: room)
    for name in ("make_base", "make_critic"):
        monkeypatch.setattr(
            setup, name, lambda *arguments, **keywords: pytest.fail("weights must not be initialized or read")
        )
    with pytest.raises(InputError, match=r"The training state takes .* on the device, .*: it does not fit\."):
        setup.make_setup(real, BUILT_IN._replace(reward=even_length))


def test_plan_command_reports_what_fits(capsys, monkeypatch):
    assert jax.device_count() == 8, "JAX found its devices before the plan simulates others"
    for name in ("XLA_FLAGS", "JAX_PLATFORMS"):
        monkeypatch.setenv(name, os.environ[name])
    monkeypatch.setattr(
        plan, "measure_updates", lambda *arguments: MeasuredUpdates(10_000, 2_000_000_000)
    )  # compiling is tested above
    flags = ["plan", "--algorithm", "grpo", "--prompts", "4", "--group-size", "4", "--max-response-tokens", "12"]
    flags += ["--layers", "2", "--width", "64", "--kv-heads", "2", "--prompt-length", "20"]
    assert main([*flags, "--device-memory", "1GB"]) == 0
    text = capsys.readouterr().out
    assert "grpo, 4 x 4 responses of at most 12 tokens; GB on 1 device\n" in text
    assert text.endswith("The run fits in 1GB.\n")
    assert "  optimizer" in text
    assert re.search(r"^  rows decoded at once +16$", text, re.MULTILINE)
    assert re.search(r"^  in one step +operations +GB moved +GB sent$", text, re.MULTILINE)
    assert re.search(r"^  update +\d\.\d\de\+\d\d +\d\.\d +2\.0$", text, re.MULTILINE)
    assert main([*flags, "--device-memory", "1GB", "--remat", "full"]) == 0
    text = capsys.readouterr().out
    assert re.search(
        r"The run fits in 1GB\.\nWith --remat none it would fit too \(\d\.\d+ GB\), and .* recomputes less\.\n$", text
    )
    assert main([*flags, "--device", "h100"]) == 0
    text = capsys.readouterr().out
    assert "GB sent   seconds (minimum on h100)\n" in text
    assert text.endswith("The run fits in 80GB.\n")
    assert main([*flags, "--device", "cpu"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^  process and programs +0\.700$", text, re.MULTILINE)
    assert main([*flags, "--device-memory", "1KB"]) == 1
    text = capsys.readouterr().out
    assert "The run does not fit in 1KB; it may use nine tenths of that." in text
    assert (
        "It still does not fit with --microbatch-rows 1 --remat sqrt --dtype bfloat16 --lora-rank 16 --quantize nf4: "
        in text
    )
    assert main([*flags, "--cache-memory", "100KB"]) == 0
    assert re.search(r"^  rows decoded at once +5$", capsys.readouterr().out, re.MULTILINE)
    refused(capsys, "--device 'abacus' is unknown; choose one of a100, h100", *flags, "--device", "abacus")
    assert main([*flags, "--attention", "cudnn", "--max-response-tokens", "980"]) == 0
    mask = 4 * 1000**2 * 8  # the eight responses of an update are one micro-batch
    assert re.search(rf"^  in an update: cuDNN's mask +{mask / 1e9:.3f}$", capsys.readouterr().out, re.MULTILINE)
    refused(capsys, "--device-count is 0", *flags, "--device-count", "0")
    refused(capsys, "sharded over 8 devices .*; plan with --device-count 8", *flags, "--fsdp", "4", "--tensor", "2")
    refused(capsys, r"this process has 8 devices and the plan is for 99; .*device_count=99", *flags, "--device-count", "99")


RESIDENT = """
import sys
from pathlib import Path
from rljax.cli import main
code = main(sys.argv[1:])
lines = Path("/proc/self/status").read_text().splitlines()
print(next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")))
sys.exit(code)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_cpu_runs_memory_matches_its_plan(tmp_path):
    """The test would notice a second copy of the state, for example during a save, or of the gradient."""
    flags = ["--layers", "1", "--width", "1024", "--heads", "8", "--kv-heads", "8", "--hidden", "4096", "--replicas", "1"]
    flags += ["--algorithm", "grpo", "--prompts", "4", "--group-size", "4", "--max-response-tokens", "12", "--steps", "1"]
    flags += ["--warm-start-steps", "0", "--train-problems", "16", "--heldout-problems", "4", "--models", "none", "--quiet"]
    words = [sys.executable, "-c", RESIDENT, "train", *flags, "--run", str(tmp_path / "run")]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    process = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    config = parse(["train", *flags]).config
    planned = plan_of(config, 1, config.data.max_prompt_tokens, on_cpu=True)
    assert planned.host > 0
    assert 1 / 1.2 < int(process.stdout.split()[-1]) / planned.peak < 1.2


def test_devices_are_simulated_before_jax_starts():
    environment = {"XLA_FLAGS": "--other"}
    simulate_devices(environment, 16)
    assert environment == {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--other --xla_force_host_platform_device_count=16"}


def test_calculator_is_not_planned():
    with pytest.raises(InputError, match=r"cannot measure calculator=0\.5, which keeps all logits of a micro-batch"):
        plan_of(CONFIG.replace(calculator=0.5), 1, 20)


def test_teacher_is_not_planned():
    with pytest.raises(InputError, match="cannot measure gkd, whose update also reads a teacher"):
        plan_of(CONFIG.replace(algorithm="gkd", algorithm_options={}), 1, 20)
