"""Settings that contradict each other or name the wrong thing: refused, with the cause that is true."""

import os
from pathlib import Path
from unittest import mock

from absl.testing import parameterized
from support import folder
from tiny_predictor import model_folder, rows_file

from t5suite import cli
from t5suite.base.errors import ConfigError, DataError, UserError
from t5suite.data.rows.formats import FormatOptions, Wishes, format_form, own_data
from t5suite.data.rows.jsonl import write_jsonl
from t5suite.data.rows.sources import DataOptions, changed_type, load_split
from t5suite.inference.settings import Decoding
from t5suite.launch.command_line import asked_for
from t5suite.tasks.entries import load_registry
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS
from t5suite.training.flags.parser import parse_arguments
from t5suite.training.processes.launchers import without_launcher_flags


def own_split(rows, metrics=None, labels=None, role="train"):
    path = folder() / "rows.jsonl"
    write_jsonl(path, rows)
    options = FormatOptions(train_file=str(path), text_columns=("text",), target_column="label", labels=labels)
    data = own_data("own", format_form("jsonl", options), Wishes(metrics=metrics, labels=labels, evaluates=False))
    return load_split(data.task, role, role, DataOptions(own={"own": data.source}))


class CommandLinesTest(parameterized.TestCase):
    @parameterized.parameters(
        (["-seed", "3"], "-seed: a flag has two dashes: --seed"),
        (["--output_dir", ""], "--output_dir '' is empty"), (["--output_dir="], "--output_dir '' is empty"),
        (["output_dir= "], "--output_dir ' ' is empty"),
        (["reviews.csv"], "reviews.csv holds rows.*--data_format csv --train_file reviews.csv"),
        (["a/b.jsonl.gz"], "--data_format jsonl --train_file a/b.jsonl.gz"),
        (["--noise_density", "0"], "--noise_density 0: must be above 0"),
    )  # fmt: skip
    def test_words_of_scripts(self, words, message):
        script = "pre_train_t5" if "--noise_density" in words else "fine_tune_t5"
        with self.assertRaisesRegex(ConfigError, message):
            asked_for(script, words)

    @parameterized.parameters(
        ("seed: [1, 2]\n", r"run.yaml:1: --seed \[1, 2\]: a list, but the flag takes one value"),
        ("seed: 1\noutput_dir: ''\n", "run.yaml:2: --output_dir '' is empty"),
    )
    def test_configuration_files(self, content, message):
        path = folder() / "run.yaml"
        path.write_text(content)
        with self.assertRaisesRegex(ConfigError, message):
            parse_arguments(FINE_TUNING_ARGUMENTS, [str(path)])

    @parameterized.parameters(
        (["predict", "--model", "x"], "unknown flag --model; did you mean --model_name_or_path\\?"),
        (["export", "--model_name_or_path", "x", "--output_dir", ""], "--output_dir is empty"),
        (["mirror", "--output_dir=", "--benchmark", "glue"], "--output_dir is empty"),
    )
    def test_sub_commands(self, argv, message):
        with self.assertRaisesRegex(ConfigError, message):
            cli.main(argv)

    def test_a_rank_belongs_to_a_launcher(self):
        with mock.patch.dict(os.environ):
            for name in ("LOCAL_RANK", "WORLD_SIZE"):
                os.environ.pop(name, None)
            for words in (["--local_rank", "0"], ["--local_rank=-1"]):
                self.assertEqual(without_launcher_flags([*words, "--seed", "7"]), ["--seed", "7"])
            with self.assertRaisesRegex(ConfigError, "--local_rank 3: no launcher started this process"):
                without_launcher_flags(["--local_rank", "3"])
            os.environ["WORLD_SIZE"] = "4"
            self.assertEqual(without_launcher_flags(["--local_rank=3"]), [])

    def test_a_cache_of_tokens_is_a_folder(self):
        path = folder() / "cache"
        path.touch()
        with self.assertRaisesRegex(ConfigError, "--token_cache .*: a file; give a folder"):
            parse_arguments(FINE_TUNING_ARGUMENTS, ["--token_cache", str(path)])

    @parameterized.parameters(("raise SystemExit(0)", "SystemExit: 0"), ("import sys; sys.exit('bye')", "bye"))
    def test_a_task_file_that_ends_the_program_is_refused(self, code, message):
        path = folder() / "tasks.py"
        path.write_text(code)
        with self.assertRaisesRegex(ConfigError, f"tasks.py ends the program .*{message}"):
            load_registry(str(path))

    def test_lengths_that_no_answer_has(self):
        with self.assertRaisesRegex(ConfigError, "--min_new_tokens 9 is more than --max_new_tokens 2"):
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
        with self.assertRaisesRegex(ConfigError, "--min_new_tokens 9 .* 6, which is what the task needs"):
            cli.main(argv)


class RowsTest(parameterized.TestCase):
    def test_a_column_that_changes_its_kind_is_named_with_both_places(self):
        rows = [{"text": "a", "label": "x"}, {"text": None, "label": "y"}, {"text": 3.5, "label": "x"}]
        places = [f"a.jsonl:{i}" for i in (1, 2, 3)]
        message = "a.jsonl:3: column 'text' holds 3.5 (number), but in a.jsonl:1 'a' (text)"
        self.assertStartsWith(changed_type(rows, places), message)
        self.assertIsNone(changed_type([{"a": 1}, {"a": 2.5}, {"a": None}], places))
        with self.assertRaisesRegex(DataError, "rows.jsonl:2: column 'text' holds 3.5"):
            own_split([{"text": "a", "label": "x"}, {"text": 3.5, "label": "y"}])

    def test_blank_inputs_are_counted_and_refused_where_there_is_nothing_else(self):
        rows = [{"text": text, "label": "x"} for text in ("good", " \t", "", "fine")]
        with self.assertLogs("t5suite.data.rows.sources", "WARNING") as logs:
            self.assertEqual(own_split(rows).empty_texts, 2)
        self.assertIn("2 rows with an empty text (first: ", logs.output[0])
        with self.assertRaisesRegex(DataError, "rows.jsonl:1: no row has a text in 'text': .*white space alone"):
            own_split([{"text": " ", "label": "x"}, {"text": "\n", "label": "y"}])

    def test_labels_that_differ_in_case_say_so(self):
        with self.assertRaisesRegex(DataError, "label 'Negative'.*differs from 'negative' in case or spaces only"):
            own_split([{"text": "a", "label": "Negative"}], labels=("negative", "positive"))

    def test_a_pipe_is_not_a_missing_file(self):
        path = folder() / "rows.csv"
        os.mkfifo(path)
        with self.assertRaisesRegex(ConfigError, "--train_file .*a pipe or a device, which is read only once"):
            format_form("csv", FormatOptions(train_file=str(path)))

    def test_a_model_that_is_nowhere_is_the_cause_not_the_rows(self):
        path = Path(folder()) / "rows.csv"
        path.write_text("a,b\n1,2\n")
        argv = ["predict", "--model_name_or_path", "nobody/nothing", "--input", str(path), "--use_cpu"]
        with mock.patch.dict(os.environ, {"HF_HUB_OFFLINE": "1"}), self.assertRaisesRegex(UserError, "nobody/nothing"):
            cli.main(argv)
