"""Fine-tunes a language model on GLUE, SuperGLUE or tasks of your own, and scores it.

    python fine_tune_t5.py --benchmark glue --dataset_name rte --model_name_or_path google/t5-v1_1-small
    python fine_tune_t5.py config.yaml --learning_rate 1e-3

Every flag has a default; without any flag the recipe mini.yaml is run: the bundled tiny T5 learns mini/sentiment.
"""

import logging
import sys

if __name__ == "__main__":
    from t5suite.commands.startup import begin_program, run_program

    begin_program("fine_tune_t5", __doc__)

from t5suite.base.errors import ConfigError
from t5suite.base.hub_commits import forget_hub_reads
from t5suite.reports import finishing as reports
from t5suite.reports.dry_runs import print_dry_run
from t5suite.reports.tables import print_checkpoint_table, print_finished
from t5suite.runs.directory import default_output_dir, write_json
from t5suite.training import fine_tuning as steps
from t5suite.training.checkpoints.folders import checkpoint_step, checkpoints, resume_choice
from t5suite.training.fine_tuning import data_for, encoding_by_flags, lengths_of, plug_ins_by_flags, trainer_for
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS, FineTuningArguments
from t5suite.training.flags.model import adapt_by_flags, write_merged
from t5suite.training.flags.parser import changed_settings, parse_arguments
from t5suite.training.memory_summary import print_fine_tuning_summary
from t5suite.training.plans import plan_for
from t5suite.training.processes.launchers import without_launcher_flags
from t5suite.training.processes.signals import stop_requests
from t5suite.training.run import (
    all_settings,
    libraries_of,
    model_title,
    place_model,
    prepare_process,
    run_directory,
    tokenizer_and_model,
    trackers_of,
    train,
    trained_as,
)

logger = logging.getLogger("t5suite.fine_tune")


@stop_requests().excusing_lost_ranks()
def main(argv=None) -> dict:
    """Runs the numbered steps and returns what `results.json` holds."""

    # 1. Flags: a YAML file first, then the command line.
    argv = without_launcher_flags(sys.argv[1:] if argv is None else argv) or ["mini.yaml"]
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
    if not args.output_dir_given:
        mode = "" if trains else "predict" if eval_args.predict_only else "eval"
        args.output_dir = default_output_dir(plan.benchmark, plan.dataset_name, model_args.model_name_or_path, mode)
    changed = changed_settings(arguments)
    steps.warn_of_idle_flags(changed, plan, trains, predicts=eval_args.predict_only or args.do_predict)
    logger.info("%s/%s on %d x %s", plan.benchmark, plan.dataset_name, args.world_size, args.device.type)

    # 3. Run directory: a new one, or the existing one of this run.
    resume = resume_choice(eval_args.resume, args.resume_from_checkpoint)
    settings = all_settings(*arguments, plug_ins=plug_ins)
    if eval_args.eval_checkpoints == "all":
        return score_checkpoints(plan, arguments, plug_ins, libraries)
    if args.print_summary and is_main:
        print_fine_tuning_summary(arguments, plan.tasks)
    if eval_args.dry_run:
        return show(plan, settings, changed, trains, arguments, plug_ins)
    with run_directory(args, settings, argv, resume) as run:
        if run.finished:
            return print_finished(run, is_main)
        return fine_tune(run, plan, settings, changed, resume, trains, arguments, plug_ins, libraries)


def fine_tune(run, plan, settings, changed, resume, trains, arguments, plug_ins, libraries) -> dict:
    """The run itself, in a directory that no other process writes into."""
    model_args, eval_args, args = arguments.model, arguments.evaluation, arguments.training

    # 4. Commits of the hub; tokenizer and model, in float32 whatever the checkpoint holds.
    steps.settle_reads(arguments, plan, trains, run.hub_before)
    tokenizer, model = tokenizer_and_model(model_args, tasks=plan.tasks)
    model = adapt_by_flags(model, tokenizer, arguments, trains)
    place_model(model, model_args, args, trains)

    # 5. Data, tokenization as the model's family reads and writes, and the metrics of every split that is scored.
    encoding = encoding_by_flags(model, tokenizer, arguments.data, changed, model_args.model_name_or_path)
    data = data_for(plan, tokenizer, arguments, trains, encoding, plug_ins)

    # 6. Trainer.
    trainer, rates = trainer_for(model, tokenizer, data, arguments, plug_ins=plug_ins, libraries=libraries)
    steps.note_in_manifest(run, plan, data, rates, trainer, encoding)

    # 7. Training; trackers mirror metrics.jsonl until the results are there.
    with trackers_of(run, args, settings) as trackers:
        best = steps.add_callbacks(trainer, run.directory, trackers, trains and eval_args.select == "per_task")
        if trains:
            train(trainer, run, resume)

        # 8. Scores, predictions, results, table.
        report = steps.evaluate_finally(trainer, data, best, trained=trains)
        results = reports.build_results(report, plan.benchmark, plan.average, data.scored, plan.published)
        if run.is_main:
            if arguments.adapter.merge_adapter:
                write_merged(model, tokenizer, run.directory / "merged", trainer.checkpoints.task_card)
            name = model_title(model, model_args.model_name_or_path, model_args.from_scratch)
            title = f"{name} on {plan.benchmark}/{plan.dataset_name}"
            reports.finish_run(run, data, report, results, best.best, title, is_model=trains)
    trainer.accelerator.wait_for_everyone()

    # 9. Model and card to the hub, with --push_to_hub.
    if trains:
        trainer.push_finished()
    return results


def show(plan, settings, changed, trains, arguments, plug_ins) -> dict:
    """`--dry_run`: the configuration, some pairs, lengths and steps."""
    steps.settle_reads(arguments, plan, trains)
    tokenizer, model = tokenizer_and_model(arguments.model, tasks=plan.tasks)
    encoding = encoding_by_flags(model, tokenizer, arguments.data, changed, arguments.model.model_name_or_path)
    data = data_for(plan, tokenizer, arguments, trains, encoding, plug_ins)
    return print_dry_run(settings, changed, data, encoding, lengths_of(arguments.data), arguments.training)


def score_checkpoints(plan, arguments, plug_ins, libraries) -> dict:
    """`--eval_checkpoints all`: every checkpoint of the run in `--output_dir`, as a table of steps by tasks."""
    model_args, args = arguments.model, arguments.training
    folders = checkpoints(args.output_dir)
    if not folders:
        raise ConfigError(f"--eval_checkpoints all: no checkpoint-N in --output_dir {args.output_dir}")
    steps.settle_reads(arguments, plan, trains=False)
    data, scores, full = None, {}, {}
    for folder in folders:
        model_args = trained_as(model_args, folder)
        tokenizer, model = tokenizer_and_model(model_args, tasks=plan.tasks)
        place_model(model, model_args, args, trains=False)
        encoding = encoding_by_flags(model, tokenizer, arguments.data, None, model_args.model_name_or_path)
        data = data or data_for(plan, tokenizer, arguments, trains=False, encoding=encoding, plug_ins=plug_ins)
        trainer, _ = trainer_for(
            model, tokenizer, data, arguments, selects=False, plug_ins=plug_ins, libraries=libraries
        )
        report = trainer.score(data.eval_sets)
        results = reports.build_results(report, plan.benchmark, plan.average, data.eval_sets, plan.published)
        scores[checkpoint_step(folder)] = {**report.by_task, **results["averages"]}
        full[str(checkpoint_step(folder))] = reports.without_nan(results)
    if args.process_index == 0:
        write_json(f"{args.output_dir}/eval_checkpoints.json", full)
        print_checkpoint_table(scores, f"checkpoints of {args.output_dir}")
    return full


if __name__ == "__main__":
    run_program(main)
