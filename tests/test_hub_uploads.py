"""`--push_to_hub`: what reaches a hub (a fake one), what does not, and what happens when the hub refuses."""

import base64
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from unittest import mock

import pytest
import torch
from absl.testing import parameterized
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.utils import filter_repo_objects

from t5suite.testing import save_model, tiny_model, tiny_run, tiny_tokenizer, tiny_trainer, tiny_tuner

ROOT = Path(__file__).parent.parent
TOKEN = "hf_TokenOfNobodyAtAllForThisTestOnly"
# What the hub's leaderboards read, of a run's hidden folders.
SCORES = ".eval_results/lab--rows.yaml"
SMALL = (
    "--max_train_samples 32 --max_eval_samples 8 --max_steps 4 --save_strategy steps --save_steps 2 --eval_strategy steps "
    "--eval_steps 2 --per_device_train_batch_size 8 --use_cpu --disable_tqdm True "
    "--config_overrides d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"
).split()


@pytest.mark.slow
class WaitTest(parameterized.TestCase):
    @parameterized.parameters((None, []), (True, []), (False, ["waited"]))
    def test_a_run_waits_for_the_checkpoint_that_is_being_uploaded(self, is_done, expected):
        events = []
        trainer = tiny_trainer()
        uploads = trainer.uploads
        if is_done is not None:
            uploads.in_progress = mock.Mock(
                is_done=lambda: is_done, wait_until_done=lambda: events.append("waited"), jobs=[]
            )
        trainer.hub_model_id = "ada/mini"
        with mock.patch.object(uploads, "push_run", lambda *names, **options: events.append("pushed")):
            trainer.push_to_hub()
        self.assertEqual(events, [*expected, "pushed"])


@pytest.mark.slow
class PushTest(parameterized.TestCase):
    def run_script(self, hub, *flags, token=TOKEN):
        folder = Path(tempfile.mkdtemp()) / "run"
        for name in (SCORES, ".hidden/rows.yaml"):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text("[]")
        given = [*SMALL, "--push_to_hub", "--hub_model_id=ada/mini", f"--hub_token={token}", f"--output_dir={folder}"]
        environment = {**os.environ, **hub.environment, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(ROOT / "fine_tune_t5.py"), *given, *flags]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900)
        self.assertNotIn(token, done.stdout + done.stderr)
        return done, folder

    def test_the_hub_has_the_model_with_its_card_and_nothing_that_is_private(self):
        with FakeHub() as hub:
            done, folder = self.run_script(hub, "--hub_strategy=checkpoint")
            self.assertEqual(done.returncode, 0, done.stderr)
            files = hub.files["ada/mini"]
            self.assertEqual(hub.commits[-1], "End of training")
            self.assertIn("Training in progress, step 2", hub.commits)
            self.assertEqual(files["README.md"], (folder / "README.md").read_bytes())
            self.assertEqual(files["model.safetensors"], (folder / "model.safetensors").read_bytes())
            index = ModelCard(files["README.md"].decode()).data.eval_results
            points = json.loads(files["results.json"])["tasks"]["sentiment"]
            self.assertEqual({result.metric_type: result.metric_value for result in index}, points)
            self.assertIn("last-checkpoint/optimizer.pt", files)
            hidden = [name for name in files if name.startswith(".") and name != ".gitattributes"]
            self.assertEqual(hidden, [SCORES])
            private = ("training_args.bin", "logs/", "diff.patch", ".lock", "samples")
            self.assertEmpty([name for name in files if name.startswith(private)])
            self.assertEmpty([name for name, content in files.items() if TOKEN.encode() in content])
            self.assertIn("predictions/sentiment.validation.jsonl", files)  # answers to rows that everybody has
            self.assertNotIn(str(folder.parent), files["manifest.json"].decode())
            self.assertEmpty({"command", "working_directory", "packages"} & json.loads(files["manifest.json"]).keys())
            self.assertIn("to ada/mini (bytes): ", done.stderr)
            self.assertIn("manifest.json (", done.stderr)
            self.assertLen(hub.checked, 1)
            self.assertEqual(set(hub.tokens), {f"Bearer {TOKEN}"})
        self.assertFalse((folder / ".uploading").exists())
        self.assertEmpty([path for path in folder.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()])

    def test_a_wrong_token_is_refused_before_training(self):
        with FakeHub() as hub:
            done, folder = self.run_script(hub, token="hf_AnotherTokenOfNobodyAtAllForThisTest")
        self.assertEqual(done.returncode, 78)
        self.assertIn("refuses it (401)", done.stderr)
        self.assertFalse((folder / "results.json").exists())

    def test_a_hub_that_fails_at_the_end_loses_nothing(self):
        with FakeHub() as hub:
            hub.refused = 400
            done, folder = self.run_script(hub, "--hub_strategy=end")
        self.assertEqual(done.returncode, 74)
        self.assertIn("the run is finished, but ada/mini was not uploaded", done.stderr)
        self.assertEqual(json.loads((folder / "manifest.json").read_text())["status"], "finished")


class ArgumentsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({}, {"token": "flag", "revision": "v1"}),
        ({"token": "argument"}, {"token": "argument", "revision": "v1"}),
        ({"revision": "v2"}, {"token": "flag", "revision": "v2"}),
        ({"token": "argument", "revision": "v2"}, {"token": "argument", "revision": "v2"}),
    )
    def test_token_and_revision_of_an_upload_go_before_those_of_the_flags(self, options, expected):
        trainer = tiny_trainer(hub_token="flag", hub_revision="v1")
        trainer.hub_model_id = "ada/mini"
        with mock.patch.object(HfApi, "upload_folder") as upload:
            trainer.push_to_hub("a message", **options)
        self.assertLessEqual({"commit_message": "a message", **expected}.items(), upload.call_args.kwargs.items())


class FilesTest(parameterized.TestCase):
    def test_a_checkpoint_s_model_is_uploaded_without_the_state_of_its_training(self):
        trainer = tiny_trainer()
        checkpoint = Path(trainer.args.output_dir) / "checkpoint-2"
        checkpoint.mkdir(parents=True)
        state = ("optimizer.pt", "scheduler.pt", "scaler.pt", "rank-0.json", "stream-rank-0.json", "trainer_state.json")
        for name in ("config.json", "model.safetensors", "checkpoint.json", "position.json", "progress.json", *state):
            (checkpoint / name).touch()
        with mock.patch.object(HfApi, "upload_folder") as upload:
            trainer.uploads.push_checkpoint("ada/mini", checkpoint, 2, lambda: None)
        patterns = upload.call_args.kwargs["ignore_patterns"]
        uploaded = filter_repo_objects(sorted(os.listdir(checkpoint)), ignore_patterns=patterns)
        self.assertEqual(list(uploaded), ["config.json", "model.safetensors"])


class AdapterTest(parameterized.TestCase):
    """An adapter's repository has what it needs to be loaded."""

    def sent_of(self, run: Path) -> Path:
        """The files that a finished run sends, in a folder; the run is gone from this machine then."""
        trainer = tiny_trainer(output_dir=str(run))
        trainer.hub_model_id = "ada/mini"
        sent = Path(tempfile.mkdtemp()) / "sent"
        with mock.patch.object(HfApi, "upload_folder") as upload:
            upload.side_effect = lambda *, folder_path, **_: shutil.copytree(folder_path, sent)
            trainer.push_to_hub("a message")
        shutil.rmtree(run)
        return sent

    def test_an_adapter_over_a_base_without_a_name_is_loaded_from_what_was_uploaded(self):
        tuner = tiny_tuner(tiny_model(seed=5), tokenizer=tiny_tokenizer(), adapter="lora")
        expected = tuner.model.state_dict()
        loaded = tiny_tuner(str(self.sent_of(tuner.save(tempfile.mkdtemp())))).model.state_dict()
        self.assertEqual(loaded.keys(), expected.keys())
        self.assertEmpty([name for name, tensor in loaded.items() if not torch.equal(tensor, expected[name])])

    def test_no_file_of_a_run_that_is_sent_names_a_folder_of_this_machine(self):
        teacher = save_model(Path(tempfile.mkdtemp()) / "teacher")
        flags = {"dataset_name": "sentiment", "max_steps": 2, "save_steps": 1, "save_strategy": "steps"}
        run = tiny_run(adapter="lora", teacher=str(teacher), **flags).directory
        of_checkpoint = (run / "checkpoint-1").glob("adapter_*.json")
        sent = self.sent_of(Path(shutil.copytree(run, Path(tempfile.mkdtemp()) / "run")))
        texts = {path: path.read_text() for path in (*of_checkpoint, *sent.rglob("*.json*"))}
        self.assertContainsSubset({"manifest.json", "adapter_base.json"}, {path.name for path in texts})
        for path, text in texts.items():
            for folder in (run, teacher):
                self.assertNotIn(str(folder), text, path)

    @parameterized.parameters("../base", "pretrained")
    def test_an_adapter_over_a_folder_of_this_machine_is_uploaded_with_a_warning(self, place):
        run = Path(tempfile.mkdtemp()) / "run"
        base = save_model((run / place).resolve(), tiny_model())
        tuner = tiny_tuner(str(base), adapter="lora")
        with self.assertLogs("t5suite", "WARNING") as logs:
            self.sent_of(tuner.save(run))
        self.assertRegex("\n".join(logs.output), f"base model, {base}, is not uploaded, and others need it")

    def test_a_checkpoint_s_adapter_goes_after_the_base_model_of_its_run(self):
        trainer = tiny_trainer()
        run = Path(trainer.args.output_dir)
        for name in ("base/config.json", "checkpoint-2/adapter_config.json"):
            (run / name).parent.mkdir(parents=True)
            (run / name).touch()
        with mock.patch.object(HfApi, "upload_folder") as upload:
            trainer.uploads.push_checkpoint("ada/mini", run / "checkpoint-2", 2, lambda: None)
        places = [call.kwargs.get("path_in_repo") for call in upload.call_args_list]
        self.assertEqual(places, ["base", None])
        self.assertEqual(upload.call_args_list[0].kwargs["folder_path"], str(run / "base"))


ONLINE = {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}


class FakeHub:
    """A hub that knows one token.

    Attributes:
      files: by repository, the bytes of its files.
      commits: messages, in order.
      tokens: of every request that asks for something to be made or taken.
      checked: cards whose metadata it was asked to look at.
      refused: status code for commits, to play a hub that fails.
    """

    def __init__(self):
        self.files, self.commits, self.tokens, self.checked, self.refused = {}, [], [], [], None
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to take this for the hub."""
        return {"HF_ENDPOINT": self.address, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **ONLINE}

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def commit(self, repository: str, lines: list[dict]) -> None:
        for line in lines:
            if line["key"] == "header":
                self.commits.append(line["value"]["summary"])
            elif line["key"] == "file":
                content = base64.b64decode(line["value"]["content"])
                self.files[repository][line["value"]["path"]] = content


def _handler(hub: FakeHub):
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self._answer({})

        def do_GET(self):
            parts = self.path.split("?")[0].strip("/").split("/")
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self._answer({"error": "Invalid username or password."}, 401)
            if "/".join(parts[2:4]) not in hub.files:
                return self._answer({"error": "Repository not found"}, 404)
            return self._answer({"id": "x", "sha": "0" * 40, "siblings": []})

        def do_POST(self):
            token = self.headers.get("Authorization")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == "/api/validate-yaml":
                hub.checked.append(json.loads(body)["content"])
                return self._answer({"errors": [], "warnings": []})
            hub.tokens.append(token)
            if token != f"Bearer {TOKEN}":
                return self._answer({"error": "Invalid username or password."}, 401)
            parts = self.path.split("?")[0].strip("/").split("/")
            if self.path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked.get('organization') or 'nobody'}/{asked['name']}"
                hub.files.setdefault(name, {})
                return self._answer({"url": f"{hub.address}/{name}", "name": name})
            repository = "/".join(parts[2:4])
            if parts[4] == "preupload":
                modes = [
                    {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                    for file in json.loads(body)["files"]
                ]
                return self._answer({"files": modes})
            if parts[4] == "commit":
                if hub.refused:
                    return self._answer({"error": "out of order"}, hub.refused)
                hub.commit(repository, [json.loads(line) for line in body.splitlines() if line.strip()])
                place = f"{hub.address}/{repository}/commit/{len(hub.commits):040d}"
                return self._answer({"commitUrl": place, "commitOid": f"{len(hub.commits):040d}", "success": True})
            return self._answer({"error": f"{self.path} is not here"}, 404)

        def _answer(self, value: dict, status: int = 200):
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler
