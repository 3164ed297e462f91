"""Before a model: which requests are let through, what is answered together, what fails alone, what is forgotten."""

import asyncio
import json
import threading
import types
from typing import NamedTuple

from absl.testing import parameterized

from t5suite import load_task
from t5suite.base.errors import ConfigError, DataError
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.jobs import Job
from t5suite.inference.rows import Row
from t5suite.inference.serving.app import answered, app_of
from t5suite.inference.serving.bodies import CompletionBody, PredictBody
from t5suite.inference.serving.gate import Gate
from t5suite.inference.serving.limits import Busy, ClientLeft, Limits
from t5suite.inference.serving.model_queue import ModelQueue, QueuedRows
from t5suite.inference.serving.running import hosts_by_flags
from t5suite.inference.serving.service import Service
from t5suite.inference.serving.serving_metrics import ServingMetrics
from t5suite.inference.settings import InputSettings
from t5suite.tasks.tokenization import Lengths


class Held(NamedTuple):
    """A queue whose model waits, the batches that it has answered, and what lets it go on."""

    queue: ModelQueue
    batches: list[list[str]]
    go_on: threading.Event


def texts(*rows: str, job: Job | None = None, on_text=None) -> QueuedRows:
    return QueuedRows(job or Job(), [Row(number, f"rows[{number}]", text) for number, text in enumerate(rows)], on_text)


class QueueTest(parameterized.TestCase):
    def held_queue(self, max_rows_at_once=8, max_waiting_rows=8) -> Held:
        """The first request, `first`, is being answered until the model may go on."""
        batches = []
        go_on = threading.Event()
        begun = threading.Event()

        def answer(job, requests, on_text):
            begun.set()
            go_on.wait(30)
            batches.append([request.text for request in requests])
            if any(request.text == "faulty" for request in requests):
                raise RuntimeError("this text breaks the model")
            return [{"row": request.index, "prediction": request.text.upper()} for request in requests]

        queue = ModelQueue(answer, max_rows_at_once=max_rows_at_once, max_waiting_rows=max_waiting_rows)
        self.addCleanup(queue.close)
        self.addCleanup(go_on.set)
        queue.submit(texts("first"))
        begun.wait(30)
        return Held(queue, batches, go_on)

    def test_what_waits_is_answered_together_in_the_order_of_arrival(self):
        held = self.held_queue()
        futures = [held.queue.submit(texts(*rows)) for rows in (["a", "b"], ["c"], ["d", "e", "f"])]
        held.go_on.set()
        predictions = [[line["prediction"] for line in future.result()] for future in futures]
        self.assertEqual(predictions, [["A", "B"], ["C"], ["D", "E", "F"]])
        self.assertEqual([line["row"] for line in futures[2].result()], [0, 1, 2])
        self.assertEqual(held.batches, [["first"], ["a", "b", "c", "d", "e", "f"]])

    def test_a_batch_has_at_most_so_many_rows(self):
        held = self.held_queue(max_rows_at_once=3)
        futures = [held.queue.submit(texts(*rows)) for rows in (["a", "b"], ["c", "d"], ["e"], ["f"])]
        held.go_on.set()
        for future in futures:
            future.result()
        self.assertEqual(held.batches, [["first"], ["a", "b", "e"], ["c", "d", "f"]])

    @parameterized.parameters(
        {"max_new_tokens": 3}, {"raw": True}, {"scores": True}, {"inputs": True}, {"token_counts": True}, {"labels": ["x", "y"]},
        {"decoding": DecodingSettings(num_beams=2)}, {"decoding": DecodingSettings(do_sample=True, seed=1)},
    )  # fmt: skip
    def test_requests_with_other_settings_are_answered_apart(self, **settings):
        held = self.held_queue()
        jobs = (Job(), Job(**settings), Job(), Job(**settings))
        futures = [held.queue.submit(texts(word, job=job)) for word, job in zip("abcd", jobs, strict=True)]
        held.go_on.set()
        for future in futures:
            future.result()
        self.assertEqual(held.batches, [["first"], ["a", "c"], ["b", "d"]])

    def test_an_answer_in_pieces_has_a_batch_of_its_own(self):
        held = self.held_queue()
        futures = [held.queue.submit(queued) for queued in (texts("a"), texts("b", on_text=print), texts("c"))]
        held.go_on.set()
        for future in futures:
            future.result()
        self.assertEqual(held.batches, [["first"], ["a", "c"], ["b"]])

    def test_only_the_request_with_the_fault_fails(self):
        held = self.held_queue()
        futures = [held.queue.submit(texts(word)) for word in ("a", "faulty", "b")]
        unreadable = held.queue.submit(QueuedRows(Job(), [Row(0, "rows[0]", {"no": "text"})]))
        held.go_on.set()
        self.assertEqual([futures[place].result()[0]["prediction"] for place in (0, 2)], ["A", "B"])
        self.assertIn("breaks the model", str(futures[1].exception()))
        self.assertRegex(str(unreadable.exception()), r"rows\[0\]: the row has no one of")

    def test_more_rows_than_may_wait_are_refused_and_a_large_request_alone_is_not(self):
        held = self.held_queue(max_waiting_rows=4)
        held.queue.submit(texts(*"abc"))
        with self.assertRaisesRegex(Busy, "3 rows are waiting"):
            held.queue.submit(texts(*"de"))
        held.queue.submit(texts("d"))
        self.assertEqual(held.queue.waiting_rows, 4)
        held.go_on.set()
        alone = self.held_queue(max_waiting_rows=4)
        large = alone.queue.submit(texts(*"abcdef"))
        alone.go_on.set()
        self.assertLen(large.result(), 6)

    def test_a_request_that_is_withdrawn_is_not_answered(self):
        held = self.held_queue()
        gone = texts("gone")
        held.queue.submit(gone)
        kept = held.queue.submit(texts("b"))
        held.queue.withdraw(gone)
        held.go_on.set()
        self.assertEqual(kept.result()[0]["prediction"], "B")
        self.assertTrue(gone.future.cancelled())
        self.assertEqual(held.batches, [["first"], ["b"]])

    def test_what_waits_at_the_end_is_answered_and_nothing_more_is_taken(self):
        held = self.held_queue()
        future = held.queue.submit(texts("a"))
        held.go_on.set()
        held.queue.close()
        self.assertEqual(future.result()[0]["prediction"], "A")
        with self.assertRaisesRegex(Busy, "ending"):
            held.queue.submit(texts("b"))


class Exchange(NamedTuple):
    """What a client was sent, and which requests got through to the application."""

    messages: list[dict]
    let_through: list[dict]

    @property
    def status(self) -> int:
        return self.messages[0]["status"]


def exchange(
    scope: dict, body: bytes = b"{}", *, arrives: bool = True, hosts=("localhost", "::1"), key: str | None = None
) -> Exchange:
    """One request to a gate; `arrives`: whether its body does."""
    messages: list[dict] = []
    let_through: list[dict] = []

    async def app(scope, receive, send):
        let_through.append(scope)
        if scope["type"] == "http":
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive():
        if not arrives:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        messages.append(message)

    limits = Limits(body_bytes=100, body_seconds=0.02)
    gate = Gate(app, hosts, key, limits)
    asyncio.run(gate(scope, receive, send))
    return Exchange(messages, let_through)


def request(path="/predict", method="POST", host: str | None = "localhost:8000", **headers) -> dict:
    """The scope of a request."""
    names = {"host": host, **headers}
    pairs = [(name.encode(), value.encode()) for name, value in names.items() if value is not None]
    return {"type": "http", "path": path, "method": method, "headers": pairs}


class RequestTest(parameterized.TestCase):
    @parameterized.parameters(
        ("masked", "Good.", "Good."), ("masked", {"sentence": "Good."}, "Good."), ("masked", {"input": "Bad."}, "Bad."),
        ("encoder", "Good.", "sst2 sentence: Good."), ("seq2seq", "Good.", "sst2 sentence: Good."),
    )  # fmt: skip
    def test_a_line_of_text_is_read_as_the_row_of_its_column(self, family, row, expected):
        """By a model with a head as by others: it was trained on the columns, without T5's prefix."""
        job = Job(task=load_task("glue", "sst2"), family=family)
        self.assertEqual(job.request(Row(0, "rows[0]", row)).segments, (expected,))


class GateTest(parameterized.TestCase):
    def check(self, answer: Exchange, status: int) -> None:
        self.assertEqual(answer.status, status)
        self.assertEqual(bool(answer.let_through), status == 200)

    @parameterized.parameters(
        ("localhost", 200), ("LocalHost:8000", 200), ("[::1]:8000", 200), ("203.0.113.5:80", 200), ("evil.example", 403),
        ("localhost.evil.example", 403), (None, 403), ("", 403),
    )  # fmt: skip
    def test_a_host_is_known_by_name_or_is_an_address_in_numbers(self, host, status):
        self.check(exchange(request(host=host)), status)

    def test_names_of_the_server_s_own_are_known_in_any_case(self):
        self.check(exchange(request(host="model.LAB:80"), hosts=("Model.lab",)), 200)

    def test_a_second_host_or_key_is_refused(self):
        scope = request(authorization="Bearer key")
        self.check(exchange(scope, key="key"), 200)
        for header, status in ((b"host", 403), (b"authorization", 401)):
            twice = [pair for pair in scope["headers"] for _ in range(2 if pair[0] == header else 1)]
            self.check(exchange({**scope, "headers": twice}, key="key"), status)

    def test_any_host_is_known_where_every_request_has_a_key(self):
        keyed = request(host="evil.example", authorization="Bearer k")
        self.check(exchange(keyed, hosts=None, key="k"), 200)

    @parameterized.parameters(
        ("/predict", "POST", 200), ("/v1/completions", "POST", 200), ("/health", "GET", 200), ("/metrics", "GET", 200),
        ("/predict", "GET", 405), ("/health", "POST", 405), ("/docs", "GET", 404), ("/predict/", "POST", 404),
    )  # fmt: skip
    def test_routes_and_methods(self, path, method, status):
        self.check(exchange(request(path, method)), status)

    @parameterized.parameters(
        ("/predict", "POST", "Bearer key", 200), ("/predict", "POST", "Bearer keys", 401), ("/predict", "POST", "key", 401),
        ("/predict", "POST", None, 401), ("/metrics", "GET", None, 401), ("/health", "GET", None, 200),
    )  # fmt: skip
    def test_all_but_health_needs_the_key(self, path, method, authorization, status):
        self.check(exchange(request(path, method, authorization=authorization), key="key"), status)

    def test_a_page_s_request_is_refused(self):
        self.check(exchange(request(origin="http://localhost:8000")), 403)

    def test_a_body_that_is_too_large_or_does_not_come_is_refused(self):
        self.check(exchange(request(), body=b"x" * 100), 200)
        self.check(exchange(request(), body=b"x" * 101), 413)
        answer = exchange(request(), arrives=False)
        self.check(answer, 408)
        self.assertIn(b"0.02 seconds", answer.messages[1]["body"])

    def test_websockets_are_closed_and_the_server_s_own_messages_get_through(self):
        closed = exchange({"type": "websocket", "path": "/predict", "headers": []})
        self.assertEqual((closed.messages, closed.let_through), ([{"type": "websocket.close"}], []))
        self.assertLen(exchange({"type": "lifespan"}).let_through, 1)


class SettingsTest(parameterized.TestCase):
    @parameterized.parameters(
        {"do_sample": True, "top_p": 1.0, "top_k": 0, "temperature": 0.01}, {"min_new_tokens": 3, "max_new_tokens": 3},
        {"min_new_tokens": 0, "no_repeat_ngram_size": 0, "seed": 0}, {"num_beams": 2, "num_return_sequences": 2},
        {"num_beams": 4, "num_beam_groups": 4, "diversity_penalty": 0.0}, {"num_beams": 2, "length_penalty": -1.0},
        {"do_sample": True, "num_return_sequences": 5}, {"repetition_penalty": 0.5, "max_new_tokens": 1},
    )  # fmt: skip
    def test_the_outermost_values_of_a_range_are_in_it(self, **settings):
        DecodingSettings(**settings).check()

    @parameterized.parameters(
        ("top_p", 0.0), ("top_p", 1.01), ("top_p", float("nan")), ("top_k", -1), ("temperature", 0.0), ("seed", -1),
        ("repetition_penalty", 0.0), ("no_repeat_ngram_size", -1), ("min_new_tokens", -1), ("max_new_tokens", 0),
        ("num_return_sequences", 0), ("num_beams", 0), ("num_beam_groups", 0), ("num_beam_groups", 2),
        ("length_penalty", 1.0), ("diversity_penalty", 1.0), ("num_beams", 2), ("min_new_tokens", 6),
    )  # fmt: skip
    def test_what_is_out_of_its_range_or_has_no_effect_is_refused_by_name(self, name, value):
        settings = {"do_sample": True, "max_new_tokens": 5, name: value}
        with self.assertRaisesRegex(ConfigError, f"--{name} {value}"):
            DecodingSettings(**settings).check()


# `(exception, status, message, headers)`
FAILURES = (
    (DataError("--num_beams 0: must be at least 1"), 400, "num_beams 0: must be at least 1", {}),
    (Busy("7 rows are waiting"), 429, "7 rows are waiting; try again later", {"retry-after": "4"}),
    (TimeoutError(), 503, "no answer within 2.5 seconds", {}),
    (RuntimeError("a secret"), 500, "the server could not answer; its log says why", {}),
    (ClientLeft(), 499, None, {}),
)


class ServiceTest(parameterized.TestCase):
    def service(self, predictor=None, exported_kind=None, **limits) -> Service:
        text = InputSettings(load_task("mini", "sentiment"), Lengths(64, 6), max_new_tokens=5)
        job = Job(task=text.task, max_new_tokens=5)
        predictor = predictor or types.SimpleNamespace(writes=True)
        service = Service(job, text, predictor, name="m", limits=Limits(**limits), exported_kind=exported_kind)
        self.addCleanup(service.queue.close)
        return service

    @parameterized.parameters(
        ({}, {}, {}), ({"raw": True}, {"raw": True}, {}), ({"labels": "task"}, {"labels": "task"}, {}),
        ({"labels": ["a", "b"], "include_inputs": True}, {"labels": ["a", "b"], "inputs": True}, {}),
        ({"scores": True, "max_new_tokens": 9}, {"scores": True, "max_new_tokens": 9}, {"max_new_tokens": 9}),
    )  # fmt: skip
    def test_a_request_s_settings_are_those_of_its_answers(self, settings, expected, decoding):
        service = self.service()
        job = service.job_of_rows(PredictBody(rows=["a"], **settings))
        names = ("raw", "labels", "inputs", "scores", "max_new_tokens", "token_counts", "task")
        default = {**dict.fromkeys(names, False), "labels": None, "max_new_tokens": 5, "task": service.text.task}
        self.assertEqual({name: getattr(job, name) for name in names}, {**default, **expected})
        self.assertEqual(job.decoding, DecodingSettings(**decoding))

    @parameterized.parameters(
        {"min_new_tokens": 2, "num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "length_penalty": 2.0},
        {"do_sample": True, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "seed": 4, "num_return_sequences": 3},
        {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "num_beams": 2, "num_return_sequences": 2},
    )
    def test_every_setting_of_decoding_arrives(self, **settings):
        job = self.service().job_of_rows(PredictBody(rows=["a"], **settings))
        self.assertEqual(job.decoding, DecodingSettings(**settings))

    def test_a_completion_is_drawn_where_it_has_a_temperature_and_raw_always(self):
        for settings, expected in (
            ({}, {}),
            ({"max_tokens": 7}, {"max_new_tokens": 7}),
            (
                {"temperature": 0.5, "top_p": 0.25, "n": 3, "seed": 9},
                {"do_sample": True, "temperature": 0.5, "top_p": 0.25, "num_return_sequences": 3, "seed": 9},
            ),
        ):
            job = self.service().job_of_completion(CompletionBody(prompt="a", **settings))
            self.assertEqual(job.decoding, DecodingSettings(**expected))
            self.assertEqual((job.raw, job.token_counts, job.labels, job.scores, job.inputs),
                             (True, True, None, False, False))  # fmt: skip
            self.assertEqual(job.max_new_tokens, settings.get("max_tokens", 5))

    def test_a_request_as_large_as_the_limits_is_taken_and_a_larger_one_is_not(self):
        service = self.service(rows=2, new_tokens=9, beams=3)
        largest = {"rows": ["a", "b"], "max_new_tokens": 9, "num_beams": 3, "num_return_sequences": 3}
        service.job_of_rows(PredictBody(**largest))
        drawn = {"num_beams": 1, "do_sample": True, "num_return_sequences": 4}
        for larger in ({"rows": ["a"] * 3}, {"max_new_tokens": 10}, {"num_beams": 4}, drawn):
            with self.assertRaises(DataError):
                service.job_of_rows(PredictBody(**{**largest, **larger}))
        with self.assertRaisesRegex(DataError, "max_tokens 10: from 1 to 9"):
            service.job_of_completion(CompletionBody(prompt="a", max_tokens=10))

    def test_a_request_that_names_no_length_is_answered_within_the_limit(self):
        service = self.service(new_tokens=4)
        self.assertEqual(service.job_of_completion(CompletionBody(prompt="a")).max_new_tokens, 4)
        self.assertEqual(service.job_of_rows(PredictBody(rows=["a"])).max_new_tokens, 4)
        self.assertEqual(service.job_of_rows(PredictBody(rows=["a"], labels=["a", "b"])).labels, ["a", "b"])
        with self.assertRaisesRegex(DataError, "min_new_tokens 5: 4 at most"):
            service.job_of_rows(PredictBody(rows=["a"], min_new_tokens=5))

    @parameterized.parameters(
        ("ONNX files", {"num_beams": 2}), ("ONNX files", {"scores": True}), ("CTranslate2's files", {"do_sample": True}),
        ("CTranslate2's files", {"repetition_penalty": 1.5}), ("CTranslate2's files", {"scores": True}),
    )  # fmt: skip
    def test_what_exported_files_cannot_do_is_refused_by_name(self, kind, settings):
        service = self.service(exported_kind=kind)
        service.job_of_rows(PredictBody(rows=["a"], max_new_tokens=3, seed=3))
        with self.assertRaisesRegex(DataError, f"{next(iter(settings))}: .* is {kind}, which cannot"):
            service.job_of_rows(PredictBody(rows=["a"], **settings))

    def test_a_temperature_for_files_that_cannot_draw_is_refused_by_its_name(self):
        service = self.service(exported_kind="ONNX files")
        service.job_of_completion(CompletionBody(prompt="a"))
        with self.assertRaisesRegex(DataError, "^temperature 0.5: .* is ONNX files, which cannot draw"):
            service.job_of_completion(CompletionBody(prompt="a", temperature=0.5))

    def test_ctranslate2_s_beams_are_taken(self):
        settings = {"num_beams": 2, "length_penalty": 0.5}
        job = self.service(exported_kind="CTranslate2's files").job_of_rows(PredictBody(rows=["a"], **settings))
        self.assertEqual(job.decoding, DecodingSettings(**settings))

    def test_a_model_without_text_completes_nothing(self):
        with self.assertRaisesRegex(DataError, "chooses labels and writes no text"):
            self.service(types.SimpleNamespace(writes=False)).job_of_completion(CompletionBody(prompt="a"))

    @parameterized.parameters(*FAILURES)
    def test_a_failure_has_its_status_and_is_counted(self, error, status, message, headers):
        async def answer():
            raise error

        metrics = ServingMetrics(lambda: 7)
        metrics.observe_batch(4, 2.0)  # half a second a row
        service = types.SimpleNamespace(
            metrics=metrics, queue=types.SimpleNamespace(waiting_rows=7), limits=Limits(seconds=2.5)
        )
        response = asyncio.run(answered(service, "/predict", answer))
        self.assertEqual(response.status_code, status)
        self.assertEqual(json.loads(response.body)["detail"] if message else None, message)
        self.assertEqual({name: response.headers.get(name) for name in headers}, headers)
        counted = metrics.registry.get_sample_value(
            "t5suite_requests_total", {"route": "/predict", "status": str(status)}
        )
        self.assertEqual(counted, 1.0)
        self.assertEqual(metrics.registry.get_sample_value("t5suite_request_seconds_count"), 1.0)
        self.assertEqual(metrics.registry.get_sample_value("t5suite_waiting_rows"), 7.0)

    def test_a_request_that_is_not_answered_in_time_is_withdrawn(self):
        begun, go_on, answered_texts = threading.Event(), threading.Event(), []
        service = self.service(seconds=0.02)
        self.addCleanup(go_on.set)

        def answer(job, requests, on_text):
            begun.set()
            go_on.wait(30)
            answered_texts.extend(request.text for request in requests)
            return [{"row": 0}] * len(requests)

        async def stays():
            await asyncio.sleep(60)

        async def leaves():
            pass

        service.queue.answer = answer
        service.queue.submit(texts("first", job=Job()))
        begun.wait(30)
        with self.assertRaisesRegex(TimeoutError, "0.02 seconds"):
            asyncio.run(service.lines(Job(), [Row(0, "rows[0]", "late")], stays))
        with self.assertRaises(ClientLeft):
            asyncio.run(service.lines(Job(), [Row(0, "rows[0]", "gone")], leaves))
        self.assertEqual(service.queue.waiting_rows, 0)
        go_on.set()
        service.queue.close()
        self.assertEqual(answered_texts, ["first"])

    def test_a_client_that_leaves_before_a_stream_begins_is_out_of_the_queue(self):
        begun, go_on = threading.Event(), threading.Event()
        service = self.service(seconds=30.0)
        self.addCleanup(go_on.set)

        def answer(job, requests, on_text):
            begun.set()
            go_on.wait(30)
            return [{"row": 0}] * len(requests)

        async def receive():
            return received.pop(0)

        async def send(message):
            sent.append((message.get("status"), service.queue.waiting_rows))

        service.queue.answer = answer
        service.queue.submit(texts("first", job=Job()))
        begun.wait(30)
        body = json.dumps({"prompt": "gone", "stream": True}).encode()
        received, sent = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}], []
        scope = {**request("/v1/completions"), "query_string": b""}
        asyncio.run(app_of(service, hosts=None, key=None)(scope, receive, send))
        self.assertEqual(sent[0], (499, 0))

    def test_a_stream_that_stops_in_the_middle_ends_in_time(self):
        go_on = threading.Event()
        service = self.service(seconds=0.2)
        self.addCleanup(go_on.set)

        def answer(job, requests, on_text):
            on_text("It")
            go_on.wait(30)
            return [{"row": 0}]

        async def stays():
            await asyncio.sleep(60)

        async def read():
            pieces = service.pieces(Job(), "a")
            await service.first_piece(pieces, stays)
            await anext(pieces)

        service.queue.answer = answer
        with self.assertRaises(TimeoutError):
            asyncio.run(read())


class HostsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("127.0.0.1", None, None, {"localhost", "127.0.0.1", "::1"}),
        ("127.0.0.1", None, "key", {"localhost", "127.0.0.1", "::1"}),
        ("127.0.0.2", " a.lab, b.lab,", "key", {"localhost", "127.0.0.1", "::1", "127.0.0.2", "a.lab", "b.lab"}),
        ("0.0.0.0", None, "key", None),
        ("0.0.0.0", "", "key", None),
        ("0.0.0.0", "a.lab", "key", {"localhost", "127.0.0.1", "::1", "0.0.0.0", "a.lab"}),
        ("model.lab", None, None, {"localhost", "127.0.0.1", "::1", "model.lab"}),
    )
    def test_a_server_is_known_by_its_names_and_by_any_where_others_need_a_key_and_no_names_are_given(
        self, host, allowed, key, known
    ):
        flags = types.SimpleNamespace(host=host, allowed_hosts=allowed)
        self.assertEqual(hosts_by_flags(flags, key), known)
