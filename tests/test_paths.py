"""Names and paths: whatever becomes part of a path stays below its folder, and code in data is not run.

The law behind each case: it is refused with an exit code of its own, and what lies outside the folder is as it was.
"""

import contextlib
import functools
import itertools
import json
import os
import pickle
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import safetensors
import torch
from absl.testing import parameterized
from write_guard import ForbiddenAct, WriteGuard, tree

import fine_tune_t5
from t5suite import FineTuner, load_task
from t5suite.testing import (
    TINY_T5,
    bundled_model,
    encode_rows,
    exits_with,
    load_rows,
    make_task,
    run_cli,
    save_model,
    tiny_run,
    write_rows,
)

OUTWARD = ("../x", "..", ".", "/etc/x", "a/b", "a\\b", "", " ", "a\0b", "a\nb", ".hidden", "x" * 300, "é" * 60)
LONGEST_NAME = 100
LITERAL = ("rte", "wsc.fixed", "train[:5%]", "; rm -rf x", "$(touch x)", "`id`", "a'b\"c", "x" * LONGEST_NAME, "naïve",
           "a b", "-rf")  # fmt: skip
ENTRY = {"prefix": "x: ", "text_column_name": "a", "label_column_name": "label", "labels": ["no", "yes"],
         "metric_names": ["accuracy"], "metric_to_optimize": "accuracy"}  # fmt: skip


@contextlib.contextmanager
def refused(at_least_once: bool = True):
    """The block ends with an error that has an exit code; or, unless `at_least_once`, without any."""
    refusal = SimpleNamespace(exception=None)
    try:
        yield refusal
    except Exception as error:
        if getattr(error, "exit_code", None) is None:
            raise
        refusal.exception = error
        return
    if at_least_once:
        raise AssertionError("nothing was refused")


class Folders(parameterized.TestCase):
    """A folder to work in, beside a canary that nothing may touch."""

    def setUp(self):
        super().setUp()
        self.root = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        self.folder, self.canary = self.root / "here", self.root / "canary"
        for folder in (self.folder, self.canary):
            folder.mkdir()
        (self.canary / "file").write_text("untouched")
        self.enterContext(contextlib.chdir(self.folder))
        before = tree(self.canary)
        self.addCleanup(lambda: self.assertEqual(tree(self.canary), before))

    def write(self, name: str, value) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return path


class NamesTest(Folders):
    def test_a_name_that_is_no_single_part_of_a_path_is_refused(self):
        for name in (*OUTWARD, 5):
            path = self.write("tasks.py", f"DATASET_VALS = {{'mine': {{{name!r}: {ENTRY!r}}}}}\n")
            with self.subTest(name=name), exits_with(78, "tasks.py.*the task name .* cannot"):
                load_task("mine", str(name), str(path))

    def test_any_other_name_is_taken_literally_and_stays_in_its_folder(self):
        row = {"text": "Fine.", "label": 1}
        for name in LITERAL:
            with self.subTest(name=name):
                path = write_rows(self.folder / "own" / name / "validation.jsonl", [row])
                self.assertEqual(load_rows(make_task(name), data_dir=str(self.folder)), [row])
                self.assertEqual(os.listdir(self.folder), ["own"])
                self.assertEqual(os.listdir(self.folder / "own"), [name])
                shutil.rmtree(path.parent)

    def test_no_name_of_a_task_file_leads_out(self):
        for name, place in itertools.product(OUTWARD[:9], ["benchmark", "task", "rows_of", "split", "splits"]):
            names = {"benchmark": "mine", "task": "topics", **{place: name}}
            splits = {"train": "train", "validation": name if place == "split" else ["a", name]}
            changes = {"rows_of": {"rows_of": name}, "split": {"splits": splits}, "splits": {"splits": splits}}
            table = {names["benchmark"]: {names["task"]: ENTRY | changes.get(place, {})}}
            for path in (self.write("tasks.yaml", table), self.write("tasks.py", f"DATASET_VALS = {table!r}\n")):
                with self.subTest(name=name, place=place), exits_with(78, "cannot be part of a path|must be"):
                    load_task(names["benchmark"], names["task"], str(path))

    def test_a_mirror_is_not_written_through_a_link(self):
        (self.folder / "glue").symlink_to(self.canary)
        with mock.patch.dict(os.environ, HF_HUB_OFFLINE="1"), exits_with(78, "glue/rte/train does not lie below"):
            run_cli("mirror", "--benchmark", "glue", "--dataset_name", "rte", "--output_dir", self.folder)


@functools.cache
def finished_run() -> tuple[Path, dict]:
    """A run, and the flags that made it."""
    flags = {"config_overrides": TINY_T5, "from_scratch": True, "use_cpu": True, "max_eval_samples": 4, "max_steps": 1}
    run = tiny_run(**flags, logging_steps=1, per_device_train_batch_size=8)
    return run.directory, {**flags, "logging_steps": 1, "per_device_train_batch_size": 8}


class RunsTest(Folders):
    def test_a_sweeps_run_id_leads_nowhere_else(self):
        for run_id, flags in itertools.product(("../../x", "/tmp/x", "a/b", "..", "a\nb"), ([], ["--output_dir=run"])):
            environment = mock.patch.dict(os.environ, WANDB_RUN_ID=run_id)
            with self.subTest(run_id=run_id), environment, exits_with(78, "WANDB_RUN_ID: the run name"):
                fine_tune_t5.main(flags)
        self.assertEmpty(os.listdir(self.folder))

    @pytest.mark.slow
    def test_a_models_name_leads_nowhere_else(self):
        (self.folder / "x").mkdir()
        for place in (self.folder, self.root):
            save_model(place)
        for model in ("..", "x/..", "x/../..", str(self.folder / "x" / ".."), "../here $(x)/.."):
            (self.root / "here $(x)").mkdir(exist_ok=True)
            directory = FineTuner(model, "mini/sentiment", use_cpu=True).args.output_dir
            self.assertEqual(Path(directory).resolve().parent, self.folder.resolve() / "runs", model)

    @pytest.mark.slow
    def test_a_run_is_not_written_through_links_in_its_directory(self):
        run, flags = finished_run()
        directory = shutil.copytree(run, self.folder / "run")
        words = [f"--{name}={value}" for name, value in {**flags, "output_dir": directory}.items()]
        fine_tune_t5.main(words)  # it is that run
        (directory / "predictions").rename(directory / "p")
        (directory / "predictions").symlink_to(self.canary)
        with exits_with(78, "predictions does not lie below"):
            fine_tune_t5.main(words)


class CheckpointsTest(Folders):
    @parameterized.parameters(
        "../outside.safetensors", "{root}/outside.safetensors", "sub/../../outside.safetensors", ".."
    )
    @pytest.mark.quick_cases(1)
    def test_an_index_of_weights_names_files_beside_it(self, name):
        folder = save_model(self.folder / "model")
        tensors = safetensors_names(folder)
        shutil.move(folder / "model.safetensors", self.folder / "outside.safetensors")
        (folder / "sub").mkdir()
        places = dict.fromkeys(tensors, name.format(root=self.folder))
        self.write("model/model.safetensors.index.json", {"metadata": {}, "weight_map": places})
        with exits_with(78, "does not lie beside its index"):
            FineTuner(folder, use_cpu=True)
        with exits_with(78, "does not lie beside its index|is missing"):
            run_cli("export", "--model_name_or_path", folder, "--output_dir", self.folder / "exported")

    @parameterized.parameters("../shard", "/shard", "a/b", "..")
    def test_a_corpus_has_its_files_inside(self, name):
        shard = {"name": "shard-00000-of-00001", "splits": {}, "files": {}}
        for bad in ({"name": name}, {"files": {name: {"size": 0, "sha256": ""}}}):
            manifest = {"format": "t5suite corpus", "version": 1, "splits": {}, "shards": [{**shard, **bad}]}
            manifest |= {"dtype": "uint16", "settings": {"split_sentences": False}}
            self.write("corpus.json", manifest)
            with refused() as refusal:
                run_cli("corpus", "show", self.folder)
            self.assertIn("cannot be part of a path", str(refusal.exception))


def safetensors_names(folder) -> list[str]:
    with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
        return list(file.keys())


class PayloadsTest(Folders):
    """A pickle that makes a folder when it is read, in place of every file of a model."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        save_model(cls.model)
        cls.tensors = safetensors_names(cls.model)

    def payload(self, form: str) -> bytes:
        """Reading it as a pickle makes a folder inside the canary."""
        place = str(self.canary / "run")
        raw = b"cos\nmkdir\n(V" + place.encode() + b"\ntR."
        with self.assertRaises(ForbiddenAct), WriteGuard(self.folder):
            pickle.loads(raw)
        if form == "raw":
            return raw
        path = self.root / "payload.pt"
        torch.save({"shared.weight": _Payload(place)}, path)
        with self.assertRaises(ForbiddenAct), WriteGuard(self.folder):
            torch.load(path, weights_only=False)
        content = path.read_bytes()
        path.unlink()
        return content

    @parameterized.product(
        file=["model.safetensors", "pytorch_model.bin", "pytorch_model-1.bin", "config.json", "generation_config.json",
              "tokenizer.json", "tokenizer_config.json", "spiece.model", "training_args.bin", "optimizer.pt"],
        form=["raw", "zip"],
    )  # fmt: skip
    def test_a_payload_in_a_models_folder_is_not_run(self, file, form):
        folder = self.folder / "model"
        shutil.copytree(self.model, folder)
        if file.startswith("pytorch_model"):
            (folder / "model.safetensors").unlink()
        if file == "pytorch_model-1.bin":
            places = dict.fromkeys(self.tensors, file)
            self.write("model/pytorch_model.bin.index.json", {"metadata": {}, "weight_map": places})
        (folder / file).write_bytes(self.payload(form))
        with refused(at_least_once=False), WriteGuard(self.folder):
            FineTuner(folder, use_cpu=True)


class _Payload:
    def __init__(self, place: str):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (self.place,)


class ArchivesTest(Folders):
    @parameterized.parameters(".zip", ".tar", ".tar.gz", ".tgz")
    def test_an_archive_is_not_read(self, suffix):
        (self.folder / "inside").mkdir()
        write_rows(self.folder / "inside" / "train.jsonl", [{"sentence": "a", "label": 0, "text": "a"}])
        kind = {".zip": "zip", ".tar": "tar"}.get(suffix, "gztar")
        made = Path(shutil.make_archive(str(self.root / "made"), kind, self.folder / "inside"))
        archive = made.rename(self.folder / f"rows{suffix}")
        before = tree(self.folder)
        tokens = ["--tokenizer_name", bundled_model(), "--output_dir", self.folder / "corpus"]
        for read in (
            lambda: load_rows(load_task("glue", "sst2"), "train", train_file=str(archive)),
            lambda: run_cli("corpus", "build", "--input", archive, *tokens),
            lambda: encode_rows([], make_task(), tokenizer=str(archive)),
            lambda: FineTuner(str(archive), use_cpu=True),
            lambda: run_cli("export", "--model_name_or_path", archive, "--output_dir", self.folder / "exported"),
        ):
            with refused(), WriteGuard(self.folder):
                read()
        self.assertEqual(tree(self.folder), before)
