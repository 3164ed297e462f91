"""Trackers that Hugging Face's reporting callbacks support, fed from the separate process (`mirror`).

    >>> run = CallbackRun(run_dir, {"tracker": "mlflow", "run_id": "4f2a", "name": "rte", ...}, {})
    >>> run.log({"train/loss": 0.4}, 10, {})
    >>> run.finish(0)

The callback gets what a trainer would give it: arguments, a state, logs; it never sees the model. Metrics keep the
names of `metrics.jsonl`; the results' numbers are the last row, `final/...`. After a restart those of RESUMPTIONS
resume the same run, after the last step in `told.json`; for the others a restart is a new run. Verified with
transformers 5.23 and mlflow 3.17, comet-ml 3.58 and clearml 2.1 (both offline). swanlab 0.6 starts; transformers 5.23
cannot start swanlab 0.10.
"""

import dataclasses
import json
import keyword
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from t5suite.base.errors import EXIT_FINISHED, EXIT_PREEMPTED

PROJECT_VARIABLES = {name: f"{name.upper()}_PROJECT" for name in ("clearml", "neptune", "swanlab")}
PROJECT_VARIABLES |= {"mlflow": "MLFLOW_EXPERIMENT_NAME", "comet_ml": "COMET_PROJECT_NAME"}
# MLflow's words for how a training has ended; any other exit code is a failure.
MLFLOW_STATUSES = {EXIT_FINISHED: "FINISHED", EXIT_PREEMPTED: "KILLED"}


class Resumption(NamedTuple):
    """How a tracker resumes the same run.

    Attributes:
      variables: environment variables, with `{id}` for the run's id in the tracker.
      id_of: the id of a callback's run.
      has_our_id: the id is our run's, and is set from the start.
    """

    variables: dict[str, str]
    id_of: Callable
    has_our_id: bool = False

    def set_variables(self, run_id: str | None) -> None:
        """Names the run in the environment, from which the callback takes it; without an id it begins a new one."""
        if run_id is None:
            return
        for variable, value in self.variables.items():
            # The user may choose the id if it is our run's; otherwise the tracker's run decides.
            if not (self.has_our_id and variable in os.environ):
                os.environ[variable] = value.format(id=run_id)


def _mlflow_id(callback) -> str:
    import mlflow

    return mlflow.active_run().info.run_id


def _end_mlflow_run(exit_code: int) -> None:
    import mlflow

    mlflow.end_run(status=MLFLOW_STATUSES.get(exit_code, "FAILED"))


def _swanlab_id(callback) -> str:
    import swanlab

    return swanlab.get_run().id


MLFLOW = Resumption({"MLFLOW_RUN_ID": "{id}"}, _mlflow_id)
# {tracker: how it resumes}. azure_ml, flyte and kubeflow use the run of the job that starts us; codecarbon has no run,
# and ClearML's callback takes no id.
RESUMPTIONS = {
    "mlflow": MLFLOW,
    "dagshub": MLFLOW,
    "comet_ml": Resumption({"COMET_EXPERIMENT_KEY": "{id}"}, lambda callback: callback._experiment.get_key()),
    "swanlab": Resumption({"SWANLAB_RUN_ID": "{id}", "SWANLAB_RESUME": "allow"}, _swanlab_id),
    "neptune": Resumption(
        {"NEPTUNE_CUSTOM_RUN_ID": "{id}"}, lambda callback: os.environ["NEPTUNE_CUSTOM_RUN_ID"], True
    ),
    # It resumes from what is in its folder; the id only says that it has begun.
    "dvclive": Resumption({"DVCLIVE_RESUME": "true"}, lambda callback: callback.live.dir),
}


class Settings:
    """The run's configuration as the trainer's arguments: every setting an attribute, None without it."""

    def __init__(self, config: dict, name: str, directory: Path):
        self._config = {**config, "run_name": name, "output_dir": str(directory)}
        names = [name for name in self._config if name.isidentifier() and not keyword.iskeyword(name)]
        # ClearML's callback reads the fields of a dataclass, which the trainer's arguments are.
        self.__dataclass_fields__ = dataclasses.make_dataclass("Fields", names).__dataclass_fields__

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._config.get(name)

    def to_dict(self) -> dict:
        return dict(self._config)

    def to_sanitized_dict(self) -> dict:
        plain = (bool, int, float, str)
        return {name: value if isinstance(value, plain) else str(value) for name, value in self._config.items()}

    def to_json_string(self) -> str:
        return json.dumps(self._config)


class CallbackRun:
    """One of Hugging Face's reporting callbacks as a run that takes rows.

    Attributes:
      resume_facts: what identifies the run, if the tracker can resume one.
    """

    keeps_steps = True

    def __init__(self, directory: Path, setup: dict, resume_facts: dict):
        from transformers import TrainerControl, TrainerState
        from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

        name = setup["tracker"]
        project = setup.get("experiment") or setup.get("project")
        if name in PROJECT_VARIABLES and project:
            os.environ.setdefault(PROJECT_VARIABLES[name], project)
        if name == "clearml":
            # Its callback names every task `Trainer`, and ClearML empties the last task of that name for a new one.
            os.environ.setdefault("CLEARML_TASK", setup["name"])
            os.environ.setdefault("CLEARML_TASK_NO_REUSE", "1")
        resumption = RESUMPTIONS.get(name)
        if resumption is not None:
            resumption.set_variables(setup["run_id"] if resumption.has_our_id else resume_facts.get("id"))
        self._args = Settings(setup["config"], setup["name"], directory)
        self._state = TrainerState()
        self._control = TrainerControl()
        self._callback = INTEGRATION_TO_CALLBACK[name]()
        self._name = name
        self._call("on_train_begin")
        # MLflow's own thread would lose what it holds when this process is killed.
        self._callback._async_log = False
        self.resume_facts = {} if resumption is None else {"id": resumption.id_of(self._callback)}
        self.state = {"state": "online", "place": f"logging through {type(self._callback).__name__}"}

    def last_step(self) -> None:
        """Unknown: callbacks do not report it."""

    def log(self, row: dict, step: int, tables: dict) -> None:
        """One row; they have no tables for samples."""
        from transformers.integrations import integration_utils

        self._state.global_step = step
        # This function of transformers 5.23 puts `train/` before every name that does not begin with `eval_`.
        rewrite = integration_utils.rewrite_logs
        integration_utils.rewrite_logs = dict
        try:
            self._call("on_log", logs=metrics_under(self._name, row))
        finally:
            integration_utils.rewrite_logs = rewrite

    def conclude(self, results: dict, manifest: dict) -> None:
        """Nothing: the results are the last row."""

    def finish(self, exit_code: int) -> None:
        """Ends the tracker's run; the callbacks would call every run of MLflow finished."""
        if RESUMPTIONS.get(self._name) is MLFLOW:
            _end_mlflow_run(exit_code)
        self._call("on_train_end")

    def _call(self, event: str, **also) -> None:
        model = SimpleNamespace(config=None)
        getattr(self._callback, event)(self._args, self._state, self._control, model=model, **also)


def metrics_under(name: str, row: dict) -> dict:
    """The row under the names that a tracker's callback turns into ours.

    ClearML's derives a graph and a curve from the trainer's names: `eval_f1` is the curve f1 of the graph eval, and a
    name without such a prefix is a curve of the graph train.

    >>> metrics_under("clearml", {"train/loss": 0.5, "eval/rte/accuracy": 71.0})
    {'loss': 0.5, 'eval_rte/accuracy': 71.0}
    """
    if name != "clearml":
        return dict(row)
    renamed = {}
    for key, value in row.items():
        key = key.replace("final/", "eval/final/", 1)
        renamed[key.removeprefix("train/").replace("eval/", "eval_", 1)] = value
    return renamed
