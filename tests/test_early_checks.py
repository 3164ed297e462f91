"""What is wrong on a command line is said before torch is imported: files, folders, tasks, flags that do not go together."""

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from absl.testing import absltest, parameterized

from t5suite import cli
from t5suite.base.errors import ConfigError, DataError
from t5suite.commands.shared import check_model, is_alone, may_be_of_the_hub
from t5suite.tasks.registry import Lengths, load_task
from t5suite.tasks.task_card import make_task_card, write_task_card

PREDICT = "predict --model_name_or_path run"
EXPORT = "export --model_name_or_path run --output_dir"
# {command: (the error, what its message says)}; in a folder with `run`, `full`, `file` and `rows.jsonl`.
REFUSALS = {
    f"{PREDICT} --input missing.txt": (DataError, "missing.txt: no such file"),
    f"{PREDICT} --input row.jsonl": (DataError, "row.jsonl: no such file; did you mean rows.jsonl?"),
    f"{PREDICT} --input full": (DataError, "full: --input takes a file, and this is a folder"),
    f"{PREDICT} --input rows.jsonl --labels --scores": (ConfigError, "--scores has no effect: labels are chosen"),
    f"{PREDICT} --input rows.jsonl --labels --num_beams 2": (ConfigError, "--num_beams has no effect"),
    f"{PREDICT} --input rows.jsonl --labels good": (ConfigError, "--labels good: give two different labels"),
    f"{PREDICT} --input rows.jsonl --num_return_sequences 4": (ConfigError, "needs as many --num_beams"),
    f"{PREDICT} --input rows.jsonl --top_p 0.9": (ConfigError, "--top_p 0.9 has no effect without --do_sample"),
    f"{PREDICT} --input rows.jsonl --dataset_name rte": (ConfigError, "unknown task 'rte'"),
    f"{PREDICT} --input rows.jsonl --benchmark glue --dataset_name rtee": (ConfigError, "did you mean rte?"),
    f"{PREDICT} --input rows.jsonl --benchmark glue --dataset_name rte": (
        DataError,
        "rows.jsonl:1: the row has neither",
    ),
    f"{PREDICT} --input rows.jsonl --task_file missing.yaml": (ConfigError, "no file 'missing.yaml'"),
    f"{PREDICT} --input rows.jsonl --output full": (ConfigError, "a folder; name the file, such as full/answers.jsonl"),
    f"{PREDICT} --input rows.jsonl --output file": (ConfigError, "--output file cannot be continued"),
    f"{PREDICT} --input rows.jsonl --output file/a.jsonl": (ConfigError, "file is a file, and a folder is needed"),
    f"{PREDICT} --input rows.jsonl --output rows.jsonl --overwrite": (ConfigError, "is the file that is read"),
    "predict --model_name_or_path run/none/x --input rows.jsonl": (ConfigError, "run/none/x: no such folder"),
    "predict --model_name_or_path ./rum --input rows.jsonl": (ConfigError, "no such folder; did you mean run?"),
    "predict --model_name_or_path full --input rows.jsonl": (ConfigError, "full: no model in this folder"),
    "predict --model_name_or_path . --input rows.jsonl": (ConfigError, "there are plain, run"),
    "predict --model_name_or_path file --input rows.jsonl": (ConfigError, "file: a file; name the folder"),
    f"{EXPORT} full": (ConfigError, "'full' is not empty"),
    f"{EXPORT} file/new": (ConfigError, "file is a file, and a folder is needed"),
    f"{EXPORT} new --dtype float64": (ConfigError, "unknown precision 'float64'"),
    f"{EXPORT} new --format onnx --benchmark mini --dataset_name sentment": (ConfigError, "did you mean sentiment"),
    f"{EXPORT} new --benchmark mini --dataset_name sentiment": (ConfigError, "--benchmark scores ONNX files"),
    "export --model_name_or_path full --output_dir new": (ConfigError, "full: no model in this folder"),
    "export --init_checkpoint gone.bin --config_name t5-small --output_dir new": (
        DataError,
        "gone.bin: no such file or folder",
    ),
    "summary --config_name t5-3b --batch_size 0": (ConfigError, "--batch_size 0: must be at least 1"),
    "summary --config_name t5-3b --optimizer adamv": (
        ConfigError,
        "--optimizer: unknown name 'adamv'; did you mean adamw",
    ),
    "summary --config_name t5-3b --deepspeed zero4": (
        ConfigError,
        "--deepspeed: unknown name 'zero4'; did you mean zero",
    ),
    "corpus show corpus --objective masked_lm": (ConfigError, "choose from span_corruption"),
    "summary --model_name_or_path full": (ConfigError, "full: no model in this folder"),
    "corpus build --input gone.txt --tokenizer_name run --output_dir new": (DataError, "gone.txt: no such file"),
    "corpus build --input rows.jsonl --tokenizer_name run --output_dir file/x": (ConfigError, "a folder is needed"),
    "corpus build --input rows.jsonl --tokenizer_name run --output_dir new --num_workers 0": (
        ConfigError,
        "at least 1",
    ),
}
# Refuses torch, and tries every command of a list that it reads.
WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None
from t5suite import cli
from t5suite.base.errors import UserError
said = []
for command in json.load(sys.stdin):
    try:
        cli.main(command.split())
    except UserError as error:
        said.append([type(error).__name__, str(error)])
    except Exception as error:  # torch was to be imported, say: this command alone has failed
        said.append([type(error).__name__, str(error)])
    else:
        said.append(["", "nothing is said"])
json.dump(said, sys.stdout)
"""


def workplace() -> Path:
    """A folder with a run's outside, a folder that is full, a file, and rows."""
    place = Path(tempfile.mkdtemp())
    for folder in ("run", "full"):
        (place / folder).mkdir()
    (place / "full" / "notes.txt").write_text("mine")
    (place / "file").write_text("mine")
    (place / "rows.jsonl").write_text('{"sentence": "good", "label": 1}\n')
    for folder in ("run", "plain"):
        (place / folder).mkdir(exist_ok=True)
        (place / folder / "config.json").write_text('{"model_type": "t5"}')
    (place / "run" / "manifest.json").write_text("{}")
    write_task_card(place / "run", make_task_card([load_task("mini", "sentiment")], Lengths(64, 8)))
    return place


class RefusalsTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH],
            input=json.dumps(list(REFUSALS)),
            cwd=workplace(),
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        cls.said = dict(zip(REFUSALS, json.loads(done.stdout), strict=True))

    @parameterized.parameters(*REFUSALS)
    def test_it_is_refused_where_torch_cannot_be_imported(self, command):
        kind, words = REFUSALS[command]
        name, message = self.said[command]
        self.assertEqual((name, words in message), (kind.__name__, True), message)


class PlacesTest(parameterized.TestCase):
    @parameterized.parameters(
        ("t5-small", True),
        ("google/t5-v1_1-small", True),
        ("../runs/rte", False),
        ("./t5-small", False),
        ("/models/t5", False),
        ("runs/rte/checkpoint-7", False),
        ("runs/", False),
    )
    def test_a_hub_name_has_one_slash_at_most(self, name, expected):
        self.assertEqual(may_be_of_the_hub(name), expected)

    def test_below_a_folder_of_runs_nothing_is_a_hub_name(self):
        place = workplace()
        (place / "models" / "t5-small").mkdir(parents=True)
        (place / "models" / "t5-small" / "config.json").write_text("{}")
        with contextlib.chdir(place.parent):
            self.assertFalse(may_be_of_the_hub(f"{place.name}/rum"))
        with contextlib.chdir(place):
            self.assertTrue(may_be_of_the_hub("models/t5-base"))

    @parameterized.parameters(
        "config.json", "adapter_config.json", "pytorch_model.bin", "checkpoint-5/x", "global_step5/x"
    )
    def test_any_of_a_models_files_makes_a_model(self, name):
        folder = Path(tempfile.mkdtemp())
        with self.assertRaisesRegex(ConfigError, "no model in this folder"):
            check_model("--model_name_or_path", str(folder))
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
        check_model("--model_name_or_path", str(folder))

    @parameterized.parameters(({}, True), ({"WORLD_SIZE": "1"}, True), ({"WORLD_SIZE": "2"}, False))
    def test_one_of_several_processes_is_not_alone(self, environ, expected):
        self.assertEqual(is_alone(environ), expected)
        self.assertFalse(is_alone({**environ, "SLURM_NTASKS": "4"}))

    def test_an_input_that_is_the_output_is_left_as_it_is(self):
        place = workplace()
        before = (place / "rows.jsonl").read_bytes()
        (place / "link.jsonl").symlink_to("rows.jsonl")
        argv = [*f"predict --model_name_or_path {place}/run --input {place}/rows.jsonl --output".split()]
        with self.assertRaisesRegex(ConfigError, "is the file that is read"):
            cli.main([*argv, f"{place}/link.jsonl", "--overwrite"])
        self.assertEqual((place / "rows.jsonl").read_bytes(), before)


if __name__ == "__main__":
    absltest.main()
