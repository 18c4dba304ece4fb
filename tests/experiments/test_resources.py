"""The resource costs of algorithms: energy summed over CPU packages, a measured run, and the table."""

import pytest
import resources


def test_joules_sums_packages(tmp_path):
    assert resources.read_joules(tmp_path) is None
    for name, energy in {"intel-rapl:0": 2_000_000, "intel-rapl:1": 500_000, "intel-rapl:0:0": 9_000_000}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{energy}\n", encoding="utf-8")
    assert resources.read_joules(tmp_path) == 2.5


def test_measure_and_report_costs(monkeypatch):
    tiny = {"layers": 1, "width": 32, "hidden": 32, "heldout_problems": 4, "train_problems": 24, "operands": (2, 2)}
    tiny |= {"warm_start_steps": 1, "prompts": 2, "group_size": 2, "minibatches": 1, "steps": 3, "max_response_tokens": 10}
    monkeypatch.setattr(resources, "CONFIG", resources.CONFIG.replace(**tiny))
    row = resources.measure(resources.CONFIG.replace(**resources.ALGORITHMS["GRPO"], seed=0))
    assert row["step_seconds"] > 0
    assert row["trained"] == 4
    assert row["bytes"] >= 0
    row |= {"bytes": 3_000_000, "joules": None, "step_seconds": 0.5}
    rows = [{"algorithm": name, "round": 0} | row for name in resources.ALGORITHMS]
    rows[1]["value_seconds"] = 0.25
    page = resources.report(rows)
    assert page.count("unavailable") == 5
    assert "| 50 (50 to 50), 1.00x | 1.0x | 28,800 (28,800 to 28,800), 1.00x | 1,200 |" in page
    assert "| 62 (62 to 62), 1.25x | 1.8x |" in page
    assert "- time, s: τ = 0.50;" in page


@pytest.mark.parametrize("name", resources.ALGORITHMS)
def test_config_of_starts_from_base_model(name, tmp_path):
    config = resources.config_of(name, resources.Arguments(work=tmp_path, steps=4), 2)
    assert config.model.path == str(tmp_path / "base" / "last")
    assert (config.algorithm.name, config.optimization.steps, config.run.seed, config.warm_start.steps) == (
        resources.ALGORITHMS[name]["algorithm"],
        4,
        2,
        0,
    )
