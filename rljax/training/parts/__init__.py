"""Parts that a run is built of: policy, tokenizer, adapter, problems and reward, from the settings or from the user."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
