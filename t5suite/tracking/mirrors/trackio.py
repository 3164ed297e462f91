"""Trackio as the mirror process sees it: a run in a local database, or in a Space of Hugging Face's.

    >>> run = TrackioRun(run_dir, {"run_id": "4f2a", "name": "rte", "config": {...}, ...}, {})
    >>> run.log({"train/loss": 0.4}, step=10)
    >>> run.finish(0)

The database lies below the run directory, unless TRACKIO_DIR names a folder for all runs. Trackio knows a run by its
name: two run directories of one name would be one run in a folder for all, so that the run's id goes with it there.
Seen working with trackio 0.43.
"""

import os
import shlex
from pathlib import Path

from t5suite.tracking.identity import PROJECT
from t5suite.tracking.sample_lines import COLUMNS, result_rows


class TrackioRun:
    """A run of Trackio, made or taken up again."""

    def __init__(self, directory: Path, setup: dict, of_theirs: dict):
        of_all = bool(os.environ.get("TRACKIO_DIR")) or bool(setup["config"].get("trackio_space_id"))
        if not of_all:
            os.environ["TRACKIO_DIR"] = str(directory / "trackers" / "trackio" / "database")
        import trackio

        self._trackio, self._last = trackio, 0
        self._project = setup.get("project") or PROJECT
        self._name = f"{setup['name']}-{setup['run_id']}" if of_all else setup["name"]
        self._run = trackio.init(
            project=self._project,
            name=self._name,
            group=setup.get("group"),
            config={**setup["config"], "run_id": setup["run_id"], "tags": setup.get("tags", [])},
            space_id=setup["config"].get("trackio_space_id"),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self.of_theirs = {}
        folder = shlex.quote(os.environ.get("TRACKIO_DIR", ""))
        shown = f"trackio show --project {shlex.quote(self._project)}"
        self.place = f"look at it with: {f'TRACKIO_DIR={folder} ' if folder != chr(39) * 2 else ''}{shown}"

    def last_step(self) -> int | None:
        """The last step in the database, since Trackio writes in its own time; None for a run in a Space."""
        from trackio.sqlite_storage import SQLiteStorage

        if self._trackio.context_vars.current_server.get() is not None:
            return None
        logs = SQLiteStorage.get_logs(self._project, self._name)
        known = max((line["step"] for line in logs if line.get("step") is not None), default=-1)
        self._last = max(known, 0)
        return known

    def log(self, row: dict, step: int) -> None:
        """One row."""
        self._last = step
        self._run.log(row, step=step)

    def samples(self, name: str, table: list[dict], step: int) -> None:
        """A step's samples, as a table."""
        self._run.log({name: self._table(COLUMNS, table)}, step=step)

    def conclude(self, results: dict, manifest: dict) -> None:
        """The results as a table, with the run's last step; the manifest as text."""
        columns = ("task", "metric", "points")
        self._run.log(
            {
                "results": self._table(columns, [dict(zip(columns, row)) for row in result_rows(results)]),
                "manifest": self._table(
                    ("name", "value"), [{"name": name, "value": str(value)} for name, value in manifest.items()]
                ),
            },
            step=self._last,
        )

    def finish(self, exit_code: int) -> None:
        """Waits for what is on its way to the database."""
        self._run.finish()

    def _table(self, columns, rows: list[dict]):
        import pandas

        return self._trackio.Table(dataframe=pandas.DataFrame(rows, columns=list(columns)))
