"""The parts of a run: policy, model folder, tokenizer, adapter, problems and reward, and the user's own parts (`custom`)."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
