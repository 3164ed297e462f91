"""`t5suite submit`: the leaderboard's files of GLUE or SuperGLUE, from predictions on the test rows.

t5suite submit --benchmark glue --run_dir runs/glue-all-t5-base --output_dir submission
"""

import sys
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.commands.shared import add_data_dir_flag, add_json_flag, note, print_json

# What a board gets for an invalid prediction, if not the last label.
STAND_INS = {"STS-B.tsv": "-1.0 replaces them", "ReCoRD.jsonl": "they are empty"}


def submit_flags(parser) -> None:
    """Flags of `t5suite submit`."""
    add = parser.add_argument
    add("--benchmark", required=True, choices=["glue", "super_glue"], help="whose leaderboard the files are for")
    add("--run_dir", nargs="+", default=[], help="run directories with predictions/<task>.<split>.jsonl")
    add("--predictions_dir", nargs="+", default=[], help="directories with <task>.<split>.jsonl")
    add("--output_dir", required=True, help="where the files and their zip go")
    add("--allow_missing_tasks", action="store_true", help="skip tasks without predictions")
    add("--allow_partial", action="store_true", help="write files that lack some of the test rows")
    add_data_dir_flag(parser)
    add_json_flag(parser)


def submit(arguments) -> None:
    """Writes the leaderboard's files of a benchmark, and a zip of them."""
    from t5suite.tasks.registry import load_task
    from t5suite.tasks.submissions import BOARDS, board_file, check_count, write_submission

    folders = [Path(run_dir) / "predictions" for run_dir in arguments.run_dir]
    folders += [Path(folder) for folder in arguments.predictions_dir]
    prediction_files = _prediction_files(BOARDS[arguments.benchmark], folders, arguments.allow_missing_tasks)
    contents = {}
    reports = []
    for board, (task_name, path) in prediction_files.items():
        task = load_task(arguments.benchmark, task_name)
        file = board_file(board, task, _read_submitted(task, board.split, path, arguments.data_dir))
        check_count(board, task, file.rows, arguments.allow_partial)
        contents[board.file] = file.content
        reports.append({"file": board.file, "task": task_name, "rows": file.rows, "unparsable": file.unparsable})
    archive = write_submission(arguments.output_dir, arguments.benchmark, contents)
    for report in reports:
        _print_board(report, arguments.json)
    print(archive, file=sys.stderr if arguments.json else sys.stdout)


def _print_board(report: dict, as_json: bool) -> None:
    """What one file of the leaderboard holds."""
    if report["unparsable"]:
        stand_in = STAND_INS.get(report["file"], "the last label replaces them, as the board needs one")
        note(
            f"{report['file']}: {report['unparsable']} of {report['rows']} predictions of {report['task']} are not "
            f"valid; {stand_in}"
        )
    if as_json:
        print_json(report)
    else:
        print(f"{report['file']:<14} {report['rows']:>7} rows of {report['task']}")


def _prediction_files(boards, folders: list[Path], allow_missing: bool) -> dict:
    """`{board: (task's name, file of predictions)}`.

    Raises:
      ConfigError: no folder given, or one that does not exist.
      DataError: no predictions for a board's file, or more than one file of them.
    """
    if not folders:
        raise ConfigError("give --run_dir DIR, or --predictions_dir DIR with <task>.<split>.jsonl files")
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"no directory {str(folder)!r}; a run with --do_predict writes one")
    prediction_files = {}
    missing = []
    for board in boards:
        board_files = _files_of_board(board, folders)
        if board_files:
            prediction_files[board] = board_files[0]
        else:
            file_names = " or ".join(f"{task_name}.{board.split}.jsonl" for task_name in board.tasks)
            missing.append(f"{board.file} ({file_names})")
    if missing:
        searched = ", ".join(map(str, folders))
        if not prediction_files:
            raise DataError(f"no test predictions in {searched} for {', '.join(missing)}")
        if not allow_missing:
            raise DataError(
                f"no test predictions in {searched} for {', '.join(missing)}; --allow_missing_tasks skips them"
            )
        note(f"skipped, as they have no predictions in {searched}: {', '.join(missing)}")
    return prediction_files


def _files_of_board(board, folders: list[Path]) -> list[tuple[str, Path]]:
    """`(task's name, file)` of a board's predictions: one, or none.

    Raises:
      DataError: several files have predictions for it.
    """
    files = []
    for folder in folders:
        for task_name in board.tasks:
            path = folder / f"{task_name}.{board.split}.jsonl"
            if path.is_file():
                files.append((task_name, path))
    if len(files) > 1:
        paths = " and ".join(str(path) for _, path in files)
        raise DataError(f"{board.file}: {paths} both have predictions; keep one")
    return files


def _read_submitted(task, split: str, path: Path, data_dir: str | None) -> list:
    """A file's `submissions.Prediction`s; WSC's without a candidate get that of the row with the same `idx`."""
    from t5suite.data.rows.jsonl import numbered_lines
    from t5suite.tasks.submissions import Prediction

    predictions = []
    for line_number, line in numbered_lines(path):
        place = f"{path}:{line_number}"
        text = line.get("prediction")
        idx = line.get("idx", line.get("row"))
        if not isinstance(text, str):
            raise DataError(f"{place}: 'prediction' must be a text, not {text!r}")
        if idx is None:
            raise DataError(f"{place}: no 'idx' or 'row' that says which row was predicted")
        predictions.append(Prediction(place, idx, text, line.get("candidate")))
    lacks_candidates = any(prediction.candidate is None for prediction in predictions)
    if task.entry.get("postprocess") == "wsc_verdict" and lacks_candidates:
        return _with_candidates(predictions, task, split, data_dir)
    return predictions


def _with_candidates(predictions: list, task, split: str, data_dir: str | None) -> list:
    """The predictions, with the test rows' candidates where a prediction has none.

    Raises:
      DataError: a prediction's row is not among the test rows.
    """
    from t5suite.data.rows.sources import DataOptions, load_split

    rows = load_split(task, "test", split, DataOptions(data_dir=data_dir)).rows
    candidates = {row.get("idx", index): task.target_text(row) for index, row in enumerate(rows)}
    completed = []
    for prediction in predictions:
        if prediction.candidate is None:
            if prediction.idx not in candidates:
                raise DataError(
                    f"{prediction.place}: no row of {task.benchmark}/{task.name} has idx {prediction.idx!r}"
                )
            prediction = prediction._replace(candidate=candidates[prediction.idx])
        completed.append(prediction)
    return completed
