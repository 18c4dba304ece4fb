"""Trackers: every logged metric is in the file, and a resumed run appends to the same file."""

import json
import struct

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from rljax.tracking.rows import read_metrics
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.trackers import JsonlTracker, TensorBoardTracker, Tracker, Trackers

SAMPLES = [
    {"prompt": "1+1=", "completion": "2\u2028é\ud800\n", "answer": "2", "reward": np.float32(1.0), "correct": True},
    {"prompt": "1+2=", "completion": "``` x", "answer": None, "reward": float("nan"), "correct": None},
]


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "addition", {"seed": 3})


def read_events(run):
    """Yield the step and the value of each summary; a record is a length, its checksum, the data, and their checksum."""
    for path in sorted(run.tensorboard.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            yield from ((event.step, value) for value in event.summary.value)
            data = data[16 + length :]


@pytest.mark.usefixtures("without_type_checks")  # NumPy and JAX scalars work too, although signatures say float
def test_jsonl_rows_are_written_immediately(run):
    tracker = JsonlTracker(run)
    metrics = {"seconds": 1.5, "reward": jnp.float32(0.25), "loss": float("nan"), "kl": -jnp.inf, "grad_norm": np.inf}
    tracker.log("rl", np.int64(7), metrics)
    assert run.metrics.read_text() == (
        '{"phase": "rl", "step": 7, "seconds": 1.5, "reward": 0.25, "loss": null, "kl": null, "grad_norm": null}\n'
    )
    tracker.log("eval", 0, {"accuracy": 1})
    assert read_metrics(run.metrics)[1] == {"phase": "eval", "step": 0, "accuracy": 1.0}
    tracker.samples(7, SAMPLES)
    assert [json.loads(line) for line in run.samples.read_text().split("\n")[:-1]] == [
        {"step": 7, "prompt": "1+1=", "completion": "2\u2028é\ud800\n", "answer": "2", "reward": 1.0, "correct": True},
        {"step": 7, "prompt": "1+2=", "completion": "``` x", "answer": None, "reward": None, "correct": None},
    ]
    assert "é\\ud800" in run.samples.read_text()
    with pytest.raises(ValueError, match="not JSON compliant"):
        tracker.samples(7, [{**SAMPLES[0], "answer": float("nan")}])
    tracker.close()
    tracker.close()


def test_jsonl_appends_to_a_resumed_run(run):
    for step in (1, 2):
        tracker = JsonlTracker(run)
        tracker.log("warm_start", step, {})
        tracker.close()
    assert [row["step"] for row in read_metrics(run.metrics)] == [1, 2]


@pytest.mark.usefixtures("without_type_checks")  # NumPy and JAX scalars work too, although signatures say float
def test_tensorboard_events_read_back(run):
    for step in (3, 4):
        tracker = TensorBoardTracker(run)
        tracker.log("rl", step, {"reward": jnp.float32(0.5 * step), "loss": float("nan")})
        tracker.samples(step, SAMPLES)
        tracker.close()
        tracker.close()
    assert len(list(run.tensorboard.iterdir())) == 2
    found = list(read_events(run))
    scalars = [
        (step, value.tag, value.simple_value) for step, value in found if value.WhichOneof("value") == "simple_value"
    ]
    assert [row for row in scalars if row[1] == "rl/reward"] == [(3, "rl/reward", 1.5), (4, "rl/reward", 2.0)]
    assert [step for step, tag, value in scalars if tag == "rl/loss" and np.isnan(value)] == [3, 4]
    texts = [(step, value.tag, value.tensor.string_val[0].decode()) for step, value in found if value.HasField("tensor")]
    assert [(step, tag) for step, tag, _ in texts] == [(3, "samples/text_summary"), (4, "samples/text_summary")]
    assert "**reward 1**\n\n    prompt:     1+1=\n    completion: 2\n    é\\ud800\n" in texts[0][2]
    assert "**reward nan**\n\n    prompt:     1+2=\n    completion: ``` x\n    answer:     None" in texts[0][2]


class Recorder:
    """A tracker that records its calls; its close() raises an error if `fails` is set."""

    def __init__(self, calls, fails=False):
        self.calls, self.fails = calls, fails

    def log(self, phase, step, metrics):
        self.calls.append((phase, step, metrics))

    def samples(self, step, rows):
        self.calls.append((step, rows))

    def close(self):
        self.calls.append("close")
        if self.fails:
            raise OSError("disk full")


def test_trackers_forward_every_call_and_close_every_tracker():
    first, second = [], []
    trackers = Trackers([Recorder(first, fails=True), Recorder(second)])
    trackers.log("rl", 1, {"loss": 1.0})
    trackers.samples(1, SAMPLES)
    with pytest.raises(OSError, match="disk full"):
        trackers.close()
    assert first == second == [("rl", 1, {"loss": 1.0}), (1, SAMPLES), "close"]


def test_every_tracker_satisfies_the_protocol(run):
    trackers = [JsonlTracker(run), TensorBoardTracker(run), Trackers([])]
    assert all(isinstance(tracker, Tracker) for tracker in trackers)
    for tracker in trackers:
        tracker.close()


@pytest.mark.parametrize(
    ("phase", "step", "metrics", "message"),
    [
        ("train", 1, {}, "phase must be one of warm_start, value, rl, preference, reward_model, eval, got 'train'"),
        ("rl", -1, {}, "step must not be negative, got -1"),
        ("rl", 1, {"step": 1.0}, r"metrics must not use the names \['step'\]"),
        ("rl", 1, {"phase": 1.0}, r"metrics must not use the names \['phase'\]"),
    ],
)
def test_rows_that_could_not_be_read_back_are_refused(run, phase, step, metrics, message):
    for tracker in (JsonlTracker(run), TensorBoardTracker(run)):
        with pytest.raises(ValueError, match=message):
            tracker.log(phase, step, metrics)
        tracker.close()
    assert run.metrics.read_text() == ""
