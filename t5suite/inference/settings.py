"""The flags of `t5suite predict` about texts and answers, and what the model's `task.json` says of them.

>>> text = text_settings(read_task_card("runs/rte"), max_source_length=256)
WARNING: --max_source_length 256 differs from 512, which the model was trained with
>>> text.task.name, text.lengths.source, text.max_new_tokens
('rte', 256, 5)

Nothing here needs torch: what is wrong with the flags is found before a model is loaded.
"""

import dataclasses
import logging
from dataclasses import dataclass

from t5suite.base.errors import ConfigError
from t5suite.tasks.registry import Lengths, Task, load_task
from t5suite.tasks.task_card import TaskCard


@dataclass(frozen=True)
class Decoding:
    """The flags of the same names. None stands for what the model's own generation configuration says.

    Attributes:
      max_new_tokens: the longest answer, end-of-sequence included; None: what the task needs.
      top_k: draw among so many likeliest tokens; 0 for all. top_p: among the likeliest that have this probability.
      num_return_sequences: answers a row.
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
        """Whether the settings make sense, alone and together.

        Raises:
          ConfigError: one is out of its range, or has no effect beside the others.
        """
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"--{name} {value}: must be at least {least}")
        for name in ("temperature", "repetition_penalty"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"--{name} {value}: must be above 0")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"--top_p {self.top_p}: must be above 0 and at most 1")
        self._check_together()

    def _check_together(self) -> None:
        idle = [name for name in ("temperature", "top_k", "top_p") if getattr(self, name) is not None]
        if idle and not self.do_sample:
            raise ConfigError(f"--{idle[0]} has no effect without --do_sample")
        if self.do_sample and self.num_beams > 1:
            raise ConfigError(f"--do_sample draws single answers: leave --num_beams {self.num_beams} out")
        if self.length_penalty is not None and self.num_beams == 1:
            raise ConfigError(f"--length_penalty {self.length_penalty} has no effect without --num_beams")
        if self.diversity_penalty is not None and self.num_beam_groups == 1:
            raise ConfigError(f"--diversity_penalty {self.diversity_penalty} has no effect without --num_beam_groups")
        if self.num_beams % self.num_beam_groups:
            raise ConfigError(
                f"--num_beam_groups {self.num_beam_groups} must divide --num_beams {self.num_beams} evenly"
            )
        if self.num_return_sequences > self.num_beams and not self.do_sample:
            raise ConfigError(
                f"--num_return_sequences {self.num_return_sequences}: needs as many --num_beams, or --do_sample"
            )


# The lowest value that makes sense.
LEAST = {
    "max_new_tokens": 1,
    "min_new_tokens": 0,
    "num_beams": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0,
    "top_k": 0,
    "seed": 0,
    "no_repeat_ngram_size": 0,
    "num_return_sequences": 1,
}


logger = logging.getLogger(__name__)

# Where neither the flags nor the task say how long texts and answers are, in tokens.
DEFAULT_SOURCE_LENGTH, DEFAULT_ANSWER_LENGTH = 512, 64


@dataclass(frozen=True)
class TextSettings:
    """What becomes of rows before and after the model.

    Attributes:
      task: None where rows hold finished texts only.
      max_new_tokens: the longest answer that the task needs.
      separator, family: of the model, where somebody says so.
    """

    task: Task | None
    lengths: Lengths
    max_new_tokens: int
    separator: str | None = None
    family: str | None = None


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
) -> TextSettings:
    """What the flags say, else the card, else the defaults; a flag that differs from the card warns.

    Raises:
      ConfigError: no such task, or several and none is named.
    """
    given = dict(max_source_length=max_source_length, answer_separator=answer_separator, model_family=model_family)
    task = named_task(card, benchmark, dataset_name, task_file, raw)
    text = settle(card, task, **given)
    other = task if benchmark is not None or task_file is not None else None
    for difference in _differences(card, task, other, given):
        logger.warning(difference)
    return text


def settle(
    card: TaskCard | None,
    task: Task | None,
    max_source_length: int | None = None,
    answer_separator: str | None = None,
    model_family: str | None = None,
) -> TextSettings:
    """The settings of a task's texts, without a word."""
    stored = _stored(card, task)
    known = card.lengths if card else Lengths(DEFAULT_SOURCE_LENGTH, DEFAULT_SOURCE_LENGTH)
    given = {"answer_separator": answer_separator, "model_family": model_family}
    chosen = {name: stored.get(name) if value in (None, "auto") else value for name, value in given.items()}
    answer_length = card.max_answer_tokens.get(task.name) if card and task else None
    lengths = task.lengths(known) if task else known
    return TextSettings(
        task,
        lengths if max_source_length is None else lengths._replace(source=max_source_length),
        answer_length or DEFAULT_ANSWER_LENGTH,
        chosen["answer_separator"],
        chosen["model_family"],
    )


def named_task(card, benchmark, dataset_name, task_file, raw: bool) -> Task | None:
    """The task that rows are formatted by.

    Raises:
      ConfigError: no such task, or several and none is named.
    """
    if benchmark is not None and dataset_name is None:
        raise ConfigError(f"--benchmark {benchmark}: which of its tasks? Give --dataset_name")
    if benchmark is not None or task_file is not None:
        return load_task(benchmark or (card and next(iter(card.tasks.values())).benchmark), dataset_name, task_file)
    if card is None:
        if dataset_name is not None:
            raise ConfigError(f"--dataset_name {dataset_name}: the model has no task.json; give --benchmark, too")
        return None
    if dataset_name is None and raw and len(card.tasks) > 1:
        return None
    return card.task(dataset_name)


def _stored(card: TaskCard | None, task: Task | None) -> dict:
    """What the card says of the flags of these names; nothing without one."""
    if card is None:
        return {}
    return {
        "max_source_length": (task.lengths(card.lengths) if task else card.lengths).source,
        "answer_separator": card.settings.get("answer_separator"),
        "model_family": card.family,
    }


def _differences(card: TaskCard | None, task: Task | None, other: Task | None, given: dict) -> list[str]:
    """What a warning says of flags that differ from what the model was trained with; `other` is a task they name."""
    if card is None:
        return []
    found, known = [], card.tasks.get(other.name) if other else None
    if other and (known is None or _texts_of(known) != _texts_of(other)):
        names = ", ".join(f"{its.benchmark}/{name}" for name, its in card.tasks.items())
        named = f"--benchmark {other.benchmark} --dataset_name {other.name}"
        found.append(f"{named} differs from {names}, which the model was trained on")
    for name, stored in _stored(card, task).items():
        if None not in (given[name], stored) and given[name] not in (stored, "auto"):
            found.append(f"--{name} {given[name]} differs from {stored}, which the model was trained with")
    return found


def _texts_of(task: Task) -> tuple:
    """What tells two tasks of one name apart."""
    return task.benchmark, task.entry["prefix"]


def decoding_by_flags(arguments, text: TextSettings) -> Decoding:
    """How answers are written, by the flags.

    Raises:
      ConfigError: settings that make no sense, or have no effect where a label is chosen.
    """
    decoding = Decoding(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Decoding)})
    if arguments.labels is not None or text.family == "masked":
        idle = [name for name in WRITING_FLAGS if getattr(decoding, name) != getattr(Decoding(), name)]
        if idle or arguments.scores:
            raise ConfigError(f"--{(idle or ['scores'])[0]} has no effect: labels are chosen, and nothing is written")
    decoding.check()
    return decoding


def check_candidates(task: Task | None) -> None:
    """`--labels` alone means the task's own.

    Raises:
      ConfigError: it has none.
    """
    if task is None or not task.has_candidates:
        name = f"{task.benchmark}/{task.name} has no" if task else "no task is known, and so no"
        raise ConfigError(f"--labels: {name} label words; give them: --labels negative,positive")


def parted_labels(labels: str, family: str | None) -> list[str]:
    """`--labels a,b,c` as a list.

    Raises:
      ConfigError: fewer than two, or an encoder's head, which knows its own only.
    """
    found = [label for label in labels.split(",") if label]
    if len(found) < 2 or len(set(found)) < len(found):
        raise ConfigError(f"--labels {labels}: give two different labels or more, commas between")
    if family == "masked":
        raise ConfigError(f"--labels {labels}: an encoder's head knows its own labels only; give --labels alone")
    return found


def given_labels(labels: str, text: TextSettings) -> list[str]:
    """`--labels a,b,c`, which may be others than the task's.

    Raises:
      ConfigError: fewer than two, or an encoder's head, which knows its own only.
    """
    found = parted_labels(labels, text.family)
    stored = text.task.label_words if text.task else None
    if stored and sorted(stored) != sorted(found):
        logger.warning("--labels %s differs from %s, which the model was trained with", labels, ",".join(stored))
    return found


# Settings of `Decoding` that choosing a label does not heed.
WRITING_FLAGS = tuple(field.name for field in dataclasses.fields(Decoding) if field.name != "seed")
