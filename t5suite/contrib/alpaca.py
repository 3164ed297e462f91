"""Instructions as Alpaca's files have them: `--data_format alpaca`, and `--data_class Alpaca`."""

from t5suite.data.rows.formats import Form, FormatOptions, row_source
from t5suite.data.rows.own_rows import Columns

ALPACA_ENTRY = {
    "formatter": "instruction",
    "text_column_name": "instruction",
    "label_column_name": "output",
    "metric_names": ["rouge"],
}
ALPACA_COLUMNS = Columns(("instruction",), "output", optional=("input",))


def alpaca_form(options: FormatOptions) -> Form:
    """Rows of `instruction`, `output` and an optional `input`."""
    source = row_source(options, "jsonl", (".json", ".jsonl"), ALPACA_COLUMNS)
    return Form(source, ALPACA_COLUMNS, ALPACA_ENTRY)
