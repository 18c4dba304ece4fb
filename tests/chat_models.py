"""A chat model with random weights, and a byte-level tokenizer with a chat template."""

from pathlib import Path

import jax
import transformers
from small_runs import SMALL
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rljax.models import init_params
from rljax.models.huggingface import save_pretrained
from rljax.training.parts.policy import make_transformer_config

TEMPLATE = (
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
SPECIALS = ["<pad>", "<end>", "<s>", "<u>", "<a>"]


def save_chat_model(path: Path) -> Path:
    """Write the model and its tokenizer to a folder, and return the folder."""
    vocabulary = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(models.BPE({token: index for index, token in enumerate(vocabulary)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, additional_special_tokens=SPECIALS, eos_token="<end>", pad_token="<pad>"
    )
    fast.chat_template = TEMPLATE
    config = make_transformer_config(SMALL.model, len(vocabulary))
    params = jax.tree.map(lambda leaf: 3 * leaf, init_params(config, jax.random.key(0)))
    save_pretrained(path, config, params, bos=None, eos=1)
    fast.save_pretrained(path)
    return path
