"""`t5suite submit`: the leaderboards' files from test predictions.

t5suite submit --benchmark glue --run_dir runs/glue-all-t5-base --output_dir submission
"""

import sys
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.commands.shared import add_data_dir_flag, add_json_flag, note, print_json


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
    add_data_dir_flag(parser)
    add_json_flag(parser)


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
            note(
                f"{report['file']}: {report['unparsable']} of {report['rows']} predictions of {report['task']} are no "
                f"answer; {STAND_INS.get(report['file'], 'the last label stands for them, for the board needs one')}"
            )
        if arguments.json:
            print_json(report)
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
        note(f"left out, for they have no predictions in {place}: {', '.join(missing)}")
    return found


def _submitted(task, split: str, path: Path, data_dir: str | None) -> list:
    """A predictions file as `submissions.Prediction`s, with the rows' candidates where the task is judged by them."""
    from t5suite.data.rows.jsonl import numbered_lines
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
    from t5suite.data.rows.sources import DataOptions, load_split

    rows = load_split(task, "test", split, DataOptions(data_dir=data_dir)).rows
    candidates = {row.get("idx", i): task.target_text(row) for i, row in enumerate(rows)}
    for prediction in predictions:
        if prediction.candidate is None and prediction.idx not in candidates:
            raise DataError(f"{prediction.place}: no row of {task.benchmark}/{task.name} has idx {prediction.idx!r}")
    return [p if p.candidate is not None else p._replace(candidate=candidates[p.idx]) for p in predictions]


# What a board gets for a prediction that is no answer, where the last label is not it.
STAND_INS = {"STS-B.tsv": "-1.0 stands for them", "ReCoRD.jsonl": "they are empty"}
