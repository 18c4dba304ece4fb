"""Layer 5: engines outside the process. A server samples responses with the weights of each step.

`server_engine` publishes weights and collects responses, `dialects` writes requests for `rljax serve`, vLLM and SGLang, `http`
sends them, and `connect` makes the engine from the settings.
"""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
