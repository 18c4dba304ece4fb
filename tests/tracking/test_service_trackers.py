"""Trackers for wandb and MLflow: what they send, how a resumed run continues, and what happens without a server."""

import json
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax.errors import InputError
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.service_trackers import PARAMETERS_AT_ONCE, MlflowTracker, WandbTracker, service_trackers
from rljax.tracking.trackers import Tracker

SAMPLES = [
    {"prompt": "1+1=", "completion": "2\u2028é\ud800\n", "answer": "2", "reward": np.float32(1.0), "correct": True},
    {"prompt": "1+2=", "completion": "``` x", "answer": None, "reward": float("nan"), "correct": None},
]
# NumPy and JAX scalars work too, although signatures say float
pytestmark = pytest.mark.usefixtures("without_type_checks")


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "addition", {"seed": 3})


class FakeWandb:
    """The part of wandb that the tracker uses; it records the calls."""

    def __init__(self):
        self.started, self.metrics, self.logged, self.finished = [], [], [], 0

    def init(self, **options):
        self.started.append(options)
        return SimpleNamespace(id="abc123", define_metric=self.define_metric, log=self.logged.append, finish=self.finish)

    def define_metric(self, *names, **options):
        self.metrics.append((*names, *options.values()))

    def finish(self):
        self.finished += 1

    def Table(self, columns, data):
        return columns, data


def test_wandb_receives_everything_and_resumes(run, monkeypatch):
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    tracker = WandbTracker(run, project="sums")
    tracker.log("rl", 2, {"reward": jnp.float32(0.5)})
    tracker.samples(2, SAMPLES[1:])
    tracker.close()
    start = {"project": "sums", "name": "addition", "dir": str(run.path), "config": {"seed": 3}}
    assert wandb.started == [start]
    assert ("rl/*", "rl/step") in wandb.metrics
    assert wandb.logged[0] == {"rl/step": 2, "rl/reward": 0.5}
    assert isinstance(wandb.logged[0]["rl/reward"], float)
    columns, ((step, *shown, reward, correct),) = wandb.logged[1]["samples"]
    assert columns == ["step", "prompt", "completion", "answer", "reward", "correct"]
    assert (step, shown, np.isnan(reward), correct) == (2, ["1+2=", "``` x", None], True, None)
    assert wandb.finished == 1
    WandbTracker(run, project="sums")
    assert wandb.started[1] == {**start, "id": "abc123", "resume": "must"}


def test_missing_wandb_is_refused_with_the_install_command(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"wandb is not installed; run `pip install wandb`"):
        WandbTracker(run, project="sums")


def test_an_environment_variable_overrides_the_project(run, monkeypatch):
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setenv("WANDB_PROJECT", "of the team")
    WandbTracker(run, project="sums")
    assert wandb.started[0]["project"] == "of the team"


class ServerError(Exception):
    """Stand-in for the exception of MLflow's client."""


class FakeMlflow:
    """The part of MLflow that the tracker uses, as both its module and its client; it records the calls."""

    def __init__(self, down=False):
        self.down, self.calls = down, []
        self.entities = SimpleNamespace(Param=lambda *values: values, Metric=lambda *values: values)
        self.exceptions = SimpleNamespace(MlflowException=ServerError)

    def MlflowClient(self):
        return self

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id="7") if name == "known" else None

    def create_experiment(self, name):
        self.calls.append(("experiment", name))
        return "8"

    def create_run(self, experiment, run_name):
        self.calls.append(("run", experiment, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id="abc"))

    def log_batch(self, run, metrics=(), params=(), synchronous=True):
        self.calls.append(("batch", run, list(metrics), list(params), synchronous))
        return SimpleNamespace(wait=self._answer)

    def log_text(self, run, text, file):
        self.calls.append(("text", run, text, file))
        self._answer()

    def update_run(self, run, status):
        self.calls.append(("update", run, status))

    def set_terminated(self, run):
        self.calls.append(("end", run))
        self._answer()

    def _answer(self):
        if self.down:
            raise ServerError("no answer")


def test_mlflow_receives_everything_and_resumes(run, monkeypatch):
    mlflow = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    tracker = MlflowTracker(run, experiment="sums")
    tracker.log("rl", 2, {"reward": jnp.float32(0.5)})
    tracker.samples(2, SAMPLES)
    tracker.close()
    first, second, parameters, (*_, ((name, value, _, step),), _, synchronous), text, end = mlflow.calls
    assert (first, second) == (("experiment", "sums"), ("run", "8", "addition"))
    assert parameters == ("batch", "abc", [], [("seed", "3")], True)
    assert (name, value, step, synchronous) == ("rl/reward", 0.5, 2, False)
    assert text[-1] == "samples/step-2.jsonl"
    assert [json.loads(line)["reward"] for line in text[2].split("\n")[:-1]] == [1.0, None]
    assert end == ("end", "abc")
    MlflowTracker(run, experiment="sums")
    assert mlflow.calls[-1] == ("update", "abc", "RUNNING")


def test_samples_are_sent_after_pending_metrics(run, monkeypatch):
    """Sending samples reads the run, and MLflow's file store cannot be read while another thread writes to it."""
    mlflow, order = FakeMlflow(), []
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setattr(mlflow, "log_batch", lambda *_, **__: SimpleNamespace(wait=lambda: order.append("waited")))
    tracker = MlflowTracker(run, experiment="sums")
    monkeypatch.setattr(mlflow, "log_text", lambda *_: order.append("samples"))
    tracker.log("rl", 1, {"reward": 0.5})
    tracker.log("eval", 1, {"accuracy": 0.5})
    assert order == [], "metrics are sent in the background"
    tracker.samples(1, SAMPLES)
    tracker.close()
    assert order == ["waited", "waited", "samples"]


def test_mlflow_receives_settings_in_batches_and_reuses_an_experiment(tmp_path, monkeypatch):
    mlflow = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "known")
    config = rljax.TrainConfig().to_json()
    MlflowTracker(RunFolder.create(tmp_path / "long", config), experiment="sums")
    start, *batches = mlflow.calls
    assert start == ("run", "7", "long")
    sent = dict(parameter for batch in batches for parameter in batch[3])
    assert sent["optimization.steps"] == str(config["optimization"]["steps"])
    assert len(sent) > PARAMETERS_AT_ONCE >= max(len(batch[3]) for batch in batches)


def test_a_server_that_cannot_be_reached_does_not_end_the_run(run, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "mlflow", FakeMlflow(down=True))
    tracker = MlflowTracker(run, experiment="sums")
    for step in range(3):
        tracker.log("rl", step, {"reward": 0.5})
    tracker.samples(2, SAMPLES)
    tracker.close()
    assert "MLflow did not accept the samples: ServerError: no answer" in caplog.text
    assert "MLflow did not accept 3 rows of metrics; metrics.jsonl has them." in caplog.text


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_a_missing_package_is_refused(run, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"needs the package {package}, .*; run `pip install {package}`"):
        service_trackers(run, "sums", wandb=package == "wandb", mlflow=package == "mlflow")


def test_services_are_trackers_that_refuse_bad_rows(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb())
    monkeypatch.setitem(sys.modules, "mlflow", FakeMlflow())
    assert service_trackers(run, "sums", wandb=False, mlflow=False) == []
    for tracker in service_trackers(run, "sums", wandb=True, mlflow=True):
        assert isinstance(tracker, Tracker)
        with pytest.raises(ValueError, match="step must not be negative, got -1"):
            tracker.log("rl", -1, {})


def test_a_run_can_be_read_from_a_real_mlflow_store(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="the package mlflow-skinny is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/store")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = RunFolder.create(tmp_path / "addition", rljax.TrainConfig().to_json())
    for step in (1, 2):  # the second tracker resumes the run
        tracker = MlflowTracker(run, experiment="sums")
        tracker.log("rl", step, {"reward": 0.5 * step, "loss": float("nan")})
        tracker.samples(step, SAMPLES)
        tracker.close()
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("sums").experiment_id])
    assert found.info.run_name == "addition"
    assert found.info.status == "FINISHED"
    assert [(entry.step, entry.value) for entry in client.get_metric_history(found.info.run_id, "rl/reward")] == [
        (1, 0.5),
        (2, 1.0),
    ]
    assert found.data.params["data.dataset"] == "None"
    assert [entry.path for entry in client.list_artifacts(found.info.run_id, "samples")] == [
        "samples/step-1.jsonl",
        "samples/step-2.jsonl",
    ]


def test_a_run_is_written_to_a_real_wandb_folder(run, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="the package wandb is not installed")
    for name, value in {"MODE": "offline", "ENTITY": "team", "RUN_GROUP": "seeds", "TAGS": "a,b"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    tracker = WandbTracker(run, project="sums")
    page = wandb.run
    assert (page.entity, page.group, page.tags, page.project) == ("team", "seeds", ("a", "b"), "sums")
    tracker.log("rl", 1, {"reward": 0.5})
    tracker.samples(1, SAMPLES[1:])
    tracker.close()
    assert list(run.path.glob("wandb/offline-run-*/*.wandb"))
