"""Flags of the text that `t5suite corpus build` and `t5suite tokenizer train` read.

>>> add_reading_flags(parser).add_argument("--max_documents", type=int)
"""

INPUT_HELP = (
    "files, folders, patterns or hub:PATH[@REVISION][:CONFIG[:SPLIT]]; .txt, .jsonl, .json, .parquet, .gz, .zst"
)


def add_reading_flags(parser):
    """Adds the group `text`, and returns it for flags that one command alone has."""
    group = parser.add_argument_group("text")
    add = group.add_argument
    add("--text_column_name", default="text", help="where rows hold the text (default: text)")
    add("--text_unit", default="line", help="a document of a .txt file: line (default), paragraph or file")
    add(
        "--bad_lines",
        default="error",
        help="error: stop at a line that cannot be read (default); skip: count and name it",
    )
    return group
