"""The examples run as plain Python and print what they promise; so do the blocks of docs/python.md."""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from absl.testing import absltest, parameterized

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
# What each prints, whatever its figures.
PRINTED = {
    "classify_csv": ["review,verdict", "held-out reviews: accuracy #", "reviews_model: "],
    "prompt_tuning": [
        "two questions: #% of the answers are right",
        "without a question: #% give the last word",
        "with # virtual tokens: #%, # points",
    ],
    "pre_train_then_fine_tune": [
        "random weights: held-out loss #, #",
        "pre-trained: held-out loss #, #",
        "pre-training is worth # nats a token",
    ],
}
# The figure that a whole run prints, and what it must be above: chance, or no gain.
REACHED = {
    "classify_csv": (r"held-out reviews: accuracy ([\d.]+)", 60.0),
    "prompt_tuning": (r"virtual tokens: ([\d.]+)", 60.0),
    "pre_train_then_fine_tune": (r"worth ([-+\d.]+) nats", 0.0),
}


def printed(name: str, steps: int | None = None) -> str:
    """What an example prints, run offline in a folder of its own."""
    folder = tempfile.mkdtemp()
    given = {"T5SUITE_EXAMPLE_RUNS": f"{folder}/runs", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    given |= {"T5SUITE_EXAMPLE_STEPS": str(steps)} if steps else {}
    command = [sys.executable, EXAMPLES / f"{name}.py"]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **given}, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def without_figures(text: str) -> str:
    return re.sub(r"[-+]?\d+(\.\d+)?", "#", text)


class ExamplesTest(parameterized.TestCase):
    def test_there_is_a_table_entry_for_every_example(self):
        self.assertEqual({path.stem for path in EXAMPLES.glob("*.py")}, set(PRINTED))

    @parameterized.parameters(*PRINTED)
    def test_its_cells_stand_in_the_readme_with_what_they_print(self, name):
        page = without_figures((EXAMPLES / "README.md").read_text(encoding="utf-8"))
        for line in PRINTED[name]:
            self.assertIn(line, page)

    @parameterized.parameters("prompt_tuning", "pre_train_then_fine_tune")
    @pytest.mark.slow
    def test_it_runs_with_a_few_steps(self, name):
        self.check(name, printed(name, steps=4))

    @pytest.mark.slow
    def test_the_csv_example_runs_with_a_few_steps(self):
        self.check("classify_csv", printed("classify_csv", steps=4))

    @parameterized.parameters(*PRINTED)
    @pytest.mark.slow
    def test_it_runs_whole(self, name):
        output = printed(name)
        self.check(name, output)
        pattern, least = REACHED[name]
        self.assertGreater(float(re.search(pattern, output)[1]), least)

    def check(self, name, output):
        for line in PRINTED[name]:
            self.assertIn(line, without_figures(output))


class PageTest(absltest.TestCase):
    def test_the_blocks_of_the_page_run_one_after_the_other(self):
        page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
        blocks = re.findall(r"```python\n(.*?)```", page, re.S)
        self.assertLen(blocks, 5)
        names, before = {"__name__": "page"}, os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                for i, block in enumerate(blocks):
                    with contextlib.redirect_stdout(io.StringIO()):
                        exec(compile(block, f"docs/python.md block {i + 1}", "exec"), names)
                self.assertEqual({path.name for path in Path("runs").iterdir()}, {"first", "own", "frozen"})
            finally:
                os.chdir(before)
        self.assertEqual(set(names["shares"]), {"negative", "positive"})
        self.assertEqual(names["own"].trainer.state.global_step, 15)
        self.assertLess(names["numbers"]["trainable"], names["numbers"]["parameters"])


if __name__ == "__main__":
    absltest.main()
