"""The flags of `t5suite predict` about texts and answers, and what the model's `task.json` says about them.

>>> text = text_settings(read_task_card("runs/rte"), max_source_length=256)
WARNING: --max_source_length 256 differs from 512, which the model was trained with
>>> text.task.name, text.lengths.source, text.max_new_tokens
('rte', 256, 5)

Nothing here needs torch: wrong flags are found before a model is loaded.
"""

import dataclasses
import logging
from dataclasses import dataclass

from t5suite.base.errors import ConfigError
from t5suite.data.rows.formats import words_of
from t5suite.data.rows.separated import delimiter_by_flag
from t5suite.inference.rows import RowSource
from t5suite.tasks.cells import as_list
from t5suite.tasks.languages import Languages
from t5suite.tasks.registry import Task, load_task
from t5suite.tasks.task_card import HEADED, TaskCard
from t5suite.tasks.templates import INPUT, check_template, unescaped
from t5suite.tasks.tokenization import Lengths

logger = logging.getLogger(__name__)

# Lengths in tokens of texts and answers, if neither the flags nor the task give them.
DEFAULT_SOURCE_LENGTH, DEFAULT_ANSWER_LENGTH = 512, 64
NO_LANGUAGES = Languages()


@dataclass(frozen=True)
class Decoding:
    """The flags of the same names. None means the value in the model's own generation configuration.

    Attributes:
      max_new_tokens: the longest answer, end-of-sequence included; None: what the task needs.
      top_k: draw from this many likeliest tokens; 0: all. top_p: from the likeliest with this total probability.
      num_return_sequences: answers per row.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    num_beams: int = 1
    num_beam_groups: int = 1
    diversity_penalty: float | None = None
    do_sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 42
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    length_penalty: float | None = None
    num_return_sequences: int = 1

    def check(self) -> None:
        """Checks the settings, alone and together.

        Raises:
          ConfigError: one is out of its range, or has no effect with the others.
        """
        for name, (is_right, range_) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not is_right(value):
                raise ConfigError(f"--{name} {value}: must be {range_}")
        needed = {"temperature": "do_sample", "top_k": "do_sample", "top_p": "do_sample"}
        needed |= {"length_penalty": "num_beams", "diversity_penalty": "num_beam_groups"}
        for name, other in needed.items():
            if getattr(self, name) is not None and getattr(self, other) == getattr(Decoding, other):
                raise ConfigError(f"--{name} {getattr(self, name)} has no effect without --{other}")
        self.check_lengths(self.max_new_tokens)
        if self.do_sample and self.num_beams > 1:
            raise ConfigError(f"--do_sample draws single answers: drop --num_beams {self.num_beams}")
        if self.num_beams % self.num_beam_groups:
            raise ConfigError(
                f"--num_beam_groups {self.num_beam_groups} must divide --num_beams {self.num_beams} evenly"
            )
        if self.num_return_sequences > self.num_beams and not self.do_sample:
            raise ConfigError(
                f"--num_return_sequences {self.num_return_sequences}: needs as many --num_beams, or --do_sample"
            )

    def check_lengths(self, longest: int | None) -> None:
        """Checks that an answer of at least `min_new_tokens` is not longer than the longest.

        Raises:
          ConfigError: no answer has both lengths.
        """
        if longest is not None and (self.min_new_tokens or 0) > longest:
            cause = "" if self.max_new_tokens else ", which is what the task needs"
            shortest = f"--min_new_tokens {self.min_new_tokens}"
            raise ConfigError(f"{shortest} is more than --max_new_tokens {longest}{cause}; no answer is both")


AT_LEAST_0, AT_LEAST_1 = (lambda value: value >= 0, "at least 0"), (lambda value: value >= 1, "at least 1")
ABOVE_0 = (lambda value: value > 0, "above 0")
RANGES = {
    **dict.fromkeys("max_new_tokens num_beams num_beam_groups num_return_sequences".split(), AT_LEAST_1),
    **dict.fromkeys("min_new_tokens diversity_penalty top_k seed no_repeat_ngram_size".split(), AT_LEAST_0),
    **dict.fromkeys(("temperature", "repetition_penalty"), ABOVE_0),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
}


@dataclass(frozen=True)
class TextSettings:
    """How rows become texts, and texts answers.

    Attributes:
      task: None where rows hold finished texts only.
      max_new_tokens: the longest answer that the task needs.
      separator, family, languages: of the model, if known.
    """

    task: Task | None
    lengths: Lengths
    max_new_tokens: int
    separator: str | None = None
    family: str | None = None
    languages: Languages = NO_LANGUAGES


def text_settings(
    card: TaskCard | None,
    *,
    benchmark: str | None = None,
    dataset_name: str | None = None,
    task_file: str | None = None,
    raw: bool = False,
    max_source_length: int | None = None,
    answer_separator: str | None = None,
    model_family: str | None = None,
    languages: Languages = NO_LANGUAGES,
    warns: bool = True,
) -> TextSettings:
    """The flags' settings, else the card's, else the defaults; a flag that differs from the card logs a warning.

    Raises:
      ConfigError: no such task, or several and none is named.
    """
    named = benchmark is not None or task_file is not None
    if benchmark is not None and dataset_name is None:
        raise ConfigError(f"--benchmark {benchmark}: which of its tasks? Give --dataset_name")
    if card is None and dataset_name is not None and not named:
        raise ConfigError(f"--dataset_name {dataset_name}: the model has no task.json; give --benchmark, too")
    task = None
    if named:
        task = load_task(benchmark or (card and next(iter(card.tasks.values())).benchmark), dataset_name, task_file)
    elif card is not None and not (dataset_name is None and raw and len(card.tasks) > 1):
        task = card.task(dataset_name)
    known = card.lengths if card else Lengths(DEFAULT_SOURCE_LENGTH, DEFAULT_SOURCE_LENGTH)
    lengths = task.lengths(known) if task else known
    stored = {"max_source_length": lengths.source if card else None}
    stored |= {"answer_separator": card and card.settings.get("answer_separator"), "model_family": card and card.family}
    given = dict(max_source_length=max_source_length, answer_separator=answer_separator, model_family=model_family)
    given = {name: value for name, value in given.items() if value not in (None, "auto")}
    if warns and card and named:
        trained = card.tasks.get(task.name)
        parts = [its and (its.benchmark, its.entry["prefix"]) for its in (task, trained)]
        if parts[0] != parts[1]:
            names = ", ".join(f"{its.benchmark}/{name}" for name, its in card.tasks.items())
            flags = f"--benchmark {task.benchmark} --dataset_name {task.name}"
            logger.warning("%s differs from %s, which the model was trained on", flags, names)
    for name, value in given.items() if warns else ():
        if stored[name] not in (None, value):
            logger.warning("--%s %s differs from %s, which the model was trained with", name, value, stored[name])
    return TextSettings(
        task,
        lengths._replace(source=given.get("max_source_length", lengths.source)),
        (card.max_answer_tokens.get(task.name) if card and task else None) or DEFAULT_ANSWER_LENGTH,
        given.get("answer_separator", stored["answer_separator"]),
        given.get("model_family", stored["model_family"]),
        languages.with_defaults((card.settings.get("languages") or {}) if card else {}),
    )


def template_by_flags(arguments, text: TextSettings) -> str | None:
    r"""`--input_format`, the template around finished texts: 'Ask:\n__input__'.

    Raises:
      ConfigError: rows of a task, which have their own format; a template without `__input__`.
    """
    if arguments.input_format is None:
        return None
    if text.task is not None and not arguments.raw:
        name = f"{text.task.benchmark}/{text.task.name}"
        raise ConfigError(f"--input_format: rows have the format of {name}; for finished texts add --raw")
    return check_template(unescaped(arguments.input_format), INPUT, "--input_format")


def source_by_flags(arguments, text: TextSettings) -> RowSource:
    """The rows that `--input` names, with the task's columns from those that `--text_column` names.

    Raises:
      ConfigError: another number of columns than the task reads, no such kind of input.
    """
    named = words_of(arguments.text_column, "--text_column") or ()
    columns = ["input"] if text.task is None or arguments.raw else as_list(text.task.entry["text_column_name"])
    if named and len(named) != len(columns):
        reads = "finished texts" if columns == ["input"] else ", ".join(columns)
        raise ConfigError(
            f"--text_column {arguments.text_column}: {len(named)} columns, but the model reads {len(columns)} "
            f"({reads}); name them in this order"
        )
    pairs = dict(zip(columns, named, strict=True)) if named else {}
    answer = None if text.task is None or arguments.raw else text.task.entry["label_column_name"]
    if answer in (*columns, *named):
        answer = None
    return RowSource(arguments.input, arguments.input_type, delimiter_by_flag(arguments.delimiter), pairs, answer)


def decoding_by_flags(arguments, text: TextSettings) -> Decoding:
    """How answers are written, from the flags.

    Raises:
      ConfigError: settings that make no sense, or have no effect where a label is chosen.
    """
    names = [field.name for field in dataclasses.fields(Decoding)]
    decoding = Decoding(**{name: getattr(arguments, name) for name in names})
    if arguments.labels is not None or text.family in HEADED:
        idle = [name for name in names if name != "seed" and getattr(decoding, name) != getattr(Decoding(), name)]
        if idle or arguments.scores:
            raise ConfigError(f"--{(idle or ['scores'])[0]} has no effect: labels are chosen, and no text is generated")
    decoding.check()
    decoding.check_lengths(decoding.max_new_tokens or text.max_new_tokens)
    return decoding


def given_labels(labels, text: TextSettings, warns: bool = True) -> list[str] | str | None:
    """`--labels a,b,c`, or a list, as a list; they may differ from the task's own, which are `task`.

    Raises:
      ConfigError: fewer than two, or a task without labels, or an encoder's head, which has only its own.
    """
    task = text.task
    if labels == "task" and (task is None or not task.has_candidates):
        name = f"{task.benchmark}/{task.name} has no" if task else "no task is known, and so no"
        raise ConfigError(f"--labels: {name} label words; give them: --labels negative,positive")
    if labels in (None, "task"):
        return labels
    found = [label for label in (labels.split(",") if isinstance(labels, str) else labels) if label]
    shown = ",".join(found)
    if len(found) < 2 or len(set(found)) < len(found):
        raise ConfigError(f"--labels {shown}: give two different labels or more, commas between")
    if text.family in HEADED:
        raise ConfigError(f"--labels {shown}: an encoder's head has only its own labels; give --labels without a value")
    if warns and task and task.label_words and sorted(task.label_words) != sorted(found):
        logger.warning(
            "--labels %s differs from %s, which the model was trained with", shown, ",".join(task.label_words)
        )
    return found
