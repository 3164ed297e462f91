"""Tokenized rows are kept by what they were made of, found again whole, and never taken where they are not."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import datasets
import numpy as np
import pytest
from absl.testing import parameterized
from support import later_wins

import fine_tune_t5
from t5suite import load_task
from t5suite.data.batches import training_data
from t5suite.data.batches.encodings import TextEncoding
from t5suite.data.batches.training_data import tokenize_split
from t5suite.tasks.formatters import FORMATTERS
from t5suite.tasks.registry import Lengths
from t5suite.testing import tiny_tokenizer


def noting(path: str):
    """`bind_encoding`, which adds a line to a file for training rows."""
    bind = training_data.bind_encoding

    def bound(encoding, task, split):
        if split == "train":
            with open(path, "a", encoding="utf-8") as notes:
                notes.write(f"{os.environ.get('RANK', 0)}\n")
        return bind(encoding, task, split)

    return bound


class TokenizeSplitTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp())
        self.enter_context(mock.patch.object(training_data, "FEWEST_ROWS", 2))
        self.task = load_task("mini", "sentiment")

    def files(self) -> list[Path]:
        return sorted(self.folder.rglob("*.npz"))

    def tokenized(self, texts, source=64):
        rows = datasets.Dataset.from_list([{"sentence": text, "label": 1} for text in texts])
        encoding = TextEncoding(tiny_tokenizer(), Lengths(source, 8))
        found = tokenize_split(rows, self.task, encoding, "train", str(self.folder))
        return [{name: values.tolist() for name, values in found[i].items()} for i in range(len(found))]

    def test_rows_in_memory_are_tokenized_once(self):
        made, plain = [], self.tokenized(["good"])  # too few rows to be kept
        for texts, source in ((["good"] * 2, 64), (["good"] * 2, 64), (["good", "bad"], 64), (["good"] * 2, 4)):
            before = len(self.files())
            found = self.tokenized(texts, source)
            made.append(len(self.files()) - before)
            self.assertEqual(found[0]["labels"], plain[0]["labels"])
        self.assertEqual(made, [1, 0, 1, 1])
        self.assertEqual(self.tokenized(["good"] * 2), plain * 2)

    def test_what_other_code_made_is_not_taken(self):
        self.tokenized(["good"] * 2)
        with mock.patch("importlib.metadata.version", lambda name: "another"):
            self.tokenized(["good"] * 2)
        self.assertLen(self.files(), 2)

    @parameterized.parameters("torn", "zeroed", "emptied")
    def test_a_damaged_file_is_made_anew(self, damage):
        expected = self.tokenized(["good"] * 2)
        (place,) = self.files()
        whole = place.read_bytes()
        start = whole.index(np.array([378, 375], np.int32).tobytes())  # of the ids of "good"
        damaged = {"torn": whole[:-40], "zeroed": whole[:start] + bytes(8) + whole[start + 8 :], "emptied": b""}
        place.write_bytes(damaged[damage])
        with self.assertLogs("t5suite.data.batches.training_data", "WARNING") as said:
            self.assertEqual(self.tokenized(["good"] * 2), expected)
        self.assertIn("damaged", said.output[0])
        self.assertEqual(place.read_bytes(), whole)

    def test_formatters_of_your_own_are_not_kept(self):
        own = mock.Mock(__module__="my_tasks", side_effect=FORMATTERS["columns"])
        with mock.patch.dict(FORMATTERS, {"columns": own}):
            self.tokenized(["good"] * 2)
        self.assertEmpty(self.files())


def rows_file(folder, count, first="good") -> str:
    """Training rows of mini/sentiment, the first of which says `first`."""
    path = Path(folder) / "rows.jsonl"
    texts = [first, *("a fine film" for _ in range(count - 1))]
    path.write_text("".join(json.dumps({"sentence": text, "label": 1}) + "\n" for text in texts), encoding="utf-8")
    return str(path)


FLAGS = (
    "mini.yaml --max_steps 1 --eval_strategy no --per_device_train_batch_size 4 --use_cpu --disable_tqdm True "
    "--config_overrides d_model=16,d_kv=8,d_ff=16,num_layers=1,num_heads=2"
).split()


class RunsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp()
        self.notes = Path(self.folder) / "notes"
        self.flags = [*FLAGS, "--token_cache", f"{self.folder}/cache"]

    def tokenized(self, first="good", *flags) -> int:
        self.notes.write_text("")
        file, run = rows_file(self.folder, 8, first), tempfile.mkdtemp(dir=self.folder)
        with (
            mock.patch.object(training_data, "FEWEST_ROWS", 2),
            mock.patch.object(training_data, "bind_encoding", noting(str(self.notes))),
        ):
            fine_tune_t5.main(later_wins([*self.flags, "--train_file", file, *flags, "--output_dir", f"{run}/run"]))
        return len(self.notes.read_text().split())

    @pytest.mark.slow
    @pytest.mark.resume
    def test_a_second_run_tokenizes_only_what_has_changed(self):
        self.assertEqual(self.tokenized(), 1)
        self.assertEqual(self.tokenized(), 0)
        self.assertEqual(self.tokenized("good", "--seed", "7", "--learning_rate", "1e-4"), 0)
        self.assertEqual(self.tokenized("bad"), 1)
        self.assertEqual(self.tokenized("good", "--add_tokens", "film"), 1)
        self.assertEqual(self.tokenized("good", "--max_source_length", "5"), 1)

    @pytest.mark.slow
    @pytest.mark.ranks
    def test_of_two_ranks_and_two_runs_at_once_one_process_tokenizes(self):
        worker = Path(__file__)  # as a program
        flags = [*self.flags, "--train_file", rows_file(self.folder, training_data.FEWEST_ROWS)]
        ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(worker)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(worker.parent.parent)}
        running = [
            subprocess.Popen([*program, str(self.notes), *flags, "--output_dir", f"{self.folder}/run{number}"],
                             env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for number, program in enumerate((ranks, [sys.executable, str(worker)]))
        ]  # fmt: skip
        for process in running:
            _, said = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 0, said[-3000:])
        self.assertLen(self.notes.read_text().split(), 1)


if __name__ == "__main__":  # a run that notes each time training rows are tokenized, alone or by torchrun
    training_data.bind_encoding = noting(sys.argv[1])
    fine_tune_t5.main(sys.argv[2:])
