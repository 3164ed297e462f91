"""The `t5suite` command: thin sub-commands over the rooms.

    t5suite tasks --benchmark glue
    t5suite preview --benchmark glue --dataset_name rte --rows rows.jsonl --json

Commands that print data take `--json`: JSON lines on standard output, everything else on standard error. What a
sub-command needs is imported when it runs, so that `--help` and `tasks` answer at once. A new sub-command is one entry
of COMMANDS at the end of this file.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from t5suite import __version__
from t5suite.errors import ConfigError, DataError, discard_output, run_command
from t5suite.lookup import closest, find, suggestion

ROLES = ("train", "validation", "test")


class Command(NamedTuple):
    """A sub-command: one line of help, an example, the flags it takes, and what it does with them."""

    help: str
    example: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def run() -> None:
    """The console script: `main` on the command line, user errors as one message, the exit code of the error."""
    for stream in (sys.stdout, sys.stderr):
        # Texts of any language come out whatever the locale; half a surrogate pair as \udXXX, which JSON can read.
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    code = run_command(main)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    sys.exit(code)


def main(argv=None) -> None:
    """Runs one sub-command.

    >>> main(["tasks", "--benchmark", "mini"])

    Raises:
      ConfigError, DataError: what the user gave is wrong.
    """
    try:
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
        if arguments is not None:
            COMMANDS[arguments.command].run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def parse_arguments(argv) -> argparse.Namespace | None:
    """The flags of a sub-command; without any argument the help is printed and there is None.

    Raises:
      ConfigError: an unknown sub-command, flag or choice (with the closest ones), a flag without its value.
    """
    parser = _parser()
    if not argv:
        parser.print_help()
        return None
    argv = [_with_underscores(token) for token in argv]
    if argv[0] in COMMANDS:
        # Before argparse looks, which would first ask for the required flag that was mistyped.
        _check_flags(argv[0], argv[1:], parser.flags_of[argv[0]])
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        where = f"t5suite {arguments.command}"
        raise ConfigError(f"{where}: unexpected {unknown[0]!r}; flags come after the command, values after their flag")
    return arguments


class CommandParser(argparse.ArgumentParser):
    """`ArgumentParser` whose errors are `ConfigError`s with the closest choices."""

    def __init__(self, **kwargs):
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def error(self, message):
        message = message.removeprefix("argument ")
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message)
        if choice:
            names = [name.strip("'") for name in choice[2].split(", ")]
            what = message.partition(":")[0]
            place = "unknown sub-command" if what == "COMMAND" else f"{what}: unknown choice"
            message = f"{place} {choice[1]!r}; {suggestion(choice[1], names)}"
        raise ConfigError(f"{self.prog}: {message}")

    def print_help(self, file=None):
        super().print_help(file)
        sys.stdout.flush()  # here, where a closed pipe is still caught


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="t5suite",
        description="Fine-tune, pre-train and compare text-to-text models.",
        epilog="`t5suite COMMAND --help` shows a command's flags and an example.",
    )
    parser.add_argument("--version", action="version", version=f"t5suite {__version__}")
    parser.flags_of = {}
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name, help=command.help, description=command.help, epilog=f"example:\n  {command.example}"
        )
        command.add_flags(sub)
        parser.flags_of[name] = [flag for action in sub._actions for flag in action.option_strings if flag[:2] == "--"]
    return parser


def _with_underscores(token: str) -> str:
    """`--data-dir=x` -> `--data_dir=x`: both spellings are understood."""
    if not token.startswith("--"):
        return token
    flag, equals, value = token[2:].partition("=")
    return f"--{flag.replace('-', '_')}{equals}{value}"


def _check_flags(command: str, tokens: list[str], flags: list[str]) -> None:
    for token in tokens:
        flag = token.partition("=")[0]
        if flag.startswith("--") and flag != "--" and flag not in flags:
            near = closest(flag, flags)
            hint = f"did you mean {', '.join(near)}?" if near else f"it takes {', '.join(flags)}"
            raise ConfigError(f"t5suite {command}: unknown flag {flag}; {hint}")


# Flags that several sub-commands share.


def _add_task_flags(parser, required: bool = True) -> None:
    parser.add_argument("--benchmark", required=required, help="glue, super_glue, mini, or one of your --task_file")
    parser.add_argument("--dataset_name", required=required, help="the task, such as rte")
    parser.add_argument("--task_file", help="YAML or Python file with tasks of your own")


def _add_json_flag(parser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON lines on standard output, all else on standard error")


def _add_data_dir_flag(parser) -> None:
    parser.add_argument(
        "--data_dir",
        default=os.environ.get("T5SUITE_DATA_DIR"),
        help="DIR/<benchmark>/<task>/<split>.jsonl[.gz]; default: $T5SUITE_DATA_DIR, else the hub",
    )


def _print_json(value) -> None:
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _note(message: str) -> None:
    print(f"note: {message}", file=sys.stderr)


def _role_of(task, split: str) -> str:
    """'train', 'validation' or 'test' of a role or of a source's split name.

    >>> _role_of(load_task("glue", "mnli"), "validation_matched")
    'validation'
    """
    roles = {name: role for role in ROLES for name in task.splits(role).values()}
    return find(split, {**roles, **{role: role for role in ROLES}}, "split", where="--split")


def _read_rows(task, path: str, role: str) -> tuple[list[int], list[dict], list[list]]:
    """`(line numbers, rows, examples of each row)` of a file of rows; a bad one is named by file and line."""
    from t5suite.data.jsonl import numbered_lines

    numbers, rows, examples = [], [], []
    for number, row in numbered_lines(path):
        try:
            examples.append(task.examples(row, role))
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            what = f"{type(error).__name__}: {error}"
            raise DataError(f"{path}:{number}: not a row of {task.benchmark}/{task.name} ({what})") from None
        numbers.append(number)
        rows.append(row)
    if not rows:
        raise DataError(f"{path}: the file is empty")
    return numbers, rows, examples


# tasks


def tasks_flags(parser) -> None:
    """Flags of `t5suite tasks`."""
    _add_task_flags(parser, required=False)
    _add_json_flag(parser)


def show_tasks(arguments) -> None:
    """Lists the registry, or describes one task with an example."""
    from t5suite.tasks.registry import load_task
    from t5suite.tasks.task_files import load_registry

    registry = load_registry(arguments.task_file)
    if arguments.benchmark:
        registry = {arguments.benchmark: find(arguments.benchmark, registry, "benchmark", where="--benchmark")}
    names = {task: task for tasks in registry.values() for task in tasks}
    if arguments.dataset_name:
        find(arguments.dataset_name, names, "task", where="--dataset_name")
    for benchmark, entries in registry.items():
        wanted = [name for name in entries if arguments.dataset_name in (None, name)]
        tasks = [load_task(benchmark, name, arguments.task_file) for name in wanted]
        if arguments.json:
            for task in tasks:
                example = {"example": _example_facts(task)} if arguments.dataset_name else {}
                _print_json({**_task_facts(task), **example})
        elif arguments.dataset_name:
            for task in tasks:
                _print_task(task)
        else:
            _print_task_list(benchmark, tasks)


def _task_facts(task) -> dict:
    """What `tasks --json` says of a task."""
    from t5suite.tasks.entries import metric_functions

    return {
        "benchmark": task.benchmark,
        "dataset_name": task.name,
        "splits": {role: list(task.splits(role).values()) for role in ROLES if task.splits(role)},
        "num_examples": task.entry.get("num_examples"),
        "metrics": list(metric_functions(task.entry)),
        "metric_to_optimize": task.entry["metric_to_optimize"],
        "prefix": task.entry["prefix"],
        "text_column_name": task.entry["text_column_name"],
        "label_column_name": task.entry["label_column_name"],
        "labels": task.label_words,
        "hub_path": task.entry.get("hub_path"),
        "hub_name": task.entry.get("hub_name"),
    }


def _example_facts(task) -> dict:
    """A made-up row and the texts that it becomes."""
    row = example_row(task)
    example = task.examples(row)[0]
    return {"row": row, "inputs": example.inputs, "targets": example.targets}


def _split_counts(facts: dict) -> str:
    """`train 2490, validation 277, test 3000`; only names where the counts are not known."""
    counts = facts["num_examples"] or {}
    names = [name for of_role in facts["splits"].values() for name in of_role]
    return ", ".join(f"{name} {counts[name]}" if name in counts else name for name in names)


def _print_task_list(benchmark: str, tasks: list) -> None:
    print(benchmark)
    for task in tasks:
        facts = _task_facts(task)
        print(f"  {task.name:<12}  {', '.join(facts['metrics']) or '-':<28}  {_split_counts(facts)}")


def _print_task(task) -> None:
    facts, example = _task_facts(task), _example_facts(task)
    columns = facts["text_column_name"]
    selected = facts["metric_to_optimize"]
    hub = " ".join(filter(None, [facts["hub_path"], facts["hub_name"]]))
    lines = {
        "rows": f"{hub + ', or ' if hub else ''}DIR/{task.benchmark}/{task.rows_of}/<split>.jsonl with --data_dir DIR",
        "splits": _split_counts(facts),
        "prefix": json.dumps(facts["prefix"]),
        "columns": ", ".join([columns] if isinstance(columns, str) else columns),
        "label": facts["label_column_name"],
        "labels": ", ".join(facts["labels"]) if facts["labels"] else f"({task.value_kind})",
        "metrics": f"{', '.join(facts['metrics']) or 'none'}" + (f" (selected by {selected})" if selected else ""),
        "row": json.dumps(example["row"], ensure_ascii=False),
        "inputs": example["inputs"],
        "targets": example["targets"],
    }
    print(f"{task.benchmark}/{task.name}")
    for name, value in lines.items():
        print(f"  {name:<8}  {value}")


def example_row(task) -> dict:
    """A made-up row of a task, its texts named after their columns.

    >>> example_row(load_task("glue", "qnli"))
    {'question': '<question>', 'sentence': '<sentence>', 'label': 0}
    """
    formatter = task.entry.get("formatter")
    if formatter in EXAMPLE_ROWS:
        return EXAMPLE_ROWS[formatter]
    label = {"class": 0, "number": 3.8, "text": f"<{task.entry['label_column_name']}>"}[task.value_kind]
    return {**{column: f"<{column}>" for column in task.text_columns}, task.entry["label_column_name"]: label}


# preview


def preview_flags(parser) -> None:
    """Flags of `t5suite preview`."""
    _add_task_flags(parser)
    parser.add_argument("--rows", help="JSONL file of rows; default: the first rows of the task's own split")
    parser.add_argument("--split", help="train, validation, test or a split of the source (default: validation)")
    parser.add_argument("--limit", type=int, help="show this many rows (default: 3, or all of --rows)")
    _add_data_dir_flag(parser)
    _add_json_flag(parser)


def preview(arguments) -> None:
    """Prints what the model would read and write for each row."""
    from t5suite.tasks.registry import load_task

    if arguments.limit is not None and arguments.limit < 1:
        raise ConfigError(f"--limit {arguments.limit}: must be at least 1")
    task = load_task(arguments.benchmark, arguments.dataset_name, arguments.task_file)
    if arguments.rows:
        _, _, examples = _read_rows(task, arguments.rows, _role_of(task, arguments.split or "validation"))
        limit = arguments.limit or len(examples)
    else:
        limit = arguments.limit or 3
        examples = _source_examples(task, arguments.split, arguments.data_dir, limit)
    for i, of_row in enumerate(examples[:limit]):
        for example in of_row:
            if arguments.json:
                _print_json({"row": i, "inputs": example.inputs, "targets": example.targets})
            else:
                print(f"row {i}\n  inputs   {example.inputs}\n  targets  {example.targets}")
    if not any(examples[:limit]):
        _note("no examples come of these rows")


def _source_examples(task, split: str | None, data_dir: str | None, limit: int) -> list[list]:
    """The examples of a split's first rows, from --data_dir, the bundled data or the hub."""
    from t5suite.data.sources import DataOptions, load_split

    available = [role for role in ("validation", "test", "train") if task.splits(role)]
    role = _role_of(task, split or available[0])
    names = list(task.splits(role).values())
    if not names:
        raise ConfigError(f"--split: {task.benchmark}/{task.name} has no {role} split; it has {', '.join(available)}")
    name = split if split in names else names[0]
    loaded = load_split(task, role, name, DataOptions(data_dir=data_dir))
    _note(f"rows of {loaded.origin}")
    return [task.examples(row, role) for row in loaded.rows.select(range(min(limit, len(loaded.rows))))]


# score


def score_flags(parser) -> None:
    """Flags of `t5suite score`."""
    _add_task_flags(parser)
    parser.add_argument("--rows", required=True, help="JSONL file of labelled rows")
    parser.add_argument(
        "--predictions", required=True, help='JSONL file: a string or {"prediction": ...} per example, in order'
    )
    parser.add_argument("--split", default="validation", help="the split that the rows are of (default: validation)")
    _add_json_flag(parser)


def score(arguments) -> None:
    """Prints the metrics of predictions, in points."""
    from t5suite.data.jsonl import without_nan
    from t5suite.tasks.registry import load_task

    task = load_task(arguments.benchmark, arguments.dataset_name, arguments.task_file)
    role = _role_of(task, arguments.split)
    numbers, rows, _ = _read_rows(task, arguments.rows, role)
    _check_labels(task, arguments.rows, numbers, rows)
    scores = task.score(rows, _read_predictions(arguments.predictions), role)
    for name, value in without_nan(scores).items():
        if value is None:
            _note(f"{name} is not a number (a correlation of constants, or a prediction that is nan)")
    if not scores:
        why = "the task has no metrics" if not task.entry["metric_names"] else "the rows have no labels"
        _note(f"nothing to score: {why}")
    if arguments.json:
        _print_json(without_nan(scores))
    else:
        for name, value in scores.items():
            print(f"{name:<22} {value:.4f}")


def _check_labels(task, path: str, numbers: list[int], rows: list[dict]) -> None:
    """All rows labelled or none, with what the metrics read besides; else an error with file and line."""
    from t5suite.tasks.postprocessors import cell_at

    labelled = [task.is_labelled(row) for row in rows]
    if any(labelled) and not all(labelled):
        raise DataError(
            f"{path}:{numbers[labelled.index(False)]}: no label, but line {numbers[labelled.index(True)]} has one; "
            "score labelled rows alone"
        )
    column, group_by = task.entry["label_column_name"], task.entry.get("group_by")
    for number, row in zip(numbers, rows, strict=True) if all(labelled) else ():
        if task.entry.get("postprocess") == "wsc_verdict" and row[column] not in (0, 1):
            raise DataError(f"{path}:{number}: label {row[column]!r} in column {column!r} is none of 0, 1")
        if not group_by:
            continue
        try:
            cell_at(row, group_by)
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from None


def _read_predictions(path: str) -> list[str]:
    from t5suite.data.jsonl import numbered_lines

    texts = []
    for number, line in numbered_lines(path, (str, dict)):
        text = line.get("prediction") if isinstance(line, dict) else line
        if not isinstance(text, str):
            found = "no 'prediction'" if "prediction" not in line else f"prediction {text!r}"
            raise DataError(f'{path}:{number}: expected "text" or {{"prediction": "text"}}, found {found}')
        texts.append(text)
    return texts


# submit


def submit_flags(parser) -> None:
    """Flags of `t5suite submit`."""
    parser.add_argument("--benchmark", required=True, choices=["glue", "super_glue"])
    parser.add_argument(
        "--run_dir", nargs="+", default=[], help="run directories with predictions/<task>.<split>.jsonl"
    )
    parser.add_argument("--predictions_dir", nargs="+", default=[], help="directories with <task>.<split>.jsonl")
    parser.add_argument("--output_dir", required=True, help="where the files and their zip go")
    parser.add_argument("--allow_missing_tasks", action="store_true", help="leave out tasks without predictions")
    parser.add_argument("--allow_partial", action="store_true", help="write files that lack some of the test rows")
    _add_data_dir_flag(parser)
    _add_json_flag(parser)


def submit(arguments) -> None:
    """Writes the leaderboard's files of a benchmark, and a zip of them."""
    from t5suite.tasks.registry import load_task
    from t5suite.tasks.submissions import BOARDS, board_file, check_count, write_submission

    folders = [Path(run_dir) / "predictions" for run_dir in arguments.run_dir] + [
        Path(folder) for folder in arguments.predictions_dir
    ]
    found = _prediction_files(BOARDS[arguments.benchmark], folders, arguments.allow_missing_tasks)
    contents, reports = {}, []
    for board, (name, path) in found.items():
        task = load_task(arguments.benchmark, name)
        made = board_file(board, task, _submitted(task, board.split, path, arguments.data_dir))
        check_count(board, task, made.rows, arguments.allow_partial)
        contents[board.file] = made.content
        reports.append({"file": board.file, "task": name, "rows": made.rows, "unparsable": made.unparsable})
    archive = write_submission(arguments.output_dir, arguments.benchmark, contents)
    for report in reports:
        if report["unparsable"]:
            _note(
                f"{report['file']}: {report['unparsable']} of {report['rows']} predictions of {report['task']} are no "
                f"answer; {STAND_INS.get(report['file'], 'the last label stands for them, for the board needs one')}"
            )
        if arguments.json:
            _print_json(report)
        else:
            print(f"{report['file']:<14} {report['rows']:>7} rows of {report['task']}")
    print(archive, file=sys.stderr if arguments.json else sys.stdout)


def _prediction_files(boards, folders: list[Path], allow_missing: bool) -> dict:
    """`{board: (task's name, file of predictions)}`.

    Raises:
      ConfigError: no folder given, or one that is not there.
      DataError: no predictions for a board's file, or more than one file of them.
    """
    if not folders:
        raise ConfigError("give --run_dir DIR, or --predictions_dir DIR with <task>.<split>.jsonl files")
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"no directory {str(folder)!r}; a run with --do_predict writes one")
    found, missing = {}, []
    for board in boards:
        stems = [(name, f"{name}.{board.split}.jsonl") for name in board.tasks]
        files = [(name, folder / stem) for folder in folders for name, stem in stems if (folder / stem).is_file()]
        if len(files) > 1:
            named = " and ".join(str(path) for _, path in files)
            raise DataError(f"{board.file}: {named} both have predictions; keep one")
        if files:
            found[board] = files[0]
        else:
            missing.append(f"{board.file} ({' or '.join(stem for _, stem in stems)})")
    place = ", ".join(map(str, folders))
    if missing and not (found and allow_missing):
        hint = "; --allow_missing_tasks leaves them out" if found else ""
        raise DataError(f"no test predictions in {place} for {', '.join(missing)}{hint}")
    if missing:
        _note(f"left out, for they have no predictions in {place}: {', '.join(missing)}")
    return found


def _submitted(task, split: str, path: Path, data_dir: str | None) -> list:
    """A predictions file as `submissions.Prediction`s, with the rows' candidates where the task is judged by them."""
    from t5suite.data.jsonl import numbered_lines
    from t5suite.tasks.submissions import Prediction

    predictions = []
    for number, line in numbered_lines(path):
        place = f"{path}:{number}"
        text, idx, candidate = line.get("prediction"), line.get("idx", line.get("row")), line.get("candidate")
        if not isinstance(text, str):
            raise DataError(f"{place}: 'prediction' must be a text, not {text!r}")
        if idx is None:
            raise DataError(f"{place}: no 'idx' (nor 'row'), which says what the prediction is of")
        predictions.append(Prediction(place, idx, text, candidate))
    if task.entry.get("postprocess") != "wsc_verdict" or all(p.candidate is not None for p in predictions):
        return predictions
    return _with_candidates(task, split, predictions, data_dir)


def _with_candidates(task, split: str, predictions: list, data_dir: str | None) -> list:
    """WSC's predictions with the candidate of the row that has the same `idx`."""
    from t5suite.data.sources import DataOptions, load_split

    rows = load_split(task, "test", split, DataOptions(data_dir=data_dir)).rows
    candidates = {row.get("idx", i): task.target_text(row) for i, row in enumerate(rows)}
    for prediction in predictions:
        if prediction.candidate is None and prediction.idx not in candidates:
            raise DataError(f"{prediction.place}: no row of {task.benchmark}/{task.name} has idx {prediction.idx!r}")
    return [p if p.candidate is not None else p._replace(candidate=candidates[p.idx]) for p in predictions]


# mirror


def mirror_flags(parser) -> None:
    """Flags of `t5suite mirror`."""
    parser.add_argument("--benchmark", required=True, help="glue, super_glue, or one of your --task_file")
    parser.add_argument("--dataset_name", default="all", help="a task, several with commas, or all (default)")
    parser.add_argument("--task_file", help="YAML or Python file with tasks of your own")
    parser.add_argument("--output_dir", required=True, help="DIR: files are DIR/<benchmark>/<task>/<split>.jsonl")
    parser.add_argument("--data_revision", help="branch, tag or commit of the hub's dataset (default: the newest)")
    parser.add_argument("--gzip", action="store_true", help="write .jsonl.gz")
    parser.add_argument("--force", action="store_true", help="write files again that are there")
    _add_json_flag(parser)


def run_mirror(arguments) -> None:
    """Downloads a benchmark for machines without a network."""
    from t5suite.data.mirror import mirror

    tasks = _tasks_to_mirror(arguments.benchmark, arguments.dataset_name, arguments.task_file)
    for copy in mirror(tasks, arguments.output_dir, arguments.data_revision, arguments.gzip, arguments.force):
        if arguments.json:
            facts = {"benchmark": copy.task.benchmark, "dataset_name": copy.task.name, "split": copy.split}
            facts |= {"path": str(copy.path), "status": copy.status, "rows": copy.rows, "official": copy.official}
            _print_json(facts)
        else:
            said = f"{copy.rows} rows" if copy.status == "written" else "is there already (--force writes it again)"
            print(f"{copy.path}: {said}", flush=True)
        if copy.differs:
            _note(f"{copy.path} has {copy.rows} rows, but the official number is {copy.official}")


def _tasks_to_mirror(benchmark: str, dataset_name: str, task_file: str | None) -> list:
    """The tasks whose rows are wanted, each once: `wnli_simple` reads `wnli`'s rows."""
    from t5suite.tasks.registry import load_task, resolve_names
    from t5suite.tasks.task_files import load_registry

    registry = load_registry(task_file)
    entries = find(benchmark, registry, "benchmark", where="--benchmark")
    if dataset_name == "all":
        names = [name for name, entry in entries.items() if entry.get("hub_path")] or list(entries)
    else:
        names, _, _ = resolve_names(benchmark, dataset_name, registry, {})
    owners = [entries[name].get("rows_of") or name for name in names]
    wanted = dict.fromkeys(owner if owner in entries else name for owner, name in zip(owners, names, strict=True))
    return [load_task(benchmark, name, task_file) for name in wanted]


# report


def report_flags(parser) -> None:
    """Flags of `t5suite report`."""
    parser.add_argument("directories", nargs="+", metavar="RUN", help="directories of finished runs")
    _add_json_flag(parser)


def report(arguments) -> None:
    """Shows the results of finished runs in one table, with a benchmark's average where they cover it."""
    from t5suite.tracking.run_tables import averages_of_runs, print_run_table, read_runs, rows_of_runs

    runs = read_runs(arguments.directories)
    if not arguments.json:
        print_run_table(runs)
        return
    for row in rows_of_runs(runs):
        _print_json(row)
    for benchmark, value in averages_of_runs(runs).items():
        _print_json({"benchmark": benchmark, "average": value})


# Rows for `t5suite tasks --dataset_name`, by formatter, where texts named after their columns would not do.
EXAMPLE_ROWS = {
    "record": {
        "query": "@placeholder won the cup.",
        "entities": ["Anna", "Ben"],
        "passage": "Anna beat Ben.\n@highlight\nIt rained",
        "answers": ["Anna"],
    },
    "wsc": {
        "text": "Mark told Pete that he won .",
        "span1_text": "Mark",
        "span2_index": 4,
        "span2_text": "he",
        "label": 1,
    },
    "wnli_simple": {"sentence1": "The cup fell, so it broke.", "sentence2": "The cup broke.", "label": 1},
    "dpr": {"sentence": "Bees sting as they fly.", "pronoun": "they", "candidates": ["Bees", "Wasps"], "label": 0},
}

# What a board gets for a prediction that is no answer, where the last label is not it.
STAND_INS = {"STS-B.tsv": "-1.0 stands for them", "ReCoRD.jsonl": "they are empty"}

COMMANDS = {
    "tasks": Command(
        "list the tasks: splits with their official counts, and metrics",
        "t5suite tasks --benchmark super_glue --dataset_name copa",
        tasks_flags,
        show_tasks,
    ),
    "preview": Command(
        "show the text pairs that rows become",
        "t5suite preview --benchmark glue --dataset_name mnli --rows rows.jsonl --split validation --json",
        preview_flags,
        preview,
    ),
    "score": Command(
        "score predictions, in points from 0 to 100",
        "t5suite score --benchmark super_glue --dataset_name multirc --rows rows.jsonl --predictions predictions.jsonl",
        score_flags,
        score,
    ),
    "submit": Command(
        "write the leaderboard files of a benchmark from test predictions",
        "t5suite submit --benchmark glue --run_dir runs/glue-all-t5-base --output_dir submission",
        submit_flags,
        submit,
    ),
    "report": Command(
        "show the results of finished runs in one table",
        "t5suite report runs/mini-sentiment runs/mini-entailment runs/mini-similarity",
        report_flags,
        report,
    ),
    "mirror": Command(
        "copy a benchmark from the hub for machines without a network",
        "t5suite mirror --benchmark glue --dataset_name all --output_dir data",
        mirror_flags,
        run_mirror,
    ),
}
