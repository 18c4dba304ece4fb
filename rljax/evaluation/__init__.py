"""Greedy and sampled evaluation, with 95 % intervals over problems."""

from rljax.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, renamed={"sampled": "answer_sampling", "kinds": "problem_kinds"})
