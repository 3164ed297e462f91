"""The steps of a pre-training run that are more than one call: its collators, its trainer.

    >>> collator = make_collator("span_corruption", tokenizer, model, inputs_length=512, seed=42)
    >>> collator.tokens_lengths, collator.targets_length
    ([568], 114)
    >>> trainer = make_trainer(model, tokenizer, args, examples, train_collator, eval_collator)

`pre_training_data` has the sources of text, `pre_training_evaluation` how it is scored.
"""

import logging
import shutil
from dataclasses import asdict
from pathlib import Path

from tqdm.auto import tqdm

from t5suite.base.errors import AnotherCorpusError, ChangedDataError, ConfigError
from t5suite.base.hub import set_patience
from t5suite.base.hub_commits import hub_reads
from t5suite.base.libraries import Libraries
from t5suite.base.lookup import load_object
from t5suite.base.script_flags import flags_of
from t5suite.data.batches.pre_training_collator import CausalLMCollator, MaskedLMCollator, T5DataCollator
from t5suite.data.corpora.readers import TextOptions
from t5suite.data.corpora.store import tokenizer_fingerprint
from t5suite.data.objectives import OBJECTIVES, sentinel_ids
from t5suite.data.objectives.vocabulary import mask_vocabulary, sentence_end_flags, word_start_flags
from t5suite.models.config_limits import check_length, check_resumes
from t5suite.models.families import recognize_family
from t5suite.models.loading import describe_model
from t5suite.runs.directory import has_trained
from t5suite.runs.settings import allowed_names
from t5suite.training.flags.fields import warn_of_idle_flags as idle_flags
from t5suite.training.flags.fine_tuning import add_profile
from t5suite.training.hub_reads import begin_hub_reads, model_requests, settle_hub_reads, text_requests
from t5suite.training.losses import PAIR_LABELS, WatchedLoss
from t5suite.training.monitoring.rates import weight_norm
from t5suite.training.monitoring.terminal import shows_bars
from t5suite.training.plug_ins import add_plug_in_callbacks
from t5suite.training.pre_training_data import Examples, block_data, pair_data, stream_data, tokenized_text
from t5suite.training.pre_training_evaluation import EVALUATION_SEED, PreTrainingEvaluator
from t5suite.training.run import note_libraries, note_tokenizer
from t5suite.training.samples import SampleCallback
from t5suite.training.step_lines import MetricsCallback
from t5suite.training.trainer import SuiteTrainer

logger = logging.getLogger(__name__)


# Settings by name that belong to every seq2seq objective, or to every masked one.
PACKING = ("pack", "row_inputs_length", "row_targets_length")
SHAPED = ("targets_length", *PACKING)


def make_collator(objective: str, tokenizer, model, *, inputs_length: int, seed: int, **settings):
    """The collator of an objective's family, its noise drawn from (seed, index).

    Args:
      settings: what the objective uses (noise_density, mask_units, ...), and for seq2seq `SHAPED`; others, and those
        that are None, are ignored.

    Raises:
      ConfigError: the model is of another family; too few sentinels; lengths that do not fit.
    """
    entry, family = OBJECTIVES[objective], recognize_family(model).name
    if family != entry.family:
        suited = ", ".join(name for name, other in OBJECTIVES.items() if other.family == family)
        raise ConfigError(f"--objective {objective} is for {entry.family} models, not {family}: choose {suited}")
    check_length(model.config, inputs_length, "--inputs_length")
    check_resumes(model.config, inputs_length)
    if family == "causal":
        return CausalLMCollator(inputs_length)
    used = (*entry.uses, *(SHAPED if family == "seq2seq" else ("sentence_pairs",)))
    given = {name: settings[name] for name in used if settings.get(name) is not None}
    if "collocations" in given:
        load_collocations = load_object("t5suite.contrib.collocations:load_collocations", "--collocations")
        given["collocations"] = load_collocations(given["collocations"], tokenizer_fingerprint(tokenizer))
    if family == "seq2seq":
        ids = {name: getattr(model.config, name) for name in ("decoder_start_token_id", "pad_token_id")}
        return seq2seq_collator(objective, tokenizer, inputs_length, seed, **ids, **given)
    return MaskedLMCollator(
        mask_vocabulary(tokenizer, need_words=given.get("mask_units") in ("word", "ngram")),
        inputs_length,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
        seed=seed,
        **given,
    )


def seq2seq_collator(objective: str, tokenizer, inputs_length: int, seed: int = 0, **settings) -> T5DataCollator:
    """A seq2seq objective's collator with what it needs from the tokenizer, for any T5 that uses that tokenizer.

    >>> seq2seq_collator("span_corruption", tokenizer, inputs_length=512).tokens_lengths
    [568]
    """
    entry = OBJECTIVES[objective]
    known = {"sentinel_ids": sentinel_ids, "word_start_V": word_start_flags, "sentence_end_V": sentence_end_flags}
    needed = {name: of_tokenizer(tokenizer) for name, of_tokenizer in known.items() if name in entry.needs}
    return T5DataCollator(
        objective=objective,
        eos_token_id=tokenizer.eos_token_id,
        inputs_length=inputs_length,
        seed=seed,
        **{**settings, **needed},
    )


def warn_of_idle_flags(changed: dict, trains: bool, objective: str) -> list[str]:
    """Warns of every flag that was given and has no effect in this run, with the reason; returns the flags."""
    files = [str(file) for name in ("train_file", "validation_file") for file in changed.get(name) or ()]
    has_columns = any(not Path(file).name.removesuffix(".gz").removesuffix(".zst").endswith(".txt") for file in files)
    has_lines = any(".txt" in Path(file).suffixes or not Path(file).suffixes for file in files)
    built, held_out = "train_corpus" in changed, ""
    scored_alone = "only the validation files are scored" if not trains and "validation_file" in changed else ""
    if "validation_file" in changed:
        held_out = "there is a --validation_file"
    elif not files:
        held_out = "the corpus was split when it was built" if built else "the bundled text has a validation file"
    lacking = {
        "training": "" if trains else "nothing is trained",
        "transformed batches": "" if trains else "nothing is trained",
        "training files": scored_alone,
        "a held-out part": held_out,
        "reading": "the corpus was read when it was built" if built and not files else "",
        "columns": "" if has_columns else "no file has columns",
        "plain text": "" if has_lines else "no file is .txt",
        "a stream": "" if changed.get("streaming") else "the text is not a stream",
        "packing": "" if changed.get("pack") else "rows are not packed (--pack)",
        "sentence pairs": "" if "sentence_pairs" in changed else "there are no --sentence_pairs",
        "answers": "text is evaluated by its loss",
        "scoring": "text is evaluated by its loss",
        "Hugging Face's evaluation": "blocks are equally long, and evaluated by our own loop",
    }
    entry = OBJECTIVES[objective]
    of_family = {"seq2seq": SHAPED, "masked": ("sentence_pairs", "sentence_language"), "causal": ()}[entry.family]
    used = {*entry.uses, *of_family, *(["mode_tokens"] if "mode_token_ids" in entry.uses else ())}
    flags = flags_of("pre_train_t5").items()  # the theme's flags that only some objectives use
    theirs = [name for name, facts in flags if facts["theme"] == "objective" and "blocks" not in facts.get("needs", "")]
    unused = [name for name in theirs if name in changed and name not in used]
    why = dict.fromkeys(unused, f"--objective {objective} does not use it")
    return idle_flags("pre_train_t5", changed, lacking, why)


def epoch_blocks(num_blocks: int):
    """Epoch -> the indices of its data, which run on through all epochs, in order; the data set shuffles.

    >>> epoch_blocks(3)(1)
    range(3, 6)
    """
    return lambda epoch: range(epoch * num_blocks, (epoch + 1) * num_blocks)


class PreTrainer(SuiteTrainer):
    """A `SuiteTrainer` over indices that run on through all epochs: an epoch is a part of its endless data set.

    Its logs also have accuracy on the targets of the step, norm of the weights, rates, tokens seen, time left.
    """

    counts_tokens = True

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.compute_loss_func = WatchedLoss(self.compute_loss_func, self.summed)

    def num_examples(self, dataloader) -> int:
        """Blocks per epoch, which the trainer multiplies by the epochs."""
        return self.data.length

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Gives the labels of sentence pairs to the loss, in addition to the tokens' labels."""
        name = next((name for name in PAIR_LABELS if name in inputs), None)
        self.compute_loss_func.pair_labels = inputs.pop(name) if name else None
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def log(self, logs: dict, start_time: float | None = None) -> None:
        """Adds the accuracy since the last log, and the norm of the weights."""
        if "loss" in logs:
            norm = weight_norm(self.accelerator.unwrap_model(self.model))
            seen = {"accuracy": self.compute_loss_func.accuracy(), "weight_norm": norm}
            logs |= {name: value for name, value in seen.items() if value is not None}
        super().log(logs, start_time)


def make_trainer(
    model,
    tokenizer,
    args,
    examples: Examples,
    train_collator,
    eval_collator,
    *,
    stream=None,
    callbacks=(),
    libraries: Libraries | None = None,
) -> PreTrainer:
    """A trainer over the examples, or over a stream; without either, one that evaluates only.

    Args:
      callbacks: the user's own (`plug_ins`), added after the suite's.
    """
    blocks = None if stream is not None else examples.train
    trainer = PreTrainer(
        model=model,
        args=args,
        train_dataset=blocks,
        epoch_order=None if blocks is None else epoch_blocks(examples.blocks_an_epoch),
        stream=stream,
        collator=train_collator,
        eval_sets=[examples.held_out],
        selection_metric="loss",
        processing_class=tokenizer,
        libraries=libraries,
    )
    show_progress = trainer.is_world_process_zero() and shows_bars(args)
    bars = (lambda turns, name: tqdm(turns, desc=f"evaluating {name}", leave=False)) if show_progress else None
    add_plug_in_callbacks(trainer, callbacks)
    trainer.evaluator = PreTrainingEvaluator(eval_collator, args.per_device_eval_batch_size, trainer.accelerator, bars)
    return trainer


def settle_reads(model_args, text_args, earlier: dict) -> None:
    """Looks up the commits of all models and texts of the hub that the run reads (`hub_reads`).

    Args:
      earlier: what a run that resumes has read.

    Raises:
      ConfigError: `--model_revision` gives a revision to a repository that the run does not read.
    """
    set_patience(model_args.hub_timeout)
    begin_hub_reads(model_args.model_revision)
    texts = [*(text_args.train_file or ()), *(text_args.validation_file or ())]
    settle_hub_reads([*model_requests(model_args), *text_requests(texts)], earlier)


def note_in_manifest(run, described: dict, trainer: PreTrainer) -> None:
    run.use_data(described)
    run.update(model=describe_model(trainer.model), hub=hub_reads().described())
    note_tokenizer(run, trainer.processing_class)
    note_libraries(run, trainer.libraries)
    trainer.checkpoints.run_details = run.checkpoint_details


def add_callbacks(trainer: PreTrainer, directory, trackers) -> None:
    number = trainer.args.num_samples
    trainer.evaluator.tokenizer, trainer.evaluator.num_samples = trainer.processing_class, number
    trainer.add_callback(SampleCallback(directory, number, trainer.eval_sets, lambda: trainer.last_report))
    trainer.add_callback(MetricsCallback(directory, trackers))
    add_profile(trainer, directory)


def control_ids(tokenizer) -> frozenset[int]:
    """Ids that are not text: sentinels, end of sequence, modes; an unknown piece is text.

    >>> sorted(control_ids(t5_tokenizer))[:3]
    [0, 1, 32000]
    """
    never = UNUSED_BYTES if type(tokenizer).__name__ == "ByT5Tokenizer" else frozenset()
    return never.union(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


# ByT5's ids of bytes that never occur in UTF-8 text, 0xF5 to 0xFF: its first sentinels.
UNUSED_BYTES = frozenset(range(248, 259))


def pre_training_collators(objective_args, tokenizer, model, seed: int):
    """`(for training, for evaluation)`: the latter's noise is the same in every run, and its rows are not packed."""
    settings = asdict(objective_args)
    for name in ("document_separator", "sentence_language", "mode_tokens"):
        del settings[name]
    if objective_args.modes:
        ids = tokenizer.convert_tokens_to_ids(list(objective_args.modes))
        settings["mode_token_ids"] = dict(zip("RSX", ids, strict=True))
    unpacked = {**settings, "pack": None, "row_inputs_length": None, "row_targets_length": None}
    return (
        make_collator(tokenizer=tokenizer, model=model, seed=seed, **settings),
        make_collator(tokenizer=tokenizer, model=model, seed=EVALUATION_SEED, **unpacked),
    )


def pre_training_data(arguments, tokenizer, train_collator, eval_collator) -> tuple[dict, Examples, object]:
    """`(what the manifest says of the text, examples, stream)` of the text flags; the stream is None for files.

    The main process tokenizes first; the others use its result.
    """
    _, text_args, objective_args, run_args, args = arguments
    options = TextOptions(text_args.text_column_name, text_args.text_unit, text_args.bad_lines)
    shared = {
        "validation_files": text_args.validation_file or (),
        "validation_fraction": text_args.validation_fraction,
        "document_separator": objective_args.separator,
        "tokenizer_engine": text_args.tokenizer_engine,
    }
    scored = {"control_ids": control_ids(tokenizer), "max_eval_samples": text_args.max_eval_samples}
    folder, weights = Path(args.output_dir) / "corpus", text_args.corpus_weights
    with args.main_process_first(local=False, desc="tokenizing"):
        if text_args.streaming:
            return stream_data(
                tokenizer,
                folder,
                options,
                train_collator,
                eval_collator,
                args,
                inputs=[[name] for name in text_args.train_file] if weights else [text_args.train_file],
                weights=weights,
                num_virtual_streams=text_args.num_virtual_streams,
                buffer_size=text_args.shuffle_buffer_size,
                trains=not run_args.eval_only,
                **shared,
                **scored,
            )
        text = _tokenized_anew_if_allowed(
            args,
            tokenizer,
            folder,
            options,
            train_files=text_args.train_file or (),
            corpora=text_args.train_corpus or (),
            apart=weights is not None,
            split_sentences=objective_args.sentence_language if objective_args.sentence_pairs else None,
            trains=not run_args.eval_only,
            **shared,
        )
    if objective_args.sentence_pairs:
        examples = pair_data(text, train_collator, seed=args.seed, **scored)
    else:
        examples = block_data(text, train_collator, seed=args.seed, weights=weights, **scored)
    return {**text.described, "examples": examples.counts()}, examples, None


def _tokenized_anew_if_allowed(args, tokenizer, folder: Path, options, **settings):
    """`tokenized_text`; rebuilds the run's own corpus if its text or settings have changed and nothing depends on it.

    That is so before the first step (a refused run must not stand in the way of what cures it), and with
    `--allow_changed data`.

    Raises:
      ConfigError: the text has changed since the run began to train.
    """
    try:
        return tokenized_text(tokenizer, folder, options, **settings)
    except (ChangedDataError, AnotherCorpusError) as error:
        if not has_trained(args.output_dir):
            logger.warning("the run has not trained yet, so its corpus is rebuilt: %s", error)
        elif "data" in allowed_names(args.allow_changed):
            logger.warning("%s; --allow_changed data: the corpus is rebuilt", error)
        else:
            raise ConfigError(
                f"the data of this run have changed: {error}; or rebuild its corpus: --allow_changed data"
            ) from None
    shutil.rmtree(folder)
    return tokenized_text(tokenizer, folder, options, **settings)
