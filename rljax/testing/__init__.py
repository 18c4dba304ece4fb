"""Tests of your own losses and advantages against the papers: checks, small rollouts, oracles and invariants.

from rljax.testing import check_loss

def test_my_loss():
    check_loss(my_loss, like="dapo")
"""

from rljax.lazy import lazy_names

SOURCES = {
    "Convention": "rljax.testing.loss_conventions",
    "Example": "rljax.testing.example",
    "LIKE": "rljax.testing.loss_conventions",
    "Report": "rljax.testing.checks",
    "check_algorithm": "rljax.testing.algorithm_checks",
    "check_gae": "rljax.testing.checks",
    "check_loss": "rljax.testing.checks",
    "conform": "rljax.testing.checks",
    "conform_gae": "rljax.testing.checks",
}
"""Name -> the module that it is imported from, on first use."""

__getattr__, __dir__ = lazy_names(__name__, SOURCES)
