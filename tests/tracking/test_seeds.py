"""Means over seeds, and groups of runs that differ only in their seeds."""

import json
import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from rljax.errors import InputError
from rljax.tracking import plots
from rljax.tracking.seeds import group_runs, over_seeds
from rljax.training.config import TrainConfig


def make_run(path, **settings):
    """Create the folder of a run that has no steps yet."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(TrainConfig.flat(**settings).to_json() | {"seams": []}))
    return path


def test_the_interval_matches_scipy_s_t_test():
    values = [0.2, 0.5, 0.4, 0.7]
    found = over_seeds([*values, None, math.nan])
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert found == pytest.approx((np.mean(values), low, high, 4))


@pytest.mark.parametrize("values", [[], [0.5], [0.5, 0.7], [0.5, 0.5, 0.5]])
def test_few_or_equal_seeds_have_no_interval(values):
    found = over_seeds(values)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert found.seeds == len(values)


def test_runs_that_differ_only_in_their_seed_form_a_group(tmp_path):
    settings = {"a": {"seed": 0, "run": "a"}, "b": {"seed": 1, "run": "b"}, "c": {"seed": 2, "algorithm": "grpo"}}
    paths = [make_run(tmp_path / name, **each) for name, each in settings.items()]
    assert [(label, len(runs)) for label, runs in group_runs(paths).items()] == [("a (2 seeds)", 2), ("c", 1)]
    assert [*group_runs(paths, by_settings=False)] == ["a", "b", "c"]


def test_a_folder_of_runs_is_a_group_in_the_order_of_the_seeds(tmp_path):
    for seed in (10, 9):
        make_run(tmp_path / "many" / f"seed-{seed}", seed=seed)
    (label, runs), *others = group_runs([tmp_path / "many"]).items()
    assert (label, [run.path.name for run in runs], others) == ("many (2 seeds)", ["seed-9", "seed-10"], [])
    make_run(tmp_path / "mixed" / "a", seed=0)
    make_run(tmp_path / "mixed" / "b", seed=1, algorithm="grpo")
    with pytest.raises(InputError, match="differ in more than their seeds"):
        group_runs([tmp_path / "mixed"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "many").symlink_to(tmp_path / "many")
    both = [tmp_path / "many", tmp_path / "other" / "many"]
    assert [*group_runs(both)] == [f"{path} (2 seeds)" for path in both]
    with pytest.raises(InputError, match="is not the folder of a run"):
        group_runs([tmp_path / "nothing"])


def test_settings_that_no_step_depends_on_do_not_split_a_group(tmp_path):
    for seed, settings in enumerate(({"quiet": True}, {"quiet": False, "checkpoint_every": 7})):
        make_run(tmp_path / "many" / f"seed-{seed}", seed=seed, **settings)
    assert [*group_runs([tmp_path / "many"])] == ["many (2 seeds)"]


def test_two_runs_with_the_same_seed_are_not_two_seeds(tmp_path):
    paths = [make_run(tmp_path / name, seed=3, run=name) for name in ("a", "b")]
    with pytest.raises(InputError, match=r"a and \S+b have the same settings and the same seed, 3, so a mean would count"):
        group_runs(paths)
    with pytest.raises(InputError, match="the same seed, 3"):
        group_runs([tmp_path])
    assert [*group_runs(paths, by_settings=False)] == ["a", "b"]


def test_runs_in_folders_of_the_same_name_are_told_apart(tmp_path):
    paths = [make_run(tmp_path / name / "seed-0") for name in ("a", "b")]
    assert [*group_runs(paths, by_settings=False)] == [str(path) for path in paths]


def test_ablation_runs_with_different_models_form_a_group(tmp_path):
    for seed in (0, 1):
        make_run(
            tmp_path / "arm" / f"seed-{seed}",
            seed=seed,
            model=f"/a/warm-start/seed-{seed}/model",
            dataset="d",
            steps=5 + seed,
        )
    assert [*group_runs([tmp_path / "arm"])] == ["arm (2 seeds)"]


def write_metrics(path, accuracies):
    rows = [{"phase": "eval", "step": step, "accuracy": value} for step, value in accuracies.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def saved_figures(monkeypatch):
    """Collect the figures that would be saved."""
    figures = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: figures.append(figure))
    return figures


def test_a_group_is_plotted_as_a_mean_with_a_band_at_the_common_steps(tmp_path, saved_figures):
    curves = [{0: 0.1, 5: 0.4, 9: 0.9}, {0: 0.2, 5: 0.6}, {0: 0.3, 5: 0.2, 8: 0.1}]
    paths = [write_metrics(tmp_path / f"{index}.jsonl", curve) for index, curve in enumerate(curves)]
    plots.overlay({"group": paths, "one": paths[0]}, tmp_path / "o.png", title="t")
    (axes,) = saved_figures[0].axes
    mean, one = axes.get_lines()
    np.testing.assert_allclose(mean.get_xydata(), [[0, 0.2], [5, 0.4]])
    assert len(one.get_xdata()) == 3
    edges = axes.collections[0].get_paths()[0].vertices
    assert edges[:, 1].max() == pytest.approx(over_seeds([0.4, 0.6, 0.2]).high)
    other = write_metrics(tmp_path / "other.jsonl", {1: 0.5})
    with pytest.raises(InputError, match="no evaluation step in common"):
        plots.overlay({"group": [paths[1], other]}, tmp_path / "o.png", title="t")


def test_36_runs_look_different_and_the_legend_is_outside_the_plot(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: saved.append(figure))
    runs = {
        f"a rather long name {index}": write_metrics(tmp_path / f"{index}.jsonl", {0: 0.0, 9: 1.0}) for index in range(36)
    }
    plots.overlay(runs, tmp_path / "o.png", title="t")
    (figure,) = saved
    figure.canvas.draw()
    (axes,) = figure.axes
    assert len({(line.get_color(), str(line.get_linestyle()), str(line._dash_pattern)) for line in axes.get_lines()}) == 36
    legend, plot = axes.get_legend().get_window_extent(), axes.get_window_extent()
    assert legend.x0 >= plot.x1
    assert legend.x1 <= figure.bbox.x1
    assert legend.y0 >= figure.bbox.y0


def test_twelve_colors_can_be_told_apart():
    """Colors differ by more than 20 in CIELAB; a difference of about 2 is just noticeable."""

    def lab(color):
        channels = np.array([int(color[index : index + 2], 16) for index in (1, 3, 5)]) / 255
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        matrix = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
        scaled = np.array(matrix) @ linear / np.array([0.95047, 1, 1.08883])
        x, y, z = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    assert len(plots.OVERLAY_COLORS) == 12
    assert min(np.linalg.norm(lab(a) - lab(b)) for a, b in combinations(plots.OVERLAY_COLORS, 2)) > 20
