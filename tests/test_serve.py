"""`t5suite serve`: the answers of `predict` over HTTP, for many clients at once, and nothing for anybody else."""

import concurrent.futures
import contextlib
import functools
import gzip
import http.client
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit

import hand_made_onnx
import pytest
from absl.testing import parameterized
from support import folder
from tiny_predictor import SOURCE_LENGTH, answers, mini_rows, model_folder, rows_file
from transformers import T5ForConditionalGeneration

from t5suite import FineTuner
from t5suite.testing import (
    exits_with,
    make_task,
    run_cli,
    save_model,
    served_model,
    tiny_model,
    tiny_tokenizer,
    write_rows,
)

ROWS = [dict(row) for row in mini_rows("sentiment", 22)]


def request(url: str, method: str, path: str, content=None, **headers) -> tuple[int, dict, bytes]:
    """`(status, headers, body)` of one request."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    body = json.dumps(content) if isinstance(content, (dict, list)) else content
    with contextlib.closing(connection):
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()


def posted(url: str, path: str, content) -> dict:
    status, _, body = request(url, "POST", path, content)
    if status != 200:
        raise AssertionError(f"{status}: {body.decode()}")
    return json.loads(body)


def figures(url: str) -> dict[str, float]:
    """The figures of `GET /metrics` without labels."""
    lines = request(url, "GET", "/metrics")[2].decode().splitlines()
    return {
        name: float(value) for name, value in (line.split() for line in lines if line[0] != "#" and "{" not in line)
    }


@functools.cache
def mixed_rows() -> tuple[dict, ...]:
    """Rows of very different lengths."""
    draw = random.Random(1)
    words = " ".join(row["sentence"] for row in ROWS).split()
    return tuple({"sentence": " ".join(draw.choices(words, k=draw.choice((1, 3, 9, 30))))} for _ in range(40))


class ServedTest(parameterized.TestCase):
    make_model = staticmethod(model_folder)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.url = cls.enterClassContext(served_model(cls.make_model(), "--use_cpu", "--max_waiting_rows", 200))


def words_of_length(num_tokens: int) -> str:
    """A text of so many tokens, end-of-sequence included."""
    text = " ".join(["the"] * (num_tokens - 1))
    if len(tiny_tokenizer()(text)["input_ids"]) != num_tokens:
        raise AssertionError("a word is not a token")
    return text


class LengthsTest(ServedTest):
    """What is read is counted, and nothing is cut without a word."""

    @parameterized.parameters({}, {"stream": True})
    def test_a_prompt_is_read_whole_or_refused(self, **settings):
        for num_tokens, expected_status in ((SOURCE_LENGTH, 200), (SOURCE_LENGTH + 1, 400), (SOURCE_LENGTH + 30, 400)):
            body = {"prompt": words_of_length(num_tokens), "max_tokens": 2, **settings}
            status, _, answer = request(self.url, "POST", "/v1/completions", body)
            self.assertEqual(status, expected_status)
            if status == 400:
                too_many = num_tokens - SOURCE_LENGTH
                expected = f"{num_tokens} tokens, {too_many} too many: this model reads {SOURCE_LENGTH} at most"
                self.assertIn(expected, message_of_refusal("/v1/completions", answer))

    def test_the_line_of_a_cut_row_says_how_many_tokens_are_not_read(self):
        lengths = (SOURCE_LENGTH - 1, SOURCE_LENGTH, SOURCE_LENGTH + 1, SOURCE_LENGTH + 30)
        rows = [words_of_length(length) for length in lengths]
        for settings in ({"labels": "task"}, {}):
            lines = posted(self.url, "/predict", {"rows": rows, "raw": True, **settings})["answers"]
            self.assertEqual([line.get("cut_tokens") for line in lines], [None, None, 1, 30])

    @parameterized.parameters({"max_tokens": 4}, {"max_tokens": 60}, {"max_tokens": 60, "temperature": 1.5, "n": 3})
    @pytest.mark.quick_cases(1)
    def test_usage_counts_what_the_tokenizer_and_the_model_did(self, **settings):
        prompts = ["a film", "sentiment sentence: It rains .", ROWS[0]["sentence"]]
        usage = posted(self.url, "/v1/completions", {"prompt": prompts, **settings})["usage"]
        self.assertEqual(usage["prompt_tokens"], sum(map(len, tiny_tokenizer()(prompts)["input_ids"])))
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        if "n" not in settings:
            self.assertEqual(usage["completion_tokens"], sum(len(ids) for ids in greedy_ids(prompts, **settings)))

    def test_a_stream_ends_with_its_usage_where_it_is_asked_for(self):
        body = {"prompt": ROWS[0]["sentence"], "max_tokens": 5}
        expected = posted(self.url, "/v1/completions", body)["usage"]
        for includes_usage in (True, False):
            streamed = {**body, "stream": True, "stream_options": {"include_usage": includes_usage}}
            events = request(self.url, "POST", "/v1/completions", streamed)[2].decode().split("\n\n")
            contents = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
            usages = [content["usage"] for content in contents if content.get("usage")]
            self.assertEqual(usages, [expected] if includes_usage else [])
            if includes_usage:
                self.assertEqual(contents[-1]["choices"], [])


def greedy_ids(prompts: list[str], max_tokens: int) -> list[list[int]]:
    """What transformers writes to each prompt, with the end of the sequence if it comes."""
    model = T5ForConditionalGeneration.from_pretrained(model_folder()).eval()
    ids_of_prompts = []
    for prompt in prompts:
        batch = tiny_tokenizer()(prompt, return_tensors="pt")
        (ids,) = model.generate(**batch, max_new_tokens=max_tokens, do_sample=False)
        ids_of_prompts.append(ids[1:].tolist())  # behind the decoder's first token
    return ids_of_prompts


def model_with_settings_of_its_own() -> str:
    """The folder of a model whose own generation settings let it write no token twice; a task of labels ignores them."""
    model = shutil.copytree(model_folder(), folder() / "model")
    path = model / "generation_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "no_repeat_ngram_size": 1}))
    return str(model)


class AnswersTest(ServedTest):
    make_model = staticmethod(model_with_settings_of_its_own)

    @parameterized.parameters(
        ("", {}),
        ("--num_beams 3 --num_return_sequences 2", {"num_beams": 3, "num_return_sequences": 2}),
        ("--do_sample --temperature 2 --seed 7 --scores", {"do_sample": True, "temperature": 2.0, "seed": 7, "scores": True}),
        ("--labels", {"labels": "task"}),
        ("--labels good,bad --include_inputs", {"labels": ["good", "bad"], "include_inputs": True}),
        ("--raw --max_new_tokens 3", {"raw": True, "max_new_tokens": 3}),
    )  # fmt: skip
    @pytest.mark.quick_cases(1)
    def test_the_answers_are_those_of_predict(self, flags, settings):
        rows = [row["sentence"] for row in ROWS] if "raw" in settings else ROWS
        expected = answers(flags, rows=str(write_rows(rows_file(), rows)))
        self.assertEqual(posted(self.url, "/predict", {"rows": rows, **settings})["answers"], expected)

    def test_a_set_with_a_label_that_the_last_training_lacks_is_invalid(self):
        task = make_task(labels=None, metric_names=["micro_f1"], metric_to_optimize="micro_f1")
        model = tiny_model()
        comma, word = tiny_tokenizer().convert_tokens_to_ids([",", "▁customers"])
        weights = model.get_output_embeddings().weight.data
        weights[comma] = weights[word]  # so that it writes both
        path = save_model(folder(), model, tasks=[task])
        card = json.loads((path / "task.json").read_text())
        (path / "task.json").write_text(json.dumps({**card, "labels_of_sets": {task.name: ["customers"]}}))
        rows = [{"text": f"a film {number}"} for number in range(6)]
        settings = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 6}
        texts_of_rows = FineTuner(path, use_cpu=True, quiet=True).predict(rows, **settings)
        texts = [text for texts_of_row in texts_of_rows for text in texts_of_row]
        is_invalid = {text: {part.strip() for part in text.split(",")} - {""} != {"customers"} for text in texts}
        self.assertFalse(is_invalid["customers, customers, customers,"])
        self.assertTrue(is_invalid["customers, customers, customers customers"])

        flags = "--num_beams 4 --num_return_sequences 4 --max_new_tokens 6"
        by_command = answers(flags, rows=str(write_rows(rows_file(), rows)), model=path)
        for line in by_command:
            self.assertEqual(line.get("invalid", False), is_invalid[line["prediction"]])
            for entry in line["predictions"]:
                self.assertEqual(entry.get("invalid", False), is_invalid[entry["text"]])
        with served_model(path, "--use_cpu") as url:
            self.assertEqual(posted(url, "/predict", {"rows": rows, **settings})["answers"], by_command)
        tuner = FineTuner(path, use_cpu=True, quiet=True)
        for answers_of_row in tuner.predict(rows, return_scores=True, **settings):
            for answer in answers_of_row:
                self.assertEqual(answer.invalid, is_invalid[answer.text])

    @pytest.mark.slow
    def test_a_server_of_finished_texts_adds_no_prefix_to_any(self):
        texts = [row["sentence"] for row in ROWS]
        expected = answers("--raw --max_new_tokens 3", rows=str(write_rows(rows_file(), texts)))
        with served_model(model_folder(), "--use_cpu", "--raw") as url:
            for settings in ({}, {"raw": False}, {"raw": True}):
                body = {"rows": texts, "max_new_tokens": 3, **settings}
                self.assertEqual(posted(url, "/predict", body)["answers"], expected, settings)

    @pytest.mark.slow
    def test_clients_at_the_same_time_get_the_answers_to_their_own_rows(self):
        rows = mixed_rows()
        expected = answers("--labels", rows=str(write_rows(rows_file(), rows)))

        def ask(number: int) -> dict:
            (line,) = posted(self.url, "/predict", {"rows": [rows[number]], "labels": "task"})["answers"]
            return line

        numbers = random.Random(2).sample(range(len(rows)), len(rows))
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            lines = dict(zip(numbers, pool.map(ask, numbers), strict=True))
        for number, line in lines.items():
            self.assertEqual(line["prediction"], expected[number]["prediction"])
            for label, probability in line["probabilities"].items():
                self.assertAlmostEqual(probability, expected[number]["probabilities"][label], delta=1e-5)

    def test_what_is_drawn_for_a_client_does_not_depend_on_who_else_asks(self):
        """Most requests wait for the first one, and are then answered together."""

        def ask(count: int) -> list[dict]:
            body = {"rows": ["a b"] * count, "raw": True, "do_sample": True, "seed": 5, "max_new_tokens": 4}
            return posted(self.url, "/predict", body)["answers"]

        alone = {count: ask(count) for count in (1, 2, 3)}
        self.assertLen({line["prediction"] for line in alone[3]}, 3)
        counts = [3, 1, 2, 1, 3, 2, 1, 1]
        with concurrent.futures.ThreadPoolExecutor(len(counts)) as pool:
            lines = list(pool.map(ask, counts))
        self.assertEqual(lines, [alone[count] for count in counts])

    @parameterized.parameters({}, {"temperature": 1.5, "seed": 3})
    def test_a_completion_is_the_answer_to_the_text_whole_or_in_pieces(self, **settings):
        text = f"sentiment sentence: {ROWS[3]['sentence']}"
        body = {"prompt": text, "max_tokens": 6, **settings}
        choice = posted(self.url, "/v1/completions", body)["choices"][0]
        predict_settings = {"do_sample": True, **settings} if settings else {}
        rows = {"rows": [text], "raw": True, "max_new_tokens": 6, **predict_settings}
        (line,) = posted(self.url, "/predict", rows)["answers"]
        self.assertEqual(choice["text"], line["prediction"])
        self.assertEqual(choice["finish_reason"], "length" if line.get("truncated") else "stop")
        events = request(self.url, "POST", "/v1/completions", {**body, "stream": True})[2].decode().split("\n\n")
        self.assertEqual(events[-2:], ["data: [DONE]", ""])
        choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-2]]
        self.assertEqual("".join(piece["text"] for piece in choices), line["prediction"])
        self.assertGreater(len(choices), 2)
        self.assertEqual(
            [piece["finish_reason"] for piece in choices], [*[None] * (len(choices) - 1), choice["finish_reason"]]
        )

    def test_null_is_the_default_of_every_setting_of_a_completion(self):
        """OpenAI's clients send it for what is not set."""
        names = (
            "model max_tokens temperature top_p n seed stream stream_options user best_of echo frequency_penalty "
            "presence_penalty logit_bias logprobs stop suffix"
        ).split()
        expected = posted(self.url, "/v1/completions", {"prompt": "a b"})["choices"]
        self.assertEqual(
            posted(self.url, "/v1/completions", {"prompt": "a b", **dict.fromkeys(names)})["choices"], expected
        )

    def test_openai_s_default_of_top_p_leaves_the_greedy_answer(self):
        """LangChain's client sends it with every request."""
        body = {"prompt": ["a b", "c"], "max_tokens": 6, "temperature": 0}
        expected = posted(self.url, "/v1/completions", body)["choices"]
        self.assertEqual(posted(self.url, "/v1/completions", {**body, "top_p": 1})["choices"], expected)

    def test_several_texts_and_several_draws_have_a_choice_each(self):
        body = {"prompt": ["a b", "c"], "n": 8, "temperature": 1.0, "max_tokens": 60}
        completion = posted(self.url, "/v1/completions", body)
        self.assertEqual([choice["index"] for choice in completion["choices"]], list(range(16)))
        self.assertEqual(completion["object"], "text_completion")
        drawn = {"rows": ["a b", "c"], "raw": True, "do_sample": True, "num_return_sequences": 8, "max_new_tokens": 60}
        lines = posted(self.url, "/predict", drawn)["answers"]
        expected = ["length" if "truncated" in answer else "stop" for line in lines for answer in line["predictions"]]
        self.assertEqual([choice["finish_reason"] for choice in completion["choices"]], expected)
        self.assertLen(set(expected), 2)
        (model,) = json.loads(request(self.url, "GET", "/v1/models")[2])["data"]
        self.assertEqual(completion["model"], model["id"])

    def test_figures_count_every_row_once(self):
        before = figures(self.url)
        posted(self.url, "/predict", {"rows": ROWS})
        posted(self.url, "/predict", {"rows": ROWS[:3]})
        after = figures(self.url)
        self.assertEqual(after["t5suite_batch_rows_sum"] - before["t5suite_batch_rows_sum"], len(ROWS) + 3)
        self.assertEqual(after["t5suite_batch_rows_count"] - before["t5suite_batch_rows_count"], 2)


# `(method, path, body, headers, status)`; what a server must not answer.
REFUSED = (
    ("GET", "/docs", None, {}, 404), ("GET", "/openapi.json", None, {}, 404), ("GET", "/../etc/passwd", None, {}, 404),
    ("GET", "/predict", None, {}, 405), ("POST", "/health", "", {}, 405), ("OPTIONS", "/predict", None, {}, 405),
    ("GET", "/health", None, {"Host": "evil.example"}, 403), ("GET", "/health", None, {"Host": "localhost.evil.example:80"}, 403),
    ("GET", "/metrics", None, {"Host": ""}, 403), ("POST", "/predict", {"rows": ["a"]}, {"Origin": "http://evil.example"}, 403),
    ("POST", "/predict", "", {}, 400), ("POST", "/predict", "{", {}, 400), ("POST", "/predict", b"\xff\xfe", {}, 400),
    ("POST", "/predict", [], {}, 400), ("POST", "/predict", {}, {}, 400), ("POST", "/predict", {"rows": []}, {}, 400),
    ("POST", "/predict", {"rows": "a"}, {}, 400), ("POST", "/predict", {"rows": [1]}, {}, 400),
    ("POST", "/predict", {"rows": [{"x": "a"}]}, {}, 400), ("POST", "/predict", {"rows": [{"sentence": None}]}, {}, 400),
    ("POST", "/predict", {"rows": ["a"] * 257}, {}, 400), ("POST", "/predict", {"rows": ["a"], "beams": 2}, {}, 400),
    ("POST", "/predict", {"rows": ["a"], "num_beams": "2"}, {}, 400), ("POST", "/predict", {"rows": ["a"], "num_beams": 17}, {}, 400),
    ("POST", "/predict", {"rows": ["a"], "num_beams": 4, "num_beam_groups": 4}, {}, 400), ("POST", "/predict", {"rows": ["a"], "num_beams": 0}, {}, 400), ("POST", "/predict", {"rows": ["a"], "top_p": 0.5}, {}, 400),
    ("POST", "/predict", {"rows": ["a"], "do_sample": True, "num_return_sequences": 17}, {}, 400),
    ("POST", "/predict", {"rows": ["a"], "max_new_tokens": 1025}, {}, 400), ("POST", "/predict", {"rows": ["a"], "max_new_tokens": 0}, {}, 400),
    ("POST", "/predict", {"rows": ["a"], "labels": ["x"]}, {}, 400), ("POST", "/predict", {"rows": ["a"], "labels": ["x", "y"], "scores": True}, {}, 400),
    ("POST", "/predict", {"rows": ["a"], "labels": [f"the {'the ' * 9}{word}" for word in "xy"]}, {}, 400),
    ("POST", "/predict", {"rows": ["a"], "seed": 2**63}, {}, 400), ("POST", "/predict", {"rows": ["a"], "seed": 10**400}, {}, 400),
    ("POST", "/predict", b'{"rows": ["a"], "do_sample": true, "temperature": NaN}', {}, 400),
    ("POST", "/predict", b'{"rows": ["' + b"x" * 2**22 + b'"]}', {}, 413),
    ("POST", "/v1/completions", {"prompt": "a", "stop": ["b"]}, {}, 400), ("POST", "/v1/completions", {"prompt": "a", "best_of": 2}, {}, 400),
    ("POST", "/v1/completions", {"prompt": "a", "n": 2}, {}, 400), ("POST", "/v1/completions", {"prompt": ["a", "b"], "stream": True}, {}, 400),
    ("POST", "/v1/completions", {"prompt": "a", "model": "gpt"}, {}, 400), ("POST", "/v1/completions", {"prompt": 7}, {}, 400),
    ("POST", "/v1/completions", {"prompt": "a", "temperature": -1.0}, {}, 400), ("POST", "/v1/completions", {"prompt": []}, {}, 400),
)  # fmt: skip


# `(path, body, the whole message)`; what a client can do about it, in the words of HTTP.
MESSAGES = (
    ("/predict", {"rows": [{"text": "a"}]}, "rows[0]: the row has neither sentence nor one of inputs, input; it has text"),
    ("/predict", {"rows": [{"text": "a"}], "raw": True}, "rows[0]: the row has no one of inputs, input; it has text"),
    ("/predict", {"rows": ["a"], "labels": True}, 'labels must be a list of labels, "task" or "none"'),
    ("/predict", {"rows": ["a"], "labels": ["x", 3]}, 'labels must be a list of labels, "task" or "none"'),
    ("/predict", {"rows": ["a"], "labels": "tasks"}, 'labels must be a list of labels, "task" or "none"'),
    ("/predict", {"rows": ["a"], "labels": ["x", "", "y"]}, '"labels": label 2 of 3 is empty; name it'),
    ("/predict", {"rows": ["a"], "labels": ["good", "the the the the the the bad"]}, "labels: 'the the the the the the bad' has more than the 6 tokens of an answer; shorten it"),
    ("/predict", {"rows": ["a", 3]}, "rows must be a list of objects with the columns, or of texts"),
    ("/predict", b'{"rows": [{"sentence": NaN}]}', "not JSON (rows[0].sentence: NaN is not a JSON value; write null)"),
    ("/predict", b'{"rows": [{"idx": [1, -Infinity], "sentence": "a"}]}', "not JSON (rows[0].idx[1]: -Infinity is not a JSON value; write null)"),
    ("/predict", b'{"rows": ["a"], "do_sample": true, "temperature": NaN}', "not JSON (temperature: NaN is not a JSON value; write null)"),
    ("/predict", b'{"rows": [{"sentence": "a", "sentence": "b"}]}', "key 'sentence' is given for the second time; one object has each key once"),
    ("/v1/completions", b'{"prompt": "a", "prompt": "b"}', "key 'prompt' is given for the second time; one object has each key once"),
    ("/predict", {"rows": ["a"], "num_beams": "2"}, "num_beams: Input should be a valid integer"),
    ("/predict", {"rows": ["a"], "text_column": "b"}, "text_column: this server has no such setting"),
    ("/predict", {"rows": ["a"], "dataset_name": "b"}, "dataset_name: a server answers one task of a model, chosen by this flag at its start"),
    ("/v1/completions", {"prompt": [3]}, "prompt must be a text, or a list of texts"),
    ("/v1/completions", {}, "prompt: Field required"),
    ("/v1/completions", {"prompt": None}, "prompt must be a text, or a list of texts"),
    ("/v1/completions", {"prompt": "a", "max_length": None}, "max_length: this server has no such setting"),
    ("/v1/completions", {"prompt": "a", "stop": ["b"]}, "stop must be null, as by default"),
    ("/v1/completions", {"prompt": "a", "echo": True}, "echo must be false"),
    ("/v1/completions", {"prompt": "a", "stream_options": {}}, "stream_options: no effect without stream"),
    ("/v1/completions", {"prompt": "a", "top_p": 0.9}, "top_p 0.9: no effect without a temperature above 0"),
    ("/v1/completions", {"prompt": "a", "top_p": 2, "temperature": 1}, "top_p 2.0: must be above 0 and at most 1"),
    ("/v1/completions", {"prompt": "a", "n": 2}, "n 2: several answers need a temperature above 0"),
    ("/v1/completions", {"prompt": "a", "n": 0}, "n 0: from 1 to 16"),
    ("/v1/completions", {"prompt": "a", "n": 17, "temperature": 1}, "n 17: from 1 to 16"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "max_tokens 0: from 1 to 1024"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 5000}, "max_tokens 5000: from 1 to 1024"),
    ("/v1/completions", {"prompt": "a", "temperature": -1}, "temperature -1: must be at least 0"),
)  # fmt: skip


def message_of_refusal(path: str, answer: bytes) -> str:
    """Why a request was refused: in OpenAI's form on the routes of its API, and nowhere else."""
    content = json.loads(answer)
    if not path.startswith("/v1/"):
        (message,) = content.values()
        return content["detail"]
    message = content["error"].pop("message")
    if content != {"error": {"type": "invalid_request_error", "param": None, "code": None}}:
        raise AssertionError(f"no error of OpenAI's: {content}")
    return message


class RefusalsTest(ServedTest):
    @parameterized.parameters(*MESSAGES)
    def test_a_message_says_what_is_right_and_ends(self, path, body, message):
        status, _, answer = request(self.url, "POST", path, body)
        self.assertEqual(status, 400)
        self.assertEqual(message_of_refusal(path, answer), message)

    @parameterized.parameters(b"{", "{\n", b'{"rows": ["caf\xe9"]}', gzip.compress(b'{"rows": ["a"]}'))
    def test_a_request_that_is_no_json_gets_no_advice_for_files(self, body):
        status, _, answer = request(self.url, "POST", "/predict", body)
        self.assertEqual(status, 400)
        self.assertNotRegex(message_of_refusal("/predict", answer), r"FILE|file|\.gz|jq|iconv")

    def test_a_number_that_no_answer_can_hold_is_no_fault_of_the_server(self):
        status, _, answer = request(self.url, "POST", "/predict", b'{"rows": [{"sentence": "NaN", "idx": 1e999}]}')
        self.assertEqual((status, json.loads(answer)["answers"][0]["idx"]), (200, None))

    def test_labels_that_a_message_names_are_json_that_is_answered(self):
        of_sets = {"metric_names": ["micro_f1"], "metric_to_optimize": "micro_f1"}
        of_numbers = {"metric_names": ["pearson"], "metric_to_optimize": "pearson"}
        of_texts = {"metric_names": ["rouge"], "metric_to_optimize": "rouge1"}
        for metrics in (of_sets, of_numbers, of_texts):
            task = make_task(labels=None, **metrics)
            with served_model(save_model(folder(), tasks=[task]), "--use_cpu") as url:
                body = {"rows": [{"text": "a film"}]}
                status, _, answer = request(url, "POST", "/predict", {**body, "labels": "task"})
                self.assertEqual(status, 400)
                message = message_of_refusal("/predict", answer)
                self.assertIn("or leave the labels out", message)
                (line,) = posted(url, "/predict", body)["answers"]
                self.assertNotIn("probabilities", line)
                setting = re.search(r'"labels": \[.*?\]', message)[0]
                labels = json.loads("{" + setting + "}")
                (line,) = posted(url, "/predict", {**body, **labels})["answers"]
                self.assertEqual(list(line["probabilities"]), labels["labels"])

    def test_an_unknown_route_of_openai_s_api_is_refused_in_its_form(self):
        status, _, answer = request(self.url, "POST", "/v1/chat/completions", {})
        self.assertEqual((status, message_of_refusal("/v1/chat/completions", answer)), (404, "no such route"))

    @parameterized.parameters(*REFUSED)
    def test_a_bad_request_is_refused_by_status_and_tells_nothing(self, method, path, body, headers, status):
        answered_status, answered_headers, answer = request(self.url, method, path, body, **headers)
        self.assertEqual(answered_status, status, answer)
        self.assertNotIn("access-control-allow-origin", {name.lower() for name in answered_headers})
        self.assertIsInstance(message_of_refusal(path, answer), str)
        for secret in (os.path.dirname(model_folder()), os.getcwd(), "Traceback"):
            self.assertNotIn(secret, answer.decode())
        self.assertEqual(request(self.url, "GET", "/health")[0], 200)

    def test_a_client_that_leaves_in_the_middle_disturbs_nobody(self):
        address = urlsplit(self.url)
        for sent in (b"", b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{", b"GET / HT"):
            with socket.create_connection((address.hostname, address.port)) as connection:
                connection.sendall(sent)
        self.assertLen(posted(self.url, "/predict", {"rows": ROWS})["answers"], len(ROWS))

    def test_an_address_in_numbers_is_no_foreign_name(self):
        self.assertEqual(request(self.url, "GET", "/health", Host="10.0.0.7:8000")[0], 200)


def hand_made_files(vocabulary_size: int) -> Path:
    """A folder of ONNX files, as `t5suite export` writes them."""
    files = Path(shutil.copytree(model_folder(), folder() / "exported"))
    (files / "model.safetensors").unlink()
    hand_made_onnx.write_seq2seq(files, hand_made_onnx.Tables(vocabulary_size))
    return files


class HandMadeFilesTest(parameterized.TestCase):
    def test_a_server_whose_files_write_no_free_text_says_so_when_it_starts_and_chooses_labels(self):
        files = hand_made_files(len(tiny_tokenizer()))
        (files / "task.json").unlink()
        settings = files / "generation_config.json"
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "no_repeat_ngram_size": 3}))
        with self.assertLogs("t5suite", "WARNING") as log, served_model(files, "--use_cpu") as url:
            messages_at_start = "\n".join(log.output)
            status, _, answer = request(url, "POST", "/v1/completions", {"prompt": "a film"})
            body = {"rows": ["a film"], "labels": ["good", "bad"]}
            self.assertLen(posted(url, "/predict", body)["answers"], 1)
        self.assertEqual(status, 400)
        self.assertIn(message_of_refusal("/v1/completions", answer), messages_at_start)

    def test_files_that_cannot_be_computed_are_the_server_s_fault_and_no_path_is_told(self):
        fewer_tokens_than_the_tokenizer_has = 4
        files = hand_made_files(fewer_tokens_than_the_tokenizer_has)
        with served_model(files, "--use_cpu") as url:
            for path, body in (("/predict", {"rows": ROWS[:1]}), ("/v1/completions", {"prompt": "a film"})):
                status, _, answer = request(url, "POST", path, body)
                self.assertEqual(status, 500)
                self.assertIn("the server could not answer; its log says why", answer.decode())
                self.assertNotIn(str(files), answer.decode())


def wait_from_fourth_step(step: int) -> None:
    if step >= 3:
        time.sleep(0.7)


def fail_at_fourth_step(step: int) -> None:
    if step == 3:
        raise ValueError("a fault of the model")


class BrokenStreamTest(parameterized.TestCase):
    """A stream whose status 200 is sent ends with an error of OpenAI's form, which their clients raise."""

    @parameterized.parameters((wait_from_fourth_step, 503), (fail_at_fourth_step, 500))
    def test_what_ends_a_stream_early_is_its_last_event_and_is_counted(self, at_step, status):
        steps = itertools.count()
        forward = T5ForConditionalGeneration.forward

        @functools.wraps(forward)
        def slow_or_failing(*args, **kwargs):
            at_step(next(steps))
            return forward(*args, **kwargs)

        with (
            served_model(model_folder(), "--use_cpu", "--timeout", 2) as url,
            mock.patch.object(T5ForConditionalGeneration, "forward", slow_or_failing),
            self.assertNoLogs("uvicorn.error", "ERROR"),
        ):
            body = {"prompt": "a film", "max_tokens": 30, "stream": True}
            answered_status, _, answer = request(url, "POST", "/v1/completions", body)
            counted = request(url, "GET", "/metrics")[2].decode()
        *pieces, last, rest = answer.decode().split("\n\n")
        self.assertEqual((answered_status, rest), (200, ""))
        self.assertNotEmpty(pieces)
        error = json.loads(last.removeprefix("data: "))["error"]
        self.assertEqual((error["type"], {*error}), ("server_error", {"message", "type", "param", "code"}))
        self.assertRegex(counted, rf'requests_total{{route="/v1/completions",status="{status}"}} 1')
        self.assertNotIn('status="200"', counted)


class PageTest(ServedTest):
    @parameterized.parameters(("/predict", 19), ("/v1/completions", 18))
    def test_every_setting_that_the_page_names_is_the_server_s(self, path, count):
        page = (Path(__file__).parent.parent / "docs/serve.md").read_text(encoding="utf-8")
        table = page.partition(f"| setting of `{path}` | values |\n|---|---|\n")[2].partition("\n\n")[0]
        names = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]
        self.assertLen(set(names), count)
        for name in names:
            body = {"rows": ["a"], "prompt": "a", name: [[]]}
            del body[{"/predict": "prompt", "/v1/completions": "rows"}[path]]
            status, _, answer = request(self.url, "POST", path, body)
            self.assertEqual(status, 400)
            self.assertRegex(message_of_refusal(path, answer), f"^{name}\\b")
            self.assertNotIn("no such setting", message_of_refusal(path, answer))


class PromptsTest(ServedTest):
    """The finished texts of OpenAI's clients, and the flags with which they send bare ones."""

    @parameterized.parameters(("",), ("--raw",))
    def test_the_log_shows_at_the_start_the_form_of_the_text_that_the_model_reads(self, flags):
        with self.assertLogs("t5suite", "INFO") as log, served_model(model_folder(), "--use_cpu", *flags.split()):
            (line,) = [line for line in log.output if "/v1/completions" in line]
        self.assertEndsWith(line, " 'sentiment sentence: {sentence}'")
        body = {"rows": [ROWS[0]], "include_inputs": True}
        (answer,) = posted(self.url, "/predict", body)["answers"]
        self.assertEqual(f"sentiment sentence: {ROWS[0]['sentence']}", answer["inputs"])

    def test_a_server_with_a_template_takes_bare_texts_and_shows_no_form(self):
        sentences = [row["sentence"] for row in ROWS[:4]]
        whole = posted(self.url, "/v1/completions", {"prompt": [f"sentiment sentence: {text}" for text in sentences]})
        flags = ("--use_cpu", "--raw", "--input_format", "sentiment sentence: __input__")
        with self.assertLogs("t5suite", "INFO") as log, served_model(model_folder(), *flags) as url:
            bare = posted(url, "/v1/completions", {"prompt": sentences})
            (line,) = posted(url, "/predict", {"rows": sentences[:1], "include_inputs": True})["answers"]
            status, _, _ = request(url, "POST", "/predict", {"rows": [ROWS[0]]})
        self.assertEqual((bare["choices"], bare["usage"]), (whole["choices"], whole["usage"]))
        self.assertEqual(line["inputs"], f"sentiment sentence: {sentences[0]}")
        self.assertEqual(status, 400)
        self.assertNotIn("/v1/completions", "\n".join(log.output))

    @parameterized.parameters("masked", "encoder")
    def test_a_model_that_writes_no_text_shows_no_form(self, family):
        with self.assertLogs("t5suite", "INFO") as log, served_model(model_folder(family), "--use_cpu"):
            self.assertNotIn("/v1/completions", "\n".join(log.output))


class KeyTest(parameterized.TestCase):
    def test_only_the_key_opens_the_server(self):
        with (
            mock.patch.dict(os.environ, {"T5SUITE_API_KEY": "sésame"}),
            served_model(model_folder(), "--use_cpu") as url,
        ):
            wrong = ({}, {"Authorization": "sésame"}, {"Authorization": "Bearer sesame"}, {"Authorization": "Bearer "})
            for headers in wrong:
                encoded = {name: value.encode() for name, value in headers.items()}
                self.assertEqual(request(url, "POST", "/predict", {"rows": ["a"]}, **encoded)[0], 401, headers)
                self.assertEqual(request(url, "GET", "/metrics", **encoded)[0], 401, headers)
            right = {"Authorization": "Bearer sésame".encode()}
            self.assertEqual(request(url, "POST", "/predict", {"rows": ["a"]}, **right)[0], 200)
            self.assertEqual(request(url, "GET", "/health")[0], 200)

    def test_the_log_says_at_the_start_whether_a_key_is_asked_for(self):
        for settings, words in (({}, "no key is asked for"), ({"T5SUITE_API_KEY": "sesame"}, "needs the key of T5")):
            with mock.patch.dict(os.environ), self.assertLogs("t5suite", "INFO") as log:
                os.environ.pop("T5SUITE_API_KEY", None)
                os.environ.update(settings)
                with served_model(model_folder(), "--use_cpu"):
                    messages_at_start = "\n".join(log.output)
            self.assertIn(words, messages_at_start)
            self.assertNotIn("sesame", messages_at_start)

    @parameterized.parameters("0.0.0.0", "192.168.1.5", "model.lab", "::")
    def test_a_server_that_others_reach_needs_a_key_or_the_word(self, host):
        with mock.patch.dict(os.environ):
            os.environ.pop("T5SUITE_API_KEY", None)
            with exits_with(78, f"--host {host}: others reach this server: set T5SUITE_API_KEY"):
                run_cli("serve", "--model_name_or_path", model_folder(), "--host", host)

    @parameterized.parameters(
        ("", "--host 0.0.0.0", "T5SUITE_API_KEY is empty: set it to a long random text, or unset it"),
        ("secret", "--no_auth", "--no_auth: T5SUITE_API_KEY is set; unset it, or drop --no_auth"),
    )
    def test_an_empty_key_and_one_beside_the_word_that_lets_everybody_in_are_refused(self, key, flags, reason):
        with mock.patch.dict(os.environ, T5SUITE_API_KEY=key), exits_with(78, reason):
            run_cli("serve", "--model_name_or_path", "x", *flags.split())

    @parameterized.parameters(
        ("--port 70000", "from 0 to 65535"), ("--max_rows 0", "at least 1"), ("--timeout nan", "above 0")
    )
    def test_flags_out_of_range_are_refused(self, flags, reason):
        with exits_with(78, reason):
            run_cli("serve", "--model_name_or_path", model_folder(), *flags.split())


@functools.cache
def exported_folder(export_format: str) -> str:
    output = folder() / export_format
    run_cli("export", "--model_name_or_path", model_folder(), "--format", export_format, "--output_dir", output)
    return str(output)


@pytest.mark.slow
class FormatsTest(parameterized.TestCase):
    @parameterized.parameters((None, 1), (None, 3), ("onnx", 1), ("ctranslate2", 1), ("ctranslate2", 3))
    def test_32_clients_get_the_answers_of_predict_in_batches(self, export_format, num_beams):
        model = model_folder() if export_format is None else exported_folder(export_format)
        rows = [*mixed_rows()] * 5
        expected = answers(f"--num_beams {num_beams}", rows=str(write_rows(rows_file(), rows)), model=model)
        numbers = random.Random(3).sample(range(len(rows)), len(rows))
        with served_model(model, "--use_cpu", "--max_waiting_rows", 200) as url:

            def ask(number: int) -> str:
                body = {"rows": [rows[number]], "num_beams": num_beams}
                return posted(url, "/predict", body)["answers"][0]["prediction"]

            with concurrent.futures.ThreadPoolExecutor(32) as pool:
                texts = dict(zip(numbers, pool.map(ask, numbers), strict=True))
            batches = figures(url)
        self.assertEqual([texts[number] for number in range(len(rows))], [line["prediction"] for line in expected])
        self.assertGreater(batches["t5suite_batch_rows_sum"] / batches["t5suite_batch_rows_count"], 4)

    def test_what_exported_files_cannot_do_is_a_bad_request(self):
        with served_model(exported_folder("onnx"), "--use_cpu") as url:
            status, _, body = request(url, "POST", "/predict", {"rows": ROWS[:1], "num_beams": 3})
            self.assertEqual(status, 400)
            self.assertIn("num_beams", json.loads(body)["detail"])
            self.assertLen(posted(url, "/predict", {"rows": ROWS[:1]})["answers"], 1)


@pytest.mark.slow
class ProcessTest(parameterized.TestCase):
    @parameterized.parameters(signal.SIGTERM, signal.SIGINT)
    def test_a_signal_lets_what_was_accepted_be_answered(self, stop_signal):
        words = [
            sys.executable,
            "-m",
            "t5suite",
            "serve",
            "--model_name_or_path",
            model_folder(),
            "--use_cpu",
            "--port",
            "0",
        ]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        url = next(line.split()[-1] for line in process.stderr if " answers at " in line)
        body = {"rows": [ROWS[0]] * 200, "num_beams": 8, "max_new_tokens": 60}
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(posted, url, "/predict", body) for _ in range(2)]
            while not figures(url)["t5suite_waiting_rows"]:
                pass
            process.send_signal(stop_signal)
            for future in asked:
                self.assertLen(future.result()["answers"], 200)
        self.assertIn(" has stopped", process.stderr.read())
        self.assertEqual(process.wait(60), 0)
