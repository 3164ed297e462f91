"""A run's rows, answered again by its model as the run answered them: the same batches, decoding and number formats.

>>> answered = answer_again(record, {"sentiment": rows}, Answering.of(record))
>>> answered.answers["sentiment"][:2], answered.now["device"]
(['negative', 'positive'], 'cpu')

Of an answer that differs, `apart` is by how many nats the model now prefers it to the recorded one: at the first token
at which they differ (greedy decoding chose there), or as a whole (label scores, beams).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import datasets
import torch
from accelerate import Accelerator

from t5suite.base.errors import ConfigError, DataError
from t5suite.models.answering.answerer import AnswerSettings
from t5suite.models.families import recognize_family
from t5suite.models.loading import load_tokenizer
from t5suite.models.tokenizer_checks import KEY as TOKENIZER
from t5suite.models.tokenizer_checks import tokenizer_differences
from t5suite.models.weights import load_weights
from t5suite.reports.recorded_rows import RecordedRows
from t5suite.reports.run_records import RecordedSplit, RunRecord
from t5suite.training.eval_sets import EvalSet, make_eval_set
from t5suite.training.evaluation import Evaluator, EvaluatorSettings
from t5suite.training.evaluation_report import Report, Result
from t5suite.training.fine_tuning_data import encoding_by_flags
from t5suite.training.fine_tuning_trainer import make_collator
from t5suite.training.flags.model import ModelArguments
from t5suite.training.model_setup import tokenizer_and_model
from t5suite.training.trainer import set_use_cache

logger = logging.getLogger(__name__)

# Flags of the model that say how its weights are read and computed, whichever they are.
MODEL_FLAGS = ("model_family", "attn_implementation", "adapter_base", "load_in_8bit", "load_in_4bit")
# Of the text, for `encoding_by_flags`.
TEXT_FLAGS = (
    "max_source_length", "max_target_length", "answer_separator",
    "source_lang", "target_lang", "source_lang_column", "target_lang_column",
)  # fmt: skip
# Rows that differ of which the distance is computed; more of them are counted.
MOST_MEASURED = 200


@dataclass(frozen=True)
class Answering:
    """How rows are answered.

    Attributes:
      batch_rows, batch_tokens: the size of a batch; tokens (padding included) where they are given.
      dtype: of the weights; autocast: of the products (no, bf16, fp16).
      off: fast paths that plain code replaces.
      use_cpu: use no GPU.
    """

    batch_rows: int = 64
    batch_tokens: int | None = None
    num_beams: int = 1
    max_length: int | None = None
    dtype: str = "float32"
    autocast: str = "no"
    off: frozenset[str] = frozenset()
    use_cpu: bool = False

    @classmethod
    def of(cls, record: RunRecord, off: frozenset[str] = frozenset()) -> "Answering":
        """As the run answered; a run of an earlier version, by its flags.

        Args:
          off: fast paths that are off here, besides those that were off then.
        """
        recorded = record.answering
        settings = record.settings
        batch_rows = recorded.get("batch_rows") or settings.get("per_device_eval_batch_size") or cls.batch_rows
        return cls(
            batch_rows=batch_rows,
            batch_tokens=recorded.get("batch_tokens"),
            num_beams=recorded.get("num_beams") or settings.get("generation_num_beams") or 1,
            max_length=recorded.get("max_length") or settings.get("generation_max_length"),
            dtype=recorded.get("dtype") or "float32",
            autocast=recorded.get("autocast") or "no",
            off=off | frozenset((record.manifest.get("libraries") or {}).get("off") or ()),
            use_cpu=recorded.get("device") == "cpu",
        )


@dataclass
class Answered:
    """What the model answers now.

    Attributes:
      answers: by split, in the examples' order.
      report: the scores of these answers, and of losses.
      sets: the evaluated sets, by split.
      now: as `Evaluator.described`.
      apart: by split and position of an example, nats between the answer now and the recorded one; None: not measured.
    """

    report: Report
    sets: dict[str, EvalSet]
    now: dict
    apart: dict[tuple[str, int], float | None] = field(default_factory=dict)

    @property
    def answers(self) -> dict[str, list[str]]:
        """By split, in the examples' order."""
        return {name: result.predictions for name, result in self.report.results.items()}


def tokenizer_problems(record: RunRecord) -> list[str]:
    """How the tokenizer in the folder differs from the one that the run recorded."""
    description = record.manifest.get(TOKENIZER)
    if not description:
        return []
    tokenizer = loaded(
        record, load_tokenizer, record.settings.get("tokenizer_name") or record.model, revision_of(record)
    )
    return [f"the tokenizer is another one: {line}" for line in tokenizer_differences(description, tokenizer)]


def revision_of(record: RunRecord) -> str | None:
    """The commit of a model of the hub; a folder has none."""
    if Path(record.model).is_dir():
        return None
    return record.model_revision


def loaded(record: RunRecord, load, *arguments, **options):
    """What `load` loads; a model or tokenizer that cannot be loaded is a record that cannot be verified."""
    try:
        return load(*arguments, **options)
    except (ConfigError, DataError) as error:
        raise DataError(f"{record.folder}: the model cannot be loaded: {error}") from None


def answer_again(record: RunRecord, rows: Mapping[str, RecordedRows], answering: Answering) -> Answered:
    """Answers every row, and measures how far apart answers lie that differ.

    Args:
      rows: those of each split.

    Raises:
      DataError: the model cannot be loaded, or its files are missing.
    """
    tasks = {split.scored.task.name: split.scored.task for split in record.splits}
    model_args = ModelArguments(
        model_name_or_path=record.model,
        tokenizer_name=tokenizer_name(record),
        model_revision=revision_of(record),
        **{name: record.settings[name] for name in MODEL_FLAGS if record.settings.get(name) is not None},
    )
    tokenizer, model = loaded(record, tokenizer_and_model, model_args, tasks=list(tasks.values()))
    set_use_cache(model, bool(record.settings.get("use_cache")))
    model.to(getattr(torch, answering.dtype))
    accelerator = Accelerator(mixed_precision=answering.autocast, cpu=answering.use_cpu)
    model.to(accelerator.device)
    text = SimpleNamespace(**{name: record.settings.get(name) for name in TEXT_FLAGS})
    encoding = encoding_by_flags(model, tokenizer, text, None, record.model)
    evaluator = evaluator_of(model, tokenizer, accelerator, answering)
    results = {}
    sets = {}
    apart = {}
    for task_name in tasks:
        splits = [split for split in record.splits if split.scored.task.name == task_name]
        load_best_weights(record, model, task_name)
        task_sets = [eval_set_of(split, rows[split.name], encoding) for split in splits if rows[split.name].rows]
        report = evaluator.evaluate(model, task_sets)
        results.update(report.results)
        sets.update({eval_set.name: eval_set for eval_set in task_sets})
        for split in splits:
            if split.name in sets:
                apart.update(distances(evaluator, model, sets[split.name], split, report.results[split.name]))
    return Answered(Report(results, 0.0, {}), sets, evaluator.described(model), apart)


def tokenizer_name(record: RunRecord) -> str | None:
    """The tokenizer that the run named, if the model's folder has none of its own."""
    if Path(record.model, "tokenizer_config.json").is_file():
        return None
    return record.settings.get("tokenizer_name")


def evaluator_of(model, tokenizer, accelerator, answering: Answering) -> Evaluator:
    """An evaluator that answers as `answering` says."""
    settings = EvaluatorSettings(
        num_beams=answering.num_beams,
        max_length=answering.max_length,
        reference=answering.off,
        batch_tokens=answering.batch_tokens,
    )
    collator = make_collator(model, answering.autocast != "no")
    return Evaluator(collator, tokenizer, settings, answering.batch_rows, accelerator)


def eval_set_of(split: RecordedSplit, rows: RecordedRows, encoding) -> EvalSet:
    """The rows of a split as the model reads them."""
    scored = split.scored
    eval_set = make_eval_set(
        scored.name,
        scored.task,
        scored.role,
        datasets.Dataset.from_list(rows.rows),
        encoding,
        split.facts.get("method") or "generate",
        scored.split,
    )
    tokens = split.facts.get("max_answer_tokens")
    return eval_set if tokens is None else replace(eval_set, max_target_tokens=tokens)


def load_best_weights(record: RunRecord, model, task: str) -> None:
    """Of a run with `--select per_task`, loads the weights of the task's best step.

    Raises:
      DataError: they are not there.
    """
    is_per_task = record.settings.get("select") == "per_task" and task in (record.manifest.get("best_per_task") or {})
    if not is_per_task or "training" not in record.manifest:
        return
    folder = record.folder / "best" / task
    if not folder.is_dir():
        raise DataError(
            f"best/{task} is missing in {record.folder}: the weights that answered {task} (--select per_task)"
        )
    loaded(record, load_weights, model, folder, "--select per_task")


def distances(
    evaluator: Evaluator, model, eval_set: EvalSet, split: RecordedSplit, result: Result
) -> dict[tuple[str, int], float | None]:
    """By how many nats the model prefers its answer now to the recorded one, where they differ."""
    differing = [
        position for position, (recorded, now) in enumerate(zip(split.answers, result.predictions)) if recorded != now
    ][:MOST_MEASURED]
    if not differing:
        return {}
    settings = AnswerSettings(evaluator.settings.reference, False, eval_set.encoding.num_fixed_tokens)
    answerer = recognize_family(model).make_answerer(
        model, evaluator.tokenizer, settings, evaluator.collator, evaluator.accelerator.device
    )
    apart = {}
    was_training = model.training
    model.eval()
    with torch.no_grad(), evaluator.accelerator.autocast():
        for position in differing:
            pair = (split.answers[position], result.predictions[position])
            apart[(eval_set.name, position)] = distance(answerer, eval_set, position, pair)
    model.train(was_training)
    return apart


def distance(answerer, eval_set: EvalSet, position: int, pair: tuple[str, str]) -> float | None:
    """Nats between the recorded answer and the one now; None where the model gives no probabilities of them."""
    reading = answerer.read(eval_set.features.__getitems__([position]))
    if eval_set.method == "classify":
        return distance_of_classes(reading.scores[0], eval_set.encoding, pair)
    if eval_set.method not in ("generate", "score"):
        return None
    ids = eval_set.encoding.for_task(eval_set.task).choices(list(pair))
    is_greedy = eval_set.method == "generate"
    recorded_ids, now_ids = up_to_difference(*ids) if is_greedy else ids
    if recorded_ids == now_ids:
        return None
    ((recorded_score, now_score),) = reading.candidate_scores([[recorded_ids, now_ids]])
    return now_score - recorded_score


def up_to_difference(first: list[int], second: list[int]) -> tuple[list[int], list[int]]:
    """Two answers up to the first token in which they differ.

    >>> up_to_difference([5, 7, 9, 1], [5, 8, 1])
    ([5, 7], [5, 8])
    """
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return first[: length + 1], second[: length + 1]


def distance_of_classes(scores, encoding, pair: tuple[str, str]) -> float | None:
    """Between two classes of an encoder's head; None for numbers, labels of words, and what is no class."""
    words = encoding.words
    if words is None or not all(word in words for word in pair) or isinstance(scores[0], list):
        return None
    recorded, now = (scores[words.index(word)] for word in pair)
    return now - recorded
