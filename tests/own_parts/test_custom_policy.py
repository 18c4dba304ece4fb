"""Tests of custom models: a `Policy` is enough to train, resume, load, export and shard them."""

import contextlib
import json
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec
from run_states import first_state, read_checkpoint
from small_runs import SMALL, even_length, stopping_after
from third_party_policies import GRU as Network
from third_party_policies import gru_policy, load_transformer, plain_transformer_policy, transformer_params

import rljax
from rljax.algorithms import BY_NAME
from rljax.data.history import no_history
from rljax.data.problem import Problem
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.models import Decoder, Policy, Scores, TurnDecoder, on_every_device
from rljax.models.peft_folder import ADAPTER_CONFIG
from rljax.parallel import make_mesh
from rljax.parallel.mesh import path_names
from rljax.programs.export import export
from rljax.programs.train import refuse_unused_settings
from rljax.programs.trained_policy import load
from rljax.rollout import sequences_of
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.summary import summarize
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.config import TrainConfig
from rljax.training.interrupt import Interrupted
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.scoring import make_score, make_scores
from rljax.training.setup import make_setup
from rljax.training.state import create, place

SUMS = [Problem(f"{a}+{b}=", str(a + b)) for a in range(1, 13) for b in (1, 10)]
PROBLEMS = (SUMS[:20], SUMS[20:])
VOCABULARY = load_tokenizer("characters").vocab_size
CONFIG = SMALL.replace(
    name="own",
    algorithm="grpo",
    steps=3,
    prompts=4,
    group_size=4,
    learning_rate=1e-2,
    eval_every=1,
    checkpoint_every=1,
    sample_every=0,
)
GRU = gru_policy(VOCABULARY)
PLAIN = plain_transformer_policy(VOCABULARY)
POLICIES = {"a GRU in Flax NNX": GRU, "a transformer in plain JAX": PLAIN}


@pytest.fixture(scope="module", params=POLICIES)
def trained(request, tmp_path_factory):
    """A policy, and the result of a run that trained the policy."""
    policy = POLICIES[request.param]
    config = CONFIG.replace(run=str(tmp_path_factory.mktemp("own") / "run"))
    return policy, rljax.train(config, even_length, policy=policy, problems=PROBLEMS)


def assert_same(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_training_changes_all_parameters(trained):
    policy, result = trained
    first = policy.init(jax.random.key(CONFIG.run.seed))
    assert jax.tree.structure(first) == jax.tree.structure(result.params)
    changes = jax.tree.map(lambda now, before: float(np.abs(now - before).max()), result.params, first)
    assert min(jax.tree.leaves(changes)) > 0


def test_scores_match_sampled_log_probabilities(trained):
    """Prompts have three or four tokens, so the shorter ones are padded."""
    policy, result = trained
    setup, _ = first_state(CONFIG, policy=policy, problems=PROBLEMS, reward=even_length)
    groups = setup.train.generate(result.params, list(range(8)), 3, jax.random.key(1))
    assert len({int(count) for count in groups.prompt_attention.sum(-1)}) > 1, "the test needs prompts of different lengths"
    scores = make_scores(make_score(policy, 1.0), make_mesh(1, 1), 8)(result.params, sequences_of(groups))
    logp = scores.logp.reshape(groups.tokens.shape)
    np.testing.assert_allclose(np.where(groups.attention, logp, 0), groups.rollout.policy_logp, atol=1e-4)
    assert np.abs(groups.rollout.policy_logp).max() > 0.5


def test_run_resumed_after_ctrl_c_is_bitwise_equal(trained, tmp_path):
    policy, result = trained
    path = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        rljax.train(CONFIG.replace(run=str(path)), stopping_after(3), policy=policy, problems=PROBLEMS)
    parts = {"policy": policy, "problems": PROBLEMS, "reward": even_length}
    assert int(read_checkpoint(CONFIG, path, **parts).state.step) == 1
    rljax.train(None, even_length, policy=policy, problems=PROBLEMS, resume=path)
    ours, theirs = read_checkpoint(CONFIG, path, **parts), read_checkpoint(CONFIG, result.run, **parts)
    assert_same(ours.state, theirs.state)
    assert_same(ours.history, theirs.history)
    assert ours.notes == theirs.notes


def test_best_checkpoint_loads_with_the_policy(trained):
    policy, result = trained
    opened = load(result.run, policy=policy, reward=even_length, problems=PROBLEMS[1])
    best = read_checkpoint(CONFIG, result.run, "best", policy=policy, problems=PROBLEMS, reward=even_length)
    assert_same(opened.params, best.state.params)
    texts = opened.sample(["1+1=", "12+1="], count=3, temperature=1.0)
    assert [len(row) for row in texts] == [3, 3]
    assert len({text for row in texts for text in row}) > 1


def test_load_and_resume_need_the_policy(trained, tmp_path):
    _, result = trained
    for call in (
        lambda: load(result.run, reward=even_length, problems=PROBLEMS[1]),
        lambda: rljax.train(None, even_length, problems=PROBLEMS, resume=result.run),
        lambda: export(result.run, tmp_path / "exported"),
    ):
        with pytest.raises(InputError, match="The run was started with policy passed to train"):
            call()
    assert not (tmp_path / "exported").exists()


def test_different_policy_error_names_the_policy(trained):
    policy, result = trained
    other = gru_policy(VOCABULARY, width=8) if policy is GRU else plain_transformer_policy(VOCABULARY, width=8)
    with pytest.raises(
        InputError, match=r"^policy: .* like the one that was saved; 'params/.*' is of shape .* and of shape"
    ):
        load(result.run, policy=other, reward=even_length, problems=PROBLEMS[1])
    with pytest.raises(InputError, match=r"^policy: .* like the one that was saved; 'params/"):
        rljax.train(None, even_length, policy=other, problems=PROBLEMS, resume=result.run)


def test_export_uses_the_format_of_the_policy(trained, tmp_path):
    """Exporting a run's model does not need the run's reward or problems."""
    policy, result = trained
    if policy is GRU:
        with pytest.raises(InputError, match=r"^policy.save: this policy cannot write a model folder"):
            export(result.run, tmp_path / "model", policy=policy)
        return
    folder = export(result.run, tmp_path / "model", which="last", policy=policy)
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert_same(load_transformer(folder), jax.device_get(result.params))


class SplitParams(NamedTuple):
    """Parameters in a record, a list and a tuple. Two of the leaves are initially the same array."""

    body: dict
    heads: list


def split_params(params):
    zero = jnp.zeros(3)
    body = {name: part for name, part in params.items() if name != "head"}
    return SplitParams(body | {"zero": zero}, [params["head"], (zero,)])


def make_gru(params):
    model = Network(VOCABULARY, 16, nnx.Rngs(1))
    nnx.update(model, params)
    return model


PYTREES = {
    "state": lambda params: nnx.split(make_gru(params))[1],
    "module": make_gru,
    "records": split_params,
    "flat names": lambda params: transformer_params(jax.random.key(0), 5, 4),
}


@pytest.mark.parametrize("name", PYTREES)
def test_parameters_may_be_any_pytree(tmp_path, name):
    """The parameters can be placed on devices, saved, and restored, both with the full state and alone."""
    params, mesh = PYTREES[name](GRU.init(jax.random.key(0))), make_mesh(1, 2)
    state = place(create(params, optax.adam(1e-3), 0, with_reference=False), mesh, on_every_device)
    pointers = [leaf.addressable_data(0).unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(pointers)) == len(pointers), "leaves must not share a buffer, because an update donates each buffer once"
    checkpoints.save(tmp_path, checkpoints.Checkpoint(state, no_history(2)), {})
    blank = jax.tree.map(jnp.zeros_like, state)
    assert_same(checkpoints.restore(tmp_path, lambda phase: blank).checkpoint.state, state)
    assert_same(checkpoints.restore_params(tmp_path, blank.params), state.params)


def shard_outputs(path, shape):
    """Shard the first axis of projections over `fsdp`, and replicate all other parameters."""
    return PartitionSpec("fsdp", None) if path[-1].endswith("_proj.weight") else PartitionSpec(*[None] * len(shape))


def test_partition_applies_to_parameters_and_moments():
    policy = plain_transformer_policy(VOCABULARY, partition=shard_outputs)
    state = create(policy.init(jax.random.key(0)), optax.adamw(1e-3), 0, with_reference=True)
    placed = place(state, make_mesh(2, 4), policy.partition)
    count = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(placed):
        name = path_names(path)[-1]
        if name in state.params:
            count += 1
            expected = shard_outputs((name,), leaf.shape)
            assert leaf.sharding.spec == expected, path
            rows = leaf.shape[0] // (4 if "fsdp" in expected else 1)
            assert {shard.data.shape[0] for shard in leaf.addressable_shards} == {rows}
    assert count == 4 * len(state.params), "the partition must apply to the parameters, two moments and the reference"


@pytest.mark.parametrize("trained", ["a transformer in plain JAX"], indirect=True)
def test_run_on_eight_devices_equals_run_on_one(trained, tmp_path):
    policy = plain_transformer_policy(VOCABULARY, partition=shard_outputs)
    config = CONFIG.replace(run=str(tmp_path / "eight"), replicas=2, fsdp=4)
    params_of_eight = rljax.train(config, even_length, policy=policy, problems=PROBLEMS).params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), trained[1].params, params_of_eight)
    assert params_of_eight["model.layers.0.mlp.up_proj.weight"].sharding.spec == PartitionSpec("fsdp", None)


def check_rejected(tmp_path, match, **parts):
    """Check that the parts cause a one-line error before anything is written."""
    changes = parts.pop("changes", {})
    path = tmp_path / "refused"
    with pytest.raises(InputError, match=match) as caught:
        rljax.train(CONFIG.replace(run=str(path), **changes), even_length, problems=PROBLEMS, **parts)
    assert "\n" not in str(caught.value)
    assert not path.exists()


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (
            lambda path, shape: PartitionSpec("heads"),
            r"^policy.partition: the parameter .* of shape \[.*\] must be sharded over axes of the mesh "
            r"\(data=2, fsdp=4, tensor=1\) that divide it; got P.*\('heads',\)",
        ),
        (
            lambda path, shape: PartitionSpec("fsdp") if shape == (18,) else PartitionSpec(),
            r"^policy.partition: .*norm.weight of shape \[18\] must be .* that divide it; got P.*\('fsdp',\)",
        ),
        (
            lambda path, shape: PartitionSpec(*[None] * (len(shape) + 1)),
            "^policy.partition: the parameter .* has [12] axes, but its partition has [23]",
        ),
        (
            lambda path, shape: PartitionSpec("data", "data") if len(shape) == 2 else PartitionSpec(),
            r"^policy.partition: .* must be sharded over each axis of the mesh at most once; got P.*\('data', 'data'\)",
        ),
        (lambda path, shape: None, r"^policy.partition: .* needs a jax.sharding.PartitionSpec; got None"),
    ],
)
def test_invalid_partition_is_rejected(tmp_path, partition, message):
    policy = plain_transformer_policy(VOCABULARY, width=18, partition=partition)
    check_rejected(tmp_path, message, policy=policy, changes={"replicas": 2, "fsdp": 4})


def with_scores(change):
    """Return the GRU policy, with a function applied to its scores."""
    return GRU._replace(score=lambda params, packed, temperature: change(GRU.score(params, packed, temperature)))


def with_decoder(**functions):
    return GRU._replace(decoder=GRU.decoder._replace(**functions))


def with_count(params):
    return {"count": jnp.int32(1), **params}


INVALID_POLICIES = {
    "scores of another shape": (
        with_scores(lambda scores: Scores(scores.logp[:, :-1], scores.entropy[:, :-1])),
        r"^policy.score: .*Scores\(logp, entropy\), both of the batch's shape \[B, T\] = \[1, 12\]; got Scores .*\(1, 11\)",
    ),
    "log-probabilities alone": (with_scores(lambda scores: scores.logp), r"^policy.score: expected .*; got .*\(12,\)"),
    "a score that raises": (
        GRU._replace(score=lambda params, packed, temperature: params["heads"]),
        "^policy.score: expected a function .* that JAX can trace and differentiate; got KeyError: 'heads'",
    ),
    "integer parameters": (
        GRU._replace(
            init=lambda key: with_count(GRU.init(key)),
            score=lambda p, *rest: GRU.score({n: p[n] for n in p if n != "count"}, *rest),
        ),
        "^policy.score: .* trace and differentiate; got TypeError: grad requires real- or complex-valued inputs .*int32",
    ),
    "no decoder": (GRU._replace(decoder=None), "policy.decoder is None; give the policy a decoder, or pass an engine"),
    "logits of another vocabulary": (
        with_decoder(begin=lambda *arguments: (jnp.zeros((1, 3)), None)),
        rf"^policy.decoder.begin: the logits must have the shape \[B, V\] = \[1, {VOCABULARY}\]; got \[1, 3\]\.",
    ),
    "a state that grows": (
        with_decoder(advance=lambda params, token, state: (jnp.zeros((1, VOCABULARY)), jnp.concatenate([state, state]))),
        r"^policy.decoder.advance: the new state must have .* of the old one, float32\[1, 16\]; got float32\[2, 16\]\.",
    ),
    "insert with the wrong number of rows": (
        with_decoder(insert=lambda state, fresh, source: fresh),
        r"^policy.decoder.insert: the new state must have .* of the old one, float32\[1, 16\]; got float32\[2, 16\]\.",
    ),
    "grow with the wrong size": (
        with_decoder(grow=lambda state, more: state[:, more:]),
        r"^policy.decoder.grow: the new state must have .* of the old one, float32\[1, 16\]; got float32\[1, 4\]\.",
    ),
    "prompts that cannot be inserted": (
        with_decoder(
            begin=lambda params, tokens, attention, budget: (
                jnp.zeros((len(tokens), VOCABULARY)),
                jnp.zeros((len(tokens), budget)),
            ),
            advance=lambda params, token, state: (jnp.zeros((len(token), VOCABULARY)), state),
            grow=lambda state, more: jnp.pad(state, ((0, 0), (0, more))),
        ),
        "^policy.decoder.insert: the decoder needs a function that JAX can trace and that returns a state; got ",
    ),
    "a state whose first axis is not rows": (
        with_decoder(
            begin=lambda params, tokens, attention, budget: (
                jnp.zeros((len(tokens), VOCABULARY)),
                jnp.zeros((3, len(tokens))),
            ),
            advance=lambda params, token, state: (jnp.zeros((len(token), VOCABULARY)), state),
        ),
        r"^policy.decoder.insert: the new state must have .* of the old one, float32\[3, 1\]; got float32\[3, 2\]\.",
    ),
    "a turn that changes the state's shape": (
        with_decoder(
            turns=TurnDecoder(
                lambda rows, slots: jnp.zeros((rows, slots)),
                lambda params, tokens, first, count, state: (jnp.zeros((len(tokens), VOCABULARY)), state[:, 1:]),
            )
        ),
        r"^policy.decoder.turns: the new state must have .* of the old one, float32\[1, \d+\]; got float32\[1, \d+\]\.",
    ),
    "turns that do not grow": (
        with_decoder(
            turns=TurnDecoder(
                lambda rows, slots: jnp.zeros((rows, slots)),
                lambda params, tokens, first, count, state: (jnp.zeros((len(tokens), VOCABULARY)), state),
                lambda state, more: state,
            )
        ),
        r"^policy.decoder.turns.grow: the new state must have .* of the old one, float32\[1, \d\d+\]; got float32\[1, 1\]\.",
    ),
    "a partition with too many axes": (
        with_decoder(partition=lambda path, shape: PartitionSpec(None, None, "tensor")),
        r"^policy.decoder.partition: the array '' of shape \[1, 16\] needs a jax.sharding.PartitionSpec of at most 2 axes; got ",
    ),
    "a decoder that raises": (
        with_decoder(begin=lambda params, tokens: None),
        "^policy.decoder.begin: the decoder needs a function .*; got TypeError: .*takes 2 positional arguments",
    ),
    "a vocabulary size that is text": (
        GRU._replace(vocab_size="20"),
        "^policy.vocab_size: a positive integer is needed; got '20'",
    ),
    "no initial parameters": (GRU._replace(init=None), "^policy.init: a function is needed; got None"),
    "a value function that is a number": (
        GRU._replace(value_function=3),
        "^policy.value_function: a function or None is needed; got 3",
    ),
    "a decoder that is a number": (GRU._replace(decoder=3), "^policy.decoder: an rljax.Decoder or None is needed; got 3"),
    "a small vocabulary": (gru_policy(5), f"tokenizer has ids up to {VOCABULARY - 1}, but the model has only 5"),
    "a module": (jnp.tanh, "^policy: expected an rljax.Policy; got "),
}


@pytest.mark.parametrize("case", INVALID_POLICIES)
@pytest.mark.usefixtures("without_type_checks")
def test_invalid_policy_is_rejected_before_anything_is_written(tmp_path, case):
    policy, message = INVALID_POLICIES[case]
    check_rejected(tmp_path, message, policy=policy)


class NullTracker:
    """A tracker that records nothing."""

    def log(self, phase, step, metrics):
        """Do nothing."""

    samples = close = log


def test_critic_needs_a_value_function(tmp_path):
    check_rejected(
        tmp_path,
        r"^policy.value_function: ppo needs a critic, which the policy must be able to make; got None\.",
        policy=GRU,
        changes={"algorithm": "ppo"},
    )


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"algorithm": "dapo"}, "^algorithm: expected an rljax.algorithms.Algorithm; got 'dapo'"),
        ({"optimizer": "adam"}, r"^optimizer: expected an optax.GradientTransformation, such as .*; got 'adam'\.$"),
        (
            {"optimizer": optax.sgd},
            r"^optimizer: expected an optax.GradientTransformation, such as .*; got <function sgd at .*>\.$",
        ),
        ({"reward": 5}, r"^reward: a function, or a list of functions and names, is needed; got 5\.$"),
        (
            {"environment": NullTracker, "reward": None},
            r"^environment: an object is needed; got the class NullTracker\. Pass an instance\.$",
        ),
        ({"engine": NullTracker}, r"^engine: an object is needed; got the class NullTracker\. Pass an instance\.$"),
        (
            {"problems": SUMS},
            r"^problems: expected a pair of lists of rljax.Problem \(training, held-out\); got \[",
        ),
        (
            {"trackers": [object()]},
            r"^trackers\[0\]\.log: a tracker must have the methods log\(phase, step, metrics\), samples\(step, rows\) and "
            r"close\(\); got <object object at .*>, which lacks log and samples and close\.$",
        ),
        (
            {"trackers": (NullTracker(), SimpleNamespace(log=print, samples=print))},
            r"^trackers\[1\]\.close: a tracker must have the methods .*; got namespace\(.*\), which lacks close\.$",
        ),
        (
            {"trackers": [NullTracker]},
            r"^trackers\[0\]: an object is needed; got the class NullTracker\. Pass an instance\.$",
        ),
        ({"trackers": NullTracker()}, r"^trackers: a list of trackers is needed; got <.*NullTracker object at .*>\.$"),
        ({"trackers": "wandb"}, r"^trackers: a list of trackers is needed; got 'wandb'\.$"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_wrong_type_error_names_the_argument(tmp_path, parts, message):
    with pytest.raises(InputError, match=message):
        rljax.train(CONFIG.replace(run=str(tmp_path / "refused")), **{"reward": even_length} | parts)
    assert not (tmp_path / "refused").exists()


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("config", [{"steps": 1}, "run.toml", TrainConfig], ids=["a dict", "a file", "the class"])
def test_anything_but_a_configuration_is_refused(config):
    with pytest.raises(InputError, match=r"^config: an rljax\.TrainConfig is needed, such as .*; got "):
        rljax.train(config, even_length)
    with pytest.raises(InputError, match=r"^config: an rljax\.TrainConfig is needed, such as .*; got "):
        rljax.sft(config)


OWN_ALGORITHM = CONFIG.replace(algorithm="dapo", train_problems=12, heldout_problems=2)


def test_settings_apply_to_an_algorithm_that_is_passed(tmp_path):
    algorithm, config = BY_NAME["grpo"](), OWN_ALGORITHM.replace(advantage="rank")
    made = make_setup(config, CustomParts(algorithm=algorithm, reward=even_length)).algorithm
    assert made.advantage != algorithm.advantage
    assert made.surrogate is algorithm.surrogate
    with pytest.raises(InputError, match="has no critic, so critic_frozen_trunk cannot be used"):
        make_setup(config.replace(critic_frozen_trunk=True), CustomParts(algorithm=algorithm, reward=even_length))
    for settings in ({"algorithm": "gspo"}, {"algorithm_options": {"clip_high": 0.5}}, {"without": ("token_level",)}):
        with pytest.raises(
            InputError,
            match=r"^\w+=.* applies to built-in algorithms, but your own algorithm is passed to train\(\); leave",
        ):
            rljax.train(OWN_ALGORITHM.replace(run=str(tmp_path / "refused"), **settings), even_length, algorithm=algorithm)


def test_an_algorithm_that_cannot_handle_abstentions_is_refused_before_the_run(tmp_path):
    algorithm = BY_NAME["dr_grpo"](max_length=12)
    own = algorithm._replace(advantage=lambda rewards: rewards - rewards.mean(-1, keepdims=True))
    with pytest.raises(InputError, match=r"cannot train with .*: .*unexpected keyword argument 'valid'"):
        rljax.train(OWN_ALGORITHM.replace(run=str(tmp_path / "refused")), even_length, algorithm=own)
    assert not (tmp_path / "refused").exists()

    def abstain_on_some(completions):
        return [None if len(completion) < 3 else even_length([completion])[0] for completion in completions]

    result = rljax.train(OWN_ALGORITHM.replace(run=str(tmp_path / "run"), steps=1), abstain_on_some, algorithm=algorithm)
    assert summarize(RunFolder.open(result.run)).algorithm == "custom"


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (
            BY_NAME["dapo"](),
            "the overlong penalty begins after 16384 tokens, and a response has at most 12, so there is no",
        ),
        (
            BY_NAME["dr_grpo"](),
            "the algorithm divides by max_length=3000, and a response has at most 12 tokens, so gradients",
        ),
        (BY_NAME["dapo"](max_length=12, cache=2), None),
    ],
)
def test_lengths_in_an_algorithm_that_is_passed_are_compared_with_the_runs_limit(algorithm, expected):
    omissions = make_setup(OWN_ALGORITHM, CustomParts(algorithm=algorithm, reward=even_length)).omissions
    assert [note.startswith(expected) for note in omissions] == ([] if expected is None else [True])


@pytest.mark.parametrize(
    ("settings", "parts", "message"),
    [
        (
            {"engine_folder": "shared"},
            {},
            r"^engine_folder='.*shared' applies only with engine_url; leave engine_folder out\.$",
        ),
        ({"engine_server": "vllm"}, {}, r"^engine_server='vllm' applies only with engine_url"),
        ({"engine_patience": 5.0}, {}, r"^engine_patience=5\.0 applies only with engine_url"),
        (
            {"paged_cache": 0.5},
            {"engine": SimpleNamespace(generate=print)},
            r"^paged_cache=0\.5 applies to the built-in engine",
        ),
        (
            {"cache_dtype": "int8"},
            {"policy": GRU},
            r"^cache_dtype='int8' applies to the built-in transformer, but a policy",
        ),
        ({"images": (8, 8)}, {"policy": GRU}, r"^images=\(8, 8\) applies to the built-in transformer, but a policy"),
        ({"paged_cache": 1.0}, {"engine": SimpleNamespace(generate=print)}, r"^paged_cache=1\.0 applies to the built-in"),
        (
            {"reward_messages": False, "environment": "guessing"},
            {},
            r"^reward_messages=False applies to a reward, but an environment judges the responses; leave reward_messages out",
        ),
        (
            {"reward_combine": "min", "environment": "guessing"},
            {},
            r"^reward_combine='min' applies to a reward, but an env",
        ),
        ({"schedule": "cosine"}, {"optimizer": optax.sgd(1.0)}, r"^schedule='cosine' applies to the built-in optimizer"),
        (
            {"shard_sampler": True},
            {"policy": GRU},
            r"^shard_sampler=True applies to the built-in transformer, but a policy",
        ),
        (
            {"cache_dtype": "int8"},
            {"engine": SimpleNamespace(generate=print)},
            r"^cache_dtype='int8' applies to the built-in",
        ),
        (
            {"decode_slots": 4},
            {"engine": SimpleNamespace(generate=print)},
            r"^decode_slots=4 applies to the built-in engine",
        ),
        (
            {"cache_memory": "1GB", "engine_url": "http://localhost:1"},
            {},
            r"^cache_memory='1GB' applies to the built-in engine, but the engine is a server; leave cache_memory out\.$",
        ),
        ({"lora_alpha": 16.0}, {}, r"^lora_alpha=16\.0 applies only with lora_rank; leave lora_alpha out\.$"),
        ({"lora_targets": ("query",)}, {}, r"^lora_targets=\('query',\) applies only with lora_rank"),
        ({"lora_start": "adapter"}, {}, r"^lora_start='adapter' applies only with lora_rank"),
        (
            {"algorithm": "ppo", "critic_head_options": {"low": -5.0}},
            {},
            r"^critic_head_options=.* applies only with critic_head",
        ),
        (
            {"algorithm": "grpo", "value_pretraining_passes": 2},
            {},
            r"^value_pretraining_passes=2 applies to a critic, but the algorithm has none",
        ),
        (
            {"algorithm": "dapo", "value_pretraining_loss": 0.1},
            {"algorithm": BY_NAME["dapo"]()},
            r"^value_pretraining_loss=0\.1 applies to a critic",
        ),
        (
            {"algorithm": "grpo", "value_pretraining_explained_variance": 0.5},
            {},
            r"^value_pretraining_explained_variance=0\.5 applies to a critic",
        ),
        (
            {"algorithm": "remax", "token_budget": 10**6},
            {},
            r"^token_budget=1000000 divides tokens among the responses to a prompt, but the algorithm samples only one",
        ),
        ({"history_decay": 0.1}, {}, r"^history_decay=0\.1 applies only with difficulty_window or token_budget"),
        (
            {"heldout_dataset": "rows.jsonl"},
            {},
            r"^heldout_dataset='rows\.jsonl' applies to a dataset, but this run has none",
        ),
        (
            {"demonstration_column": "solution"},
            {"problems": ([Problem("1+1=", "2")] * 8, [Problem("1+2=", "3")])},
            r"^demonstration_column='solution' applies to a dataset",
        ),
        (
            {"keep_period": 3, "checkpoint_every": 2},
            {},
            r"^keep_period=3 keeps checkpoints that are not saved: it must be a multiple of checkpoint_every=2\.$",
        ),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_settings_without_effect_are_refused(tmp_path, settings, parts, message):
    with pytest.raises(InputError, match=message):
        rljax.train(CONFIG.replace(run=str(tmp_path / "refused"), **settings), even_length, **parts)
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("setting", [{"schedule": "linear"}, {"length_weights": (1.0,) * 5}])
def test_settings_of_rl_are_refused_in_fine_tuning(tmp_path, setting):
    data = tmp_path / "rows.jsonl"
    data.write_text(
        "".join(json.dumps({"prompt": f"{n}+1=", "answer": str(n), "demonstration": str(n + 1)}) + "\n" for n in range(20))
    )
    config = CONFIG.replace(reward="none", steps=0, warm_start_steps=2, heldout_problems=2, dataset=str(data))
    config = config.replace(run=str(tmp_path / "run"))
    with pytest.raises(InputError, match=rf"^{next(iter(setting))}=.* applies to RL, but this run has none"):
        rljax.sft(config.replace(**setting))
    assert rljax.sft(config).run == tmp_path / "run"


@pytest.mark.parametrize(("settings", "fits"), [({"lora_rank": 2, "lora_alpha": 4.0}, True), ({"lora_rank": 4}, False)])
def test_an_adapter_to_continue_from_determines_rank_and_scale(tmp_path, settings, fits):
    stored = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "base", "target_modules": ["q_proj"]}
    (tmp_path / ADAPTER_CONFIG).write_text(json.dumps(stored))
    config = CONFIG.replace(lora_start=str(tmp_path), **settings)
    refusal = pytest.raises(InputError, match=r"^lora_rank=4 and lora_alpha=32 are not those .*; set lora_rank=2 and")
    with contextlib.nullcontext() if fits else refusal:
        refuse_unused_settings(config, CustomParts(reward=even_length))


def test_policy_has_only_the_documented_fields():
    """The first five fields have no default. The others are optional, and described on the page about custom parts."""
    assert Policy._fields[:5] == ("vocab_size", "init", "score", "partition", "save")
    assert set(Policy._field_defaults) == {
        "decoder",
        "value_function",
        "contents",
        "shapes",
        "features",
        "copies",
        "quantized",
        "supervised_score",
    }
    assert set(Policy._fields[5:]) == set(Policy._field_defaults)
    assert all(value is None for value in Policy._field_defaults.values())
    assert Decoder._fields == ("begin", "advance", "insert", "weights", "grow", "turns", "partition", "paged")
    assert GRU.partition is on_every_device
    assert BY_NAME["grpo"]().critic is None
