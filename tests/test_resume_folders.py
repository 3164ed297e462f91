"""`--resume PATH` where the folder does not say its step; `t5suite preview --task_lists`."""

import contextlib
import io
import json
import tempfile
from pathlib import Path

from absl.testing import absltest, parameterized
from later_flags import later_wins
from test_instructions import write_tasks

from t5suite import cli
from t5suite.base.errors import ConfigError
from t5suite.training.checkpoints.folders import named_checkpoint


def complete_checkpoint(name: str) -> Path:
    """A folder with what a checkpoint of Hugging Face's trainer has."""
    folder = Path(tempfile.mkdtemp()) / name
    folder.mkdir()
    for file in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
        (folder / file).write_bytes(b"")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 40}))
    return folder


class ResumeTest(parameterized.TestCase):
    @parameterized.parameters("best", "checkpoint-last", "checkpoint-40-copy")
    def test_a_folder_that_tells_no_step_is_refused_with_the_cure(self, name):
        with self.assertRaisesRegex(ConfigError, f"--resume .*{name}: .*checkpoint-N.*global_step"):
            named_checkpoint(str(complete_checkpoint(name)))

    def test_a_link_to_a_checkpoint_is_followed(self):
        folder = complete_checkpoint("checkpoint-40")
        link = folder.parent / "latest"
        link.symlink_to(folder)
        self.assertEqual(named_checkpoint(str(link)), folder.resolve())
        self.assertEqual(named_checkpoint(f"{folder}/"), folder)


class PreviewTest(parameterized.TestCase):
    def shown(self, *flags):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            cli.main(["preview", "--json", *flags])
        return [json.loads(line) for line in out.getvalue().splitlines()]

    def test_other_lists_of_tasks_are_shown(self):
        root = Path(tempfile.mkdtemp())
        write_tasks(root, ["task1_a", "task2_b"])
        write_tasks(root, ["task1_a", "task3_c", "task4_d", "task5_e"], lists="mine")
        flags = ["--benchmark", "super_ni", "--dataset_name", "english", "--data_dir", str(root)]
        for lists, rows in (([], 5), (["--task_lists", "mine"], 10)):  # one test task, two
            self.assertLen(self.shown(*flags, "--limit", "30", *lists), rows)

    @parameterized.parameters((["--rows", "x.jsonl"], "--rows"), (["--dataset_name", "sentiment"], "super_ni"))
    def test_where_lists_mean_nothing_they_are_refused(self, flags, message):
        benchmark = "mini" if "sentiment" in flags else "super_ni"
        given = later_wins("--benchmark", benchmark, "--dataset_name", "english", "--task_lists", "mine", flags)
        with self.assertRaisesRegex(ConfigError, message):
            self.shown(*given)


if __name__ == "__main__":
    absltest.main()
