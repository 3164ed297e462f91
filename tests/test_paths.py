"""Names and paths: whatever becomes part of a path stays below its folder, and code in data is not run.

The law behind each case: it is refused with a UserError, and what lies outside the folder is as it was.
"""

import contextlib
import itertools
import json
import os
import pickle
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import torch
from absl.testing import parameterized
from write_guard import ForbiddenAct, WriteGuard, tree

from t5suite import load_task
from t5suite.base.errors import UserError
from t5suite.base.lookup import MAX_NAME_BYTES, check_name, path_inside
from t5suite.data.corpora.documents import read_documents
from t5suite.data.corpora.store import TokenStore
from t5suite.data.rows.sources import DataOptions, LoadedSplit, load_split, mirror_split
from t5suite.models.loading import load_model, load_tokenizer
from t5suite.models.weights import read_weights
from t5suite.runs.directory import default_output_dir, new_run_id, open_run
from t5suite.testing import exits_with, tiny_tokenizer, write_rows

OUTWARD = ("../x", "..", ".", "/etc/x", "a/b", "a\\b", "", " ", "a\0b", "a\nb", ".hidden", "x" * 300, "é" * 60)
LITERAL = ("rte", "wsc.fixed", "train[:5%]", "; rm -rf x", "$(touch x)", "`id`", "a'b\"c", "x" * MAX_NAME_BYTES, "naïve",
           "a b", "-rf")  # fmt: skip
TINY = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"
ENTRY = {"prefix": "x: ", "text_column_name": "a", "label_column_name": "label", "labels": ["no", "yes"],
         "metric_names": ["accuracy"], "metric_to_optimize": "accuracy"}  # fmt: skip


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
        for name in (*OUTWARD, 5, None, b"x"):
            with self.subTest(name=name), exits_with(78, "tasks.yaml:2: the task name .* cannot"):
                check_name(name, "task", where="tasks.yaml:2")

    def test_any_other_name_is_taken_literally_and_stays_in_its_folder(self):
        for name in LITERAL:
            with self.subTest(name=name):
                self.assertEqual(check_name(name, "task"), name)
                path = self.folder / f"{name}.validation_mismatched.jsonl.gz"
                path.write_text("x")
                self.assertEqual(os.listdir(self.folder), [path.name])
                self.assertEqual(path_inside(self.folder, path.name), path)
                path.unlink()

    def test_no_name_of_a_task_file_leads_out(self):
        for name, place in itertools.product(OUTWARD[:9], ["benchmark", "task", "rows_of", "split", "splits"]):
            names = {"benchmark": "mine", "task": "topics", **{place: name}}
            splits = {"train": "train", "validation": name if place == "split" else ["a", name]}
            own = {"rows_of": {"rows_of": name}, "split": {"splits": splits}, "splits": {"splits": splits}}
            table = {names["benchmark"]: {names["task"]: ENTRY | own.get(place, {})}}
            for path in (self.write("tasks.yaml", table), self.write("tasks.py", f"DATASET_VALS = {table!r}\n")):
                refused = exits_with(78, "cannot be part of a path|must be")
                with self.subTest(name=name, place=place), refused:
                    load_task(names["benchmark"], names["task"], str(path))

    def test_a_mirror_is_not_written_through_a_link(self):
        (self.folder / "glue").symlink_to(self.canary)
        task, rows = load_task("glue", "rte"), [{"sentence1": "a", "sentence2": "b", "label": 0}]
        hub = mock.patch("t5suite.data.rows.sources.load_hub", return_value=LoadedSplit(rows, "", "", 0))
        with hub, exits_with(78, "glue/rte/train does not lie below"):
            mirror_split(task, "train", "train", self.folder, None, gzipped=False, force=True)


class RunsTest(Folders):
    def test_a_sweeps_run_id_leads_nowhere_else(self):
        makers = (new_run_id, lambda: default_output_dir("glue", "rte", None))
        for run_id, make in itertools.product(("../../x", "/tmp/x", "a/b", "..", "a\nb"), makers):
            refused = exits_with(78, "WANDB_RUN_ID: the run name")
            with mock.patch.dict(os.environ, WANDB_RUN_ID=run_id), self.subTest(run_id=run_id), refused:
                make()

    def test_a_models_name_leads_nowhere_else(self):
        for model in ("..", "/", "../..", "a/../..", "x/..", "google/t5 $(x)", "/home/me/.."):
            for directory in (default_output_dir("glue", "rte", model), default_output_dir("pre_train", "", model)):
                self.assertEqual(Path(directory).resolve().parent, self.folder.resolve() / "runs", model)

    def test_a_run_is_not_written_through_links_in_its_directory(self):
        open_run(self.folder / "run", {"seed": 1}).update()
        self.assertTrue(open_run(self.folder / "run", {"seed": 1}).resumed)
        (self.folder / "run" / "predictions").symlink_to(self.canary)
        with exits_with(78, "predictions does not lie below"):
            open_run(self.folder / "run", {"seed": 1})


class CheckpointsTest(Folders):
    @parameterized.parameters(
        "../outside.safetensors", "{root}/outside.safetensors", "sub/../../outside.safetensors", ".."
    )
    def test_an_index_of_weights_names_files_beside_it(self, name):
        model, tokenizer = tiny_model()
        folder = self.folder / "model"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        shutil.move(folder / "model.safetensors", self.folder / "outside.safetensors")
        (folder / "sub").mkdir()
        places = dict.fromkeys(model.state_dict(), name.format(root=self.folder))
        self.write("model/model.safetensors.index.json", {"metadata": {}, "weight_map": places})
        with exits_with(78, "does not lie beside its index"):
            load_model(str(folder), tokenizer=tokenizer)
        with exits_with(78, "does not lie beside its index|is missing"):
            read_weights(folder)

    @parameterized.parameters("../shard", "/shard", "a/b", "..")
    def test_a_corpus_has_its_files_inside(self, name):
        shard = {"name": "shard-00000-of-00001", "splits": {}, "files": {}}
        for bad in ({"name": name}, {"files": {name: {"size": 0, "sha256": ""}}}):
            manifest = {"format": "t5suite corpus", "version": 1, "splits": {}, "shards": [{**shard, **bad}]}
            manifest |= {"dtype": "uint16", "settings": {"split_sentences": False}}
            self.write("corpus.json", manifest)
            with self.assertRaisesRegex(UserError, "cannot be part of a path"):
                TokenStore.open(self.folder)


def tiny_model():
    tokenizer = tiny_tokenizer()
    return load_model(None, tokenizer=tokenizer, config_overrides=TINY), tokenizer


class PayloadsTest(Folders):
    """A pickle that makes a folder when it is read, in place of every file of a model."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        model, tokenizer = tiny_model()
        model.save_pretrained(cls.model)
        tokenizer.save_pretrained(cls.model)

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
            places = dict.fromkeys(tiny_model()[0].state_dict(), file)
            self.write("model/pytorch_model.bin.index.json", {"metadata": {}, "weight_map": places})
        (folder / file).write_bytes(self.payload(form))
        with contextlib.suppress(UserError), WriteGuard(self.folder):
            load_model(str(folder), tokenizer=load_tokenizer(str(folder)))
        with contextlib.suppress(UserError), WriteGuard(self.folder):
            read_weights(folder)


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
        for read in (
            lambda: load_split(load_task("glue", "sst2"), "train", "train", DataOptions(train_file=str(archive))),
            lambda: list(read_documents(str(archive))),
            lambda: load_tokenizer(str(archive)),
            lambda: load_model(str(archive), tokenizer=tiny_tokenizer()),
            lambda: read_weights(archive),
        ):
            with self.assertRaises(UserError), WriteGuard(self.folder):
                read()
        self.assertEqual(tree(self.folder), before)
