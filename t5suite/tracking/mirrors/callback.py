"""Trackers that Hugging Face's reporting callbacks know, fed from the mirror process.

    >>> run = CallbackRun("mlflow", run_dir, setup, {})
    >>> run.log({"train/loss": 0.4}, step=10)
    >>> run.finish(0)

The callback gets what a trainer would give it: arguments, a state, logs. It starts when the run's first line is there
and never sees the model. MLflow goes on in the same run after a restart; for the others a restart is a new run over
there, which begins after the last step that they were told. They have no table for samples and results: the results'
numbers are the last row, `final/...`. Seen working with transformers 5.23 and mlflow 3.17.
"""

import os
from pathlib import Path
from types import SimpleNamespace

# Those of transformers 5.23 that have no mirror of ours; a test compares.
CALLBACKS = (
    "azure_ml",
    "clearml",
    "codecarbon",
    "comet_ml",
    "dagshub",
    "dvclive",
    "flyte",
    "kubeflow",
    "mlflow",
    "neptune",
    "swanlab",
)


class Settings:
    """The run's configuration as the trainer's arguments: every setting an attribute, None without it."""

    def __init__(self, config: dict, name: str, directory: Path):
        self._config = {**config, "run_name": name, "output_dir": str(directory)}

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._config.get(name)

    def to_dict(self) -> dict:
        """All of them."""
        return dict(self._config)

    def to_sanitized_dict(self) -> dict:
        """All of them, as numbers and text."""
        return {
            name: value if isinstance(value, (bool, int, float, str)) else str(value)
            for name, value in self._config.items()
        }

    def to_json_string(self) -> str:
        """All of them."""
        import json

        return json.dumps(self._config)


class CallbackRun:
    """One of Hugging Face's reporting callbacks as a run that takes rows.

    Attributes:
      of_theirs: what finds the run again, where the tracker can go on with one.
    """

    def __init__(self, name: str, directory: Path, setup: dict, of_theirs: dict):
        from transformers import TrainerControl, TrainerState
        from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

        if name in GOING_ON and of_theirs.get("id"):
            os.environ[GOING_ON[name][0]] = of_theirs["id"]
        set_names(name, setup)
        self._args = Settings(setup["config"], setup["name"], directory)
        self._state, self._control = TrainerState(), TrainerControl()
        self._model = SimpleNamespace(config=None)
        self._callback = INTEGRATION_TO_CALLBACK[name]()
        self._callback.on_train_begin(self._args, self._state, self._control, model=self._model)
        # MLflow's own thread would lose what it holds when this process is killed.
        self._callback._async_log = False
        self.of_theirs = {"id": GOING_ON[name][1](self._callback)} if name in GOING_ON else {}
        self.place = f"logging through {type(self._callback).__name__}"

    def last_step(self) -> None:
        """They cannot say."""

    def log(self, row: dict, step: int) -> None:
        """One row."""
        self._state.global_step = step
        self._callback.on_log(self._args, self._state, self._control, logs=dict(row), model=self._model)

    def samples(self, name: str, table: list[dict], step: int) -> None:
        """They have no tables."""

    def conclude(self, results: dict, manifest: dict) -> None:
        """The results are the last row."""

    def finish(self, exit_code: int) -> None:
        """Ends the run over there."""
        self._callback.on_train_end(self._args, self._state, self._control, model=self._model)


def set_names(name: str, setup: dict) -> None:
    """Tells a tracker its project through its own environment variable, where the user has not set that."""
    project = setup.get("experiment") or setup.get("project")
    if name in PROJECT_VARIABLES and project:
        os.environ.setdefault(PROJECT_VARIABLES[name], project)


PROJECT_VARIABLES = {
    "mlflow": "MLFLOW_EXPERIMENT_NAME",
    "comet_ml": "COMET_PROJECT_NAME",
    "clearml": "CLEARML_PROJECT",
    "neptune": "NEPTUNE_PROJECT",
    "swanlab": "SWANLAB_PROJECT",
}
# {tracker: (the variable that names the run to go on with, the callback's run)}
GOING_ON = {"mlflow": ("MLFLOW_RUN_ID", lambda callback: callback._ml_flow.active_run().info.run_id)}
