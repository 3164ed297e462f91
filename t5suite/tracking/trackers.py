"""Where a run's numbers are sent besides `metrics.jsonl`, which is always written, and first.

    >>> with Trackers(["tensorboard"], run_dir, run_id="4f2a", settings={}) as trackers:
    ...     trackers.log({"train/loss": 0.4}, step=10)

A tracker is a mirror: one that fails is named in a warning and left alone from then on; training goes on.
"""

import logging
import os
from pathlib import Path

from t5suite.lookup import find

logger = logging.getLogger(__name__)


class WandbTracker:
    """Weights & Biases; offline (below the run directory, for `wandb sync`) where no key is set."""

    def __init__(self, directory: Path, run_id: str, settings: dict):
        try:
            import wandb
        except ImportError:
            raise ImportError("--report_to wandb needs: pip install wandb") from None
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "t5suite"),
            name=directory.name,
            id=run_id,
            resume="allow",
            dir=str(directory),
            config=settings,
            mode=os.environ.get("WANDB_MODE") or ("online" if _wandb_key_is_set() else "offline"),
            settings=wandb.Settings(init_timeout=60, console="off"),
        )

    def log(self, metrics: dict, step: int) -> None:
        """Sends one line."""
        self._run.log(metrics, step=step)

    def finish(self) -> None:
        """Closes the run."""
        self._run.finish()


class TensorBoardTracker:
    """TensorBoard event files below `<run directory>/tensorboard`."""

    def __init__(self, directory: Path, run_id: str, settings: dict):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("--report_to tensorboard needs: pip install tensorboard") from None
        self._writer = SummaryWriter(os.environ.get("TENSORBOARD_LOGGING_DIR") or str(directory / "tensorboard"))

    def log(self, metrics: dict, step: int) -> None:
        """Writes one point a metric."""
        for name, value in metrics.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self) -> None:
        """Closes the files."""
        self._writer.close()


TRACKERS = {
    "none": None,
    "wandb": WandbTracker,
    "tensorboard": TensorBoardTracker,
}


def tracker_names(report_to) -> list[str]:
    """`--report_to` -> tracker names without `none`; unknown ones are refused.

    >>> tracker_names(["wandb", "none"])
    ['wandb']
    """
    names = [report_to] if isinstance(report_to, str) else list(report_to or [])
    names = list(TRACKERS) if "all" in names else names
    for name in names:
        find(name, TRACKERS, "tracker", where="--report_to")
    return [name for name in names if name != "none"]


class Trackers:
    """All trackers of a run as one that never fails."""

    def __init__(self, names: list[str], directory, run_id: str, settings: dict):
        self._trackers = {}
        for name in names:
            try:
                self._trackers[name] = TRACKERS[name](Path(directory), run_id, settings)
            except Exception as error:
                self._leave_alone(name, error)

    def log(self, metrics: dict, step: int) -> None:
        """Sends one line to every tracker that still works."""
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.log(metrics, step)
            except Exception as error:
                self._leave_alone(name, error)

    def finish(self) -> None:
        """Closes every tracker."""
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.finish()
            except Exception as error:
                self._leave_alone(name, error)
        self._trackers = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.finish()

    def _leave_alone(self, name, error):
        self._trackers.pop(name, None)
        logger.warning("tracker %s failed and is left alone (%s: %s)", name, type(error).__name__, error)


def _wandb_key_is_set() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    import netrc

    try:
        return any("wandb" in host for host in netrc.netrc().hosts)
    except (OSError, netrc.NetrcParseError):
        return False
