"""The texts that an encoder with a head reads of a row, without T5's prefixes.

>>> row, task = {"sentence1": "It rains.", "sentence2": "It is wet.", "label": 0}, load_task("glue", "rte")
>>> segments(task.examples(row)[0], row, task)
('It rains.', 'It is wet.')
>>> text_read(task.examples(row)[0], row, task, form="segments")
'It rains. | It is wet.'
"""

from t5suite.tasks.cells import as_list, cell
from t5suite.tasks.formatters import Example
from t5suite.tasks.registry import Task

# Between segments where the tokenizer's own separator is not known.
SEPARATOR = "|"


def segments(example: Example, row, task: Task) -> tuple[str, ...]:
    """The texts that an encoder reads: the entry's one or two columns unchanged, else T5's input text."""
    if not reads_columns(task.entry):
        return (example.inputs,)
    return tuple(str(cell(row, column)) for column in as_list(task.entry["text_column_name"]))


def reads_columns(entry) -> bool:
    """Whether an encoder reads a task's one or two columns unchanged, each as a segment.

    >>> reads_columns({"text_column_name": ["sentence1", "sentence2"]}), reads_columns({"formatter": "squad", ...})
    (True, False)
    """
    is_plain = entry.get("formatter") in (None, "columns") and not entry.get("input_format")
    return is_plain and len(as_list(entry["text_column_name"])) <= 2


def text_read(example: Example, row, task: Task, form: str | None) -> str:
    """What a model has read of a row, whole.

    Args:
      form: of the model's encoding, as the manifest describes it.
    """
    if form == "words":
        return " ".join(task.words(row))
    if form == "segments":
        return f" {SEPARATOR} ".join(segments(example, row, task))
    return example.inputs
