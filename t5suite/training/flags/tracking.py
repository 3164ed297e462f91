"""The flags of both scripts that say what one sees of a run, and where.

    >>> identity_of(PreTrainerArguments(wandb_project="t5", run_tags="rte,small")).tags
    ('rte', 'small')

Nothing here changes what comes out of a run. `--report_to` and `--run_name` are Hugging Face's.
"""

from dataclasses import dataclass

from t5suite.tracking.trackers import AIM_REPO, Identity, tracker_names
from t5suite.training.flags.fields import flag
from t5suite.training.monitoring.measurements import ProfileCallback, parse_steps


@dataclass
class TrackingArguments:
    """What trackers are told, what is shown on the terminal, and what is measured."""

    _theme = "tracking"

    wandb_project: str | None = flag(
        None, "Project in W&B and Trackio. Default: $WANDB_PROJECT, else t5suite.", change="nothing"
    )
    wandb_entity: str | None = flag(
        None, "User or team in W&B. Default: $WANDB_ENTITY, else the key's.", change="nothing"
    )
    run_group: str | None = flag(None, "Runs of one group stand together in trackers.", change="nothing")
    run_tags: str | None = flag(None, "Tags in trackers, with commas between.", change="nothing")
    aim_repo: str = flag(AIM_REPO, "Aim's repository, a folder for all runs.", change="nothing")
    experiment_name: str | None = flag(
        None, "Aim's (and MLflow's) experiment. Default: --wandb_project, else t5suite.", change="nothing"
    )
    num_samples: int = flag(
        8,
        "Rows a task whose answers are kept at each evaluation (samples.jsonl, trackers); 0: none.",
        bounds="[0, inf) rows or examples",
        change="nothing",
    )
    profile: str | None = flag(
        None,
        "Steps FIRST:LAST, such as 10:12, of which a trace and a memory snapshot are written.",
        needs="training",
        change="nothing",
    )
    verbose: bool = flag(
        False,
        "Show what libraries log, warn of and draw bars for, too.",
        change="nothing",
        python="choose what loggers show: logging.getLogger('transformers').setLevel(logging.INFO)",
    )
    peak_tflops: float | None = flag(
        None,
        "The device's peak for MFU, where its name does not tell (bf16, dense).",
        bounds="(0, inf) TFLOP/s; H200: 989, A100: 312",
        needs="training",
        change="nothing",
    )

    def check_tracking(self) -> None:
        """Called once the other settings are there.

        Raises:
          ConfigError: an unknown tracker; a range that makes no sense.
        """
        if self.profile is not None:
            parse_steps(self.profile)
        tracker_names(self.trackers)


def add_profile(trainer, directory) -> None:
    """`--profile`, where it is asked for; on every rank."""
    if trainer.args.profile is not None:
        trainer.add_callback(ProfileCallback(trainer.args.profile, directory, trainer.args.process_index))


def identity_of(args) -> Identity:
    """What trackers call the run."""
    tags = tuple(tag.strip() for tag in (args.run_tags or "").split(",") if tag.strip())
    return Identity(
        args.run_name,
        args.run_group,
        tags,
        args.wandb_project,
        args.wandb_entity,
        args.experiment_name,
        args.aim_repo,
    )
