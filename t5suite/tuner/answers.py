"""What `FineTuner.predict` does with rows: what `t5suite predict` does with those of a file.

>>> asked = Asked(model, tokenizer, card, batch_size=64)
>>> asked.lines([{"sentence1": "It rains.", "sentence2": "It is wet."}], Decoding(), labels="task")
[{'row': 0, 'prediction': 'entailment', 'probabilities': {'entailment': 0.9, 'not_entailment': 0.1}}]
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion
from t5suite.inference.predictor import Answer, Predictor
from t5suite.inference.rows import Row
from t5suite.inference.running import WINDOW, Job
from t5suite.inference.settings import (
    Decoding,
    given_labels,
    text_settings,
)
from t5suite.models.family_encodings import encoding_for
from t5suite.tasks.formatters import FITTED_FORMATTERS
from t5suite.tasks.registry import bind_fits
from t5suite.tasks.task_card import TaskCard


class Asked(NamedTuple):
    """A model that is asked, with what is known of its texts.

    Attributes:
      card: its task's; without one, rows are finished texts.
      dataset_name: which of several tasks.
      raw: rows are finished texts, whatever the task.
      max_source_length, answer_separator: where they differ from the card's.
    """

    model: Any
    tokenizer: Any
    card: TaskCard | None
    batch_size: int
    dataset_name: str | None = None
    raw: bool = False
    max_source_length: int | None = None
    answer_separator: str | None = None

    def lines(self, rows: Sequence, decoding: Decoding, labels=None, scores: bool = False) -> list[dict]:
        """The answers, one line a row, as a file of `t5suite predict` has them.

        Args:
          rows: tables of the task's columns; texts, where it has one column.
          labels: choose among these instead of writing; `task`: among the task's own.

        Raises:
          ConfigError: settings that make no sense, alone or together.
          DataError: a row that is none of the task; named by its number.
        """
        text = text_settings(
            self.card,
            dataset_name=self.dataset_name,
            raw=self.raw,
            max_source_length=self.max_source_length,
            answer_separator=self.answer_separator,
        )
        encoding = encoding_for(self.model, self.tokenizer, text.lengths, text.separator)
        predictor = Predictor(self.model, encoding, self.batch_size)
        if labels not in (None, "task"):
            labels = given_labels(",".join(labels), text)
        fitted = text.task is not None and text.task.entry.get("formatter") in FITTED_FORMATTERS
        fits = bind_fits(self.tokenizer, text.lengths) if fitted else None
        longest = decoding.max_new_tokens or text.max_new_tokens
        job = Job(text.task, self.raw, decoding, longest, labels, scores, False, text.family, fits)
        requests = [job.request(Row(i, f"row {i}", value)) for i, value in enumerate(rows)]
        windows = [requests[i : i + WINDOW] for i in range(0, len(requests), WINDOW)]
        return [line for window in windows for line in job.lines(window, predictor)]


def decoding_of(settings: Mapping[str, Any]) -> Decoding:
    """How answers are written, by the names of `t5suite predict`'s flags.

    Raises:
      ConfigError: no such setting.
    """
    names = [spec.name for spec in dataclasses.fields(Decoding)]
    for name in settings:
        if name not in names:
            raise ConfigError(f"predict: no setting {name!r}; {suggestion(name, names)}")
    return Decoding(**settings)


def answer_of(line: dict, several: bool, scores: bool):
    """A line as Python has it: a text, or the texts of several answers; with scores, `Answer`s.

    >>> answer_of({"row": 0, "prediction": "a", "score": -0.5}, several=False, scores=True)
    Answer(text='a', score=-0.5, truncated=False)
    """
    if not several:
        return (
            Answer(line["prediction"], line.get("score"), line.get("truncated", False))
            if scores
            else line["prediction"]
        )
    if scores:
        return [Answer(found["text"], found["score"], False) for found in line["predictions"]]
    return [found["text"] for found in line["predictions"]]
