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
from later_flags import later_wins

import fine_tune_t5
from t5suite.data.batches import training_data
from t5suite.data.batches import training_data as token_cache
from t5suite.data.batches.encodings import TextEncoding
from t5suite.data.batches.features import Ragged, TokenArrays
from t5suite.data.batches.training_data import TokenCache, read_arrays, tokenize_split, write_arrays
from t5suite.models.loading import load_tokenizer
from t5suite.tasks.registry import Lengths, load_task


def noting(path: str):
    """`bind_encoding`, which adds a line to a file for training rows."""
    bind = training_data.bind_encoding

    def bound(encoding, task, split):
        if split == "train":
            with open(path, "a", encoding="utf-8") as notes:
                notes.write(f"{os.environ.get('RANK', 0)}\n")
        return bind(encoding, task, split)

    return bound


def arrays(types=False) -> TokenArrays:
    ids = Ragged.from_rows([[5, 6, 1], [], [7, 1]])
    return TokenArrays(ids, Ragged.from_rows([[9, 1], [1], [8, 1]]), ids if types else None)


def content(found: TokenArrays) -> list:
    return [{name: values.tolist() for name, values in found[i].items()} for i in range(len(found))]


class TokenCacheTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp()
        self.cache = TokenCache(self.folder)

    @parameterized.parameters(False, True)
    def test_the_second_time_nothing_is_made_and_files_are_mapped(self, types):
        first = self.cache.get("key", lambda: arrays(types))
        second = self.cache.get("key", lambda: self.fail("made again"))
        self.assertEqual(content(first), content(arrays(types)))
        self.assertEqual(content(second), content(first))
        self.assertFalse(second.input_ids.values.flags.owndata)
        self.assertFalse(second.input_ids.values.flags.writeable)
        alone = TokenArrays.concatenate([second])
        self.assertTrue(np.shares_memory(alone.input_ids.values, second.input_ids.values))

    def test_another_key_or_other_code_is_made_anew(self):
        self.cache.get("key", arrays)
        self.assertEqual(len(self.cache.get("other", lambda: arrays(True)).token_type_ids), 3)
        with mock.patch.object(token_cache, "code_digest", lambda: "a later version"):
            self.assertIsNotNone(self.cache.get("key", lambda: arrays(True)).token_type_ids)

    @parameterized.parameters("torn", "missing", "not numpy's", "offsets of another", "zeroed", "no checksums")
    def test_what_is_damaged_is_made_anew(self, damage):
        self.cache.get("key", arrays)
        (place,) = [path for path in Path(self.folder).iterdir() if path.is_dir()]
        values = place / "input_ids.values.npy"
        if damage == "torn":
            values.write_bytes(values.read_bytes()[:-4])
        elif damage == "missing":
            values.unlink()
        elif damage == "not numpy's":
            values.write_bytes(b"")
        elif damage == "zeroed":
            whole = values.read_bytes()
            values.write_bytes(whole[:-12] + bytes(12))
        elif damage == "no checksums":
            (place / "crc32.json").write_text("null")
        else:
            np.save(place / "input_ids.offsets.npy", np.array([0, 1, 2, 3]))
        self.assertIsNone(read_arrays(place))
        with self.assertLogs("t5suite.data.batches.training_data", "WARNING") as said:
            self.assertEqual(content(self.cache.get("key", arrays)), content(arrays()))
        self.assertIn(str(place), said.output[0])
        self.assertEqual(content(self.cache.get("key", None)), content(arrays()))

    def test_a_write_that_fails_leaves_nothing(self):
        place = Path(self.folder) / "place"
        with mock.patch.object(np, "save", side_effect=OSError("no space")), self.assertRaises(OSError):
            write_arrays(place, arrays())
        self.assertEqual(list(Path(self.folder).iterdir()), [])

    def test_few_rows_and_formatters_of_the_users_own_are_not_kept(self):
        task = load_task("mini", "sentiment")
        self.assertTrue(self.cache.serves(task, 5000))
        self.assertFalse(self.cache.serves(task, 4999))
        self.assertFalse(TokenCache("none").serves(task, 5000))
        own = mock.Mock(__module__="my_tasks")
        with mock.patch.dict(token_cache.FORMATTERS, {"columns": own}):
            self.assertFalse(self.cache.serves(task, 5000))

    def test_rows_in_memory_are_tokenized_once(self):
        tokenizer, task = load_tokenizer(None), load_task("mini", "sentiment")
        made = []

        def tokenized(texts, source=64):
            rows = datasets.Dataset.from_list([{"sentence": text, "label": 1} for text in texts])
            with mock.patch.object(token_cache, "FEWEST_ROWS", 2):
                before = len(list(Path(self.folder).iterdir()))
                found = tokenize_split(rows, task, TextEncoding(tokenizer, Lengths(source, 8)), "train", self.cache)
                made.append(len(list(Path(self.folder).iterdir())) > before)
            return content(found)

        first = tokenized(["good", "a fine film"])
        self.assertEqual(tokenized(["good", "a fine film"]), first)
        self.assertNotEqual(tokenized(["good", "a bad film"]), first)
        tokenized(["good", "a fine film"], source=4)
        self.assertEqual(made, [True, False, True, True])


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
    """Whole runs over rows of a file."""

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp()
        self.notes = Path(self.folder) / "notes"
        self.flags = [*FLAGS, "--token_cache", f"{self.folder}/cache"]

    def tokenized(self, first="good", *flags) -> int:
        """How often a run tokenizes its training rows."""
        self.notes.write_text("")
        file, run = rows_file(self.folder, 8, first), tempfile.mkdtemp(dir=self.folder)
        with (
            mock.patch.object(token_cache, "FEWEST_ROWS", 2),
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
        flags = [*self.flags, "--train_file", rows_file(self.folder, token_cache.FEWEST_ROWS)]
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
