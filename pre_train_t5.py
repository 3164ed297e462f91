"""Pre-trains a model on text: T5 by span corruption and other objectives, BERT and GPT types by theirs.

    python pre_train_t5.py --train_file articles.jsonl.gz --config_name t5-v1_1-small --tokenizer_name t5-small
    python pre_train_t5.py --train_file articles.txt --objective ul2 --inputs_length 384
    python pre_train_t5.py t5_v1_1_base_16h.yaml --max_steps 100

Every flag has a default: without any, the bundled tiny T5 learns the bundled text.
"""

import logging
import sys

if __name__ == "__main__":
    from t5suite.base.programs import run_program
    from t5suite.commands.startup import begin_program

    begin_program("pre_train_t5", __doc__)

from t5suite.base.hub_commits import forget_hub_reads
from t5suite.reports import finishing as reports
from t5suite.reports.dry_runs import print_pre_training_dry_run
from t5suite.reports.tables import print_finished
from t5suite.run_steps import origin_by_flags, trackers_of, train
from t5suite.training import pre_training as steps
from t5suite.training.callback import call_on_final
from t5suite.training.checkpoints.starts import resume_choice
from t5suite.training.flags.fine_tuning import warn_of_idle_saving_flags
from t5suite.training.flags.parser import changed_settings, parse_arguments
from t5suite.training.flags.plug_ins import plug_ins_of
from t5suite.training.flags.pre_training import PRE_TRAINING_ARGUMENTS, reconcile
from t5suite.training.model_setup import model_title, place_by_flags, tokenizer_and_model
from t5suite.training.plug_ins import with_transform
from t5suite.training.pre_training_collators import pre_training_collators
from t5suite.training.pre_training_data import data_of_text, streamed_data
from t5suite.training.pre_training_evaluation import NAME, unigram_entropies
from t5suite.training.pre_training_text import text_by_flags
from t5suite.training.pre_training_trainer import make_pre_trainer
from t5suite.training.process_setup import libraries_of, prepare_process
from t5suite.training.processes.signals import stop_requests
from t5suite.training.run_directory import (
    all_settings,
    check_run_directory,
    choose_output_dir,
    follow_data_seed,
    note_weights,
    run_directory,
)

logger = logging.getLogger("t5suite.pre_train")


@stop_requests().excusing_lost_ranks()
def main(argv=None) -> dict:
    """Runs the numbered steps and returns what `results.json` holds."""

    # 1. Flags: a YAML file or shipped recipe first, then the command line.
    arguments = parse_arguments(PRE_TRAINING_ARGUMENTS, argv, prog="pre_train_t5.py", description=__doc__)
    reconcile(arguments)
    model_args, text_args, objective_args, run_args, args = arguments
    trains = not run_args.eval_only

    # 2. Seed and accelerator: the training arguments have found the device and the other ranks by now.
    is_main = prepare_process(args, model_args.device_map)
    libraries = libraries_of(args)
    forget_hub_reads()
    steps.warn_of_idle_pre_training_flags(changed_settings(arguments), trains, objective_args.objective)
    if trains:
        warn_of_idle_saving_flags(args)
    logger.info("pre-training on %d x %s", args.world_size, args.device.type)

    # 3. Run directory: a new one, or the existing one of this run.
    resume = resume_choice(run_args.resume, args.resume_from_checkpoint)
    plug_ins = plug_ins_of(run_args, model_class=model_args.model_class)
    settings = all_settings(*arguments, plug_ins=plug_ins)
    default = None
    if not args.output_dir_given:
        default = steps.default_pre_training_directory(model_args, objective_args.objective, trains)
        choose_output_dir(args, settings, resume, default)
    if run_args.dry_run:
        check_run_directory(args, settings, sys.argv[1:] if argv is None else argv, resume, default)
        return show(settings, *arguments)
    with run_directory(args, settings, sys.argv[1:] if argv is None else argv, resume, default) as run:
        if run.finished:
            return print_finished(run, is_main)
        return pre_train(run, settings, resume, trains, plug_ins, arguments, libraries)


def pre_train(run, settings, resume, trains, plug_ins, arguments, libraries) -> dict:
    """The run itself, in a directory that no other process writes into."""
    model_args, text_args, objective_args, _, args = arguments
    follow_data_seed(run, args)
    note_weights(run, origin_by_flags(model_args, resume, trains))

    # 4. Commits of the hub; tokenizer and model, in float32 whatever the checkpoint holds.
    steps.settle_pre_training_reads(model_args, text_args, run.hub_before)
    pairs = objective_args.sentence_pairs is not None
    tokenizer, model = tokenizer_and_model(model_args, objective_args.modes, pairs)
    place_by_flags(model, model_args, args, trains)

    # 5. The objective: how blocks of tokens become inputs and targets.
    train_collator, eval_collator = pre_training_collators(objective_args, tokenizer, model, args.seed)
    train_collator = with_transform(train_collator, plug_ins)

    # 6. Text -> tokens -> numbered blocks, or a stream of them.
    if text_args.streaming:
        data = streamed_data(arguments, tokenizer, train_collator, eval_collator)
    else:
        text = text_by_flags(arguments, tokenizer)
        data = data_of_text(arguments, text, tokenizer, train_collator)

    # 7. Trainer.
    trainer = make_pre_trainer(
        model,
        tokenizer,
        args,
        data,
        train_collator,
        eval_collator,
        callbacks=plug_ins.callbacks,
        libraries=libraries,
    )
    steps.note_pre_training_in_manifest(run, data.described, trainer)

    # 8. Training; trackers mirror metrics.jsonl until the results are there.
    with trackers_of(run, args, settings) as trackers:
        steps.add_pre_training_callbacks(trainer, run.directory, trackers)
        if trains:
            train(trainer, run, resume)

        # 9. Scores, results, learning curves, model card.
        report = trainer.score(trainer.eval_sets)
        call_on_final(trainer, report, trainer.eval_sets)
        scores = {**report.results[NAME].metrics, **unigram_entropies(eval_collator, data.examples.held_out)}
        results = {"tasks": {NAME: scores}, "averages": {}}
        if run.is_main:
            title = model_title(model, model_args.model_name_or_path, model_args.from_scratch)
            objective = objective_args.objective
            reports.finish_pre_training(run, trainer, report, results, title, objective, is_model=trains)
    trainer.accelerator.wait_for_everyone()

    # 10. Model and card to the hub, with --push_to_hub.
    if trains:
        trainer.push_finished()
    return results


def show(settings, *arguments) -> dict:
    """`--dry_run`: the configuration, some pairs, lengths and steps; of a new model, only the shapes."""
    model_args, _, objective_args, _, args = arguments
    pairs = objective_args.sentence_pairs is not None
    tokenizer, model = tokenizer_and_model(model_args, objective_args.modes, pairs, without_weights=True)
    collator, _ = pre_training_collators(objective_args, tokenizer, model, args.seed)
    return print_pre_training_dry_run(settings, changed_settings(arguments), model, collator, args)


if __name__ == "__main__":
    run_program(main)
