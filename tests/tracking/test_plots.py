"""Plots: the curves show the file's values, and any run that has begun can be plotted."""

import json
import sys

import numpy as np
import pytest
from matplotlib import image
from matplotlib.figure import Figure

from rljax.errors import InputError
from rljax.tracking import plots

RL_METRICS = {"reward": 0.5, "response_length": 34.0, "truncated_share": 0.01, "filtered_ratio": 0.3, "entropy": 0.4,
              "kl": 0.01, "grad_norm": 1.0, "clip_fraction": 0.02, "accuracy": 0.4, "loss": 0.0}  # fmt: skip


def warm_start_row(step, **metrics):
    return {"phase": "warm_start", "step": step, "loss": 2.0, "grad_norm": 1.0, **metrics}


def rl_row(step, **metrics):
    return {"phase": "rl", "step": step, **RL_METRICS, **metrics}


def held_out_row(step, accuracy):
    return {"phase": "eval", "step": step, "accuracy": accuracy}


COMPLETE_RUN = [
    held_out_row(0, 0.0),
    *(warm_start_row(step) for step in range(1, 5)),
    held_out_row(0, 0.1),
    *(warm_start_row(step) for step in range(5, 9)),
    held_out_row(0, 0.2),
    rl_row(1), rl_row(2, grad_norm=None), rl_row(3, reward=None),
    held_out_row(3, 0.5),
    *(rl_row(step) for step in range(4, 7)),
    held_out_row(6, 0.7),
]  # fmt: skip


@pytest.fixture
def saved_figures(monkeypatch):
    """Collect the figures that are saved."""
    figures = []
    save = Figure.savefig

    def collect(figure, path):
        figures.append(figure)
        save(figure, path)

    monkeypatch.setattr(Figure, "savefig", collect)
    return figures


def write(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def labels(figure):
    return [axes.get_title(loc="left") for axes in figure.axes[1:]]


def test_complete_run_is_plotted(tmp_path, saved_figures):
    out = tmp_path / "pictures" / "curves.png"
    plots.plot_curves(write(tmp_path / "metrics.jsonl", COMPLETE_RUN), out, title="cost $5 to $6 a_b")
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    pixels = image.imread(out)
    assert pixels.shape == (1290, 1950, 4)
    assert 0.01 < (pixels[..., :3] < 0.95).any(-1).mean() < 0.5
    assert "matplotlib.pyplot" not in sys.modules
    (figure,) = saved_figures
    assert figure.get_suptitle() == "cost $5 to $6 a_b"
    assert labels(figure) == ["reward", "response length (tokens)", "truncated (%)", "filtered groups (%)",
                              "entropy (nats/token)", "KL (nats/token)", "gradient norm", "clip fraction (%)"]  # fmt: skip
    assert [axes.get_xlabel() for axes in figure.axes] == ["RL step", *[""] * 4, *["RL step"] * 4]
    # The eight warm-start steps take a third of the width of the six RL steps, which is 2 units.
    top = figure.axes[0]
    *_, curve = top.get_lines()
    assert curve.get_xdata().tolist() == [-2.0, -1.0, 0.0, 3.0, 6.0]
    assert curve.get_ydata().tolist() == [0.0, 0.1, 0.2, 0.5, 0.7]
    assert top.get_xlim() == (-2.0, 6.0)
    assert top.get_xticks().tolist() == [0.0, 2.0, 4.0, 6.0]
    assert [text.get_text() for text in top.get_legend().get_texts()] == ["training, sampled (smoothed)", "held-out"]
    assert [text.get_text() for text in top.texts] == [" 70.0%", "warm start\n8 supervised steps"]
    reward, filtered = figure.axes[1].get_lines()[0], figure.axes[4].get_lines()[0]
    np.testing.assert_array_equal(reward.get_ydata(), [0.5, 0.5, np.nan, 0.5, 0.5, 0.5])
    np.testing.assert_array_equal(filtered.get_ydata(), [30.0] * 6)


def test_run_without_warm_start_and_with_few_metrics(tmp_path, saved_figures):
    rows = [{"phase": "rl", "step": step, "reward": 0.1 * step} for step in (1, 2)]
    plots.plot_curves(write(tmp_path / "metrics.jsonl", rows), tmp_path / "c.svg", title="t")
    assert labels(saved_figures[0]) == ["reward"]
    assert saved_figures[0].axes[0].get_xlim() == (0.0, 2.0)
    assert saved_figures[0].axes[0].get_legend() is None


def test_the_times_of_a_step_are_stacked(tmp_path, saved_figures):
    """A phase that is missing from a step takes 0 seconds; a step without times, from an earlier version, is omitted."""
    times = [{}, {"sample": 2.0, "update": 1.0}, {"sample": 2.0, "update": 1.0, "save": 3.0}]
    rows = [
        rl_row(step, **{f"{name}_seconds": value for name, value in phases.items()}) for step, phases in enumerate(times)
    ]
    plots.plot_curves(write(tmp_path / "metrics.jsonl", rows), tmp_path / "c.png", title="t")
    assert labels(saved_figures[0])[-1] == "time of a step (s)"
    assert [axes.get_xlabel() for axes in saved_figures[0].axes[-4:]] == ["RL step"] * 4
    panel = saved_figures[0].axes[-1]
    # the legend lists the phases from top to bottom
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["saving", "updates", "sampling"]
    curves = plots.phase_curves(rows)
    assert {name: (curve.steps.tolist(), curve.values.tolist()) for name, curve in curves.items()} == {
        "sampling": ([1.0, 2.0], [2.0, 2.0]),
        "updates": ([1.0, 2.0], [1.0, 1.0]),
        "saving": ([1.0, 2.0], [0.0, 3.0]),
    }
    assert panel.get_ylim() == (0.0, 6.0)


def test_run_in_its_warm_start(tmp_path, saved_figures):
    plots.plot_curves(write(tmp_path / "metrics.jsonl", COMPLETE_RUN[:6]), tmp_path / "c.png", title="t")
    top = saved_figures[0].axes[0]
    assert labels(saved_figures[0]) == ["loss", "gradient norm"]
    assert [axes.get_xlabel() for axes in saved_figures[0].axes] == ["warm-start step"] * 3
    assert top.get_xlim() == (-4.0, 0.0)
    assert (top.get_xticks().tolist(), [text.get_text() for text in top.get_xticklabels()]) == (
        [-4.0, -3.0, -2.0, -1.0, 0.0],
        ["0", "1", "2", "3", "4"],
    )
    assert top.get_lines()[-1].get_xdata().tolist() == [-4.0, 0.0]


def test_run_with_one_evaluation_only(tmp_path, saved_figures):
    rows = [{"phase": "eval", "step": 0, "accuracy": None}, {"phase": "eval", "step": 0, "accuracy": None}]
    plots.plot_curves(write(tmp_path / "metrics.jsonl", rows), tmp_path / "c.png", title="t")
    assert len(saved_figures[0].axes) == 1
    assert not saved_figures[0].axes[0].texts


@pytest.mark.parametrize(
    ("values", "bottom"),
    [([1.0, 4.0], 0.0), ([0.6, 1.0], 0.0), ([0.7, 1.0], None), ([-1.0, 1.0], None)],
)
def test_panels_start_at_zero_unless_that_flattens_the_curve(tmp_path, saved_figures, values, bottom):
    rows = [{"phase": "rl", "step": step, "reward": value} for step, value in enumerate(values)]
    plots.plot_curves(write(tmp_path / "metrics.jsonl", rows), tmp_path / "c.png", title="t")
    assert (saved_figures[0].axes[1].get_ylim()[0] == 0.0) == (bottom == 0.0)


def test_a_warm_start_takes_at_most_a_quarter_of_the_width(tmp_path, saved_figures):
    for warm_steps in (6000, 10):
        rows = [warm_start_row(warm_steps), held_out_row(0, 0.3), *(rl_row(step) for step in range(1, 61))]
        plots.plot_curves(write(tmp_path / "metrics.jsonl", rows), tmp_path / "c.png", title="t")
    assert [figure.axes[0].get_xlim() for figure in saved_figures] == [(-20.0, 60.0), (-10.0, 60.0)]


def test_overlay_draws_each_run(tmp_path, saved_figures):
    other = [
        rl_row(1),
        held_out_row(1, 0.4),
        rl_row(2),
        held_out_row(2, 0.6),
        rl_row(3),
        held_out_row(3, 0.3),
        rl_row(4),
        held_out_row(4, 0.8),
        held_out_row(9, 0.9),
    ]
    runs = {"_seed $0$": write(tmp_path / "a.jsonl", COMPLETE_RUN), "seed 1": write(tmp_path / "b.jsonl", other)}
    plots.overlay(runs, tmp_path / "o.png", title="seeds")
    (axes,) = saved_figures[0].axes
    assert [line.get_xdata().tolist() for line in axes.get_lines()] == [[0.0, 3.0, 6.0], [1.0, 2.0, 3.0, 4.0, 9.0]]
    assert [line.get_ydata().tolist() for line in axes.get_lines()] == [[0.2, 0.5, 0.7], [0.4, 0.6, 0.3, 0.8, 0.9]]
    assert axes.get_xlim() == (0.0, 9.0)
    assert axes.get_ylabel() == "held-out accuracy"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["_seed $0$", "seed 1"]
    assert len({line.get_color() for line in axes.get_lines()}) == 2
    assert (tmp_path / "o.png").stat().st_size > 10_000


def test_the_last_row_of_a_step_is_plotted():
    rows = [rl_row(2, reward=0.1), rl_row(1, reward=0.2), {"phase": "rl", "step": 3}, rl_row(2, reward=0.3)]
    curve = plots.curve_of(rows, "reward")
    assert (curve.steps.tolist(), curve.values.tolist()) == ([1.0, 2.0], [0.2, 0.3])
    rows = [rl_row(1), held_out_row(1, 0.1), held_out_row(1, 0.2), {"phase": "eval", "step": 2, "seconds": 1.0}]
    curve = plots.held_out_accuracy(rows, warm_scale=1.0)
    assert (curve.steps.tolist(), curve.values.tolist()) == ([1.0], [0.2])


def test_moving_average_matches_its_formula():
    values, span = [3.0, float("nan"), 1.0, 8.0], 4.0
    beta = 1 - 2 / (span + 1)
    expected = []
    for t in range(4):
        weights = [beta ** (t - s) for s in range(t + 1) if np.isfinite(values[s])]
        terms = [beta ** (t - s) * values[s] for s in range(t + 1) if np.isfinite(values[s])]
        expected.append(sum(terms) / sum(weights))
    np.testing.assert_allclose(plots.moving_average(np.array(values), span=span), expected, rtol=1e-12)
    np.testing.assert_array_equal(plots.moving_average(np.array([np.nan, 2.0, 5.0]), span=1.0), [np.nan, 2.0, 5.0])


@pytest.mark.parametrize("content", ["", '{"phase": "rl", "step": "one"}\n'])
def test_an_error_names_the_unusable_line(tmp_path, content):
    path = tmp_path / "metrics.jsonl"
    path.write_text(content)
    for plot in (plots.plot_curves, lambda path, *rest, title: plots.overlay({"a": path}, *rest, title=title)):
        with pytest.raises(InputError, match=r"metrics\.jsonl line 1"):
            plot(path, tmp_path / "c.png", title="t")
    assert not (tmp_path / "c.png").exists()


def test_impossible_plots_are_refused(tmp_path):
    path = write(tmp_path / "metrics.jsonl", [rl_row(1), {"phase": "eval", "step": 1, "seconds": 1.0}])
    with pytest.raises(InputError, match=r"c\.jpeg must end in \.png or \.pdf or \.svg"):
        plots.plot_curves(path, tmp_path / "c.jpeg", title="t")
    with pytest.raises(InputError, match=r"metrics\.jsonl has no held-out accuracy from RL"):
        plots.overlay({"a": path}, tmp_path / "c.png", title="t")
    with pytest.raises(InputError, match="there is no run to plot"):
        plots.overlay({}, tmp_path / "c.png", title="t")


def test_requested_metrics_have_one_panel_each(tmp_path, saved_figures):
    rows = [*COMPLETE_RUN, rl_row(7, repetition=0.25)]
    assert plots.plot_metrics(rows, ["repetition", "kl", "sampler_gap"], tmp_path / "n.png", title="")
    assert [axes.get_title(loc="left") for axes in saved_figures[0].axes] == ["repetition (%)", "KL (nats/token)"]
    line = saved_figures[0].axes[0].get_lines()[0]
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([7.0], [25.0])
    assert not plots.plot_metrics(rows, ["sampler_gap"], tmp_path / "none.png", title="")
    assert not (tmp_path / "none.png").exists()


def test_rows_give_the_same_plot_as_their_file(tmp_path, saved_figures):
    plots.plot_curves(write(tmp_path / "metrics.jsonl", COMPLETE_RUN), tmp_path / "a.png", title="t")
    plots.plot_curves(COMPLETE_RUN, tmp_path / "b.png", title="t")
    assert labels(saved_figures[0]) == labels(saved_figures[1])
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_limits_of_alarms_are_drawn_and_do_not_flatten_a_curve(tmp_path, saved_figures):
    rows = [rl_row(step, repetition=0.4, kl_to_reference=0.001) for step in range(1, 5)]
    assert plots.plot_metrics(rows, ["repetition", "kl_to_reference"], tmp_path / "n.png", title="")
    repetition, kl = saved_figures[0].axes
    assert [set(line.get_ydata()) for line in repetition.get_lines()][-1] == {50.0}
    assert repetition.get_ylim()[1] >= 50.0
    assert [text.get_text() for text in kl.texts] == ["limit 0.1"]
    assert kl.get_ylim()[1] < 0.01


def test_curves_show_alarm_limits_and_turns_if_there_are_several(tmp_path, saved_figures):
    one, several = ([rl_row(step, turns=turns, truncated_share=0.2) for step in (1, 2)] for turns in (1.0, 2.5))
    for rows in (one, several):
        plots.plot_curves(rows, tmp_path / "c.png", title="t")
    panels = [dict(zip(labels(figure), figure.axes[1:], strict=True)) for figure in saved_figures]
    assert [[name for name in names if "turns" in name] for names in panels] == [[], ["turns"]]
    assert set(panels[0]["truncated (%)"].get_lines()[-1].get_ydata()) == {25.0}
    assert [text.get_text() for text in panels[0]["KL (nats/token)"].texts] == ["limit 0.1"]


def test_a_run_with_tools_has_panels_for_calls_errors_and_waiting_times(tmp_path, saved_figures):
    tools = {"episode_tool_calls": 1.5, "episode_tool_errors": 0.25, "episode_malformed_calls": 0.0, "judge_seconds": 3.0}
    for turns in (1.0, 2.5):
        plots.plot_curves([rl_row(step, turns=turns, **tools) for step in (1, 2)], tmp_path / "c.png", title="t")
    one, several = (dict(zip(labels(figure), figure.axes[1:], strict=True)) for figure in saved_figures)
    calls = ["tool calls per episode", "tool errors per episode", "malformed calls per episode"]
    assert set(calls) | {"waiting for the environment (s)"} <= set(several)
    assert "waiting for the environment (s)" not in one
    assert several["tool calls per episode"].get_lines()[-1].get_ydata().tolist() == [1.5, 1.5]


def test_zeros_and_small_values_have_plain_axes(tmp_path, saved_figures):
    plots.plot_curves([rl_row(step, reward=0.0, kl=step * 1e-6) for step in (1, 2)], tmp_path / "c.png", title="t")
    panels = dict(zip(labels(saved_figures[0]), saved_figures[0].axes[1:], strict=True))
    assert panels["reward"].get_ylim() == (0.0, 1.0)
    kl = panels["KL (nats/token)"].yaxis
    assert kl.get_offset_text().get_text() == ""
    assert "1e-06" in [label.get_text() for label in kl.get_ticklabels()]


def test_a_metric_without_a_finite_value_has_no_panel(tmp_path, saved_figures):
    rows = [rl_row(step, reward=None) for step in (1, 2)]
    plots.plot_curves(rows, tmp_path / "c.png", title="t")
    assert "reward" not in labels(saved_figures[0])
    assert "response length (tokens)" in labels(saved_figures[0])
    assert not plots.plot_metrics(rows, ["reward"], tmp_path / "n.png", title="")


def test_held_out_accuracy_has_a_wilson_interval(tmp_path, saved_figures):
    rows = [
        rl_row(1),
        {**held_out_row(1, 0.5), "judged": 10},
        rl_row(2),
        {**held_out_row(2, 0.9), "judged": 40},
        rl_row(3),
        held_out_row(3, 0.9),
    ]
    found = plots.held_out_accuracy(rows, warm_scale=None)
    z = 1.959964
    for index, count in ((0, 10), (1, 40)):
        accuracy = found.values[index]
        middle = (accuracy + z**2 / (2 * count)) / (1 + z**2 / count)
        half = z / (1 + z**2 / count) * np.sqrt(accuracy * (1 - accuracy) / count + z**2 / (4 * count**2))
        np.testing.assert_allclose(found.interval()[:, index], [middle - half, middle + half], rtol=1e-6)
    assert np.isnan(found.interval()[:, 2]).all()
    plots.plot_curves(rows, tmp_path / "c.png", title="t")
    legend = saved_figures[0].axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()][-1] == "held-out, 95 % interval"


def test_legends_hide_no_data(tmp_path, saved_figures):
    rows = [rl_row(step, sample_seconds=1.0, update_seconds=1.0) for step in range(1, 9)]
    plots.plot_curves([*COMPLETE_RUN, *rows], tmp_path / "c.png", title="t")
    plots.overlay({"a": write(tmp_path / "a.jsonl", COMPLETE_RUN)}, tmp_path / "o.png", title="t")
    for figure in saved_figures:
        for axes in figure.axes:
            if axes.get_legend() is not None:
                assert not axes.get_legend().get_window_extent().overlaps(axes.patch.get_window_extent().shrunk(0.98, 0.98))
