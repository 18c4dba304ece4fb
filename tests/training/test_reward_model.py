"""A reward model learns an order, whatever the micro-batches and the mesh; its folder is a reward and a critic's start."""

import json
import math
import random
import signal
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import optax
import pytest
import tyro

import rljax
from rljax.cli.reward_model import RewardModel as Command
from rljax.cli.reward_model import run_reward_model
from rljax.data.preferences import Preference
from rljax.data.prompts import right_pad
from rljax.data.tokenizer import ByteTokenizer, CharacterTokenizer
from rljax.errors import InputError
from rljax.models import Model, TransformerConfig, init_params
from rljax.models.huggingface import save_pretrained
from rljax.models.language_model import hidden_states
from rljax.models.value_model import init_value_params, load_value_model, save_value_model, value_model
from rljax.parallel import make_mesh, put_rows
from rljax.preference.config import RewardModelConfig
from rljax.preference.pair_update import Pairs, RewardState, encode_pairs, judge_pairs, make_pair_step
from rljax.preference.reward_model import (
    NOTE,
    load_reward_model,
    make_score,
    reward_of_model,
    save_reward_model,
    score_sequences,
    sequence_tokens,
)
from rljax.rewards.failure import Failed
from rljax.rewards.protocol import judge
from rljax.training import reward_model as training
from rljax.training.config import TrainConfig
from rljax.training.interrupt import Interrupted
from rljax.training.reward_model import make_reward_setup, train_reward_model
from rljax.training.rollouts import micro_batches
from rljax.training.state import place
from rljax.training.update import Sequences

TOKENIZER = CharacterTokenizer()
SHAPE = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "hidden": 64}
CONFIG = RewardModelConfig(
    dataset="-",
    tokenizer="characters",
    **SHAPE,
    steps=60,
    batch=32,
    learning_rate=1e-2,
    eval_every=0,
    data=1,
    quiet=True,
)
SMALL = TransformerConfig(vocab_size=TOKENIZER.vocab_size, width=16, layers=1, heads=2, kv_heads=2, head_dim=8, hidden=32)
MODEL = value_model(Model(SMALL), 1)
ONE = make_mesh(1, 1)
SCORE = jax.jit(partial(score_sequences, MODEL))


def digit_pairs(count, seed):
    """Pairs of digit strings of which the longer one is preferred."""
    rng = random.Random(seed)

    def digits(length):
        return "".join(rng.choice("0123456789") for _ in range(length))

    lengths = [sorted(rng.sample(range(1, 9), 2)) for _ in range(count)]
    return [Preference(f"{rng.randrange(100)}=", digits(long), digits(short)) for short, long in lengths]


HELDOUT = digit_pairs(200, 1)


@pytest.fixture(scope="module")
def params():
    return init_value_params(MODEL, jax.random.key(0))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A reward model that prefers length."""
    folder = tmp_path_factory.mktemp("models") / "length"
    return train_reward_model(replace(CONFIG, output=str(folder)), preferences=(digit_pairs(512, 0), HELDOUT))


def texts(pairs):
    """Prompts and responses of pairs, preferred ones first."""
    return [pair.prompt for pair in pairs] * 2, [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]


def test_it_learns_which_response_is_preferred(trained):
    assert 0.3 < trained.accuracy_before < 0.7
    assert trained.accuracy_after > 0.9
    rows = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["phase"] for row in rows] == ["eval", *["reward_model"] * 60, "eval"]
    assert rows[-1]["accuracy"] == trained.accuracy_after
    assert rows[1]["loss"] == pytest.approx(math.log(2), abs=0.1)
    assert rows[-1]["loss"] < 0.3
    assert (
        json.loads((trained.folder / "settings.json").read_text()) == replace(CONFIG, output=str(trained.folder)).to_json()
    )


# The score


def test_the_score_is_the_head_at_the_last_token_wherever_padding_stands(params):
    tokens = np.array([3, 5, 7, 4, TOKENIZER.eos_token_id], np.int32)
    hidden = jax.jit(partial(hidden_states, MODEL.trunk))(params["trunk"], tokens[None], np.ones((1, 5), bool))
    expected = float(np.asarray(hidden)[0, -1] @ np.asarray(params["head"])[0])
    rows, valid = np.full((3, 8), 9, np.int32), np.zeros((3, 8), bool)
    for row, begin in enumerate((0, 2, 3)):
        rows[row, begin : begin + 5], valid[row, begin : begin + 5] = tokens, True
    scores = SCORE(params, Sequences(rows, valid))
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    without_end = SCORE(params, Sequences(rows, valid & (rows != TOKENIZER.eos_token_id)))
    assert np.abs(np.asarray(without_end) - expected).min() > 1e-4


def test_a_sequence_ends_with_the_end_token():
    assert sequence_tokens("1+1=", "2", TOKENIZER, chat=False) == [*TOKENIZER.encode("1+1=2"), TOKENIZER.eos_token_id]
    opened = sequence_tokens("1+1=", "2", ByteTokenizer(), chat=False)
    assert (opened[0], opened[-1], len(opened)) == (ByteTokenizer.bos_token_id, ByteTokenizer.eos_token_id, 7)
    with pytest.raises(InputError, match="has no chat template"):
        sequence_tokens("1+1=", "2", TOKENIZER, chat=True)


@pytest.mark.parametrize(("mesh", "rows"), [((1, 1), 1), ((1, 1), 5), ((2, 4), 3)])
def test_scores_depend_neither_on_the_batch_nor_on_padding_nor_on_the_mesh(params, mesh, rows):
    given = [sequence_tokens("7=", "1" * n, TOKENIZER, chat=False) for n in (30, 1, 12, 13, 2, 3, 9)]
    one_by_one = [float(SCORE(params, Sequences(*right_pad([row], 64, 0)))[0]) for row in given]
    mesh = make_mesh(*mesh)
    found = make_score(MODEL, mesh, rows=rows)(params, given)
    np.testing.assert_allclose(found, one_by_one, atol=1e-5)
    assert make_score(MODEL, mesh, rows=rows)(params, []).shape == (0,)


# The update


def updated(params, *, microbatch, mesh, steps=3):
    """Parameters and metrics after updates on the same 16 pairs."""
    pairs = [replace(pair, margin=0.25 * (n % 3)) for n, pair in enumerate(digit_pairs(16, 2))]
    pairs = encode_pairs(pairs, TOKENIZER, max_tokens=16).padded(TOKENIZER.pad_token_id)
    optimizer = optax.adamw(1e-2)
    copied = jax.tree.map(np.asarray, params)
    state = place(RewardState(copied, optimizer.init(copied)), mesh)
    step = make_pair_step(MODEL, optimizer, state, mesh)
    (part,) = micro_batches(pairs, 1, microbatch)
    history = []
    for _ in range(steps):
        state, metrics = step(state, put_rows(mesh, part, leading=1))
        history.append(jax.device_get(metrics))
    return jax.device_get(state.params), history


@pytest.fixture(scope="module")
def single(params):
    return updated(params, microbatch=16, mesh=ONE)


@pytest.mark.parametrize(("axes", "rows"), [((1, 1), 4), ((8, 1), 16), ((2, 4), 8)])
def test_micro_batches_and_devices_change_nothing(params, single, axes, rows):
    ours = updated(params, microbatch=rows, mesh=make_mesh(*axes))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), ours[0], single[0])
    for mine, other in zip(ours[1], single[1], strict=True):
        for name, value in mine.items():
            np.testing.assert_allclose(value, other[name], atol=2e-5, err_msg=name)


def test_the_metrics_are_those_of_the_scores(params, single):
    pairs = digit_pairs(16, 2)
    score = make_score(MODEL, ONE)
    encoded = encode_pairs(pairs, TOKENIZER, max_tokens=16)
    chosen, rejected = score(params, encoded.chosen), score(params, encoded.rejected)
    losses = [
        math.log(1 + math.exp(-(c - r - 0.25 * (n % 3)))) for n, (c, r) in enumerate(zip(chosen, rejected, strict=True))
    ]
    first, *_, last = single[1]
    np.testing.assert_allclose(first["loss"], np.mean(losses), rtol=1e-5)
    np.testing.assert_allclose(first["accuracy"], np.mean(chosen > rejected), rtol=1e-6)
    np.testing.assert_allclose(first["lead"], np.mean(chosen - rejected), atol=1e-6)
    np.testing.assert_allclose(first["score"], np.mean([chosen, rejected]), atol=1e-6)
    assert first["grad_norm"] > 0
    assert last["loss"] < first["loss"]
    judged = judge_pairs(score, params, encoded)
    np.testing.assert_allclose(judged["lead"], first["lead"], atol=1e-6)
    np.testing.assert_allclose(judged["score_deviation"], np.std([chosen, rejected]), atol=1e-6)
    without_margin = np.log1p(np.exp(rejected.astype(float) - chosen)).mean()
    np.testing.assert_allclose(judged["loss"], without_margin, rtol=1e-5)
    tied = encoded._replace(rejected=encoded.chosen)
    assert judge_pairs(score, params, tied)["accuracy"] == 0.0


def test_pairs_are_padded_to_the_longest_side():
    encoded = encode_pairs([Preference("1=", "22", "3"), Preference("1=", "2" * 9, "3")], TOKENIZER, max_tokens=6)
    assert encoded.dropped == 1
    pairs = encoded.padded(pad_id=7)
    assert isinstance(pairs, Pairs)
    assert pairs.tokens.shape == (1, 2, 5)
    assert pairs.valid.tolist() == [[[True] * 5, [True] * 4 + [False]]]
    assert pairs.tokens[0, 1, 4] == 7


# The folder


def test_the_folder_gives_the_same_scores_back(trained):
    raw = json.loads((trained.folder / "config.json").read_text())
    assert (raw["architectures"], raw["num_labels"]) == (["LlamaForSequenceClassification"], 1)
    again = load_reward_model(trained.folder)
    assert (again.chat, again.tokenizer.alphabet) == (False, TOKENIZER.alphabet)
    encoded = encode_pairs(HELDOUT, TOKENIZER, max_tokens=32)
    score = make_score(again.model, ONE)
    there, here = judge_pairs(score, again.params, encoded), judge_pairs(score, trained.params, encoded)
    assert there == here
    assert there["accuracy"] == trained.accuracy_after


def test_half_precision_scores_are_near_and_float32(trained):
    prompts, completions = texts(HELDOUT[:16])
    exact = reward_of_model(trained.folder, ONE)(prompts=prompts, completions=completions)
    coarse = reward_of_model(trained.folder, ONE, dtype="bfloat16")(prompts=prompts, completions=completions)
    np.testing.assert_allclose(coarse, exact, atol=0.05 * np.abs(exact).max())
    assert coarse != exact


def test_a_tokenizer_of_a_model_is_saved_beside_it(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    from rljax.data.tokenizer import HuggingFaceTokenizer
    from rljax.preference.reward_model import RewardModel

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"</s>": 0, "a": 1, "b": 2}, unk_token="b"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")
    shape = replace(SMALL, vocab_size=3)
    model = value_model(Model(shape), 1)
    params = init_value_params(model, jax.random.key(0))
    save_reward_model(tmp_path, RewardModel(model, params, HuggingFaceTokenizer(inner, "words"), chat=True))
    again = load_reward_model(tmp_path)
    assert again.chat
    assert again.tokenizer.encode("a b") == [1, 2]
    answers = reward_of_model(tmp_path, ONE)(prompts=["b"], completions=["a a"])
    assert "has no chat template" in answers[0].reason
    spoken = load_reward_model(tmp_path, chat=False)
    assert spoken.chat, "the folder knows, whatever is said here"


class Chatty(CharacterTokenizer):
    """A tokenizer whose template writes each message and a plus."""

    def apply_chat_template(self, messages):
        return [token for message in messages for token in self.encode(message["content"] + "+")]


def test_chats_are_scored_through_the_template(tmp_path, params):
    save_value_model(tmp_path, MODEL, params, bos=None, eos=1)
    chat = ({"role": "system", "content": "1"}, {"role": "user", "content": "2"})
    ask = {"prompts": ["1\n2", "3"], "completions": ["4", "5"]}
    found = reward_of_model(tmp_path, ONE, tokenizer=Chatty(), chat=True, chats={"1\n2": chat})(**ask)
    given = [[*TOKENIZER.encode(text), 1] for text in ("1+2+4", "3+5")]
    np.testing.assert_allclose(found, make_score(MODEL, ONE)(params, given), atol=1e-6)
    pair = Preference("1\n2", "4", "5", chat)
    assert encode_pairs([pair], Chatty(), max_tokens=9, chat=True).chosen == given[:1]


def test_a_folder_from_elsewhere_names_no_tokenizer(tmp_path, params):
    save_value_model(tmp_path, MODEL, params, bos=None, eos=1)
    with pytest.raises(InputError, match="holds no tokenizer"):
        load_reward_model(tmp_path)
    assert load_reward_model(tmp_path, tokenizer=TOKENIZER, chat=True).chat
    with pytest.raises(InputError, match=r"has a vocabulary of \d+ tokens and the tokenizer 259"):
        load_reward_model(tmp_path, tokenizer=ByteTokenizer())


def test_a_tokenizer_of_another_vocabulary_is_refused(trained):
    with pytest.raises(InputError, match=r"trained on a vocabulary of \d+ tokens and the tokenizer has 4; .*'characters:"):
        reward_of_model(trained.folder, ONE, tokenizer=CharacterTokenizer("01"))
    with pytest.raises(InputError, match=r"vocabulary of \d+ tokens and the tokenizer has 259"):
        reward_of_model(trained.folder, ONE, tokenizer=ByteTokenizer())


def test_folders_that_are_no_reward_model(tmp_path):
    several = value_model(Model(SMALL), 3)
    save_value_model(tmp_path / "critic", several, init_value_params(several, jax.random.key(0)), bos=None, eos=1)
    with pytest.raises(InputError, match="gives 3 numbers a token and a reward model gives 1"):
        load_reward_model(tmp_path / "critic")
    reader = value_model(Model(SMALL), 1, surprisal=True)
    save_value_model(tmp_path / "reader", reader, init_value_params(reader, jax.random.key(0)), bos=None, eos=1)
    with pytest.raises(InputError, match="reads the policy's log-probabilities and a reward model reads text alone"):
        load_reward_model(tmp_path / "reader")
    with pytest.raises(ValueError, match="must read text alone"):
        score_sequences(*load_value_model(tmp_path / "reader"), Sequences(np.ones((1, 4), int), np.ones((1, 4), bool)))
    policy = init_params(SMALL, jax.random.key(0))
    save_pretrained(tmp_path / "policy", SMALL, policy, bos=None, eos=1)
    with pytest.raises(InputError, match=r"has no 'score\.weight'"):
        load_reward_model(tmp_path / "policy")
    with pytest.raises(InputError, match="does not exist"):
        load_reward_model("./nowhere")
    (tmp_path / "critic" / NOTE).write_text('{"tokenizer": "bytes"}')
    with pytest.raises(InputError, match=r"rljax_reward\.json cannot be read .*train the reward model again"):
        training.folder_tokenizer(tmp_path / "critic")

    class Foreign(CharacterTokenizer.__base__):
        pad_token_id, eos_token_id, bos_token_id, vocab_size = 0, 1, None, 2

    from rljax.preference.reward_model import RewardModel

    with pytest.raises(InputError, match="a Foreign cannot be named in a reward model's folder"):
        save_reward_model(tmp_path / "none", RewardModel(MODEL, {}, Foreign(), chat=False))
    assert not (tmp_path / "none").exists()


# As a reward and as a critic


@pytest.mark.parametrize("rows", [3, 32])
def test_the_reward_is_the_score(trained, rows):
    reward = reward_of_model(trained.folder, ONE, rows=rows)
    prompts, completions = texts(HELDOUT[:20])
    prompts, completions = [*prompts, "7="], [*completions, "1" * 40]
    given = [sequence_tokens(*pair, TOKENIZER, chat=False) for pair in zip(prompts, completions, strict=True)]
    direct = make_score(load_value_model(trained.folder)[0], ONE, rows=8)(trained.params, given)
    np.testing.assert_allclose(reward(prompts=prompts, completions=completions), direct, atol=1e-5)
    assert reward(prompts=[], completions=[]) == []
    scores = judge(reward, prompts, completions, {"answer": [""] * len(prompts)})
    np.testing.assert_allclose(scores.total, direct, atol=1e-5)
    assert list(scores.parts) == ["reward_model"]
    assert (scores.total[:20] > scores.total[20:40]).mean() > 0.85


def test_a_completion_that_cannot_be_written_has_failed(trained):
    answers = reward_of_model(trained.folder, ONE)(prompts=["7=", "7=", "7="], completions=["1", "é", "111"])
    assert isinstance(answers[1], Failed)
    assert "'é'" in answers[1].reason
    alone = reward_of_model(trained.folder, ONE)(prompts=["7=", "7="], completions=["1", "111"])
    np.testing.assert_allclose([answers[0], answers[2]], alone, atol=1e-6)
    scores = judge(reward_of_model(trained.folder, ONE), ["7="] * 12, ["1"] * 11 + ["é"], {})
    assert scores.valid.tolist() == [True] * 11 + [False]


TINY = TrainConfig(
    name="tiny",
    algorithm="ppo",
    **SHAPE,
    operands=(2, 2),
    train_problems=40,
    heldout_problems=6,
    max_prompt_tokens=6,
    max_response_tokens=12,
    warm_start_steps=0,
    steps=1,
    prompts=4,
    group_size=4,
    microbatch_rows=4,
    eval_every=0,
    sample_every=0,
    value_pretraining_steps=0,
    data=1,
    quiet=True,
)


def test_a_policy_learns_from_it_with_a_critic_that_starts_from_it(trained, tmp_path):
    reward = reward_of_model(trained.folder, ONE)
    config = replace(TINY, critic=str(trained.folder), critic_learning_rate=1e-30, run=str(tmp_path / "run"))
    rljax.train(config, reward)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["phase"] == "rl"]
    assert math.isfinite(row["reward"])
    assert math.isfinite(row["value_loss"])
    assert abs(row["value"]) > 0.1, "the critic speaks in the reward model's scores, not in a fresh head's"


# Settings


def test_the_command_reads_a_file_and_goes_on_from_a_folder(tmp_path, capsys):
    pairs = [{"prompt": p.prompt, "chosen": p.chosen, "rejected": p.rejected} for p in digit_pairs(60, 3)]
    pairs += [{"prompt": "1=", "chosen": "1" * 40, "rejected": "1"}, {"prompt": "1=", "chosen": "1", "rejected": "1"}]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    common = [
        "--batch",
        "8",
        "--max-tokens",
        "16",
        "--data",
        "1",
        "--on-error",
        "drop",
        "--eval-every",
        "1",
        "--steps",
        "2",
    ]
    shape = [word for name, value in SHAPE.items() for word in (f"--{name.replace('_', '-')}", str(value))]

    def run(*words):
        return run_reward_model(tyro.cli(Command, args=[str(file), *common, *words]))

    assert run(*shape, "--tokenizer", "characters", "--output", str(tmp_path / "first")) == 0
    said = capsys.readouterr().out
    assert "1 bad row left out" in said
    assert "both responses are the same" in said
    assert "1 pairs have a side of more than 16 tokens" in said
    assert "2 updates of 8 pairs, 8 at a time on 1 device" in said
    assert said.count("held-out pairs in the right order") == 3
    assert f"--reward model:{tmp_path / 'first'}" in said
    assert run("--model", str(tmp_path / "first"), "--output", str(tmp_path / "second")) == 0
    rows = [
        json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[place])
        for name, place in (("first", -1), ("second", 0))
    ]
    assert rows[0] | {"step": 0} == pytest.approx(rows[1] | {"step": 0})
    with pytest.raises(InputError, match=r"already holds config\.json, .*choose another folder with --output"):
        run("--model", str(tmp_path / "first"), "--output", str(tmp_path / "second"))


def test_it_starts_from_a_language_model_with_a_fresh_head(tmp_path):
    policy = init_params(SMALL, jax.random.key(3))
    save_pretrained(tmp_path / "policy", SMALL, policy, bos=None, eos=1)
    config = replace(CONFIG, model=str(tmp_path / "policy"), microbatch_pairs=8)
    setup, state = make_reward_setup(config, (digit_pairs(40, 0), HELDOUT[:4]))
    np.testing.assert_array_equal(state.params["trunk"]["embedding"], policy["embedding"])
    assert state.params["head"].shape == (1, 16)
    assert (setup.microbatch, setup.steps) == (8, 60)
    assert make_reward_setup(replace(config, steps=None, epochs=3), (digit_pairs(40, 0), HELDOUT[:4]))[0].steps == 4
    with pytest.raises(InputError, match="The tokenizer has 259 tokens and the model"):
        make_reward_setup(replace(config, tokenizer="bytes"), (digit_pairs(40, 0), HELDOUT[:4]))


def test_a_training_is_the_same_on_eight_devices():
    data = digit_pairs(40, 0), HELDOUT[:4]
    histories = []
    for mesh in ({"data": 1}, {"data": 2, "fsdp": 4, "microbatch_pairs": 8}):
        setup, state = make_reward_setup(replace(CONFIG, **mesh, steps=2), data)
        params, seen = None, []
        for after, numbers in training.updates(setup, state):
            params = after.params
            seen.append({name: value for name, value in numbers.items() if name != "seconds"})
        judged = judge_pairs(make_score(setup.model, setup.mesh), params, setup.heldout)
        histories.append([*seen, judged])
    for one, eight in zip(*histories, strict=True):
        assert one == pytest.approx(eight, abs=2e-4)
    assert histories[0][0]["learning_rate"] == pytest.approx(1e-2 / 11)


def test_ctrl_c_keeps_the_model(tmp_path, monkeypatch, capsys):
    rows = []

    def write(folder, phase, step, numbers):
        rows.append((phase, step))
        if rows[-1] == ("reward_model", 2):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(training, "write_row", write)
    with pytest.raises(Interrupted):
        train_reward_model(replace(CONFIG, output=str(tmp_path / "rm")), preferences=(digit_pairs(32, 0), HELDOUT[:8]))
    assert rows == [("eval", 0), ("reward_model", 1), ("reward_model", 2)]
    assert load_reward_model(tmp_path / "rm").tokenizer.vocab_size == TOKENIZER.vocab_size
    assert f"go on from it with --model {tmp_path / 'rm'}" in capsys.readouterr().out


def test_held_out_pairs_of_their_own_share_no_prompt(tmp_path):
    def write(name, prompts):
        rows = [{"prompt": prompt, "chosen": "2", "rejected": "3"} for prompt in prompts]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    config = replace(CONFIG, dataset=write("a.jsonl", ["1=", "2=", "3="]), heldout_dataset=write("b.jsonl", ["2=", "4="]))
    train, heldout, warnings = training.make_pairs(config)
    assert [pair.prompt for pair in train] == ["1=", "3="]
    assert [pair.prompt for pair in heldout] == ["2=", "4="]
    assert warnings == []
    with pytest.raises(InputError, match="nothing is left to train on"):
        training.make_pairs(replace(config, dataset=config.heldout_dataset))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch": 0}, "batch is 0; it must be at least 1"),
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be positive"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0; it must not be negative"),
        ({"learning_rate": math.nan}, "learning_rate is nan; it must be positive"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"microbatch_pairs": 5}, "microbatch_pairs=5 does not divide batch=32"),
        ({"width": 33}, "width=33 over heads=2"),
    ],
)
def test_settings_that_cannot_work(changes, said):
    with pytest.raises(InputError, match=said):
        replace(CONFIG, **changes)


def test_data_and_meshes_that_cannot_work(tmp_path):
    pairs = digit_pairs(4, 0)
    with pytest.raises(InputError, match=r"every pair has a side of more than max_tokens=2 tokens, the shortest needs \d"):
        make_reward_setup(replace(CONFIG, max_tokens=2), (pairs, pairs))
    with pytest.raises(InputError, match="there are no pairs; give at least one"):
        make_reward_setup(CONFIG, ([], pairs))
    with pytest.raises(InputError, match="batch is 12 rows, which 8 devices cannot share"):
        make_reward_setup(replace(CONFIG, data=8, batch=12), (pairs, pairs))
    with pytest.raises(InputError, match="microbatch_pairs is 4 rows, which 8 devices cannot share"):
        make_reward_setup(replace(CONFIG, data=8, microbatch_pairs=4), (pairs, pairs))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        training.make_folder(replace(CONFIG, output=str(tmp_path / "file" / "in")))


def test_micro_batches_fit_the_devices_and_the_memory():
    assert training.microbatch_of(replace(CONFIG, batch=64), 1, 16) == 64
    assert training.microbatch_of(replace(CONFIG, batch=64), 1, 1024) == 8
    assert training.microbatch_of(replace(CONFIG, batch=48), 8, 1024) == 8
    assert training.microbatch_of(replace(CONFIG, batch=48), 8, 100_000) == 8
    assert training.microbatch_of(replace(CONFIG, microbatch_pairs=2), 1, 16) == 2
