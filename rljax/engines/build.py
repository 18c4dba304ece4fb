"""Build the engine that samples on a server, from the settings."""

import os
from functools import partial
from pathlib import Path

from rljax.data.tokenizer import Tokenizer
from rljax.engines.server_engine import ServerEngine
from rljax.errors import InputError
from rljax.models import Params, Policy
from rljax.training.config import TrainConfig
from rljax.training.parts.model_folder import Companions, atomically, companions, save_model
from rljax.training.parts.seams import Seams
from rljax.training.worker import make_sampling

PATIENCE = 120.0
"""Seconds for which a server that does not answer is asked again, if the settings do not say."""
KEY = "RLJAX_ENGINE_KEY"
"""Environment variable with the API key of the server."""


def server_engine(
    config: TrainConfig, seams: Seams, policy: Policy, tokenizer: Tokenizer, prompt_length: int
) -> ServerEngine:
    """Connect to the server of `--engine-url`.

    Args:
        config: the settings.
        seams: parts that the user passed.
        policy: the model.
        tokenizer: its tokenizer.
        prompt_length: tokens of the longest prompt.

    Raises:
        InputError: the server does not answer or cannot sample what the run needs, or an engine was passed as well.
    """
    settings = config.sampling
    if settings.engine_url is None or seams.engine is not None:
        raise InputError(f"engine_url={settings.engine_url!r} and an engine passed to train() exclude each other.")
    sampling = make_sampling(config, tokenizer)
    return ServerEngine(
        settings.engine_url,
        settings.engine_server or "rljax",
        partial(save_weights, config, policy, companions(config, tokenizer)),
        folder=None if settings.engine_folder is None else Path(settings.engine_folder).resolve(),
        needed=prompt_length + sampling.max_tokens,
        sampling=sampling,
        vocabulary=policy.vocab_size,
        key=os.environ.get(KEY) or None,
        patience=settings.engine_patience or PATIENCE,
    )


def save_weights(config: TrainConfig, policy: Policy, beside: Companions, folder: Path, params: Params) -> None:
    """Write the policy as a model folder, in the precision in which the learner multiplies; all processes call it."""
    dtype = None if policy.contents is None else config.model.dtype
    atomically(folder, lambda part: save_model(part, policy, params, beside, dtype=dtype))
