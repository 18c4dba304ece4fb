"""Settings of the policy's model and of its devices."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from rljax.data.chat import ChatFormat
from rljax.data.images import patch_counts
from rljax.errors import InputError
from rljax.settings.checks import check_at_least, check_at_most_a_year
from rljax.settings.shared_groups import CombinedPolicyConfig, MeshConfig
from rljax.text import parse_json


@dataclass(frozen=True)
class ModelConfig(CombinedPolicyConfig):
    """The model. Layers, width and other sizes apply to the small transformer that is built if no model is given."""

    path: Annotated[str | None, tyro.conf.arg(name="model")] = None
    """Hugging Face folder or hub id to start from; without one, a small transformer with random weights."""
    tokenizer: str | None = None
    """'characters', 'bytes', 'ids' (token ids as text), a folder or a hub id; by default the model's own. Without a model, the
    default is characters for a generated task and bytes for a dataset."""
    chat: bool = False
    """Format prompts with the tokenizer's chat template. Demonstrations and responses then end like a turn of the template."""
    chat_template_kwargs: str | None = None
    """Variables of the chat template, as a JSON object: '{"enable_thinking": false}'."""
    chat_date: str | None = None
    """The current date for the chat template, as YYYY-MM-DD; by default the day on which the run begins, even if the run is
    resumed on another day."""
    prefill: str | None = None
    """With --chat, text that begins every answer: it is part of the prompt, and rewards read it before the model's own text."""
    keep_special_tokens: bool = False
    """Keep special tokens, such as <think> in some tokenizers, in the text that rewards and environments read."""
    attention: Literal["blockwise", "dense", "cudnn", "splash"] = "blockwise"
    """Implementation of attention over full sequences: blockwise (a few queries at a time) or dense (all scores at once) on any
    device, cudnn on NVIDIA GPUs, or splash on TPUs (not yet run on a TPU)."""
    scan_layers: bool = False
    """Compile equal layers once, as a loop, for scoring, training and reading prompts. On an accelerator, a deep model then starts
    sooner, but a step may take longer, and another copy of the layers' parameters and of their gradient is in memory."""
    score_chunk: int | None = None
    """Number of tokens whose logits are on a device at once; by default as many as fit in 160 MB on CPUs, and in 1.28 GB on
    accelerators, but at most 4,096 on accelerators."""
    calculator: float | None = None
    """Mix the policy with a calculator, in sampling and in scoring: after `a+b=` in a worked sum, the calculator contributes this
    fraction of the probability of each digit of the result, and the network the rest. The warm start trains only the network,
    and an exported model is only the network. The logits of all tokens on a device exist at once, so --score-chunk and --tensor
    cannot be used with it. By default there is no calculator."""
    images: tuple[int, int] | None = None
    """Height and width, in pixels, of the images in prompts. A Braille character in a prompt is a patch of 4 x 2 pixels, which the
    small transformer reads through a linear projection and embeddings of its row and column, and never generates. Such a run has no
    critic and no model folder. By default Braille characters are ordinary tokens."""

    def __post_init__(self):
        """Reject values that cannot work."""
        super().__post_init__()
        check_at_least(1, self, ["score_chunk"])
        is_fraction = self.calculator is not None and 0 < self.calculator < 1
        if not is_fraction and (self.calculator, self.calculator_rate) != (None, None):
            raise InputError(
                f"calculator is {self.calculator}; it must be above 0 and below 1, and must be set if calculator_rate is set."
            )
        if self.calculator is not None and self.score_chunk is not None:
            raise InputError(
                f"score_chunk={self.score_chunk} cannot be combined with calculator={self.calculator}, which needs the "
                "logits of all tokens on a device at once; leave one of the two out."
            )
        if self.scan_layers and self.remat == "sqrt":
            raise InputError(
                "scan_layers cannot be combined with remat='sqrt', because both group the layers; choose remat='full'."
            )
        self.chat_format()
        if self.images is not None:
            self._check_images(self.images)

    def chat_format(self) -> ChatFormat:
        """Return the settings for converting chats to text.

        Raises:
            InputError: the variables are not a JSON object, the date is invalid, or one of the three settings is set without chat.
        """
        chosen = {"chat_template_kwargs": self.chat_template_kwargs, "chat_date": self.chat_date, "prefill": self.prefill}
        name = next((name for name, value in chosen.items() if value is not None), None)
        if name is not None and not self.chat:
            raise InputError(f"{name} is {chosen[name]!r}, but chat is off; add --chat, or leave {name} out.")
        try:
            options = {} if self.chat_template_kwargs is None else parse_json(self.chat_template_kwargs)
        except (ValueError, TypeError) as error:
            options = error
        if not isinstance(options, dict):
            raise InputError(
                f"chat_template_kwargs is {self.chat_template_kwargs!r}; a JSON object as text is expected, such as "
                """'{"enable_thinking": false}'."""
            )
        return ChatFormat(self.chat, options, self.chat_date, self.prefill or "")

    def _check_images(self, images: tuple[int, int]) -> None:
        patch_counts(*images)
        others = {"model": self.path, "calculator": self.calculator}
        other = next((name for name, value in others.items() if value is not None), None)
        if other is not None:
            raise InputError(
                f"images={images} cannot be combined with {other}={others[other]!r}: only the small transformer has patch "
                "embeddings, and it cannot be mixed with rules; leave one of the two out."
            )


@dataclass(frozen=True)
class DevicesConfig(MeshConfig):
    """The device mesh."""

    host_timeout: float = 60.0
    """Seconds without a signal from a host after which the other hosts consider it lost, and end with exit code 75."""

    def __post_init__(self):
        """Reject values that cannot work."""
        super().__post_init__()
        check_at_least(1, self, ["host_timeout"])
        check_at_most_a_year(self, ["host_timeout"])
