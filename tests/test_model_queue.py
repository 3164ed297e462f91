"""The queue before a model: what is answered together, what fails alone, what is refused and what is forgotten."""

import threading
from typing import NamedTuple

from absl.testing import parameterized

from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.jobs import Job
from t5suite.inference.rows import Row
from t5suite.inference.serving.limits import Busy
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
