"""Turn off curve plots of runs in the test process, because plotting took a third of a small run's time.

Commands that tests start in other processes still plot curves, and so do runs inside `plotting_curves()`.
`tests/tracking/test_plots.py` tests the plots.
"""

from collections.abc import Generator
from contextlib import contextmanager

import pytest

from rljax.training.lifecycle import finish

draw_curves = finish.draw_curves


def skip_curves() -> None:
    """Prevent runs that end after this call from writing `curves.png`."""
    finish.draw_curves = lambda folder, config: None


@contextmanager
def plotting_curves() -> Generator[None]:
    """Plot the curves of all runs that end inside this context."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "draw_curves", draw_curves)
        yield
