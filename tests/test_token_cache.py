"""Tokenized rows are kept by what they were made of, found again whole, and never taken where they are not.

From 5,000 rows on; most tests keep as few as 50.
"""

import contextlib
import functools
import importlib.metadata
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import datasets
import numpy as np
import pytest
from absl.testing import parameterized
from inner_sizes import keeping_rows_from
from support import folder, later_wins

import fine_tune_t5

ROOT = Path(__file__).parent.parent
FEWEST_ROWS, ROWS = 5000, 50
FLAGS = (
    "mini.yaml --max_steps 1 --eval_strategy no --per_device_train_batch_size 4 --use_cpu --disable_tqdm True "
    "--config_overrides d_model=16,d_kv=8,d_ff=16,num_layers=1,num_heads=2"
).split()
VERSION = importlib.metadata.version


def rows_file(directory, count=ROWS, first="good") -> str:
    """Training rows of mini/sentiment, the first of which says `first`."""
    path = Path(directory) / "rows.jsonl"
    texts = [first, *("a fine film" for _ in range(count - 1))]
    path.write_text("".join(json.dumps({"sentence": text, "label": 1}) + "\n" for text in texts), encoding="utf-8")
    return str(path)


@functools.cache
def filled_cache() -> tuple[Path, str]:
    """`(a cache that holds the rows of a file, the file)`; tests change copies of it."""
    cache, file = folder(), rows_file(folder())
    in_cache = mock.patch.object(datasets.config, "HF_DATASETS_CACHE", str(cache))
    with in_cache, keeping_rows_from(ROWS), contextlib.redirect_stdout(io.StringIO()):
        run_of(file, "--dry_run")
    return cache, file


def run_of(file, *flags):
    words = later_wins([*FLAGS, "--train_file", file], flags)
    fine_tune_t5.main([*words, "--output_dir", str(folder() / "run")])


class CacheCase(parameterized.TestCase):
    """A test with a cache of its own."""

    def setUp(self):
        super().setUp()
        self.use_cache(folder())

    def use_cache(self, path):
        self.cache = path
        self.enterContext(mock.patch.object(datasets.config, "HF_DATASETS_CACHE", str(path)))

    def use_filled_cache(self):
        self.use_cache(Path(shutil.copytree(filled_cache()[0], folder() / "cache")))
        self.assertLen(self.files(), 1)

    def files(self) -> list[Path]:
        return sorted(self.cache.rglob("*.npz"))

    def new_files(self, first="good", *flags, count=ROWS) -> int:
        """How many files `--dry_run`, which tokenizes, adds to the cache; those that are there stay as they are."""
        before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in self.files()}
        with contextlib.redirect_stdout(io.StringIO()):
            run_of(rows_file(folder(), count, first), "--dry_run", *flags)
        for path, content_and_time in before.items():
            self.assertEqual((path.read_bytes(), path.stat().st_mtime_ns), content_and_time)
        return len(self.files()) - len(before)


class FewRowsTest(CacheCase):
    @pytest.mark.slow
    def test_few_rows_are_not_kept(self):
        self.assertEqual(self.new_files(count=FEWEST_ROWS - 1), 0)
        self.assertEqual(self.new_files(count=FEWEST_ROWS), 1)


class CacheTest(CacheCase):
    def setUp(self):
        super().setUp()
        self.enterContext(keeping_rows_from(ROWS))

    @pytest.mark.slow
    def test_rows_are_tokenized_once_and_anew_where_something_has_changed(self):
        self.use_filled_cache()
        self.assertEqual(self.new_files("good", "--seed", "7", "--learning_rate", "1e-4"), 0)
        self.assertEqual(self.new_files("bad"), 1)
        self.assertEqual(self.new_files("good", "--add_tokens", "film"), 1)
        self.assertEqual(self.new_files("good", "--max_source_length", "5"), 1)

    def test_what_another_version_of_the_tokenizers_made_is_not_taken(self):
        self.use_filled_cache()
        version = lambda name: "another" if name == "tokenizers" else VERSION(name)
        with mock.patch("importlib.metadata.version", version):
            self.assertEqual(self.new_files(), 1)

    @pytest.mark.slow
    def test_kept_rows_give_the_run_of_rows_that_are_not_kept(self):
        self.use_filled_cache()
        file = filled_cache()[1]
        weights = []
        for caches in (True, False):
            run = folder() / "run"
            with mock.patch("datasets.is_caching_enabled", return_value=caches):
                fine_tune_t5.main([*FLAGS, "--train_file", file, "--output_dir", str(run)])
            weights.append((run / "model.safetensors").read_bytes())
        self.assertEqual(*weights)
        self.assertLen(self.files(), 1)

    @parameterized.parameters("torn", "zeroed", "emptied")
    @pytest.mark.quick_cases(1)
    def test_a_damaged_file_is_rebuilt(self, damage):
        self.use_filled_cache()
        (place,) = self.files()
        whole = place.read_bytes()
        start = whole.index(np.array([349, 345], np.int32).tobytes())  # of "sentiment sentence"
        damaged = {"torn": whole[:-40], "zeroed": whole[:start] + bytes(8) + whole[start + 8 :], "emptied": b""}
        place.write_bytes(damaged[damage])
        messages = io.StringIO()
        with contextlib.redirect_stderr(messages), contextlib.redirect_stdout(io.StringIO()):
            run_of(filled_cache()[1], "--dry_run")
        self.assertIn("are rebuilt", messages.getvalue())
        self.assertEqual(place.read_bytes(), whole)

    @pytest.mark.slow
    @pytest.mark.ranks
    def test_of_two_ranks_and_two_runs_at_once_one_process_tokenizes(self):
        where = tempfile.mkdtemp()
        words = later_wins(FLAGS, ["--disable_tqdm", "False", "--train_file", rows_file(where, FEWEST_ROWS)])
        script = str(ROOT / "fine_tune_t5.py")
        ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", script]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        environment["HF_DATASETS_CACHE"] = str(self.cache)
        running = [
            subprocess.Popen([*program, *words, "--output_dir", f"{where}/run{number}"],
                             env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for number, program in enumerate((ranks, [sys.executable, script]))
        ]  # fmt: skip
        num_tokenizing = 0
        for process in running:
            _, messages = process.communicate(timeout=300)
            self.assertEqual(process.returncode, 0, messages[-3000:])
            num_tokenizing += messages.count("tokenizing sentiment train:   0%")
        # None is seen if it is the second rank that tokenizes: its bars are hidden.
        self.assertLessEqual(num_tokenizing, 1)
        self.assertLen(self.files(), 1)
