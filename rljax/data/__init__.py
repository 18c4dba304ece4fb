"""Problem generators, datasets, tokenizers and prompt order. Nothing here needs a model or a device mesh.

Importing this package imports none of its modules, so `transformers` and `grain` are loaded only when they are used.
"""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, renamed={"dataset": "problem_datasets", "stages": "staged_stream"})
