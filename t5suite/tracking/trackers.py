"""Where a run's numbers are sent besides `metrics.jsonl`, which is always written, and first.

    >>> with Trackers(["tensorboard"], run_dir, run_id="4f2a", settings={}) as trackers:
    ...     trackers.log({"train/loss": 0.4}, step=10)

A tracker is a mirror of that file: one that fails is named in a warning and left alone from then on; training goes on.
A run that is resumed goes on in the same place, with every step there once: trackers that know steps which the resumed
run repeats do not get them twice, and get what they missed.
"""

import importlib.util
import logging
from functools import partial
from pathlib import Path

from t5suite.base.errors import EXIT_FINISHED
from t5suite.base.lookup import find
from t5suite.tracking.identity import Identity
from t5suite.tracking.mirrors.callback import CALLBACKS
from t5suite.tracking.mirrors.tracker import MirrorTracker
from t5suite.tracking.tensorboard_tracker import TensorBoardTracker
from t5suite.tracking.wandb_tracker import WandbTracker

logger = logging.getLogger(__name__)


class Trackers:
    """All trackers of a run as one that never fails, and never takes longer than a bounded time.

    Args:
      names: from TRACKERS; none on any rank but the first.
      settings: what trackers show as the run's configuration; without secrets (`public_settings`).
      identity: the run's name, group, tags and project.
    """

    def __init__(self, names: list[str], directory, run_id: str, settings: dict, identity: Identity | None = None):
        self._trackers = {}
        self._begun = False
        for name in names:
            try:
                self._trackers[name] = TRACKERS[name](Path(directory), run_id, settings, identity or Identity())
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

    def samples(self, lines: list[dict], step: int) -> None:
        """Sends an evaluation's samples, which stand in `samples.jsonl` already."""
        self.begin(step - 1)
        self._each(lambda tracker: tracker.samples(lines, step))

    def finish(self, exit_code: int = EXIT_FINISHED) -> None:
        """Closes every tracker, within 15 s each; those of a finished run get its results and manifest first.

        Args:
          exit_code: what the process will end with.
        """
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
    """`--report_to` -> tracker names without `none`, each once; unknown ones are refused.

    >>> tracker_names(["wandb", "none"]), tracker_names("tensorboard,wandb")
    (['wandb'], ['tensorboard', 'wandb'])
    """
    given = [report_to] if isinstance(report_to, str) else list(report_to or [])
    names = [name.strip() for several in given for name in several.split(",")]
    names = [name for name in PACKAGES if importlib.util.find_spec(PACKAGES[name])] if "all" in names else names
    for name in names:
        find(name, TRACKERS, "tracker", where="--report_to")
    return [name for name in dict.fromkeys(names) if name != "none"]


TRACKERS = {
    "none": None,
    "wandb": WandbTracker,
    "tensorboard": TensorBoardTracker,
    "aim": partial(MirrorTracker, title="Aim", name="aim", needs=("aim", "'t5suite[aim]'")),
    "trackio": partial(MirrorTracker, title="Trackio", name="trackio", needs=("trackio", "'t5suite[trackio]'")),
    **{name: partial(MirrorTracker, title=name, name=name) for name in CALLBACKS},
}
# What `all` means: those of these that are installed.
PACKAGES = {"wandb": "wandb", "tensorboard": "tensorboard", "aim": "aim", "trackio": "trackio"}
