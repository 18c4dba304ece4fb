"""Displays show all metrics and messages, treat model output as plain text, and restore the terminal."""

import errno
import io
import os
import re
import sys
import threading

import numpy as np
import pytest
from rich.console import Console

from rljax.files import AppendFile
from rljax.tracking.display import Display, ScreenStream, make_display
from rljax.tracking.display_text import CORRECT, METRICS, Progress, finite_mean, format_duration, sparkline
from rljax.tracking.plain_display import LoggedDisplay, PlainDisplay
from rljax.tracking.rich_display import RichDisplay

METRIC_VALUES = {
    "loss": -0.01234,
    "perplexity": 4.5678,
    "reward": 0.8234,
    "accuracy": 0.756,
    "entropy": 0.4321,
    "kl": 0.00567,
    "margin": 0.5,
    "lead": 0.25,
    "chosen_logp": -12.345,
    "rejected_logp": -23.456,
    "score": 1.5,
    "unfilled_groups": 3,
    "unstated_share": 0.125,
    "unjudged": 7,
    "skipped_updates": 0.5,
    "clip_fraction": 0.0123,
    "teacher_kl": 0.23456,
    "teacher_divergence": 0.01234,
    "correction_cut": 0.0345,
    "surrogate_masked": 0.0678,
    "explained_variance": 0.4567,
    "value_loss": 0.03214,
    "advantage_correlation": 0.2345,
    "response_length": 34.25,
    "truncated_share": 0.052,
    "grad_norm": 1.2345,
    "tokens_per_second": 12345.6,
    "filtered_ratio": 0.25,
    "learning_rate": 3e-5,
    "seconds": 77.77,
    "judge_seconds": 19.44,
    "unheard_of": 88.88,
}
FORMATTED = [
    ("reward", "0.823", ""),
    ("rewards above 0", "75.6", "%"),
    ("margin", "0.500", ""),
    ("lead", "0.250", ""),
    ("log p of preferred", "-12.35", "nats"),
    ("log p of others", "-23.46", "nats"),
    ("score", "1.500", ""),
    ("entropy", "0.432", "nats/token"),
    ("KL", "0.0057", "nats/token"),
    ("clip fraction", "1.23", "%"),
    ("KL to the teacher", "0.2346", "nats/token"),
    ("teacher divergence", "0.0123", "nats/token"),
    ("cut by correction", "3.45", "%"),
    ("off-policy masked", "6.78", "%"),
    ("explained variance", "0.457", ""),
    ("value loss", "0.0321", ""),
    ("credit correlation", "0.234", ""),
    ("response length", "34.2", "tokens"),
    ("truncated", "5.2", "%"),
    ("gradient norm", "1.234", ""),
    ("time judging", "25", "%"),
    ("speed", "12,346", "tokens/s"),
    ("filtered groups", "25.0", "%"),
    ("unfilled groups", "3", ""),
    ("no answer stated", "12.5", "%"),
    ("unjudged responses", "7", ""),
    ("skipped updates", "0.5", "steps"),
    ("learning rate", "3.00e-05", ""),
    ("loss", "-0.0123", ""),
    ("perplexity", "4.568", ""),
]
SAMPLES = [
    {"prompt": "3+4=", "completion": "[red]7[/red] [/] \x1b[31mred", "answer": "7", "reward": 1.0, "correct": True},
    {"prompt": "first\nsecond", "completion": "a" * 300 + "= 19", "answer": None, "reward": -0.5, "correct": None},
]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Clock:
    """A clock that advances only when a test sets it."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


def rich_display(stream, clock, *, width=100, **settings):
    return RichDisplay(Console(file=stream, force_terminal=True, width=width, height=60), clock=clock, **settings)


def last_screen(stream):
    """Return everything since the live region was last redrawn, without control codes."""
    return ESCAPE.sub("", stream.getvalue().rsplit("\x1b[2K", 1)[-1])


def visible_text(stream):
    """Return everything that was written, without control codes."""
    return ESCAPE.sub("", stream.getvalue())


@pytest.mark.usefixtures("without_type_checks")  # NumPy and JAX scalars work too, although signatures say float
def test_a_log_line_has_every_known_metric(clock):
    stream = io.StringIO()
    with PlainDisplay(stream, is_log=True, clock=clock) as display:
        display.header(["one", "two"])
        display.phase("warm_start", 2)
        clock.now += 61
        display.update(1, METRIC_VALUES)
        display.phase("rl", 4)
        clock.now += 10
        display.update(1, {"reward": 0.5, "kl": float("nan")})
        clock.now += 2.5
        display.update(2, {"reward": np.float32(0.25)})
        display.message("evaluated")
        display.warning("careful")
        display.finish(["done"])
    numbers = "  ".join(f"{label} {value} {unit}".strip() for label, value, unit in FORMATTED)
    assert stream.getvalue().splitlines() == [
        "one",
        "two",
        "warm start: 2 steps; the first includes compilation",
        f"warm start 1/2 (0:01:01)  {numbers}",
        "RL: 4 steps; the first includes compilation",
        "RL 1/4 (0:00:10)  reward 0.500  KL nan nats/token",
        "RL 2/4 (0:00:12, 0:00:05 left)  reward 0.250",
        "evaluated",
        "warning: careful",
        "done",
    ]


def test_plain_samples_are_one_escaped_line_each():
    stream = io.StringIO()
    PlainDisplay(stream, is_log=True).samples(5, SAMPLES * 3)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[0] == (
        r"sample at step 5: reward 1 | prompt '3+4=' | completion '[red]7[/red] [/] \x1b[31mred' | answer '7'"
    )
    assert lines[1] == (
        r"sample at step 5: reward -0.5 | prompt 'first\nsecond' | "
        f"completion '{'a' * 100} … {'a' * 96}= 19' | answer 'None'"
    )


def test_plain_writes_no_control_codes_and_fits_the_encoding():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="\n")
    display = PlainDisplay(stream)
    display.message("a\x1b[31mb\r\u202ec é")
    stream.seek(0)
    assert stream.read() == "a\\x1b[31mb\\r\\u202ec \\xe9\n"


@pytest.mark.parametrize(
    ("total", "first", "written"),
    [
        (100, 1, [*range(10, 101, 10)]),
        (25, 1, [3, 5, 8, 10, 13, 15, 18, 20, 23, 25]),
        (4, 1, [1, 2, 3, 4]),
        (100, 86, [86, 90, 100]),
    ],
)
def test_quiet_writes_phases_each_tenth_warnings_and_the_outcome(clock, total, first, written):
    stream = io.StringIO()
    display = PlainDisplay(stream, quiet=True, clock=clock)
    display.header(["header"])
    display.phase("rl", total)
    for step in range(first, total + 1):
        display.update(step, {})
    display.samples(1, SAMPLES)
    display.message("message")
    display.warning("careful")
    display.finish(["done"])
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith(f"RL: {total} steps")
    assert lines[-2:] == ["warning: careful", "done"]
    assert [int(line.split()[1].split("/")[0]) for line in lines[1:-2]] == written


def steps_of(stream):
    """Return the steps that have a line in the output."""
    return [int(line.split("/")[0].split()[-1]) for line in stream.getvalue().splitlines()[1:]]


@pytest.mark.parametrize("phase", ["warm_start", "rl"])
@pytest.mark.parametrize(("seconds", "between"), [(0.1, []), (10.0, [7, 13, 19, 25, 31])])
def test_a_pipe_gets_the_first_step_each_tenth_and_one_line_per_minute(clock, phase, seconds, between):
    stream = io.StringIO()
    display = PlainDisplay(stream, clock=clock)
    display.phase(phase, 340)
    for step in range(1, 341):
        clock.now += seconds
        display.update(step, {"reward": 0.5, "grad_norm": 1.0})
    found = steps_of(stream)
    assert found[: len(between) + 2] == [1, *between, 34]
    assert {1, *range(34, 341, 34)} <= set(found)
    assert len(found) == (11 if not between else 61)
    assert "\r" not in stream.getvalue()
    assert "grad" not in stream.getvalue()
    assert "reward 0.500" in stream.getvalue()


def test_a_log_has_every_rl_step_and_each_tenth_of_the_warm_start(clock):
    found = {}
    for phase in ("warm_start", "rl"):
        stream = io.StringIO()
        display = PlainDisplay(stream, is_log=True, clock=clock)
        display.phase(phase, 340)
        for step in range(1, 341):
            display.update(step, {})
        found[phase] = steps_of(stream)
    assert found == {"warm_start": [1, *range(34, 341, 34)], "rl": list(range(1, 341))}


def test_quiet_survives_a_phase_without_steps():
    stream = io.StringIO()
    display = PlainDisplay(stream, quiet=True)
    display.phase("other", 0)
    display.update(0, {})
    assert stream.getvalue().splitlines() == ["other: 0 steps", "other 0/0 (0:00:00)"]


def test_event_counts_are_summed_and_hidden_while_zero(terminal, clock):
    stream = io.StringIO()
    plain = PlainDisplay(stream, clock=clock)
    with rich_display(terminal, clock) as rich:
        for display in (plain, rich):
            display.phase("rl", 4)
            display.update(1, {"unfilled_groups": 0, "unjudged": 0})
            display.update(2, {"unfilled_groups": 5, "unjudged": 0})
            display.update(3, {"unfilled_groups": 2, "unjudged": 0})
    table = last_screen(terminal)
    (line,) = (line for line in table.splitlines() if line.startswith("unfilled groups"))
    assert line.split()[2:5] == ["2", "sum", "7"]
    assert "unjudged" not in table + stream.getvalue()
    assert "unfilled groups 5" in stream.getvalue()
    assert "unfilled groups 0" not in stream.getvalue()


def test_the_heldout_accuracy_is_in_the_table_of_every_later_phase(terminal, clock):
    with rich_display(terminal, clock, width=80) as display:
        display.set_accuracy_label(CORRECT)
        display.phase("warm_start", 2)
        display.evaluated(0, {"accuracy": 0.355})
        display.phase("rl", 100)
        display.update(19, {"accuracy": 0.5})
        display.evaluated(20, {"accuracy": 0.988})
    rows = {line[:18].strip(): line[18:].split() for line in last_screen(terminal).splitlines()}
    assert rows["held-out accuracy"] == ["98.8", "%", "step", "20", "▁█"]
    assert rows["accuracy"][:2] == ["50.0", "%"]


def test_a_line_has_the_heldout_accuracy_under_its_own_name():
    for accuracy, quiet, line in (
        (CORRECT, False, "step 20: held-out accuracy 98.8% of 64\n"),
        ("rewards above 0", False, "step 20: held-out rewards above 0 98.8% of 64\n"),
        (CORRECT, True, ""),
    ):
        stream = io.StringIO()
        display = PlainDisplay(stream, quiet=quiet)
        display.set_accuracy_label(accuracy)
        display.evaluated(20, {"accuracy": 0.988}, detail=" of 64")
        assert stream.getvalue() == line


def test_rich_shows_the_activity_and_that_it_compiles(terminal, clock):
    with rich_display(terminal, clock) as display:
        display.activity("loading the model")
        assert "loading the model" in last_screen(terminal)
        display.phase("rl", 3)
        display.activity("sampling", compiles=True)
        assert "sampling, for the first time: JAX traces it, then compiles" in last_screen(terminal)
        display.compiling("jit(step)")
        clock.now += 20
        display.activity("sampling", compiles=True)
        assert "compiling: sampling" in last_screen(terminal)
        display.compiling(None)
        display.update(1, {})
        display.activity("sampling", compiles=True)
        assert re.search(r"^ +sampling *$", last_screen(terminal), re.MULTILINE)
        display.finish([])
    assert "sampling" not in last_screen(terminal)
    assert "✓ RL: step 1 of 3, 0:00:20, 0:00:20 of it compiling" in visible_text(terminal)


def test_a_resumed_phase_continues_its_step_count(terminal, clock):
    stream = io.StringIO()
    plain = PlainDisplay(stream, quiet=True, clock=clock)
    with rich_display(terminal, clock) as rich:
        for display in (plain, rich):
            display.phase("rl", 100, done=45)
        assert "45/100" in last_screen(terminal)
        plain.update(46, {})
        plain.update(50, {})
    assert steps_of(stream) == [50]


def test_a_short_compilation_is_not_shown(terminal, clock):
    with rich_display(terminal, clock) as display:
        display.phase("rl", 3)
        display.compiling("jit(add)")
        clock.now += 0.1
        display.activity("sampling")
        assert "compiling" not in last_screen(terminal)


def test_a_line_has_the_compilation_time(clock):
    stream = io.StringIO()
    display = PlainDisplay(stream, clock=clock)
    display.compiling(None)
    display.phase("rl", 2)
    display.activity("sampling")
    display.compiling("jit(step)")
    clock.now += 25
    display.compiling(None)
    clock.now += 2
    display.update(1, {})
    assert stream.getvalue().splitlines()[1:] == ["RL 1/2 (0:00:27, 0:00:25 of it compiling)"]


def test_rich_shows_that_the_run_will_stop(terminal, clock):
    with rich_display(terminal, clock) as display:
        display.phase("rl", 3)
        before = terminal.getvalue()
        display.stopping()
        assert terminal.getvalue() == before, "a signal handler must not write"
        display.activity("sampling")
        assert "stopping after this step" in last_screen(terminal)
    assert "stopping" not in last_screen(terminal)


def test_the_loading_message_is_removed_after_an_error(terminal, clock):
    def fail():
        with rich_display(terminal, clock) as display:
            display.activity("loading the model")
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        fail()
    assert "loading" not in last_screen(terminal)


COMPARISON = [
    {
        "prompt": "3+4=",
        "answer": "7",
        "before": "[red]6",
        "after": "7",
        "reward_before": 0.1,
        "reward_after": 1.0,
        "correct_before": False,
        "correct_after": True,
    }
]


def test_answers_before_and_after_are_shown_side_by_side(terminal, clock):
    rich_display(terminal, clock).comparison(COMPARISON)
    text = visible_text(terminal)
    assert re.search(r"3\+4= +wrong +right +7", text)
    assert re.search(r"\[red\]6 +7", text)
    stream = io.StringIO()
    PlainDisplay(stream).comparison([{**COMPARISON[0], "correct_before": False, "correct_after": None}])
    assert stream.getvalue().splitlines() == [
        "held-out prompt '3+4=', answer '7'",
        "  before, wrong: '[red]6'",
        "  after, reward 1: '7'",
    ]
    PlainDisplay(stream := io.StringIO(), quiet=True).comparison(COMPARISON)
    assert stream.getvalue() == ""


def test_commands_are_not_wrapped(terminal, clock):
    command = f"rljax train --resume runs/{'long-name-' * 12}"
    rich_display(terminal, clock, width=80).commands("To train on:", [command])
    assert visible_text(terminal) == f"To train on:\n  {command}\n"
    PlainDisplay(stream := io.StringIO(), quiet=True).commands("To train on:", [command])
    assert stream.getvalue() == f"To train on:\n  {command}\n"


def test_a_metric_of_an_earlier_step_is_dim(terminal, clock):
    with rich_display(terminal, clock) as display:
        display.phase("rl", 3)
        display.update(1, {"reward": 0.5, "grad_norm": 1.0})
        display.update(2, {"reward": 0.5})
    output = terminal.getvalue().rsplit("\x1b[2K", 1)[-1]
    reward, gradient = (next(line for line in output.splitlines() if name in line) for name in ("reward", "gradient"))
    assert re.search(r"\x1b\[1m *0\.500", reward)
    assert re.search(r"\x1b\[2m *1\.000", gradient.split("1.000")[0] + "1.000")


def test_every_display_has_every_method(terminal, clock, tmp_path):
    shown = rich_display(terminal, clock)
    with LoggedDisplay(shown, tmp_path / "log.txt") as logged:
        for display in (shown, PlainDisplay(io.StringIO()), logged):
            assert isinstance(display, Display)


def test_a_line_that_another_thread_writes_is_not_lost(terminal, clock, tmp_path, monkeypatch):
    """A thread that saves may write a warning while the training loop writes its lines."""
    append, others = AppendFile.append, []

    def append_slowly(file, data):
        append(file, data)
        if not others:
            others.append(threading.Thread(target=display.message, args=("from the other",)))
            others[0].start()
            others[0].join(timeout=0.2)

    monkeypatch.setattr(AppendFile, "append", append_slowly)
    with LoggedDisplay(PlainDisplay(io.StringIO()), tmp_path / "log.txt") as display:
        display.message("from the loop")
        others[0].join()
    assert [line.split(" ", 2)[2] for line in (tmp_path / "log.txt").read_text().splitlines()] == [
        "from the loop",
        "from the other",
    ]


@pytest.mark.parametrize(("error", "line"), [(KeyboardInterrupt(), "KeyboardInterrupt"), (OSError("no"), "OSError: no")])
def test_a_log_file_names_the_error_that_ended_the_run(tmp_path, error, line):
    with pytest.raises(type(error)), LoggedDisplay(PlainDisplay(io.StringIO()), tmp_path / "log.txt"):
        raise error
    assert (tmp_path / "log.txt").read_text().endswith(f" warning: ended by {line}\n")


def test_a_log_file_has_what_the_screen_shows(terminal, clock, tmp_path):
    shown = rich_display(terminal, clock)
    with shown, LoggedDisplay(shown, tmp_path / "log.txt") as display:
        display.set_accuracy_label(CORRECT)
        display.activity("sampling", compiles=True)
        display.phase("rl", 3)
        display.compiling("jit(step)")
        clock.now += 1
        display.compiling(None)
        display.stopping()
        display.update(1, {"grad_norm": 1.0})
        display.evaluated(1, {"accuracy": 0.5}, detail=" of 8")
        display.finish(["done"])
        display.comparison(COMPARISON)
        display.commands("Next:", ["rljax eval x"])
    text = re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", (tmp_path / "log.txt").read_text(), flags=re.MULTILINE)
    assert text.splitlines() == [
        "RL: 3 steps; the first includes compilation",
        "RL 1/3 (0:00:00)  gradient norm 1.000",
        "step 1: held-out accuracy 50.0% of 8",
        "done",
        "held-out prompt '3+4=', answer '7'",
        "  before, wrong: '[red]6'",
        "  after, right: '7'",
        "Next:",
        "  rljax eval x",
    ]
    for words in ("done", "held-out accuracy", "rljax eval x", "right"):
        assert words in visible_text(terminal)


def test_rich_shows_every_known_metric(terminal, clock):
    with rich_display(terminal, clock) as display:
        display.header(["DAPO [bold]on sums"])
        display.phase("rl", 400)
        for step in range(101, 120):
            clock.now += 2
            display.update(step, {"reward": float(step)})
        clock.now += 2
        display.update(120, METRIC_VALUES)
    table = last_screen(terminal)
    rows = {line[:20].strip(): line[20:].split() for line in table.splitlines()}
    for label, value, unit in FORMATTED[1:]:
        recent = ["sum", value] if label in ("unfilled groups", "unjudged responses", "skipped updates") else [value]
        expected = [value, *([unit] if unit else []), *recent]
        assert rows[label][: len(expected)] == expected
    # The last ten values are from steps 111 to 120.
    assert rows["reward"][:2] == ["0.823", f"{(sum(range(111, 120)) + 0.8234) / 10:.3f}"]
    assert rows["reward"][2] == "▇" * 10 + "█" * 9 + "▁"
    assert "120/400 0:00:40 · 0:09:20 left" in table
    assert "step 120" in table
    assert "DAPO [bold]on sums" in visible_text(terminal)
    assert "77.77" not in visible_text(terminal)
    assert "88.88" not in visible_text(terminal)


@pytest.mark.parametrize(
    ("calls", "is_shown"),
    [
        ([], False),
        ([("judging", 0, 512), ("judging", 17, 512)], True),
        ([("judging", 17, 512), ("judging", 512, 512)], False),
        ([("judging", 17, 512), ("update", 1, {"reward": 1.0})], False),
    ],
)
def test_rich_shows_how_many_responses_are_judged(terminal, clock, calls, is_shown):
    with rich_display(terminal, clock) as display:
        display.phase("rl", 3)
        for name, *arguments in calls:
            getattr(display, name)(*arguments)
    assert bool(re.search(r"judging .* 17/512", last_screen(terminal))) == is_shown
    assert ("judging" in last_screen(terminal)) == is_shown


@pytest.mark.parametrize(("seconds", "shown"), [(0.4, False), (0.5, True), (9.0, True)])
def test_a_slow_reward_has_its_share_of_the_time_shown(clock, seconds, shown):
    stream = io.StringIO()
    display = PlainDisplay(stream, clock=clock)
    display.phase("rl", 2)
    display.update(1, {"reward": 1.0, "seconds": 10.0, "judge_seconds": seconds})
    assert (f"time judging {seconds * 10:.0f} %" in stream.getvalue()) is shown


def test_plain_shows_no_judging_progress(clock):
    stream = io.StringIO()
    PlainDisplay(stream, clock=clock).judging(1, 2)
    assert stream.getvalue() == ""


def test_rich_marks_values_that_are_not_finite(terminal, clock):
    with rich_display(terminal, clock) as display:
        display.phase("rl", 3)
        display.update(1, {"grad_norm": 1.0})
        display.update(2, {"grad_norm": float("inf")})
    (line,) = (line for line in last_screen(terminal).splitlines() if line.startswith("gradient norm"))
    assert line.split()[2:] == ["inf", "1.000", "▁×"]


def test_rich_resets_with_each_phase(terminal, clock):
    with rich_display(terminal, clock) as display:
        display.phase("resumed", 3)
        display.phase("warm_start", 5)
        clock.now += 3
        display.update(4, {"loss": 2.5})
        display.phase("rl", 9)
        display.update(1, {"reward": 0.5})
        assert "–:––:–– left" in visible_text(terminal)
        display.finish(["[i]last words"])
    text = visible_text(terminal)
    assert "✓ warm start: step 4 of 5, 0:00:03" in text
    # A phase without steps ends without a message.
    assert text.count("✓") == 2
    assert text.endswith("✓ RL: step 1 of 9, 0:00:00\n[i]last words\n")
    assert "2.5000" not in last_screen(terminal)


def test_rich_samples_escape_markup_and_control_codes(terminal, clock):
    display = rich_display(terminal, clock)
    display.samples(7, SAMPLES)
    text = visible_text(terminal)
    assert text.startswith("\nsamples at step 7 ")
    assert r"[red]7[/red] [/] \x1b[31mred" in text
    assert "\x1b[31mred" not in terminal.getvalue()
    assert re.search(r"-0.50 +first ", text)
    assert re.search(r"\n +second ", text)
    assert re.search(r"1\.00 +3\+4= .* 7 *\n", text)
    assert f"{'a' * 100}…{'a' * 96}=19" in re.sub(r"\s|None|second", "", text)
    display.samples(8, SAMPLES * 3)
    assert "4 of 6 samples at step 8" in visible_text(terminal)


def test_color_of_a_sample_is_its_verdict(terminal, clock):
    rich_display(terminal, clock).samples(1, [SAMPLES[0] | {"reward": 0.2, "correct": False}])
    assert re.search(r"\x1b\[31m0\.20", re.sub(r"\x1b\[31m +", "\x1b[31m", terminal.getvalue()))


def test_rich_messages_are_text(terminal, clock):
    display = rich_display(terminal, clock)
    display.message("[bold]kept[/bold] \x07")
    display.warning("[/] too")
    assert visible_text(terminal) == "[bold]kept[/bold] \\x07\nwarning: [/] too\n"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_rich_restores_the_terminal(terminal, clock, error):
    stdout = sys.stdout

    def fail():
        with rich_display(terminal, clock) as display:
            display.phase("rl", 3)
            display.update(1, {"reward": 0.5})
            assert "\x1b[?25l" in terminal.getvalue()
            assert "\x1b[?25h" not in terminal.getvalue()
            raise error

    with pytest.raises(error):
        fail()
    assert terminal.getvalue().endswith("\x1b[?25h")
    assert "0.500" in last_screen(terminal)
    assert sys.stdout is stdout


@pytest.mark.parametrize("kind", [PlainDisplay, RichDisplay])
def test_update_needs_a_phase(kind):
    display = kind(io.StringIO() if kind is PlainDisplay else Console(file=io.StringIO()))
    with pytest.raises(ValueError, match=r"update\(\) was called before phase\(\)"):
        display.update(1, {})


def test_make_display_chooses_rich_only_for_a_capable_terminal(terminal, monkeypatch):
    assert isinstance(make_display(False, terminal), RichDisplay)
    assert isinstance(make_display(True, terminal), PlainDisplay)
    terminal.encoding = "latin-1"
    assert isinstance(make_display(False, terminal), PlainDisplay)
    terminal.encoding = "utf-8"
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_display(False, terminal), PlainDisplay)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(make_display(False, io.StringIO()), PlainDisplay)


def test_make_display_passes_quiet(terminal):
    make_display(True, terminal).message("hidden")
    assert terminal.getvalue() == ""
    make_display(False, stream := io.StringIO()).message("shown")
    assert stream.getvalue() == "shown\n"


def test_sparkline():
    assert sparkline([], 5) == ""
    assert sparkline([1.0], 5) == "▁"
    assert sparkline(list(range(8)), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, 2.0, 7.0, 7.0, 0.0], 2) == "▁█"
    assert sparkline([float("nan"), float("inf")], 2) == "××"
    # The mean of three values of 0.1 is not exactly 0.1, but a constant must still be flat.
    assert sparkline([0.1] * 7, 3) == "▁▁▁"
    assert sparkline([1e12, 1e12 + 1.0], 2) == "▁▁"
    assert sparkline([1e-12, 3e-12], 2) == "▁█"
    assert sparkline([0.0, 0.0], 2) == "▁▁"
    assert sparkline([-1.0, -2.0], 2) == "█▁"


def test_progress_counts_down_between_steps():
    resumed = Progress("rl", total=60, started=0.0).after_step(51, 30.0)
    assert resumed.remaining(31.0) is None
    later = resumed.after_step(53, 40.0)
    # Two steps took 10 s, and seven steps are left; the first 30 s, spent compiling, do not count.
    assert [later.remaining(now) for now in (40.0, 50.0, 75.0, 76.0, 90.0)] == [
        "0:00:35", "0:00:25", "0:00:00", "0:00:00", "0:00:00",
    ]  # fmt: skip
    assert later.elapsed(90.0) == "0:01:30"


def test_formats_and_labels():
    assert format_duration(59.999) == "0:00:59"
    assert format_duration(100 * 3600 + 61) == "100:01:01"
    assert np.isnan(finite_mean([float("inf")]))
    assert finite_mean([1.0, float("nan"), 4.0]) == 2.5
    assert [metric.label for metric in METRICS] == [label for label, _, _ in FORMATTED]


def test_a_closed_pipe_does_not_end_the_run_and_is_reported_once():
    """This happens in `rljax train | head -1`, or if a terminal is closed."""
    reading, writing = os.pipe()
    messages = []
    with os.fdopen(writing, "w") as pipe:
        screen = ScreenStream(pipe)
        display = make_display(quiet=False, stream=screen)
        display.message("before")
        assert os.read(reading, 100) == b"before\n"
        os.close(reading)
        display.message("after")
        screen.tell(messages.append)
        display.warning("later")
    (line,) = messages
    assert line.startswith("The screen cannot be written to ([Errno 32] Broken pipe). The run continues without it")


class FullDisk(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_reported_when_it_happens():
    messages, screen = [], ScreenStream(FullDisk())
    screen.tell(messages.append)
    assert [screen.write("text"), screen.write("more")] == [4, 4]
    assert len(messages) == 1


def test_a_closed_stream_is_reported_when_it_is_written_to():
    """A caller may close the stream before the run's objects are deleted, which flushes them."""
    messages, stream = [], io.StringIO()
    screen = ScreenStream(stream)
    screen.tell(messages.append)
    stream.close()
    screen.flush()
    screen.close()
    assert messages == []
    later = ScreenStream(stream)
    later.tell(messages.append)
    assert [later.write("text"), later.write("more")] == [4, 4]
    (line,) = messages
    assert line.startswith("The screen cannot be written to (I/O operation on closed file")


def test_a_failure_leaves_no_descriptor_open():
    before = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    ScreenStream(FullDisk()).write("text")
    assert (os.listdir("/proc/self/fd") if before else []) == before


def test_text_that_cannot_be_encoded_is_an_error():
    screen = ScreenStream(io.TextIOWrapper(io.BytesIO(), "ascii"))
    with pytest.raises(UnicodeEncodeError):
        screen.write("\u03b1")
