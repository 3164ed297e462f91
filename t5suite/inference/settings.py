"""The flags of `t5suite predict` about texts and answers, and what the model's `task.json` says about them.

>>> text = text_settings(read_task_card("runs/rte"), TextFlags(max_source_length=256))
WARNING: --max_source_length 256 differs from 512, which the model was trained with
>>> text.task.name, text.lengths.source, text.max_new_tokens
('rte', 256, 5)

Nothing here needs torch: wrong flags are found before a model is loaded.
"""

import dataclasses
import json
import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import first_repeated, listed, suggestion
from t5suite.data.rows.formats import comma_separated, quoted_words
from t5suite.data.rows.separated import delimiter_by_flag
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.rows import InputRows
from t5suite.tasks.cells import as_list
from t5suite.tasks.languages import Languages
from t5suite.tasks.registry import Task, load_task
from t5suite.tasks.targets import has_label_sets, label_set_text, labels_of_cell
from t5suite.tasks.task_card import HEADED, TaskCard
from t5suite.tasks.templates import INPUT, OUTPUT, check_template, fill, unescaped, unfilled
from t5suite.tasks.tokenization import Lengths

logger = logging.getLogger(__name__)

# Lengths in tokens of texts and answers, if neither the flags nor the task give them.
DEFAULT_SOURCE_LENGTH, DEFAULT_ANSWER_LENGTH = 512, 64
NO_LANGUAGES = Languages()
# `--labels none`: the answer is written, although the model was scored by its labels.
WRITTEN = "none"
# Where labels are named: by the flag, in a request's JSON, in Python; and what messages call the way without them.
FLAG, JSON, PYTHON = "--labels ", '"labels": ', "labels="
WITHOUT_LABELS = {FLAG: "leave the labels out", JSON: "leave the labels out", PYTHON: "call predict without labels"}
# Labels of a message that says how they are named: words, whole answers of sets, numbers.
EXAMPLE_WORDS = ("negative", "positive")
EXAMPLE_SETS = ("late", "broken, late")
EXAMPLE_NUMBERS = ("1", "2", "3")


@dataclass(frozen=True)
class TextFlags:
    """The flags of the same names; None means that the model's `task.json` decides.

    Attributes:
      raw: rows hold finished texts, whatever the task.
    """

    benchmark: str | None = None
    dataset_name: str | None = None
    task_file: str | None = None
    raw: bool = False
    max_source_length: int | None = None
    answer_separator: str | None = None
    model_family: str | None = None
    languages: Languages = NO_LANGUAGES

    @property
    def names_task(self) -> bool:
        """Whether the task is one of a benchmark or file, not of the model's `task.json`."""
        return self.benchmark is not None or self.task_file is not None


@dataclass(frozen=True)
class InputSettings:
    """How rows become texts, and texts answers.

    Attributes:
      task: None where rows hold finished texts only.
      max_new_tokens: the longest answer that the task needs.
      separator, family, languages: of the model, if known.
      scored_by_labels: the model's scores on the task are those of the likeliest label, and so are its answers, unless
        `--labels` says something else.
      labels_of_sets: of a task of sets, the labels of the rows that the model was trained on; None where unknown.
    """

    task: Task | None
    lengths: Lengths
    max_new_tokens: int
    separator: str | None = None
    family: str | None = None
    languages: Languages = NO_LANGUAGES
    scored_by_labels: bool = False
    labels_of_sets: Sequence[str] | None = None


def text_settings_by_flags(arguments, card: TaskCard | None, warns: bool = True) -> InputSettings:
    """`text_settings` from parsed flags of `t5suite predict`."""
    flags = TextFlags(
        benchmark=arguments.benchmark,
        dataset_name=arguments.dataset_name,
        task_file=arguments.task_file,
        raw=arguments.raw,
        max_source_length=arguments.max_source_length,
        answer_separator=unescaped(arguments.answer_separator),
        model_family=arguments.model_family,
        languages=Languages(*(getattr(arguments, name) for name in Languages._fields)),
    )
    return text_settings(card, flags, warns)


def text_settings(card: TaskCard | None, flags: TextFlags, warns: bool = True) -> InputSettings:
    """The flags' settings, else the card's, else the defaults; a flag that differs from the card logs a warning.

    Raises:
      ConfigError: no such task, or several and none is named; a separator, of a model that is known to read none.
    """
    task = _task_by_flags(card, flags)
    lengths = card.lengths if card else Lengths(DEFAULT_SOURCE_LENGTH, DEFAULT_SOURCE_LENGTH)
    if task:
        lengths = task.lengths(lengths)
    trained_settings = _trained_settings(card, lengths)
    flag_settings = _settings_of_flags(flags)
    if warns and card:
        if flags.names_task:
            _warn_of_other_task(card, task)
        _warn_of_other_settings(trained_settings, flag_settings)
    max_answer_tokens = card.max_answer_tokens.get(task.name) if card and task else None
    trained_languages = (card.settings.get("languages") if card else None) or {}
    settings = trained_settings | flag_settings
    check_separator(flags.answer_separator, settings.get("model_family"))
    return InputSettings(
        task=task,
        lengths=lengths._replace(source=settings.get("max_source_length", lengths.source)),
        max_new_tokens=max_answer_tokens or DEFAULT_ANSWER_LENGTH,
        separator=settings.get("answer_separator"),
        family=settings.get("model_family"),
        languages=flags.languages.with_defaults(trained_languages),
        scored_by_labels=bool(card and task and task.name in card.scored_by_labels),
        labels_of_sets=card.labels_of_sets(task) if card and task else None,
    )


def check_separator(separator: str | None, family: str | None) -> None:
    """Refuses `--answer_separator` where a model's prompt and answer do not share a row; an empty one says so itself.

    Raises:
      ConfigError: they do not; a family that is not known may be a decoder.
    """
    if separator and family not in (None, "causal"):
        raise ConfigError(
            f"--answer_separator {separator!r} has no effect: it stands between prompt and answer of a decoder-only "
            f"model, and the model family here is {family}"
        )


def _task_by_flags(card: TaskCard | None, flags: TextFlags) -> Task | None:
    """The task that the flags name, else the card's; None for finished texts of a model with several tasks, or none.

    Raises:
      ConfigError: no such task, or several and none is named.
    """
    if flags.benchmark is not None and flags.dataset_name is None:
        raise ConfigError(f"--benchmark {flags.benchmark}: which of its tasks? Give --dataset_name")
    if flags.names_task:
        benchmark = flags.benchmark
        if not benchmark and card:
            benchmark = card.benchmark
        return load_task(benchmark, flags.dataset_name, flags.task_file)
    if card is None:
        if flags.dataset_name is not None:
            raise ConfigError(f"--dataset_name {flags.dataset_name}: the model has no task.json; give --benchmark, too")
        return None
    if flags.raw and flags.dataset_name is None and len(card.tasks) > 1:
        return None
    return card.task(flags.dataset_name)


def _trained_settings(card: TaskCard | None, lengths: Lengths) -> dict:
    """The settings that a model was trained with, by flag, where they are known."""
    if card is None:
        return {}
    settings = {
        "max_source_length": lengths.source,
        "answer_separator": card.settings.get("answer_separator"),
        "model_family": card.family,
    }
    return {name: setting for name, setting in settings.items() if setting is not None}


def _settings_of_flags(flags: TextFlags) -> dict:
    """The settings that flags give; `auto` is what the model was trained with."""
    settings = {
        "max_source_length": flags.max_source_length,
        "answer_separator": flags.answer_separator,
        "model_family": flags.model_family,
    }
    return {name: setting for name, setting in settings.items() if setting not in (None, "auto")}


def _warn_of_other_task(card: TaskCard, task: Task) -> None:
    """Logs that a task has another name or text than those that the model was trained on."""
    trained_task = card.tasks.get(task.name)
    if trained_task and _text_of_task(trained_task) == _text_of_task(task):
        return
    trained_names = ", ".join(f"{trained.benchmark}/{name}" for name, trained in card.tasks.items())
    flags = f"--benchmark {task.benchmark} --dataset_name {task.name}"
    logger.warning("%s differs from %s, which the model was trained on", flags, trained_names)


def _text_of_task(task: Task) -> tuple:
    return task.benchmark, as_list(task.entry["prefix"])


def _warn_of_other_settings(trained_settings: dict, flag_settings: dict) -> None:
    """Logs flags that differ from the settings in training."""
    for name, setting in flag_settings.items():
        if name in trained_settings and trained_settings[name] != setting:
            logger.warning(
                "--%s %s differs from %s, which the model was trained with", name, setting, trained_settings[name]
            )


def template_by_flags(arguments, text: InputSettings) -> str | None:
    r"""`--input_format`, the template around finished texts: 'Ask:\n__input__'.

    Raises:
      ConfigError: rows of a task, which have their own format; a template without `__input__`.
    """
    if arguments.input_format is None:
        return None
    if text.task is not None and not arguments.raw:
        raise ConfigError(
            f"--input_format: rows have the format of {text.task.benchmark}/{text.task.name}; "
            "for finished texts add --raw"
        )
    return check_template(unescaped(arguments.input_format), INPUT, "--input_format")


def source_by_flags(arguments, text: InputSettings) -> InputRows:
    """The rows that `--input` names, with the task's columns from those that `--text_column` names.

    Raises:
      ConfigError: another number of columns than the task reads, no such kind of input.
    """
    row_columns = comma_separated(arguments.text_column, "--text_column", keeps_quoted_spaces=True) or ()
    reads_task = text.task is not None and not arguments.raw
    task_columns = as_list(text.task.entry["text_column_name"]) if reads_task else ["input"]
    if row_columns and len(row_columns) != len(task_columns):
        names = "finished texts" if task_columns == ["input"] else ", ".join(task_columns)
        raise ConfigError(
            f"--text_column {arguments.text_column}: {len(row_columns)} columns, but the model reads "
            f"{len(task_columns)} ({names}); name them in this order"
        )
    return InputRows(
        arguments.input,
        arguments.input_type,
        delimiter_by_flag(arguments.delimiter),
        dict(zip(task_columns, row_columns, strict=True)) if row_columns else {},
        task_columns,
    )


def decoding_by_flags(arguments, text: InputSettings) -> DecodingSettings:
    """How answers are written, from the flags.

    Raises:
      ConfigError: settings that make no sense, or have no effect where a label is chosen.
    """
    names = [field.name for field in dataclasses.fields(DecodingSettings)]
    decoding = DecodingSettings(**{name: getattr(arguments, name) for name in names})
    if not writes_text(arguments.labels, text):
        check_no_writing(decoding, arguments.scores, arguments.labels, text)
    decoding.check()
    decoding.check_lengths(decoding.max_new_tokens or text.max_new_tokens)
    return decoding


def writes_text(labels, text: InputSettings) -> bool:
    """Whether the model writes its answers: no labels are chosen, and no head answers."""
    return label_choice(labels, text) is None and text.family not in HEADED


def check_no_writing(decoding: DecodingSettings, scores: bool, labels, text: InputSettings) -> None:
    """Refuses settings of writing where the model does not write; the seed has a default, and does no harm.

    Raises:
      ConfigError: the first of them.
    """
    if text.family in HEADED:
        reason = "the model's head answers, and no text is generated"
    else:
        reason = "labels are chosen, and no text is generated"
        if labels is None:
            reason += f"; --labels {WRITTEN} has the model write"
    defaults = dataclasses.asdict(DecodingSettings(seed=decoding.seed))
    for name, setting in dataclasses.asdict(decoding).items():
        if setting != defaults[name]:
            raise ConfigError(f"--{name} has no effect: {reason}")
    if scores:
        raise ConfigError(f"--scores has no effect: {reason}")


def label_choice(labels, text: InputSettings):
    """The labels that are chosen from: those that `--labels` names, else the task's where the model was scored so.

    >>> label_choice(None, text), label_choice("none", text)  # a model that was scored with --eval_method score
    ('task', None)
    """
    if labels is None and text.scored_by_labels:
        return "task"
    if isinstance(labels, str) and labels == WRITTEN:
        return None
    return labels


def candidate_labels(labels, text: InputSettings, warns: bool = True, setting: str = FLAG) -> list[str] | str | None:
    """`--labels a,b,c`, or labels as an array or list, as a list of words; `task`: the task's own; None: none.

    Args:
      setting: where they are named, for messages: FLAG, JSON or PYTHON.

    Raises:
      ConfigError: an empty one, fewer than two, or a task without labels, or an encoder's head, which has only its own.
    """
    if warns and labels is None and text.scored_by_labels:
        logger.info(
            "answers are the likeliest labels, as the model was scored on %s; --labels %s has the model write them",
            text.task.name,
            WRITTEN,
        )
    choice = label_choice(labels, text)
    if choice is None:
        return None
    if isinstance(choice, str) and choice == "task":
        if text.task is None and text.family in HEADED:
            return None  # a head always chooses among its own labels
        _check_task_has_labels(text, setting)
        return choice
    candidates = comma_separated(choice, "--labels") if isinstance(choice, str) else choice
    if text.task is not None and has_label_sets(text.task.entry):
        words = _answers_of_sets(candidates, text, setting)
    else:
        words = [str(label) for label in candidates]
    _check_words(words, text, setting)
    if warns:
        _warn_of_other_words(words, text)
    return words


def _answers_of_sets(candidates, text: InputSettings, setting: str) -> list[str]:
    """Candidates as the model writes them: their labels in the order of the alphabet, in the task's output form.

    Raises:
      ConfigError: two are the same set, one names no label, or a label has a comma in it.
    """
    entry = text.task.entry
    place = setting.strip(" :=")
    sets = []
    for candidate in candidates:
        labels = unfilled(candidate, entry) if isinstance(candidate, str) else candidate
        sets.append(_set_of_candidate(labels, place))
    if not all(sets):
        raise ConfigError(f"{place}: a candidate names no label; each is a set of them, commas between")
    repeated = first_repeated(sets)
    if repeated is not None:
        raise ConfigError(f"{place}: {repeated!r} is there twice; the order of the labels in a set does not count")
    return [fill(entry.get("output_format"), OUTPUT, labels) for labels in sets]


def _set_of_candidate(labels, place: str) -> str:
    """The labels of one candidate, as a model writes them."""
    try:
        return label_set_text(labels, "")
    except DataError:
        raise ConfigError(f"{place}: a label in {labels!r} has a comma in it; give each label by itself") from None


def labels_in(setting: str, words: Sequence[str]) -> str:
    """Labels as they are named by the flag, in JSON or in Python.

    >>> print(labels_in(FLAG, ["late", "broken, late"]), labels_in(JSON, ["late", "broken, late"]))
    --labels 'late,"broken, late"' "labels": ["late", "broken, late"]
    """
    if setting == FLAG:
        return f"{setting}{shlex.quote(quoted_words(words))}"
    return f"{setting}{json.dumps(words, ensure_ascii=False)}"


def _check_words(words: list[str], text: InputSettings, setting: str) -> None:
    """Checks that a choice among these labels is possible.

    Raises:
      ConfigError: an empty one, fewer than two, an encoder's head, which has only its own, or single labels where
        answers are sets.
    """
    flag_text = ",".join(words)
    if "" in words:
        raise ConfigError(f"{setting.strip(' :=')}: label {words.index('') + 1} of {len(words)} is empty; name it")
    if len(words) < 2 or len(set(words)) < len(words):
        raise ConfigError(f"--labels {flag_text}: give two different labels or more, commas between")
    if text.family in HEADED:
        _check_no_labels_of_words(text.task)
        raise ConfigError(
            f"--labels {flag_text}: an encoder's head has only its own labels, and gives the probability of each with "
            "every answer; leave --labels out"
        )
    if text.task is None or not has_label_sets(text.task.entry):
        return
    if not any("," in word for word in words):
        raise ConfigError(
            f"--labels {flag_text}: {text.task.benchmark}/{text.task.name} is answered by sets of labels, but each of "
            f"these is an answer of one label; name whole answers: {labels_in(setting, EXAMPLE_SETS)}, or "
            f"{WITHOUT_LABELS[setting]}"
        )


def _check_no_labels_of_words(task: Task | None) -> None:
    """Refuses a task whose words have labels, of which an answer has one for each word.

    Raises:
      ConfigError: it is one.
    """
    if task is not None and task.value_kind == "labels":
        raise ConfigError(
            f"--labels: {task.benchmark}/{task.name} is answered by a label for each word, of its own "
            f"{listed(task.label_words)}, which have no probabilities here: leave the labels out"
        )


def _warn_of_other_words(words: list[str], text: InputSettings) -> None:
    """Logs labels that differ from those that the model was trained with: for sets, those that its last run lacks."""
    if text.labels_of_sets is not None:
        sets = [unfilled(word, text.task.entry) for word in words]
        for label in sorted(labels_of_cell(sets) - frozenset(text.labels_of_sets)):
            hint = suggestion(label, text.labels_of_sets)
            logger.warning("--labels: the model's last training had no row with the label %r; %s", label, hint)
    trained_words = text.task.label_words if text.task else None
    if trained_words and sorted(trained_words) != sorted(words):
        logger.warning(
            "--labels %s differs from %s, which the model was trained with", ",".join(words), ",".join(trained_words)
        )


def _check_task_has_labels(text: InputSettings, setting: str) -> None:
    """Checks that a task has labels, of which one is chosen.

    Raises:
      ConfigError: no task is known, or its answers are text, sets of labels or numbers without a grid.
    """
    task = text.task
    if task is None:
        raise ConfigError(
            f"--labels: no task is known, and so no label words; give them: {labels_in(setting, EXAMPLE_WORDS)}, or "
            "leave --labels out for an encoder, whose head has labels of its own"
        )
    if task.has_candidates:
        return
    _check_no_labels_of_words(task)
    place = f"{setting.strip(' :=')}: {task.benchmark}/{task.name}"
    if has_label_sets(task.entry):
        raise ConfigError(
            f"{place} is answered by sets of labels, and has no list of them; name whole answers: "
            f"{labels_in(setting, EXAMPLE_SETS)}, or {WITHOUT_LABELS[setting]}"
        )
    if task.value_kind == "number" and text.family in HEADED:
        raise ConfigError(f"{place} is answered by a number: {WITHOUT_LABELS[setting]}")
    if task.value_kind == "number":
        raise ConfigError(
            f"{place} is answered by a number, and has no list of them; name those to choose from: "
            f"{labels_in(setting, EXAMPLE_NUMBERS)}, or {WITHOUT_LABELS[setting]}"
        )
    raise ConfigError(
        f"{place} has no label words; give them: {labels_in(setting, EXAMPLE_WORDS)}, or {WITHOUT_LABELS[setting]}: "
        "the model writes its answer"
    )
