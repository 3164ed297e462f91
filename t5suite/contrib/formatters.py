"""Formatters of rows that predecessors' data have: Alpaca's instructions, and texts as lists of their parts."""

from t5suite.tasks.cells import as_list, cell
from t5suite.tasks.formatters import Example, join_columns
from t5suite.tasks.targets import label_text


def instruction(row, entry, split):
    r"""Alpaca's rows: an instruction from the task's columns, and its `input` if not empty.

    >>> instruction({"instruction": "Name it.", "input": "a cat", "output": "Tom "}, entry, "train")
    [Example(inputs='Name it.\ninput: a cat\noutput:', targets='Tom')]
    """
    instruction_text = join_columns(row, entry["prefix"], entry["text_column_name"])
    has_input = row.get("input") not in (None, "")
    input_line = f"input: {row['input']}\n" if has_input else ""
    return [Example(f"{instruction_text}\n{input_line}output:", label_text(row, entry).strip())]


def joined_lists(row, entry, split):
    """As `columns`, but a text may be a list of its parts (DiscoEval's RST), which are joined by spaces.

    >>> joined_lists({"sentence_1": ["He", "left ."], "sentence_2": ["."], "label": 3}, entry, "train")
    [Example(inputs='rst sentence1: He left . sentence2: .', targets='NS-Summary')]
    """
    texts = {}
    for column in as_list(entry["text_column_name"]):
        text = cell(row, column)
        texts[column] = " ".join(map(str, text)) if isinstance(text, (list, tuple)) else text
    return [Example(join_columns(texts, entry["prefix"], entry["text_column_name"]), label_text(row, entry))]
