"""Pre-trains an encoder-decoder model by span corruption on text of one's own.

    python pre_train_t5.py --train_file articles.txt.gz --model_name_or_path google/t5-v1_1-small --from_scratch
    python pre_train_t5.py config.yaml --max_steps 100 --inputs_length 128

Every flag has a default: without any, the bundled tiny T5 learns the bundled text.
"""

import logging
import sys

from t5suite.data.pre_training_collator import T5DataCollator
from t5suite.errors import run_command
from t5suite.models.loading import describe
from t5suite.runs import RESULTS, open_run, public_settings, read_json
from t5suite.tracking import reports
from t5suite.tracking.plots import loss_curve
from t5suite.tracking.trackers import Trackers, tracker_names
from t5suite.training import fine_tuning as shared
from t5suite.training import pre_training as steps
from t5suite.training.argument_parser import changed_settings, parse_arguments
from t5suite.training.callbacks import MetricsCallback
from t5suite.training.checkpoints import resume_choice
from t5suite.training.from_arguments import tokenizer_and_model
from t5suite.training.pre_training_arguments import PRE_TRAINING_ARGUMENTS
from t5suite.training.pre_training_evaluation import EVALUATION_SEED, unigram_entropies
from t5suite.training.resets import choose_start, going_on

logger = logging.getLogger("t5suite.pre_train")


def main(argv=None) -> dict:
    """Runs the numbered steps and returns what `results.json` holds."""

    # 1. Flags: a YAML file first, then the command line.
    arguments = parse_arguments(PRE_TRAINING_ARGUMENTS, argv, prog="pre_train_t5.py", description=__doc__)
    model_args, text_args, args = arguments
    trains = not text_args.eval_only
    if not args.output_dir_given:
        model_name = model_args.config_name or model_args.model_name_or_path
        args.output_dir = steps.pre_training_output_dir(model_name, text_args.eval_only)

    # 2. Seed and accelerator: the training arguments have found the device and the other ranks by now.
    is_main = args.process_index == 0
    shared.start_logging(is_main, bool(args.disable_tqdm))
    shared.seed_everything(args.seed)
    shared.one_device_a_process(args)
    steps.warn_of_idle_flags(changed_settings(arguments), trains)
    logger.info("pre-training on %d x %s", args.world_size, args.device.type)

    # 3. Run directory: a new one, or this same run's from before.
    resume = resume_choice(text_args.resume, args.resume_from_checkpoint)
    settings = shared.all_settings(*arguments)
    command = sys.argv[1:] if argv is None else argv
    run = open_run(
        args.output_dir, settings, command, is_main, need_new=is_main and resume == "none", extend=args.extend
    )
    if run.finished:
        logger.info("run %s in %s was finished before; these are its results", run.run_id, run.directory)
        return reports.print_results(read_json(run.directory / RESULTS), str(run.directory), is_main)

    # 4. Tokenizer and model, in float32 whatever the checkpoint holds.
    tokenizer, model = tokenizer_and_model(model_args)
    shared.check_precision(args.fp16, model.config.model_type)
    logger.info("%(class)s, %(parameters)d parameters", describe(model))

    # 5. Text -> blocks of tokens, as long as the corruption needs them.
    train_collator, eval_collator = (
        collator_for(model, tokenizer, text_args, seed) for seed in (args.seed, EVALUATION_SEED)
    )
    corpus = corpus_for(tokenizer, text_args, train_collator.tokens_length)
    steps.check_same_text(run, corpus.described)

    # 6. Trainer.
    trainer = steps.make_trainer(model, tokenizer, args, corpus, train_collator, eval_collator)
    run.update(data=corpus.described, model=describe(model))

    # 7. Training; trackers mirror metrics.jsonl.
    names = tracker_names(args.trackers) if is_main else []
    with Trackers(names, run.directory, run.run_id, public_settings(settings)) as trackers:
        trainer.add_callback(MetricsCallback(run.directory, trackers))
        if trains:
            start = choose_start(args.output_dir, resume, args.reset, run.extended)
            with going_on(trainer, start, run) as folder:
                run.update(training=shared.train(trainer, folder))
            trainer.save_model(args.output_dir)
            if is_main:
                loss_curve(run.directory)

    # 8. Score, results, model card.
    report = trainer.evaluator.evaluate(trainer.model, trainer.eval_sets)
    results = steps.results_of(report, unigram_entropies(eval_collator, trainer.eval_sets[0]))
    if is_main:
        title = shared.model_title(model, model_args.model_name_or_path, model_args.from_scratch)
        if trains:
            example = steps.example_inputs(corpus, eval_collator, tokenizer)
            steps.write_model_card(run.directory, title=title, results=results, manifest=run.manifest, example=example)
        run.update(seconds={name: round(result.seconds, 3) for name, result in report.results.items()})
        reports.write_results(run.directory, results)
        run.finish()
        reports.print_results(results, f"{title}  ({run.directory})")
    trainer.accelerator.wait_for_everyone()
    return results


def collator_for(model, tokenizer, text_args, seed: int) -> T5DataCollator:
    """The collator of the corruption flags."""
    return steps.make_collator(
        model,
        tokenizer,
        text_args.inputs_length,
        text_args.targets_length,
        text_args.noise_density,
        text_args.mean_span_length,
        seed,
    )


def corpus_for(tokenizer, text_args, tokens_length: int) -> steps.Corpus:
    """The text of the file flags."""
    return steps.load_corpus(
        tokenizer,
        tokens_length,
        text_args.train_file,
        text_args.validation_file,
        text_column_name=text_args.text_column_name,
        validation_fraction=text_args.validation_fraction,
        trains=not text_args.eval_only,
    )


if __name__ == "__main__":
    sys.exit(run_command(main))
