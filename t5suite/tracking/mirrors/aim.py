"""Aim as the mirror process sees it: one run in the repository of all runs.

    >>> run = AimRun(run_dir, {"run_id": "4f2a", "aim_repo": "./aim_repo", ...}, {})
    >>> run.log({"train/loss": 0.4, "eval/f1": 90.0}, step=10)
    >>> run.finish(0)

A metric's room is its context, as Aim's own interface groups by it: `train/loss` is `loss` in `{"subset": "train"}`.
Aim keeps a metric once a step, so that a row that is sent again replaces itself. Seen working with aim 3.29.
"""

import logging
import math
from pathlib import Path

from t5suite.tracking.identity import AIM_REPO, PROJECT
from t5suite.tracking.sample_lines import markdown, markdown_table, result_rows

logger = logging.getLogger(__name__)


class AimRun:
    """A run of Aim, made or taken up again.

    Attributes:
      of_theirs: `hash`, by which Aim finds the run again.
      place: how the run is looked at.
    """

    def __init__(self, directory: Path, setup: dict, of_theirs: dict):
        import aim

        repo = Path(setup.get("aim_repo") or AIM_REPO).absolute()
        repo.mkdir(parents=True, exist_ok=True)
        self._repo = aim.Repo.from_path(str(repo), init=True)
        quiet = {"system_tracking_interval": None, "capture_terminal_logs": False, "log_system_params": False}
        experiment = setup.get("experiment") or setup.get("project") or PROJECT
        known = of_theirs.get("hash")
        self._aim = aim
        self._run = aim.Run(known, repo=str(repo), experiment=experiment, force_resume=known is not None, **quiet)
        self._run.name = setup["name"]
        for tag in {*setup.get("tags", ()), *filter(None, [setup.get("group")])} - set(self._run.tags):
            self._run.add_tag(tag)
        self._run["hparams"] = plain(setup["config"])
        self._run["run"] = {"run_id": setup["run_id"], "directory": str(directory), "group": setup.get("group")}
        self.of_theirs = {"hash": self._run.hash}
        self.place = f"run {self._run.hash}; look at it with: aim up --repo {repo}"

    def last_step(self) -> None:
        """What has been told decides; the step after it may be there in part and is sent again."""

    def log(self, row: dict, step: int) -> None:
        """One row."""
        for name, value in row.items():
            room, _, metric = name.partition("/")
            if math.isfinite(value):
                self._run.track(float(value), name=metric, step=step, context={"subset": room})

    def samples(self, name: str, table: list[dict], step: int) -> None:
        """A step's samples, as text."""
        self._run.track(self._aim.Text(markdown(table)), name=name, step=step)

    def conclude(self, results: dict, manifest: dict) -> None:
        """Results and manifest among the run's parameters, and the results as a table."""
        self._run["results"], self._run["manifest"] = plain(results), plain(manifest)
        table = markdown_table(("task", "metric", "points"), result_rows(results))
        self._run.track(self._aim.Text(table), name="results", step=0)

    def finish(self, exit_code: int) -> None:
        """Closes the run, and has it in the repository's index, where `aim.Repo` finds it."""
        self._run["exit_code"] = exit_code
        found, self._run = self._run.hash, self._run.close()
        try:
            from aim.sdk.index_manager import RepoIndexManager

            RepoIndexManager.get_index_manager(self._repo).index(found)
        except Exception:
            logger.exception("the run is not in Aim's index yet; aim up, or aim storage reindex, will put it there")


def plain(value):
    """What Aim stores: it has no room for lists of mixed kinds, which become text.

    >>> plain({"a": [1, "x"], "b": {"c": None}})
    {'a': "[1, 'x']", 'b': {'c': None}}
    """
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list):
        kinds = {type(item) for item in value}
        return value if len(kinds) == 1 and kinds <= {int, float, str, bool} else str(value)
    return value
