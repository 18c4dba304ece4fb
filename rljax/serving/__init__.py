"""The parts of an OpenAI-compatible server on the built-in engine, with continuous batching.

`protocol` validates requests, `rows` decodes batch rows with different lengths and settings on the device, `batching` assigns free
rows to waiting requests, `replies` formats responses, `app` defines the routes, and `metrics` has the server's counters.
`rljax.programs.serving` opens a model and starts listening.
"""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, renamed={"rows": "decoding_rows"})
