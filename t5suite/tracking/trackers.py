"""Where a run's numbers are sent besides `metrics.jsonl`, which is always written, and first.

    >>> with Trackers(["tensorboard"], run_dir, run_id="4f2a", settings={}) as trackers:
    ...     trackers.log({"train/loss": 0.4}, step=10)

A tracker is a mirror of that file: one that fails is named in a warning and left alone from then on; training goes on.
A run that is resumed goes on in the same place, with every step there once: trackers that know steps which the resumed
run repeats do not get them twice, and get what they missed.
"""

import logging
import os
from pathlib import Path

from t5suite.errors import EXIT_FINISHED
from t5suite.lookup import find
from t5suite.runs import METRICS
from t5suite.tracking.event_files import EventFile, last_step
from t5suite.tracking.metric_lines import MetricLines, metrics_of
from t5suite.tracking.wandb_tracker import WandbTracker

logger = logging.getLogger(__name__)


class TensorBoardTracker:
    """TensorBoard event files below `<run directory>/tensorboard`, or in a folder of the run's own below
    TENSORBOARD_LOGGING_DIR.

    Raises:
      ImportError: tensorboard is not installed.
    """

    def __init__(self, directory: Path, run_id: str, settings: dict):
        try:
            import tensorboard
        except ImportError:
            raise ImportError("--report_to tensorboard needs: pip install tensorboard") from None
        assert tensorboard
        elsewhere = os.environ.get("TENSORBOARD_LOGGING_DIR")
        self._metrics = directory / METRICS
        self._folder = Path(elsewhere) / f"{directory.name}-{run_id}" if elsewhere else directory / "tensorboard"
        self._events = None

    def begin(self, step: int) -> None:
        """Opens a file for what follows `step`; what older files lack of the steps before is written again."""
        told = last_step(self._folder)
        first = min(step, told)
        # The last step that was told may lack points: it counts as not told.
        self._events = EventFile(self._folder, purge_step=None if told < 0 else first)
        for line in MetricLines(self._metrics).new_lines():
            if first <= line["step"] <= step:
                self._events.add(line["step"], metrics_of(line))

    def log(self, metrics: dict, step: int) -> None:
        """Writes one point a metric."""
        self._events.add(step, {name: value for name, value in metrics.items() if value is not None})

    def finish(self, exit_code: int = 0) -> None:
        """Closes the file."""
        if self._events is not None:
            self._events.close()


class Trackers:
    """All trackers of a run as one that never fails, and never takes longer than a bounded time.

    Args:
      names: from TRACKERS; none on any rank but the first.
      settings: what trackers show as the run's configuration; without secrets (`public_settings`).
    """

    def __init__(self, names: list[str], directory, run_id: str, settings: dict):
        self._trackers = {}
        self._begun = False
        for name in names:
            try:
                self._trackers[name] = TRACKERS[name](Path(directory), run_id, settings)
            except Exception as error:
                self._leave_alone(name, error)

    def begin(self, step: int) -> None:
        """Says that the run is at `step` and `metrics.jsonl` holds its lines up to there; `log` does so by itself."""
        if not self._begun:
            self._begun = True
            self._each(lambda tracker: tracker.begin(step))

    def log(self, metrics: dict, step: int) -> None:
        """Sends one line, which stands in `metrics.jsonl` already, to every tracker that still works."""
        self.begin(step - 1)
        self._each(lambda tracker: tracker.log(metrics, step))

    def finish(self, exit_code: int = EXIT_FINISHED) -> None:
        """Closes every tracker, within 15 s each; `exit_code` is what the process will end with."""
        self._each(lambda tracker: tracker.finish(exit_code))
        self._trackers = {}

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.finish(EXIT_FINISHED if error is None else getattr(error, "exit_code", 1))

    def _each(self, call) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:
                self._leave_alone(name, error)

    def _leave_alone(self, name, error):
        self._trackers.pop(name, None)
        logger.warning("tracker %s failed and is left alone (%s: %s)", name, type(error).__name__, error)


def tracker_names(report_to) -> list[str]:
    """`--report_to` -> tracker names without `none`; unknown ones are refused.

    >>> tracker_names(["wandb", "none"]), tracker_names("tensorboard,wandb")
    (['wandb'], ['tensorboard', 'wandb'])
    """
    given = [report_to] if isinstance(report_to, str) else list(report_to or [])
    names = [name.strip() for several in given for name in several.split(",")]
    names = list(TRACKERS) if "all" in names else names
    for name in names:
        find(name, TRACKERS, "tracker", where="--report_to")
    return [name for name in names if name != "none"]


TRACKERS = {
    "none": None,
    "wandb": WandbTracker,
    "tensorboard": TensorBoardTracker,
}
