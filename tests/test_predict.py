"""Predictions: what a row's answer depends on, what it does not, and that a stopped run ends as an unbroken one."""

import copy
import itertools
import json
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from absl.testing import parameterized
from support import command_flags
from tiny_predictor import LENGTHS, mini_rows, model_folder, predictor, rows_file

from t5suite import load_task
from t5suite.inference import running
from t5suite.inference.decoding import uniform_numbers
from t5suite.inference.predictor import Job, Predictor
from t5suite.inference.rows import PROGRESS_SUFFIX, ResumableOutput, Row, RowSource, input_text
from t5suite.inference.running import load_predictor, model_fingerprint, predict_rows
from t5suite.inference.settings import Decoding
from t5suite.tasks.registry import decode_ids
from t5suite.testing import exits_with

SENTIMENT = load_task("mini", "sentiment")
WAYS = {
    "greedy": Decoding(),
    "beams": Decoding(num_beams=3, num_return_sequences=2),
    "diverse": Decoding(num_beams=4, num_beam_groups=2, diversity_penalty=0.5, num_return_sequences=4),
    "sampling": Decoding(do_sample=True, temperature=1.5, top_p=0.9, top_k=50, num_return_sequences=2),
    "penalties": Decoding(repetition_penalty=1.3, no_repeat_ngram_size=2, min_new_tokens=3),
}


def texts(count=22):
    return [SENTIMENT.examples(row)[0].inputs for row in mini_rows(count=count)]


def with_batches_of(size, family="seq2seq"):
    made = predictor(family)
    return Predictor(made.model, made.encoding, size, family)


def written(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def output_path():
    return Path(tempfile.mkdtemp()) / "answers.jsonl"


def predict(rows, output, job=None, settings=None, window=4, overwrite=False, family="seq2seq"):
    job = job or Job(SENTIMENT, max_new_tokens=6)
    sink = ResumableOutput(output, settings or {"a": 1}, overwrite)
    return predict_rows(RowSource(rows), sink, job, lambda: predictor(family), window=window)


class AnswersTest(parameterized.TestCase):
    @parameterized.product(way=list(WAYS), family=["seq2seq", "causal"])
    def test_answers_do_not_depend_on_the_batch(self, way, family):
        alone = with_batches_of(1, family).answers(texts(), WAYS[way], 6, scores=True)
        together = with_batches_of(16, family).answers(texts(), WAYS[way], 6, scores=True)
        self.assertEqual([[a.text for a in row] for row in alone], [[a.text for a in row] for row in together])
        scores = [[[a.score for a in row] for row in found] for found in (alone, together)]
        np.testing.assert_allclose(*scores, rtol=1e-4)

    @parameterized.parameters("seq2seq", "causal")
    def test_choices_do_not_depend_on_the_batch(self, family):
        words = [SENTIMENT.label_words] * 22
        chosen = [with_batches_of(size, family).choices(texts(), words) for size in (1, 16)]
        shares = [[list(verdict.shares.values()) for verdict in verdicts] for verdicts in chosen]
        np.testing.assert_allclose(*shares, rtol=1e-4)

    def test_what_is_drawn_for_a_row_is_named_by_seed_and_row_alone(self):
        way = Decoding(do_sample=True)
        all_rows = predictor().answers(texts(), way, 6)
        some = predictor().answers(texts()[5:9], way, 6, indices=range(5, 9))
        self.assertEqual(some, all_rows[5:9])
        self.assertNotEqual(all_rows, predictor().answers(texts(), Decoding(do_sample=True, seed=7), 6))
        two = predictor().answers(texts(), Decoding(do_sample=True, num_return_sequences=2), 6)
        self.assertEqual([row[:1] for row in two], all_rows)

    @parameterized.parameters(
        {}, {"num_beams": 3}, {"num_beams": 3, "length_penalty": -4.0}, {"num_beams": 3, "num_return_sequences": 2},
        {"repetition_penalty": 1.7}, {"no_repeat_ngram_size": 1}, {"min_new_tokens": 6},
    )  # fmt: skip
    def test_answers_are_those_of_transformers_and_every_flag_changes_them(self, **flags):
        made = Predictor(copy.deepcopy(predictor().model), predictor().encoding)
        made.model.shared.weight.data[1] *= 2.5  # so that some answers end
        batch = made.encoding.tokenizer(texts(12), return_tensors="pt", padding=True)
        ids = made.model.generate(**batch, max_new_tokens=6, do_sample=False, **{"num_beams": 1, **flags})
        expected = decode_ids(ids[:, 1:].tolist(), made.encoding.tokenizer)
        answers = made.answers(texts(12), Decoding(**flags), 6)
        self.assertEqual([answer.text for row in answers for answer in row], expected)
        for name in flags:
            fewer = {key: value for key, value in flags.items() if key != name} if len(flags) > 1 else {}
            if name != "num_beams" or not fewer:
                self.assertNotEqual(answers, made.answers(texts(12), Decoding(**fewer), 6), name)

    @parameterized.parameters((1.0, 0, 1.0), (3.0, 0, 1.0), (1.0, 5, 1.0), (1.0, 0, 0.4), (3.0, 40, 0.7))
    @torch.no_grad()
    def test_the_first_token_is_drawn_as_numpy_draws_it(self, temperature, top_k, top_p):
        made, flags = predictor(), {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        batch = made.encoding.tokenizer(texts(), return_tensors="pt", padding=True)
        logits_BV = made.model(**batch, decoder_input_ids=torch.zeros(22, 1, dtype=torch.long)).logits[:, 0].double()
        expected, uniforms = [], uniform_numbers(42, [(i, 0) for i in range(22)], 1)
        for logits_V, uniform in zip(logits_BV.numpy() / temperature, uniforms):
            likeliest = np.argsort(-logits_V)[: top_k or None]
            shares = np.exp(logits_V[likeliest]) / np.exp(logits_V[likeliest]).sum()
            kept = np.sort(likeliest[np.cumsum(shares) - shares < top_p])
            shares = np.exp(logits_V[kept]) / np.exp(logits_V[kept]).sum()
            expected.append(int(kept[np.searchsorted(np.cumsum(shares), uniform[0], side="right")]))
        found = [row[0].text for row in made.answers(texts(), Decoding(do_sample=True, **flags), 1)]
        self.assertEqual(found, decode_ids([[token] for token in expected], made.encoding.tokenizer))

    def test_score_is_the_models_log_probability_with_the_end(self):
        made = predictor()
        for way in (Decoding(), WAYS["beams"], WAYS["sampling"]):
            for text, answers in zip(texts(4), made.answers(texts(4), way, 6, scores=True), strict=True):
                for answer in answers:
                    ids = made.encoding.answers([answer.text])[0]
                    if answer.truncated or made.encoding.texts([ids]) != [answer.text]:
                        continue
                    labels = torch.tensor([ids])
                    loss = made.model(torch.tensor([made.encoding.prompts([text])[0]]), labels=labels).loss
                    self.assertAlmostEqual(answer.score, -float(loss) * len(ids), delta=1e-3)

    def test_shares_are_the_softmax_of_summed_log_probabilities(self):
        made, words = predictor(), ["negative", "positive", "a good film"]
        (verdict,) = made.choices(texts(1), [words])
        sums = []
        for ids in made.encoding.answers(words):
            prompt = torch.tensor(made.encoding.prompts(texts(1)))
            sums.append(-made.model(prompt, labels=torch.tensor([ids])).loss.item() * len(ids))
        expected = np.exp(sums) / np.exp(sums).sum()
        np.testing.assert_allclose(list(verdict.shares.values()), expected, rtol=1e-4)
        self.assertEqual(verdict.text, words[int(np.argmax(sums))])

    def test_encoder_answers_by_its_head(self):
        rows, path = rows_file(), output_path()
        predict(rows, path, Job(SENTIMENT, family="masked"), family="masked")
        made = predictor("masked")
        for row, line in zip(mini_rows(), written(path), strict=True):
            logits = made.model(**made.encoding.tokenizer(row["sentence"], return_tensors="pt")).logits[0]
            np.testing.assert_allclose(list(line["probabilities"].values()), logits.softmax(-1).tolist(), atol=1e-5)
            self.assertEqual(line["prediction"], SENTIMENT.label_words[int(logits.argmax())])

    def test_label_words_are_written_whatever_the_checkpoint_was_used_for(self):
        expected = predictor().answers(texts(), Decoding(), 6)
        with mock.patch.object(predictor().model.generation_config, "no_repeat_ngram_size", 1):
            self.assertEqual(predictor().answers(texts(), Decoding(), 6, plain=True), expected)
            self.assertNotEqual(predictor().answers(texts(), Decoding(), 6), expected)

    def test_encoders_number_keeps_to_the_tasks_range(self):
        task, path = load_task("mini", "similarity"), output_path()
        source = command_flags("predict", "use_cpu", model_name_or_path=model_folder("masked", "similarity"))
        made = load_predictor(source, lengths=LENGTHS, batch_size=4, tasks=(task,))
        with torch.no_grad():
            made.model.classifier.bias.add_(100)
        sink = ResumableOutput(path, {})
        predict_rows(RowSource(rows_file("similarity", 5)), sink, Job(task, family="masked"), lambda: made)
        self.assertEqual({line["prediction"] for line in written(path)}, {"5.0"})


class ResumeTest(parameterized.TestCase):
    @parameterized.parameters("greedy", "sampling")
    def test_cut_at_any_byte_it_ends_as_an_unbroken_run(self, way):
        rows, job = rows_file(count=10), Job(SENTIMENT, decoding=WAYS[way], max_new_tokens=6)
        whole, path = output_path(), output_path()
        predict(rows, whole, job)
        content = whole.read_bytes()
        progress = (whole.parent / (whole.name + PROGRESS_SUFFIX)).read_bytes()
        line_ends = [place + 1 for place, byte in enumerate(content) if byte == 10]
        for size in [0, len(content) // 2, len(content) - 1, *line_ends[::3]]:
            path.write_bytes(content[:size])
            (path.parent / (path.name + PROGRESS_SUFFIX)).write_bytes(progress)
            predict(rows, path, job)
            self.assertEqual(path.read_bytes(), content, size)

    @parameterized.parameters(4, 8, 10)
    def test_killed_after_any_window_it_goes_on(self, done):
        rows, path, whole = rows_file(count=10), output_path(), output_path()
        predict(rows, whole)

        class Killed(ResumableOutput):
            def _write_progress(self, rows, digest, finished):
                if rows >= done:
                    self._file.write(b'{"row": 99, "pred')  # the lines are there, and a torn one of the next window
                    self._file.close()
                    raise KeyboardInterrupt
                super()._write_progress(rows, digest, finished)

        with self.assertRaises(KeyboardInterrupt):
            predict_rows(RowSource(rows), Killed(path, {"a": 1}), Job(SENTIMENT, max_new_tokens=6), predictor, window=4)
        count = predict(rows, path)
        self.assertEqual(path.read_bytes(), whole.read_bytes())
        self.assertLess(count[1], 10)

    def test_a_finished_file_needs_no_model_and_input_that_grew_is_answered_as_if_it_had_been_whole(self):
        rows, path, whole, job = rows_file(count=10), output_path(), output_path(), Job(SENTIMENT, max_new_tokens=6)
        self.assertEqual(predict(rows, path), (10, 10))
        no_model = mock.Mock(side_effect=AssertionError("a model was loaded"))
        count = predict_rows(RowSource(rows), ResumableOutput(path, {"a": 1}), job, no_model, window=4)
        self.assertEqual(count, (10, 0))
        predict(rows_file(count=15), path)
        predict(rows_file(count=15), whole)
        self.assertEqual(path.read_bytes(), whole.read_bytes())

    @parameterized.parameters(6, 10, 12)
    def test_other_input_is_refused(self, count):
        path, other = output_path(), rows_file(count=count)
        predict(rows_file(count=10), path)
        before = path.read_bytes()
        content = Path(other).read_text()
        Path(other).write_text(content.replace('idx": 1}', 'idx": 100}'))
        message = "has 6 rows, but --output has" if count == 6 else "first 10 rows of --input are not those"
        with exits_with(65, message):
            predict(other, path)
        self.assertEqual(path.read_bytes(), before)

    def test_answers_of_other_settings_or_of_somebody_else_are_refused_with_the_way_out(self):
        rows, path = rows_file(count=5), output_path()
        path.write_text("precious\n")
        with exits_with(78, "--overwrite"):
            predict(rows, path)
        self.assertEqual(path.read_text(), "precious\n")
        predict(rows, path, overwrite=True)
        before = path.read_bytes()
        with exits_with(78, r"a 1 there, 2 here.*--overwrite"):
            predict(rows, path, settings={"a": 2})
        for content in ("{", "[]", '{"format": 1}'):
            (path.parent / (path.name + PROGRESS_SUFFIX)).write_text(content)
            with exits_with(78, "cannot be read"):
                predict(rows, path)
        self.assertEqual(path.read_bytes(), before)

    def test_bad_row_stops_behind_the_windows_that_are_done(self):
        rows, path = rows_file(count=10), output_path()
        lines = Path(rows).read_text().splitlines()
        Path(rows).write_text("\n".join([*lines[:9], "{oops", *lines[9:]]) + "\n")
        with exits_with(65, r"rows\.jsonl:10: not JSON"):
            predict(rows, path)
        self.assertLen(written(path), 8)
        Path(rows).write_text("\n".join(lines) + "\n")
        predict(rows, path)
        whole = output_path()
        predict(rows, whole)
        self.assertEqual(path.read_bytes(), whole.read_bytes())

    def test_model_with_other_weights_has_another_fingerprint(self):
        one = Path(model_folder())
        other = Path(shutil.copytree(one, Path(tempfile.mkdtemp()) / "copy"))
        sources = [command_flags("predict", model_name_or_path=folder) for folder in (one, other)]
        self.assertEqual(*map(model_fingerprint, sources))
        content = bytearray((other / "model.safetensors").read_bytes())
        content[-1] ^= 1
        (other / "model.safetensors").write_bytes(content)
        self.assertNotEqual(*map(model_fingerprint, sources))


class RowsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"inputs": "a"}, None, False, "a"),
        ("Hi.", load_task("translation", "wmt14_en_de"), False, "translate English to German: Hi."),
        ({"question": "Q?", "context": "A."}, load_task("squad", "squad"), False, "question: Q ? context: A . "),
        ({"premise": "A.", "hypothesis": "B."}, load_task("glue", "mnli"), False, "mnli hypothesis: B. premise: A."),
        ("a", None, False, "a"), ("a", SENTIMENT, False, "sentiment sentence: a"), ("a", SENTIMENT, True, "a"),
        ({"sentence": "a", "label": 1}, SENTIMENT, False, "sentiment sentence: a"),
        ({"inputs": "finished", "targets": "b"}, SENTIMENT, False, "finished"), ({"sentence": "a", "input": "b"}, SENTIMENT, True, "b"),
    )  # fmt: skip
    def test_what_a_row_becomes(self, value, task, raw, expected):
        self.assertEqual(input_text(Row(0, "x:1", value), task, raw), expected)

    @parameterized.parameters(
        ({"sentence": "a"}, None, False, "x:1: the row has no one of inputs, input"),
        ({"text": "a"}, SENTIMENT, False, "x:1: the row has neither sentence nor"),
        ({"inputs": 3}, None, False, "x:1: column 'inputs' holds 3"),
        ({"input": "a", "inputs": "b"}, None, False, "one of"),
        ("a", load_task("glue", "mnli"), False, "reads 2 columns.*--raw"),
        ({"sentence": None}, SENTIMENT, False, "x:1: column 'sentence'"),
    )
    def test_rows_that_cannot_be_read_are_named(self, value, task, raw, message):
        with exits_with(65, message):
            input_text(Row(0, "x:1", value), task, raw)

    @parameterized.parameters(
        ("rows.txt", "one\r\n\ntwo", [(0, ":1", "one"), (1, ":2", ""), (2, ":3", "two")]),
        ("rows.jsonl", '\ufeff{"inputs": "a"}\n\n"b"\n', [(0, ":1", {"inputs": "a"}), (1, ":3", "b")]),
        ("rows.jsonl", "1\n", "rows.jsonl:1: expected"),
        ("rows.jsonl", "[1]\n", "rows.jsonl: entry 0 .* not an object"),
        (
            "rows.json",
            '[\n {"inputs": "a"},\n {"inputs": "b"}]',
            [(0, " 0", {"inputs": "a"}), (1, " 1", {"inputs": "b"})],
        ),
        ("rows.jsonl", b"\xff\n", "rows.jsonl:1: not UTF-8"),
        ("rows.jsonl", "{\n", "not JSON"),
    )
    def test_lines_keep_their_numbers_and_bad_ones_are_named(self, name, content, expected):
        path = Path(tempfile.mkdtemp()) / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if isinstance(expected, str):
            with exits_with(65, expected):
                list(RowSource(str(path)).rows())
            return
        rows = list(RowSource(str(path)).rows())
        self.assertEqual([(row.index, row.place[-2:], row.value) for row in rows], expected)

    def test_a_window_is_answered_before_the_input_ends(self):
        class Endless(RowSource):
            def rows(self):
                return (Row(i, f"x:{i}", {"inputs": str(i)}) for i in itertools.count())

        windows = running.read_windows(Endless("endless"), ResumableOutput(output_path(), {}), Job(), 4)
        self.assertEqual([rows for _, rows, _ in itertools.islice(windows, 3)], [4, 8, 12])


class DecodingTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"temperature": 0.5}, "--temperature 0.5 has no effect without --do_sample"), ({"top_p": 0.5}, "--top_p 0.5 has no effect"),
        ({"do_sample": True, "top_p": 1.5}, "--top_p 1.5"), ({"do_sample": True, "temperature": 0.0}, "--temperature 0.0"),
        ({"do_sample": True, "num_beams": 2}, "--num_beams 2"), ({"num_return_sequences": 2}, "--num_return_sequences 2"),
        ({"num_beams": 4, "num_beam_groups": 3}, "--num_beam_groups 3"), ({"max_new_tokens": 0}, "--max_new_tokens 0"),
        ({"diversity_penalty": 0.5}, "--diversity_penalty 0.5 has no"), ({"length_penalty": 0.5}, "--length_penalty 0.5 has no"),
    )  # fmt: skip
    def test_settings_without_sense_are_refused(self, settings, message):
        with exits_with(78, message):
            Decoding(**settings).check()
