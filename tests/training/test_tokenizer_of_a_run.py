"""A run reports the settings of its model folder that it ignores; checks every entry of `GenerationConfig`."""

import json

import jax
import pytest
from bigram import BIGRAM
from small_runs import SMALL
from transformers import GenerationConfig

from rljax.data.tokenizer import CharacterTokenizer
from rljax.data.tokenizer_files import save_tokenizer_files
from rljax.errors import InputError
from rljax.models.folder_notes import GENERATION_WITHOUT_NOTE
from rljax.models.huggingface import save_pretrained
from rljax.models.language_model import init_params
from rljax.settings.shared_groups import SIZES, NetworkConfig
from rljax.training.config import ModelConfig, TrainConfig
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.parts.policy import make_transformer_config
from rljax.training.parts.tokenizer import make_tokenizer, unused_folder_settings
from rljax.training.setup import make_setup


@pytest.fixture
def folder(tmp_path):
    shape = make_transformer_config(SMALL.model, CharacterTokenizer().vocab_size)
    save_pretrained(tmp_path, shape, init_params(shape, jax.random.key(0)), bos=None, eos=1)
    save_tokenizer_files(CharacterTokenizer(), tmp_path)
    return tmp_path


def ignored_settings(folder, **settings):
    config = TrainConfig.flat(model=str(folder), max_prompt_tokens=8, max_response_tokens=8, **settings)
    return unused_folder_settings(config, make_tokenizer(config))


def test_every_entry_of_generation_config_is_used_or_reported(folder):
    names = set(GenerationConfig().to_dict())
    assert len(names) > 50
    assert names >= GENERATION_WITHOUT_NOTE - {"trust_remote_code"}
    for name in names:
        (folder / "generation_config.json").write_text(json.dumps({name: 7}))
        text = " ".join(ignored_settings(folder))
        assert (f"{name}=7" in text) == (name not in GENERATION_WITHOUT_NOTE), name
        (folder / "generation_config.json").write_text(json.dumps({name: None}))
        assert ignored_settings(folder) == []


def test_followed_settings_are_not_reported(folder):
    (folder / "generation_config.json").write_text(
        json.dumps({"temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.0})
    )
    assert "temperature=0.7, top_p=0.8; tokens are sampled without" in ignored_settings(folder)[0]
    assert ignored_settings(folder, temperature=0.7, top_p=0.8) == []


@pytest.mark.parametrize(("entry", "settings"), [({"temperature": 0.0}, {}), ({"top_k": 0}, {"top_k": 5})])
def test_a_sampling_setting_of_zero_is_reported(folder, entry, settings):
    (folder / "generation_config.json").write_text(json.dumps(entry))
    assert f"{next(iter(entry))}={next(iter(entry.values()))!r}" in ignored_settings(folder, **settings)[0]


def test_sizes_without_effect_are_reported(folder):
    """The sizes of `SMALL` differ from the defaults. They are used only without a model and without a policy."""

    def notes(config, **parts):
        setup = make_setup(
            config.replace(task="sums", max_prompt_tokens=12, train_problems=8, heldout_problems=2), CustomParts(**parts)
        )
        return [note for note in setup.omissions if "sizes" in note]

    expected = "layers=1, width=16, heads=2, kv_heads=1, hidden=32: no effect, because the {} has its own sizes"
    assert notes(SMALL.replace(model=str(folder))) == [expected.format("model's folder")]
    assert notes(SMALL, policy=BIGRAM) == [expected.format("policy that was passed")]
    assert notes(SMALL) == []
    unchanged = {name: getattr(NetworkConfig, name) for name in SIZES}
    assert notes(SMALL.replace(model=str(folder), **unchanged)) == []


def test_run_longer_than_the_model_positions_is_reported(folder):
    raw = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 15}
    (folder / "config.json").write_text(json.dumps(raw))
    (text,) = ignored_settings(folder)
    assert "= 16 is more than the 15 positions of the model" in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chat_date": "2026-01-31"}, "chat_date is '2026-01-31', but chat is off; add --chat"),
        ({"prefill": "It"}, "prefill is 'It', but chat is off"),
        ({"chat": True, "chat_template_kwargs": "x"}, "chat_template_kwargs is 'x'; a JSON object"),
        ({"chat": True, "chat_template_kwargs": "[1]"}, r"chat_template_kwargs is '\[1\]'; a JSON object"),
        ({"chat": True, "chat_date": "today"}, "chat_date is 'today'; a date such as"),
    ],
)
def test_invalid_chat_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        ModelConfig(**settings)


def test_special_tokens_cannot_be_kept_if_there_are_none(folder):
    with pytest.raises(InputError, match="keep_special_tokens: a CharacterTokenizer has no special tokens"):
        make_tokenizer(TrainConfig.flat(model=str(folder), keep_special_tokens=True))
