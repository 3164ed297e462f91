"""Weights & Biases as training sees it: a process beside it (`mirrors.wandb`).

    >>> tracker = WandbTracker(run_dir, "4f2a", {"seed": 1}, Identity())       # at once; W&B starts meanwhile
    >>> tracker.begin(step=0)
    >>> tracker.finish()                                                       # at most 15 s

Where W&B cannot be reached the run is kept below the run directory, with the command that sends it later. The process
takes 2 s of a core for 2,000 lines of 20 metrics, its start included, and 110 MB with wandb's own (two cores, wandb
0.31).
"""

import logging
import os
import shlex
from pathlib import Path

from t5suite.tracking.identity import Identity
from t5suite.tracking.mirrors.tracker import MirrorTracker
from t5suite.tracking.mirrors.wandb import FOLDER, MODULE

logger = logging.getLogger(__name__)


class WandbTracker(MirrorTracker):
    """Weights & Biases; offline (below the run directory, for `wandb sync`) where it cannot be reached.

    Raises:
      ImportError: wandb is not installed.
    """

    def __init__(self, directory: Path, run_id: str, settings: dict, identity: Identity):
        super().__init__(directory, run_id, settings, identity, "W&B", "wandb", ("wandb", "'t5suite[tracking]'"))

    @property
    def folder(self) -> Path:
        """wandb's own folder in the run directory."""
        return self.directory / FOLDER

    def command(self) -> list[str]:
        """What sends the rest by hand."""
        return ["python", "-m", MODULE, str(self.directory)]

    def wanted(self) -> bool:
        """Whether W&B is not switched off."""
        return os.environ.get("WANDB_MODE", "").lower() != "disabled"

    def heard(self, told: dict) -> None:
        """Passes one message on."""
        if told["state"] == "offline":
            if not told["wanted"]:
                logger.warning("W&B is offline (%s); the run goes on. Send it later: %s", told["reason"], self.sync)
        else:
            super().heard(told)

    def finish(self, exit_code: int = 0) -> None:
        """Ends the process; the command that sends an offline run later is said again where it is looked for."""
        super().finish(exit_code)
        if self._told.get("state") == "finished" and "wanted" in self._told:
            logger.info("W&B: send this run with: %s", self.sync)

    @property
    def sync(self) -> str:
        """The command that sends an offline run later."""
        return f"wandb sync {shlex.quote(str(self.folder))}/offline-run-*-{self.run_id}"
