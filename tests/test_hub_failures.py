"""Failures of the hub: their true cause below what libraries make of it, retries, exit codes, messages."""

import errno
import http.client
import json
import os
import socket
import ssl
import tempfile
import urllib.error
import uuid
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import aiohttp
import datasets
import httpx
import httpx2
import requests
import urllib3
from absl.testing import parameterized
from huggingface_hub import errors
from huggingface_hub.utils import hf_raise_for_status

from t5suite import load_task
from t5suite.base import hub, hub_commits, hub_failures, hub_files
from t5suite.base.errors import ConfigError, DataError
from t5suite.base.hub_failures import Reading, failure_of, read_from_hub
from t5suite.testing import exits_with

URL = "https://huggingface.co/lab/tiny/resolve/main/spiece.model"
READING = Reading("model", "lab/tiny", None, "spiece.model")
DATA = Reading("dataset", "lab/rows", None, "train.parquet")


def hub_client_error(status, url=URL, **headers):
    """What the hub's client raises for a response."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx2.Response(status, headers=headers, request=httpx2.Request("GET", url))
    try:
        hf_raise_for_status(response)
    except errors.HfHubHTTPError as error:
        return error
    raise AssertionError(status)


def raised_from(outer, inner):
    """`outer` as it is when it was raised from `inner`."""
    try:
        raise outer from inner
    except type(outer) as error:
        return error


def raised_while_handling(outer, inner):
    """`outer` as it is when it was raised `from None` while `inner` was handled, as `datasets` does."""
    try:
        try:
            raise inner
        except type(inner):
            raise outer from None
    except type(outer) as error:
        return error


def status_error(library, status):
    request = library.Request("GET", URL)
    response = library.Response(status, request=request)
    return library.HTTPStatusError("x", request=request, response=response)


def requests_error(status):
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError("x", response=response)


def aiohttp_error(status):
    return aiohttp.ClientResponseError(SimpleNamespace(real_url=URL), (), status=status)


CAUSES = (
    ("rate limit of the client", hub_client_error(429), "rate limit"),
    ("server error of the client", hub_client_error(500), "server"),
    ("bad gateway of the client", hub_client_error(502), "server"),
    ("unavailable, by the client", hub_client_error(503), "server"),
    ("wrong token", hub_client_error(401, X_Error_Message="Invalid credentials in Authorization header"), "token"),
    ("no login for a private repository", hub_client_error(401, X_Error_Code="RepoNotFound"), "repository"),
    ("gated", hub_client_error(403, X_Error_Code="GatedRepo"), "gated"),
    ("gated, without a login", hub_client_error(401, X_Error_Code="GatedRepo"), "gated"),
    ("forbidden", hub_client_error(403), "forbidden"),
    ("no repository", hub_client_error(404, X_Error_Code="RepoNotFound"), "repository"),
    ("no revision", hub_client_error(404, X_Error_Code="RevisionNotFound"), "revision"),
    ("no file", hub_client_error(404, X_Error_Code="EntryNotFound"), "file"),
    ("httpx", status_error(httpx, 429), "rate limit"),
    ("httpx2", status_error(httpx2, 503), "server"),
    ("requests", requests_error(429), "rate limit"),
    ("aiohttp", aiohttp_error(500), "server"),
    ("urllib", urllib.error.HTTPError(URL, 503, "x", {}, None), "server"),
    ("httpx reset", httpx.ReadError("reset"), "transfer"),
    ("httpx2 reset", httpx2.ReadError("reset"), "transfer"),
    ("httpx2 closed", httpx2.RemoteProtocolError("peer closed connection"), "transfer"),
    ("requests cut", requests.exceptions.ChunkedEncodingError("x"), "transfer"),
    ("urllib3 cut", urllib3.exceptions.ProtocolError("x"), "transfer"),
    ("http.client cut", http.client.IncompleteRead(b"x"), "transfer"),
    ("aiohttp cut", aiohttp.ClientPayloadError("x"), "transfer"),
    ("reset by the peer", ConnectionResetError(errno.ECONNRESET, "reset"), "transfer"),
    ("shorter than announced", OSError("Consistency check failed: file should be of size 9"), "transfer"),
    ("xet", RuntimeError("Data processing error: CAS service error : x"), "transfer"),
    ("httpx slow", httpx.ReadTimeout("x"), "timeout"),
    ("httpx2 slow", httpx2.ConnectTimeout("x"), "timeout"),
    ("requests slow", requests.exceptions.ReadTimeout("x"), "timeout"),
    ("asyncio slow", TimeoutError(), "timeout"),
    ("httpx2 refused", httpx2.ConnectError("refused"), "connection"),
    ("requests refused", requests.exceptions.ConnectionError("x"), "connection"),
    ("no name", socket.gaierror(-2, "Name or service not known"), "connection"),
    ("no route", OSError(errno.ENETUNREACH, "unreachable"), "connection"),
    ("proxy", httpx2.ProxyError("x"), "connection"),
    ("certificate", raised_from(httpx2.ConnectError("x"), ssl.SSLCertVerificationError("self-signed")), "certificate"),
    ("certificate, by requests", requests.exceptions.SSLError(ssl.SSLCertVerificationError("x")), "certificate"),
    ("cut while keys were exchanged", raised_from(httpx2.ConnectError("x"), ssl.SSLEOFError(8, "EOF")), "transfer"),
    ("cut, by requests", requests.exceptions.SSLError(ssl.SSLEOFError(8, "EOF")), "transfer"),
    ("aiohttp slow", aiohttp.ServerTimeoutError("x"), "timeout"),
    ("requests slow to connect", requests.exceptions.ConnectTimeout("x"), "timeout"),
    ("full disk", OSError(errno.ENOSPC, "No space left on device", "x"), "full disk"),
    ("read-only disk", OSError(errno.EROFS, "Read-only file system", "x"), "disk"),
    ("faulty disk", OSError(errno.EIO, "Input/output error"), "disk"),
    ("no permission to write", PermissionError(errno.EACCES, "Permission denied", "x"), "disk"),
    ("no permission to connect", raised_from(
        httpx2.ConnectError("x"), PermissionError(errno.EACCES, "Permission denied")), "connection"),
)  # fmt: skip
NO_CAUSES = (
    ("network switched off", errors.OfflineModeIsEnabled("x")),
    ("network switched off, wrapped", raised_from(ConnectionError("x"), errors.OfflineModeIsEnabled("x"))),
    ("network switched off, by name", ConnectionError("Couldn't reach 'x' on the Hub (OfflineModeIsEnabled)")),
    ("bad settings", ValueError("not JSON")),
    ("no local file", FileNotFoundError(errno.ENOENT, "No such file", "x")),
    ("a file that is looked for before", raised_while_handling(
        ValueError("not JSON"), hub_client_error(404, X_Error_Code="EntryNotFound"))),
)  # fmt: skip


class CauseTest(parameterized.TestCase):
    @parameterized.named_parameters(*CAUSES)
    def test_the_cause_of_each_librarys_error(self, error, kind):
        self.assertEqual(failure_of(error).kind, kind)

    @parameterized.named_parameters(*CAUSES)
    def test_the_cause_below_what_libraries_make_of_it(self, error, kind):
        """transformers raises an OSError from it, the hub's client one for a missing copy, datasets hides it."""
        by_client = raised_from(errors.LocalEntryNotFoundError("no local copy"), error)
        self.assertEqual(failure_of(raised_from(OSError("We couldn't connect"), by_client)).kind, kind)
        generation = raised_from(datasets.exceptions.DatasetGenerationError("x"), error)
        self.assertEqual(failure_of(generation).kind, kind)
        if kind != "file":  # a missing file is looked for all the time
            hidden = raised_while_handling(FileNotFoundError("Couldn't find any data file"), by_client)
            self.assertEqual(failure_of(hidden).kind, kind)

    @parameterized.named_parameters(*NO_CAUSES)
    def test_what_is_no_failure_of_the_hub(self, error):
        self.assertIsNone(failure_of(error))

    def test_how_long_the_hub_wants_to_be_left_alone(self):
        self.assertEqual(failure_of(hub_client_error(429, Retry_After="7")).retry_after, 7)
        self.assertEqual(failure_of(hub_client_error(429, RateLimit='"api";r=0;t=55')).retry_after, 55)
        later = format_datetime(datetime.now(UTC) + timedelta(seconds=100))
        self.assertBetween(failure_of(hub_client_error(503, Retry_After=later)).retry_after, 90, 100)
        self.assertIsNone(failure_of(hub_client_error(500)).retry_after)


class ReadTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.pauses = []
        self.enter_context(mock.patch.object(hub_failures.time, "sleep", self.pauses.append))
        for name in ("_is_public", "_repositories_like", "_revisions", "_files"):
            self.enter_context(mock.patch.object(hub_failures, name, return_value=[]))
        self.enter_context(mock.patch.dict(os.environ, {"HF_TOKEN": "", "HF_ENDPOINT": "https://huggingface.co"}))

    def read(self, *outcomes, reading=READING):
        """Reads where the outcomes come one after the other; the last one comes again and again."""
        self.num_reads = 0

        def attempt():
            outcome = outcomes[min(self.num_reads, len(outcomes) - 1)]
            self.num_reads += 1
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return read_from_hub(reading, attempt)

    def test_what_passes_within_the_retries_is_logged_and_read(self):
        with self.assertLogs("t5suite.base.hub_failures", "WARNING") as logs:
            value = self.read(hub_client_error(429, Retry_After="7"), httpx2.ReadError("reset"), b"content")
        self.assertEqual((value, self.pauses), (b"content", [7, 4]))
        self.assertRegex(
            logs.output[0], r"lab/tiny \(spiece.model\): the hub limits .*429.*again in 7 s \(attempt 2 of 4\)"
        )
        self.assertRegex(
            logs.output[1], r"the transfer broke \(ReadError: reset\); trying again in 4 s \(attempt 3 of 4\)"
        )

    @parameterized.named_parameters(*[each for each in CAUSES if each[2] in hub_failures.MAY_PASS])
    def test_what_may_pass_ends_with_75_after_four_attempts(self, error, kind):
        with exits_with(75) as caught:
            self.read(error)
        self.assertEqual(self.num_reads, 4)
        self.assertIn(f"lab/tiny (spiece.model): {hub_failures.WORDS[kind]}", str(caught.exception))

    def test_the_hub_cannot_make_a_run_wait_for_hours(self):
        with exits_with(75):
            self.read(hub_client_error(429, Retry_After="86400"))
        self.assertEqual(self.pauses, [300, 300, 300])

    @parameterized.named_parameters(
        ("gated", hub_client_error(403, X_Error_Code="GatedRepo"), READING, 78,
         "gated.*accept its terms at https://huggingface.co/lab/tiny and log in by `hf auth login`"),
        ("gated data", hub_client_error(403, X_Error_Code="GatedRepo"), DATA, 78,
         "accept its terms at https://huggingface.co/datasets/lab/rows"),
        ("wrong token", hub_client_error(401, X_Error_Message="Invalid credentials in Authorization header"),
         READING, 78, "refuses the login.*log in by `hf auth login`, or set HF_TOKEN"),
        ("no repository", hub_client_error(404, X_Error_Code="RepoNotFound"), READING, 78,
         "no such repository.*check the name; if it is private, log in"),
        ("no data file", hub_client_error(404, X_Error_Code="EntryNotFound"), DATA, 65, "no such file"),
        ("full disk", OSError(errno.ENOSPC, "No space left on device"), READING, 74,
         "cache is full.*set HF_HOME"),
        ("read-only disk", OSError(errno.EROFS, "Read-only file system", "x"), DATA, 74, "Read-only.*set HF_HOME"),
        ("certificate", raised_from(httpx2.ConnectError("x"), ssl.SSLCertVerificationError("self-signed")), READING,
         78, "certificate cannot be verified.*self-signed.*SSL_CERT_FILE"),
    )  # fmt: skip
    def test_what_does_not_pass_is_not_tried_again(self, error, reading, exit_code, message):
        with exits_with(exit_code, message):
            self.read(error, reading=reading)
        self.assertEqual((self.num_reads, self.pauses), (1, []))

    def test_other_errors_are_left_alone(self):
        with exits_with(78) as refused:
            load_task("glue", "rtee")
        for error in (ValueError("not JSON"), refused.exception, KeyError("x")):
            with self.assertRaises(type(error)) as caught:
                self.read(error)
            self.assertIs(caught.exception, error)

    def test_no_token_is_in_a_message(self):
        token = "hf_" + "TokenOfNobodyAtAllForThisTest"
        with exits_with(75) as caught:
            self.read(httpx2.ReadError(f"https://user:{token}@huggingface.co"))
        self.assertNotIn(token, str(caught.exception))


NO_REPOSITORY = hub_client_error(404, X_Error_Code="RepoNotFound")
NO_REVISION = hub_client_error(404, X_Error_Code="RevisionNotFound")


def missing_file(path):
    """What the hub's client raises for a file that a repository lacks; `path` is the address's, behind the revision."""
    url = f"https://huggingface.co/lab/tiny/resolve/refs%2Fpr%2F1/{path}"
    return hub_client_error(404, url, X_Error_Code="EntryNotFound")


class EntryOfNoAddress(Exception):
    """A missing file whose response was made without a request, as a user's own client may."""

    response = httpx2.Response(404, headers={"X-Error-Code": "EntryNotFound"})


class NamesOnTheHub:
    """A hub's client, as `huggingface_hub.HfApi`, for a hub with one repository of each kind."""

    def __init__(self, token=None):
        del token

    def repo_info(self, repository, *, repo_type, timeout, revision=None):
        del timeout, revision
        files = {"model": ["config.json", "spiece.model"], "dataset": ["train.parquet", "test.parquet"]}
        assert repository in ("lab/tiny", "lab/rows")
        siblings = [SimpleNamespace(rfilename=name) for name in files[repo_type]]
        return SimpleNamespace(siblings=siblings, private=False, gated="manual" if repo_type == "model" else False)

    def list_repo_refs(self, repository, *, repo_type):
        del repo_type
        assert repository == "lab/tiny"
        return SimpleNamespace(branches=[SimpleNamespace(name="main")], tags=[SimpleNamespace(name="v1.1")])

    def list_models(self, author=None, search=None, limit=None):
        del limit
        names = {"lab": ["lab/tiny", "lab/large"]}.get(author, [])
        if search == "tinny":
            names = ["lab/tiny"]
        return [SimpleNamespace(id=name) for name in names]

    list_datasets = list_spaces = list_models


class AdviceTest(parameterized.TestCase):
    """What the hub has under a name that is nearly the one that was asked for."""

    @parameterized.named_parameters(
        (
            "file",
            Reading("model", "lab/tiny", None, "spiece.modl"),
            missing_file("spiece.modl"),
            r"tiny \(spiece\.modl\): .*did you mean spiece\.model\?",
        ),
        (
            "file of the tokenizer",
            Reading("model", "lab/tiny", None, "tokenizer"),
            missing_file("spiece%2Emodl"),
            r"tiny \(tokenizer, spiece\.modl\): .*did you mean spiece\.model\?",
        ),
        (
            "file of rows",
            Reading("dataset", "lab/rows", None, "trian.parquet"),
            missing_file("trian.parquet"),
            r"did you mean train\.parquet",
        ),
        (
            "unlike any file",
            Reading("model", "lab/tiny", None, "zzz"),
            missing_file("zzz"),
            "it has config.json, spiece.model",
        ),
        (
            "in a folder, unlike any file",
            Reading("dataset", "lab/rows", None, "parts/zzz"),
            missing_file("parts/zzz"),
            "it has train.parquet, test.parquet",
        ),
        (
            "of an unknown address",
            Reading("model", "lab/tiny", None, "spiece.modl"),
            EntryOfNoAddress(),
            r"did you mean spiece\.model\?",
        ),
        ("branch", Reading("model", "lab/tiny", "mian", None), NO_REVISION, r"did you mean main\?"),
        ("tag", Reading("model", "lab/tiny", "v1.2", None), NO_REVISION, r"did you mean v1\.1\?"),
        ("of the owner", Reading("model", "lab/tinny", None, None), NO_REPOSITORY, r"did you mean lab/tiny\?"),
        (
            "of no such owner",
            Reading("model", "lap/tiny", None, None),
            NO_REPOSITORY,
            "check the name; if it is private",
        ),
    )
    def test_a_near_name_is_proposed(self, reading, error, message):
        with (
            mock.patch("huggingface_hub.HfApi", NamesOnTheHub),
            exits_with(65 if reading.kind == "dataset" else 78, message),
        ):
            read_from_hub(reading, mock.Mock(side_effect=error))

    @parameterized.parameters(("dataset", "lab/rows", True), ("model", "lab/tiny", False))
    def test_a_token_is_not_needed_where_a_repository_is_neither_private_nor_gated(self, kind, name, is_public):
        refused = hub_client_error(401, X_Error_Message="Invalid credentials in Authorization header")
        with (
            mock.patch("huggingface_hub.HfApi", NamesOnTheHub),
            mock.patch.dict(os.environ, {"HF_TOKEN": "hf_" + "Expired" * 4}),
            exits_with(78, r"the token \(HF_TOKEN\) is wrong or has expired") as caught,
        ):
            read_from_hub(Reading(kind, name), mock.Mock(side_effect=refused))
        self.assertEqual("needs no token" in str(caught.exception), is_public)


class CachedModelTest(parameterized.TestCase):
    """A hub that fails after an earlier start: its copy is read if all of it is there, and the failure is named if not."""

    SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

    def fetch(self, files, with_weights):
        cache = Path(tempfile.mkdtemp())
        commit = uuid.uuid4().hex + "0" * 8  # what a process has read it does not ask for again
        snapshot = cache / "models--lab--tiny" / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for name in files:
            (snapshot / name).write_text("{}")
        if "model.safetensors.index.json" in files:
            index = {"weight_map": dict(zip("abc", (*self.SHARDS, self.SHARDS[0]), strict=True))}
            (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
        no_hub = mock.Mock(side_effect=httpx2.ConnectError("refused"))
        with (
            mock.patch("huggingface_hub.constants.HF_HUB_CACHE", str(cache)),
            mock.patch("huggingface_hub.HfApi", return_value=SimpleNamespace(model_info=no_hub)),
            mock.patch.object(hub_failures.time, "sleep"),
        ):
            hub_files.fetch_model("lab/tiny", commit, with_weights)

    @parameterized.named_parameters(
        ("one file", ["config.json", "spiece.model", "model.safetensors"], True),
        ("an old file", ["config.json", "spiece.model", "pytorch_model.bin"], True),
        ("shards", ["config.json", "spiece.model", "model.safetensors.index.json", *SHARDS], True),
        ("no weights needed", ["config.json", "tokenizer.json"], False),
    )
    def test_a_whole_copy_is_read(self, files, with_weights):
        with self.assertLogs("t5suite.base.hub_files", "WARNING") as logs:
            self.fetch(files, with_weights)
        self.assertRegex(logs.output[0], "ConnectError: refused.*the copy in the local cache is read")

    @parameterized.named_parameters(
        ("nothing", [], True),
        ("no weights", ["config.json", "spiece.model"], True),
        ("a shard missing", ["config.json", "spiece.model", "model.safetensors.index.json", SHARDS[1]], True),
        ("no vocabulary", ["config.json"], False),
        ("no settings", ["spiece.model", "model.safetensors"], True),
    )
    def test_half_a_copy_is_not(self, files, with_weights):
        with exits_with(75, "ConnectError: refused"):
            self.fetch(files, with_weights)


OLD, NEW = "0" * 40, "1" * 40


class ReadsTest(parameterized.TestCase):
    """What a run has read, and what a later one reads in its place."""

    def test_a_run_that_resumes_reads_the_commits_of_its_beginning(self):
        reads = hub_commits.HubReads()
        requests = {
            hub_commits.Request("model", "lab/tiny", "main"): OLD,
            hub_commits.Request("model", "lab/tiny", "v2"): NEW,
            hub_commits.Request("dataset", "lab/rows"): NEW,
        }
        for request, commit in requests.items():
            reads.note(request, commit)
        reads.note(hub_commits.Request("dataset", "lab/none"), None)
        described = reads.described()
        self.assertEqual(described, {
            "models": {"lab/tiny": {"revision": "main", "commit": OLD}, "lab/tiny@v2": {"revision": "v2", "commit": NEW}},
            "datasets": {"lab/rows": {"revision": None, "commit": NEW}},
        })  # fmt: skip
        resumed = hub_commits.HubReads(commits={hub_commits.Request("dataset", "lab/rows"): OLD})
        resumed.continue_from(described)
        self.assertEqual(resumed.commits, {**requests, hub_commits.Request("dataset", "lab/rows"): OLD})
        self.assertEqual(resumed.read, {})

    @parameterized.parameters(
        (503, "lab/tiny", OLD), (503, "lab/none", None), (404, "lab/tiny", None),
    )  # fmt: skip
    def test_the_cache_s_commit_is_read_where_the_hub_fails_and_not_where_it_has_no_such_revision(
        self, status, name, expected
    ):
        cache = Path(tempfile.mkdtemp())
        refs = cache / "models--lab--tiny" / "refs"
        refs.mkdir(parents=True)
        (refs / "main").write_text(f"{OLD}\n")
        error = hub_client_error(status, **({"X_Error_Code": "RevisionNotFound"} if status == 404 else {}))
        request = hub_commits.Request("model", name)
        with (
            mock.patch("huggingface_hub.constants.HF_HUB_CACHE", str(cache)),
            mock.patch.object(hub_commits, "prepare_hub", return_value=True),
            mock.patch("huggingface_hub.get_hf_file_metadata", side_effect=error),
            mock.patch.object(hub_failures.time, "sleep"),
            hub_commits.reading_as(hub_commits.HubReads()),
        ):
            if expected is None:
                with exits_with(75 if status == 503 else 78, name):
                    hub_commits.look_up(request)
            else:
                with self.assertLogs("t5suite", "WARNING") as log:
                    self.assertEqual(hub_commits.look_up(request), expected)
                self.assertIn(f"the local cache is read, of commit {OLD}", log.output[-1])


class ChosenFilesTest(parameterized.TestCase):
    """Which files of a repository are downloaded."""

    def fetched(self, files: dict[str, str], with_weights=True) -> list[str]:
        """The files, in the order of their downloads."""
        place = Path(tempfile.mkdtemp())
        downloaded = []

        def download(name, commit, file):
            (place / file).parent.mkdir(exist_ok=True)
            (place / file).write_text(files[file])
            downloaded.append(file)
            return place / file

        with (
            mock.patch.object(hub_files, "list_files", return_value=list(files)),
            mock.patch.object(hub_files, "download_file", side_effect=download),
            hub_commits.reading_as(hub_commits.HubReads()),
        ):
            hub_files.fetch_model("lab/tiny", OLD, with_weights)
            hub_files.fetch_model("lab/tiny", OLD, with_weights=False)  # is there already
        return list(dict.fromkeys(downloaded))

    def test_settings_come_before_the_vocabulary_and_what_the_model_does_not_need_stays(self):
        files = ("tokenizer.json", "spiece.model", "config.json", "model.safetensors", "pytorch_model.bin", "README.md",
                 "additional_chat_templates/rag.jinja", "onnx/model.onnx", "onnx/config.json", "modeling.py")  # fmt: skip
        needed = ["config.json", "additional_chat_templates/rag.jinja", "modeling.py", "tokenizer.json", "spiece.model"]
        contents = dict.fromkeys(files, "{}")
        self.assertEqual(self.fetched(contents, with_weights=False), needed)
        self.assertEqual(self.fetched(contents), [*needed, "model.safetensors"])

    def test_the_weights_are_those_that_the_configuration_names_or_all_shards_of_an_index(self):
        index = json.dumps({"weight_map": {"a": "two.safetensors", "b": "one.safetensors", "c": "two.safetensors"}})
        files = {"config.json": "{}", "model.safetensors.index.json": index, "pytorch_model.bin": ""}
        shards = {"one.safetensors": "", "two.safetensors": ""}
        self.assertEqual(
            self.fetched(files | shards),
            ["config.json", "model.safetensors.index.json", "one.safetensors", "two.safetensors"],
        )
        named = {"config.json": json.dumps({"transformers_weights": "one.safetensors"})}
        self.assertEqual(self.fetched({**files, **shards, **named})[-1], "one.safetensors")
        with self.assertRaisesRegex(DataError, "index.json names two.safetensors, which the repository does not have"):
            self.fetched({**files, "one.safetensors": ""})

    def test_an_adapter_and_weights_of_another_form_are_refused(self):
        with self.assertRaisesRegex(ConfigError, "lab/tiny is an adapter, which is read from a folder"):
            self.fetched({"adapter_config.json": "{}", "adapter_model.safetensors": ""})
        with self.assertRaisesRegex(ConfigError, r"no weights that PyTorch reads .*; it has tf_model\.h5$"):
            self.fetched({"config.json": "{}", "tf_model.h5": "", "spiece.model": ""})


class NetworkTest(parameterized.TestCase):
    """Whether the hub can be reached, by the client's own session."""

    def ask(self, answer):
        session = SimpleNamespace(head=mock.Mock(side_effect=answer))
        with mock.patch("huggingface_hub.get_session", return_value=session):
            return hub.why_hub_unreachable("https://hub.example", 9), session.head

    def test_any_answer_will_do_and_it_is_the_clients_session_that_asks(self):
        reason, head = self.ask([SimpleNamespace(status_code=503)])
        self.assertIsNone(reason)
        head.assert_called_once_with("https://hub.example", timeout=9, follow_redirects=False)

    def test_a_slow_hub_is_no_missing_network(self):
        self.assertIsNone(self.ask(httpx2.ReadTimeout("x"))[0])

    @parameterized.parameters(httpx2.ConnectError("refused"), httpx2.ConnectTimeout("x"))
    def test_no_connection_is_none(self, error):
        self.assertIn(type(error).__name__, self.ask(error)[0])

    def test_patience_is_the_client_s(self):
        with mock.patch("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 60):
            self.assertEqual(hub.patience(), 60)

    @parameterized.parameters((True, {}), (False, {"HF_HUB_OFFLINE": "1"}), (False, {"HF_DATASETS_OFFLINE": "yes"}))
    def test_a_network_that_is_switched_off_is_not_asked_and_has_not_failed(self, at_import, variables):
        """The client has read its variable when it was imported; the environment may have changed since."""
        switched_off = {"HF_HUB_OFFLINE": "", "HF_DATASETS_OFFLINE": "", **variables}
        hub.hub_reachable.cache_clear()
        self.addCleanup(hub.hub_reachable.cache_clear)
        with (
            mock.patch.dict(os.environ, switched_off),
            mock.patch("huggingface_hub.constants.HF_HUB_OFFLINE", at_import),
            mock.patch.object(hub._network, "trouble", None),
            mock.patch.object(hub, "why_hub_unreachable") as ask,
        ):
            self.assertFalse(hub.hub_reachable())
            self.assertIsInstance(hub.absent("no copy", FileNotFoundError), FileNotFoundError)
        ask.assert_not_called()

    def test_a_missing_copy_is_temporary_if_the_network_failed(self):
        with mock.patch.object(hub._network, "trouble", None):
            self.assertIsInstance(hub.absent("no copy", FileNotFoundError), FileNotFoundError)
        with mock.patch.object(hub._network, "trouble", "ConnectError: refused"):
            error = hub.absent("no copy", FileNotFoundError)
        self.assertEqual(error.exit_code, 75)
        self.assertRegex(str(error), "no copy. The hub did not answer .ConnectError: refused.*HF_HUB_OFFLINE=1")
