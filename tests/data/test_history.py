"""Recording pass rates per prompt, and choosing prompts by their pass rate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljax.data.history import (
    History,
    Window,
    choose_prompts,
    curriculum,
    mean_lengths,
    no_history,
    pass_rates,
    record_responses,
)
from rljax.data.prompts import PromptStream
from rljax.errors import InputError

OPEN_WINDOW = Window(0.0, 1.0)


def make_history(attempts, passes):
    return History(*(np.array(column, np.float32) for column in (attempts, passes, np.zeros(len(attempts)))))


@given(st.data())
def test_record_matches_manual_counts(data):
    decay = data.draw(st.sampled_from([1.0, 0.5]))
    history, counts = no_history(4), np.zeros((3, 4))
    for _ in range(data.draw(st.integers(1, 4))):
        problems = np.array(data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=2)))
        rewards = np.array(data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=6, max_size=6))).reshape(
            2, 3
        )
        lengths = np.array(data.draw(st.lists(st.integers(0, 9), min_size=6, max_size=6))).reshape(2, 3)
        valid = np.array(data.draw(st.lists(st.booleans(), min_size=6, max_size=6))).reshape(2, 3)
        history = record_responses(history, problems, rewards, lengths, valid=valid, threshold=0.25, decay=decay)
        counts[:, sorted({p for p, row in zip(problems, valid, strict=True) if row.any()})] *= decay
        for p, row in enumerate(problems):
            for i in range(3):
                if valid[p, i]:
                    counts[:, row] += 1, rewards[p, i] > 0.25, lengths[p, i]
    np.testing.assert_allclose(np.stack(history), counts, rtol=1e-6)
    assert all(column.dtype == np.float32 for column in history)


def test_record_does_not_change_history_in_place():
    history = no_history(2)
    record_responses(history, np.array([0]), np.ones((1, 2)), np.ones((1, 2), int))
    assert np.stack(history).sum() == 0


def test_pass_rates_and_mean_lengths():
    history = History(*(np.array(column, np.float32) for column in ([0, 4, 2], [0, 1, 2], [0, 10, 0])))
    np.testing.assert_array_equal(pass_rates(history), np.array([np.nan, 0.25, 1.0], np.float32))
    np.testing.assert_array_equal(mean_lengths(history, 7.0), np.array([7.0, 2.5, 1.0], np.float32))
    np.testing.assert_array_equal(mean_lengths(history, np.array([3.0, 0.0, 0.0])), np.array([3.0, 2.5, 1.0], np.float32))


def test_curriculum_moves_window():
    begin, end = Window(0.5, 1.0), Window(0.1, 0.6)
    assert curriculum(begin, end, step=0, steps=10) == begin
    assert curriculum(begin, end, step=5, steps=10) == Window(0.3, 0.8)
    assert curriculum(begin, end, step=10, steps=10) == curriculum(begin, end, step=99, steps=10) == end


@given(st.integers(0, 50), st.integers(0, 12))
def test_choose_open_window_follows_stream(position, count):
    stream = PromptStream(range(7), seed=1)
    history = make_history([0, 1, 2, 3, 4, 5, 6], [0, 1, 1, 0, 2, 5, 6])
    choice = choose_prompts(history, stream, position, count, window=OPEN_WINDOW, seed=0)
    assert choice.problems.tolist() == stream.indices(position, count)
    assert (choice.position, choice.passed_over) == (position + count, 0)


def test_choose_takes_prompts_in_window_or_untried():
    history = make_history([4, 4, 4, 4, 0, 0], [0, 1, 3, 4, 0, 0])
    stream = PromptStream(range(6), seed=2)
    choice = choose_prompts(history, stream, 0, 8, window=Window(0.25, 0.75), seed=0, revisit=0.0)
    assert choice.problems.tolist() == [i for i in stream.indices(0, 99) if i in (1, 2, 4, 5)][:8]
    walked = stream.indices(0, choice.position)
    assert choice.passed_over == sum(i in (0, 3) for i in walked)
    assert walked[-1] == choice.problems[-1]
    trusted = choose_prompts(history, stream, 0, 8, window=Window(0.25, 0.75), seed=0, revisit=0.0, least_attempts=5.0)
    assert trusted.problems.tolist() == stream.indices(0, 8)


def test_choose_adds_nearest_prompts():
    history = make_history([10] * 5, [0, 1, 5, 8, 10])
    stream = PromptStream(range(5), seed=0)
    choice = choose_prompts(history, stream, 0, 4, window=Window(0.5, 0.5), seed=0, revisit=0.0, patience=2)
    walked = stream.indices(0, 8)
    assert choice.position == 8
    assert choice.passed_over == 8 - 4
    distance = {0: 0.5, 1: 0.4, 2: 0.0, 3: 0.3, 4: 0.5}
    nearest = sorted(range(8), key=lambda index: (distance[walked[index]], index))[:4]
    assert choice.problems.tolist() == [walked[index] for index in sorted(nearest)]
    assert {2, 3} <= set(choice.problems.tolist()), "prompts 2 and 3 are the nearest to the window"


def test_choose_revisits_prompts_outside_window():
    history = make_history([4] * 400, [4] * 400)
    stream = PromptStream(range(400), seed=0)
    choice = choose_prompts(history, stream, 0, 20, window=Window(0.2, 0.8), seed=0, revisit=0.25)
    assert 40 < choice.position < 160
    assert len(set(choice.problems.tolist())) == 20
    other = choose_prompts(history, stream, 0, 20, window=Window(0.2, 0.8), seed=1, revisit=0.25)
    assert other.problems.tolist() != choice.problems.tolist()


@given(st.integers(0, 30), st.integers(1, 6), st.integers(1, 6))
def test_choose_resumes_at_position(position, first, second):
    history = make_history([4, 4, 4, 0, 0, 4, 4, 4], [0, 2, 4, 0, 0, 2, 2, 2])
    stream = PromptStream(range(8), seed=3)
    options = {"window": Window(0.2, 0.8), "seed": 5, "revisit": 0.3}
    full = choose_prompts(history, stream, position, first + second, **options)
    part = choose_prompts(history, stream, position, first, **options)
    rest = choose_prompts(history, PromptStream(range(8), seed=3), part.position, second, **options)
    assert [*part.problems, *rest.problems] == full.problems.tolist()
    assert rest.position == full.position


def test_invalid_arguments_are_refused():
    history, stream = no_history(3), PromptStream(range(3), seed=0)
    for window in (Window(0.8, 0.2), Window(-0.1, 0.5), Window(0.5, 1.1)):
        with pytest.raises(InputError, match=r"difficulty window is .*; give two pass rates between 0 and 1"):
            choose_prompts(history, stream, 0, 1, window=window, seed=0)
    with pytest.raises(InputError, match="patience is 0; it must be at least 1"):
        choose_prompts(history, stream, 0, 1, window=OPEN_WINDOW, seed=0, patience=0)
    with pytest.raises(InputError, match=r"revisit is 1\.5"):
        choose_prompts(history, stream, 0, 1, window=OPEN_WINDOW, seed=0, revisit=1.5)
    with pytest.raises(ValueError, match="history has 2 prompts, but the stream has 3"):
        choose_prompts(no_history(2), stream, 0, 1, window=OPEN_WINDOW, seed=0)
    with pytest.raises(ValueError, match="prompts must be at least 1, got 0"):
        no_history(0)
    for step, steps in ((-1, 5), (0, 0)):
        with pytest.raises(ValueError, match="step must not be negative"):
            curriculum(OPEN_WINDOW, OPEN_WINDOW, step=step, steps=steps)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problems": np.array([0, 1])}, "one row per prompt"),
        ({"rewards": np.ones(2)}, "one row per prompt"),
        ({"lengths": np.ones((1, 3), int)}, "one row per prompt"),
        ({"valid": np.ones((1, 3), bool)}, r"valid must have the shape of rewards \(1, 2\)"),
        ({"problems": np.array([3])}, r"problems must lie in \[0, 3\), got 3 to 3"),
        ({"problems": np.array([-1])}, r"problems must lie in \[0, 3\), got -1 to -1"),
        ({"decay": 0.0}, r"decay must be above 0 and at most 1, got 0\.0"),
        ({"decay": 1.5}, "decay must be above 0"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_record_invalid_arguments(changes, message):
    arguments = {"problems": np.array([0]), "rewards": np.ones((1, 2)), "lengths": np.ones((1, 2), int)} | changes
    with pytest.raises(ValueError, match=message):
        record_responses(no_history(3), **arguments)
