"""`t5suite compare`: how two runs differ on the same rows.

t5suite compare runs/glue-rte-t5-small runs/glue-rte-t5-base
"""

from t5suite.commands.shared import add_data_dir_flag, add_json_flag, check_at_least, check_data_dir_flag, print_json


def compare_flags(parser) -> None:
    """Flags of `t5suite compare`."""
    parser.add_argument("a", metavar="A", help="a run's directory")
    parser.add_argument("b", metavar="B", help="the directory of the run to compare it with")
    parser.add_argument("--max_flips", type=int, default=5, help="flipped examples shown each way (default: 5)")
    add_data_dir_flag(parser)
    add_json_flag(parser)


def compare(arguments) -> None:
    """Shows how two runs differ on the same rows: scores with p-values, and the examples that flipped.

    Raises:
      ConfigError: a negative --max_flips.
      DataError: directories without predictions, or of different rows.
    """
    from t5suite.reports.compare import compare_runs, json_lines, print_comparison

    check_at_least(arguments, max_flips=0)
    check_data_dir_flag(arguments.data_dir)
    comparison = compare_runs(arguments.a, arguments.b, arguments.data_dir)
    if arguments.json:
        for line in json_lines(comparison):
            print_json(line)
    else:
        print_comparison(comparison, arguments.max_flips)
