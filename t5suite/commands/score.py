"""`t5suite score`: the metrics of predictions, in points from 0 to 100.

t5suite score --benchmark super_glue --dataset_name boolq --rows rows.jsonl --predictions predictions.jsonl
t5suite score --model_name_or_path runs/reviews-t5-small --rows reviews.csv --predictions answers.jsonl
"""

import itertools
import shlex
from typing import Any, NamedTuple

from t5suite.base.errors import ConfigError, DataError
from t5suite.commands.shared import add_json_flag, add_task_flags, note, print_json
from t5suite.commands.task_rows import TaskRow, read_task_rows, role_of
from t5suite.constants import OWN_BENCHMARK


def score_flags(parser) -> None:
    """Flags of `t5suite score`."""
    add_task_flags(parser, required=False)
    add = parser.add_argument
    add("--model_name_or_path", help="a run or saved model whose task the rows have, in place of --benchmark")
    add("--rows", required=True, help="labelled rows: JSON lines or Parquet; for a run on your own rows also CSV, TSV")
    add("--delimiter", help="between cells of CSV and TSV: ';', tab, ...; default: what fits the file (TSV: tab)")
    add("--predictions", required=True, help='JSONL file: a string or {"prediction": ...} per example, in order')
    add("--split", default="validation", help="the split of the rows (default: validation)")
    add_json_flag(parser)


def score(arguments) -> None:
    """Prints the metrics of predictions, in points."""
    from t5suite.data.rows.jsonl import without_nan
    from t5suite.tasks.entry_metrics import undefined_reason

    task, by_data_format = _task_by_flags(arguments)
    role = role_of(task, arguments.split)
    task_rows = read_task_rows(task, arguments.rows, role, by_data_format, _delimiter(arguments))
    _check_labels(task, task_rows)
    _note_trained_rows(arguments)
    _note_own_metrics(arguments, task)
    _note_labels(arguments, task, task_rows)
    predictions = _texts_of_examples(_read_predictions(arguments.predictions), task_rows)
    _check_count(arguments, task, task_rows, predictions)
    scores = task.score([task_row.row for task_row in task_rows], predictions, role)
    for metric, points in without_nan(scores).items():
        if points is None:
            note(f"{metric} is not a number ({undefined_reason(metric)})")
    if not scores:
        cause = "the rows have no labels" if task.entry["metric_names"] else "the task has no metrics"
        note(f"nothing to score: {cause}")
    if arguments.json:
        print_json(without_nan(scores))
        return
    for metric, points in scores.items():
        print(f"{metric:<22} {points:.4f}")


def _note_trained_rows(arguments) -> None:
    """Says so if the file with the rows is one that the model was trained on."""
    from t5suite.base.files import file_sha256
    from t5suite.runs.trained_splits import rows_in_words, trained_split_with, trained_splits_of_model

    model = arguments.model_name_or_path
    if model is None:
        return
    split = {"fingerprint": f"sha256:{file_sha256(arguments.rows)}"}
    trained_split = trained_split_with(trained_splits_of_model(model), split)
    if trained_split is not None:
        note(f"{model} was trained on {rows_in_words(trained_split)}: these are not scores of unseen rows")


def _note_own_metrics(arguments, task) -> None:
    """Names the metrics of the user's own code by which a run was scored, too: this command does not run them."""
    from t5suite.training.own_metrics import metrics_flag, own_metrics_of_model, way_in_python

    model = arguments.model_name_or_path
    metrics = own_metrics_of_model(model, [task.name])
    if not metrics:
        return
    names = " and ".join(metric.name for metric in metrics)
    flag = metrics_flag(metrics)
    way = f": {_evaluate_command(arguments, task)} {flag} does" if flag else ""
    note(
        f"{model} was also scored by {names}, your own code, which this command does not run{way}"
        f"{way_in_python(metrics)}"
    )


def _evaluate_command(arguments, task) -> str:
    """The command that scores a run's model on these rows, which are read as they are here."""
    from t5suite.data.rows.file_rows import format_by_name
    from t5suite.runs.trained_splits import manifest_of_model

    model = arguments.model_name_or_path
    words = ["t5suite", "evaluate", "--model_name_or_path", model]
    settings = manifest_of_model(model)["settings"]
    for name in ("model_class", "trust_remote_code"):
        if settings.get(name):
            words += [f"--{name}", str(settings[name])]
    card = _card_of_model(model)
    if len(card.tasks) > 1:
        words += ["--dataset_name", task.name]
    if not card.is_shipped:
        words += ["--data_format", format_by_name(arguments.rows)]
    if arguments.delimiter is not None:
        words += ["--delimiter", arguments.delimiter]
    return shlex.join([*words, "--validation_file", arguments.rows])


def _note_labels(arguments, task, task_rows: list[TaskRow]) -> None:
    """Names labels that no row has and a metric counts as 0, and labels of sets that the model was not trained on."""
    from t5suite.tasks.scored_labels import absent_labels_in_words, unlearned_labels_in_words

    if not task.is_labelled(task_rows[0].row):
        return
    rows = [task_row.row for task_row in task_rows]
    messages = [absent_labels_in_words(task, rows)]
    if arguments.model_name_or_path is not None:
        learned_labels = _card_of_model(arguments.model_name_or_path).labels_of_sets(task)
        if learned_labels:
            places = [task_row.place for task_row in task_rows]
            messages.append(unlearned_labels_in_words(task, rows, learned_labels, places.__getitem__))
    for message in filter(None, messages):
        note(message)


def _task_by_flags(arguments):
    """`(task, by_data_format)`: the task of the benchmark or of the model, and whether a data format reads its rows.

    Raises:
      ConfigError: no such task, none or two ways to name one.
    """
    from t5suite.tasks.registry import load_task

    model = arguments.model_name_or_path
    if model is not None:
        for name in ("benchmark", "task_file"):
            if getattr(arguments, name) is not None:
                raise ConfigError(
                    f"--{name} {getattr(arguments, name)}: --model_name_or_path names the task; leave it out"
                )
        card = _card_of_model(model)
        return card.task(arguments.dataset_name), card.made_by_flags
    is_own = arguments.benchmark == OWN_BENCHMARK and arguments.task_file is None
    if is_own or arguments.benchmark is None or arguments.dataset_name is None:
        raise ConfigError(
            "which task have the rows? Give --benchmark and --dataset_name (all: t5suite tasks); for rows of your own "
            "--model_name_or_path RUN, whose task they have, or --benchmark, --dataset_name and a --task_file"
        )
    return load_task(arguments.benchmark, arguments.dataset_name, arguments.task_file), False


def _card_of_model(model: str):
    """The card of a run or a saved model.

    Raises:
      ConfigError: there is none, or it names functions of a task file.
    """
    from t5suite.tasks.task_card import TASK_CARD, UndefinedFunctionError, read_task_card

    try:
        card = read_task_card(model)
    except UndefinedFunctionError as error:
        raise ConfigError(f"{error.problem}; give {error.task_flags} in place of --model_name_or_path") from None
    if card is None or not card.tasks:
        raise ConfigError(f"--model_name_or_path {model}: no {TASK_CARD} there: give a run, or a model that it saved")
    return card


def _delimiter(arguments) -> str | None:
    """The delimiter that the flag names; None without it.

    Raises:
      ConfigError: it is none, or the rows are not read as CSV or TSV.
    """
    from t5suite.data.rows.file_rows import TYPELESS, format_by_name
    from t5suite.data.rows.separated import delimiter_by_flag

    if arguments.delimiter is None:
        return None
    if format_by_name(arguments.rows) not in TYPELESS:
        raise ConfigError(
            f"--delimiter {arguments.delimiter!r} has no effect: {arguments.rows} is not read as CSV or TSV"
        )
    return delimiter_by_flag(arguments.delimiter)


class PredictedText(NamedTuple):
    """A predicted text, its place (`file:line`), and the row's number and `idx`, where its line has them."""

    place: str
    text: str
    row: int | None
    idx: Any = None


def _texts_of_examples(predictions: list[PredictedText], task_rows: list[TaskRow]) -> list[str]:
    """A text for each example: where each row has one line, as `t5suite predict` writes, its examples share it.

    >>> _texts_of_examples([PredictedText("answers.jsonl:1", "Ann", 0)], [task_row_with_two_answers])
    ['Ann', 'Ann']
    """
    if [prediction.row for prediction in predictions] != list(range(len(task_rows))):
        _check_row_numbers(predictions, task_rows)
        return [prediction.text for prediction in predictions]
    texts = []
    for prediction, task_row in zip(predictions, task_rows, strict=True):
        _check_same_idx(prediction, task_row)
        texts += [prediction.text] * len(task_row.examples)
    return texts


def _check_same_idx(prediction: PredictedText, task_row: TaskRow) -> None:
    """Checks that a prediction is paired with the row that it answers, where both have an `idx`.

    Raises:
      DataError: they differ.
    """
    idx_of_row = task_row.row.get("idx")
    if prediction.idx is None or idx_of_row is None or prediction.idx == idx_of_row:
        return
    if str(prediction.idx) == str(idx_of_row):  # a cell of CSV is a text
        return
    raise DataError(
        f"{prediction.place}: the prediction of idx {prediction.idx!r} would be scored against {task_row.place}, whose "
        f"idx is {idx_of_row!r}; there must be one per example, in the rows' order"
    )


def _check_row_numbers(predictions: list[PredictedText], task_rows: list[TaskRow]) -> None:
    """Checks that predictions of one number are paired with the examples of one row; rows may be numbered with gaps.

    Raises:
      DataError: a row has one prediction too many, or lacks one.
    """
    row_of_example = [task_row for task_row in task_rows for _ in task_row.examples]
    if len(row_of_example) != len(predictions):  # which `_check_count` refuses
        return
    pairs = list(zip(predictions, row_of_example, strict=True))
    for prediction, task_row in pairs:
        _check_same_idx(prediction, task_row)
    for (previous, previous_row), (prediction, task_row) in itertools.pairwise(pairs):
        if None in (previous.row, prediction.row):
            continue
        is_same_number = prediction.row == previous.row
        is_same_row = task_row is previous_row
        if is_same_number == is_same_row:
            continue
        if is_same_number:
            problem = f"row {prediction.row} has too many predictions: this one"
        else:
            problem = f"row {previous.row} has too few predictions: this one, of row {prediction.row},"
        raise DataError(
            f"{prediction.place}: {problem} would be scored against {task_row.place}; there must be one per example, "
            "in the rows' order"
        )


def _check_count(arguments, task, task_rows: list[TaskRow], predictions: list[str]) -> None:
    """Checks that there is a prediction for each example; the message names both files."""
    num_examples = sum(len(task_row.examples) for task_row in task_rows)
    if len(predictions) != num_examples:
        raise DataError(
            f"{arguments.rows}: {len(task_rows)} rows make {num_examples} examples of {task.benchmark}/{task.name}, "
            f"but there are {len(predictions)} predictions in {arguments.predictions}; there must be one per example, "
            "in the rows' order"
        )


def _read_predictions(path: str) -> list[PredictedText]:
    """The predictions of a file, in its order.

    Raises:
      DataError: a line is neither a text nor has one as its `prediction`, or the rows' numbers are not in order.
    """
    from t5suite.data.rows.jsonl import numbered_lines

    predictions = []
    previous_row = -1
    for line_number, line in numbered_lines(path, (str, dict)):
        place = f"{path}:{line_number}"
        previous_row = _check_row_order(line, previous_row, place)
        text = line.get("prediction") if isinstance(line, dict) else line
        if not isinstance(text, str):
            problem = f"prediction {text!r}" if "prediction" in line else "no 'prediction'"
            raise DataError(f'{place}: expected "text" or {{"prediction": "text"}}, found {problem}')
        idx = line.get("idx") if isinstance(line, dict) else None
        predictions.append(PredictedText(place, text, _row_number(line), idx))
    return predictions


def _check_row_order(line: str | dict, previous_row: int, place: str) -> int:
    """The number of the row that a prediction answers, where it has one, else the previous one.

    Raises:
      DataError: an earlier row's; predictions are paired with rows by their order alone.
    """
    row = _row_number(line)
    if row is None:
        return previous_row
    if row < previous_row:
        raise DataError(f"{place}: row {row} after row {previous_row}; predictions stand in the rows' order: sort them")
    return row


def _row_number(line: str | dict) -> int | None:
    row = line.get("row") if isinstance(line, dict) else None
    return row if isinstance(row, int) else None


def _check_labels(task, task_rows: list[TaskRow]) -> None:
    """Checks that all rows are labelled or none, with the columns that metrics read; errors have file and line."""
    labelled_places = []
    unlabelled_places = []
    for task_row in task_rows:
        places = labelled_places if task.is_labelled(task_row.row) else unlabelled_places
        places.append(task_row.place)
    if not labelled_places:
        return
    if unlabelled_places:
        raise DataError(f"{unlabelled_places[0]}: no label, but {labelled_places[0]} has one; score only labelled rows")
    for task_row in task_rows:
        _check_metric_columns(task, task_row.row, task_row.place)


def _check_metric_columns(task, row: dict, place: str) -> None:
    """Checks the cells that WSC's verdict and grouped metrics read."""
    from t5suite.tasks.postprocessors import cell_at

    column = task.entry["label_column_name"]
    if task.entry.get("postprocess") == "wsc_verdict" and row[column] not in (0, 1):
        raise DataError(f"{place}: label {row[column]!r} in column {column!r} is none of 0, 1")
    if task.entry.get("group_by"):
        try:
            cell_at(row, task.entry["group_by"])
        except DataError as error:
            raise DataError(f"{place}: {error}") from None
