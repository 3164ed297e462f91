"""A run's rows, answered again by its model as the run answered them: the same batches, decoding and number formats.

>>> answered = answer_again(record, {"sentiment": rows}, Answering.of(record))
>>> answered.answers["sentiment"][:2], answered.now["device"]
(['negative', 'positive'], 'cpu')

Of an answer that differs, `distances` has by how many nats the model now prefers it to the recorded one: at the first
token at which they differ (greedy decoding chose there), or as a whole (label scores, beams).
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import accelerate
import datasets
import torch

from t5suite.base.errors import ConfigError, DataError, LackOfMemoryError
from t5suite.base.model_files import LARGEST
from t5suite.models.answering.answerer import AnswerSettings
from t5suite.models.families import recognize_family
from t5suite.models.loading import load_tokenizer
from t5suite.models.placement import has_accelerator
from t5suite.models.tokenizer_checks import TOKENIZER_KEY, tokenizer_differences
from t5suite.models.weights import load_weights
from t5suite.reports.recorded_rows import RecordedRows
from t5suite.reports.run_records import RecordedSplit, RunRecord
from t5suite.reports.verification import ANSWERED_BY
from t5suite.runs.directory import BEST_FOLDER
from t5suite.training.eval_sets import EvalSet, make_eval_set
from t5suite.training.evaluation import Evaluator, EvaluatorSettings
from t5suite.training.fine_tuning_data import encoding_by_flags
from t5suite.training.fine_tuning_trainer import make_collator
from t5suite.training.flags.model import ModelArguments
from t5suite.training.model_setup import tokenizer_and_model
from t5suite.training.process_setup import (
    float32_formats,
    leave_out_cudnn_attention,
    multiply_in_tf32,
    restore_float32_formats,
)
from t5suite.training.trainer import set_use_cache

# Flags of the model that say how its weights are read and computed, whichever they are.
QUANTIZED = ("load_in_8bit", "load_in_4bit")
MODEL_FLAGS = ("model_family", "attn_implementation", "adapter_base", *QUANTIZED)
# Of the text, for `encoding_by_flags`.
TEXT_FLAGS = (
    "max_source_length", "max_target_length", "answer_separator",
    "source_lang", "target_lang", "source_lang_column", "target_lang_column",
)  # fmt: skip
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# Of matrices that bitsandbytes holds, whose first weights a run describes.
QUANTIZED_DTYPES = ("uint8", "int8")
AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Rows that differ of which the distance is computed; more of them are counted.
MOST_MEASURED = 200


@dataclass(frozen=True)
class Answering:
    """How rows are answered.

    Attributes:
      batch_rows, batch_tokens: the size of a batch; tokens (padding included) where they are given.
      dtype: of the weights; autocast: of the products (no, bf16, fp16); tf32: whether a GPU multiplies in TF32.
      off: fast paths that plain code replaces.
      use_cpu: use no GPU.
    """

    batch_rows: int = 64
    batch_tokens: int | None = None
    num_beams: int = 1
    max_length: int | None = None
    dtype: str = "float32"
    autocast: str = "no"
    tf32: bool = False
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
        answering = cls(
            batch_rows=batch_rows,
            batch_tokens=recorded.get("batch_tokens"),
            num_beams=recorded.get("num_beams") or settings.get("generation_num_beams") or 1,
            max_length=recorded.get("max_length") or settings.get("generation_max_length"),
            dtype=recorded.get("dtype") or "float32",
            autocast=recorded.get("autocast") or autocast_by_flags(settings),
            tf32=recorded.get("tf32", bool(settings.get("tf32"))),
            off=off | frozenset((record.manifest.get("libraries") or {}).get("off") or ()),
            use_cpu=recorded.get("device") == "cpu",
        )
        check_answering(answering, record)
        return answering


def autocast_by_flags(settings: Mapping) -> str:
    """The mixed precision of a run of an earlier version."""
    for name in AUTOCAST_TYPES:
        if settings.get(name):
            return name
    return "no"


def check_answering(answering: Answering, record: RunRecord) -> None:
    """Refuses values that no run writes.

    Raises:
      DataError: names the value.
    """
    counts = {name: getattr(answering, name) for name in ("batch_rows", "batch_tokens", "num_beams", "max_length")}
    are_right = {name: value is None or (type(value) is int and 0 < value <= LARGEST) for name, value in counts.items()}
    are_right["dtype"] = answering.dtype in (*DTYPES, *QUANTIZED_DTYPES)
    are_right["autocast"] = answering.autocast in ("no", *AUTOCAST_TYPES)
    for name, is_right in are_right.items():
        if not is_right:
            raise DataError(f"{record.folder}: manifest.json: 'answering': {name} is {getattr(answering, name)!r:.60}")


@dataclass(frozen=True)
class OneDevice:
    """What an `Evaluator` needs of `accelerate.Accelerator` in one process, without its state of the whole process."""

    device: torch.device
    mixed_precision: str = "no"
    process_index: int = 0
    num_processes: int = 1

    @classmethod
    def chosen(cls, answering: Answering) -> "OneDevice":
        """The accelerator of this machine, if it has one and the run has used one."""
        device = torch.device("cpu")
        if has_accelerator() and not answering.use_cpu:
            device = torch.accelerator.current_accelerator()
        return cls(device, answering.autocast)

    def autocast(self):
        """Products in the mixed precision, if there is one."""
        dtype = AUTOCAST_TYPES.get(self.mixed_precision)
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=dtype)


@dataclass(frozen=True)
class OtherAnswers:
    """What answers in place of the run's model, such as `ONNX files`.

    Attributes:
      answer: an evaluated set -> its answers, in the examples' order.
    """

    name: str
    answer: Callable[[EvalSet], list[str]]


@dataclass
class Answered:
    """What the model answers now.

    Attributes:
      answers: by split, in the examples' order.
      losses: by split that the model answered, the metrics of one of which only the loss is evaluated.
      now: as `Evaluator.described`.
      distances: by split and position of an example, nats between its two answers; None: not measured.
    """

    now: dict
    answers: dict[str, list[str]] = field(default_factory=dict)
    losses: dict[str, dict] = field(default_factory=dict)
    distances: dict[tuple[str, int], float | None] = field(default_factory=dict)


def tokenizer_problems(record: RunRecord) -> list[str]:
    """How the tokenizer in the folder differs from the one that the run recorded."""
    description = record.manifest.get(TOKENIZER_KEY)
    if not description:
        return []
    name = tokenizer_name(record) or record.model
    tokenizer = loaded(record, load_tokenizer, name, model_commit(record))
    return [f"the tokenizer is another one: {line}" for line in tokenizer_differences(description, tokenizer)]


def model_commit(record: RunRecord) -> str | None:
    """The commit of a model of the hub; a folder has none."""
    if Path(record.model).is_dir():
        return None
    return record.model_revision


def loaded(record: RunRecord, load, *arguments, **options):
    """What `load` loads; a model or tokenizer that cannot be loaded is a record that cannot be verified."""
    try:
        return load(*arguments, **options)
    except LackOfMemoryError:
        raise  # the record is sound
    except (ConfigError, DataError) as error:
        raise DataError(f"{record.folder}: the model cannot be loaded: {error}") from None


def answer_again(
    record: RunRecord,
    rows: Mapping[str, RecordedRows],
    answering: Answering,
    other_answers: OtherAnswers | None = None,
) -> Answered:
    """Answers every row, and measures how far apart answers lie that differ, if the rows are those of the run.

    Args:
      rows: those of each split.
      other_answers: answers in place of the model's: those of an export.

    Raises:
      DataError: the model cannot be loaded, or its files are missing.
    """
    model, evaluator, encoding = load_evaluator(record, answering)
    answered = Answered(evaluator.described(model))
    if other_answers is not None:
        answered.now[ANSWERED_BY] = other_answers.name
    for split in by_task(record.splits):
        if not rows[split.name].rows:
            continue
        load_weights_of_task(record, model, split.scored.task.name)
        eval_set = eval_set_of(split, rows[split.name], encoding)
        if other_answers is None:
            result = evaluator.evaluate(model, [eval_set]).results[split.name]
            answers = result.predictions
            answered.losses[split.name] = result.metrics if result.method == "loss" else {}
        else:
            answers = other_answers.answer(eval_set)
        answered.answers[split.name] = answers
        if rows[split.name].problem:
            continue
        answered.distances.update(distances(evaluator, model, eval_set, split.answers, answers))
    return answered


def by_task(splits: Sequence[RecordedSplit]) -> list[RecordedSplit]:
    """The splits, those of one task together: a task's best weights are loaded once."""
    names = list(dict.fromkeys(split.scored.task.name for split in splits))
    return sorted(splits, key=lambda split: names.index(split.scored.task.name))


def load_evaluator(record: RunRecord, answering: Answering) -> tuple:
    """`(model, evaluator, encoding)` of a run, as it answered.

    Raises:
      DataError: the model cannot be loaded.
    """
    tasks = {split.scored.task.name: split.scored.task for split in record.splits}
    flags = {name: record.settings[name] for name in MODEL_FLAGS if record.settings.get(name) is not None}
    model_args = loaded(
        record,
        ModelArguments,
        model_name_or_path=record.model,
        tokenizer_name=tokenizer_name(record),
        model_revision=model_commit(record),
        **flags,
    )
    place = OneDevice.chosen(answering)
    is_quantized = any(record.settings.get(flag) for flag in QUANTIZED)
    if is_quantized:
        # Where weights in few bits are loaded, they stay: on accelerate's device of the process.
        accelerate.PartialState(cpu=place.device.type == "cpu")
    tokenizer, model = loaded(record, tokenizer_and_model, model_args, tasks=list(tasks.values()))
    set_use_cache(model, bool(record.settings.get("use_cache")))
    prepare_device(answering.tf32)
    if answering.dtype in DTYPES and not is_quantized:
        model.to(place.device, DTYPES[answering.dtype])
        if "training" in record.manifest:
            copy_weights(model)
    text = SimpleNamespace(**{name: record.settings.get(name) for name in TEXT_FLAGS})
    encoding = loaded(record, encoding_by_flags, model, tokenizer, text, None, record.model, model_commit(record))
    return model, repeating_evaluator(model, tokenizer, place, answering), encoding


def copy_weights(model) -> None:
    """Puts weights where a training has them: at torch's own addresses.

    Those that are mapped from a file begin anywhere, and sums of products round by that: one answer of thirty had
    another last digit (BERT with a head of numbers, on a CPU).
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def prepare_device(tf32: bool) -> None:
    """Sets what a run sets of a GPU, for the whole process: kernels of attention, and TF32."""
    leave_out_cudnn_attention()
    multiply_in_tf32(tf32)


def tokenizer_name(record: RunRecord) -> str | None:
    """The tokenizer that the run named, if the model's folder has none of its own."""
    if Path(record.model, "tokenizer_config.json").is_file():
        return None
    return record.settings.get("tokenizer_name")


def repeating_evaluator(model, tokenizer, place: OneDevice, answering: Answering) -> Evaluator:
    """An evaluator that answers as `answering` says."""
    settings = EvaluatorSettings(
        num_beams=answering.num_beams,
        max_length=answering.max_length,
        reference=answering.off,
        batch_tokens=answering.batch_tokens,
        batch_flag="--batch_size",
    )
    collator = make_collator(model, answering.autocast != "no")
    return Evaluator(collator, tokenizer, settings, answering.batch_rows, place)


def eval_set_of(split: RecordedSplit, rows: RecordedRows, encoding) -> EvalSet:
    """The rows of a split as the model reads them.

    Raises:
      DataError: a column has values of several types, which no run writes.
    """
    scored = split.scored
    try:
        data = datasets.Dataset.from_list(rows.rows)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"the rows of {split.name}: a column has values of several types ({error})") from None
    eval_set = make_eval_set(
        scored.name,
        scored.task,
        scored.role,
        data,
        encoding,
        split.facts.get("method") or "generate",
        scored.split,
    )
    tokens = split.facts.get("max_answer_tokens")
    return eval_set if tokens is None else replace(eval_set, max_target_tokens=tokens)


def load_weights_of_task(record: RunRecord, model, task: str) -> None:
    """Of a run with `--select per_task`, loads the weights of the task's best step; the last ones where none was best.

    Raises:
      DataError: they are not there.
    """
    if record.settings.get("select") != "per_task" or "training" not in record.manifest:
        return
    folder = record.folder
    if task in (record.manifest.get("best_per_task") or {}):
        folder = record.folder / BEST_FOLDER / task
    if not folder.is_dir():
        raise DataError(
            f"best/{task} is missing in {record.folder}: the weights that answered {task} (--select per_task)"
        )
    loaded(record, load_weights, model, folder, "--select per_task")


def distances(
    evaluator: Evaluator, model, eval_set: EvalSet, recorded: Sequence[str], now: Sequence[str]
) -> dict[tuple[str, int], float | None]:
    """By how many nats the model prefers an answer now to the recorded one, where they differ; computed in float32.

    In bfloat16 two answers that rounding exchanges are often equally likely, to the last bit.

    Args:
      recorded, now: in the examples' order.
    """
    pairs = {position: pair for position, pair in enumerate(zip(recorded, now)) if pair[0] != pair[1]}
    if not pairs:
        return {}
    settings = AnswerSettings(evaluator.settings.reference, False, eval_set.encoding.num_fixed_tokens)
    answerer = recognize_family(model).make_answerer(
        model, evaluator.tokenizer, settings, evaluator.collator, evaluator.accelerator.device
    )
    nats_of_examples = {}
    is_greedy = eval_set.method == "generate" and evaluator.settings.num_beams == 1
    model.eval()
    with torch.no_grad(), in_float32(model):
        for position, pair in list(pairs.items())[:MOST_MEASURED]:
            nats_of_examples[(eval_set.name, position)] = distance(answerer, eval_set, position, pair, is_greedy)
    return nats_of_examples


@contextlib.contextmanager
def in_float32(model) -> Iterator[None]:
    """Within the block the model computes in float32, with the weights that it has; a quantized one stays as it is."""
    dtype = next(model.parameters()).dtype
    is_plain = dtype in DTYPES.values()
    formats = float32_formats()
    multiply_in_tf32(False)
    if is_plain:
        model.to(torch.float32)
    try:
        yield
    finally:
        restore_float32_formats(formats)
        if is_plain:
            model.to(dtype)


def distance(answerer, eval_set: EvalSet, position: int, pair: tuple[str, str], is_greedy: bool) -> float | None:
    """Nats between the recorded answer and the one now; None where the model gives no probabilities of them.

    Args:
      is_greedy: answers were decoded token by token, and are measured at the first one at which they differ.
    """
    reading = answerer.read(eval_set.features.__getitems__([position]))
    if eval_set.method == "classify":
        return distance_of_classes(reading.scores[0], eval_set.encoding, pair)
    if eval_set.method not in ("generate", "score"):
        return None
    try:
        recorded_ids, now_ids = eval_set.encoding.for_task(eval_set.task).choices(list(pair))
    except ConfigError:  # the language differs from row to row
        return None
    if is_greedy:
        recorded_ids, now_ids = up_to_difference(recorded_ids, now_ids)
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
