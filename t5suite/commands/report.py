"""`t5suite report`: runs and sweeps in one table, and a page, Markdown and plots of them.

t5suite report runs/mini-sentiment runs/mini-entailment --output report
"""

import glob
import sys
from pathlib import Path

from t5suite.base.errors import DataError, UserError
from t5suite.base.lookup import find
from t5suite.commands.path_checks import check_place
from t5suite.commands.shared import (
    add_data_dir_flag,
    add_json_flag,
    check_at_least,
    check_data_dir_flag,
    note,
    print_json,
)

DEFAULT_OUTPUT = "report"
DEFAULT_FORMATS = "html,md,json"


def report_flags(parser) -> None:
    """Flags of `t5suite report`."""
    add = parser.add_argument
    add("directories", nargs="+", metavar="RUN", help="directories of runs and of sweeps")
    add(
        "--output",
        metavar="DIR",
        help="a new folder, or an earlier report's, which is replaced (default: report; with --json alone: nowhere)",
    )
    add("--format", help="of html, md, json, with commas (default: all; with --json alone: none); none: only tables")
    add("--size", help="published T5 to compare scores with: small, base, large, 3B, 11B")
    add(
        "--max_examples",
        type=int,
        default=1500,
        help="examples on the page (default: 1500; of each run and task at least 10, or N if less; 0: none)",
    )
    add_data_dir_flag(parser)
    add_json_flag(parser)


def report(arguments) -> None:
    """Shows the results of runs in one table, with a benchmark's average where they cover it, and those of sweeps; then
    writes the report: a page, Markdown, the data and every plot.

    Raises:
      ConfigError: an unknown format or size, an --output that holds other files.
      DataError: no directory of a run or a sweep, one that does not exist, or (with no file to write) no run that is
        finished.
    """
    from t5suite.reports.sweeps import is_sweep, read_sweep_record

    formats = _formats_by_flags(arguments)
    check_data_dir_flag(arguments.data_dir)
    directories = _without_other_folders(_expanded(arguments.directories))
    sweeps = [read_sweep_record(directory) for directory in directories if is_sweep(directory)]
    run_directories = [directory for directory in directories if not is_sweep(directory)]
    _print_sweeps(sweeps, arguments.json)
    if run_directories:
        report_runs(run_directories, arguments.json, needs_finished=not formats)
    if formats:
        _write_files(run_directories, sweeps, formats, arguments)


def _expanded(paths: list[str]) -> list[str]:
    """Paths, and in place of a pattern (`'runs/*'` in quotes) what a shell would make of it; each directory once."""
    expanded = []
    for path in paths:
        matches = [] if Path(path).exists() else sorted(glob.glob(path))
        expanded += matches or [path]
    first_by_place: dict[Path, str] = {}
    for path in expanded:
        first_by_place.setdefault(Path(path).resolve(), path)
    return list(first_by_place.values())


def _without_other_folders(directories: list[str]) -> list[str]:
    """The directories of runs and sweeps; of others that exist (`runs/*` has such), a note says that they are skipped.

    Raises:
      DataError: none is a run's or a sweep's that can be read.
    """
    run_directories = []
    problems = []
    for directory in directories:
        problem = _why_skipped(directory)
        if problem is None:
            run_directories.append(directory)
        else:
            problems.append(problem)
    if not run_directories:
        raise DataError("; ".join(problems))
    for problem in problems:
        note(problem)
    return run_directories


def _why_skipped(directory: str) -> str | None:
    """Why a path that exists has no results to show; None for other paths."""
    from t5suite.reports.sweeps import is_sweep, read_sweep_record
    from t5suite.runs.directory import has_finished, read_manifest, read_results

    if not Path(directory).exists():
        return None
    if not _is_run_or_sweep(directory):
        return _why_no_run(directory)
    try:
        if is_sweep(directory):
            read_sweep_record(directory)
        elif has_finished(directory, read_manifest(directory)):
            read_results(directory)
    except UserError as error:
        return str(error)
    return None


def _is_run_or_sweep(directory) -> bool:
    from t5suite.reports.run_facts import is_run
    from t5suite.reports.sweeps import is_sweep

    return is_run(directory) or is_sweep(directory)


def _why_no_run(directory: str) -> str:
    """What a path holds instead of a run: some runs, or none."""
    from t5suite.runs.directory import MANIFEST, RESULTS

    path = Path(directory)
    if any(_is_run_or_sweep(inner) for inner in path.glob("*/")):
        return f"{directory}: no run, but it holds some: {path / '*'}"
    missing_files = [name for name in (MANIFEST, RESULTS) if not (path / name).is_file()]
    return f"{directory}: no finished run ({', '.join(missing_files)} missing)"


def _formats_by_flags(arguments) -> list[str]:
    """The kinds of files to write; none with --json, if neither a folder nor a kind is given.

    Raises:
      ConfigError: an unknown format or size, an --output that holds other files or cannot be written.
    """
    from t5suite.reports.published import SIZES
    from t5suite.reports.report_files import files_of_report, parse_formats

    formats = parse_formats(DEFAULT_FORMATS if arguments.format is None else arguments.format)
    if arguments.json and arguments.output is None and arguments.format is None:
        formats = []
    check_at_least(arguments, max_examples=0)
    if arguments.size is not None:
        find(arguments.size, dict.fromkeys(SIZES), "size", where="--size")
    if formats:
        output = arguments.output or DEFAULT_OUTPUT
        files_of_report(output)
        check_place("--output", output)
    return formats


def _print_sweeps(sweeps: list, as_json: bool) -> None:
    """The table of each sweep, or its trials as JSON lines."""
    from t5suite.reports.sweeps import print_sweep, rows_of_sweep

    for sweep in sweeps:
        if not as_json:
            print_sweep(sweep)
            continue
        for row in rows_of_sweep(sweep):
            print_json(row)


def report_runs(directories, as_json: bool, needs_finished: bool = True) -> None:
    """The table of runs, or JSON lines; unfinished runs are listed in notes."""
    from t5suite.data.rows.jsonl import without_nan
    from t5suite.reports.finished_runs import averages_of_runs, rows_of_runs
    from t5suite.reports.run_facts import is_run
    from t5suite.reports.tables import print_run_table
    from t5suite.runs.directory import has_finished, read_manifest

    unfinished = [d for d in directories if is_run(d) and not has_finished(d, read_manifest(d))]
    finished = [d for d in directories if d not in unfinished]
    if needs_finished and not finished:
        rows = rows_of_runs(directories)
    else:
        rows = rows_of_runs(finished)
    for directory in unfinished:
        note(f"{directory}: not finished, so it is not in the table")
    if not rows:
        return
    if not as_json:
        print_run_table(rows)
        return
    for row in rows:
        print_json(row)
    for entry in averages_of_runs(rows):
        print_json(without_nan(entry))


def _write_files(run_directories: list[str], sweeps: list, formats: list[str], arguments) -> None:
    """Writes the report of the runs and of the sweeps' trials, and says where."""
    from t5suite.reports.plots import report_plots
    from t5suite.reports.report_files import write_report
    from t5suite.reports.results import report_data

    directories = _reported_directories(run_directories, sweeps)
    data = report_data(directories, arguments.data_dir, arguments.size, arguments.max_examples, sweeps)
    _note_withheld_texts(data)
    plots = report_plots(data)
    written_paths = write_report(data, plots, arguments.output or DEFAULT_OUTPUT, formats)
    message = _message_of_files(written_paths, len(plots))
    print(message, file=sys.stderr if arguments.json else sys.stdout, flush=True)
    _note_shown_texts(data)


def _reported_directories(run_directories: list[str], sweeps: list) -> list[str]:
    """The named runs, and the sweeps' trials that are runs; one that is named twice once, under its last name."""
    from t5suite.reports.run_facts import is_run
    from t5suite.reports.sweeps import trial_directories

    trials = [path for sweep in sweeps for path in trial_directories(sweep).values()]
    paths = run_directories + [path for path in trials if is_run(path)]
    return list({Path(path).resolve(): path for path in paths}.values())


def _message_of_files(written_paths: list, num_plots: int) -> str:
    """The line that names the files of a report, and how many plots there are."""
    from t5suite.reports.report_files import PLOTS_FOLDER

    message = "report: " + ", ".join(str(path) for path in written_paths if path.parent.name != PLOTS_FOLDER)
    if num_plots:
        message += f" and {2 * num_plots} plots in {written_paths[-1].parent}"
    return message


def _note_withheld_texts(data: dict) -> None:
    """Says of every run whose texts the report does not show why."""
    for part in data["examples"]:
        if part["note"]:
            note(f"{part['run']}: the report shows the answers without their texts: {part['note']}")


def _note_shown_texts(data: dict) -> None:
    """Says how many examples' texts the report's files show."""
    examples = [example for part in data["examples"] for example in part["examples"]]
    num_texts = sum(bool(example["inputs"] or example["target"]) for example in examples)
    if num_texts:
        note(f"the report shows the texts of {num_texts:,} examples; --max_examples 0 leaves them out")
