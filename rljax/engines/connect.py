"""Connect to the sampling server that the settings specify."""

import os
from pathlib import Path

from rljax.engines.server_engine import SaveModel, ServerEngine
from rljax.errors import InputError
from rljax.rollout import Sampling
from rljax.settings.shared_groups import EngineConfig

KEY_VARIABLE = "RLJAX_ENGINE_KEY"
"""Environment variable with the API key of the server."""
DEFAULT_PATIENCE = 120.0
"""How long, in seconds, requests are retried by default while the server does not respond."""


def connect_to_server(
    url: str, settings: EngineConfig, save: SaveModel, sampling: Sampling, *, prompt_length: int, vocabulary: int
) -> ServerEngine:
    """Connect to the server at `--engine-url`.

    Args:
        url: address of the server.
        settings: the other settings of the engine.
        save: a function that writes the policy's weights as a model folder.
        sampling: how responses are sampled.
        prompt_length: number of tokens of the longest prompt.
        vocabulary: number of token ids of the model.

    Raises:
        InputError: the server does not answer, or does not support the sampling that the run needs; or the API key cannot be sent.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise InputError(f"the API key in {KEY_VARIABLE} contains a character that cannot be sent; correct it.")
    return ServerEngine(
        url,
        settings.engine_server or "rljax",
        save,
        folder=None if settings.engine_folder is None else Path(settings.engine_folder).resolve(),
        needed=prompt_length + sampling.max_tokens,
        sampling=sampling,
        vocabulary=vocabulary,
        key=key or None,
        patience=settings.engine_patience or DEFAULT_PATIENCE,
        in_flight=bool(settings.engine_in_flight),
    )
