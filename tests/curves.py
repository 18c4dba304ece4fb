"""Runs in the process of the tests leave their curves undrawn: drawing was a third of a small run's time.

The runs of commands that tests start draw them, and so do those inside `drawn`. `tests/tracking/test_plots.py` tests the drawing.
"""

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from rljax.training.lifecycle import outcome

draw_curves = outcome.draw_curves


def leave_undrawn() -> None:
    """From here on, the end of a run writes no `curves.png`."""
    outcome.draw_curves = lambda folder, config: None


@contextmanager
def drawn() -> Generator[None]:
    """Runs that end in here draw their curves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome, "draw_curves", draw_curves)
        yield
