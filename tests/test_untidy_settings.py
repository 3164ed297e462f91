"""Settings that contradict each other or name the wrong thing: refused, with the cause that is true."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from absl.testing import parameterized
from support import folder
from tiny_predictor import model_folder, rows_file

from t5suite import load_task
from t5suite.base.errors import UserError, open_missing_streams, os_error_text
from t5suite.commands.shared import check_output_file, check_output_folder
from t5suite.data.corpora.readers import check_is_file
from t5suite.data.rows.files import named_files
from t5suite.data.rows.formats import FormatOptions, Wishes, format_form, own_data
from t5suite.data.rows.sources import DataOptions, changed_type, load_split
from t5suite.inference.settings import Decoding
from t5suite.launch.command_line import asked_for
from t5suite.models.configs import cannot_load
from t5suite.tasks.entries import load_registry
from t5suite.testing import exits_with, run_cli, write_rows
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS
from t5suite.training.flags.parser import parse_arguments
from t5suite.training.processes.launchers import check_launched_ranks, without_launcher_flags


def own_split(rows, metrics=None, labels=None, role="train"):
    path = folder() / "rows.jsonl"
    write_rows(path, rows)
    options = FormatOptions(train_file=str(path), text_columns=("text",), target_column="label", labels=labels)
    data = own_data("own", format_form("jsonl", options), Wishes(metrics=metrics, labels=labels, evaluates=False))
    return load_split(data.task, role, role, DataOptions(own={"own": data.source}))


class CommandLinesTest(parameterized.TestCase):
    @parameterized.parameters(
        (["-seed", "3"], "-seed: a flag has two dashes: --seed"),
        (["--output_dir", ""], "--output_dir '' is empty"), (["--output_dir="], "--output_dir '' is empty"),
        (["output_dir= "], "--output_dir ' ' is empty"),
        (["--train_file", ""], "--train_file '' is empty .a shell variable"),
        (["--model_name_or_path="], "--model_name_or_path '' is empty"),
        (["--config", "/tmp"], "--config: '/tmp' is a folder"),
        (["--run_name", "caf\udce9"], "b'caf.xe9': not UTF-8; .*locale"),
        (["run.toml"], "--config: 'run.toml' is TOML, which is not read"),
        (["reviews.csv"], "reviews.csv holds rows.*--data_format csv --train_file reviews.csv"),
        (["a/b.jsonl.gz"], "--data_format jsonl --train_file a/b.jsonl.gz"),
        (["--noise_density", "0"], "--noise_density 0: must be above 0"),
    )  # fmt: skip
    def test_words_of_scripts(self, words, message):
        script = "pre_train_t5" if "--noise_density" in words else "fine_tune_t5"
        with exits_with(78, message):
            asked_for(script, words)

    @parameterized.parameters(
        ("seed: [1, 2]\n", r"run.yaml:1: --seed \[1, 2\]: a list, but the flag takes one value"),
        ("seed: 1\noutput_dir: ''\n", "run.yaml:2: --output_dir '' is empty"),
    )
    def test_configuration_files(self, content, message):
        path = folder() / "run.yaml"
        path.write_text(content)
        with exits_with(78, message):
            parse_arguments(FINE_TUNING_ARGUMENTS, [str(path)])

    @parameterized.parameters(
        (["predict", "--model", "x"], "unknown flag --model; did you mean --model_name_or_path\\?"),
        (["predict", "--input", "caf\udce9.jsonl"], "b'caf.xe9.jsonl': not UTF-8"),
        (["--max_steps", "2"], "t5suite: --max_steps before the command; write t5suite COMMAND --max_steps"),
        (["export", "--model_name_or_path", "x", "--output_dir", ""], "--output_dir is empty"),
        (["mirror", "--output_dir=", "--benchmark", "glue"], "--output_dir is empty"),
    )
    def test_sub_commands(self, argv, message):
        with exits_with(78, message):
            run_cli(*argv)

    def test_a_rank_belongs_to_a_launcher(self):
        with mock.patch.dict(os.environ):
            for name in ("LOCAL_RANK", "WORLD_SIZE"):
                os.environ.pop(name, None)
            for words in (["--local_rank", "0"], ["--local_rank=-1"]):
                self.assertEqual(without_launcher_flags([*words, "--seed", "7"]), ["--seed", "7"])
            with exits_with(78, "--local_rank 3: no launcher started this process"):
                without_launcher_flags(["--local_rank", "3"])
            os.environ["WORLD_SIZE"] = "4"
            self.assertEqual(without_launcher_flags(["--local_rank=3"]), [])

    def test_a_cache_of_tokens_is_a_folder(self):
        path = folder() / "cache"
        path.touch()
        with exits_with(78, "--token_cache .*: a file; give a folder"):
            parse_arguments(FINE_TUNING_ARGUMENTS, ["--token_cache", str(path)])

    @parameterized.parameters(("raise SystemExit(0)", "SystemExit: 0"), ("import sys; sys.exit('bye')", "bye"))
    def test_a_task_file_that_ends_the_program_is_refused(self, code, message):
        path = folder() / "tasks.py"
        path.write_text(code)
        with exits_with(78, f"tasks.py ends the program .*{message}"):
            load_registry(str(path))

    def test_lengths_that_no_answer_has(self):
        with exits_with(78, "--min_new_tokens 9 is more than --max_new_tokens 2"):
            Decoding(max_new_tokens=2, min_new_tokens=9).check()
        Decoding(max_new_tokens=9, min_new_tokens=9).check()
        argv = [
            "predict",
            "--model_name_or_path",
            model_folder(),
            "--input",
            rows_file(count=1),
            "--min_new_tokens",
            "9",
        ]
        with exits_with(78, "--min_new_tokens 9 .* 6, which is what the task needs"):
            run_cli(*argv)


class RowsTest(parameterized.TestCase):
    def test_a_column_that_changes_its_kind_is_named_with_both_places(self):
        rows = [{"text": "a", "label": "x"}, {"text": None, "label": "y"}, {"text": 3.5, "label": "x"}]
        places = [f"a.jsonl:{i}" for i in (1, 2, 3)]
        message = "a.jsonl:3: column 'text' holds 3.5 (number), but in a.jsonl:1 'a' (text)"
        self.assertStartsWith(changed_type(rows, places), message)
        self.assertIsNone(changed_type([{"a": 1}, {"a": 2.5}, {"a": None}], places))
        with exits_with(65, "rows.jsonl:2: column 'text' holds 3.5"):
            own_split([{"text": "a", "label": "x"}, {"text": 3.5, "label": "y"}])

    def test_blank_inputs_are_counted_and_refused_where_there_is_nothing_else(self):
        rows = [{"text": text, "label": "x"} for text in ("good", " \t", "", "fine")]
        with self.assertLogs("t5suite.data.rows.sources", "WARNING") as logs:
            self.assertEqual(own_split(rows).empty_texts, 2)
        self.assertIn("2 rows with an empty text (first: ", logs.output[0])
        with exits_with(65, "rows.jsonl:1: no row has a text in 'text': .*white space alone"):
            own_split([{"text": " ", "label": "x"}, {"text": "\n", "label": "y"}])

    def test_labels_that_differ_in_case_say_so(self):
        with exits_with(65, "label 'Negative'.*differs from 'negative' in case or spaces only"):
            own_split([{"text": "a", "label": "Negative"}], labels=("negative", "positive"))

    def test_a_pipe_is_not_a_missing_file(self):
        path = folder() / "rows.csv"
        os.mkfifo(path)
        with exits_with(78, "--train_file .*a pipe or a device, which is read only once"):
            format_form("csv", FormatOptions(train_file=str(path)))

    def test_a_model_that_is_nowhere_is_the_cause_not_the_rows(self):
        path = Path(folder()) / "rows.csv"
        path.write_text("a,b\n1,2\n")
        argv = ["predict", "--model_name_or_path", "nobody/nothing", "--input", str(path), "--use_cpu"]
        with mock.patch.dict(os.environ, {"HF_HUB_OFFLINE": "1"}), self.assertRaisesRegex(UserError, "nobody/nothing"):
            run_cli(*argv)


def launched(**variables: str):
    return {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", **variables}


class EnvironmentTest(parameterized.TestCase):
    """What the shell, a launcher or a closed terminal leaves in the process."""

    @parameterized.parameters(
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' in the environment: a launcher sets a whole number"),
        (launched(MASTER_PORT="http"), "MASTER_PORT='http' in the environment"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set in the environment, but no RANK: no launcher started this process"),
        (launched(RANK="5"), "RANK=5 with WORLD_SIZE=2 in the environment: ranks are 0 to 1"),
    )
    def test_a_rank_that_nobody_waits_for_is_refused_at_once(self, environment, message):
        with exits_with(78, message):
            check_launched_ranks(environment)

    @parameterized.parameters(
        {}, {"WORLD_SIZE": "1"}, {"RANK": "0"}, launched(), {"WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
        {"WORLD_SIZE": ""}, launched(LOCAL_RANK="-1"),
    )  # fmt: skip
    def test_what_launchers_set_is_accepted(self, **environment):
        check_launched_ranks(environment)

    def test_closed_streams_are_an_empty_input_and_discarded_outputs(self):
        with mock.patch.multiple(sys, stdin=None, stdout=None, stderr=None):
            open_missing_streams()
            print("discarded")
            sys.stderr.write("discarded")
            self.assertEqual(sys.stdin.buffer.read(), b"")
            for stream in (sys.stdin, sys.stdout, sys.stderr):
                stream.close()

    def test_a_command_runs_with_closed_streams(self):
        command = f"{sys.executable} -m t5suite tasks --benchmark mini <&- >&-"
        ended = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_a_deleted_current_directory_is_the_cause(self):
        error = FileNotFoundError(errno.ENOENT, "No such file or directory")
        with mock.patch.object(os, "getcwd", side_effect=error):
            self.assertEqual(os_error_text(error), "the current directory has been deleted; change to one that exists")
        self.assertEqual(os_error_text(error), "No such file or directory")

    def test_a_data_directory_is_named_by_where_it_was_set(self):
        task = load_task("glue", "rte")
        for environment, name in (({"T5SUITE_DATA_DIR": "/no/such"}, "T5SUITE_DATA_DIR"), ({}, "--data_dir")):
            others = {key: value for key, value in os.environ.items() if key != "T5SUITE_DATA_DIR"}
            with (
                mock.patch.dict(os.environ, {**others, **environment}, clear=True),
                exits_with(78, f"^{name}: no directory"),
            ):
                load_split(task, "train", "train", DataOptions(data_dir="/no/such"))


class FoldersAndFilesTest(parameterized.TestCase):
    def test_a_corpus_is_built_in_a_folder_outside_of_its_text(self):
        text = folder()
        (text / "a.txt").write_text("The soup was good.\n")
        for place, message in (
            (text / "a.txt", "a.txt: a file; name a folder"),
            (text / "corpus", "would be read with it"),
        ):
            with exits_with(78, message):
                check_output_folder("--output_dir", str(place), str(text))
        check_output_folder("--output_dir", str(folder() / "corpus"), str(text), "hub:allenai/c4:en")

    def test_a_device_takes_no_answers(self):
        with exits_with(78, "--output /dev/null: a pipe or a device"):
            check_output_file("--output", "/dev/null")

    @parameterized.parameters(
        ("https://example.org/a.csv", "an address, which is not read; download the file"),
        ("S3://bucket/a.csv", "an address"), ("loop.csv", "a symbolic link whose file does not exist"),
        ("nothing.csv", "no such file"),
    )  # fmt: skip
    def test_a_file_that_is_not_there(self, name, message):
        path = folder() / name
        if name == "loop.csv":
            path.symlink_to(path)
        with exits_with(78, f"--train_file .*: {message}"):
            named_files(name if "//" in name else str(path), "--train_file")

    def test_an_unreadable_file_is_not_a_place_to_write_to(self):
        path = folder() / "a.jsonl"
        path.write_text("{}\n")
        with mock.patch.object(os, "access", return_value=False), exits_with(65, "a.jsonl: no permission to read it"):
            check_is_file(path)

    def test_a_model_folder_without_one_says_so(self):
        path = folder()
        error = OSError("Couldn't instantiate the backend tokenizer from one of:")
        self.assertRegex(str(cannot_load("a tokenizer", str(path), "--tokenizer_name", error)), ": an empty folder")
        (path / "config.json").write_text("{}")
        self.assertRegex(str(cannot_load("a tokenizer", str(path), "--tokenizer_name", error)), "no tokenizer in this")
        self.assertRegex(str(cannot_load("a model", str(path), "--model_name_or_path", error)), "backend tokenizer")
        text = str(path / "config.json")
        self.assertRegex(
            str(cannot_load("a tokenizer", text, "--tokenizer_name", error)), "a file that is no tokenizer"
        )
        spaced = cannot_load("a model", "google/t5 v1.1 small", "--model_name_or_path", error)
        self.assertRegex(str(spaced), "no folder .*and a name of the hub has no white space")

    def test_a_sweeps_own_program_is_looked_for_before_a_trial_starts(self):
        place = folder()
        (place / "s.yaml").write_text("program: train.py\nmethod: grid\nparameters:\n  seed: {values: [1]}\n")
        with exits_with(78, "s.yaml: program: no file 'train.py'"):
            run_cli("sweep", str(place / "s.yaml"), "--sweep_dir", str(place / "sweep"))
        self.assertFalse((place / "sweep").exists())


class ValuesTest(parameterized.TestCase):
    def test_a_table_is_no_target_and_its_fields_are_named(self):
        for label in ({"word": "good", "score": 0.5}, [{"word": "good"}]):
            with exits_with(65, "column 'label' holds .*, not a text"):
                own_split([{"text": "a", "label": label}])
        with exits_with(65, "a field of it is label.word or label.score"):
            own_split([{"text": "a", "label": {"word": "good", "score": 0.5}}])

    def test_predictions_in_another_order_are_not_scored(self):
        place = folder()
        write_rows(place / "rows.jsonl", [{"sentence": "a", "label": 1}, {"sentence": "b", "label": 0}])
        answers = [{"row": 0, "prediction": "positive"}, {"row": 1, "prediction": "negative"}]
        argv = ["score", "--benchmark", "mini", "--dataset_name", "sentiment", "--rows", str(place / "rows.jsonl")]
        write_rows(place / "answers.jsonl", answers)
        run_cli(*argv, "--predictions", str(place / "answers.jsonl"))
        write_rows(place / "answers.jsonl", answers[::-1])
        with exits_with(65, "answers.jsonl:2: row 0 after row 1; predictions stand in the rows' order"):
            run_cli(*argv, "--predictions", str(place / "answers.jsonl"))

    def test_a_table_of_very_many_columns_names_some(self):
        rows = [{"text": "a", "label": "b", **{f"c{i}": "0" for i in range(5000)}}]
        with self.assertLogs("t5suite.data.rows.own_rows", "INFO") as logs:
            own_split(rows)
        message = next(line for line in logs.output if "not read" in line)
        self.assertIn("and 4,970 more", message)
        self.assertLess(len(message), 500)
