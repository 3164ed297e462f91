"""What is wrong on a command line is said before torch is imported: files, folders, tasks, flags that do not go together."""

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from absl.testing import absltest, parameterized

from t5suite import cli
from t5suite.base.errors import ConfigError
from t5suite.commands.shared import check_model, is_alone, may_be_of_the_hub
from t5suite.tasks.registry import Lengths, load_task
from t5suite.tasks.task_card import make_task_card, write_task_card

PREDICT, EXPORT = "predict --model_name_or_path run", "export --model_name_or_path run --output_dir"
ROWS, CORPUS = f"{PREDICT} --input rows.jsonl", "corpus build --tokenizer_name run"
# {command: (exit code, what the message says)}; in a folder with `run`, `plain`, `full`, `file` and `rows.jsonl`.
REFUSALS = {
    f"{PREDICT} --input row.jsonl": (65, "row.jsonl: no such file; did you mean rows.jsonl?"),
    f"{PREDICT} --input full": (65, "full: --input takes a file, and this is a folder"),
    f"{ROWS} --labels --scores": (78, "--scores has no effect: labels are chosen"),
    f"{ROWS} --labels good": (78, "--labels good: give two different labels"),
    f"{ROWS} --num_return_sequences 4": (78, "needs as many --num_beams"),
    f"{ROWS} --top_p 0.9": (78, "--top_p 0.9 has no effect without --do_sample"),
    f"{ROWS} --dataset_name rte": (78, "unknown task 'rte'"),
    f"{ROWS} --benchmark glue --dataset_name rtee": (78, "did you mean rte?"),
    f"{ROWS} --benchmark glue --dataset_name rte": (65, "rows.jsonl:1: the row has neither"),
    f"{ROWS} --task_file missing.yaml": (78, "no file 'missing.yaml'"),
    f"{ROWS} --output full": (78, "a folder; name the file, such as full/answers.jsonl"),
    f"{ROWS} --output file": (78, "--output file cannot be continued"),
    f"{ROWS} --output file/a.jsonl": (78, "file is a file, and a folder is needed"),
    f"{ROWS} --output rows.jsonl --overwrite": (78, "is the file that is read"),
    "predict --model_name_or_path run/none/x --input rows.jsonl": (78, "run/none/x: no such folder"),
    "predict --model_name_or_path ./rum --input rows.jsonl": (78, "no such folder; did you mean run?"),
    "predict --model_name_or_path full --input rows.jsonl": (78, "full: no model in this folder"),
    "predict --model_name_or_path . --input rows.jsonl": (78, "there are plain, run"),
    "predict --model_name_or_path file --input rows.jsonl": (78, "file: a file; name the folder"),
    f"{EXPORT} full": (78, "'full' is not empty"),
    f"{EXPORT} new --dtype float64": (78, "unknown precision 'float64'"),
    f"{EXPORT} new --format onnx --benchmark mini --dataset_name sentment": (78, "did you mean sentiment"),
    f"{EXPORT} new --benchmark mini --dataset_name sentiment": (78, "--benchmark scores ONNX files"),
    "export --init_checkpoint gone.bin --config_name t5-small --output_dir new": (
        65,
        "gone.bin: no such file or folder",
    ),
    "summary --config_name t5-3b --batch_size 0": (78, "--batch_size 0: must be at least 1"),
    "summary --config_name t5-3b --deepspeed zero4": (78, "--deepspeed: unknown name 'zero4'; did you mean zero"),
    "corpus show corpus --objective masked_lm": (78, "choose from span_corruption"),
    f"{CORPUS} --input gone.txt --output_dir new": (65, "gone.txt: no such file"),
    f"{CORPUS} --input rows.jsonl --output_dir file/x": (78, "a folder is needed"),
    f"{CORPUS} --input rows.jsonl --output_dir new --num_workers 0": (78, "at least 1"),
}
# Refuses torch, and tries every command of a list that it reads.
WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None
from t5suite import cli
said = []
for command in json.load(sys.stdin):
    try:
        cli.main(command.split())
        said.append([0, "nothing is said"])
    except Exception as error:  # without an exit code where torch was to be imported: this command alone has failed
        said.append([getattr(error, "exit_code", 1), str(error)])
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
        command = [sys.executable, "-c", WITHOUT_TORCH]
        given = {"input": json.dumps(list(REFUSALS)), "capture_output": True, "text": True, "timeout": 120}
        done = subprocess.run(command, cwd=workplace(), check=True, **given)
        cls.said = dict(zip(REFUSALS, json.loads(done.stdout), strict=True))

    @parameterized.parameters(*REFUSALS)
    def test_it_is_refused_where_torch_cannot_be_imported(self, command):
        code, words = REFUSALS[command]
        found, message = self.said[command]
        self.assertEqual((found, words in message), (code, True), message)


class PlacesTest(parameterized.TestCase):
    def test_a_hub_name_has_one_slash_at_most(self):
        for name in ("t5-small", "google/t5-v1_1-small"):
            self.assertTrue(may_be_of_the_hub(name))
        for name in ("../runs/rte", "./t5-small", "/models/t5", "runs/rte/checkpoint-7", "runs/"):
            self.assertFalse(may_be_of_the_hub(name))

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
