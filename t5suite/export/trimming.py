"""The steps of `t5suite trim`: count, select, write tokenizer and weights, compare; `trim.json` records all of it.

>>> flags = parse_command_line(["trim", "--model_name_or_path", "mt5-small", "--text", "a.txt", "--output_dir", "out"])
>>> trim_model(flags)
{'source': 'mt5-small', 'pieces_before': 250100, 'pieces': 31360, 'parameters_before': 300176768, ...}
"""

import contextlib
import itertools
import json
import logging
import tempfile
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, T5Tokenizer

from t5suite.base.errors import CheckpointError
from t5suite.base.files import new_folder, read_json, write_json
from t5suite.base.lookup import listed
from t5suite.base.provenance import versions
from t5suite.data.corpora.held_out import is_held_out
from t5suite.data.corpora.readers import TextOptions
from t5suite.data.corpora.spiece_conversion import convert_to_spiece
from t5suite.data.corpora.tally import Tally
from t5suite.data.rows.jsonl import without_nan
from t5suite.export.exporting import SPIECE, cast, save_other_files
from t5suite.export.sources import FLAG, ExportSource, load_source, load_source_shapes
from t5suite.export.trim_cards import source_terms, write_trim_card
from t5suite.export.trim_checks import TEXTS_CHECKED, ComparedModels, compare_models, make_batches, refuse_differences
from t5suite.export.trim_selection import Selection, select_pieces
from t5suite.export.trim_texts import TENTH, PieceCounts, PieceReader, TextFiles, compare_readers, count_pieces
from t5suite.export.trim_types import check_type, check_writes
from t5suite.export.trim_vocabularies import (
    Vocabulary,
    pieces_without_text,
    read_spiece_files,
    read_vocabulary,
    trimmed_settings,
    trimmed_spiece,
)
from t5suite.export.trim_weights import check_configured_ids, configured_ids, trim_weights, vocabulary_dimensions
from t5suite.export.trim_words import named_ids, task_words, tasks_with_unlisted_targets
from t5suite.models.generation_settings import save_with_generation_settings
from t5suite.models.tokenizer_checks import TOKENIZER_KEY, describe_tokenizer
from t5suite.tasks.task_card import TASK_CARD, TaskCard, task_card_of_model

logger = logging.getLogger(__name__)

RECORD = "trim.json"
KEPT_IDS = "kept_ids.json"
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_SETTINGS = "tokenizer_config.json"
# Flags of `t5suite export` that say what is loaded, which this command does not have.
SOURCE_SETTINGS = dict(
    init_checkpoint=None, tokenizer_name=None, model_family="seq2seq", adapter_base=None, model_class=None,
    trust_remote_code=False, encoder_only=False,
)  # fmt: skip


@dataclass(frozen=True)
class TrimPlan:
    """What is kept of a vocabulary, and by which text.

    Attributes:
      reader: the untrimmed tokenizer.
      spiece_files: SentencePiece's models beside it, by name.
      needed_ids: those with a part of their own, whatever the text.
      chosen_ids: those of `--keep_pieces`.
    """

    tokenizer: Any
    vocabulary: Vocabulary
    spiece_files: dict[str, bytes]
    reader: PieceReader
    texts: TextFiles
    counts: PieceCounts
    needed_ids: frozenset[int]
    chosen_ids: frozenset[int]
    selection: Selection

    def reader_of(self, selection: Selection) -> PieceReader:
        """The tokenizer with the pieces of a selection alone."""
        settings = trimmed_settings(self.vocabulary, selection.ids)
        pieces = [self.vocabulary.pieces[int(piece_id)] for piece_id in selection.ids]
        ids = {piece: number for number, piece in enumerate(pieces)}
        spiece_files = {name: trimmed_spiece(content, ids) for name, content in self.spiece_files.items()}
        return PieceReader(settings, ids, spiece_files)


def trim_model(flags) -> dict:
    """Writes `output_dir` as a whole or not at all, with `--dry_run` nothing; returns the content of its `trim.json`.

    Args:
      flags: those of `t5suite trim`.

    Raises:
      ConfigError: a model that is not trimmed, a piece that it does not have.
      DataError: text that cannot be read.
      CheckpointError: a damaged source, or a trimmed model that fails its check.
    """
    with tempfile.TemporaryDirectory() as staging:
        source = _load(flags, staging)
        _check_source(source, flags)
        plan = _plan(source, flags)
        record = {"source": flags.model_name_or_path, "text": flags.text, "min_count": flags.min_count}
        record |= _figures(source.model, plan) | {"unseen": _unseen_text(plan, flags)}
        if flags.dry_run:
            return without_nan(record)
        with new_folder(flags.output_dir) as folder:
            terms = source_terms(flags.model_name_or_path, source.folder)
            _write_model(source, plan, folder)
            write_trim_card(folder, flags.model_name_or_path, terms, record)
            write_json(folder / KEPT_IDS, plan.selection.ids.tolist())
            tokenizer = _load_trimmed_tokenizer(folder, plan)
            record[TOKENIZER_KEY] = describe_tokenizer(tokenizer)
            _renew_task_card(folder, record[TOKENIZER_KEY])
            if flags.check:
                source = _load(flags, Path(staging) / "again")
                record["check"] = _check(source.model, tokenizer, folder, plan, flags.min_count)
            record["files"] = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
            record = without_nan(record | {"versions": versions()})
            write_json(folder / RECORD, record)
    return record


def _load(flags, staging) -> ExportSource:
    """The untrimmed model, with the settings of generation that its files have; for a dry run, without weights."""
    load = load_source_shapes if flags.dry_run else load_source
    source = load(Namespace(**{**SOURCE_SETTINGS, **vars(flags)}), staging)
    place = source.folder or flags.model_name_or_path
    with contextlib.suppress(OSError):  # not every model has the file
        source.model.generation_config = GenerationConfig.from_pretrained(place, revision=flags.model_revision)
    return source


def _check_source(source: ExportSource, flags) -> None:
    """Refuses types of models and kinds of tokenizers that are not trimmed."""
    place = f"{FLAG} {flags.model_name_or_path}"
    config = source.model.config
    check_type(config.model_type, type(source.tokenizer).__name__, place)
    check_writes([type(source.model).__name__, *(config.architectures or ())], place)


def _plan(source: ExportSource, flags) -> TrimPlan:
    """Counts the pieces of the text, and selects those that are kept."""
    place = f"{FLAG} {flags.model_name_or_path}"
    vocabulary = read_vocabulary(source.tokenizer, place)
    needed_ids = configured_ids(source.model)
    check_configured_ids(needed_ids, vocabulary.pieces, place)
    chosen_ids = named_ids(flags.keep_pieces, vocabulary.ids)
    spiece_files = _spiece_files(source)
    for content in spiece_files.values():
        needed_ids.update(vocabulary.ids[piece] for piece in pieces_without_text(content) if piece in vocabulary.ids)
    reader = PieceReader(vocabulary.settings, vocabulary.ids, spiece_files)
    place_of_card = str(source.folder or flags.model_name_or_path)
    card = task_card_of_model(place_of_card, flags.model_revision, calls_functions=False)
    _warn_of_unlisted_targets(card)
    for rows in reader.all_rows(task_words(card)):
        needed_ids.update(piece_id for ids in rows for piece_id in ids)
    texts = _text_files(flags.text, flags)
    _log_columns(texts)
    tally = Tally()
    counts = count_pieces(reader, vocabulary.size, texts.batches(tally))
    if tally.left_out:
        logger.warning("skipped: %s", tally.summary())
    selection = select_pieces(vocabulary, counts.total, flags.min_count, needed_ids, chosen_ids)
    return TrimPlan(
        source.tokenizer,
        vocabulary,
        spiece_files,
        reader,
        texts,
        counts,
        frozenset(needed_ids),
        frozenset(chosen_ids),
        selection,
    )


def _text_files(inputs: list[str], flags) -> TextFiles:
    """Files as the flags say that they are read."""
    columns = tuple(dict.fromkeys(flags.text_column_name))
    return TextFiles(inputs, columns, TextOptions(columns[0], flags.text_unit, flags.bad_lines))


def _log_columns(texts: TextFiles) -> None:
    """Says which columns of tables are read and which are not."""
    unread = texts.unread_columns()
    if unread is not None:
        logger.info(
            "--text: the columns read are %s (--text_column_name); not read: %s",
            ", ".join(texts.columns),
            ", ".join(unread) or "none",
        )


def _warn_of_unlisted_targets(card: TaskCard | None) -> None:
    """Says that the text must hold the targets of tasks that have no list of labels."""
    for task_name in tasks_with_unlisted_targets(card):
        logger.warning(
            "task %s: %s does not list its answers, and the model can write only what is kept: --text must hold the "
            "targets of its rows, too",
            task_name,
            TASK_CARD,
        )


def _spiece_files(source: ExportSource) -> dict[str, bytes]:
    """SentencePiece's models of the source, by name: those of its folder, or the one that is written beside a T5's."""
    files = read_spiece_files(source.folder)
    if not files and isinstance(source.tokenizer, T5Tokenizer):
        content = convert_to_spiece(source.tokenizer)
        if content:
            files[SPIECE] = content
    return files


def _figures(model, plan: TrimPlan) -> dict:
    """How many pieces, rows and parameters there are, before and after."""
    rows_before = model.config.get_text_config().vocab_size
    rows = len(plan.selection.ids)
    parameters_before = sum(parameter.numel() for parameter in model.parameters())
    dimensions = vocabulary_dimensions(model, rows)
    removed = 0
    for name, parameter in model.named_parameters():
        if name in dimensions:
            removed += parameter.numel() // rows_before * (rows_before - rows)
    return {
        "kind": plan.vocabulary.kind,
        "texts": plan.counts.num_texts,
        "pieces_before": len(plan.vocabulary.ids),
        "rows_before": rows_before,
        "pieces": rows,
        "kept": plan.selection.reasons,
        "parameters_before": parameters_before,
        "parameters": parameters_before - removed,
        "tensors": sorted(dimensions),
    }


def _unseen_text(plan: TrimPlan, flags) -> dict | None:
    """What text costs that the vocabulary was not made from; None if the text is too short to set a tenth apart."""
    unk_id = plan.tokenizer.unk_token_id
    if flags.validation_file:
        texts = _text_files(flags.validation_file, flags)
        reading = compare_readers(
            plan.reader, plan.reader_of(plan.selection), plan.selection.ids, unk_id, texts.batches()
        )
        return {"measured_on": "--validation_file"} | reading.as_dict()
    counts = plan.counts
    if not 0 < counts.num_tenth < counts.num_texts:
        return None
    selection = select_pieces(plan.vocabulary, counts.most, flags.min_count, plan.needed_ids, plan.chosen_ids)
    batches = ([text for text in texts if is_held_out(text, TENTH)] for texts in plan.texts.batches())
    reading = compare_readers(plan.reader, plan.reader_of(selection), selection.ids, unk_id, batches)
    return {"measured_on": "a tenth of the text, with the pieces of the rest"} | reading.as_dict()


def _write_model(source: ExportSource, plan: TrimPlan, folder: Path) -> None:
    """Writes the weights and the tokenizer's files; the source's model is trimmed in place."""
    trim_weights(source.model, plan.selection.ids)
    cast(source.model, source.dtype)
    save_with_generation_settings(source.model, folder)
    save_other_files(source, folder)
    settings = trimmed_settings(plan.vocabulary, plan.selection.ids)
    (folder / TOKENIZER_FILE).write_text(json.dumps(settings, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    pieces = {plan.vocabulary.pieces[int(piece_id)] for piece_id in plan.selection.ids}
    for name, content in read_spiece_files(folder).items():
        (folder / name).write_bytes(trimmed_spiece(content, pieces))
    tokenizer_settings = read_json(folder / TOKENIZER_SETTINGS)
    # transformers 4 writes the ids of added tokens here, too; tokenizer.json has them.
    if tokenizer_settings.pop("added_tokens_decoder", None) is not None:
        write_json(folder / TOKENIZER_SETTINGS, tokenizer_settings)


def _load_trimmed_tokenizer(folder: Path, plan: TrimPlan):
    """The tokenizer as plain transformers loads it from the folder, with the ids that the rows have."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pieces = [plan.vocabulary.pieces[int(piece_id)] for piece_id in plan.selection.ids]
    ids = tokenizer.get_vocab()
    differing = [piece for number, piece in enumerate(pieces) if ids.get(piece) != number]
    if differing or len(ids) != len(pieces):
        raise CheckpointError(
            f"{type(tokenizer).__name__} does not load the trimmed vocabulary as it was written: {len(pieces)} pieces, "
            f"loaded {len(ids)}, other ids for {listed(differing)}"
        )
    return tokenizer


def _renew_task_card(folder: Path, description: dict) -> None:
    """Says in a run's task card which tokenizer its model now has."""
    path = folder / TASK_CARD
    if path.is_file():
        write_json(path, read_json(path) | {TOKENIZER_KEY: description})


def _check(model, tokenizer, folder: Path, plan: TrimPlan, min_count: int) -> dict:
    """Compares the written folder with the untrimmed model, on the text.

    Raises:
      CheckpointError: they differ.
    """
    trimmed = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    settings = json.loads(tokenizer.backend_tokenizer.to_str())
    after = PieceReader(settings, tokenizer.get_vocab(), read_spiece_files(folder))
    kept_ids = plan.selection.ids
    reading = compare_readers(plan.reader, after, kept_ids, plan.tokenizer.unk_token_id, plan.texts.batches())
    if min_count == 1 and reading.equal != reading.texts:
        count = reading.texts - reading.equal
        raise CheckpointError(f"--check: {count} of {reading.texts} texts are segmented otherwise than before")
    figures = {"segmentation": reading.as_dict()}
    models = ComparedModels.of(model, trimmed, kept_ids)
    figures["model"] = compare_models(models, make_batches(tokenizer, _spread_texts(plan)))
    refuse_differences(figures["model"])
    return figures


def _spread_texts(plan: TrimPlan) -> list[str]:
    """Some of the texts, spread over all of them."""
    step = max(1, plan.counts.num_texts // TEXTS_CHECKED)
    texts = itertools.chain.from_iterable(plan.texts.batches())
    return list(itertools.islice(texts, 0, step * TEXTS_CHECKED, step))
