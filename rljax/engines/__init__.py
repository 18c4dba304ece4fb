"""Engines in another process. A server samples the responses with each step's weights.

`server_engine` publishes weights and collects responses, `dialects` formats requests for `rljax serve`, vLLM and SGLang, `http`
sends requests, and `connect` builds the engine from the settings.
"""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
