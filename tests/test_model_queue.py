"""Before a model: which requests are let through, what is answered together, what fails alone, what is forgotten."""

import asyncio
import threading
from typing import NamedTuple

from absl.testing import parameterized

from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.jobs import Job
from t5suite.inference.rows import Row
from t5suite.inference.serving.gate import Gate
from t5suite.inference.serving.limits import Busy, Limits
from t5suite.inference.serving.model_queue import ModelQueue, QueuedRows


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
        futures = [held.queue.submit(texts(*rows)) for rows in (["a", "b"], ["c", "d"], ["e"])]
        held.go_on.set()
        for future in futures:
            future.result()
        self.assertEqual(held.batches, [["first"], ["a", "b", "e"], ["c", "d"]])

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
