"""Settings that contradict each other or name the wrong thing: refused, with the cause that is true."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import parameterized
from support import folder

import fine_tune_t5
import pre_train_t5
from t5suite import load_task
from t5suite.testing import (
    bundled_model,
    exits_with,
    load_own_rows,
    load_rows,
    run_cli,
    save_model,
    tiny_rows,
    write_rows,
)

ROOT = Path(__file__).resolve().parents[1]


def own_split(rows, split: str = "train", **flags) -> list[dict]:
    """Rows with the columns text and label, as a run reads them from a file."""
    path = write_rows(folder() / "rows.jsonl", rows)
    flags = {"text_column": "text", "target_column": "label", "no_eval": True, **flags}
    return load_own_rows({split: path}, split, **flags).rows


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
        script = pre_train_t5 if "--noise_density" in words else fine_tune_t5
        with exits_with(78, message):
            script.main(words)

    @parameterized.parameters(
        ("seed: [1, 2]\n", r"run.yaml:1: --seed \[1, 2\]: a list, but the flag takes one value"),
        ("seed: 1\noutput_dir: ''\n", "run.yaml:2: --output_dir '' is empty"),
    )
    def test_configuration_files(self, content, message):
        path = folder() / "run.yaml"
        path.write_text(content)
        with exits_with(78, message):
            fine_tune_t5.main([str(path)])

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
        """Where the rank is taken, the wrong flag after it is refused."""
        with mock.patch.dict(os.environ):
            for name in ("LOCAL_RANK", "WORLD_SIZE"):
                os.environ.pop(name, None)
            for words in (["--local_rank", "0"], ["--local_rank=-1"]):
                with exits_with(78, "^--max_steps 0"):
                    fine_tune_t5.main([*words, "--max_steps", "0"])
            with exits_with(78, "--local_rank 3: no launcher started this process"):
                fine_tune_t5.main(["--local_rank", "3", "--max_steps", "0"])
            os.environ["WORLD_SIZE"] = "4"
            with exits_with(78, "^--max_steps 0"):
                fine_tune_t5.main(["--local_rank=3", "--max_steps", "0"])

    @parameterized.parameters(("raise SystemExit(0)", "SystemExit: 0"), ("import sys; sys.exit('bye')", "bye"))
    def test_a_task_file_that_ends_the_program_is_refused(self, code, message):
        path = folder() / "tasks.py"
        path.write_text(code)
        with exits_with(78, f"tasks.py ends the program .*{message}"):
            load_task("mini", "sentiment", str(path))


class PredictTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = save_model(folder(), tasks=[load_task("mini", "sentiment")], target_length=6)
        cls.rows = write_rows(folder() / "rows.jsonl", tiny_rows(count=1))

    def predict(self, *words):
        run_cli("predict", "--model_name_or_path", self.model, "--input", self.rows, "--use_cpu", *words)

    def test_lengths_that_no_answer_has(self):
        with exits_with(78, "--min_new_tokens 9 is more than --max_new_tokens 2"):
            self.predict("--max_new_tokens", "2", "--min_new_tokens", "9")
        with exits_with(78, "--min_new_tokens 9 .* 6, which is what the task needs"):
            self.predict("--min_new_tokens", "9")
        output = folder() / "answers.jsonl"
        self.predict("--max_new_tokens", "9", "--min_new_tokens", "9", "--output", output)
        self.assertTrue(output.is_file())

    @parameterized.parameters(
        ({"WORLD_SIZE": ""}, "WORLD_SIZE='' in the environment: a launcher sets a whole number"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two' in the environment: a launcher sets a whole number"),
        ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_PORT": "http"}, "MASTER_PORT='http' in the environment"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set in the environment, but no RANK: no launcher started this process"),
        ({"WORLD_SIZE": "2", "RANK": "5"}, "RANK=5 with WORLD_SIZE=2 in the environment: ranks are 0 to 1"),
    )
    def test_a_rank_that_nobody_waits_for_is_refused_at_once(self, environment, message):
        with mock.patch.dict(os.environ, environment), exits_with(78, message):
            self.predict()

    @parameterized.parameters({"WORLD_SIZE": "1"}, {"RANK": "0"}, {"MASTER_PORT": ""})
    @pytest.mark.quick_cases(1)
    def test_a_process_alone_is_accepted(self, **environment):
        output = folder() / "answers.jsonl"
        with mock.patch.dict(os.environ, environment):
            self.predict("--output", output)
        self.assertTrue(output.is_file())

    def test_a_device_takes_no_answers(self):
        with exits_with(78, "--output /dev/null: a pipe or a device"):
            self.predict("--output", "/dev/null")

    def test_a_model_that_is_nowhere_is_the_cause_not_the_rows(self):
        path = folder() / "rows.csv"
        path.write_text("a,b\n1,2\n")
        nowhere = path.parent / "nobody" / "nothing"
        with exits_with(78, f"{nowhere}"):
            run_cli("predict", "--model_name_or_path", nowhere, "--input", path, "--use_cpu")


class RowsTest(parameterized.TestCase):
    def test_a_column_that_changes_its_kind_is_named_with_both_places(self):
        with exits_with(65, r"rows.jsonl:2: column 'text' holds 3.5 \(number\), but in .*rows.jsonl:1 'a' \(text\)"):
            own_split([{"text": "a", "label": "x"}, {"text": 3.5, "label": "y"}])
        labels = ["x", None, 3.5]
        with exits_with(65, "rows.jsonl:3: column 'label' holds 3.5 .*rows.jsonl:1 'x'"):
            own_split([{"text": "a", "label": label} for label in labels], "test", metrics="none")
        numbers = [{"text": "a", "label": label} for label in (1, 2.5, 3)]
        self.assertEqual([float(row["label"]) for row in own_split(numbers, metrics="pearson")], [1, 2.5, 3])

    def test_blank_inputs_are_counted_and_refused_where_there_is_nothing_else(self):
        rows = [{"text": text, "label": "x"} for text in ("good", " \t", "", "fine")]
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.assertLen(own_split(rows), 4)
        self.assertIn("2 rows with an empty text (2 in 'text'; first: ", logs.output[0])
        pairs = [{"opened": day, "text": text, "label": "x"} for day, text in (("", "a"), ("", " "), ("May", "b"))]
        with self.assertLogs("t5suite", "WARNING") as logs:
            own_split(pairs, text_column="opened,text")
        self.assertRegex(logs.output[0], "2 rows with .* \\(2 in 'opened', 1 in 'text'; first: .*rows.jsonl:1\\)")
        with exits_with(65, "rows.jsonl:1: no row has a text in 'text': .*white space alone"):
            own_split([{"text": " ", "label": "x"}, {"text": "\n", "label": "y"}])

    def test_labels_that_differ_in_case_say_so(self):
        with exits_with(65, "label 'Negative'.*differs from 'negative' in case or spaces only.* make the rows alike"):
            own_split([{"text": "a", "label": "Negative"}], labels="negative,positive")
        with exits_with(65, "label ' negative'.*outer spaces.* differs from 'negative': take them out of the rows"):
            own_split([{"text": "a", "label": " negative"}], labels="negative,positive")

    def test_a_pipe_is_not_a_missing_file(self):
        path = folder() / "rows.csv"
        os.mkfifo(path)
        with exits_with(78, "--train_file .*a pipe or a device, which is read only once"):
            load_own_rows(train_file=path, data_format="csv")

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
        argv = ["score", "--benchmark", "mini", "--dataset_name", "sentiment", "--rows", place / "rows.jsonl"]
        write_rows(place / "answers.jsonl", answers)
        run_cli(*argv, "--predictions", place / "answers.jsonl")
        write_rows(place / "answers.jsonl", answers[::-1])
        with exits_with(65, "answers.jsonl:2: row 0 after row 1; predictions stand in the rows' order"):
            run_cli(*argv, "--predictions", place / "answers.jsonl")

    def test_a_table_of_very_many_columns_names_some(self):
        rows = [{"text": "a", "label": "b", **{f"c{i}": "0" for i in range(5000)}}]
        with self.assertLogs("t5suite", "INFO") as logs:
            own_split(rows)
        message = next(line for line in logs.output if "not read" in line)
        self.assertIn("and 4,970 more", message)
        self.assertLess(len(message), 500)

    @parameterized.parameters(({"T5SUITE_DATA_DIR": "/no/such"}, "T5SUITE_DATA_DIR"), ({}, "--data_dir"))
    def test_a_data_directory_is_named_by_where_it_was_set(self, environment, name):
        others = {key: value for key, value in os.environ.items() if key != "T5SUITE_DATA_DIR"}
        environ = mock.patch.dict(os.environ, {**others, **environment}, clear=True)
        with environ, exits_with(78, f"^{name}: no directory"):
            load_rows(load_task("glue", "rte"), "train", data_dir="/no/such")


class ShellTest(parameterized.TestCase):
    """What the shell or a closed terminal leaves in the process."""

    def run_in_shell(self, command: str) -> subprocess.CompletedProcess:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(["bash", "-c", command], env=environment, stderr=subprocess.PIPE, text=True)

    @pytest.mark.slow
    def test_a_command_runs_with_closed_streams(self):
        """Standard input and output that are closed are an empty input and a discarded output."""
        ended = self.run_in_shell(f"{sys.executable} -m t5suite tasks --benchmark mini <&- >&-")
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_a_deleted_current_directory_is_the_cause(self):
        place = folder()
        script = ROOT / "fine_tune_t5.py"
        ended = self.run_in_shell(f"cd {place} && rmdir {place} && {sys.executable} {script} --output_dir out")
        message = "error: the current directory has been deleted; change to one that exists"
        self.assertEqual((ended.returncode, ended.stderr.splitlines()[-1:]), (74, [message]))


class FoldersAndFilesTest(parameterized.TestCase):
    def test_a_corpus_is_built_in_a_folder_outside_of_its_text(self):
        text = folder()
        (text / "a.txt").write_text("The soup was good.\n")
        for place, message in (
            (text / "a.txt", "a.txt: a file; name a folder"),
            (text / "corpus", "would be read with it"),
        ):
            with exits_with(78, message):
                run_cli("corpus", "build", "--tokenizer_name", bundled_model(), "--input", text, "--output_dir", place)
        self.assertEqual(sorted(path.name for path in text.iterdir()), ["a.txt"])

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
            load_own_rows(train_file=name if "//" in name else path, data_format="csv")

    def test_an_unreadable_file_is_not_a_place_to_write_to(self):
        path = folder() / "a.jsonl"
        path.write_text('{"input": "a", "output": "b"}\n')
        with mock.patch.object(os, "access", return_value=False), exits_with(65, "a.jsonl: no permission to read it"):
            load_own_rows(path)

    def test_a_place_without_a_tokenizer_says_what_is_there(self):
        empty, other, file = folder(), folder(), folder() / "notes.txt"
        (other / "config.json").write_text("{}")
        file.write_text("x")
        for place, message in (
            (empty, ": an empty folder"),
            (other, "no tokenizer in this"),
            (file, "a file that is no tokenizer"),
            ("google/t5 v1.1 small", "no folder .*and a name of the hub has no white space"),
        ):
            output_dir = folder() / "run"
            with mock.patch.dict(os.environ, {"HF_HUB_OFFLINE": "1"}), exits_with(78, message):
                fine_tune_t5.main(["--tokenizer_name", str(place), "--output_dir", str(output_dir), "--use_cpu"])

    def test_a_sweeps_own_program_is_looked_for_before_a_trial_starts(self):
        place = folder()
        (place / "s.yaml").write_text("program: train.py\nmethod: grid\nparameters:\n  seed: {values: [1]}\n")
        with exits_with(78, "s.yaml: program: no file 'train.py'"):
            run_cli("sweep", place / "s.yaml", "--sweep_dir", place / "sweep")
        self.assertFalse((place / "sweep").exists())
