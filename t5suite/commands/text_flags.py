"""Flags of the text that `t5suite corpus build` and `t5suite tokenizer train` read.

>>> add_reading_flags(parser).add_argument("--max_documents", type=int)
"""

INPUT_HELP = (
    "files, folders, patterns or hub:PATH[@REVISION][:CONFIG[:SPLIT]]; .txt, .jsonl, .json, .parquet, .gz, .zst"
)


def add_reading_flags(parser, several_columns: bool = False):
    """Adds the group `text`, and returns it for flags that one command alone has.

    Args:
      several_columns: `--text_column_name` takes one or more names, and is a list.
    """
    group = parser.add_argument_group("text")
    add = group.add_argument
    if several_columns:
        add(
            "--text_column_name",
            nargs="+",
            default=["text"],
            metavar="NAME",
            help="the columns of rows that hold text, each cell a text (default: text)",
        )
    else:
        add("--text_column_name", default="text", help="where rows hold the text (default: text)")
    add("--text_unit", default="line", help="a document of a .txt file: line (default), paragraph or file")
    add(
        "--bad_lines",
        default="error",
        help="error: stop at a line that cannot be read (default); skip: count and name it",
    )
    return group
