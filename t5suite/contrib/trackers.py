"""Aim and Trackio, as a tracker's separate process uses them: a run to which rows are sent.

>>> setup = {"run_id": "4f2a", "name": "rte", "config": {...}, "first": 1, "aim_repo": "./aim_repo"}
>>> run = AimRun(run_dir, setup, resume_facts={})
>>> run.log({"train/loss": 0.4, "eval/f1": 90.0}, step=10, tables={})
>>> run.finish(exit_code=0)

`tracking.backends` says what every such class has, and who calls it. `setup` is `tracking.trackers.Identity.described`,
the settings as `config`, and `first`, the first step that will be sent.
"""

import logging
import math
import os
import shlex
from pathlib import Path

from t5suite.tracking.backends import PROJECT
from t5suite.tracking.metric_lines import SAMPLE_COLUMNS
from t5suite.tracking.tables import RESULT_COLUMNS, result_rows, results_as_markdown, sample_rows, samples_as_markdown
from t5suite.tracking.trackers import AIM_REPO

logger = logging.getLogger(__name__)


class AimRun:
    """A run in Aim's repository of all runs, created, or resumed by its `hash`.

    `train/loss` is `loss` in the context `{"subset": "train"}`, by which Aim's own interface groups. Aim keeps one
    value per metric and step: a row that is sent again replaces the earlier one. Verified with aim 3.29.
    """

    keeps_steps = True

    def __init__(self, directory: Path, setup: dict, resume_facts: dict):
        import aim

        repo = Path(setup.get("aim_repo") or AIM_REPO).absolute()
        repo.mkdir(parents=True, exist_ok=True)
        self._repo = aim.Repo.from_path(str(repo), init=True)
        quiet = {"system_tracking_interval": None, "capture_terminal_logs": False, "log_system_params": False}
        experiment = setup.get("experiment") or setup.get("project") or PROJECT
        self._aim = aim
        run_hash = resume_facts.get("hash")
        resumes = run_hash is not None
        self._run = aim.Run(run_hash, repo=str(repo), experiment=experiment, force_resume=resumes, **quiet)
        self._run.name = setup["name"]
        self._run["hparams"] = plain(setup["config"])
        self._run["run"] = {"run_id": setup["run_id"], "directory": str(directory)}
        self._last = max(setup["first"] - 1, 0)
        self.resume_facts = {"hash": self._run.hash}
        self.state = {"state": "online", "place": f"run {self._run.hash}; view it with: aim up --repo {repo}"}

    def last_step(self) -> None:
        """None: Aim cannot say what it has stored. Rows that were perhaps not stored are sent again."""

    def log(self, row: dict, step: int, tables: dict[str, list[dict]]) -> None:
        """One row, of names like `train/loss`, without what is not finite, which Aim does not draw; samples as text."""
        self._last = step
        for name, value in row.items():
            subset, _, metric = name.partition("/")
            if math.isfinite(value):
                self._run.track(float(value), name=metric, step=step, context={"subset": subset})
        for name, table in tables.items():
            self._run.track(self._aim.Text(samples_as_markdown(table)), name=name, step=step)

    def conclude(self, results: dict, manifest: dict) -> None:
        """Results and manifest among the run's parameters, and the results as a table of the last step."""
        self._run["results"] = plain(results)
        self._run["manifest"] = plain(manifest)
        self._run.track(self._aim.Text(results_as_markdown(results)), name="results", step=self._last)

    def finish(self, exit_code: int) -> None:
        """Closes the run and adds it to the repository's index, where `aim.Repo` finds it."""
        self._run["exit_code"] = exit_code
        run_hash = self._run.hash
        self._run.close()
        self._run = None  # Aim indexes a run that nobody holds
        try:
            from aim.sdk.index_manager import RepoIndexManager

            RepoIndexManager.get_index_manager(self._repo).index(run_hash)
        except Exception:
            logger.exception("the run is not in Aim's index yet; aim up, or aim storage reindex, will put it there")


def plain(value):
    """What Aim can store: a list whose values have more than one type, or that is empty, becomes text.

    >>> plain({"a": [1, 2.0], "b": {"c": [1, 2]}})
    {'a': '[1, 2.0]', 'b': {'c': [1, 2]}}
    """
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list):
        kinds = {type(item) for item in value}
        if len(kinds) == 1 and kinds <= {int, float, str, bool}:
            return value
        return str(value)
    return value


class TrackioRun:
    """A run in Trackio's local database, or in a Hugging Face Space, created or resumed.

    The database is below the run directory, unless TRACKIO_DIR names a folder for all runs, or the run is sent to a
    Space. Trackio identifies a run by its name: where there are other runs, the name contains the id. Verified with
    trackio 0.43.
    """

    keeps_steps = True

    def __init__(self, directory: Path, setup: dict, resume_facts: dict):
        space = setup["config"].get("trackio_space_id")
        is_with_other_runs = bool(os.environ.get("TRACKIO_DIR") or space)
        if not is_with_other_runs:
            # Trackio reads the variable when it is imported.
            os.environ["TRACKIO_DIR"] = str(directory / "trackers" / "trackio" / "database")
        import trackio

        self._trackio = trackio
        self._last = 0
        self._project = setup.get("project") or PROJECT
        self._name = f"{setup['name']}-{setup['run_id']}" if is_with_other_runs else setup["name"]
        config = {**setup["config"], "run_id": setup["run_id"]}
        where = {"space_id": space, "resume": "allow"}
        quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
        self._run = trackio.init(project=self._project, name=self._name, config=config, **where, **quiet)
        self.resume_facts = {}
        self.state = {"state": "online", "place": _place_of_trackio(space, self._project)}

    def last_step(self) -> int | None:
        """The last step in the database, which Trackio writes with a delay; -1 if it is empty; None for a Space's.

        The results of a run that sends nothing further stand at this step.
        """
        from trackio.sqlite_storage import SQLiteStorage

        is_in_space = self._trackio.context_vars.current_server.get() is not None
        if is_in_space:
            return None
        logs = SQLiteStorage.get_logs(self._project, self._name)
        steps = [line["step"] for line in logs if line.get("step") is not None]
        last_step = max(steps, default=-1)
        self._last = max(last_step, 0)
        return last_step

    def log(self, row: dict, step: int, tables: dict[str, list[dict]]) -> None:
        """One row; samples as tables."""
        self._last = step
        self._run.log(row, step=step)
        for name, table in tables.items():
            self._run.log({name: self._table(SAMPLE_COLUMNS, sample_rows(table))}, step=step)

    def conclude(self, results: dict, manifest: dict) -> None:
        """The results as a table, with the run's last step; the manifest as text."""
        facts = self._table(("name", "value"), [[name, str(value)] for name, value in manifest.items()])
        self._run.log(
            {"results": self._table(RESULT_COLUMNS, result_rows(results)), "manifest": facts}, step=self._last
        )

    def finish(self, exit_code: int) -> None:
        """Waits for pending writes to the database."""
        self._run.finish()

    def _table(self, columns, rows: list[list]):
        import pandas

        return self._trackio.Table(dataframe=pandas.DataFrame(rows, columns=list(columns)))


def _place_of_trackio(space: str | None, project: str) -> str:
    """Where a run is seen: in its Space, or by a command."""
    if space:
        return f"view it at https://huggingface.co/spaces/{space}"
    folder = os.environ["TRACKIO_DIR"]
    return f"view it with: TRACKIO_DIR={shlex.quote(folder)} trackio show --project {shlex.quote(project)}"
