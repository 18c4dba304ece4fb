"""Stop signals: most request a stop first, and SIGINT or SIGTERM interrupts the second time."""

import signal

import pytest

from rljax.training.interrupt import StopRequest


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_remembered_and_the_second_interrupts(signal_number):
    before = signal.getsignal(signal_number)
    with StopRequest() as stop:
        assert not stop.requested
        signal.raise_signal(signal_number)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal_number)
    assert signal.getsignal(signal_number) == before


@pytest.mark.parametrize("signal_number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
def test_notice_signals_request_a_stop_and_never_interrupt(signal_number):
    """Slurm sends SIGUSR1 some time before SIGTERM; a closed terminal may send SIGHUP more than once."""
    before, calls = signal.getsignal(signal_number), []
    with StopRequest(lambda: calls.append("told"), lambda: calls.append("SIGTERM")) as stop:
        signal.raise_signal(signal_number)
        signal.raise_signal(signal_number)
        assert stop.requested
        signal.raise_signal(signal.SIGTERM)
        assert calls == ["told", "SIGTERM"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal_number) == before


def test_a_sighup_ignored_by_nohup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)
