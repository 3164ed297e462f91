"""A run's directory: which changes it takes, what a damaged manifest costs, and no secret in it."""

import os
from pathlib import Path
from unittest import mock

from absl.testing import parameterized
from support import folder

from t5suite.runs.directory import default_output_dir, open_run, read_manifest, write_json
from t5suite.testing import exits_with

HF = "hf_TokenOfNobodyAtAllXyzAbCdEfGhIj"
HEX = "5ec2e7a11c0ffee0ddba11ade1ec7ab1ef00d5e7"


class RunTest(parameterized.TestCase):
    def test_the_same_settings_find_the_run_again_and_others_are_refused(self):
        directory = folder() / "run"
        run = open_run(directory, {"seed": 1, "logging_steps": 5})
        self.assertFalse(directory.exists())  # nothing is written until it is updated
        run.update()
        again = open_run(directory, {"seed": 1, "logging_steps": 50, "a flag of a later version": False})
        self.assertEqual((again.run_id, again.resumed, again.changed), (run.run_id, True, {}))
        for message, settings, more in (
            ("seed 1 there, 2 here", {"seed": 2}, {}),
            ("new None there, True here", {"seed": 1, "new": True}, {}),
            ("--resume none needs a new --output_dir", {"seed": 1}, {"need_new": True}),
            ("no setting 'sede'; did you mean seed", {"seed": 1}, {"allow_changed": "sede"}),
        ):
            with exits_with(78, message):
                open_run(directory, settings, **more)
        self.assertEqual(open_run(directory, {"seed": 1}, overwrite=True).run_id, run.run_id)
        for n, settings in enumerate(({"seed": 2}, {"seed": 3}), 1):
            open_run(directory, settings, overwrite=True).update()
            self.assertEqual(read_manifest(f"{directory}.old-{n}")["settings"]["seed"], n)

    def test_a_setting_that_only_the_run_there_has_can_be_allowed_to_go(self):
        """Such as plug-ins, or a flag of another version."""
        directory = folder() / "run"
        open_run(directory, {"seed": 1, "plug_ins": {"metrics": ["odd"]}}).update()
        with exits_with(78, "--allow_changed plug_ins"):
            open_run(directory, {"seed": 1})
        run = open_run(directory, {"seed": 1}, allow_changed="plug_ins")
        self.assertEqual(run.changed, {"plug_ins": ({"metrics": ["odd"]}, None)})

    def test_a_run_that_failed_before_its_first_step_takes_other_settings(self):
        directory = folder() / "run"
        first = open_run(directory, {"seed": 1})
        first.update(status="failed", data={"rte.train": {"fingerprint": "ab"}})
        for left in (directory / "checkpoint-1", directory / "metrics.jsonl"):
            left.mkdir() if left.suffix == "" else left.touch()
            with exits_with(78, "seed 1 there, 2 here"):
                open_run(directory, {"seed": 2})
            left.rmdir() if left.suffix == "" else left.unlink()
        run = open_run(directory, {"seed": 2})
        run.use_data({"rte.train": {"fingerprint": "cd"}})
        self.assertEqual((run.run_id, run.manifest["settings"]["seed"]), (first.run_id, 2))

    def test_an_update_may_be_laid_out_anew_but_not_be_another(self):
        directory = folder() / "run"
        first, same_size, smaller = (
            {"per_device_train_batch_size": size, "gradient_accumulation_steps": n, "update_size": size * n}
            for size, n in ((8, 1), (4, 2), (4, 1))
        )
        open_run(directory, first).update()
        self.assertEmpty(open_run(directory, same_size).changed)
        with exits_with(78, "update_size 8 there, 4 here.*--allow_changed update_size"):
            open_run(directory, smaller)
        run = open_run(directory, smaller, allow_changed="update_size")
        self.assertEqual(run.changed, {"update_size": (8, 4)})
        self.assertEqual(run.manifest["changes"][0]["changed"], {"update_size": [8, 4]})

    def test_changed_data_are_refused_unless_allowed(self):
        directory = folder() / "run"
        for origin in "ab":
            open_run(directory, {"seed": 1}).use_data({"rte.train": {"origin": origin, "fingerprint": "ab", "used": 4}})
        changed = {"rte.train": {"origin": "a", "fingerprint": "cd", "used": 4}}
        with exits_with(78, "rte.train.fingerprint 'ab' there, 'cd' here.*--allow_changed data"):
            open_run(directory, {"seed": 1}).use_data(changed)
        open_run(directory, {"seed": 1}, allow_changed="data").use_data(changed)
        open_run(directory, {"seed": 1}).use_data(changed)

    def test_other_software_is_said_and_noted(self):
        directory = folder() / "run"
        run = open_run(directory, {"seed": 1})
        run.update(versions={"t5suite": "0.1.0"})
        with exits_with(78, "seed 1 there, 2 here.*t5suite 0.1.0 began that run"):
            open_run(directory, {"seed": 2})
        run.update(versions={**run.manifest["versions"], "torch": "1.0"})
        with self.assertLogs("t5suite", "WARNING") as logs:
            again = open_run(directory, {"seed": 1})
        self.assertRegex(logs.output[0], "torch 1.0 then, .* now")
        self.assertIn("torch", again.manifest["changes"][-1]["changed"])

    def test_a_manifest_that_is_none_is_refused(self):
        directory = folder()
        for text in ("", "[1]", "{}", '{"run_id": 1, "settings": {}}', "[" * 100_000):
            (directory / "manifest.json").write_text(text)
            with exits_with(78, "manifest.json"):
                open_run(directory, {"seed": 1})

    @parameterized.parameters("the file is empty", "No such file")
    def test_a_damaged_manifest_is_made_anew_by_the_flags_that_a_checkpoint_is_of(self, damage):
        directory = folder() / "run"
        run = open_run(directory, {"seed": 1})
        run.update()
        (directory / "checkpoint-4").mkdir()
        write_json(directory / "checkpoint-4" / "checkpoint.json", run.checkpoint_details)
        (directory / "manifest.json").write_text("")
        if damage == "No such file":
            (directory / "manifest.json").unlink()
        with exits_with(78, f"{damage}.*manifest.json|manifest.json: {damage}") as refusal:
            open_run(directory, {"seed": 2})
        self.assertIn(f"flags of run {run.run_id}", str(refusal.exception))
        with self.assertLogs("t5suite", "WARNING") as logs:
            again = open_run(directory, {"seed": 1})
        self.assertIn("manifest.json", logs.output[0])
        self.assertEqual((again.run_id, again.resumed, again.finished), (run.run_id, True, False))
        again.update()
        self.assertEqual(open_run(directory, {"seed": 1}).run_id, run.run_id)

    def test_two_trials_of_a_sweep_never_share_a_directory(self):
        with mock.patch.dict(os.environ, {"WANDB_RUN_ID": "abc"}):
            directory = default_output_dir("glue", "rte", "google/t5-v1_1-small")
        self.assertEqual(directory, "runs/glue-rte-t5-v1_1-small-abc")

    def test_no_entry_of_a_manifest_tells_a_secret(self):
        argv = ["--hub_token", "hf_secret", "--hub_token=hf_secret"]
        run = open_run(folder() / "run", {"hub_token": "hf_secret", "seed": 1}, argv=argv)
        described = {"rte.train": {"origin": f"https://me:{HEX}@host/{HF}", "files": {f"{HF}.jsonl": "sha256:1"}}}
        run.use_data(described)
        run.update(tasks={"rte": {"label_token": "answer"}}, note=HF)
        run.use_data(described)
        text = (run.directory / "manifest.json").read_text()
        for secret in (HEX, HF, "hf_secret"):
            self.assertNotIn(secret, text)
        self.assertEqual(run.manifest["tasks"], {"rte": {"label_token": "answer"}})
        self.assertNotIn("hub_token", run.manifest["settings"])


class FilesTest(parameterized.TestCase):
    def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_before_writing_ends(self):
        path, calls = folder() / "a.json", []

        def fsync(descriptor):
            calls.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

        replace = mock.Mock(side_effect=lambda source, target: (calls.append("rename"), os.rename(source, target)))
        with mock.patch.multiple(os, fsync=fsync, replace=replace):
            write_json(path, {})
        self.assertEqual(calls, [mock.ANY, "rename", path.parent.name])
        self.assertTrue(calls[0].endswith("a.json"), calls)
