"""Layer 2: generators, datasets, tokenizers and the order of the prompts; no model, no mesh.

Importing this package imports none of its modules, so `transformers` and `grain` are loaded only where they are used.
"""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
