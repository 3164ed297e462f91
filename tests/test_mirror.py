"""The mirror: what it writes equals what the hub would give, whole files only, and a clear word without a network."""

import contextlib
import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import datasets
import pytest
from absl.testing import parameterized
from hub_server import HubServer

from t5suite import constants, load_task
from t5suite.testing import exits_with, load_rows, run_cli

RTE = {
    split: [
        {"sentence1": f"Premise {i} of {split}.", "sentence2": "Straße \u2028 ünd\n\ttab", "label": label, "idx": i}
        for i, label in enumerate(labels)
    ]
    for split, labels in {"train": [0, 1, 0], "validation": [1, 0], "test": [-1, -1]}.items()
}
STSB = {
    split: [{"sentence1": "a", "sentence2": "b", "label": label, "idx": i} for i, label in enumerate(labels)]
    for split, labels in {"train": [3.8, 0.5], "validation": [2.333], "test": [-1.0]}.items()
}
RECORD = {
    split: [
        {"passage": "Zoe met Adam.\n@highlight\nIt rained", "query": "@placeholder met Adam",
         "entities": ["Zoe", "Adam", "Zoe"], "answers": ["Zoe"] if split != "test" else [],
         "entity_spans": {"text": ["Zoe", "Adam"], "start": [0, 8], "end": [3, 12]},
         "idx": {"passage": 0, "query": 0}}
    ]
    for split in ("train", "validation", "test")
}  # fmt: skip
PAIR = {"sentence1": datasets.Value("string"), "sentence2": datasets.Value("string"), "idx": datasets.Value("int32")}
CLASSES = datasets.ClassLabel(names=["entailment", "not_entailment"])
FEATURES = {
    "rte": datasets.Features({**PAIR, "label": CLASSES}),
    "stsb": datasets.Features({**PAIR, "label": datasets.Value("float32")}),
    "record": None,
}


def stand_in(folder: Path) -> Path:
    """A folder that `datasets.load_dataset(folder, name)` reads as it reads the hub's repositories."""
    configurations = []
    for name, splits in (("rte", RTE), ("stsb", STSB), ("record", RECORD)):
        lines = [f"- config_name: {name}", "  data_files:"]
        for split, rows in splits.items():
            path = folder / name / f"{split}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            datasets.Dataset.from_list(rows, features=FEATURES[name]).to_parquet(str(path))
            lines += [f"  - split: {split}", f"    path: {name}/{split}.parquet"]
        configurations += lines
    (folder / "README.md").write_text("\n".join(["---", "configs:", *configurations, "---", ""]), encoding="utf-8")
    return folder


class StandInTest(parameterized.TestCase):
    """Tests whose hub is a local folder, read by the real `load_dataset`."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hub = stand_in(Path(tempfile.mkdtemp()) / "hub")

    def setUp(self):
        super().setUp()
        self.directory = Path(tempfile.mkdtemp())
        cache = mock.patch.object(datasets.config, "HF_DATASETS_CACHE", Path(tempfile.mkdtemp()))
        offline = mock.patch.dict(os.environ, HF_HUB_OFFLINE="1")  # the hub is a folder
        registry = {
            benchmark: {name: {**entry, "hub_path": str(self.hub)} for name, entry in tasks.items()}
            for benchmark, tasks in constants.DATASET_VALS.items()
        }
        entries = mock.patch.dict(constants.DATASET_VALS, registry)
        for patch in (cache, offline, entries):
            patch.start()
            self.addCleanup(patch.stop)

    def command(self, *argv):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run_cli("mirror", *argv, "--output_dir", str(self.directory))
        return out.getvalue(), err.getvalue()

    @parameterized.parameters(("glue", "rte", False), ("glue", "stsb", True), ("super_glue", "record", False))
    @pytest.mark.quick_cases(1)
    def test_a_mirror_gives_the_rows_that_the_hub_gives(self, benchmark, name, gzipped):
        task = load_task(benchmark, name)
        self.command("--benchmark", benchmark, "--dataset_name", name, *(["--gzip"] if gzipped else []))
        names = {"train", "validation", "test"}
        suffix = ".jsonl.gz" if gzipped else ".jsonl"
        files = os.listdir(self.directory / benchmark / name)
        self.assertEqual({file.removesuffix(suffix) for file in files}, names)
        for split in names:
            mirrored = load_rows(task, split, data_dir=str(self.directory))
            from_hub = load_rows(task, split)
            self.assertEqual(mirrored, from_hub)
            self.assertEqual(list(mirrored[0]), list(from_hub[0]))
            self.assertLen(from_hub, len({"rte": RTE, "stsb": STSB, "record": RECORD}[name][split]))
            if name == "record":
                self.assertEqual(mirrored[0]["entities"], ["Adam", "Zoe"])

    def test_files_that_exist_are_kept_unless_forced(self):
        self.command("--benchmark", "glue", "--dataset_name", "rte")
        path = self.directory / "glue" / "rte" / "train.jsonl"
        path.write_text('{"mine": 1}\n', encoding="utf-8")
        out, _ = self.command("--benchmark", "glue", "--dataset_name", "rte", "--gzip")
        self.assertEqual(out.count("exists already"), 3)
        self.assertEqual(path.read_text(encoding="utf-8"), '{"mine": 1}\n')
        self.command("--benchmark", "glue", "--dataset_name", "rte", "--gzip", "--force")
        # One form of each split: both would be refused when they are read.
        self.assertEqual(sorted(os.listdir(path.parent)), ["test.jsonl.gz", "train.jsonl.gz", "validation.jsonl.gz"])
        with gzip.open(f"{path}.gz", "rt", encoding="utf-8") as file:
            self.assertEqual([json.loads(line) for line in file], RTE["train"])

    def test_a_task_that_says_no_official_number_of_rows_is_mirrored(self):
        constants.DATASET_VALS["glue"]["rte"]["num_examples"] = None
        self.command("--benchmark", "glue", "--dataset_name", "rte")
        self.assertLen(os.listdir(self.directory / "glue" / "rte"), 3)

    def test_a_revision_of_another_repository_is_refused(self):
        with exits_with(78, "--data_revision: .*does not read 'lab/other'"):
            self.command("--benchmark", "glue", "--dataset_name", "rte", "--data_revision", "lab/other=v1")
        self.assertEmpty(os.listdir(self.directory))

    def test_a_file_appears_whole_or_not_at_all(self):
        """The rows are read once when they are checked, and fail when they are written."""

        class DyingDataset(datasets.Dataset):
            num_passes = 0

            def __iter__(self):
                self.num_passes += 1
                for i, row in enumerate(super().__iter__()):
                    if self.num_passes > 1 and i == 1:
                        raise OSError("the connection is gone")
                    yield row

        load_dataset = datasets.load_dataset

        def load_dying(*arguments, **settings):
            rows = load_dataset(*arguments, **settings)
            rows.__class__ = DyingDataset
            return rows

        dying = mock.patch.object(datasets, "load_dataset", load_dying)
        with dying, self.assertRaisesRegex(OSError, "the connection is gone"):
            self.command("--benchmark", "glue", "--dataset_name", "rte")
        self.assertEmpty(os.listdir(self.directory / "glue" / "rte"))


class WithoutHubTest(parameterized.TestCase):
    """Whether there is a network is asked once in a process, so each case is a process of its own."""

    @parameterized.parameters("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", None)
    @pytest.mark.slow
    def test_without_a_network_the_answer_comes_at_once_and_nothing_is_asked(self, variable):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
        # Nothing listens on port 9: the same as a compute node without a way out.
        environment.update(HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=tempfile.mkdtemp())
        hub = self.enter_context(HubServer())
        if variable:
            environment |= {**hub.environment(environment["HF_HOME"]), variable: "1"}
        directory = Path(tempfile.mkdtemp())
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "t5suite", "mirror", "--benchmark", "glue", "--dataset_name", "rte", "--output_dir", str(directory)],
            env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        self.assertLess(time.monotonic() - start, 15)
        self.assertEqual(done.returncode, 65 if variable else 75, done.stderr)
        self.assertEqual(hub.requests, [])
        self.assertIn("cannot reach the hub for nyu-mll/glue", done.stderr)
        self.assertIn("t5suite mirror --benchmark glue --dataset_name rte --output_dir", done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertEmpty(os.listdir(directory))
