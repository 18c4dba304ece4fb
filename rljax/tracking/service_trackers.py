"""Trackers that send the metrics of a run to Weights & Biases or MLflow."""

import importlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljax.errors import InputError
from rljax.text import one_line
from rljax.tracking.rows import PHASES
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.trackers import SAMPLE_FIELDS, Tracker, check_row, sample_lines

LONGEST_PARAMETER = 6_000
"""Maximum number of characters of a parameter that MLflow stores."""
PARAMETERS_AT_ONCE = 100
"""Maximum number of parameters that MLflow accepts in one request."""
_log = logging.getLogger(__name__)


def service_trackers(run: RunFolder, name: str, *, wandb: bool, mlflow: bool) -> list[Tracker]:
    """Make the trackers of the requested services; `name` names the W&B project and the MLflow experiment."""
    trackers: list[Tracker] = [WandbTracker(run, project=name)] if wandb else []
    return [*trackers, MlflowTracker(run, experiment=name)] if mlflow else trackers


class WandbTracker:
    """A tracker that sends metrics to Weights & Biases as `phase/metric`, over the step of the phase, and samples as a table.

    The run's id is stored as `wandb.id` in the folder, so that a resumed run continues its page. Everything else is set through
    W&B's environment variables, such as WANDB_ENTITY, WANDB_RUN_GROUP and WANDB_TAGS.

    Args:
        run: the folder; its configuration is also sent.
        project: the W&B project, unless WANDB_PROJECT names one.

    Raises:
        InputError: wandb is not installed.
    """

    def __init__(self, run: RunFolder, *, project: str):
        self._wandb = _import_package("wandb", "Weights & Biases")
        id_file = run.path / "wandb.id"
        resumed = {"id": id_file.read_text().strip(), "resume": "must"} if id_file.is_file() else {}
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", project),
            name=run.path.name,
            dir=str(run.path),
            config=dict(run.config),
            **resumed,
        )
        id_file.write_text(f"{self._run.id}\n")
        for phase in PHASES:
            self._run.define_metric(f"{phase}/step")
            self._run.define_metric(f"{phase}/*", step_metric=f"{phase}/step")

    def log(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """Send one row."""
        check_row(phase, step, metrics)
        numbers = {f"{phase}/{name}": float(value) for name, value in metrics.items()}
        self._run.log({f"{phase}/step": int(step), **numbers})

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send the responses as one table."""
        data = [[int(step), *(row[name] for name in SAMPLE_FIELDS)] for row in rows]
        self._run.log({"samples": self._wandb.Table(columns=["step", *SAMPLE_FIELDS], data=data)})

    def close(self) -> None:
        """Finish the run's page."""
        self._run.finish()


class MlflowTracker:
    """A tracker that sends metrics to MLflow as `phase/metric`, over the step of the phase, and samples as text files.

    MLflow's environment variable MLFLOW_TRACKING_URI names the server or folder. The run's id is stored as `mlflow.id` in the run
    folder, so that a resumed run continues its page. Metrics are sent in the background; rows that the server did not accept are
    counted, and reported at the end.

    Args:
        run: the folder; its settings are sent as parameters.
        experiment: the MLflow experiment, unless MLFLOW_EXPERIMENT_NAME names one.

    Raises:
        InputError: MLflow is not installed.
    """

    def __init__(self, run: RunFolder, *, experiment: str):
        self._mlflow = _import_package("mlflow", "MLflow")
        self._client = self._mlflow.MlflowClient()
        self._sent: list[Any] = []
        self._lost = 0
        id_file = run.path / "mlflow.id"
        if id_file.is_file():
            self._id = id_file.read_text().strip()
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(self._find_experiment(experiment), run_name=run.path.name).info.run_id
        id_file.write_text(f"{self._id}\n")
        parameters = [self._mlflow.entities.Param(name, value) for name, value in _flatten(run.config).items()]
        for start in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self._client.log_batch(self._id, params=parameters[start : start + PARAMETERS_AT_ONCE])

    def _find_experiment(self, name: str) -> str:
        """Return the id of an experiment; create the experiment if it does not exist."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", name)
        found = self._client.get_experiment_by_name(name)
        return self._client.create_experiment(name) if found is None else found.experiment_id

    def log(self, phase: str, step: int, metrics: Mapping[str, float]) -> None:
        """Send one row."""
        check_row(phase, step, metrics)
        now, entity = int(1000 * time.time()), self._mlflow.entities.Metric
        row = [entity(f"{phase}/{name}", float(value), now, int(step)) for name, value in metrics.items()]
        self._sent.append(self._client.log_batch(self._id, metrics=row, synchronous=False))

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send the responses as one file of JSON lines."""
        text = sample_lines(step, rows).decode()
        self._wait()  # log_text makes MLflow read the run's metrics, and a file store cannot be read during a write
        self._attempt("the samples", lambda: self._client.log_text(self._id, text, f"samples/step-{step}.jsonl"))

    def close(self) -> None:
        """Wait until everything has been sent, and end the run."""
        self._wait()
        if self._lost:
            _log.warning("MLflow did not accept %d rows of metrics; metrics.jsonl has them.", self._lost)
        self._attempt("the end of the run", lambda: self._client.set_terminated(self._id))

    def _wait(self) -> None:
        """Wait until the metrics have been sent, and count the rows that were not accepted."""
        self._lost += sum(not self._attempt("metrics", operation.wait) for operation in self._sent)
        self._sent.clear()

    def _attempt(self, what: str, work: Callable[[], object]) -> bool:
        """Do some work that sends data, and return whether it succeeded, because an unreachable server must not end the run."""
        try:
            work()
        except self._mlflow.exceptions.MlflowException as error:
            _log.warning("MLflow did not accept %s: %s", what, one_line(error))
            return False
        return True


def _import_package(package: str, service: str) -> Any:
    """Import the package of a service.

    Raises:
        InputError: the package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{service} needs the package {package}, and {package} is not installed; run `pip install {package}`, or turn "
            f"{service} off: metrics.jsonl and TensorBoard are written without it."
        ) from error


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested settings to a mapping from their dotted paths to strings.

    Example:
        >>> _flatten({"seed": 0, "data": {"dataset": "a.jsonl"}})
        {'seed': '0', 'data.dataset': 'a.jsonl'}
    """
    flat = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = str(value)[:LONGEST_PARAMETER]
    return flat
