"""`--push_to_hub`: what reaches a hub (a fake one), what does not, and what happens when the hub refuses."""

import base64
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from absl.testing import parameterized
from hub_server import HubServer
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.utils import filter_repo_objects
from support import OwnStopRequests

from t5suite.testing import exits_with, save_model, tiny_model, tiny_run, tiny_tokenizer, tiny_trainer, tiny_tuner

ROOT = Path(__file__).parent.parent
TOKEN = "hf_TokenOfNobodyAtAllForThisTestOnly"
READ_TOKEN = "hf_TokenThatMayReadAlone"
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


# The manifest of an earlier run in the repository: an empty file.
NO_EARLIER_RUN = mock.patch.object(HfApi, "hf_hub_download", return_value=os.devnull)


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
        with NO_EARLIER_RUN as download, mock.patch.object(HfApi, "upload_folder") as upload:
            trainer.push_to_hub("a message", **options)
        self.assertLessEqual(expected.items(), download.call_args.kwargs.items())  # of the run that it replaces
        self.assertLessEqual({"commit_message": "a message", **expected}.items(), upload.call_args.kwargs.items())

    def test_nothing_is_uploaded_while_the_hub_cannot_say_what_an_earlier_run_has_left(self):
        trainer = tiny_trainer()
        trainer.hub_model_id = "ada/mini"
        with mock.patch.object(HfApi, "upload_folder") as upload, exits_with(74, "ada/mini was not uploaded"):
            trainer.push_to_hub()
        upload.assert_not_called()


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
        with NO_EARLIER_RUN, mock.patch.object(HfApi, "upload_folder") as upload:
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


class RepositoryTest(parameterized.TestCase):
    """What is asked of a repository that was there before, before anything is trained."""

    def setUp(self):
        super().setUp()
        self.hub = self.enter_context(FakeHub())
        self.hub.files["ada/mini"] = {}
        self.enter_context(self.hub.read_by_this_process())

    def trainer(self, **flags):
        return tiny_trainer(hub_model_id="ada/mini", **{"hub_token": TOKEN, **flags})

    def test_a_token_that_may_only_read_is_refused(self):
        with exits_with(78, r"refuses it \(403\)"):
            self.trainer(hub_token=READ_TOKEN).init_hf_repo()

    def test_a_public_repository_takes_no_upload_that_is_to_be_private(self):
        self.trainer(hub_private_repo=True).init_hf_repo()
        self.hub.is_private = False
        self.trainer().init_hf_repo()
        with exits_with(78, "--hub_private_repo: ada/mini was there before and is public"):
            self.trainer(hub_private_repo=True).init_hf_repo()

    @parameterized.parameters((None, []), ("tries", ["tries"]), ("refs/pr/1", []))
    def test_the_branch_of_uploads_is_made(self, revision, branches):
        self.trainer(hub_revision=revision).init_hf_repo()
        self.assertEqual(self.hub.branches, branches)

    @parameterized.parameters(True, False)
    def test_files_of_an_earlier_run_go_and_those_of_others_stay(self, is_of_a_run):
        names = ("model.safetensors", "predictions/b.validation.jsonl", "results.json")
        unlisted_names = (".eval_results/nyu-mll--glue.yaml", "adapter_base.json", "base/config.json")
        manifest = {"files": dict.fromkeys(names, "0"), **({"record_sha256": "0"} if is_of_a_run else {})}
        old_files = {
            "manifest.json": json.dumps(manifest).encode(),
            **dict.fromkeys(("NOTES.md", "vocab.md", *names, *unlisted_names), b""),
        }
        self.hub.files["ada/mini"] |= old_files
        trainer = self.trainer()
        run = Path(trainer.args.output_dir)
        run.mkdir(exist_ok=True)
        (run / "results.json").write_text("{}")
        trainer.push_to_hub()
        expected = {"results.json", "NOTES.md", "vocab.md"} if is_of_a_run else {*old_files}
        self.assertEqual(set(self.hub.files["ada/mini"]), expected)
        self.assertEqual(self.hub.files["ada/mini"]["results.json"], b"{}")


class StopTest(OwnStopRequests):
    def test_a_run_that_is_asked_to_stop_starts_no_upload(self):
        trainer = tiny_trainer(save_strategy="steps", save_steps=1)
        trainer.args.push_to_hub = True
        trainer.hub_model_id = "ada/mini"
        steps = []

        def note(repository, path, step, announce):
            steps.append(step)
            trainer.stop.request()

        with mock.patch.object(trainer.uploads, "push_checkpoint", note), exits_with(75):
            trainer.train()
        self.assertEqual(steps, [1])
        self.assertTrue((Path(trainer.args.output_dir) / "checkpoint-2").is_dir())

    def test_a_script_that_ends_waits_for_its_last_upload_and_not_for_its_first_alone(self):
        """A process lives as long as a thread of it that is no daemon."""
        has_ended, is_uploaded = threading.Event(), threading.Event()
        self.addCleanup(is_uploaded.set)
        self.addCleanup(has_ended.set)
        script = threading.Thread(target=has_ended.wait, daemon=True)
        script.start()
        uploads = iter([lambda: None, is_uploaded.wait])
        self.enter_context(mock.patch("threading.main_thread", return_value=script))
        self.enter_context(mock.patch.object(HfApi, "upload_folder", lambda api, **_: api.run_as_future(next(uploads))))
        earlier_threads = set(threading.enumerate())
        trainer = tiny_trainer()
        trainer.uploads.push_checkpoint("ada/mini", Path(tempfile.mkdtemp()), 1, lambda: None)
        trainer.uploads.wait()
        trainer.uploads.push_checkpoint("ada/mini", Path(tempfile.mkdtemp()), 2, lambda: None)
        has_ended.set()
        script.join()
        time.sleep(0.7)
        keeping_alive = [each for each in set(threading.enumerate()) - earlier_threads if not each.daemon]
        self.assertLen(keeping_alive, 1)
        is_uploaded.set()
        keeping_alive[0].join(5)
        self.assertFalse(keeping_alive[0].is_alive())

    @pytest.mark.slow
    def test_an_upload_that_does_not_end_holds_up_no_run_that_was_asked_to_stop(self):
        program = """
            import sys, tempfile, threading
            from pathlib import Path
            from unittest import mock
            from huggingface_hub import HfApi
            from t5suite.testing import tiny_trainer
            trainer = tiny_trainer()
            checkpoint = Path(tempfile.mkdtemp())
            def upload_folder(api, **_):
                return api.run_as_future(threading.Event().wait)
            mock.patch.object(HfApi, "upload_folder", upload_folder).start()
            trainer.uploads.push_checkpoint("ada/mini", checkpoint, 2, lambda: None)
            trainer.stop.request()
            sys.exit(75)
        """
        begun = time.monotonic()
        command = [sys.executable, "-c", textwrap.dedent(program)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
        self.assertEqual(done.returncode, 75, done.stderr)
        self.assertIn("did not end within", done.stderr)
        self.assertLess(time.monotonic() - begun, 100)


ONLINE = {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}


class FakeHub:
    """A hub that knows a token that may write, and one that may only read.

    Attributes:
      is_private, branches: whether its repositories are private, and the branches that were made.
      files: by repository, the bytes of its files.
      commits: messages, in order.
      tokens: of every request that asks for something to be made or taken.
      checked: cards whose metadata it was asked to look at.
      refused: status code for commits, to play a hub that fails.
    """

    def __init__(self):
        self.files, self.commits, self.tokens, self.checked, self.refused = {}, [], [], [], None
        self.is_private, self.branches = True, []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to take this for the hub."""
        return {"HF_ENDPOINT": self.address, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **ONLINE}

    def read_by_this_process(self):
        """The libraries of this process take it for the hub, in a block."""
        server = mock.Mock(address=self.address, environment=lambda _: self.environment)
        return HubServer.read_by_this_process(server, tempfile.mkdtemp())

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
            elif line["key"] == "deletedFile":
                del self.files[repository][line["value"]["path"]]


def _handler(hub: FakeHub):
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            parts = self.path.split("?")[0].strip("/").split("/")
            if parts == [""]:
                return self._answer({})
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            if token not in (TOKEN, READ_TOKEN):
                return self._answer({"error": "Invalid username or password."}, 401)
            if parts[2:3] == ["resolve"]:
                return self._file(hub.files["/".join(parts[:2])].get("/".join(parts[4:])))
            repository = "/".join(parts[2:4])
            if repository not in hub.files:
                return self._answer({"error": "Repository not found"}, 404)
            if parts[4:] == ["auth-check", "write"]:
                return self._answer({}, 200 if token == TOKEN else 403)
            if parts[4:5] == ["tree"]:
                return self._answer([{"type": "file", "path": path, "size": 1, "oid": "0" * 40}
                                     for path in sorted(hub.files[repository])])  # fmt: skip
            return self._answer({"id": repository, "sha": "0" * 40, "private": hub.is_private, "siblings": []})

        do_HEAD = do_GET

        def _file(self, content: bytes | None):
            if content is None:
                return self._send(b"", 404, {"X-Error-Code": "EntryNotFound"})
            digest = hashlib.sha1(content).hexdigest()
            return self._send(content, 200, {"X-Repo-Commit": digest, "ETag": f'"{digest}"'})

        def do_POST(self):
            token = self.headers.get("Authorization")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == "/api/validate-yaml":
                hub.checked.append(json.loads(body)["content"])
                return self._answer({"errors": [], "warnings": []})
            hub.tokens.append(token)
            if token != f"Bearer {TOKEN}":
                return self._answer({"error": "refused"}, 403 if token == f"Bearer {READ_TOKEN}" else 401)
            parts = self.path.split("?")[0].strip("/").split("/")
            if self.path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked.get('organization') or 'nobody'}/{asked['name']}"
                if name in hub.files:
                    return self._answer({"error": "exists", "url": f"{hub.address}/{name}"}, 409)
                hub.files[name] = {}
                return self._answer({"url": f"{hub.address}/{name}", "name": name})
            repository = "/".join(parts[2:4])
            if parts[4] == "branch":
                hub.branches.append(parts[5])
                return self._answer({})
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

        def _answer(self, value: dict | list, status: int = 200):
            self._send(json.dumps(value).encode(), status, {"Content-Type": "application/json"})

        def _send(self, body: bytes, status: int, headers: dict):
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler
