"""The page of `t5suite predict --web` and its guard: its own page is answered, and nothing else that reaches its port."""

import asyncio
import contextlib
import http.client
import importlib.util
import json
import re
import socket
import subprocess
import sys
import threading
import unittest
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit

import pytest
from absl.testing import parameterized
from support import folder, start_browser
from tiny_predictor import answers, mini_rows, predict_words, rows_file

from t5suite import load_task
from t5suite.base.errors import ConfigError
from t5suite.inference import running
from t5suite.inference.web import (
    LONGEST_TEXT,
    ROUTES,
    answer_function,
    check_texts,
    local_socket,
    page_of,
    page_title,
    server_of,
)
from t5suite.inference.web_guard import Guard
from t5suite.testing import exits_with, run_cli, save_model, tiny_run, write_rows

PORT = 7860


async def echo(scope, receive, send):
    """An application that answers the path and the body that it got."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode() + b" " + body})


def requested(method="GET", path="/", headers=(("host", f"127.0.0.1:{PORT}"),), parts=(b"",), kind="http"):
    """What a guard of `echo` sends for one request, whose body arrives in parts."""
    guard = Guard(echo, PORT, {"GET": re.compile("/"), "POST": re.compile("/answer")}, largest_body=10)
    scope = {"type": kind, "method": method, "path": path}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers]
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    messages[-1]["more_body"] = False
    messages.append({"type": "http.disconnect"})
    sent = []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(guard(scope, receive, send))
    return sent


class GuardTest(parameterized.TestCase):
    @parameterized.parameters("127.0.0.1:7860", "localhost:7860", "LOCALHOST:7860", "[::1]:7860")
    def test_a_request_to_a_local_name_passes(self, host):
        for headers in ([("host", host)], [("host", host), ("origin", "http://localhost:7860")]):
            start, body = requested("POST", "/answer", headers, (b"12345", b"67890"))
            self.assertEqual((start["status"], body["body"]), (200, b"/answer 1234567890"))

    @parameterized.parameters(
        [[("host", "evil.example:7860")]],
        [[("host", "127.0.0.1.evil.example:7860")]],
        [[("host", "evil.example")]],
        [[("host", "127.0.0.1:7861")]],
        [[("host", "127.0.0.1")]],
        [[("host", "")]],
        [[]],
        [[("host", "127.0.0.1:7860"), ("host", "evil.example:7860")]],
    )
    def test_another_host_is_refused(self, headers):
        self.assertEqual(requested(headers=headers)[0]["status"], 403)

    @parameterized.parameters(
        "http://evil.example",
        "http://evil.example:7860",
        "https://127.0.0.1:7860",
        "http://127.0.0.1:8000",
        "http://127.0.0.1:7860.evil.example",
        "null",
        "",
    )
    def test_another_origin_is_refused_and_gets_no_leave_to_read(self, origin):
        start, _ = requested(headers=[("host", "127.0.0.1:7860"), ("origin", origin)])
        self.assertEqual(start["status"], 403)
        self.assertNotIn(b"access-control-allow-origin", dict(start["headers"]))

    @parameterized.parameters(("GET", "/answer"), ("POST", "/"), ("PUT", "/"), ("OPTIONS", "/"), ("GET", "/x"))
    def test_a_route_that_is_not_listed_is_not_served(self, method, path):
        self.assertEqual(requested(method, path)[0]["status"], 404)

    @parameterized.parameters([(b"12345678901",)], [(b"12345", b"67890", b"1")])
    def test_a_longer_body_is_refused(self, *parts):
        start, body = requested("POST", "/answer", parts=parts[0])
        self.assertEqual(start["status"], 413)
        self.assertIn("10 bytes", json.loads(body["body"])["detail"])

    def test_a_websocket_is_closed(self):
        self.assertEqual(requested(kind="websocket"), [{"type": "websocket.close"}])


class PageTest(parameterized.TestCase):
    def test_a_text_of_any_length_that_is_too_long_or_no_text_is_refused(self):
        check_texts(["x" * LONGEST_TEXT, ""], ["first", "second"])
        with exits_with(65, "second: 100,001 characters; the page takes 100,000"):
            check_texts(["", "x" * 100_001], ["first", "second"])
        with exits_with(65, "first: not a text"):
            check_texts([{"path": "/etc/passwd"}, ""], ["first", "second"])

    def test_the_title_names_a_model_without_its_folder(self):
        directory = folder()
        self.assertEqual(page_title(f"{directory}/"), directory.name)
        self.assertEqual(page_title("google/t5-v1_1-small"), "google/t5-v1_1-small")

    @pytest.mark.slow
    def test_a_model_is_named_by_its_task_where_its_folder_does_not(self):
        place = folder()
        for name, title in (("0002", "sentiment-0002"), ("my-sentiment", "my-sentiment")):
            save_model(place / name, tasks=[load_task("mini", "sentiment")])
            self.assertEqual(page_title(str(place / name)), title)
        run = tiny_run(max_steps=1, max_train_samples=8, max_eval_samples=4, run_name="first try").directory
        self.assertEqual(page_title(str(run)), "first try")

    @parameterized.parameters(
        ("POST", "/gradio_api/upload"),
        ("GET", "/gradio_api/upload_progress"),
        ("GET", "/monitoring/summary"),
        ("GET", "/monitoring"),
        ("GET", "/openapi.json"),
        ("GET", "/gradio_api/openapi.json"),
        ("GET", "/docs"),
        ("GET", "/gradio_api/info"),
        ("GET", "/gradio_api/file=/etc/passwd"),
        ("GET", "/gradio_api/proxy=http://evil.example"),
        ("POST", "/gradio_api/run/predict"),
        ("POST", "/gradio_api/call/predict"),
        ("POST", "/gradio_api/component_server"),
        ("GET", "/static/../etc/passwd"),
        ("GET", "/config\n"),
    )
    def test_no_route_beside_the_page(self, method, path):
        self.assertIsNone(ROUTES[method].fullmatch(path))


@contextlib.contextmanager
def served(answer, title="a run"):
    """The port of a page with one text."""
    with local_socket() as listener:
        server = server_of(page_of(answer, ["sentence"], title), listener)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(30)


def upper_case(text: str):
    if text == "fail":
        raise RuntimeError("no file /home/me/secret")
    if text == "refuse":
        raise ConfigError("the model's generation_config.json has num_beams 4")
    return text.upper(), {"yes": 0.9, "no": 0.1}, "7 tokens of the text were not read"


class PageClient(parameterized.TestCase):
    """Real requests to the real page, as a browser sends them; `port` is the page's."""

    port: int

    def request(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        self.addCleanup(connection.close)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()

    def answered(self, text) -> str:
        """The events of the queue for one text that is typed."""
        body = json.dumps({"data": [text], "fn_index": self.function_index(), "session_hash": "tested"})
        headers = {"Content-Type": "application/json", "Origin": f"http://127.0.0.1:{self.port}"}
        self.assertEqual(self.request("POST", "/gradio_api/queue/join", body, **headers)[0], 200)
        status, _, events = self.request("GET", "/gradio_api/queue/data?session_hash=tested")
        self.assertEqual(status, 200)
        return events

    def function_index(self) -> int:
        """The number of the function that "Submit" calls."""
        config = json.loads(self.request("GET", "/config")[2])
        (number,) = [each["id"] for each in config["dependencies"] if each["backend_fn"] and len(each["inputs"]) == 1]
        return number


@pytest.mark.slow
@unittest.skipUnless(importlib.util.find_spec("gradio"), "no Gradio here: python -m pip install 't5suite[web]'")
class ServedPageTest(PageClient):
    """Requests of the page itself, and as a browser sends them for another site's page."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = folder()
        cls.port = cls.enterClassContext(served(upper_case, page_title(str(cls.model))))

    def test_its_own_page_is_answered(self):
        for path in ("/", "/config", "/theme.css"):
            self.assertEqual(self.request("GET", path)[0], 200, path)
        events = self.answered("well")
        self.assertIn('"WELL"', events)
        self.assertIn("0.9", events)
        self.assertIn("7 tokens of the text were not read", events)

    def test_a_page_that_points_its_name_to_this_machine_reads_nothing(self):
        for path in ("/", "/config", "/gradio_api/queue/data?session_hash=tested"):
            host = f"evil.example:{self.port}"
            status, headers, body = self.request("GET", path, Host=host, Origin=f"http://{host}")
            self.assertEqual(status, 403)
            self.assertIsNone(headers["access-control-allow-origin"])
            self.assertNotIn("gradio", body)

    def test_a_page_of_another_site_cannot_ask(self):
        body = json.dumps({"data": ["well"], "fn_index": 0, "session_hash": "foreign"})
        for method, path in (("POST", "/gradio_api/queue/join"), ("OPTIONS", "/gradio_api/queue/join")):
            status, headers, _ = self.request(method, path, body, Origin="http://evil.example")
            self.assertEqual(status, 403)
            self.assertIsNone(headers["access-control-allow-origin"])

    @parameterized.parameters(
        ("POST", "/gradio_api/upload"),
        ("GET", "/monitoring/summary"),
        ("GET", "/openapi.json"),
        ("GET", "/gradio_api/openapi.json"),
        ("GET", "/gradio_api/info"),
        ("GET", "/docs"),
        ("POST", "/gradio_api/run/shown"),
        ("POST", "/gradio_api/call/shown"),
        ("GET", "/gradio_api/file=/etc/passwd"),
    )
    def test_what_the_page_does_not_need_is_not_served(self, method, path):
        self.assertEqual(self.request(method, path)[0], 404)

    def test_a_long_text_and_a_large_request_are_refused(self):
        self.assertIn("100,001 characters", self.answered("x" * 100_001))
        self.assertEqual(self.request("POST", "/gradio_api/queue/join", b"x" * (4 * 2**20 + 1))[0], 413)

    def test_what_no_setting_of_the_model_allows_is_refused_by_its_cause(self):
        self.assertIn("generation_config.json has num_beams 4", self.answered("refuse"))

    def test_no_path_of_this_machine_is_told(self):
        texts = [self.request("GET", path)[2] for path in ("/", "/config")] + [self.answered("fail")]
        for text in texts:
            self.assertNotIn(str(self.model.parent) + "/", text)
            self.assertNotIn("/home/me", text)
            self.assertNotIn(str(Path.cwd()), text)
        self.assertIn(self.model.name, texts[0])


@pytest.mark.slow
@unittest.skipUnless(importlib.util.find_spec("gradio"), "no Gradio here: python -m pip install 't5suite[web]'")
class CommandTest(PageClient):
    def test_a_row_typed_into_the_page_has_its_answer_and_the_labels_probabilities(self):
        (row,) = mini_rows(count=1)
        (answer,), (chosen,) = answers(rows=rows_file(count=1)), answers("--labels", rows=rows_file(count=1))
        words = [sys.executable, "-m", "t5suite", *predict_words("--web")]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        self.port = urlsplit(process.stdout.readline().split()[0]).port
        events = [json.loads(line[6:]) for line in self.answered(row["sentence"]).splitlines() if line[:6] == "data: "]
        text, label, _ = next(event for event in events if event["msg"] == "process_completed")["output"]["data"]
        self.assertEqual(text, answer["prediction"])
        shares = {each["label"]: each["confidence"] for each in label["confidences"]}
        self.assertEqual(shares, chosen["probabilities"])


@unittest.skipUnless(importlib.util.find_spec("gradio"), "no Gradio here: python -m pip install 't5suite[web]'")
class AnswerTest(parameterized.TestCase):
    def answer_by(self, *flags):
        with mock.patch.object(running, "serve_page") as serve_page:
            run_cli(*predict_words("--web", *flags))
        job, predictor, _ = serve_page.call_args.args
        return answer_function(job, predictor)

    @parameterized.parameters(([],), (["--labels"],))
    @pytest.mark.quick_cases(1)
    def test_what_is_typed_has_predict_s_answer_and_the_probabilities_of_the_task_s_labels(self, flags):
        answer = self.answer_by(*flags)
        expected, chosen = (answers(*words, rows=rows_file(count=3)) for words in (flags, ["--labels"]))
        for row, line, chosen_line in zip(mini_rows(count=3), expected, chosen, strict=True):
            text, probabilities, _ = answer(row["sentence"])
            self.assertEqual(text, line["prediction"])
            for label, probability in chosen_line["probabilities"].items():
                self.assertAlmostEqual(probabilities[label], probability, delta=1e-5)

    def test_what_is_cut_of_a_text_and_of_an_answer_is_shown(self):
        long_text = {"sentence": "lamp " * 3000}
        for flags in ([], ["--max_new_tokens", "1"], ["--labels"]):
            answer = self.answer_by(*flags)
            (line,) = answers(*flags, rows=write_rows(folder() / "rows.jsonl", [long_text]))
            notes = answer(long_text["sentence"])[2]
            self.assertIn(f"{line['cut_tokens']:,} tokens of the text were not read", notes)
            self.assertEqual("the answer is cut off" in notes, "truncated" in line)
            self.assertEqual("no label" in notes, "invalid" in line)
            self.assertNotIn("not read", answer("lamp")[2])

    @parameterized.parameters(
        "--input_type text", "--text_column x", "--delimiter tab", "--window 3", "--num_beams 3 --num_return_sequences 3",
        "--scores", "--include_inputs",
    )  # fmt: skip
    def test_flags_of_rows_and_lines_have_no_effect_on_a_page(self, flags):
        name = flags.replace("--num_beams 3 ", "").split()[0]
        with exits_with(78, f"{name} has no effect with --web"):
            run_cli(*predict_words("--web", flags))

    def test_a_language_in_a_column_is_that_of_no_text_that_is_typed(self):
        with exits_with(78, "no column 'lang'; give its language by --target_lang$"):
            run_cli(*predict_words("--web", "--target_lang_column lang"))


@pytest.mark.slow
@unittest.skipUnless(importlib.util.find_spec("gradio"), "no Gradio here: python -m pip install 't5suite[web]'")
class BrowserTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = start_browser(cls)

    def test_the_page_answers_and_reaches_this_machine_alone(self):
        reached, connect = [], socket.socket.connect
        recorded = lambda one, address: (reached.append(address[0]), connect(one, address))[1]
        self.enter_context(mock.patch.object(socket.socket, "connect", recorded))
        port = self.enter_context(served(upper_case))
        page = self.browser.new_page()
        self.addCleanup(page.close)
        failures = []
        page.on("request", lambda request: reached.append(urlsplit(request.url).hostname))
        page.on("response", lambda response: failures.append(response.url) if response.status >= 400 else None)
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_label("sentence").fill("well")
        page.get_by_role("button", name="Submit").click()
        page.get_by_text("90%").wait_for()
        self.assertEqual(page.get_by_label("answer").input_value(), "WELL")
        self.assertEqual(set(reached), {"127.0.0.1"})
        self.assertEqual(failures, [])
        page.get_by_label("sentence").fill("x" * 100_001)
        page.get_by_role("button", name="Submit").click()
        page.get_by_text("100,001 characters; the page takes 100,000 at most").wait_for()
