"""A run, step by step: what `fine_tune_t5.py`, `pre_train_t5.py` and `t5suite.FineTuner` share.

    >>> setup = RunSetup(arguments, plan, plug_ins, libraries, settings, changed, trains=True)
    >>> with run_directory(args, settings, argv, resume) as run:
    ...     learner = load_learner(setup, run.hub_before)                     # 4. commits of the hub, tokenizer, model
    ...     results = train_and_score(setup, learner, run, resume)            # 5. to 9.

The numbers are those of the README's section on what a run does; steps 1 to 3 (flags, process, directory) stand in the
scripts, because a `FineTuner` shares its process with other code. Pre-training has steps 4 to 9 of its own, and trains
by `trackers_of` and `train`, too.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from t5suite.base.libraries import Libraries, require_proved
from t5suite.reports import finishing as reports
from t5suite.runs.directory import Run
from t5suite.runs.settings import public_settings
from t5suite.runs.trained_inputs import keep_trained_inputs
from t5suite.runs.trained_splits import origin_of_weights
from t5suite.tasks.task_card import TaskCard, task_card_of_model
from t5suite.tracking.trackers import CALLBACKS, Trackers, identity_of, tracker_names
from t5suite.training import fine_tuning as steps
from t5suite.training.callback import Callback
from t5suite.training.checkpoints.folders import checkpoint_step, checkpoints, leave_later_ones
from t5suite.training.checkpoints.selection import check_best_is_there
from t5suite.training.checkpoints.starts import Start, choose_start
from t5suite.training.chosen_rows import mark_chosen_rows
from t5suite.training.fine_tuning_data import Data, data_for, encoding_by_flags
from t5suite.training.fine_tuning_evaluation import choices_of_weights, evaluate_finally
from t5suite.training.fine_tuning_trainer import trainer_for
from t5suite.training.flags.adapters import adapt_by_flags
from t5suite.training.flags.fine_tuning import FineTuningArguments
from t5suite.training.model_setup import model_title, place_by_flags, tokenizer_and_model
from t5suite.training.model_tasks import warn_of_lengths_on_hub, warn_of_task_on_hub
from t5suite.training.plans import Plan
from t5suite.training.plug_ins import PlugIns
from t5suite.training.run_directory import follow_data_seed, note_weights
from t5suite.training.trained_rows_warnings import inputs_trained_on, warn_of_trained_inputs, warn_of_trained_rows

# Lines of the log name the run, whichever module of it writes them.
logger = logging.getLogger("t5suite.training.run")


@dataclass(frozen=True)
class RunSetup:
    """What a run is asked to do.

    Attributes:
      settings: every flag by name, as the manifest has it (`run_directory.all_settings`).
      changed: the flags whose value is not the default (`parser.changed_settings`).
      trains: whether the run trains; if not, it only scores or predicts.
    """

    arguments: FineTuningArguments
    plan: Plan
    plug_ins: PlugIns
    libraries: Libraries
    settings: dict
    changed: dict
    trains: bool


@dataclass(frozen=True)
class Learner:
    """A model with its tokenizer.

    Attributes:
      encoding: how the model's family reads rows and writes answers.
      title: what tables call a model that no flag names; None: its name, or its type and size.
      card: what its weights were trained for, if anything says so.
    """

    tokenizer: Any
    model: Any
    encoding: Any
    title: str | None = None
    card: TaskCard | None = None


def load_learner(setup: RunSetup, hub_before: dict | None = None) -> Learner:
    """Step 4: the commits of the hub; tokenizer and model, in float32 whatever the checkpoint holds.

    Args:
      hub_before: what an earlier start of this run has read from the hub.
    """
    model_args = setup.arguments.model
    steps.settle_reads(setup.arguments, setup.plan, setup.trains, hub_before)
    tokenizer, model = tokenizer_and_model(model_args, tasks=setup.plan.tasks)
    learner = make_learner(setup.arguments, tokenizer, model, setup.changed, setup.trains)
    warn_of_task_on_hub(setup.arguments, setup.plan, learner.card)
    warn_of_lengths_on_hub(setup.arguments, setup.plan, learner.card)
    return learner


def make_learner(
    arguments: FineTuningArguments, tokenizer, model, changed: dict | None, trains: bool, title: str | None = None
) -> Learner:
    """A loaded model with the requested adapter, in its place.

    Args:
      changed: as in `RunSetup`; None warns of no flag that has no effect in the model's family.
      title: as in `Learner`.
    """
    model_args = arguments.model
    model = adapt_by_flags(model, tokenizer, arguments, trains)
    place_by_flags(model, model_args, arguments.training, trains)
    name = model_args.model_name_or_path
    revision = model_args.model_revision
    encoding = encoding_by_flags(model, tokenizer, arguments.data, changed, name, revision)
    return Learner(tokenizer, model, encoding, title, task_card_of_model(name, revision))


def train_and_score(
    setup: RunSetup,
    learner: Learner,
    run: Run,
    resume: str,
    on_trainer: Callable | None = None,
    check_start: Callable | None = None,
) -> dict:
    """Steps 5 to 9, in a directory that no other process writes into; returns what `results.json` holds.

    Args:
      on_trainer: called with the trainer before anything is trained.
      check_start: called with the checkpoint to start from, before it is loaded (`train`).
    """
    plan = setup.plan
    arguments = setup.arguments
    follow_data_seed(run, arguments.training)
    origin = origin_by_flags(arguments.model, resume, setup.trains)
    note_weights(run, origin)

    # 5. Data, tokenization as the model's family reads and writes, and the metrics of every split that is scored.
    data = data_of(setup, learner)
    run.use_data(data.described)
    trained_inputs = inputs_trained_on(data, run.directory if checkpoints(run.directory) else origin)
    mark_seen_rows(setup, data, run.manifest.get("weights_trained_on", []), trained_inputs)
    if setup.trains and run.is_main and len(trained_inputs):
        keep_trained_inputs(run.directory, trained_inputs)

    # 6. Trainer.
    trainer, rates = trainer_of(setup, learner, data)
    if on_trainer is not None:
        on_trainer(trainer)
    steps.note_in_manifest(run, plan, data, rates, trainer, learner.encoding)

    # 7. Training; trackers mirror metrics.jsonl until the results are there.
    with trackers_of(run, arguments.training, setup.settings) as trackers:
        selects_per_task = setup.trains and arguments.evaluation.select == "per_task"
        best = steps.add_callbacks(trainer, run.directory, trackers, selects_per_task)
        if setup.trains:
            train(trainer, run, resume, check_start)

        # 8. Scores, predictions, results, table.
        report = evaluate_finally(trainer, data, best, trained=setup.trains)
        results = reports.build_results(report, plan.benchmark, plan.average, data.scored, plan.published)
        if run.is_main:
            model_args = arguments.model
            name = learner.title or model_title(learner.model, model_args.model_name_or_path, model_args.from_scratch)
            title = f"{name} on {plan.benchmark}/{plan.dataset_name}"
            choices = choices_of_weights(trainer, data, best) if setup.trains else []
            trained_model = learner.model if setup.trains else None
            reports.finish_run(run, data, report, results, best.best, title, trained_model, choices)
    trainer.accelerator.wait_for_everyone()

    # 9. Model and card to the hub, with --push_to_hub.
    if setup.trains:
        trainer.push_finished()
    return results


def trackers_of(run: Run, args, settings: dict) -> Trackers:
    """The trackers that mirror `metrics.jsonl`, on the main process; keep them open until the results are written."""
    names = tracker_names(args.report_to) if run.is_main else []
    if not set(CALLBACKS).isdisjoint(names):
        require_proved("tracker_callbacks")
    return Trackers(names, run.directory, run.run_id, public_settings(settings), identity_of(settings))


class StartRecord(Callback):
    """Writes to the manifest where the run begins, and after how many steps it ends; sweeps read that.

    Args:
      resume: `--resume`.
    """

    def __init__(self, run: Run, start: Start, resume: str):
        self.run = run
        self.start = start
        # Whether the run goes on from a checkpoint of its own that the command names.
        self.is_named = start.of_this_run and Path(resume).name == start.checkpoint.name

    def on_train_begin(self, args, state, control, **kwargs):
        """Writes the number of steps, which the trainer knows by now, and a restart; sets later checkpoints aside."""
        start = self.start
        left = []
        if start.of_this_run and self.run.is_main:
            left = leave_later_ones(self.run.directory, start.step)
        if start.restart or left or self.is_named:
            step = checkpoint_step(start.checkpoint)
            restart = {"from": str(start.checkpoint), "reset": sorted(start.reset), "step": step}
            if self.is_named:
                restart["named"] = True
            self.run.update(restarts=[*self.run.manifest.get("restarts", []), restart])
        self.run.update(total_steps=state.max_steps)


def train(trainer, run: Run, resume: str, check_start=None) -> None:
    """Trains, or resumes from the checkpoint that `--resume` and `--reset` choose, and saves the model.

    Args:
      check_start: called with the `Start`, before anything is loaded.
    """
    args = trainer.args
    if run.resumed and resume == "none":  # by a requeued job, which goes on with the run that it began
        resume = "auto"
    start = trainer.ranks.together(
        choose_start,
        args.output_dir,
        resume,
        args.reset,
        run_id=run.run_id,
        fingerprint=run.manifest["fingerprint"],
        trust=args.trust_checkpoint,
        restarts=run.manifest.get("restarts", []),
    )
    if args.load_best_model_at_end and start.of_this_run:
        trainer.ranks.together(check_best_is_there, start.checkpoint)
    if check_start is not None:
        check_start(start)
    trainer.add_callback(StartRecord(run, start, resume))
    if start.checkpoint is not None:
        logger.info("resuming from %s", start.checkpoint)
    output = trainer.train(start=start)
    summary = {"steps": output.global_step, "loss": output.metrics["train_loss"], **output.metrics}
    summary["seconds_from_step"] = trainer.progress.seconds_from_step
    if start.step:
        summary["from_step"] = start.step
    run.update(training=summary)
    trainer.save_model(args.output_dir)


def origin_by_flags(model_args, resume: str, trains: bool) -> str | None:
    """The model, checkpoint or file whose weights a run begins with; None if they are random or in memory."""
    if trains and resume not in ("auto", "none"):
        return resume
    return origin_of_weights(vars(model_args))


def data_of(setup: RunSetup, learner: Learner) -> Data:
    """Step 5: every split that the run reads, tokenized."""
    return data_for(
        setup.plan,
        learner.tokenizer,
        setup.arguments,
        setup.trains,
        learner.encoding,
        setup.plug_ins,
        learner.card,
    )


def mark_seen_rows(setup: RunSetup, data: Data, trained_splits: list[dict], trained_inputs: np.ndarray) -> None:
    """Marks the sets that have rows that the model is or was trained on, or by which its run has chosen it.

    Args:
      trained_splits: what the learner's weights were trained on before (`runs.trained_splits`).
      trained_inputs: hashes of the inputs that they are or were trained on (`inputs_trained_on`).
    """
    own_splits = [part.describe() for part in data.training_sets]
    warn_of_trained_rows(data.scored, data.described, own_splits, trained_splits)
    warn_of_trained_inputs(data.scored, trained_inputs)
    if not setup.trains:
        mark_chosen_rows(data.scored, data.described, origin_of_weights(vars(setup.arguments.model)))


def trainer_of(setup: RunSetup, learner: Learner, data: Data, selects: bool = True):
    """Step 6: `(trainer, {task: mixing rate})`; without `selects`, early stopping is off."""
    return trainer_for(
        learner.model,
        learner.tokenizer,
        data,
        setup.arguments,
        selects=selects,
        plug_ins=setup.plug_ins,
        libraries=setup.libraries,
    )
