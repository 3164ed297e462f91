"""The answers of a `t5suite.FineTuner` to rows, as `t5suite predict` gives them.

>>> lines = answer_rows(predictor, text, ["It rains."], DecodingSettings(), scores=True)
>>> answer_of_line(lines[0], several=False, scores=True)
Answer(text='Es regnet.', score=-0.5, truncated=False, invalid=False)
"""

import dataclasses
from collections.abc import Mapping, Sequence

from t5suite.data.rows.own_rows import with_empty_texts
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.jobs import WINDOW, AnswerCounts, Job
from t5suite.inference.predictor import Answer, Predictor, warn_of_cut_labels
from t5suite.inference.rows import Row
from t5suite.inference.settings import PYTHON, InputSettings, candidate_labels, check_no_writing, writes_text
from t5suite.tasks.formatters import FITTED_FORMATTERS


def answer_rows(
    predictor: Predictor,
    text: InputSettings,
    rows: Sequence,
    decoding: DecodingSettings,
    labels=None,
    scores=False,
    raw=False,
    writing_defaults: Mapping[str, int] | None = None,
) -> list[dict]:
    """The answers to rows, one line per row, as `t5suite predict` writes them.

    Args:
      text: from `inference.settings.text_settings`: the task, if known, and how texts are made.
      labels: choose among these instead of writing; `task`: among the task's own; `none`: write; default: as the model
        was scored.
      writing_defaults: settings of answers that are written, in place of those in `decoding`.

    Raises:
      ConfigError: settings of writing where the model does not write, or that no answer fits.
      DataError: a row that does not fit the task.
    """
    candidates = candidate_labels(labels, text, setting=PYTHON)
    if not writes_text(labels, text):
        check_no_writing(decoding, scores, labels, text)
    elif writing_defaults:
        decoding = dataclasses.replace(decoding, **writing_defaults)
    max_new_tokens = decoding.max_new_tokens or text.max_new_tokens
    decoding.check_lengths(max_new_tokens)
    warn_of_cut_labels(predictor.encoding, candidates)
    fits = None
    if text.task is not None and text.task.entry.get("formatter") in FITTED_FORMATTERS:
        fits = predictor.encoding.fits
    job = Job(
        text.task,
        labels_of_sets=text.labels_of_sets,
        raw=raw,
        decoding=decoding,
        max_new_tokens=max_new_tokens,
        labels=candidates,
        scores=scores,
        family=text.family,
        fits=fits,
        languages=text.languages,
    )
    text_columns = text.task.text_columns if job.reads_task else ()
    requests = []
    for i, value in enumerate(rows):
        if isinstance(value, Mapping):
            value = with_empty_texts(value, text_columns)
        requests.append(job.request(Row(i, f"row {i}", value)))
    lines = []
    for start in range(0, len(requests), WINDOW):
        lines += job.lines(requests[start : start + WINDOW], predictor)
    counts = AnswerCounts()
    counts.add(lines)
    counts.warn(job)
    return lines


def answer_of_line(line: dict, several: bool, scores: bool):
    """A line as Python has it: a text, or the texts of several answers; with scores, `Answer`s.

    >>> answer_of_line({"row": 0, "prediction": "a", "score": -0.5}, several=False, scores=True)
    Answer(text='a', score=-0.5, truncated=False, invalid=False)
    """
    parts = line["predictions"] if several else [{"text": line["prediction"], **line}]
    answers = [
        Answer(part["text"], part.get("score"), part.get("truncated", False), part.get("invalid", False))
        for part in parts
    ]
    if not scores:
        answers = [answer.text for answer in answers]
    return answers if several else answers[0]
