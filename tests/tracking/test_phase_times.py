"""Phase times: no time is counted twice, and the sums over a run's rows are complete."""

import threading

import pytest

from rljax.tracking.phase_times import NOUNS, PhaseSeconds, Stopwatch, sum_phase_times, time_text


class Clock:
    """A clock that advances only when a test sets it."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_phase_inside_another_one_interrupts_it(clock):
    stopwatch = Stopwatch(clock)
    clock.now += 1
    with stopwatch.phase("sample"):
        clock.now += 2
        for _ in range(2):
            with stopwatch.phase("judge"):
                clock.now += 4
        clock.now += 8
    clock.now += 16
    with stopwatch.phase("update"):
        clock.now += 32
    assert stopwatch.lap() == PhaseSeconds(sample_seconds=10, judge_seconds=8, update_seconds=32)


def test_phases_of_another_thread_are_ignored(clock):
    stopwatch = Stopwatch(clock)

    def save():
        with stopwatch.phase("save"):
            clock.now += 2

    with stopwatch.phase("sample"):
        clock.now += 1
        thread = threading.Thread(target=save)
        thread.start()
        thread.join()
    assert stopwatch.lap() == PhaseSeconds(sample_seconds=3)


def test_a_lap_starts_at_zero_and_a_phase_ends_when_it_raises(clock):
    stopwatch = Stopwatch(clock)

    def reward():
        clock.now += 1
        raise ValueError("a reward that fails")

    with pytest.raises(ValueError, match="that fails"), stopwatch.phase("sample"), stopwatch.phase("judge"):
        reward()
    clock.now += 2
    with stopwatch.phase("save"):
        clock.now += 4
    assert stopwatch.lap() == PhaseSeconds(sample_seconds=0, judge_seconds=1, save_seconds=4)
    assert stopwatch.lap() == PhaseSeconds(), "no phase has run since the last lap"


def test_the_times_of_a_run_are_summed_over_its_rows():
    rows = [
        {"phase": "warm_start", "step": 1, "seconds": 100.0},
        {"phase": "eval", "step": 0, "seconds": 2.0},
        {"phase": "rl", "step": 1, "seconds": 10.0, "sample_seconds": 6.0, "judge_seconds": 1.0, "update_seconds": 2.0},
        {"phase": "rl", "step": 2, "seconds": 8.0, "sample_seconds": 5.0, "update_seconds": 3.0, "save_seconds": 4.0},
        {"phase": "eval", "step": 2, "seconds": 3.0},
    ]
    spent = sum_phase_times(rows)
    assert spent == {"sample": 11.0, "judge": 1.0, "update": 5.0, "evaluate": 5.0, "save": 4.0, "rest": 1.0}
    assert list(spent) == [name for name in NOUNS if name in spent]
    assert sum(spent.values()) == 10 + 8 + 4 + 5, "two steps, the saving between them, and the evaluations"
    text = "sampling 41 %, updates 19 %, evaluation 19 %, saving 15 %, judging 4 %, the rest 4 %"
    assert time_text(spent) == text
    assert sum_phase_times([{"phase": "rl", "step": 1, "seconds": 8.0}]) == {}, (
        "rows from earlier versions have no phase times"
    )
