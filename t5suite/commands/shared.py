"""Flags and printing that several sub-commands share.

>>> add_json_flag(parser)
>>> print_json({"accuracy": 90.0})
{"accuracy": 90.0}
"""

import json
import os
import sys

from t5suite.base.errors import ConfigError
from t5suite.base.redaction import printable


def add_task_flags(parser, required: bool = True) -> None:
    parser.add_argument("--benchmark", required=required, help="a benchmark, such as glue (all: t5suite tasks)")
    parser.add_argument("--dataset_name", required=required, help="the task, such as rte")
    parser.add_argument("--task_file", help="YAML or Python file with tasks of your own")


def add_json_flag(parser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON lines on standard output, all else on standard error")


def add_libraries_flag(parser) -> None:
    parser.add_argument(
        "--allow_untested_libraries",
        action="store_true",
        help="use code that was not tested with the installed versions of libraries",
    )


def add_data_dir_flag(parser) -> None:
    parser.add_argument(
        "--data_dir",
        default=os.environ.get("T5SUITE_DATA_DIR"),
        help="DIR/<benchmark>/<task>/<split>.jsonl[.gz]; default: $T5SUITE_DATA_DIR, else the hub",
    )


def check_data_dir_flag(data_dir: str | None) -> None:
    """Refuses a `--data_dir` that is not there; $T5SUITE_DATA_DIR may be unused by a command that reads other rows.

    Raises:
      ConfigError: no such folder.
    """
    from t5suite.data.rows.sources import check_data_dir

    if data_dir != os.environ.get("T5SUITE_DATA_DIR"):
        check_data_dir(data_dir)


def check_at_least(arguments, **minimums: float) -> None:
    """Refuses a flag whose value is below its minimum.

    >>> check_at_least(Namespace(count=0), count=1)
    ConfigError: --count 0: must be at least 1
    """
    for name, minimum in minimums.items():
        number = getattr(arguments, name)
        if number is not None and number < minimum:
            raise ConfigError(f"--{name} {number}: must be at least {minimum}")


def check_dry_run(arguments) -> None:
    """Checks that a command writes into a folder, which `--check` may compare, or shows what it would write.

    >>> check_dry_run(Namespace(dry_run=True, output_dir=None, check=True))
    ConfigError: --check has no effect with --dry_run, which writes nothing to compare; leave one of them out
    """
    if arguments.dry_run and arguments.check:
        raise ConfigError(
            "--check has no effect with --dry_run, which writes nothing to compare; leave one of them out"
        )
    if not arguments.dry_run and arguments.output_dir is None:
        raise ConfigError("give --output_dir, or --dry_run, which shows what would be written")


def print_json(content) -> None:
    """Prints one line; terminal control characters are escaped, of which JSON itself escapes only half."""
    show_text(json.dumps(content, ensure_ascii=False, allow_nan=False))


def show_text(text: str, file=None) -> None:
    """Prints untrusted text, with control characters escaped."""
    print(printable(text), file=file)


def note(message: str) -> None:
    show_text(f"note: {message}", sys.stderr)
