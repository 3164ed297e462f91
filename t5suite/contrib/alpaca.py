"""Instructions as Alpaca's files have them: `--data_format alpaca`, and `--data_class Alpaca`."""

from dataclasses import replace

from t5suite.base.file_names import suffixes_of
from t5suite.data.rows.formats import Form, FormatOptions, row_source, with_lang_columns
from t5suite.data.rows.own_rows import Columns

ALPACA_ENTRY = {
    "formatter": "instruction",
    "text_column_name": "instruction",
    "label_column_name": "output",
    "metric_names": ["rouge"],
}
ALPACA_COLUMNS = Columns(("instruction",), "output", optional=("input",), fixed_by="--data_format alpaca")


def alpaca_form(options: FormatOptions) -> Form:
    """Rows of `instruction`, `output` and an optional `input`."""
    columns = with_lang_columns(replace(ALPACA_COLUMNS, labels=options.labels), options)
    return Form(row_source(options, "jsonl", suffixes_of("jsonl"), columns), columns, ALPACA_ENTRY)
