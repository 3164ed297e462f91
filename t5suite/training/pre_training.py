"""The steps of a pre-training run that flags decide: commits of the hub, idle flags, manifest, callbacks.

    >>> settle_pre_training_reads(model_args, text_args, run.hub_before)
    >>> train_collator, eval_collator = pre_training_collators(objective_args, tokenizer, model, args.seed)
    >>> text = text_by_flags(arguments, tokenizer)
    >>> data = data_of_text(arguments, text, tokenizer, train_collator)
    >>> trainer = make_pre_trainer(model, tokenizer, args, data, train_collator, eval_collator)
    >>> note_pre_training_in_manifest(run, data.described, trainer)
    >>> add_pre_training_callbacks(trainer, run.directory, trackers)

`pre_train_t5.py` calls them one after the other, between those of `run_steps`. Collators, text, data and trainer are
made in `pre_training_collators`, `pre_training_text`, `pre_training_data` and `pre_training_trainer`.
"""

import glob
import hashlib
import json
from pathlib import Path

from t5suite.base.file_names import unpacked_suffix
from t5suite.base.hub_commits import hub_reads
from t5suite.base.reference_code import reference_code
from t5suite.base.script_flags import flags_of
from t5suite.data.objectives import OBJECTIVES
from t5suite.models.loading import describe_model
from t5suite.runs.directory import default_output_dir
from t5suite.runs.settings import data_identity
from t5suite.training.flags import fields
from t5suite.training.flags.fine_tuning import add_profile
from t5suite.training.flags.hugging_face import idle_accelerator_settings, missing_parts
from t5suite.training.hub_reads import begin_hub_reads, model_requests, settle_hub_reads, text_requests
from t5suite.training.pre_training_collators import PAIRED, SHAPED
from t5suite.training.pre_training_trainer import PreTrainer
from t5suite.training.run_directory import note_libraries, note_tokenizer
from t5suite.training.samples import SampleCallback
from t5suite.training.step_lines import MetricsCallback

# The flags of objectives that belong to all objectives of a family.
FAMILY_FLAGS = {"seq2seq": SHAPED, "masked": (*PAIRED, "sentence_language"), "causal": ()}


def default_pre_training_directory(model_args, objective: str, trains: bool) -> str:
    """The directory of a run that names none; the objective is in its name, if it is not T5's.

    >>> default_pre_training_directory(model_args, "ul2", trains=True)
    'runs/pre_train-tiny-ul2'
    """
    parts = []
    if objective != "span_corruption":
        parts.append(objective)
    if not trains:
        parts.append("eval")
    return default_output_dir("pre_train", "", model_args.config_name or model_args.model_name_or_path, "-".join(parts))


def settle_pre_training_reads(model_args, text_args, earlier: dict) -> None:
    """Looks up the commits of all models and texts of the hub that the run reads (`hub_reads`).

    Args:
      earlier: what a run that resumes has read.

    Raises:
      ConfigError: `--model_revision` gives a revision to a repository that the run does not read.
    """
    begin_hub_reads(model_args.model_revision)
    texts = [*(text_args.train_file or ()), *(text_args.validation_file or ())]
    settle_hub_reads([*model_requests(model_args), *text_requests(texts)], earlier)


def warn_of_idle_pre_training_flags(changed: dict, trains: bool, objective: str) -> list[str]:
    """Warns of every flag that was given and has no effect in this run, with the reason; returns the flags."""
    missing = {
        "answers": "text is evaluated by its loss",
        "scoring": "text is evaluated by its loss",
        "Hugging Face's evaluation": "blocks are equally long, and evaluated by our own loop",
        "Hugging Face's count of tokens": "every logged line has train/tokens_seen, without it",
        **missing_parts("pre_train_t5", changed),
        **missing_needs_of_mode(changed, trains),
        **missing_needs_of_text(changed),
    }
    named = reference_code(changed.get("reference_code"))
    if named and named <= unused_fast_paths_of_text(trains, reads="reading" not in missing):
        missing["fast paths"] = "this run does not use it"
    unused = dict.fromkeys(unused_objective_flags(changed, objective), f"--objective {objective} does not use it")
    unused |= unused_unit_flags(changed, objective)
    unused |= idle_accelerator_settings(changed)
    return fields.warn_of_flags_without_effect("pre_train_t5", changed, missing, unused)


def unused_fast_paths_of_text(trains: bool, reads: bool) -> set[str]:
    """The fast paths that a run of pre-training cannot use: its evaluation writes and scores no answers."""
    unused = {"candidate_trees", "quick_decoding"}
    if not trains:
        unused.add("loss_chunks")
    if not reads:
        unused.add("quick_tokenizer")
    return unused


def missing_needs_of_mode(changed: dict, trains: bool) -> dict[str, str]:
    """What flags need (their field's `needs`) and is switched off, with the reason."""
    missing = {}
    if not trains:
        missing["training"] = "nothing is trained"
        if "validation_file" in changed:
            missing["training files"] = "only the validation files are scored"
    if not changed.get("streaming"):
        missing["a stream"] = "the text is not a stream"
    if "sentence_pairs" not in changed:
        missing["sentence pairs"] = "there are no --sentence_pairs"
    return missing


def missing_needs_of_text(changed: dict) -> dict[str, str]:
    """What flags need (their field's `needs`) and the text lacks, with the reason."""
    train_files = [Path(name) for name in changed.get("train_file") or ()]
    validation_files = [Path(name) for name in changed.get("validation_file") or ()]
    files = [*train_files, *validation_files]
    is_built = "train_corpus" in changed
    missing = {}
    if len(changed.get("corpus_weights") or ()) == 1:
        missing["several corpora"] = "there is one"
    if not any(has_row_format(file) for file in files):
        missing["columns"] = "no file has columns"
    if not any(has_plain_text(file) for file in files):
        missing["plain text"] = "no file is .txt"
    if is_built and not files:
        missing["reading"] = "the corpus was read when it was built"
    if "validation_file" in changed:
        missing["a held-out part"] = "there is a --validation_file"
    elif is_built and not files:
        missing["a held-out part"] = "the corpus was split when it was built"
    elif not files:
        missing["a held-out part"] = "the bundled text has a validation file"
    return missing


def has_row_format(file: Path) -> bool:
    """Whether a file's rows have columns: all but plain text, compressed or not.

    >>> has_row_format(Path("a.jsonl.gz")), has_row_format(Path("a.txt.zst"))
    (True, False)
    """
    return unpacked_suffix(file.name) != ".txt"


def has_plain_text(file: Path) -> bool:
    """Whether a name may stand for plain text: .txt, compressed or not, a folder, a pattern, or no ending.

    >>> has_plain_text(Path("a.txt.gz")), has_plain_text(Path("a.jsonl")), has_plain_text(Path("crawl/*.gz"))
    (True, False, True)
    """
    suffix = unpacked_suffix(file.name)
    return suffix in ("", ".txt") or glob.has_magic(suffix) or file.is_dir()


def unused_objective_flags(changed: dict, objective: str) -> list[str]:
    """The given flags that only other objectives use."""
    entry = OBJECTIVES[objective]
    used = {*entry.uses, *FAMILY_FLAGS[entry.family]}
    if "mode_token_ids" in entry.uses:
        used.add("mode_tokens")
    unused = []
    for name, facts in flags_of("pre_train_t5").items():
        is_for_some_objectives = facts["theme"] == "objective" and "blocks" not in facts.get("needs", "")
        if is_for_some_objectives and name in changed and name not in used:
            unused.append(name)
    return unused


def unused_unit_flags(changed: dict, objective: str) -> dict[str, str]:
    """The given flags of objectives with units that only other units use, with the reason."""
    if "mask_units" not in OBJECTIVES[objective].uses:
        return {}
    units = {"collocations": "pmi", "mean_span_length": "span"}
    return {
        name: f"only --mask_units {unit} uses it"
        for name, unit in units.items()
        if name in changed and changed.get("mask_units") != unit
    }


def note_pre_training_in_manifest(run, described: dict, trainer: PreTrainer) -> None:
    """Writes to the manifest what the run is made of: text, model, tokenizer, libraries."""
    run.use_data(described)
    run.update(model=describe_model(trainer.model), hub=hub_reads().described())
    note_tokenizer(run, trainer.processing_class)
    note_libraries(run, trainer.libraries)
    scored = [data_identity(described), described.get("examples")]
    digest = hashlib.sha256(json.dumps(scored, sort_keys=True, default=str).encode()).hexdigest()
    trainer.checkpoints.run_details = run.checkpoint_details(selects_by={"text": ["loss", digest[:16]]})


def add_pre_training_callbacks(trainer: PreTrainer, directory, trackers) -> None:
    """Adds callbacks that write samples, metrics (`metrics.jsonl`, trackers) and a profile."""

    def last_report():
        return trainer.last_report

    trainer.add_callback(SampleCallback(directory, trainer.args.num_samples, trainer.eval_sets, last_report))
    trainer.add_callback(MetricsCallback(directory, trackers))
    add_profile(trainer, directory)
