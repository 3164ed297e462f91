"""Models, functions and callbacks of the user's own obey the laws."""

import contextlib
import dataclasses
import functools
import io
import json
import linecache
import math
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple
from unittest import mock

import numpy as np
import plug_in_modules
import pytest
import torch
from absl.testing import parameterized
from law_worker import reported_by_two_ranks
from support import changed_trainer, damaged_files, later_wins, untimed
from transformers import EarlyStoppingCallback

import fine_tune_t5
import pre_train_t5
from t5suite.testing import exits_with, read_rows, run_cli, save_model, tiny_rows, tiny_run, tiny_trainer, write_rows
from t5suite.training import plug_in_descriptions, plug_ins
from t5suite.training.batch_metrics import MeasuredLoss, weighted_sums
from t5suite.training.plug_ins import TransformedCollator, row_generators

RELATIVE = 2e-6
SMALL = """--max_train_samples 48 --max_eval_samples 10 --per_device_train_batch_size 8 --use_cpu --disable_tqdm True
    --eval_strategy steps --eval_steps 2 --logging_steps 1 --max_steps 6 --learning_rate 0.01""".split()


def run(directory, *flags, **patches):
    with changed_trainer(**patches):
        return fine_tune_t5.main(later_wins([*SMALL, "--output_dir", str(directory), *flags]))


def new_folder() -> Path:
    return Path(tempfile.mkdtemp()) / "run"


def manifest_of(folder) -> dict:
    return json.loads((folder / "manifest.json").read_text())


@functools.cache
def one_rank(kind, batch_size=8, accumulation=1):
    return plug_in_modules.history(kind, batch_size, accumulation)


@functools.cache
def two_ranks():
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with mock.patch.dict(os.environ, PYTHONPATH=path):
        return reported_by_two_ranks(plug_in_modules.__file__)


class LossLawTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        one_rank("labels")

    def assert_same_course(self, found, expected):
        self.assertLen(found["loss"], 6)  # 21 rows, 8 an update: 3 updates in each of 2 epochs
        for name in ("loss", "grad_norm", "certainty", "input_length", "eval_loss"):
            np.testing.assert_allclose(found[name], expected[name], rtol=RELATIVE, err_msg=name)
        self.assertEqual(found["rows"], list(range(13)))

    @parameterized.product(kind=list(plug_in_modules.PLUG_INS), sizes=[(4, 2), (2, 4)])
    @pytest.mark.slow
    @pytest.mark.law
    def test_cutting_an_update_of_an_own_model_into_micro_batches_changes_nothing(self, kind, sizes):
        self.assert_same_course(one_rank(kind, *sizes), one_rank(kind))

    @parameterized.parameters(*plug_in_modules.PLUG_INS)
    @pytest.mark.slow
    @pytest.mark.law
    def test_two_ranks_equal_one(self, kind):
        """The epoch's last update has 5 rows: one rank has four of them, the other one."""
        self.assert_same_course(two_ranks()[kind], one_rank(kind))


# ---------------------------------------------------------------------------------------------------------------------
# Law 3 and law 4

RESUMED = [
    "--model_class", "plug_in_modules:OwnT5", "--dropout_rate", "0.1",
    "--batch_transform", "plug_in_modules:hide_words", "--batch_metrics", "plug_in_modules:certainty",
    "--metrics", "plug_in_modules:first_letter", "--callbacks", "plug_in_modules:CountSteps",
    "--metric_for_best_model", "first_letter",
]  # fmt: skip


@functools.cache
def whole():
    folder = new_folder()
    return run(folder, *RESUMED), folder


class ResumeTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        whole()

    @parameterized.parameters(1, 2, 3, 6)
    @pytest.mark.slow
    @pytest.mark.resume
    def test_a_stopped_run_of_an_own_model_goes_on_bit_by_bit(self, step):
        expected, reference = whole()
        folder = new_folder()
        with exits_with(75):
            run(folder, *RESUMED, stop_requested=lambda trainer: trainer.state.global_step + 1 == step)
        self.assertEmpty(damaged_files(folder / f"checkpoint-{step}"))
        self.assertEqual(run(folder, *RESUMED), expected)
        self.assertEqual(untimed(folder), untimed(reference))
        self.assertEqual(*[(path / "model.safetensors").read_bytes() for path in (folder, reference)])

    @pytest.mark.slow
    def test_callbacks_and_metrics_are_seen_in_the_files(self):
        results, folder = whole()
        self.assertIn("first_letter", results["tasks"]["sentiment"])
        lines = untimed(folder)
        self.assertEqual([line["train/counted_steps"] for line in lines if "train/loss" in line], [1, 2, 3, 4, 5, 6])
        self.assertTrue(all("train/certainty" in line for line in lines if "train/loss" in line))
        self.assertLen([line for line in lines if "eval/first_letter" in line], 3)

    def test_the_manifest_names_every_plug_in_and_its_file(self):
        described = manifest_of(whole()[1])["settings"]["plug_ins"]
        names = {subject: [entry["name"] for entry in entries] for subject, entries in described.items()}
        self.assertEqual(names, {
            "batch_transform": ["plug_in_modules:hide_words"], "batch_metrics": ["plug_in_modules:certainty"],
            "metrics": ["plug_in_modules:first_letter"], "callbacks": ["plug_in_modules:CountSteps"],
            "model_class": ["plug_in_modules:OwnT5"],
        })  # fmt: skip
        self.assertTrue(all(len(entry["sha256"]) == 64 for entries in described.values() for entry in entries))

    def test_a_metric_of_one_s_own_that_a_model_s_run_had_is_named_where_it_is_not_computed(self):
        """Its code runs only where a flag names it."""
        model = whole()[1]
        name = "plug_in_modules:first_letter"
        command = ["--model_name_or_path", str(model), "--eval_only", "--model_class", "plug_in_modules:OwnT5"]
        with self.assertLogs("t5suite.training.user_metrics", "WARNING") as logs:
            results = run(new_folder(), *command)
        self.assertNotIn("first_letter", results["tasks"]["sentiment"])
        self.assertIn(f"--metrics {name}", logs.output[0])
        with self.assertNoLogs("t5suite.training.user_metrics", "WARNING"):
            results = run(new_folder(), *command, "--metrics", name)
        self.assertIn("first_letter", results["tasks"]["sentiment"])

        rows = tiny_rows("sentiment", count=4)
        answers = write_rows(new_folder() / "answers.jsonl", [{"prediction": "positive"}] * 4)
        files = ["--rows", write_rows(new_folder() / "rows.jsonl", rows), "--predictions", answers]
        with contextlib.redirect_stderr(io.StringIO()) as notes:
            run_cli("score", "--model_name_or_path", model, *files)
        command = shlex.split(re.search("t5suite (evaluate .*) does", notes.getvalue())[1])
        results = run(new_folder(), *command[1:], "--eval_only")
        self.assertIn("first_letter", results["tasks"]["sentiment"])

    @pytest.mark.slow
    def test_another_plug_in_of_the_same_name_is_another_run(self):
        _, folder = whole()
        changed = mock.patch.object(plug_in_descriptions, "file_sha256", lambda path: "f" * 64)
        with changed, exits_with(78, "plug_ins"):
            run(folder, *RESUMED)


class ModelClassTest(parameterized.TestCase):
    @parameterized.parameters(
        ("Reader", ["--model_family", "masked"], {"accuracy", "invalid_rate"}),
        ("Reader", ["--model_family", "masked", "--eval_method", "loss"], {"loss"}),
        ("OwnT5", ["--eval_method", "score"], {"accuracy", "invalid_rate"}),
    )
    @pytest.mark.slow
    def test_trains_saves_and_is_read_again_with_its_class_alone(self, name, flags, metrics):
        folder, spec = new_folder(), f"plug_in_modules:{name}"
        results = run(folder, "--model_class", spec, *flags)
        self.assertEqual(set(results["tasks"]["sentiment"]), metrics)
        self.assertEqual(manifest_of(folder)["model"]["class"], name)
        again = new_folder()
        read = ["--model_name_or_path", str(folder), "--eval_only"]
        self.assertEqual(run(again, *read, "--model_class", spec, *flags), results)
        with exits_with(78, f"add --model_class {spec}"):
            run(new_folder(), *read, *flags)

    @parameterized.parameters(
        (["--model_class", "plug_in_modules:Raeder"], "no 'Raeder'; did you mean Reader"),
        (["--model_class", "plug_in_modules:CountSteps"], "not a transformers.PreTrainedModel"),
        (["--model_class", "plug_in_modules:Reader"], "say how it reads and writes: --model_family"),
        (["--callbacks", "plug_in_modules:Reader"], "plug_in_modules:Reader"),
        (["--metrics", "accuracy"], "it belongs to --data_format"),
    )
    def test_what_cannot_be_is_said(self, flags, message):
        with exits_with(78, message):
            run(new_folder(), *flags)

    @parameterized.parameters(
        (["--model_class", "plug_in_modules:OwnT5", "--adapter", "lora"], "not --model_class"),
        (["--batch_transform", "plug_in_modules:hide_words_at_random"], "row_generators"),
        (["--metrics", "plug_in_modules:first_letter", "--metric_for_best_model", "first_leter"], "first_letter"),
    )
    @pytest.mark.slow
    def test_what_does_not_go_together_is_said_before_training(self, flags, message):
        with exits_with(78, message):
            run(new_folder(), *flags)


WRITER = """
import sys

from transformers import T5ForConditionalGeneration, TrainerCallback

class Writer(T5ForConditionalGeneration):
    def generate(self, *args, **kwargs):
        import words_here
        return super().generate(*args, **kwargs)

class Announce(TrainerCallback):
    def on_train_begin(self, *args, **kwargs):
        import words_here
        print(words_here.PREFIX, file=sys.stderr)
"""
TASKS = """
import words_here

DATASET_VALS = {"mine": {"topics": {
    "prefix": words_here.PREFIX, "text_column_name": "input", "label_column_name": "label", "labels": ["no", "yes"],
    "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
}}}
"""


class CurrentFolderTest(parameterized.TestCase):
    """A console script's path has its own folder, not the current one."""

    def setUp(self):
        super().setUp()
        self.folder = save_model(tempfile.mkdtemp())
        (self.folder / "plug_in_here.py").write_text(WRITER)
        (self.folder / "words_here.py").write_text("PREFIX = 'here: '\n")
        (self.folder / "tasks.py").write_text(TASKS)
        write_rows(self.folder / "rows.jsonl", [{"input": "a", "label": 1}])
        self.enter_context(contextlib.chdir(self.folder))
        self.enter_context(mock.patch.object(sys, "path", list(sys.path)))
        for name in ("plug_in_here", "words_here"):
            self.addCleanup(sys.modules.pop, name, None)

    @parameterized.parameters(
        ["predict --model_name_or_path . --input rows.jsonl --output answers.jsonl --use_cpu"],
        ["export --model_name_or_path . --output_dir exported"],
    )
    def test_every_command_finds_a_plug_in_of_the_current_folder_and_what_it_imports_later(self, command):
        with exits_with(78, "plug_in_here has no 'Wirter'; did you mean Writer"):
            run_cli(*command.split(), "--model_class", "plug_in_here:Wirter")
        run_cli(*command.split(), "--model_class", "plug_in_here:Writer")

    def test_a_script_finds_a_plug_in_of_the_current_folder_and_what_it_imports_later(self):
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            run(new_folder(), "--callbacks", "plug_in_here:Announce", "--max_steps", "1", "--max_eval_samples", "2")
        self.assertIn("here: \n", stderr.getvalue())

    def test_a_task_file_finds_modules_of_the_current_folder(self):
        task = "--task_file tasks.py --benchmark mine --dataset_name topics"
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            run_cli("preview", *task.split(), "--rows", "rows.jsonl")
        self.assertIn("here: a", stdout.getvalue())

    def test_what_import_finds_comes_first(self):
        folder_of_import = Path(tempfile.mkdtemp())
        (folder_of_import / "plug_in_here.py").write_text("class Reader:\n    pass\n")
        sys.path.insert(0, str(folder_of_import))
        with exits_with(78, "plug_in_here has no 'Wirter'; .* Reader"):
            run(new_folder(), "--callbacks", "plug_in_here:Wirter")


@pytest.mark.slow
class CommandsTest(parameterized.TestCase):
    def test_pre_training_takes_transforms_and_callbacks(self):
        shape = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"
        flags = ["--config_overrides", shape, "--max_steps", "3", "--per_device_train_batch_size", "4", "--use_cpu",
                 "--inputs_length", "32", "--logging_steps", "1", "--disable_tqdm", "True", "--eval_strategy", "no",
                 "--max_eval_samples", "8"]  # fmt: skip
        plain, changed = new_folder(), new_folder()
        pre_train_t5.main([*flags, "--output_dir", str(plain)])
        added = ["--batch_transform", "plug_in_modules:hide_words", "--callbacks", "plug_in_modules:CountSteps"]
        pre_train_t5.main(later_wins([*flags, *added, "--output_dir", str(changed)]))
        lines = [[line for line in untimed(path) if "train/loss" in line] for path in (plain, changed)]
        self.assertEqual([line["train/counted_steps"] for line in lines[1]], [1, 2, 3])
        self.assertNotEqual(lines[0][0]["train/loss"], lines[1][0]["train/loss"])

    def test_the_page_s_example_runs_as_it_stands_there(self):
        page = (Path(__file__).parent.parent / "docs" / "python.md").read_text()
        [command] = re.findall(r"\$ python fine_tune_t5.py ((?:.*\\\n)*.*)\n```", page)
        folder = Path(tempfile.mkdtemp())
        (folder / "my_plug_ins.py").write_text(re.search(r"```python\n(# my_plug_ins.py\n.*?)```", page, re.S)[1])
        words = [*shlex.split(command.replace("\\\n", " ")), "--use_cpu", "--disable_tqdm", "True"]
        words[words.index("runs/reader")] = str(folder / "reader")
        with mock.patch.object(sys, "path", [str(folder), *sys.path]):
            results = fine_tune_t5.main(words)["tasks"]["sentiment"]
        self.assertGreater(results["accuracy"], 75)
        self.assertIn("positive_share", results)
        self.assertTrue(any("train/certainty" in line for line in read_rows(folder / "reader" / "metrics.jsonl")))


@dataclasses.dataclass(slots=True)
class Hiding:
    """A transform with a setting, and with a state."""

    rate: float
    seen: list = dataclasses.field(default_factory=list, init=False)

    def __call__(self, batch):
        return batch

    def hide(self, batch):
        return batch


class NamedHiding(NamedTuple):
    """The same as a named tuple."""

    rate: float

    def __call__(self, batch):
        return batch


class NamedShowing(NamedTuple):
    """Another one with the same field."""

    rate: float


class Counting:
    """A metric that keeps what it has seen."""

    def __init__(self):
        self.seen = {}

    def __call__(self, predictions, targets):
        return {"seen": 1.0}

    def add(self, batch):
        return batch


class Summing(Counting):
    """Another one."""


def hide(batch, rate=0.0, words=()):
    return batch


def hiding(rate):
    return lambda batch: hide(batch, rate)


def chain(*inner):
    return lambda batch: functools.reduce(lambda changed, change: change(changed), inner, batch)


def holding_itself(rate):
    words = [rate]
    words.append({"words": words})
    return words


def calling_itself(rate):
    def halved(batch, depth=2):
        return halved(hide(batch, rate), depth - 1) if depth else batch

    return halved


def of_a_notebook(lines: str):
    """`transform` of code that is in no file, but its lines are known."""
    name = f"<cell {lines}>"
    linecache.cache[name] = (len(lines), None, lines.splitlines(True), name)
    names = {"__name__": "__main__"}
    exec(compile(lines, name, "exec"), names)
    return names["transform"]


MAKERS = {
    "partial": lambda rate: functools.partial(hide, rate=rate),
    "words_of_a_partial": lambda rate: functools.partial(hide, words={"a", f"b{rate}"}),
    "partial_of_a_partial": lambda rate: functools.partial(functools.partial(hide, words=["a"]), rate=rate),
    "partial_of_a_closure": lambda rate: functools.partial(hiding(rate)),
    "function_in_a_partial": lambda rate: functools.partial(hide, words=hiding(rate)),
    "function_of_c_in_a_partial": lambda rate: functools.partial(hide, words=math.floor if rate == 0.1 else math.ceil),
    "method_of_c_in_a_partial": lambda rate: functools.partial(hide, words={"a": rate}.get),
    "list_that_holds_itself_in_a_partial": lambda rate: functools.partial(hide, words=holding_itself(rate)),
    "dataclass": Hiding,
    "named_tuple": NamedHiding,
    "method": lambda rate: Hiding(rate).hide,
    "closure": hiding,
    "closure_that_calls_itself": calling_itself,
    "closure_in_a_closure": lambda rate: chain(hiding(rate)),
    "closure_that_calls_itself_in_a_closure": lambda rate: chain(calling_itself(rate)),
    "default_in_a_closure": lambda rate: chain(lambda batch, rate=rate: batch),
    "partial_in_a_closure": lambda rate: chain(functools.partial(hide, rate=rate)),
    "dataclass_in_a_closure": lambda rate: chain(Hiding(rate)),
    "named_tuple_in_a_closure": lambda rate: chain(NamedHiding(rate)),
    "class_of_a_named_tuple_in_a_closure": lambda rate: chain((NamedHiding if rate == 0.1 else NamedShowing)(0.2)),
    "method_in_a_closure": lambda rate: chain(Hiding(rate).hide),
    "class_of_an_object_in_a_closure": lambda rate: chain(Counting() if rate == 0.1 else Summing()),
    "class_of_a_method_in_a_closure": lambda rate: chain((Counting() if rate == 0.1 else Summing()).add),
    "third_level": lambda rate: chain(hide, {"a": [chain(chain(hiding(rate)))]}),
    "default": lambda rate: lambda batch, rate=rate: batch,
    "keyword_default": lambda rate: lambda batch, *, rates={"a": [rate]}: batch,
    "number_of_numpy": lambda rate: functools.partial(hide, rate=np.float32(rate)),
    "notebook": lambda rate: of_a_notebook(f"def transform(batch):\n    return {{**batch, 'rate': {rate}}}\n"),
    "attribute_of_a_class_of_a_notebook": lambda rate: of_a_notebook(
        f"class Transform:\n    rates = [{rate}]\n    def __call__(self, batch):\n        return batch\n"
        "transform = Transform()\n"
    ),
    "class_of_a_notebook_that_holds_itself": lambda rate: of_a_notebook(
        f"class Transform:\n    rates = [{rate}]\n    def __call__(self, batch):\n        return batch\n"
        "Transform.cls, Transform.first = Transform, Transform()\n"
        "transform = Transform()\n"
    ),
    "method_of_a_class_of_a_notebook": lambda rate: of_a_notebook(
        f"import dataclasses\n@dataclasses.dataclass\nclass Transform:\n    @staticmethod\n    def rate():\n"
        f"        return {rate}\ntransform = Transform()\n"
    ),
}


class IdentityTest(parameterized.TestCase):
    @parameterized.parameters(*MAKERS)
    def test_a_plug_in_with_another_setting_is_another_one(self, kind):
        make = MAKERS[kind]
        # As in a notebook: the main module has no file.
        self.enter_context(mock.patch.dict(sys.modules, __main__=ModuleType("__main__")))
        first, again, other = (plug_ins.PlugIns(batch_transform=make(rate)).described for rate in (0.1, 0.1, 0.3))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_an_object_that_is_no_plain_value_does_not_count_and_plain_ones_beside_it_do(self):
        described = lambda *words: plug_ins.PlugIns(metrics=(functools.partial(hide, words=words),)).described
        self.assertEqual(described(object(), 1), described(object(), 1))
        self.assertNotEqual(described(object(), 1), described(object(), 2))

    def test_what_a_plug_in_does_to_itself_later_makes_no_other_run(self):
        transform, metric, callback = Hiding(0.1), Counting(), EarlyStoppingCallback(early_stopping_patience=2)
        described = lambda: (
            plug_ins.PlugIns(
                batch_transform=transform, batch_metrics=metric.__call__, metrics=(metric,), callbacks=(callback,)
            ).described
        )
        before = described()
        transform.seen.append("a")
        metric.seen["a"] = 1
        callback.early_stopping_patience_counter = 1
        self.assertEqual(described(), before)

    @parameterized.parameters(*MAKERS)
    def test_a_plug_in_is_the_same_one_however_deep_the_call_that_asks(self, kind):
        describe_deeper = lambda depth: describe_deeper(depth - 1) if depth else describe()
        describe = lambda: plug_ins.PlugIns(batch_transform=MAKERS[kind](0.1)).described
        self.assertEqual(describe_deeper(50), describe())

    def test_a_value_that_stands_twice_counts_as_two_equal_ones_and_is_described_once(self):
        described = lambda *inner: plug_ins.PlugIns(batch_transform=chain(*inner)).described
        once = hiding(0.1)
        self.assertEqual(described(once, once), described(hiding(0.1), hiding(0.1)))
        self.assertNotEqual(described(once, once), described(once))
        doubled = once
        for _ in range(40):  # 2 ** 40 ways to the innermost one
            doubled = chain(doubled, doubled)
        self.assertNotEqual(described(doubled), described(once))


class PartsTest(parameterized.TestCase):
    def test_a_row_s_random_numbers_do_not_depend_on_its_batch(self):
        collator = tiny_trainer().data_collator
        rows = [{"input_ids": [5, 6, 1], "labels": [9, 1]}, {"input_ids": list(range(3, 20)), "labels": [8, 1]}]
        alone, together = collator(rows[:1]), collator(rows)
        draw = lambda batch, seed=0: torch.rand(4, generator=row_generators(batch, seed)[0]).tolist()
        self.assertEqual(draw(alone), draw(together))
        self.assertNotEqual(draw(alone), draw(alone, seed=1))

    @parameterized.parameters(
        (lambda batch: None, "not a batch"),
        (lambda batch: {**batch, "labels": batch["labels"][:1]}, "keep the batch's rows"),
        (lambda batch: {**batch, "noise": np.random.rand(1)}, "global random numbers"),
    )
    def test_a_transform_that_breaks_the_batch_is_refused(self, transform, message):
        collator = TransformedCollator(tiny_trainer().data_collator, transform)
        with exits_with(78, message):
            collator([{"input_ids": [5, 1], "labels": [9, 1]}, {"input_ids": [6, 1], "labels": [9, 1]}])

    def test_batch_metrics_are_means_over_labels_rows_and_micro_batches(self):
        labels = torch.tensor([[7, -100], [8, 9]])
        values = {"token": torch.tensor([[1.0, 50.0], [3.0, 5.0]]), "row": torch.tensor([2.0, 4.0]), "batch": 6.0}
        found = {name: pair.tolist() for name, pair in weighted_sums(values, labels).items()}
        self.assertEqual(found, {"token": [9.0, 3.0], "row": [6.0, 2.0], "batch": [18.0, 3.0]})
        for wrong in ({"loss": 1.0}, {"odd": torch.zeros(3)}, [1.0], {"eval/accuracy": 1.0}, {7: 1.0}):
            with exits_with(78):
                weighted_sums(wrong, labels)

    def test_a_batch_metric_has_no_name_that_a_run_logs_itself(self):
        logged_names = ["kl", "mfu", "tokens_seen", "skipped_updates"]  # by other runs
        for line in read_rows(tiny_run(max_steps=1, max_eval_samples=2).directory / "metrics.jsonl"):
            logged_names += [name.removeprefix("train/") for name in line if name.startswith("train/")]
        self.assertContainsSubset(["loss", "tokens_per_second", "peak_memory_gb", "train_runtime"], logged_names)
        for name in logged_names:
            with exits_with(78, f"'{name}' is logged by the trainer"):
                weighted_sums({name: 1.0}, torch.ones(1, 1))

    def test_what_is_logged_is_of_the_logged_update_alone(self):
        """Updates of two micro-batches each; what the last one came to is logged once."""
        loss = MeasuredLoss(lambda *args, **kwargs: 0.0, lambda outputs, batch: {"size": batch["size"]})
        for step, logged, sizes in ((1, False, (2.0, 3.0)), (2, True, (7.0, 9.0)), (3, True, (4.0, 6.0))):
            for size in sizes:
                loss.watch(step, logged)
                loss.batch = {"size": size}
                loss({}, torch.ones(1, 1))
            self.assertEqual(loss.counts is not None, logged)
        ranks = SimpleNamespace(sum=lambda numbers: numbers)
        self.assertEqual(loss.means(ranks), {"size": 5.0})
        self.assertEqual(loss.means(ranks), {})

    def test_a_loss_with_numbers_of_its_own_watches_the_update_and_logs_them_too(self):
        inner = mock.Mock(return_value=3.0)
        inner.means.return_value = {"kl": 0.5}
        loss = MeasuredLoss(inner, lambda outputs, batch: {"size": 2.0, "nothing": torch.tensor([5.0])})
        loss.watch(4, True)
        inner.watch.assert_called_once_with(4, True)
        self.assertEqual(loss("outputs", torch.full((1, 1), -100), num_items_in_batch=7), 3.0)
        inner.assert_called_once_with("outputs", mock.ANY, num_items_in_batch=7)
        means = loss.means(SimpleNamespace(sum=lambda numbers: numbers))
        self.assertEqual(means["kl"], 0.5)
        self.assertTrue(math.isnan(means["nothing"]))
