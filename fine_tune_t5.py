"""Fine-tunes a language model on GLUE, SuperGLUE or tasks of your own, and scores it.

    python fine_tune_t5.py --benchmark glue --dataset_name rte --model_name_or_path google/t5-v1_1-small
    python fine_tune_t5.py config.yaml --learning_rate 1e-3

Every flag has a default; without any flag the recipe mini.yaml is run: the bundled tiny T5 learns mini/sentiment.
"""

import dataclasses
import logging
import sys

if __name__ == "__main__":
    from t5suite.base.programs import run_program
    from t5suite.commands.startup import begin_program

    begin_program("fine_tune_t5", __doc__)

from t5suite.base.errors import ConfigError
from t5suite.base.files import write_json
from t5suite.base.hub_commits import forget_hub_reads
from t5suite.launch.bundled_runs import with_recipe
from t5suite.reports import finishing as reports
from t5suite.reports.dry_runs import print_dry_run
from t5suite.reports.tables import print_checkpoint_table, print_finished
from t5suite.run_steps import (
    Learner,
    RunSetup,
    data_of,
    load_learner,
    mark_seen_rows,
    origin_by_flags,
    train_and_score,
    trainer_of,
)
from t5suite.runs.directory import default_output_dir
from t5suite.runs.trained_splits import trained_splits_of_model
from t5suite.tasks.task_card import read_task_card, task_card_of_model
from t5suite.training import fine_tuning as steps
from t5suite.training.checkpoints.folders import checkpoint_step, checkpoints
from t5suite.training.checkpoints.starts import resume_choice
from t5suite.training.fine_tuning import plug_ins_by_flags
from t5suite.training.fine_tuning_data import encoding_by_flags, lengths_of
from t5suite.training.fine_tuning_trainer import mixing_by_flags
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS, FineTuningArguments, warn_of_idle_saving_flags
from t5suite.training.flags.parser import changed_settings, parse_arguments
from t5suite.training.model_setup import place_by_flags, tokenizer_and_model, trained_as
from t5suite.training.plans import plan_for
from t5suite.training.process_setup import libraries_of, prepare_process
from t5suite.training.processes.signals import stop_requests
from t5suite.training.run_directory import all_settings, check_run_directory, choose_output_dir, run_directory
from t5suite.training.trained_rows_warnings import inputs_trained_on

logger = logging.getLogger("t5suite.fine_tune")


@stop_requests().excusing_lost_ranks()
def main(argv=None) -> dict:
    """Runs the numbered steps and returns what `results.json` holds."""

    # 1. Flags: a YAML file first, then the command line.
    argv = with_recipe("fine_tune_t5", sys.argv[1:] if argv is None else argv)
    parsed = parse_arguments(FINE_TUNING_ARGUMENTS, argv, prog="fine_tune_t5.py", description=__doc__)
    arguments = FineTuningArguments(*parsed)
    model_args, eval_args, args = arguments.model, arguments.evaluation, arguments.training

    # 2. Seed and accelerator: the training arguments have found the device and the other ranks by now.
    is_main = prepare_process(args, model_args.device_map)
    libraries = libraries_of(args)
    forget_hub_reads()
    plug_ins = plug_ins_by_flags(arguments)
    steps.begin_reads(arguments)
    plan = plan_for(arguments)
    trains = not (eval_args.eval_only or eval_args.predict_only or eval_args.eval_checkpoints == "all")
    changed = changed_settings(arguments)
    steps.warn_of_idle_flags(changed, plan, trains, predicts=eval_args.predict_only or args.do_predict)
    if trains:
        warn_of_idle_saving_flags(args)
    logger.info("%s/%s on %d x %s", plan.benchmark, plan.dataset_name, args.world_size, args.device.type)

    # 3. Run directory: a new one, or the existing one of this run.
    resume = resume_choice(eval_args.resume, args.resume_from_checkpoint)
    settings = all_settings(*arguments, plug_ins=plug_ins, contents=plan.contents)
    default = None
    if not args.output_dir_given:
        mode = name_of_mode(eval_args, trains)
        default = default_output_dir(plan.benchmark, plan.dataset_name, model_args.model_name_or_path, mode)
        choose_output_dir(args, settings, resume, default)
    setup = RunSetup(arguments, plan, plug_ins, libraries, settings, changed, trains)
    if eval_args.eval_checkpoints == "all":
        return score_checkpoints(setup)
    if eval_args.dry_run:
        check_run_directory(args, settings, argv, resume, default)
        return show(setup, resume)
    with run_directory(args, settings, argv, resume, default) as run:
        if run.finished:
            return print_finished(run, is_main)

        # 4. Commits of the hub; tokenizer and model.  5. to 9. Data, trainer, training, scores, upload.
        learner = load_learner(setup, run.hub_before)
        return train_and_score(setup, learner, run, resume)


def name_of_mode(eval_args, trains: bool) -> str:
    """What the default name of the run's directory ends with; training adds nothing."""
    if trains or eval_args.eval_checkpoints == "all":  # the checkpoints are in the directory of the run that trained
        return ""
    return "predict" if eval_args.predict_only else "eval"


def show(setup: RunSetup, resume: str) -> dict:
    """`--dry_run`: the configuration, some pairs, lengths and steps."""
    arguments = setup.arguments
    steps.settle_reads(arguments, setup.plan, setup.trains)
    tokenizer, model = tokenizer_and_model(arguments.model, tasks=setup.plan.tasks)
    name = arguments.model.model_name_or_path
    revision = arguments.model.model_revision
    encoding = encoding_by_flags(model, tokenizer, arguments.data, setup.changed, name, revision)
    learner = Learner(tokenizer, model, encoding, card=task_card_of_model(name, revision))
    origin = origin_by_flags(arguments.model, resume, setup.trains)
    data = data_of(setup, learner)
    mark_seen_rows(setup, data, trained_splits_of_model(origin), inputs_trained_on(data, origin))
    lengths = lengths_of(arguments.data)
    mixing = mixing_by_flags(arguments)
    return print_dry_run(setup.settings, setup.changed, data, encoding, lengths, arguments.training, mixing)


def score_checkpoints(setup: RunSetup) -> dict:
    """`--eval_checkpoints all`: every checkpoint of the run in `--output_dir`, as a table of steps by tasks."""
    setup = dataclasses.replace(setup, trains=False)
    arguments, plan = setup.arguments, setup.plan
    output_dir = arguments.training.output_dir
    folders = checkpoints(output_dir)
    if not folders:
        raise ConfigError(f"--eval_checkpoints all: no checkpoint-N in --output_dir {output_dir}")
    steps.settle_reads(arguments, plan, trains=False)
    data = None
    scores_by_step: dict[int, dict] = {}
    results_by_step: dict[str, dict] = {}
    model_args = arguments.model
    for folder in folders:
        model_args = trained_as(model_args, folder)
        tokenizer, model = tokenizer_and_model(model_args, tasks=plan.tasks)
        place_by_flags(model, model_args, arguments.training, trains=False)
        encoding = encoding_by_flags(model, tokenizer, arguments.data, None, model_args.model_name_or_path)
        learner = Learner(tokenizer, model, encoding, card=read_task_card(folder))
        if data is None:
            data = data_of(setup, learner)
            mark_seen_rows(setup, data, trained_splits_of_model(output_dir), inputs_trained_on(data, output_dir))
        trainer, _ = trainer_of(setup, learner, data, selects=False)
        report = trainer.score(data.eval_sets)
        results = reports.build_results(report, plan.benchmark, plan.average, data.eval_sets, plan.published)
        step = checkpoint_step(folder)
        scores_by_step[step] = {**report.by_task, **results["averages"]}
        results_by_step[str(step)] = reports.without_nan(results)
    if arguments.training.process_index == 0:
        write_json(f"{output_dir}/eval_checkpoints.json", results_by_step)
        print_checkpoint_table(scores_by_step, f"checkpoints of {output_dir}")
    return results_by_step


if __name__ == "__main__":
    run_program(main)
