"""Exported folders: transformers opens them, a mesh and two hosts write them, and they can be pushed to the hub."""

import json
import os
import sys
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from run_states import first_state, run_without_training
from safetensors.numpy import load_file, save_file
from small_cli import printed, refused
from small_runs import SMALL
from two_hosts import run_on_two_hosts

import rljax
from rljax.data.tokenizer import CharacterTokenizer
from rljax.models import transformer_policy
from rljax.models.huggingface import load_params, read_config, save_pretrained
from rljax.models.model_folder import read_json
from rljax.parallel import make_mesh
from rljax.programs.trained_policy import load
from rljax.training.config import TrainConfig
from rljax.training.parts.model_folder import Companions, companions, generation_config, save_model

TINY = SMALL.replace(train_problems=24, heldout_problems=6, top_p=0.9)
CHAT = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "run"
    _, state = run_without_training(path, TINY.replace(replicas=1, fsdp=2))
    return path, jax.device_get(state.params)


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    path, params = run
    before = os.umask(0o022)
    try:
        folder = rljax.export(path, tmp_path_factory.mktemp("exported") / "deep" / "model")
    finally:
        os.umask(before)
    return folder, params


def test_folder_contains_the_files_that_transformers_reads(exported):
    folder, _ = exported
    files = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(file.name for file in folder.iterdir()) == files
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o644}
    assert [file.name for file in folder.parent.iterdir()] == ["model"]
    config = transformers.GenerationConfig.from_pretrained(folder)
    assert (config.eos_token_id, config.pad_token_id, config.do_sample) == (1, 0, True)
    assert (config.temperature, config.top_p, config.top_k, config.max_new_tokens) == (1.0, 0.9, 0, 12)
    assert read_json(folder / "config.json")["pad_token_id"] == 0


def test_rljax_opens_the_folder_without_a_tokenizer_name(exported, capsys):
    folder, params = exported
    opened = load(folder, problems=[rljax.data.problem.Problem("1+1=", "2")])
    assert isinstance(opened.tokenizer, CharacterTokenizer)
    jax.tree.map(np.testing.assert_array_equal, opened.params, params)
    text = printed(capsys, "sample", str(folder), "--prompt", "3+4=", "--max-response-tokens", "3")
    assert text.startswith("3+4=")
    empty_prompt = (
        "sample",
        str(folder),
        "--prompt",
        "",
        "--temperature",
        "1",
        "--top-p",
        "0.9",
    )  # --top-p as in the folder's generation_config.json
    refused(capsys, "the prompt '' has no token, but a response must follow one", *empty_prompt)
    ids = CharacterTokenizer().encode("3+4=")
    assert printed(capsys, "sample", str(folder), "--prompt-ids", *map(str, ids), "--max-response-tokens", "3") == text


def test_transformers_generates_the_same_text(exported):
    torch = pytest.importorskip("torch", reason="parity with transformers needs PyTorch: pip install torch")
    folder, _ = exported
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer("12+34=", return_tensors="pt", return_token_type_ids=False)
    opened = load(folder, problems=[rljax.data.problem.Problem("12+34=", "")], max_response_tokens=8)
    assert prompt["input_ids"][0].tolist() == opened.tokenizer.encode("12+34=")
    with torch.no_grad():
        greedy = model.generate(**prompt, do_sample=False, temperature=None, top_p=None, top_k=None, max_new_tokens=8)
    ours = opened.sample(["12+34="])[0][0]
    assert tokenizer.decode(greedy[0], skip_special_tokens=True) == f"12+34={ours}"


def save_checkpoint_folder(path):
    """Save a bfloat16 checkpoint with its own tokenizer, chat template and sampling defaults."""
    policy = transformer_policy(read_shape(), bos=None, eos=1)
    save_pretrained(path, read_shape(), policy.init(jax.random.key(0)), bos=None, eos=1)
    weights = load_file(path / "model.safetensors")
    save_file({name: array.astype(jnp.bfloat16) for name, array in weights.items()}, path / "model.safetensors")
    raw = read_json(path / "config.json") | {"dtype": "bfloat16", "max_position_embeddings": 64, "eos_token_id": [1, 7]}
    (path / "config.json").write_text(json.dumps(raw))
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 7], "temperature": 0.6, "do_sample": true}')
    rljax.data.tokenizer_files.save_tokenizer_files(CharacterTokenizer(), path)
    (path / "chat_template.jinja").write_text(CHAT)
    return path


def read_shape():
    from rljax.training.parts.policy import make_transformer_config

    return make_transformer_config(TINY.model, CharacterTokenizer().vocab_size)


def test_untrained_export_equals_its_source(tmp_path):
    source = save_checkpoint_folder(tmp_path / "source")
    run_without_training(tmp_path / "run", TINY.replace(model=str(source)), which=["best"])
    folder = rljax.export(tmp_path / "run", tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (folder / name).read_bytes() == (source / name).read_bytes()
    assert read_json(folder / "config.json") == read_json(source / "config.json") | {"pad_token_id": 0}
    assert read_json(folder / "generation_config.json") == {
        **{"eos_token_id": [1, 7], "temperature": 0.6, "do_sample": True},
        "pad_token_id": 0,
    }
    theirs, ours = (load_file(model_folder / "model.safetensors") for model_folder in (source, folder))
    assert {array.dtype for array in ours.values()} == {np.dtype(jnp.bfloat16)}
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_export_keeps_the_chat_template(tmp_path):
    inner = transformers.PreTrainedTokenizerFast(
        tokenizer_file=None, tokenizer_object=make_word_tokenizer(), eos_token="</s>"
    )
    inner.chat_template = CHAT
    inner.save_pretrained(tmp_path / "tokenizer")
    tokenizer = rljax.data.tokenizer.load_tokenizer(str(tmp_path / "tokenizer"))
    policy = transformer_policy(replace(read_shape(), vocab_size=4), bos=None, eos=0, mesh=make_mesh(1, 1))
    save_model(tmp_path / "model", policy, policy.init(jax.random.key(0)), Companions(tokenizer, None, None))
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert again.chat_template == CHAT
    assert again("a b")["input_ids"] == [1, 2]
    assert generation_config(Companions(tokenizer, None, None)) == {"eos_token_id": 0, "pad_token_id": 0}


def make_word_tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"</s>": 0, "a": 1, "b": 2, "c": 3}, unk_token="c"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend


def test_dtype_and_shard_size_can_be_chosen(run, tmp_path, capsys):
    path, params = run
    folder = tmp_path / "model"
    options = ["--dtype", "bfloat16", "--max-shard-size", "3KB"]
    assert printed(capsys, "export", f"{path}/checkpoints/last", str(folder), *options) == f"Model: {folder}\n"
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
    assert read_json(folder / "config.json")["dtype"] == "bfloat16"
    rounded = jax.tree.map(lambda array: array.astype(jnp.bfloat16).astype(np.float32), params)
    jax.tree.map(np.testing.assert_array_equal, load_params(folder, read_config(folder)), rounded)


def test_pretrained_critic_is_saved_with_a_tokenizer(tmp_path):
    config = TINY.replace(algorithm="ppo", algorithm_options={})
    setup, state = first_state(config)
    critic = setup.critic.function
    params = critic.init(jax.random.key(0), state.params)
    save_model(tmp_path / "critic", critic, params, companions(setup.config, setup.tokenizer))
    folder = tmp_path / "critic"
    assert sorted(file.name for file in folder.iterdir()) == [
        *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    ]
    assert transformers.AutoTokenizer.from_pretrained(folder)("1+1=")["input_ids"] == CharacterTokenizer().encode("1+1=")
    assert transformers.AutoConfig.from_pretrained(folder).pad_token_id == 0


def test_model_without_a_tokenizer_samples_ids(exported, tmp_path, capsys):
    folder, _ = exported
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((folder / name).read_bytes())
    command = ["sample", str(bare), "--max-response-tokens", "3"]
    assert rljax.cli.main([*command, "--prompt-ids", "5", "6"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines] == [["5", "6"]]
    assert all(word.isdecimal() for word in out.split())
    assert "has no tokenizer, so ids are printed; name one with --tokenizer." in err
    assert rljax.cli.main([*command, "--prompt-ids", "5", "6", "--count", "2", "--temperature", "1"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["5", "6"]] * 2
    known = rljax.load(folder, problems=[rljax.data.problem.Problem("", "")], max_response_tokens=3)
    assert known.sample_ids([[5, 6]]) == [[[int(word) for word in lines[0].split()[2:]]]]
    assert printed(capsys, *command, "--tokenizer", "ids", "--prompt", "5 6 ").split()[:2] == ["5", "6"]
    refused(capsys, "contains no tokenizer .* copy the model's tokenizer files into it", *command, "--prompt", "5 6")
    refused(capsys, "there is no prompt; give --prompt TEXT, or --prompt-ids 1 2 3", *command)
    refused(
        capsys, "--chat formats the texts of --prompt, but --prompt-ids are used", *command, "--prompt-ids", "1", "--chat"
    )
    refused(
        capsys, r"the token id 99 is not in the model's vocabulary; its ids are 0 to \d+", *command, "--prompt-ids", "99"
    )
    raw = read_json(bare / "config.json")
    (bare / "config.json").write_text(json.dumps(raw | {"eos_token_id": None}))
    refused(capsys, "has eos_token_id=None, so a response could never end", *command, "--prompt-ids", "5")
    refused(capsys, "'ids' is for a model without a tokenizer", "train", "--tokenizer", "ids", "--quiet")


class FakeHub:
    """A fake hub that records its calls and the pushed files."""

    def __init__(self, fails=""):
        self.calls, self.files, self.fails = [], [], fails

    def _call(self, name, **arguments):
        self.calls.append((name, arguments))
        if name == self.fails:
            raise ConnectionError("the hub is down")

    def whoami(self):
        self._call("whoami")

    def create_repo(self, repo_id, *, private, exist_ok):
        self._call("create_repo", repo_id=repo_id, private=private, exist_ok=exist_ok)

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        self._call("upload_folder", repo_id=repo_id, commit_message=commit_message)
        self.files = sorted(file.name for file in folder_path.iterdir())


def test_complete_folder_is_pushed(run, tmp_path):
    hub = FakeHub()
    folder = rljax.export(run[0], tmp_path / "model", push="me/model", private=True, client=hub)
    assert [name for name, _ in hub.calls] == ["whoami", "create_repo", "upload_folder"]
    assert hub.calls[1][1] == {"repo_id": "me/model", "private": True, "exist_ok": True}
    assert hub.files == sorted(file.name for file in folder.iterdir())


def test_invalid_push_is_refused_before_reading(run, tmp_path, monkeypatch, capsys):
    command = ["export", str(run[0]), str(tmp_path / "model")]
    refused(capsys, "repository 'model' must be OWNER/NAME", *command, "--push", "model")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    refused(
        capsys, "no token for the Hugging Face hub, .* run `hf auth login`, or set HF_TOKEN", *command, "--push", "me/m"
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused(capsys, "needs the package huggingface-hub; run `pip install huggingface-hub`", *command, "--push", "me/m")
    with pytest.raises(rljax.InputError, match=r"does not accept the token .*the hub is down"):
        rljax.export(run[0], tmp_path / "model", push="me/m", client=FakeHub(fails="whoami"))
    assert not list(tmp_path.iterdir())
    with pytest.raises(rljax.InputError, match=r"could not be pushed to 'me/m' .*`hf upload me/m .*model`"):
        rljax.export(run[0], tmp_path / "model", push="me/m", client=FakeHub(fails="upload_folder"))
    assert (tmp_path / "model" / "config.json").is_file()


def test_failed_export_leaves_no_files(run, tmp_path, monkeypatch):
    def raise_disk_full(*arguments, **options):
        raise OSError("no space left on device")

    monkeypatch.setattr("rljax.training.parts.model_folder.write_companions", raise_disk_full)
    with pytest.raises(OSError, match="no space left"):
        rljax.export(run[0], tmp_path / "model")
    assert not list(tmp_path.iterdir())
    with pytest.raises(rljax.InputError, match="size 'big' must be a positive number"):
        rljax.export(run[0], tmp_path / "model", max_shard_size="big")


def test_two_hosts_write_the_same_folder_as_one(run, exported, tmp_path):
    """The model is sharded over both hosts; the first host writes it, tensor by tensor."""
    hosts = run_on_two_hosts(["-m", "rljax", "export", str(run[0]), str(tmp_path / "model"), "--max-shard-size", "3KB"])
    assert [host.returncode for host in hosts] == [0, 0], [host.stdout[-2000:] for host in hosts]
    assert [f"Model: {tmp_path / 'model'}" in host.stdout for host in hosts] == [True, False]
    written = sorted(file.name for file in (tmp_path / "model").iterdir())
    assert "model.safetensors.index.json" in written
    shape = read_config(exported[0])
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path / "model", shape), exported[1])
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "model" / name).read_bytes() == (exported[0] / name).read_bytes()


def test_generation_config_has_the_runs_sampling_settings():
    companions_of = partial(companions, tokenizer=CharacterTokenizer())
    raw = generation_config(companions_of(TrainConfig.flat(temperature=0.7, top_k=5)))
    assert (raw["temperature"], raw["top_k"], raw["top_p"]) == (0.7, 5, 1.0)
