"""The steps of a fine-tuning run that flags decide: what is read from the hub, idle flags, manifest, callbacks.

    >>> begin_reads(arguments)                                                # revisions of the hub
    >>> settle_reads(arguments, plan, trains=True, earlier=run.hub_before)    # their commits
    >>> data = data_for(plan, tokenizer, arguments, True, encoding)           # fine_tuning_data
    >>> trainer, rates = trainer_for(model, tokenizer, data, arguments)       # fine_tuning_trainer
    >>> best = add_callbacks(trainer, run.directory, trackers, keep_task_weights=False)
    >>> report = evaluate_finally(trainer, data, best, trained=True)          # fine_tuning_evaluation

`fine_tune_t5.py` calls them one after the other, between those of `run`; `t5suite.FineTuner` calls the same ones.
"""

import logging

from t5suite.base.errors import ConfigError
from t5suite.base.hub_commits import Request, hub_reads, is_repository, revision_of
from t5suite.base.reference_code import reference_code
from t5suite.data.batches.encodings import TextEncoding
from t5suite.data.rows.subsets import HeldOutRows
from t5suite.models.loading import describe_model
from t5suite.runs.opening import hub_before
from t5suite.training.best_per_task import BestPerTaskCallback
from t5suite.training.distillation import note_teacher
from t5suite.training.eval_sets import describe_selection
from t5suite.training.fine_tuning_data import Data
from t5suite.training.flags import fields
from t5suite.training.flags.fine_tuning import add_profile
from t5suite.training.flags.hugging_face import idle_accelerator_settings, missing_parts
from t5suite.training.flags.plug_ins import plug_ins_of
from t5suite.training.hub_reads import begin_hub_reads, data_requests, model_requests, settle_hub_reads
from t5suite.training.plans import Plan
from t5suite.training.plug_ins import PlugIns
from t5suite.training.run_directory import note_libraries, note_tokenizer
from t5suite.training.samples import SampleCallback
from t5suite.training.step_lines import MetricsCallback
from t5suite.training.trainer import SuiteTrainer

logger = logging.getLogger(__name__)


def begin_reads(arguments) -> None:
    """Notes revisions of the hub that flags name; looks up that of `--hub_path`, whose rows the plan already reads.

    A run that resumes in a named `--output_dir` reads the commit that it began with.
    """
    data_revision = arguments.data.data_revision
    begin_hub_reads(arguments.model.model_revision, data_revision)
    path = arguments.formats.hub_path
    if not is_repository(path):
        return
    args = arguments.training
    earlier_reads = {}
    if args.output_dir_given:
        earlier_reads = hub_before(args.output_dir, arguments.evaluation.resume, args.overwrite_output_dir)
    settle_hub_reads([Request("dataset", path, revision_of(data_revision, path))], earlier_reads)


def settle_reads(arguments, plan: Plan, trains: bool, earlier: dict | None = None) -> None:
    """Looks up the commits of all models and data sets of the hub that the run reads (`hub_reads`).

    Args:
      earlier: what a run that resumes has read.

    Raises:
      ConfigError: a flag gives a revision to a repository that the run does not read.
    """
    predicts_only = arguments.evaluation.predict_only
    roles = []
    if trains:
        roles.append("train")
    if not predicts_only:
        roles.append("validation")
    if predicts_only or arguments.training.do_predict:
        roles.append("test")
    requests = model_requests(arguments.model, arguments.distillation.teacher)
    requests += data_requests(plan, arguments.data, roles)
    settle_hub_reads(requests, earlier)


def plug_ins_by_flags(arguments) -> PlugIns:
    """The user's own functions, callbacks and model class."""
    model_args = arguments.model
    return plug_ins_of(
        arguments.plug_ins, arguments.formats.metrics, model_args.model_class, model_args.trust_remote_code
    )


def warn_of_idle_flags(changed: dict, plan: Plan, trains: bool, predicts: bool) -> list[str]:
    """Warns of every flag that was given and has no effect in this run, with the reason; returns the flags."""
    if trains and changed.get("eval_strategy") == "no":
        logger.info("--eval_strategy no: nothing is evaluated, and no checkpoint is chosen; there will be no scores")
    given_flags = dict(changed)
    if holds_rows_out(plan):
        given_flags.pop("train_file", None)  # rows of it are scored
    if not trains and not any(task.splits("validation") for task in plan.evaluate):
        given_flags.pop("test_file", None)  # a test split alone is scored
    missing = missing_needs(changed, plan, trains, predicts)
    unused = {**idle_accelerator_settings(changed), **idle_draws(changed, plan)}
    return fields.warn_of_flags_without_effect("fine_tune_t5", given_flags, missing, unused)


def idle_draws(changed: dict, plan: Plan) -> dict[str, str]:
    """Flags of the examples' order that have no effect on a mixture, with the reason."""
    idle = {}
    if len(plan.train) > 1 and changed.get("train_sampling_strategy") == "sequential":
        idle["train_sampling_strategy"] = "a mixture's examples are drawn at random"
    if changed.get("mixing") == "equal":
        idle["mixing_temperature"] = "--mixing equal draws every task as often"
    return idle


def holds_rows_out(plan: Plan) -> bool:
    """Whether the rows that are scored are held out of training rows."""
    return any(isinstance(source, HeldOutRows) for source in plan.sources.values())


def missing_needs(changed: dict, plan: Plan, trains: bool, predicts: bool) -> dict[str, str]:
    """What flags need (their field's `needs`) and this run lacks, with the reason."""
    method = changed.get("eval_method")
    missing = {
        "Hugging Face's evaluation": "answers are written or scored, and evaluated by our own loop",
        **missing_parts("fine_tune_t5", changed),
    }
    if not trains:
        missing["training"] = "nothing is trained"
    if len(plan.train) == 1:
        missing["several tasks"] = "there is one task"
    if not predicts:
        missing["prediction"] = "test splits are predicted with --do_predict only"
    if trains and changed.get("eval_strategy") == "no":
        missing["validation"] = "--eval_strategy no evaluates nothing"
        if not predicts:
            missing["evaluation"] = "--eval_strategy no evaluates nothing"
    if method in ("score", "loss"):
        missing["writing"] = "this --eval_method writes nothing"
    if method == "loss":
        missing["answers"] = "only the loss is evaluated"
    named = reference_code(changed.get("reference_code"))
    if named and named <= unused_fast_paths(method, plan, trains, evaluates="evaluation" not in missing):
        missing["fast paths"] = "this run does not use it"
    return missing


def unused_fast_paths(method: str | None, plan: Plan, trains: bool, evaluates: bool) -> set[str]:
    """The fast paths that a run of fine-tuning with this `--eval_method` cannot use."""
    unused = {"quick_tokenizer"}
    if not trains:
        unused.add("loss_chunks")
    if not evaluates or method != "score":
        unused.add("candidate_trees")
    if not evaluates or method == "loss" or (method == "score" and plan.alone):
        unused.add("quick_decoding")
    return unused


def note_in_manifest(run, plan: Plan, data: Data, rates: dict, trainer: SuiteTrainer, encoding: TextEncoding) -> None:
    """Writes to the manifest what the run is made of: tasks, rows, model, texts."""
    note_teacher(run, trainer.compute_loss_func)
    run.update(
        tasks={task.name: task.entry for task in plan.tasks},
        mixing_rates=rates,
        missing_tasks=data.missing,
        model=describe_model(trainer.model),
        encoding=encoding.described,
        trained_on=[plan.benchmark, plan.dataset_name],
        hub=hub_reads().described(),
        answering=trainer.evaluator.described(trainer.model),
    )
    note_tokenizer(run, trainer.processing_class)
    note_libraries(run, trainer.libraries)
    selects_by = describe_selection(data.selecting, trainer.selection_metric)
    trainer.checkpoints.run_details = run.checkpoint_details(selects_by)


def add_callbacks(trainer: SuiteTrainer, directory, trackers, keep_task_weights: bool) -> BestPerTaskCallback:
    """Adds callbacks that write metrics to `metrics.jsonl` and trackers, and remember each task's best step.

    Raises:
      ConfigError: the weights of single tasks cannot be loaded into a sharded model.
    """
    if keep_task_weights and (trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):
        raise ConfigError("--select per_task reloads weights, which ZeRO and FSDP cannot; choose --select average")

    def last_report():
        return trainer.last_report

    best = BestPerTaskCallback(directory, last_report, trainer.save_best_of_task if keep_task_weights else None)
    trainer.add_callback(SampleCallback(directory, trainer.args.num_samples, trainer.eval_sets, last_report))
    trainer.add_callback(MetricsCallback(directory, trackers))
    add_profile(trainer, directory)
    trainer.add_callback(best)
    return best
