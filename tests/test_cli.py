"""The `t5suite` command: its text pairs and scores, its errors, JSON lines, pipes, and no torch for light work."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas
import pyarrow.parquet
import pytest
from absl.testing import parameterized

import fine_tune_t5
from t5suite import load_task
from t5suite.constants import DATASET_VALS
from t5suite.testing import ended_cli, example_row, exits_with, read_rows, run_cli, tiny_run, write_rows

TASKS = [(benchmark, name) for benchmark, tasks in DATASET_VALS.items() for name in tasks]
RTE_ROWS = [
    {"sentence1": "It rains.", "sentence2": "It is wet.", "label": 0, "idx": 0},
    {"sentence1": "Er sagt „nein“\u2028.", "sentence2": "Line\nbreak", "label": 1, "idx": 1},
]


def call(*argv):
    """`(standard output, standard error)` of a sub-command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run_cli(*list(argv))
    return out.getvalue(), err.getvalue()


def json_lines(*argv):
    return [json.loads(line) for line in call(*argv, "--json")[0].split("\n")[:-1]]


def shell(*argv, **kwargs):
    command = [sys.executable, "-m", "t5suite", *argv]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=60, **kwargs)


def rows_file(rows, name="rows.jsonl"):
    path = Path(tempfile.mkdtemp()) / name
    write_rows(path, rows)
    return str(path)


def task_flags(benchmark, name):
    return ["--benchmark", benchmark, "--dataset_name", name]


def score(benchmark, name, rows, predictions, *argv):
    files = ["--rows", rows_file(rows), "--predictions", rows_file(predictions, "predictions.jsonl")]
    (scores,) = json_lines("score", *task_flags(benchmark, name), *files, *argv)
    return scores


class OwnRowsScoreTest(parameterized.TestCase):
    """Rows of a user's own are scored by the task of the model that answered them."""

    FORMS = {
        "labels": ("text;mood", [f"{mood} shoes {i};{mood}" for i in range(8) for mood in ("bad", "good")], {"labels": "bad,good"}),
        "numbers": ("text;mood", [f"shoes {i};{i}.25" for i in range(16)], {"metrics": "pearson,spearman"}),
        "sets": ("text;mood", [f"shoes {i};warm, wide" for i in range(16)], {"metrics": "micro_f1,macro_f1"}),
    }  # fmt: skip

    @parameterized.parameters(*FORMS)
    def test_scores_are_those_of_the_run(self, name):
        head, lines, flags = self.FORMS[name]
        path = Path(tempfile.mkdtemp()) / "rows.csv"
        path.write_text("\n".join([head, *lines]) + "\n")
        columns = {"text_column": "text", "target_column": "mood", "delimiter": ";"}
        light = {"max_steps": 1, "save_strategy": "no"}
        run = tiny_run(data={"train": str(path), "validation": str(path)}, **columns, **flags, **light)
        (of_run,) = json.loads((run.directory / "results.json").read_text())["tasks"].values()
        (answers,) = (run.directory / "predictions").iterdir()
        words = ["--model_name_or_path", run.directory, "--rows", path, "--predictions", answers]
        (scores,) = json_lines("score", *words, "--delimiter", ";")
        self.assertEqual(scores, of_run)
        if name == "sets":
            with exits_with(78, "answered by sets of labels, and has no list of them; name whole answers"):
                run_cli("predict", "--model_name_or_path", run.directory, "--input", path, "--labels")

    def test_scores_of_a_task_file_are_those_of_the_run_whatever_its_benchmark_is_called(self):
        """Of its rows a number is a class id, where flags that made the task would take it for a label of these digits."""
        place = Path(tempfile.mkdtemp())
        entry = {"prefix": "", "text_column_name": "text", "label_column_name": "stars", "labels": ["1", "2", "3"],
                 "metric_names": ["accuracy"], "metric_to_optimize": "accuracy"}  # fmt: skip
        (place / "tasks.yaml").write_text(json.dumps({"own": {"films": entry}}))
        path = write_rows(place / "rows.jsonl", [{"text": f"film {i}", "stars": i % 3} for i in range(9)])
        task = {"task_file": str(place / "tasks.yaml"), "benchmark": "own", "dataset_name": "films"}
        run = tiny_run(**task, train_file=str(path), validation_file=str(path), max_steps=1, save_strategy="no")
        answers = rows_file([entry["labels"][i % 3] for i in range(9)], "predictions.jsonl")
        words = ["--model_name_or_path", run.directory, "--rows", path, "--predictions", answers]
        (scores,) = json_lines("score", *words)
        self.assertEqual(scores, {"accuracy": 100.0, "invalid_rate": 0.0})

    @parameterized.parameters(
        ([], "which task have the rows\\? .*--model_name_or_path RUN"),
        (["--benchmark", "own", "--dataset_name", "films"], "which task have the rows"),
        (["--model_name_or_path", "MODEL", "--benchmark", "glue"], "--benchmark glue: --model_name_or_path names the task"),
        (["--model_name_or_path", "."], "no task.json there"),
        (["--benchmark", "own", "--dataset_name", "films", "--task_file", "MODEL/task.json"], "--model_name_or_path MODEL"),
        ([*task_flags("glue", "rte"), "--delimiter", ";"], "--delimiter ';' has no effect"),
    )  # fmt: skip
    def test_a_task_that_is_not_named_or_named_twice_is_refused(self, words, message):
        rows = rows_file(RTE_ROWS)
        with contextlib.chdir(tempfile.mkdtemp()):
            Path("MODEL").mkdir()
            Path("MODEL/task.json").touch()
            with exits_with(78, message):
                run_cli("score", *words, "--rows", rows, "--predictions", rows)


class UndefinedScoresTest(parameterized.TestCase):
    @parameterized.parameters(
        (
            *("glue", "stsb", ["2.0", "2.0"], "pearson"),
            "all answers, or all targets, count as the same number, or an answer is nan or inf",
        ),
        ("super_glue", "axg", ["entailment"], "gender_parity", "not defined on these rows"),
    )
    def test_a_score_that_is_not_defined_says_why(self, benchmark, name, answers, metric, reason):
        rows = [example_row(load_task(benchmark, name))] * len(answers)
        files = ["--rows", rows_file(rows), "--predictions", rows_file(answers, "predictions.jsonl")]
        _, notes = call("score", *task_flags(benchmark, name), *files)
        self.assertIn(f"note: {metric} is not a number ({reason})\n", notes)


class AbsentLabelsTest(parameterized.TestCase):
    """A label without a row counts as 0 in some metrics: then right answers alone do not score 100."""

    @parameterized.parameters(
        ("abc", "a b a", "accuracy,f1_macro,recall", "'c'", {"f1_macro": 66.7, "recall": 66.7}),
        ("abc", "a", "mean_3class_f1", "'b', 'c'", {"mean_3class_f1": 33.3}),
        ("ab", "a a", "f1,precision_macro", "'b'", {"f1": 0.0, "precision_macro": 50.0}),
        ("ab", "b b", "f1", None, {"f1": 100.0}),
        ("abc", "a b", "accuracy", None, {"accuracy": 100.0}),
        ("abc", "a a", "mcc", None, {"mcc": 0.0}),
        ("abc", "a b c", "f1_macro,mean_3class_f1", None, {"f1_macro": 100.0, "mean_3class_f1": 100.0}),
    )
    def test_they_are_named_with_what_right_answers_score(self, labels, targets, metrics, absent, best_scores):
        place = Path(tempfile.mkdtemp())
        names = metrics.split(",")
        entry = {"prefix": "", "text_column_name": "text", "label_column_name": "label", "labels": list(labels),
                 "metric_names": names, "metric_to_optimize": names[0]}  # fmt: skip
        (place / "tasks.yaml").write_text(json.dumps({"mine": {"films": entry}}))
        rows = [{"text": f"film {number}", "label": label} for number, label in enumerate(targets.split())]
        words = ["--task_file", place / "tasks.yaml", *task_flags("mine", "films"), "--rows", rows_file(rows)]
        answers = rows_file(targets.split(), "predictions.jsonl")
        shown, notes = call("score", *words, "--predictions", answers, "--json")
        self.assertContainsSubset(best_scores, {name: round(points, 1) for name, points in json.loads(shown).items()})
        lines = [line for line in notes.splitlines() if "no row has these labels" in line]
        self.assertLen(lines, int(absent is not None))
        for line in lines:
            named_scores = ", ".join(f"{name} {points}" for name, points in best_scores.items())
            self.assertEndsWith(line, f"count as 0: {absent}; right answers alone score {named_scores}")

    @parameterized.parameters(
        ({"validation_file": ["good"] * 4}, ["validation"]),
        ({"test_file": ["bad"] * 4, "validation_file": ["bad", "good"]}, ["test"]),
        ({"selection_split": "train[10%]", "validation_file": ["bad", "good"]}, ["selection"]),
    )
    def test_a_run_names_them_before_it_trains(self, flags, splits):
        argv = ["--use_cpu", "--dry_run", "--labels", "bad,good", "--metrics", "accuracy,f1_macro", "--do_predict"]
        argv += ["--text_column", "text", "--target_column", "label"]
        labels_of_files = {"train_file": ["bad"] * 39 + ["good"], **flags}
        for name, labels in labels_of_files.items():
            value = labels
            if isinstance(labels, list):
                value = rows_file([{"text": f"{name} {i}", "label": label} for i, label in enumerate(labels)])
            argv += [f"--{name}", value]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as shown:
            fine_tune_t5.main(argv)
        lines = [line for line in shown.getvalue().splitlines() if "no row has these labels" in line]
        self.assertLen(lines, len(splits), shown.getvalue())
        for line, split in zip(lines, splits, strict=True):
            self.assertRegex(line, rf" {split}: .* alone score f1_macro 50.0$")


class StartTest(parameterized.TestCase):
    def test_light_commands_import_no_torch(self):
        rows, predictions = rows_file(RTE_ROWS), rows_file(["entailment", "entailment"])
        data_dir = Path(tempfile.mkdtemp())
        write_rows(data_dir / "rte.test.jsonl", [{"row": 0, "prediction": "entailment", "idx": 0}])
        rte = task_flags("glue", "rte")
        submit = ["submit", "--benchmark", "glue", "--predictions_dir", str(data_dir), "--output_dir", str(data_dir)]
        commands = [
            [], ["tasks"], ["slurm", "render", "fine_tune"], ["preview", *rte, "--rows", rows],
            *([*name.split(), "--help"] for name in ("fine_tune", "summary", "export", "corpus build")),
            ["score", *rte, "--rows", rows, "--predictions", predictions],
            [*submit, "--allow_missing_tasks", "--allow_partial"],
        ]  # fmt: skip
        program = (
            "import contextlib, json, sys\n"
            "from t5suite.testing import run_cli\n"
            "for argv in json.loads(sys.argv[1]):\n"
            "    with contextlib.suppress(SystemExit):\n"
            "        run_cli(*argv)\n"
            "    heavy = {'torch', 'transformers', 'accelerate'} & set(sys.modules)\n"
            "    assert not heavy, (argv, heavy)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, json.dumps(commands)], capture_output=True, text=True, timeout=60
        )
        self.assertEqual(done.returncode, 0, done.stderr)

    @parameterized.parameters(["tasks", "--benchmark", "glue"], ["--help"], ["preview", "--help"])
    @pytest.mark.slow
    def test_a_pipe_that_closes_early_is_no_error(self, *argv):
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "t5suite", *argv]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
        os.close(writer)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class BareTest(parameterized.TestCase):
    @parameterized.parameters(
        ("fine_tune", "the bundled task mini/sentiment, in a minute or two", "--model_name_or_path"),
        ("pre_train", "the bundled text, in a minute or two", "--config_name"),
    )
    @pytest.mark.slow
    def test_a_script_without_flags_says_first_that_it_trains_a_toy_how_long_and_how_to_give_a_model(
        self, name, learns, flag
    ):
        line = first_line(name)
        self.assertStartsWith(line, f"{name}_t5: no flags: the bundled toy model learns {learns}; ")
        self.assertIn(f"{flag} ", line)

    @parameterized.parameters(
        (["mini.yaml"],), (["--dataset_name", "entailment"],), (["--model_name_or_path", "tiny"],), (["--eval_only"],)
    )
    @pytest.mark.slow
    def test_with_a_model_or_data_it_says_what_it_runs(self, words):
        self.assertRegex(first_line("fine_tune", *words), "^fine_tune_t5: .*dataset_name ")

    @parameterized.parameters(
        (["--use_cpu"], ", in a minute or two; "),
        (["--use_cpu=True", "--log-level", "error", "--disable_tqdm", "True"], ", in a minute or two; "),
        (["--local_rank", "0", "--use_cpu"], ", in a minute or two; "),
        (["--max_steps", "5"], "; "),
        (["--use_cpu", "--learning_rate=1e-3"], "; "),
    )
    @pytest.mark.slow
    def test_with_other_flags_it_says_that_it_trains_a_toy(self, words, duration):
        toy = "fine_tune_t5: no model, no data: the bundled toy model learns the bundled task mini/sentiment"
        self.assertStartsWith(first_line("fine_tune", *words), toy + duration)

    @parameterized.parameters(
        (["--use_cpu"], 2500), (["--local-rank=0", "--use_cpu"], 2500), (["--use_cpu", "--warmup_steps", "9"], 750)
    )  # fmt: skip
    @pytest.mark.slow
    def test_flags_that_say_only_where_it_runs_leave_the_recipe_as_it_is(self, words, steps):
        """The recipe has 2,500 steps; by the defaults three passes over 8,000 rows in updates of 32 are 750."""
        with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(fine_tune_t5.main([*words, "--dry_run"])["steps"], steps)
        self.assertRegex(shown.getvalue(), "sentiment train +first 2,000 of 8,000 +inputs")
        self.assertRegex(shown.getvalue(), "sentiment validation +400 +inputs")

    @parameterized.parameters(
        ("sentiment", 49, "49 rows are few: one row is 2.0 points"),
        ("sentiment", 50, None),
        ("similarity", 49, "49 rows are few: one row may change the score by much"),
    )
    def test_it_says_how_coarse_a_score_of_few_rows_is(self, name, rows, expected_line):
        argv = ["--use_cpu", "--max_eval_samples", str(rows), "--max_train_samples", "8", "--dry_run"]
        argv += ["--dataset_name", name]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as shown:
            fine_tune_t5.main(argv)
        warnings = [line for line in shown.getvalue().splitlines() if "are few" in line]
        expected = [] if expected_line is None else [f"{name} validation: {expected_line}"]
        self.assertEqual([line.partition("eval_sets: ")[2] for line in warnings], expected)


def first_line(*argv) -> str:
    """The first line that a command writes, which is stopped then."""
    command = [sys.executable, "-m", "t5suite", *argv]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=tempfile.mkdtemp(), **streams) as process:
        line = process.stdout.readline()
        process.kill()
    return line


class ErrorTest(parameterized.TestCase):
    @parameterized.parameters(
        (["previw"], "unknown sub-command 'previw'; did you mean preview, predict, pre_train?"),
        (["sft", "--train_file", "x"], "unknown sub-command 'sft'; it is t5suite fine_tune"),
        (["chat"], "unknown sub-command 'chat'; t5suite predict --web asks a model in a browser"),
        (["merge", "a", "b"], "unknown sub-command 'merge'; t5suite export writes a model with its adapter merged"),
        (["tasks", "--benchmrk", "glue"], "unknown flag --benchmrk; did you mean --benchmark?"),
        (["preview", "--benchmrk", "glue"], "unknown flag --benchmrk; did you mean --benchmark?"),
        (["serve", "--model_name_or_path", "x", "--text_column", "t"], "unknown flag --text_column; clients name the task's columns"),
        (["preview", "--train_file", "x.csv"], "unknown flag --train_file; t5suite fine_tune --train_file"),
        (["tasks", "glue"], "unexpected 'glue'"),
        (["--json", "tasks"], "t5suite: --json before the command; write t5suite COMMAND --json"),
        (["preview", "--benchmark", "glue"], "required: --dataset_name"),
        (["preview", "--benchmark"], "--benchmark: expected one argument"),
        (["tasks", "--benchmark", "gleu"], "unknown benchmark 'gleu'; did you mean glue?"),
        (["tasks", "--dataset_name", "ssst2"], "unknown task 'ssst2'; did you mean sst2"),
        (["tasks", "--task_file", "nowhere.yaml"], "no file 'nowhere.yaml'"),
        (["submit", "--benchmark", "superglue", "--output_dir", "x"], "unknown choice 'superglue'; did you mean super_glue"),
        (["preview", *task_flags("glue", "rte"), "--limit", "x"], "invalid int value: 'x'"),
        (["preview", *task_flags("glue", "rte"), "--limit", "0"], "--limit 0: must be at least 1"),
        (["preview", *task_flags("glue", "rte"), "--split", "valdation", "--rows", "x"], "--split: unknown split 'valdation'; did you mean validation?"),
        (["preview", *task_flags("glue", "ax"), "--split", "train"], "glue/ax has no train split; it has test"),
        (["sweep", "lint"], "t5suite sweep lint: give the sweep files"),
        (["trim", "--text", "a.txt", "b.txt", "--text", "a.txt"], "--text is given twice: a.txt b.txt and a.txt"),
        (["corpus", "build", "--input", "a.txt", "--input", "a.txt", "b.txt"], "--input is given twice: a.txt and a.txt b.txt"),
        (["verify", ".", "--data_dir", "dtaa"], "--data_dir: no directory 'dtaa'"),
        (["compare", "a", "b", "--data_dir", "dtaa"], "--data_dir: no directory 'dtaa'"),
        (["report", "a", "--format", "none", "--data_dir", "dtaa"], "--data_dir: no directory 'dtaa'"),
        (["sweep", "x.yaml", "--metric", "eval/f1"], "--metric is for grids; a sweep file has its own `metric:`"),
    )  # fmt: skip
    def test_wrong_flags_are_configuration_errors(self, argv, message):
        with exits_with(78) as error:
            call(*argv)
        self.assertIn(message, str(error.exception))

    def test_the_program_shows_one_message_and_exits_78_or_65(self):
        done = shell("previw")
        self.assertEqual(done.returncode, 78)
        self.assertEqual(
            done.stderr, "error: t5suite: unknown sub-command 'previw'; did you mean preview, predict, pre_train?\n"
        )
        done = ended_cli("preview", *task_flags("glue", "rte"), "--rows", "nowhere.jsonl")
        self.assertEqual(done, (65, "error: nowhere.jsonl: no such file\n"))


class TasksTest(parameterized.TestCase):
    def test_every_task_is_listed_with_counts_and_metrics(self):
        lines = json_lines("tasks")
        self.assertEqual([(line["benchmark"], line["dataset_name"]) for line in lines], TASKS)
        by_name = {(line["benchmark"], line["dataset_name"]): line for line in lines}
        self.assertEqual(by_name["glue", "mrpc"]["metrics"], ["f1", "accuracy"])
        self.assertEqual(by_name["glue", "mnli"]["num_examples"]["validation_mismatched"], 9832)
        text, _ = call("tasks")
        self.assertRegex(text, r"  mrpc +f1, accuracy +train 3668, validation 408, test 1725\n")

    @parameterized.parameters(*TASKS)
    @pytest.mark.quick_cases(20)
    def test_every_task_shows_an_example(self, benchmark, name):
        (line,) = json_lines("tasks", *task_flags(benchmark, name))
        example = load_task(benchmark, name).examples(line["example"]["row"])[0]
        self.assertEqual((line["example"]["inputs"], line["example"]["targets"]), example)
        shown, _ = call("tasks", *task_flags(benchmark, name))
        self.assertIn(example.inputs, shown)
        if line["hub_path"]:
            self.assertIn(f" {' '.join(filter(None, [line['hub_path'], line['hub_name']]))}, or DIR/", shown)

    @parameterized.parameters(
        ("squad", "squad", ["frage", "abschnitt"], "antworten"), ("squad", "squad", ["qa.frage", "qa.text"], "gold.text"),
        ("glue", "wnli_simple", ["satz", "folge"], "stimmt"), ("super_glue", "wsc", "text", "stimmt"),
        ("super_glue", "record", ["query", "entities", "passage"], "antworten"),
    )  # fmt: skip
    def test_the_example_of_a_task_with_columns_of_its_own_is_a_row_of_it(self, benchmark, name, texts, label):
        columns = {"text_column_name": texts, "label_column_name": label}
        shipped = load_task(benchmark, name)
        path = Path(tempfile.mkdtemp()) / "tasks.yaml"
        path.write_text(json.dumps({"mine": {"own": {**shipped.entry, **columns}}}))
        flags = [*task_flags("mine", "own"), "--task_file", str(path)]
        (line,) = json_lines("tasks", *flags)
        expected = shipped.examples(example_row(shipped))[0]
        self.assertEqual((line["example"]["inputs"], line["example"]["targets"]), expected)
        (previewed,) = json_lines("preview", *flags, "--rows", rows_file([line["example"]["row"]]))
        self.assertEqual((previewed["inputs"], previewed["targets"]), expected)


class PreviewTest(parameterized.TestCase):
    def test_one_line_per_example(self):
        lines = json_lines(
            "preview", *task_flags("glue", "rte"), "--rows", rows_file(RTE_ROWS), "--split", "validation"
        )
        expected = [
            {"row": i, "inputs": f"rte sentence1: {row['sentence1']} sentence2: {row['sentence2']}", "targets": target}
            for i, (row, target) in enumerate(zip(RTE_ROWS, ["entailment", "not_entailment"]))
        ]
        self.assertEqual(lines, expected)

    def test_a_task_of_ones_own(self):
        path = Path(tempfile.mkdtemp()) / "tasks.yaml"
        path.write_text(
            "mine:\n  topics: {prefix: 'topic: ', text_column_name: text, label_column_name: label,\n"
            "    labels: ['no', 'yes'], metric_names: [accuracy], metric_to_optimize: accuracy}\n"
            "  places: {prefix: 3}\n",
            encoding="utf-8",
        )
        flags = [*task_flags("mine", "topics"), "--task_file", str(path)]
        rows = rows_file([{"text": "x", "label": 1}])
        self.assertEqual(
            json_lines("preview", *flags, "--rows", rows), [{"row": 0, "inputs": "topic: x", "targets": "yes"}]
        )
        self.assertEqual(json_lines("tasks", *flags)[0]["num_examples"], None)
        out, _ = call("tasks", "--task_file", str(path))
        self.assertRegex(out, rf"places +refused: {path}:4: mine/places: text_column_name")
        lines = {line["dataset_name"]: line for line in json_lines("tasks", "--task_file", str(path))}
        self.assertIn("mine/places", lines["places"]["refused"])
        self.assertNotIn("refused", lines["topics"])

    @parameterized.parameters("own", "mine")
    def test_rows_of_a_task_file_have_the_same_targets_from_a_file_as_from_a_folder(self, benchmark):
        """A number is a class id, also where labels are digits and whatever the benchmark is called."""
        place = Path(tempfile.mkdtemp())
        entry = {"prefix": "stars: ", "text_column_name": "text", "label_column_name": "stars", "labels": ["1", "2", "3"],
                 "metric_names": ["accuracy"], "metric_to_optimize": "accuracy"}  # fmt: skip
        (place / "tasks.yaml").write_text(json.dumps({benchmark: {"stars": entry}}))
        path = write_rows(
            place / benchmark / "stars" / "validation.jsonl", [{"text": "a", "stars": stars} for stars in (1, 2)]
        )
        flags = [*task_flags(benchmark, "stars"), "--task_file", str(place / "tasks.yaml")]
        for source in (["--rows", str(path)], ["--data_dir", str(place)]):
            self.assertEqual([line["targets"] for line in json_lines("preview", *flags, *source)], ["2", "3"])
        answers = rows_file(["2", "3"], "predictions.jsonl")
        (scores,) = json_lines("score", *flags, "--rows", str(path), "--predictions", answers)
        self.assertEqual(scores, {"accuracy": 100.0, "invalid_rate": 0.0})

    def test_a_task_whose_rows_are_nowhere_is_answered_with_flags_of_this_command(self):
        path = Path(tempfile.mkdtemp()) / "tasks.yaml"
        path.write_text(json.dumps({"mine": {"films": {**load_task("mini", "sentiment").entry}}}))
        with exits_with(
            78, "^mine/films has no hub_path: give --data_dir DIR with .*validation.jsonl, or --rows FILE$"
        ):
            call("preview", *task_flags("mine", "films"), "--task_file", str(path))

    def test_without_rows_the_first_of_the_source_are_shown(self):
        lines = json_lines("preview", *task_flags("mini", "sentiment"))
        self.assertEqual([line["row"] for line in lines], [0, 1, 2])
        out, err = call("preview", *task_flags("mini", "sentiment"), "--limit", "1", "--split", "train")
        self.assertRegex(out, r"^row 0\n  inputs   sentiment sentence: .*\n  targets  (negative|positive)\n$")
        self.assertIn("bundled mini/sentiment/train", err)

    @parameterized.parameters(
        ("rte", {"sentence1": "a", "label": 0}, "no column 'sentence2'"),
        ("rte", {"sentence1": "a", "sentence2": "b", "label": 7}, "label 7"),
        ("rte", {"sentence1": ["a"], "sentence2": "b", "label": 0}, "not a text"),
        ("stsb", {"sentence1": "a", "sentence2": "b", "label": "x"}, "label 'x'"),
        ("stsb", {"sentence1": "a", "sentence2": "b", "label": [2]}, "label \\[2\\]"),
        ("wnli_simple", {"sentence1": 3, "sentence2": "b", "label": 0}, "not a text"),
        ("rte", {"sentence1": None, "sentence2": "b", "label": 0}, "'sentence1' is null; write \"\" "),
        ("wnli_simple", {"sentence1": None, "sentence2": "b", "label": 0}, "'sentence1' is null; write \"\" "),
    )
    def test_a_bad_row_is_named_by_file_and_line(self, name, row, message):
        path = rows_file([example_row(load_task("glue", name)), row])
        with exits_with(65, f"rows.jsonl:2: .*{message}"):
            call("preview", *task_flags("glue", name), "--rows", path)


class ScoreTest(parameterized.TestCase):
    def test_a_benchmark_s_rows_are_json_or_parquet_and_files_without_types_are_refused(self):
        folder = Path(tempfile.mkdtemp())
        rte = task_flags("glue", "rte")
        predictions = rows_file(["entailment", "entailment"])
        (folder / "rows.json").write_text(json.dumps(RTE_ROWS, indent=2))
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RTE_ROWS), folder / "rows.parquet")
        expected = score("glue", "rte", RTE_ROWS, ["entailment", "entailment"])
        for name in ("rows.json", "rows.parquet"):
            (scores,) = json_lines("score", *rte, "--rows", folder / name, "--predictions", predictions)
            self.assertEqual(scores, expected, name)
        (folder / "rows.csv").write_text("sentence1;sentence2;label\na;b;0\n")
        message = "--rows .*rows.csv: rows of glue/rte are JSON lines, a JSON array of objects or Parquet"
        for flags in ([], ["--delimiter", ";"]):
            with exits_with(78, message):
                call("score", *rte, "--rows", folder / "rows.csv", "--predictions", predictions, *flags)
        with exits_with(78, message):
            call("preview", *rte, "--rows", folder / "rows.csv")

    @parameterized.parameters(
        ("rows.csv", "text\nhello there\nNone\nbye now\n", ["hello there", "None", "bye now"]),
        ("rows.csv", "text|other\nNA|\n", ["NA"]), ("rows.tsv", "text\tother\nNone\t\n", ["None"]),
        ("rows.csv", "text,other\n007,\n1.50,\n", ["007", "1.50"]),
    )  # fmt: skip
    def test_rows_that_are_converted_by_the_message_have_the_texts_of_the_file(self, name, content, texts):
        folder = Path(tempfile.mkdtemp())
        (folder / name).write_text(content)
        exit_code, message = ended_cli("preview", *task_flags("glue", "rte"), "--rows", folder / name)
        self.assertEqual(exit_code, 78)
        with contextlib.chdir(folder):
            eval(f"pandas.{message.partition('with pandas: ')[2].strip()}", {"pandas": pandas})
        rows = read_rows(folder / "rows.jsonl")
        self.assertEqual([row["text"] for row in rows], texts)
        self.assertEqual({row.get("other") for row in rows}, {None})

    @parameterized.parameters(("csv", ","), ("csv", ";"), ("tsv", "\t"))
    def test_rows_that_are_converted_by_the_message_are_scored(self, kind, delimiter):
        folder = Path(tempfile.mkdtemp())
        path = folder / f"rows.{kind}"
        lines = [("sentence1", "sentence2", "label"), ("It rains.", "It's wet.", "0"), ("a", "b", "1")]
        path.write_text("".join(f"{delimiter.join(cells)}\n" for cells in lines))
        files = ["--rows", path, "--predictions", rows_file(["entailment", "not_entailment"])]
        exit_code, message = ended_cli("score", *task_flags("glue", "rte"), *files)
        self.assertEqual(exit_code, 78)
        advice = message.partition("with pandas: ")[2].strip()
        with contextlib.chdir(folder):
            eval(f"pandas.{advice}", {"pandas": pandas})
        files[1] = folder / "rows.jsonl"
        (scores,) = json_lines("score", *task_flags("glue", "rte"), *files)
        self.assertEqual(scores, {"accuracy": 100.0, "invalid_rate": 0.0})

    @parameterized.parameters(("test", ["-1", -1], False), ("test", [-1, 3.5], True), ("validation", [-1, -1.0], True))
    def test_numbers_of_a_test_split_that_are_all_minus_one_are_not_scored(self, split, numbers, are_scored):
        folder = Path(tempfile.mkdtemp())
        entry = {"prefix": "", "text_column_name": "text", "label_column_name": "y.value", "labels": None}
        entry |= {"metric_names": ["neg_mean_absolute_error"], "metric_to_optimize": "neg_mean_absolute_error"}
        (folder / "tasks.yaml").write_text(json.dumps({"mine": {"prices": entry}}))
        rows = write_rows(folder / "rows.jsonl", [{"text": "x", "y": {"value": number}} for number in numbers])
        flags = ["--task_file", folder / "tasks.yaml", *task_flags("mine", "prices"), "--split", split]
        (scores,) = json_lines("score", *flags, "--rows", rows, "--predictions", rows_file(["3", "4"]))
        self.assertEqual(bool(scores), are_scored)

    def test_rows_without_a_label_are_told_with_one_that_has_it(self):
        path = Path(tempfile.mkdtemp()) / "rows.json"
        path.write_text(json.dumps([RTE_ROWS[0], {**RTE_ROWS[1], "label": -1}]))
        files = ["--rows", path, "--predictions", rows_file(["entailment"] * 2)]
        with exits_with(65, "/rows.json entry 1: no label, but /.*/rows.json entry 0 has one; score only"):
            call("score", *task_flags("glue", "rte"), *files)

    @parameterized.parameters(True, False)
    def test_a_prediction_is_a_string_or_an_object(self, as_object):
        texts = ["entailment", "entails"]
        objects = [{"prediction": text, "row": row, "idx": row} for row, text in enumerate(texts)]
        predictions = objects if as_object else texts
        self.assertEqual(score("glue", "rte", RTE_ROWS, predictions), {"accuracy": 50.0, "invalid_rate": 50.0})

    def test_a_prediction_is_not_scored_against_a_row_of_another_idx(self):
        record = {"query": "@placeholder", "passage": "P.", "entities": ["A", "B"], "answers": ["A", "B"]}
        rows_of_record = [{**record, "idx": {"passage": 0, "query": number}} for number in range(2)]
        for name, rows, text in (("rte", RTE_ROWS, "entailment"), ("record", rows_of_record, "A")):
            benchmark = "glue" if name == "rte" else "super_glue"
            num_examples = 1 if name == "rte" else 2
            in_order = [{"prediction": text, "idx": row["idx"]} for row in rows for _ in range(num_examples)]
            self.assertNotEmpty(score(benchmark, name, rows, in_order))
            as_texts = [{**line, "idx": str(line["idx"])} for line in in_order]  # as a cell of CSV is
            self.assertNotEmpty(score(benchmark, name, rows, as_texts))
            with exits_with(
                65, "predictions.jsonl:1: the prediction of idx .* would be scored against .*rows.jsonl:1,"
            ):
                score(benchmark, name, rows, in_order[::-1])
        by_rows = [{"prediction": "A", "row": number, "idx": row["idx"]} for number, row in enumerate(rows_of_record)]
        with exits_with(65, "predictions.jsonl:1: the prediction of idx"):
            score("super_glue", "record", rows_of_record[::-1], by_rows)

    def test_a_row_s_line_of_predict_is_its_answer_to_each_of_its_references(self):
        record = {"query": "@placeholder", "passage": "P.", "entities": ["A", "B"]}
        rows = [
            {**record, "answers": answers, "idx": {"passage": 0, "query": number}}
            for number, answers in enumerate((["A", "B"], ["B"], ["A", "B"]))
        ]
        lines = [{"row": number, "prediction": text} for number, text in enumerate("AAC")]
        expected = score("super_glue", "record", rows, ["A", "A", "A", "C", "C"])
        self.assertEqual(score("super_glue", "record", rows, lines), expected)
        with exits_with(
            65, "/rows.jsonl: 3 rows make 5 examples .* but there are 3 predictions in /.*/predictions.jsonl"
        ):
            score("super_glue", "record", rows, ["A", "A", "C"])

    def test_score_refuses_predictions_with_other_row_numbers(self):
        """Two parts that overlap, joined, of which a line is lost; numbers with gaps are those of a subset."""
        rows = [RTE_ROWS[number % 2] for number in range(4)]
        lines = lambda numbers, text: [{"row": number, "prediction": text} for number in numbers]
        expected = {"accuracy": 50.0, "invalid_rate": 0.0}
        for numbers in ([0, 1, 2, 3], [2, 3, 5, 8]):
            self.assertEqual(score("glue", "rte", rows, lines(numbers, "entailment")), expected)
        message = "jsonl:3: row 1 has too many predictions: this one would be scored against .*rows.jsonl:3;"
        with exits_with(65, message):
            score("glue", "rte", rows, lines([0, 1, 1, 3], "entailment"))
        record = {"query": "@placeholder", "passage": "P.", "entities": ["A", "B"], "answers": ["A", "B"]}
        rows = [{**record, "idx": {"passage": 0, "query": number}} for number in range(2)]
        self.assertEqual(score("super_glue", "record", rows, lines([0, 0, 1, 1], "A"))["exact_match"], 100.0)
        message = "jsonl:4: row 1 has too few predictions: this one, of row 2, would be scored against .*rows.jsonl:2;"
        with exits_with(65, message):
            score("super_glue", "record", rows, lines([0, 0, 1, 2], "A"))

    def test_rows_of_which_some_have_a_label_are_refused_and_without_any_there_is_no_score(self):
        labelled, unlabelled = {**RTE_ROWS[0], "label": 0}, {**RTE_ROWS[0], "label": -1}
        with exits_with(65, r"rows.jsonl:1: no label, but /.*/rows.jsonl:2 has one; score only labelled rows"):
            score("glue", "rte", [unlabelled, labelled], ["entailment"] * 2)
        self.assertEqual(score("glue", "rte", [unlabelled] * 2, ["entailment"] * 2), {})

    @parameterized.parameters(
        ([7], "predictions.jsonl:1: expected one JSON string or object a line"),
        (["entailment", {"predicted": "x"}], "predictions.jsonl:2: .*found no 'prediction'"),
        (["entailment", {"prediction": 1}], "predictions.jsonl:2: .*found prediction 1"),
    )
    def test_a_bad_prediction_is_named_by_file_and_line(self, predictions, message):
        with exits_with(65, message):
            score("glue", "rte", RTE_ROWS, predictions)
