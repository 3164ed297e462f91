"""The steps that all runs share: fine-tuning and pre-training scripts, `FineTuner` and the sub-commands call them.

    >>> is_main = prepare_process(args)                                       # process_setup
    >>> with run_directory(args, settings, argv, resume) as run:              # run_directory
    ...     tokenizer, model = tokenizer_and_model(model_args)                # model_setup
    ...     place_model(model, model_args, args, trains=True)
    ...     ...                                                               # fine_tuning, pre_training: data, trainer
    ...     with trackers_of(run, args, settings) as trackers:
    ...         train(trainer, run, resume)

`fine_tuning` and `pre_training` have the steps between them.
"""

import logging

from t5suite.base.libraries import require_proved
from t5suite.runs.directory import Run
from t5suite.runs.settings import public_settings
from t5suite.tracking.trackers import CALLBACKS, Trackers, tracker_names
from t5suite.training.callback import Callback
from t5suite.training.checkpoints.folders import checkpoint_step
from t5suite.training.checkpoints.selection import check_best_is_there
from t5suite.training.checkpoints.starts import Start, choose_start
from t5suite.training.flags.fine_tuning import identity_of

logger = logging.getLogger(__name__)


def trackers_of(run: Run, args, settings: dict) -> Trackers:
    """The trackers that mirror `metrics.jsonl`, on the main process; keep them open until the results are written."""
    names = tracker_names(args.report_to) if run.is_main else []
    if not set(CALLBACKS).isdisjoint(names):
        require_proved("tracker_callbacks")
    return Trackers(names, run.directory, run.run_id, public_settings(settings), identity_of(args))


class StartRecord(Callback):
    """Writes to the manifest where the run begins, and after how many steps it ends; sweeps read that."""

    def __init__(self, run: Run, start: Start):
        self.run = run
        self.start = start

    def on_train_begin(self, args, state, control, **kwargs):
        """Writes the number of steps, which the trainer knows by now, and a restart."""
        start = self.start
        if start.restart:
            step = checkpoint_step(start.checkpoint)
            restart = {"from": str(start.checkpoint), "reset": sorted(start.reset), "step": step}
            self.run.update(restarts=[*self.run.manifest.get("restarts", []), restart])
        self.run.update(total_steps=state.max_steps)


def train(trainer, run: Run, resume: str, check_start=None) -> None:
    """Trains, or resumes from the checkpoint that `--resume` and `--reset` choose, and saves the model.

    Args:
      check_start: called with the `Start`, before anything is loaded.
    """
    args = trainer.args
    start = trainer.ranks.together(
        choose_start,
        args.output_dir,
        resume,
        args.reset,
        run_id=run.run_id,
        fingerprint=run.manifest["fingerprint"],
        trust=args.trust_checkpoint,
    )
    if args.load_best_model_at_end and start.of_this_run:
        trainer.ranks.together(check_best_is_there, start.checkpoint)
    if check_start is not None:
        check_start(start)
    trainer.add_callback(StartRecord(run, start))
    if start.checkpoint is not None:
        logger.info("resuming from %s", start.checkpoint)
    output = trainer.train(start=start)
    summary = {"steps": output.global_step, "loss": output.metrics["train_loss"], **output.metrics}
    if start.step:
        summary["from_step"] = start.step
    run.update(training=summary)
    trainer.save_model(args.output_dir)
