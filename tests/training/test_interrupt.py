"""Signals that ask a run to stop."""

import signal

import pytest

from rljax.training.interrupt import StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_remembered_and_the_second_interrupts(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert not stop.requested
        signal.raise_signal(number)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
def test_a_notice_asks_to_stop_and_never_interrupts(number):
    """Slurm sends SIGUSR1 some time before SIGTERM; a terminal that is closed may send SIGHUP more than once."""
    before, calls = signal.getsignal(number), []
    with StopRequest(lambda: calls.append("told"), lambda: calls.append("terminating")) as stop:
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert stop.requested
        signal.raise_signal(signal.SIGTERM)
        assert calls == ["told", "terminating"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(number) == before


def test_nohup_stays_in_force():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)
