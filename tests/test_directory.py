"""A run's directory: which changes it takes, what a damaged manifest costs, and no secret in it."""

import functools
import json
import os
import re
import shutil
from pathlib import Path
from unittest import mock

import pytest
import yaml
from absl.testing import parameterized
from support import folder

from t5suite import FineTuner
from t5suite.testing import TINY_T5, exits_with, save_model, tiny_rows, tiny_run, write_rows

HF = "hf_TokenOfNobodyAtAllXyzAbCdEfGhIj"
HEX = "5ec2e7a11c0ffee0ddba11ade1ec7ab1ef00d5e7"
FLAGS = {"config_overrides": TINY_T5, "from_scratch": True, "max_steps": 1, "no_eval": True, "seed": 1}


def fine_tune(directory, **changes):
    return tiny_run(**{**FLAGS, "output_dir": str(directory), **changes})


ENTRY = {
    "prefix": "q: ", "text_column_name": "text", "label_column_name": "label", "labels": ["bad", "good"],
    "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
}  # fmt: skip


def task_file(**changes) -> str:
    """A task `own/t` in JSON, which is also YAML and Python."""
    return json.dumps({"own": {"t": {**ENTRY, **changes}}})


def python_task_file(code: str) -> str:
    """A task `own/t` with a formatter of its own, and other code in its file."""
    return f"import plug_in_modules\n{code}\nDATASET_VALS = {task_file(formatter='second_label_is_learned')}\n"


# A flag, the name of the file that it names, texts of the file that say the same, and others that do not.
CONTENTS = (
    ("task_file", "tasks.yaml", [task_file(), f"# mine\n{task_file()}", yaml.dump({"own": {"t": ENTRY, "u": 1}})],
        [task_file(prefix="p: "), task_file(labels=["good", "bad"]), task_file(metric_names=["accuracy", "mcc"])]),
    ("task_file", "tasks.py", [f"DATASET_VALS = {task_file()}", f"# mine\nDATASET_VALS = ({task_file()})"],
        [f"DATASET_VALS = {task_file(prefix='p: ')}"]),
    ("task_file", "marked.py", [python_task_file("SPACE = ' '")], [python_task_file("SPACE = '_'")]),
    ("data_config", "pairs.yaml", ["{name: pairs, metrics: [rouge]}", "# mine\nmetrics:\n- rouge\nname: pairs\n"],
        ["{name: pairs, metrics: [exact_match]}"]),
    ("data_config", "pairs.json", ['{"name": "pairs", "metrics": ["rouge"]}', '{"metrics":["rouge"],"name":"pairs"}'],
        ['{"name": "pairs"}']),
    ("add_tokens", "words.txt", ["<turn>\n<speaker>\n", "<turn>\n<speaker>"], ["<turn>\n<speaker>\n<more>", "<turn>"]),
)  # fmt: skip


def flags_beside(flag: str, file: Path) -> dict:
    """The flags of a small run in which a flag names a file."""
    rows = [{"text": row["sentence"], "label": row["label"]} for row in tiny_rows(count=8)]
    if flag == "data_config":
        folder_of_rows = file.parent / "pairs" / "train"
        folder_of_rows.mkdir(parents=True)
        write_rows(folder_of_rows / "rows.jsonl", [{"input": row["text"], "output": "yes"} for row in rows])
        return {"data_class": ["JSONLines"], "data_path": [str(folder_of_rows.parent)], flag: [str(file)]}
    if flag == "task_file":
        rows_file = write_rows(file.parent / "rows.jsonl", rows)
        return {"benchmark": "own", "dataset_name": "t", "train_file": str(rows_file), flag: str(file)}
    return {flag: str(file)}


@functools.cache
def finished_run() -> Path:
    return fine_tune(folder() / "run").directory


def copied_run(**entries) -> Path:
    """A copy of a finished run, with these entries of its manifest changed."""
    directory = Path(shutil.copytree(finished_run(), folder() / "run"))
    change_manifest(directory, **entries)
    return directory


def manifest_of(directory) -> dict:
    return json.loads((Path(directory) / "manifest.json").read_text())


def change_manifest(directory, **entries) -> None:
    (directory / "manifest.json").write_text(json.dumps(manifest_of(directory) | entries))


def changed_settings(directory, **settings) -> dict:
    """A manifest's settings, with these changes; None: without the setting."""
    merged = manifest_of(directory)["settings"] | settings
    return {name: value for name, value in merged.items() if value is not None}


def last_change(directory) -> dict:
    """What the manifest says of the last change: `{setting: [before, now]}`."""
    return manifest_of(directory)["changes"][-1]["changed"]


class SettingsTest(parameterized.TestCase):
    def test_the_same_settings_find_the_run_again(self):
        directory = copied_run()
        before = manifest_of(directory)
        history = (directory / "metrics.jsonl").read_text()
        fine_tune(directory, logging_steps=50)
        fine_tune(directory, overwrite_output_dir=True)
        self.assertEqual(manifest_of(directory)["run_id"], before["run_id"])
        self.assertEqual((directory / "metrics.jsonl").read_text(), history)
        self.assertEqual([path.name for path in directory.parent.iterdir()], ["run"])

    @parameterized.parameters(
        ({"seed": 2}, "seed 1 there, 2 here"),
        ({"label_smoothing_factor": 0.25}, "label_smoothing_factor 0 there, 0.25 here"),
        ({"resume": "none"}, "--resume none needs a new --output_dir"),
        ({"allow_changed": "sede"}, "no setting 'sede'; did you mean seed"),
        (
            {"per_device_train_batch_size": 4, "learning_rate": 0.5},
            "learning_rate .*; update_size .*per_device_train_batch_size x gradient_accumulation_steps.* 8 there, 4 here.*"
            "--allow_changed learning_rate,update_size to continue",
        ),
        (
            {"max_train_samples": 9, "seed": 2},
            "--allow_changed max_train_samples,seed,data to continue that run anyway.$",
        ),
        (
            {"learning_rate": 0.5, "do_predict": True, "allow_changed": "learning_rate"},
            "--allow_changed learning_rate,do_predict,data to",
        ),
        (
            {"do_predict": True},
            "--allow_changed do_predict,data to .*t5suite evaluate --model_name_or_path .*/run scores",
        ),
    )
    @pytest.mark.quick_cases(1)
    def test_others_are_refused(self, changes, message):
        with exits_with(78, message):
            fine_tune(finished_run(), **changes)

    def test_settings_that_an_earlier_version_did_not_have_count(self):
        directory = copied_run(settings=changed_settings(finished_run(), label_smoothing_factor=None))
        with exits_with(78, "label_smoothing_factor not given there, 0.25 here"):
            fine_tune(directory, label_smoothing_factor=0.25)
        fine_tune(directory)  # its default changes nothing

    @parameterized.parameters(*CONTENTS)
    def test_a_file_that_says_something_else_makes_another_run_and_another_layout_does_not(
        self, flag, name, equal_texts, other_texts
    ):
        file = folder() / name
        flags = flags_beside(flag, file)
        directory = file.parent / "run"
        for text in equal_texts:
            file.write_text(text)
            fine_tune(directory, **flags)
        for text in other_texts:
            file.write_text(text)
            with exits_with(78, f"{flag} .*{name}.* there, .*--allow_changed {flag}"):
                fine_tune(directory, **flags)
        change_manifest(directory, settings=changed_settings(directory, file_contents=None))  # by an earlier version
        fine_tune(directory, **flags)

    def test_a_changed_file_can_be_allowed_and_is_then_noted(self):
        place = folder()
        file = place / "words.txt"
        file.write_text("<turn>\n")
        directory = fine_tune(place / "run", add_tokens=str(file)).directory
        file.write_text("<turn>\n<speaker>\n")
        fine_tune(directory, add_tokens=str(file), max_steps=2, extend=True, allow_changed="add_tokens")
        (before, now) = last_change(directory)["add_tokens"]
        self.assertNotEqual(before, now)
        fine_tune(directory, add_tokens=str(file), max_steps=2)

    @pytest.mark.slow
    def test_a_run_in_the_way_is_moved_aside_under_a_new_name(self):
        directory = copied_run()
        aside = directory.with_name("run.old-1")
        aside.mkdir()
        fine_tune(directory, seed=2, overwrite_output_dir=True)
        self.assertEmpty(list(aside.iterdir()))
        seeds = [manifest_of(place)["settings"]["seed"] for place in (directory.with_name("run.old-2"), directory)]
        self.assertEqual(seeds, [1, 2])

    @pytest.mark.slow
    def test_a_setting_that_only_the_run_there_has_can_be_allowed_to_go(self):
        """Such as plug-ins, or a flag of another version."""
        directory = copied_run(settings=changed_settings(finished_run(), plug_ins={"metrics": ["odd"]}))
        with exits_with(78, "--allow_changed plug_ins"):
            fine_tune(directory)
        fine_tune(directory, allow_changed="plug_ins")
        self.assertEqual(last_change(directory), {"plug_ins": [{"metrics": ["odd"]}, None]})
        self.assertNotIn("plug_ins", manifest_of(directory)["settings"])

    @pytest.mark.slow
    def test_a_run_that_failed_before_its_first_step_takes_other_settings_and_data(self):
        directory = folder() / "run"
        directory.mkdir()
        shutil.copy(finished_run() / "manifest.json", directory)
        other_data = {name: {**part, "fingerprint": "ab"} for name, part in manifest_of(directory)["data"].items()}
        change_manifest(directory, status="failed", data=other_data)
        for left in (directory / "checkpoint-1", directory / "metrics.jsonl"):
            left.mkdir() if left.suffix == "" else left.touch()
            with exits_with(78, "seed 1 there, 2 here"):
                fine_tune(directory, seed=2)
            left.rmdir() if left.suffix == "" else left.unlink()
        fine_tune(directory, seed=2)
        manifest = manifest_of(directory)
        self.assertEqual(manifest["run_id"], manifest_of(finished_run())["run_id"])
        self.assertEqual((manifest["settings"]["seed"], manifest["status"]), (2, "finished"))

    def test_an_update_may_be_laid_out_anew(self):
        fine_tune(finished_run(), per_device_train_batch_size=4, gradient_accumulation_steps=2)

    @pytest.mark.slow
    def test_another_update_can_be_allowed(self):
        directory = copied_run()
        fine_tune(directory, per_device_train_batch_size=4, allow_changed="update_size")
        self.assertEqual(last_change(directory), {"update_size": [8, 4]})

    @pytest.mark.slow
    def test_rows_can_be_added_to_a_finished_run_by_the_names_of_its_refusal(self):
        directory = copied_run()
        with exits_with(78) as refused:
            fine_tune(directory, do_predict=True)
        (names,) = re.findall(r"--allow_changed (\S+)", str(refused.exception))
        fine_tune(directory, do_predict=True, allow_changed=names)
        self.assertIn("sentiment.test", manifest_of(directory)["data"])

    def test_two_trials_of_a_sweep_never_share_a_directory(self):
        model = save_model(folder() / "my-t5")
        with mock.patch.dict(os.environ, {"WANDB_RUN_ID": "abc"}):
            tuner = FineTuner(str(model), benchmark="mini", dataset_name="sentiment", use_cpu=True)
        self.assertEqual(tuner.args.output_dir, "runs/mini-sentiment-my-t5-abc")


class DataTest(parameterized.TestCase):
    """Of a run that was stopped."""

    def stopped_run(self, **of_data) -> Path:
        """Its rows had this origin, or this fingerprint."""
        data = manifest_of(finished_run())["data"]
        return copied_run(status="preempted", data={name: part | of_data for name, part in data.items()})

    def test_other_data_are_refused_unless_allowed(self):
        directory = self.stopped_run(fingerprint="ab")
        with exits_with(78, "fingerprint 'ab' there, .* here.*--allow_changed data"):
            fine_tune(directory)
        fine_tune(directory, allow_changed="data")
        change_manifest(directory, status="preempted")
        fine_tune(directory)  # these are now the data that it is trained on
        self.assertEqual(manifest_of(directory)["data"], manifest_of(finished_run())["data"])

    @pytest.mark.slow
    def test_the_same_data_may_come_from_elsewhere(self):
        directory = self.stopped_run(origin="elsewhere")
        fine_tune(directory)
        self.assertEqual(manifest_of(directory)["status"], "finished")


class SoftwareTest(parameterized.TestCase):
    def test_the_version_that_began_a_run_is_told_where_settings_differ(self):
        versions = manifest_of(finished_run())["versions"]
        with exits_with(78, "seed 1 there, 2 here.*t5suite 0.1.0 began that run"):
            fine_tune(copied_run(versions={**versions, "t5suite": "0.1.0"}), seed=2)

    def test_other_software_is_said_and_noted(self):
        versions = manifest_of(finished_run())["versions"]
        directory = copied_run(status="preempted", versions={**versions, "torch": "1.0"})
        with self.assertLogs("t5suite", "WARNING") as logs:
            fine_tune(directory)
        self.assertRegex("\n".join(logs.output), "torch 1.0 then, .* now")
        self.assertEqual(last_change(directory), {"torch": ["1.0", versions["torch"]]})


class DamagedManifestTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_a_manifest_that_is_none_is_refused(self):
        directory = folder()
        for text in ("", "[1]", "{}", '{"run_id": 1, "settings": {}}', "[" * 100_000):
            (directory / "manifest.json").write_text(text)
            with exits_with(78, "manifest.json"):
                fine_tune(directory)

    @parameterized.parameters("the file is empty", "No such file")
    @pytest.mark.quick_cases(1)
    def test_it_is_made_anew_by_the_flags_that_a_checkpoint_is_of(self, damage):
        directory = copied_run()
        run_id = manifest_of(directory)["run_id"]
        (directory / "manifest.json").write_text("")
        if damage == "No such file":
            (directory / "manifest.json").unlink()
        with exits_with(78, f"{damage}.*manifest.json|manifest.json: {damage}") as refusal:
            fine_tune(directory, seed=2)
        self.assertIn(f"flags of run {run_id}", refusal.message)
        with self.assertLogs("t5suite", "WARNING") as logs:
            fine_tune(directory)
        self.assertRegex("\n".join(logs.output), "manifest.json.*is rebuilt")
        self.assertEqual((manifest_of(directory)["run_id"], manifest_of(directory)["status"]), (run_id, "finished"))


class FilesTest(parameterized.TestCase):
    def test_no_entry_of_a_manifest_tells_a_secret(self):
        """But what tasks are made of stays, whatever its name is."""
        data = folder()
        rows = [{"text": row["sentence"], "label": row["label"]} for row in tiny_rows(count=8)]
        path = write_rows(data / f"{HF}.jsonl", rows)
        functions = {"label_token": "accuracy"}
        entry = {
            "prefix": "", "text_column_name": "text", "label_column_name": "label", "labels": ["bad", "good"],
            "metric_names": ["label_token"], "metric_functions": functions, "metric_to_optimize": "label_token",
        }  # fmt: skip
        (data / "tasks.yaml").write_text(yaml.safe_dump({"own": {"t": entry}}))
        task = {"benchmark": "own", "dataset_name": "t", "task_file": str(data / "tasks.yaml")}
        secrets = {"hub_token": "hf_secret", "run_name": f"https://me:{HEX}@host/x"}
        run = fine_tune(folder() / "run", **task, train_file=str(path), **secrets)
        text = (run.directory / "manifest.json").read_text()
        for secret in (HEX, HF, "hf_secret"):
            self.assertNotIn(secret, text)
        manifest = json.loads(text)
        self.assertEqual(manifest["tasks"]["t"]["metric_functions"], functions)
        self.assertNotIn("hub_token", manifest["settings"])

    def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_before_writing_ends(self):
        directory, events = copied_run(status="preempted"), []
        fsync, replace = os.fsync, os.replace

        def noted_fsync(descriptor):
            events.append(("written", os.readlink(f"/proc/self/fd/{descriptor}")))
            fsync(descriptor)

        def noted_replace(source, target, **settings):
            events.append(("renamed", str(source), str(target)))
            replace(source, target, **settings)

        with mock.patch.multiple(os, fsync=noted_fsync, replace=noted_replace):
            fine_tune(directory)
        for name in ("manifest.json", "results.json"):
            places = [place for place, event in enumerate(events) if event[-1] == str(directory / name)]
            self.assertNotEmpty(places, name)
            for place in places:
                _, source, _ = events[place]
                self.assertEqual(events[place - 1 : place + 2 : 2], [("written", source), ("written", str(directory))])
