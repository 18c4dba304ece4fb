"""Images in prompts: the policy that reads them, and the checks of problems."""

from collections.abc import Sequence

from jax.sharding import Mesh

from rljax.data.images import PATTERNS, check_whole_images, has_patch, patch_counts
from rljax.data.problem import Problem
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.models import Policy, TransformerConfig
from rljax.models.patches import patch_policy, patches_of
from rljax.records import required
from rljax.training.config import ModelConfig


def image_policy(config: ModelConfig, tokenizer: Tokenizer, shape: TransformerConfig, mesh: Mesh) -> Policy:
    """Make the small transformer with patch embeddings for the Braille characters of a tokenizer.

    Args:
        config: the settings; `images` is the size of an image.
        tokenizer: of prompts and responses.
        shape: of the transformer.
        mesh: the devices.

    Raises:
        InputError: a Braille character is not one token, or the mesh does not divide the transformer's axes.
    """
    rows, columns = patch_counts(*required(config.images, "model.images"))
    patches = patches_of(tokenizer.encode, PATTERNS, rows=rows, columns=columns)
    return patch_policy(shape, patches, mesh=mesh, chunk=config.score_chunk)


def check_images(config: ModelConfig, problems: Sequence[Problem]) -> None:
    """Refuse problems with a part of an image in the prompt, or a patch in the demonstration; without `images` there is no check.

    Raises:
        InputError: the message shows the text.
    """
    if config.images is None:
        return
    height, width = config.images
    for problem in problems:
        check_whole_images(problem.prompt, height=height, width=width)
        if has_patch(problem.demonstration or ""):
            raise InputError(
                f"the demonstration {problem.demonstration!r:.60} has a patch of an image, which the model reads and never writes; "
                "leave it out."
            )
