"""What a run is called, and where it belongs, in every tracker.

    >>> identity = Identity("glue-rte-t5-small", group="learning rates", tags=("rte", "small"))
    >>> identity.described(Path("runs/a"), "4f2a")["tags"]
    ['rte', 'small']

Trackers have words of their own for the same things: W&B and Trackio say project and group, Aim says experiment.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from t5suite.base.redaction import redacted_value

PROJECT = "t5suite"
AIM_REPO = "./aim_repo"


@dataclass(frozen=True)
class Identity:
    """Name and place of a run.

    Attributes:
      name: what trackers show; the run directory's name without it.
      project: W&B's and Trackio's project; without it W&B's own WANDB_PROJECT, else `t5suite`.
      entity: the W&B user or team.
      experiment: Aim's experiment; the project without it.
      aim_repo: the folder of Aim's repository, for all runs.
    """

    name: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    project: str | None = None
    entity: str | None = None
    experiment: str | None = None
    aim_repo: str = AIM_REPO

    def described(self, directory: Path, run_id: str) -> dict:
        """As JSON values without secrets: what every tracker gets of the run in a directory besides its settings."""
        named = {"name": self.name or directory.name, "named": bool(self.name), "run_id": run_id}
        return redacted_value({**asdict(self), **named})
