"""Federated averaging: clients train on their own problems, and each round ends with the weighted mean of their models."""

import federated
import jax
import numpy as np
import pytest
from federated import ARMS, CLIENTS, Data, by_seed, claims, make_data, report, run_seed, train_in_rounds

import rljax
from rljax.programs.trained_policy import load

TINY = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "hidden": 32, "train_problems": 12, "heldout_problems": 4}
STEP = {"prompts": 2, "group_size": 2, "replicas": 1, "learning_rate": 1e-2, "warm_start_batch": 4}


@pytest.fixture
def training_calls(monkeypatch):
    """Shrink the experiment; return a list to which every training run appends its configuration and problems."""
    calls, train = [], rljax.train

    def watch(config, problems=None, **options):
        calls.append((config, problems))
        # Even a random model earns this reward for some responses.
        odd = lambda completions: [float(len(text) % 2) for text in completions]  # noqa: E731
        return train(config, odd, problems=problems, **options)

    monkeypatch.setattr(federated, "CONFIG", federated.CONFIG.replace(**TINY, **STEP))
    monkeypatch.setattr(federated, "START", {"warm_start_steps": 1, "steps": 0})
    monkeypatch.setattr(federated, "CLIENTS", {"+": 9, "-": 3})
    monkeypatch.setattr(federated, "HELDOUT", 4)
    monkeypatch.setattr(federated, "ROUNDS", {"two rounds": (2, 1), "one round": (1, 2)})
    monkeypatch.setattr(federated.rljax, "train", watch)
    return calls


def params_of(folder):
    """All parameters of a model, flattened into one float64 array."""
    params = load(folder, problems=[rljax.Problem("1+1=", "2")], reward="exact").params
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(params)])


def test_make_data_gives_clients_their_own_problems():
    data = make_data(3)
    for operator, count in CLIENTS.items():
        others = {*CLIENTS} - {operator}
        problems = [*data.train[operator], *data.heldout[operator]]
        assert len(data.train[operator]) == count
        assert all(operator in problem.prompt for problem in problems)
        assert not any(other in problem.prompt for other in others for problem in problems)
        prompts = {problem.prompt for problem in data.train[operator]}
        assert not prompts & {problem.prompt for problem in data.heldout[operator]}


def test_round_ends_with_weighted_mean(training_calls, monkeypatch, tmp_path):
    measure = federated.accuracies_of
    monkeypatch.setattr(
        federated,
        "accuracies_of",
        lambda model, data: measure(model, data) if model.parent.name == "start" else {"+": 0, "-": 1},
    )
    row = run_seed(tmp_path, 0)
    assert row["alone"] == {"+": 0, "-": 1}
    assert {*row["before"]} == {"+", "-"}
    assert {*row} == {"before", "pooled", "two rounds", "one round", "alone", "seconds"}
    (seed_folder,) = tmp_path.iterdir()
    start, rounds = params_of(seed_folder / "start" / "last"), seed_folder / "two-rounds"
    for number in (0, 1):
        one, other, mean = (params_of(rounds / f"{number}-{model}") for model in ("0/last", "1/last", "mean"))
        assert min(abs(one - start).max(), abs(other - start).max(), abs(one - other).max()) > 1e-4
        np.testing.assert_allclose(mean, (9 * one + 3 * other) / 12, atol=1e-6)
    begun = [config.model.path for config, _ in training_calls]
    assert begun[:2] == [None, str(seed_folder / "start" / "last")], "the public model, then the pooled run"
    assert begun[2:6] == [str(seed_folder / "start" / "last")] * 2 + [str(rounds / "0-mean")] * 2
    assert len({config.run.seed for config, _ in training_calls[2:6]}) == 4, "every round must have its own problem order"
    sampled = {"pooled": 0, "two-rounds": 0, "one-round": 0}
    for config, (problems, _) in training_calls[1:]:
        arm = next(name for name in sampled if f"/{name}" in config.run.folder)
        sampled[arm] += config.optimization.steps * config.sampling.prompts
        counts = [sum(operator in problem.prompt for problem in problems) for operator in "+-"]
        assert counts in ([[9, 3]] if arm == "pooled" else [[9, 0], [0, 3]])
    assert len({*sampled.values()}) == 1, "every arm must sample equally many responses"
    count = len(training_calls)
    assert {**run_seed(tmp_path, 0), "seconds": 0} == {**row, "seconds": 0}
    assert len(training_calls) == count, "finished runs must not be repeated"


def test_stopped_client_is_resumed_before_the_mean(training_calls, monkeypatch, tmp_path):
    del training_calls
    stopped = []

    def stop(*arguments, **options):
        stopped.append((arguments, options))
        raise rljax.InputError("stopped")

    data = make_data(0)
    monkeypatch.setattr(federated.rljax, "train", stop)
    with pytest.raises(rljax.InputError, match="stopped"):
        train_in_rounds(tmp_path / "model", tmp_path / "rounds", data, 0, rounds=1, steps=1)
    assert [options["resume"] for _, options in stopped] == ["auto"]
    assert not (tmp_path / "rounds" / "0-mean").exists()


def test_arms_need_equal_step_counts(training_calls, monkeypatch, tmp_path):
    del training_calls
    monkeypatch.setattr(federated, "ROUNDS", {"two rounds": (2, 1), "one round": (1, 3)})
    monkeypatch.setattr(federated, "finish_run", lambda folder, config: folder)
    with pytest.raises(ValueError, match="must have the same number of steps"):
        run_seed(tmp_path, 0)


def test_report_pairs_arms_by_seed():
    rows = [
        {"seed": seed, "before": {"+": 0.1, "-": 0.1}}
        | {arm: {"+": 0.1 * seed + 0.2 * number, "-": 0.1 * seed} for number, arm in enumerate(ARMS)}
        for seed in range(5)
    ]
    assert by_seed(rows, "alone")[1] == pytest.approx(0.4)
    found = report(rows)
    assert "| alone | 80.0 % (60.4 to 99.6) | 20.0 % (0.4 to 39.6) | 50.0 % (30.4 to 69.6) | +30.0 |" in found
    assert "written down before the runs" in found
    assert len(list(claims(rows))) == 3
    assert "written down" not in report(rows[:3]), "three seeds decide nothing"
    assert Data._fields == ("train", "heldout")
