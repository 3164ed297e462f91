"""Predictions: what a row's answer depends on, what it does not, and that a stopped run ends as an unbroken one."""

import contextlib
import errno
import functools
import io
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from absl.testing import parameterized
from odd_tokenizers import word_tokenizer
from tiny_predictor import (
    ANSWER_LENGTH,
    SOURCE_LENGTH,
    TINY,
    answers,
    mini_rows,
    model_folder,
    output_path,
    predict_words,
    random_model,
    rows_file,
    saved,
)
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    PreTrainedModel,
    T5ForConditionalGeneration,
)

from t5suite import FineTuner, load_task
from t5suite.testing import exits_with, run_cli, save_model, tiny_model, tiny_tokenizer, tiny_tuner, write_rows

SENTIMENT = load_task("mini", "sentiment")
TOKENIZER = tiny_tokenizer()
WAYS = {
    "beams": "--num_beams 3 --num_return_sequences 2",
    "sampling": "--do_sample --temperature 1.5 --top_p 0.9 --top_k 50 --num_return_sequences 2",
    "penalties": "--scores --repetition_penalty 1.3 --no_repeat_ngram_size 2 --min_new_tokens 3",
    "greedy": "--scores",
    "diverse": "--num_beams 4 --num_beam_groups 2 --diversity_penalty 0.5 --num_return_sequences 4",
}


def input_texts(count: int = 22) -> list[str]:
    return [SENTIMENT.examples(row)[0].inputs for row in mini_rows(count=count)]


def texts_of(lines: list[dict]) -> list[str]:
    """All answers' texts, row by row."""
    return [answer["text"] for line in lines for answer in answers_of(line)]


def answers_of(line: dict) -> list[dict]:
    """A line's answers with their scores, where it has one or several."""
    return line.get("predictions", [{"text": line["prediction"], "score": line.get("score")}])


def shares_of(lines: list[dict]) -> list[list[float]]:
    return [list(line["probabilities"].values()) for line in lines]


def decoded(ids) -> list[str]:
    """Texts without padding and end; sentinels are parts of an answer."""
    rows = [[int(token) for token in row if int(token) not in (0, 1)] for row in ids]
    return [TOKENIZER.decode(row).strip() for row in rows]


@functools.cache
def folder_with_ends() -> str:
    """Of a model that ends some of its answers itself."""
    model = random_model()
    model.shared.weight.data[1] *= 2.5
    return saved(model, "sentiment")


def saved_with(model, **settings) -> str:
    """A model's folder whose generation_config.json has these settings, too."""
    folder = saved(model)
    path = Path(folder) / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder


@functools.cache
def answers_and_log(flags: str, rows=None) -> tuple[list[dict], str]:
    """What the model of `folder_with_ends` answers to rows, by default 12 of its task, and what is logged."""
    with contextlib.redirect_stderr(io.StringIO()) as log:
        lines = answers(flags, rows=rows or rows_file(count=12), model=folder_with_ends())
    return lines, log.getvalue()


@functools.cache
def ids_of_transformers(**settings):
    """What transformers alone generates for the 12 rows of `answers_and_log`."""
    options = {"max_new_tokens": 6, "do_sample": False, "num_beams": 1, **settings}
    return loaded(folder_with_ends()).generate(**as_batch(input_texts(12)), **options)


def as_batch(texts: list[str]):
    return TOKENIZER(texts, return_tensors="pt", padding=True)


def loaded(folder: str):
    """A folder's T5, by transformers alone."""
    return T5ForConditionalGeneration.from_pretrained(folder).eval()


@torch.no_grad()
def log_probability(model, text: str, ids_T) -> float:
    """Of an answer's tokens up to its end, as the loss of plain transformers says it."""
    ids = ids_T.tolist()
    if 1 in ids:
        ids = ids[: ids.index(1) + 1]
    return -model(**as_batch([text]), labels=torch.tensor([ids])).loss.item() * len(ids)


class AnswersTest(parameterized.TestCase):
    @parameterized.parameters(*WAYS)
    @pytest.mark.slow
    def test_answers_do_not_depend_on_the_batch(self, way):
        self.check_batches(way, "seq2seq")

    @parameterized.parameters(*WAYS)
    @pytest.mark.slow
    def test_continuations_do_not_depend_on_the_batch(self, way):
        self.check_batches(way, "causal")

    def check_batches(self, way, family):
        rows = rows_file(count=8)
        alone = answers(WAYS[way], "--batch_size 1", rows=rows, family=family)
        together = answers(WAYS[way], "--batch_size 8", rows=rows, family=family)
        self.assertEqual(texts_of(alone), texts_of(together))
        scores = [[answer["score"] for line in lines for answer in answers_of(line)] for lines in (alone, together)]
        np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-4)

    @parameterized.parameters("seq2seq", "causal")
    @pytest.mark.quick_cases(1)
    def test_choices_do_not_depend_on_the_batch(self, family):
        rows = rows_file(count=8)
        lines = [answers("--labels", f"--batch_size {size}", rows=rows, family=family) for size in (1, 8)]
        shares = [shares_of(each) for each in lines]
        np.testing.assert_allclose(*shares, rtol=1e-4, atol=1e-6)

    @parameterized.parameters("seq2seq", "causal")
    @pytest.mark.quick_cases(1)
    def test_what_is_drawn_depends_on_no_window_or_batch_and_rows_of_one_text_differ(self, family):
        rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", ["It was a long day."] * 9)

        def drawn(flags: str) -> list[str]:
            return texts_of(answers("--raw --do_sample --max_new_tokens 4", flags, rows=rows, family=family))

        together = drawn("--num_return_sequences 2")
        self.assertGreater(len(set(together)), 14)
        for flags in ("--window 4 --batch_size 3", "--window 9 --batch_size 2", "--window 1"):
            self.assertEqual(drawn(f"--num_return_sequences 2 {flags}"), together, flags)
        self.assertEqual(drawn("--window 4 --batch_size 3"), together[::2])

    @pytest.mark.slow
    def test_what_is_drawn_for_a_row_is_named_by_seed_and_row_alone(self):
        rows = rows_file(count=10)
        drawn = texts_of(answers("--do_sample", rows=rows))
        self.assertGreater(len(set(drawn)), 5)
        self.assertEqual(texts_of(answers("--do_sample --window 4 --batch_size 3", rows=rows)), drawn)
        self.assertNotEqual(texts_of(answers("--do_sample --seed 7", rows=rows)), drawn)
        several = answers("--do_sample --num_return_sequences 2", rows=rows)
        self.assertEqual([line["prediction"] for line in several], drawn)
        self.assertNotEqual([answers_of(line)[1]["text"] for line in several], drawn)

    def test_a_cut_answer_is_to_be_chosen_where_it_should_be_a_label_and_longer_where_it_is_text(self):
        finished_texts = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", ["It was a long day."] * 3)
        for flags, rows, remedy in (("", None, "with --labels"), ("--raw", finished_texts, "--max_new_tokens allows")):
            lines, log = answers_and_log(f"{flags} --min_new_tokens 6 --max_new_tokens 6", rows)
            self.assertRegex(log, rf"{len(lines)} of {len(lines)} answers are cut off .*; {remedy}")

    @parameterized.parameters(
        {}, {"num_beams": 3}, {"num_beams": 3, "length_penalty": -4.0}, {"num_beams": 3, "num_return_sequences": 2},
        {"repetition_penalty": 1.7}, {"no_repeat_ngram_size": 1}, {"min_new_tokens": 6},
    )  # fmt: skip
    @pytest.mark.quick_cases(1)
    def test_answers_are_those_of_transformers_and_every_flag_changes_them(self, **settings):
        ids = ids_of_transformers(**settings)
        lines, log = answers_and_log(words_of(settings))
        self.assertEqual(texts_of(lines), decoded(ids[:, 1:]))
        first_answers = ids[:: settings.get("num_return_sequences", 1)].tolist()
        self.assertEqual([line.get("truncated", False) for line in lines], [1 not in row for row in first_answers])
        if "num_return_sequences" in settings:
            truncated = [answer.get("truncated", False) for line in lines for answer in line["predictions"]]
            self.assertEqual(truncated, [1 not in row for row in ids.tolist()])
            self.assertLen(set(truncated), 2)
        truncated_count = sum("truncated" in line for line in lines)
        self.assertIn(f"{truncated_count} of 12 answers are cut off after 6 tokens", log)
        for name in settings:
            fewer = {key: value for key, value in settings.items() if key != name} if len(settings) > 1 else {}
            if name != "num_beams" or not fewer:
                self.assertNotEqual(lines, answers_and_log(words_of(fewer))[0], name)

    @parameterized.parameters((3.0, 40, 0.7), (1.0, 0, 0.4), (1.0, 5, 1.0), (1.0, 0, 1.0), (3.0, 0, 1.0))
    @pytest.mark.quick_cases(1)
    @torch.no_grad()
    def test_tokens_are_drawn_as_numpy_draws_them(self, temperature, top_k, top_p):
        model = loaded(model_folder())
        texts = [text for text in input_texts() for _ in range(2)]
        # The draws of a row's answer are Philox's, keyed by the seed and the row, and counted from the answer's number.
        keys = [(row, answer) for row in range(22) for answer in range(2)]
        generators = [np.random.Philox(key=[7, row], counter=[0, 0, 0, answer]) for row, answer in keys]
        uniforms_BT = [np.random.Generator(generator).random(2) for generator in generators]
        ids_BT = torch.zeros(44, 1, dtype=torch.long)
        for step in range(2):
            logits_BV = model(**as_batch(texts), decoder_input_ids=ids_BT).logits[:, -1].double().numpy()
            drawn = []
            for logits_V, uniforms_T, last_token in zip(logits_BV / temperature, uniforms_BT, ids_BT[:, -1].tolist()):
                likeliest = np.argsort(-logits_V)[: top_k or None]
                shares = np.exp(logits_V[likeliest]) / np.exp(logits_V[likeliest]).sum()
                nucleus = np.sort(likeliest[np.cumsum(shares) - shares < top_p])
                shares = np.exp(logits_V[nucleus]) / np.exp(logits_V[nucleus]).sum()
                token = int(nucleus[np.searchsorted(np.cumsum(shares), uniforms_T[step], side="right")])
                drawn.append(0 if last_token == 1 else token)  # behind an end, padding
            ids_BT = torch.cat([ids_BT, torch.tensor(drawn)[:, None]], 1)
        flags = f"--temperature {temperature} --top_k {top_k} --top_p {top_p} --seed 7 --num_return_sequences 2"
        texts = [text.strip() for text in texts_of(answers(f"--do_sample --max_new_tokens 2 {flags}"))]
        self.assertEqual(texts, decoded(ids_BT))

    def test_without_a_flag_free_text_is_drawn_with_the_model_s_own_settings(self):
        model = random_model()
        plain, plain_labels = saved(model), saved(model, "sentiment")
        model.generation_config.update(do_sample=True, temperature=3.0, top_k=40, top_p=0.7)
        folder, labels = saved(model), saved(model, "sentiment")
        rows = Path(tempfile.mkdtemp()) / "rows.txt"
        rows.write_text("\n".join(input_texts(8)) + "\n")

        def drawn(model, *flags):
            return texts_of(answers("--raw --do_sample --max_new_tokens 3", *flags, rows=rows, model=model))

        neutral = drawn(plain)
        self.assertEqual(drawn(folder), drawn(plain, "--temperature 3 --top_k 40 --top_p 0.7"))
        self.assertNotEqual(drawn(folder), neutral)
        self.assertEqual(drawn(folder, "--temperature 1 --top_k 0 --top_p 1"), neutral)
        self.assertEqual(drawn(labels), drawn(plain_labels))
        path = Path(folder) / "generation_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "temperature": 0.0}))
        with exits_with(78, "generation_config.json: --temperature 0.0: must be above 0; give this flag"):
            drawn(folder)

    def test_free_text_is_drawn_with_the_model_s_own_settings_that_have_no_flag(self):
        """Each of these leaves the likeliest token alone."""
        model = random_model()
        rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", input_texts(8))
        greedy = texts_of(answers("--raw --max_new_tokens 3", rows=rows, model=saved(model)))
        for name, setting in (("min_p", 1.0), ("epsilon_cutoff", 0.999), ("top_h", 1e-6)):
            folder = saved_with(model, **{name: setting})
            drawn = texts_of(answers("--raw --do_sample --max_new_tokens 3", rows=rows, model=folder))
            self.assertEqual(drawn, greedy, name)
        with exits_with(78, "generation_config.json: min_p is 2.0"):
            answers("--raw --do_sample", rows=rows, model=saved_with(model, min_p=2.0))

    def test_an_answer_that_the_model_would_end_by_force_is_cut_off_and_marked(self):
        model = loaded(folder_with_ends())
        rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", input_texts(12))
        expected = answers("--raw --max_new_tokens 6", rows=rows, model=saved(model))
        self.assertLen({line.get("truncated") for line in expected}, 2)
        folder = saved_with(model, forced_eos_token_id=1)
        self.assertEqual(answers("--raw --max_new_tokens 6", rows=rows, model=folder), expected)

    @parameterized.parameters("", "--num_beams 2", "--do_sample --temperature 1 --top_p 1")
    @pytest.mark.quick_cases(1)
    def test_settings_of_the_model_s_own_that_answers_do_not_follow_change_nothing_and_are_not_warned_of(self, flags):
        model = random_model()
        rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", input_texts(8))
        expected = answers(f"--raw --max_new_tokens 3 {flags}", rows=rows, model=saved(model))
        unheeded = {
            "do_sample": True, "temperature": 3.0, "top_p": 0.5, "num_beams": 4, "num_return_sequences": 3,
            "max_length": 2, "return_dict_in_generate": True, "output_hidden_states": True, "output_attentions": True,
        }  # fmt: skip
        folder = saved_with(model, **unheeded)
        with self.assertNoLogs("transformers.generation", "WARNING"):
            lines = answers(f"--raw --max_new_tokens 3 {flags}", rows=rows, model=folder)
        self.assertEqual(lines, expected)

    @parameterized.parameters({}, {"num_beams": 3, "num_return_sequences": 2}, {"repetition_penalty": 1.7})
    @pytest.mark.quick_cases(1)
    def test_score_is_the_models_log_probability_with_the_end(self, **settings):
        model, ids = loaded(folder_with_ends()), ids_of_transformers(**settings)
        each = settings.get("num_return_sequences", 1)
        prompts = [text for text in input_texts(12) for _ in range(each)]
        expected = [log_probability(model, text, row[1:]) for text, row in zip(prompts, ids, strict=True)]
        lines, _ = answers_and_log(f"--scores {words_of(settings)}")
        scores = [answer["score"] for line in lines for answer in answers_of(line)]
        np.testing.assert_allclose(scores, expected, atol=1e-3)
        self.assertIn(1, ids)

    @torch.no_grad()
    def test_the_score_of_what_is_drawn_is_the_models_before_temperature(self):
        start = torch.zeros(22, 1, dtype=torch.long)
        model = loaded(model_folder())
        log_probs_BV = model(**as_batch(input_texts()), decoder_input_ids=start).logits[:, 0].log_softmax(-1)
        pieces = decoded([[token] for token in range(log_probs_BV.shape[1])])
        lines = answers("--scores --do_sample --temperature 2 --top_k 20 --max_new_tokens 1")
        for log_probs_V, line in zip(log_probs_BV.tolist(), lines, strict=True):
            same_text = [value for piece, value in zip(pieces, log_probs_V) if piece == line["prediction"]]
            self.assertLess(min(abs(value - line["score"]) for value in same_text), 1e-3)

    def test_shares_are_the_softmax_of_summed_log_probabilities(self):
        words, (text,) = ["negative", "positive", "a good film"], input_texts(1)
        sums = [
            log_probability(loaded(model_folder()), text, torch.tensor(TOKENIZER(word).input_ids)) for word in words
        ]
        rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", mini_rows(count=1))
        path = output_path()
        run_cli(*predict_words(rows=rows, output=path), "--labels", ",".join(words))
        line = json.loads(path.read_text())
        np.testing.assert_allclose(
            list(line["probabilities"].values()), np.exp(sums) / np.exp(sums).sum(), rtol=1e-4, atol=1e-6
        )
        self.assertEqual(line["prediction"], words[int(np.argmax(sums))])

    def test_threads_that_share_a_model_leave_it_as_it_was(self):
        model = random_model()
        tuner = FineTuner(model, tokenizer=TOKENIZER, use_cpu=True, quiet=True)
        models_own = model.generation_config
        expected = tuner.predict("a film", max_new_tokens=4)
        with ThreadPoolExecutor(2) as threads:
            answers_of_threads = list(threads.map(lambda _: tuner.predict("a film", max_new_tokens=4), range(20)))
        self.assertEqual(answers_of_threads, [expected] * 20)
        self.assertIs(model.generation_config, models_own)

    def test_every_row_of_many_draws_numbers_of_its_own(self):
        tuner = FineTuner(random_model(), tokenizer=TOKENIZER, use_cpu=True, quiet=True)
        drawn = tuner.predict(["a film"] * 1100, do_sample=True, max_new_tokens=3)
        for lag in range(1, 1050):
            self.assertNotEqual(drawn[lag:], drawn[:-lag])

    def test_a_flag_of_zero_replaces_the_checkpoint_s_own_setting(self):
        model = random_model()
        folder = saved(model)
        model.generation_config.no_repeat_ngram_size = 1
        folder_of_other = saved(model)
        rows = Path(tempfile.mkdtemp()) / "rows.txt"
        rows.write_text("\n".join(input_texts(8)) + "\n")
        words = "--raw --max_new_tokens 6"
        expected = texts_of(answers(words, rows=rows, model=folder))
        self.assertNotEqual(texts_of(answers(words, rows=rows, model=folder_of_other)), expected)
        neutral = texts_of(answers(f"{words} --no_repeat_ngram_size 0", rows=rows, model=folder_of_other))
        self.assertEqual(neutral, expected)

    @torch.no_grad()
    def test_encoder_answers_by_its_head(self):
        model = AutoModelForSequenceClassification.from_pretrained(model_folder("masked")).eval()
        for row, line in zip(mini_rows(), answers(family="masked"), strict=True):
            logits = model(**TOKENIZER(row["sentence"], return_tensors="pt")).logits[0]
            np.testing.assert_allclose(list(line["probabilities"].values()), logits.softmax(-1).tolist(), atol=1e-5)
            self.assertEqual(line["prediction"], ["negative", "positive"][int(logits.argmax())])

    @pytest.mark.slow
    def test_label_words_are_written_whatever_the_checkpoint_was_used_for(self):
        model = random_model()
        folders = [saved(model, "sentiment"), saved(model)]
        model.generation_config.no_repeat_ngram_size = 1
        folders += [saved(model, "sentiment"), saved(model)]
        rows = Path(tempfile.mkdtemp()) / "rows.txt"
        rows.write_text("\n".join(input_texts(8)) + "\n")
        labels, free, labels_of_other, free_of_other = [
            texts_of(answers("--raw --max_new_tokens 6", rows=rows, model=folder)) for folder in folders
        ]
        self.assertEqual(labels_of_other, labels)
        self.assertEqual(free, labels)
        self.assertNotEqual(free_of_other, free)

    @parameterized.parameters("similarity", "sentiment")
    @pytest.mark.quick_cases(1)
    def test_an_answer_that_is_no_label_or_number_is_marked_and_counted(self, task):
        folder = saved(random_model(), task)
        with contextlib.redirect_stderr(io.StringIO()) as log:
            lines = answers(rows=rows_file(task, 5), model=folder)
        texts = [line["prediction"] for line in lines]
        if task == "similarity":
            is_valid = [re.fullmatch(r"-?\d+(\.\d+)?", text) is not None for text in texts]
        else:
            is_valid = [text in ("negative", "positive") for text in texts]
        self.assertFalse(all(is_valid))
        self.assertEqual([line.get("invalid") for line in lines], [None if valid else True for valid in is_valid])
        count = f"{is_valid.count(False)} of 5 answers are no label or number of the task"
        self.assertIn(count, log.getvalue())

    def test_python_counts_and_marks_answers_that_are_no_number_or_cut_as_the_command_does(self):
        tuner = FineTuner(saved(random_model(), "similarity"), use_cpu=True, quiet=True)
        rows = [dict(row) for row in mini_rows("similarity", 5)]
        settings = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 3, "return_scores": True}
        with self.assertLogs("t5suite", "WARNING") as logs:
            answers_of_rows = tuner.predict(rows, **settings)
        is_valid = lambda text: re.fullmatch(r"-?\d+(\.\d+)?", text) is not None
        for answer in (answer for answers_of_row in answers_of_rows for answer in answers_of_row):
            self.assertEqual(answer.invalid, not is_valid(answer.text), answer)
        best = [answers_of_row[0] for answers_of_row in answers_of_rows]
        counts = [sum(answer.invalid for answer in best), sum(answer.truncated for answer in best)]
        self.assertNotIn(0, counts)
        self.assertIn(f"{counts[0]} of 5 answers are no label or number of the task", logs.output[0])
        self.assertIn(f"{counts[1]} of 5 answers are cut off after 3 tokens", logs.output[1])

    @parameterized.parameters("entailment", "sentiment")
    @pytest.mark.quick_cases(1)
    def test_an_encoder_without_a_task_card_reads_and_refuses_what_one_with_a_card_does(self, task):
        folder = model_folder("masked", task)
        bare = shutil.copytree(folder, Path(tempfile.mkdtemp()) / "bare", ignore=shutil.ignore_patterns("task.json"))
        flags = f"--benchmark mini --dataset_name {task} --max_source_length {SOURCE_LENGTH} --include_inputs"
        rows = rows_file(task, 5)
        self.assertEqual(answers(flags, rows=rows, model=bare), answers(flags, rows=rows, model=folder))
        for setting, message in (
            ("--num_beams 3", "--num_beams has no effect: the model's head answers, and no text is generated$"),
            ("--scores", "--scores has no effect: the model's head answers"),
            ("--labels good,bad", "an encoder's head has only its own labels"),
        ):
            with exits_with(78, message):
                answers(flags, setting, rows=rows, model=bare)

    @parameterized.parameters("--labels", "--labels task", "--labels O,B-X")
    def test_a_model_that_labels_words_takes_no_labels(self, flags):
        entry = {"prefix": "", "text_column_name": "words", "label_column_name": "tags", "labels": ["O", "B-X"],
                 "formatter": "token_labels", "metric_names": ["span_f1"], "metric_to_optimize": "span_f1",
                 "splits": {"train": "train"}}  # fmt: skip
        task = load_task("mine", "names", registry={"mine": {"names": entry}})
        folder = save_model(
            tempfile.mkdtemp(), tiny_model(*TINY["masked"], family="masked", tasks=[task]), tasks=[task]
        )
        message = (
            "mine/names is answered by a label for each word, of its own O, B-X, .*no probabilities.*leave the labels"
        )
        with exits_with(78, message):
            answers(flags, rows=write_rows(folder / "rows.jsonl", [{"words": "Ann sings"}]), model=folder)

    def test_encoders_number_keeps_to_the_tasks_range(self):
        model = random_model("masked", "similarity")
        model.classifier.bias.data.add_(100)
        folder = saved(model, "similarity")
        lines = answers(rows=rows_file("similarity", 5), model=folder)
        self.assertEqual([line["prediction"] for line in lines], ["5.0"] * 5)


def words_of(settings: dict) -> str:
    return " ".join(f"--{name} {value}" for name, value in settings.items())


def predict(rows, output, *flags: str, **settings) -> None:
    """Windows of four rows."""
    run_cli(*predict_words("--window 4", *flags, rows=rows, output=output, **settings))


@functools.cache
def unbroken(flags: str = "", count: int = 10) -> Path:
    """What an unbroken run over so many rows writes; only read it."""
    path = output_path()
    predict(rows_file(count=count), path, flags)
    return path


def progress_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.progress.json")


def copy_of(output: Path) -> Path:
    """A file of answers with its progress, elsewhere."""
    path = output_path()
    shutil.copy(output, path)
    shutil.copy(progress_path(output), progress_path(path))
    return path


class ResumeTest(parameterized.TestCase):
    @parameterized.parameters("sampling", "greedy")
    @pytest.mark.slow
    def test_cut_at_any_byte_it_ends_as_an_unbroken_run(self, way):
        rows, whole, path = rows_file(count=10), unbroken(WAYS[way]), output_path()
        content, progress = whole.read_bytes(), progress_path(whole).read_bytes()
        line_ends = [place + 1 for place, byte in enumerate(content) if byte == 10]
        for size in [0, len(content) // 2, len(content) - 1, line_ends[4]]:
            path.write_bytes(content[:size])
            progress_path(path).write_bytes(progress)
            predict(rows, path, WAYS[way])
            self.assertEqual(path.read_bytes(), content, size)

    @parameterized.parameters(4, 8)
    @pytest.mark.quick_cases(1)
    def test_stopped_after_any_window_it_keeps_the_windows_and_answers_the_rest(self, done):
        rows, path, whole = rows_file(count=10), output_path(), unbroken()
        lines = Path(rows).read_text().splitlines()
        Path(rows).write_text("\n".join([*lines[: done + 1], "{oops", *lines[done + 1 :]]) + "\n")
        with exits_with(65, rf"rows\.jsonl:{done + 2}: not JSON"):
            predict(rows, path)
        self.assertLen(path.read_text().splitlines(), done)
        Path(rows).write_text("\n".join(lines) + "\n")
        # A mark in what is written, of the same length, and a torn line of the next window.
        marked = path.read_bytes().replace(b'"idx": 0', b'"idx": 9', 1)
        path.write_bytes(marked + b'{"row": 99, "pred')
        predict(rows, path)
        self.assertEqual(path.read_bytes(), whole.read_bytes().replace(b'"idx": 0', b'"idx": 9', 1))

    @pytest.mark.slow
    def test_a_finished_file_needs_no_model_and_input_that_grew_is_answered_as_if_it_had_been_whole(self):
        rows, path = rows_file(count=10), copy_of(unbroken())
        before = path.read_bytes()
        with mock.patch.object(PreTrainedModel, "from_pretrained", side_effect=AssertionError("a model was loaded")):
            predict(rows, path)
        self.assertEqual(path.read_bytes(), before)
        predict(rows_file(count=15), path)
        self.assertEqual(path.read_bytes(), unbroken(count=15).read_bytes())

    @parameterized.parameters(6, 10, 12)
    def test_other_input_is_refused(self, count):
        path, changed = copy_of(unbroken()), rows_file(count=count)
        before = path.read_bytes()
        content = Path(changed).read_text()
        Path(changed).write_text(content.replace('idx": 1}', 'idx": 100}'))
        message = "has 6 rows, but --output has" if count == 6 else "first 10 rows of --input are not those"
        with exits_with(65, message):
            predict(changed, path)
        self.assertEqual(path.read_bytes(), before)

    @parameterized.parameters(("", 10, 0), ("", 6, 0), ("--scores", 10, 0), ("", 10, 4))
    @pytest.mark.quick_cases(2)
    def test_without_the_answers_their_progress_is_of_nothing(self, flag, count, first):
        rows, path = rows_file(count=count + first), copy_of(unbroken())
        Path(rows).write_text("".join(Path(rows).read_text().splitlines(True)[first:]))
        expected = output_path()
        predict(rows, expected, flag)
        path.unlink()
        with contextlib.redirect_stderr(io.StringIO()) as log:
            predict(rows, path, flag)
        self.assertEqual(path.read_bytes(), expected.read_bytes())
        self.assertEqual(progress_path(path).read_bytes(), progress_path(expected).read_bytes())
        self.assertIn(f"{path} is gone", log.getvalue())

    def test_answers_of_other_settings_or_of_somebody_else_are_refused_with_the_way_out(self):
        rows, path = rows_file(count=5), output_path()
        path.write_text("precious\n")
        with exits_with(78, "--overwrite"):
            predict(rows, path)
        self.assertEqual(path.read_text(), "precious\n")
        predict(rows, path, "--no_repeat_ngram_size 3", "--overwrite")
        before = path.read_bytes()
        left_out = "no_repeat_ngram_size 3 there, None here"
        for flag in (
            "--max_new_tokens 3", "--do_sample", "--labels", "--max_source_length 8", "--raw", "--num_beams 2",
            "--scores", "--include_inputs", "--dtype bfloat16", "--input_type jsonl", "--seed 7", "--tokenizer_name other",
            "--model_family seq2seq", "--model_class other:Model",
        ):  # fmt: skip
            name = flag.split()[0].removeprefix("--")
            with exits_with(78, rf"[(; ]{name} \S+ there, \S+ here.*--overwrite"):
                predict(rows, path, flag)
        with exits_with(78, rf"\({left_out}\); .*--overwrite"):
            predict(rows, path)
        written = json.loads(progress_path(path).read_text())
        changed = [json.dumps({**written, **changes}) for changes in ({"format": 2}, {"rows": "5"}, {"settings": []})]
        for content in ("{", "[]", '{"format": 1}', *changed):
            progress_path(path).write_text(content)
            with exits_with(78, "cannot be read"):
                predict(rows, path)
        self.assertEqual(path.read_bytes(), before)

    def test_after_an_overwrite_that_failed_no_earlier_answer_counts_as_one_of_the_new_settings(self):
        path, flag, rows = copy_of(unbroken()), "--max_new_tokens 1", rows_file(count=10)
        open_file = Path.open

        def failing_open(file, *arguments, **settings):
            if file == path:
                raise OSError(errno.EIO, "Input/output error", str(path))
            return open_file(file, *arguments, **settings)

        with mock.patch.object(Path, "open", failing_open), self.assertRaisesRegex(OSError, "Input/output error"):
            predict(rows, path, flag, "--overwrite")
        predict(rows, path, flag)
        self.assertEqual(path.read_bytes(), unbroken(flag).read_bytes())

    def test_the_same_weights_elsewhere_go_on_with_a_file_and_others_do_not(self):
        rows, path = rows_file(count=5), output_path()
        predict(rows, path, model=model_folder())
        copy = Path(shutil.copytree(model_folder(), Path(tempfile.mkdtemp()) / "copy"))
        predict(rows, path, model=copy)
        content = bytearray((copy / "model.safetensors").read_bytes())
        content[-1] ^= 1
        (copy / "model.safetensors").write_bytes(content)
        with exits_with(78, "answers from other settings"):
            predict(rows, path, model=copy)

    def test_a_file_in_the_model_s_folder_is_no_part_of_the_model(self):
        folder = Path(shutil.copytree(model_folder(), Path(tempfile.mkdtemp()) / "model"))
        rows = rows_file(count=5)
        for name in ("answers.jsonl", "answers.json"):
            path = folder / name
            predict(rows, path, model=folder)
            whole = path.read_bytes()
            path.write_bytes(whole[:-1])
            predict(rows, path, model=folder)
            self.assertEqual(path.read_bytes(), whole)

    @parameterized.parameters(("", "the same command"), ("--overwrite", "the same command without --overwrite"))
    def test_a_request_to_stop_ends_at_a_window_and_the_same_command_goes_on(self, flag, command):
        path, whole, rows = output_path(), unbroken(), rows_file(count=10)
        handler = signal.getsignal(signal.SIGTERM)

        def typed():
            for number, line in enumerate(Path(rows).read_bytes().splitlines(True)):
                if number == 2:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield line

        with (
            mock.patch.object(sys, "stdin", mock.Mock(buffer=typed())),
            exits_with(75, f"stopped after 4 rows; {command} resumes"),
        ):
            predict("-", path, flag)
        self.assertEqual(signal.getsignal(signal.SIGTERM), handler)
        self.assertLen(path.read_text().splitlines(), 4)
        with mock.patch.object(sys, "stdin", mock.Mock(buffer=io.BytesIO(Path(rows).read_bytes()))):
            # Batches of other sizes go on with a file.
            run_cli(*predict_words("--window 2 --batch_size 1", rows="-", output=path))
        self.assertEqual(path.read_bytes(), whole.read_bytes())

    def test_with_overwrite_a_requeued_job_goes_on_with_its_own_answers_and_discards_those_of_others(self):
        rows = rows_file(count=10)
        lines = unbroken().read_bytes().splitlines(True)
        marked = lines[0].replace(b'"idx": 0', b'"idx": 9')
        for writer, restarts, first in (("7", "1", marked), ("7", "0", lines[0]), ("6", "1", lines[0])):
            path = output_path()
            with mock.patch.dict(os.environ, {"SLURM_JOB_ID": writer}):
                predict(rows, path, "--overwrite")
            path.write_bytes(marked + b"".join(lines[1:7]))
            with mock.patch.dict(os.environ, {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": restarts}):
                predict(rows, path, "--overwrite")
            self.assertEqual(path.read_bytes(), first + b"".join(lines[1:]), (writer, restarts))

    def test_with_overwrite_a_requeued_job_starts_over_where_settings_or_input_were_others(self):
        rows, path = rows_file(count=10), output_path()
        other_rows = Path(rows).with_name("other.jsonl")
        other_rows.write_text("".join(reversed(Path(rows).read_text().splitlines(True))))
        for first_rows, flags in ((rows, "--scores"), (other_rows, ""), (rows_file(count=13), "")):
            with mock.patch.dict(os.environ, {"SLURM_JOB_ID": "7"}):
                predict(first_rows, path, f"--overwrite {flags}")
            with mock.patch.dict(os.environ, {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}):
                predict(rows, path, "--overwrite")
            self.assertEqual(path.read_bytes(), unbroken().read_bytes(), (first_rows, flags))

    def test_a_window_is_written_before_the_input_ends(self):
        path = output_path()

        def typed():
            for number in range(13):
                written = path.read_text().count("\n") if path.exists() else 0
                self.assertEqual(written, 4 * (number // 4))
                yield b'{"sentence": "fine"}\n'

        with mock.patch.object(sys, "stdin", mock.Mock(buffer=typed())):
            predict("-", path)
        self.assertLen(path.read_text().splitlines(), 13)


def models_texts(rows, *flags: str) -> list[str]:
    """What the model reads of each row."""
    return [line["inputs"] for line in answers("--include_inputs --max_new_tokens 1", *flags, rows=rows)]


class CutTest(parameterized.TestCase):
    @parameterized.product(family=["seq2seq", "causal", "masked", "encoder"], flags=["", "--include_inputs"])
    @pytest.mark.quick_cases(6)
    def test_a_line_says_how_many_tokens_were_cut_and_only_where_some_were(self, family, flags):
        texts = [" ".join(["the"] * count) for count in (3, 200, 20, 90)]
        rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", [{"inputs": text} for text in texts])
        separator = TOKENIZER("\nanswer:", add_special_tokens=False)["input_ids"]
        added = {"causal": len(separator)}.get(family, TOKENIZER.num_special_tokens_to_add())
        expected = [None, 200 + added - SOURCE_LENGTH, None, 90 + added - SOURCE_LENGTH]
        lines = answers(flags, rows=rows, family=family)
        self.assertEqual([line.get("cut_tokens") for line in lines], expected)
        if flags:
            self.assertEqual([f"[cut: {count} more tokens]" in line["inputs"] for count, line in zip(expected, lines)],
                             [count is not None for count in expected])  # fmt: skip

    def test_a_pair_s_cut_is_that_of_both_texts(self):
        pair = {"premise": " ".join(["the"] * 80), "hypothesis": " ".join(["a"] * 70)}
        rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", [pair])
        (line,) = answers(rows=rows, model=model_folder("masked", "entailment"))
        whole = TOKENIZER(*pair.values())["input_ids"]
        self.assertEqual(line["cut_tokens"], len(whole) - SOURCE_LENGTH)


class PositionsTest(parameterized.TestCase):
    """A model's table of positions ends: what does not fit is refused, and what just fits is answered."""

    @parameterized.parameters(("masked", "", 512), ("causal", "--labels", 128), ("causal", "--max_new_tokens 3", 128))
    def test_texts_have_the_room_that_the_model_has_positions_for(self, family, flags, positions):
        rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", ["the " * 2 * positions])
        answer_length = {"": 0, "--labels": 2, "--max_new_tokens 3": 3}[flags]
        room = positions - answer_length
        answers("--raw", flags, f"--max_source_length {room}", rows=rows, family=family)
        with exits_with(78, f"--max_source_length.* {positions + 1}: .*has positions for {positions} tokens"):
            answers("--raw", flags, f"--max_source_length {room + 1}", rows=rows, family=family)

    def test_virtual_tokens_leave_the_texts_less_room(self):
        sizes = (
            "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=48,max_position_embeddings=32"
        )
        model = tiny_model("bert", sizes, family="masked", tasks=[SENTIMENT])
        adapter = {"adapter": "prompt_tuning", "adapter_args": "num_virtual_tokens=4"}
        folder = tiny_tuner(saved(model, "sentiment"), **adapter).save(tempfile.mkdtemp())
        rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", ["the " * 60])
        answers("--raw --max_source_length 28", rows=rows, model=folder)
        with exits_with(78, "--max_source_length 29 after 4 virtual tokens .*has positions for 32 tokens"):
            answers("--raw --max_source_length 29", rows=rows, model=folder)

    def test_an_encoder_of_relative_positions_alone_reads_texts_of_any_length(self):
        sizes = (
            "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=48,max_position_embeddings=32"
        )
        relative = "position_biased_input=false,relative_attention=true"
        model = tiny_model("deberta-v2", f"{sizes},{relative}", family="masked", tasks=[SENTIMENT])
        rows = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", ["the " * 60])
        (line,) = answers("--raw", rows=rows, model=saved(model, "sentiment"))
        self.assertIn(line["prediction"], ("negative", "positive"))

    @parameterized.parameters("bart", "marian", "pegasus")
    @pytest.mark.quick_cases(1)
    def test_written_answers_have_the_room_that_the_decoder_has_positions_for(self, model_type):
        sizes = "d_model=32,encoder_layers=1,decoder_layers=1,encoder_attention_heads=2,decoder_attention_heads=2"
        overrides = f"{sizes},encoder_ffn_dim=32,decoder_ffn_dim=32,max_position_embeddings=24"
        folder = saved(tiny_model(model_type, overrides), "sentiment")
        flags = "--max_source_length 8 --min_new_tokens 24 --max_new_tokens"
        answers(flags, "24", rows=rows_file(count=2), model=folder)
        with exits_with(78, "--max_new_tokens 25: .*has positions for 24 tokens"):
            answers(flags, "25", rows=rows_file(count=2), model=folder)


class ClassifierTest(parameterized.TestCase):
    """A classifier of the hub, which t5suite has not trained: its own head answers, in its own words."""

    texts = ("it rains .", "it is wet . it is wet .", "rains")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(5)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        config = BertConfig(vocab_size=16, **sizes, id2label=dict(enumerate(("anger", "joy", "fear"))))
        cls.plain = BertForSequenceClassification(config).eval()
        with torch.no_grad():
            for parameter in cls.plain.parameters():
                parameter.normal_(0, 0.6)
        cls.folder = str(save_model(tempfile.mkdtemp(), cls.plain, word_tokenizer()))
        cls.expected = []
        for text in cls.texts:
            with torch.no_grad():
                shares = cls.plain(**word_tokenizer()(text, return_tensors="pt")).logits[0].softmax(0)
            cls.expected.append(dict(zip(("anger", "joy", "fear"), shares.tolist(), strict=True)))

    def rows(self) -> Path:
        return write_rows(f"{tempfile.mkdtemp()}/rows.jsonl", [{"input": text} for text in self.texts])

    def check(self, predictions, probabilities):
        self.assertEqual(predictions, [max(shares, key=shares.get) for shares in self.expected])
        self.assertGreater(len(set(predictions)), 1)
        for of_text, shares in zip(probabilities, self.expected, strict=True):
            self.assertEqual(of_text.keys(), shares.keys())
            np.testing.assert_allclose(list(of_text.values()), list(shares.values()), atol=1e-5)

    def test_its_own_head_answers(self):
        tuner = FineTuner(self.folder, use_cpu=True, quiet=True)
        self.check(tuner.predict(self.texts), tuner.predict_labels(self.texts))
        again = tempfile.mkdtemp()
        tuner.save(again)
        self.assertTrue(torch.equal(tuner.model.classifier.weight, self.plain.classifier.weight))
        self.check(FineTuner(again, use_cpu=True, quiet=True).predict(self.texts), self.expected)
        lines = answers(rows=self.rows(), model=self.folder)
        self.check([line["prediction"] for line in lines], [line["probabilities"] for line in lines])

    def test_a_head_that_nothing_has_trained_does_not_answer(self):
        with exits_with(78, "has no trained head for labels negative, positive"):
            answers("--benchmark mini --dataset_name sentiment", model=self.folder)
        bare = BertForMaskedLM(self.plain.config)
        folder = save_model(tempfile.mkdtemp(), bare, word_tokenizer())
        tuner = FineTuner(str(folder), use_cpu=True, quiet=True)
        with exits_with(78, "has no trained head for labels; fine-tune it first"):
            tuner.predict(self.texts)

    def test_a_head_of_several_labels_at_once_is_refused(self):
        folder = shutil.copytree(self.folder, f"{tempfile.mkdtemp()}/several")
        config = Path(folder, "config.json")
        settings = json.loads(config.read_text())
        config.write_text(json.dumps({**settings, "problem_type": "multi_label_classification"}))
        with exits_with(78, "its head gives a text several labels at once"):
            answers(rows=self.rows(), model=folder)

    def test_classes_without_names_need_a_task_that_names_them(self):
        folder = shutil.copytree(self.folder, f"{tempfile.mkdtemp()}/unnamed")
        config = Path(folder, "config.json")
        settings = json.loads(config.read_text())
        config.write_text(json.dumps({**settings, "id2label": {str(i): f"LABEL_{i}" for i in range(3)}}))
        with exits_with(78, "the classes of its head have no names"):
            answers(rows=self.rows(), model=folder)
        with exits_with(78, "the classes of its head have no names"):
            FineTuner(folder, use_cpu=True, quiet=True).predict(self.texts)
        lines = answers("--benchmark mini --dataset_name entailment --raw", rows=self.rows(), model=folder)
        self.assertEqual(list(lines[0]["probabilities"]), load_task("mini", "entailment").label_words)

    def test_own_labels_are_left_out(self):
        with exits_with(78, "has only its own labels, .*; leave --labels out"):
            answers("--labels anger,joy", rows=self.rows(), model=self.folder)


class OwnLabelsTest(parameterized.TestCase):
    def log_of(self, *labels: str) -> str:
        """What is logged where the model chooses among these."""
        words = predict_words(rows=rows_file(count=1), output=output_path())
        with contextlib.redirect_stderr(io.StringIO()) as log:
            run_cli(*words, "--labels", ",".join(labels))
        return log.getvalue()

    def test_labels_that_are_the_same_answer_are_refused_and_one_that_is_cut_is_named(self):
        long = "a good film of the year and one that"
        length = f"at most {ANSWER_LENGTH} tokens, as in the model's training; give others"
        with exits_with(
            78, f"--labels: '{long} ends' and '{long} goes on' have the same tokens: an answer has {length}"
        ):
            self.log_of(f"{long} ends", f"{long} goes on")
        self.assertIn(f"--labels: '{long}' is cut after {ANSWER_LENGTH} tokens", self.log_of(long, "good"))
        self.assertNotIn("cut", self.log_of("good", "bad"))


class RowsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("--raw", [{"inputs": "a"}, "b", {"sentence": "c", "input": "d"}], ["a", "b", "d"]),
        (
            "", ["a", {"sentence": "b", "label": 1}, {"inputs": "finished", "targets": "c"}],
            ["sentiment sentence: a", "sentiment sentence: b", "finished"],
        ),
        ("--benchmark translation --dataset_name wmt14_en_de", ["Hi."], ["translate English to German: Hi."]),
        (
            "--benchmark squad --dataset_name squad", [{"question": "Q?", "context": "A."}],
            ["question: Q ? context: A . "],
        ),
        (
            "--benchmark glue --dataset_name mnli", [{"premise": "A.", "hypothesis": "B."}],
            ["mnli hypothesis: B. premise: A."],
        ),
        (
            "--benchmark super_glue --dataset_name dpr",
            [{"sentence": "So they fly.", "pronoun": "they", "candidates": ["Bees", "Ann"], "label": label} for label in (1, 5, None)],
            ["wsc: So *they* fly."] * 3,
        ),
        (
            "--benchmark super_glue --dataset_name wsc",
            [{"text": "Ann saw he ran", "span1_text": "Tom", "span2_text": "he", "span2_index": 2, "label": 0}],
            ["wsc: Ann saw *he* ran"],
        ),
    )  # fmt: skip
    def test_what_a_row_becomes(self, flags, rows, expected):
        path = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", rows)
        self.assertEqual(models_texts(path, flags), expected)

    @parameterized.parameters(
        ("question", {"question": "Name it.", "input": "a cat"}, "Name it.\ninput: a cat\noutput:"),
        ("input", {"input": "Sing."}, "Sing.\noutput:"),
    )
    def test_a_renamed_column_leaves_the_row_s_others_to_the_task(self, text_column, row, expected):
        """An instruction has an `input` where its row has one."""
        folder = Path(tempfile.mkdtemp())
        entry = {"formatter": "instruction", "text_column_name": "instruction", "label_column_name": "output"}
        entry |= {"prefix": "", "labels": None, "metric_names": ["exact_match"], "metric_to_optimize": "exact_match"}
        (folder / "tasks.yaml").write_text(json.dumps({"own": {"chat": entry}}))
        rows = write_rows(folder / "rows.jsonl", [row])
        task = f"--task_file {folder / 'tasks.yaml'} --benchmark own --dataset_name chat"
        self.assertEqual(models_texts(rows, task, f"--text_column {text_column}"), [expected])

    @parameterized.parameters("seq2seq", "masked")
    def test_an_answer_in_a_row_is_not_read(self, family):
        texts = ["good", "bad", "fine"]
        columns = [{}, {"label": 0}, {"label": 7}, {"label": "?"}, {"label": "3"}, {"label": [1]}]
        lines = [
            answers(rows=write_rows(rows_file(), [{"sentence": text, **answer} for text in texts]), family=family)
            for answer in columns
        ]
        self.assertEqual(lines, [lines[0]] * len(columns))

    @parameterized.parameters(
        ("rows.txt", "\ufeffone\r\n\ntwo", ["one", "", "two"]),
        ("rows.jsonl", '\ufeff{"inputs": "a"}\n\n"b"\n', ["a", "b"]),
        ("rows.json", '[\n {"inputs": "a"},\n {"inputs": "b"}]', ["a", "b"]),
    )
    @pytest.mark.quick_cases(1)
    def test_every_form_of_lines_is_read(self, name, content, expected):
        path = Path(tempfile.mkdtemp()) / name
        path.write_text(content, newline="")
        self.assertEqual(models_texts(path, "--raw"), expected)

    def test_a_quoted_sentence_of_a_text_file_stays_quoted_and_a_brace_is_refused_with_a_way_on(self):
        path = Path(tempfile.mkdtemp()) / "news.en"
        path.write_text('"We won."\nIt rained.\n')
        self.assertEqual(models_texts(path, "--raw"), ['"We won."', "It rained."])
        path.write_text("{braces} here\n")
        with exits_with(65, "news.en:1: not JSON .*--input_type text"):
            models_texts(path, "--raw")
        self.assertEqual(models_texts(path, "--raw --input_type text"), ["{braces} here"])

    @parameterized.parameters(
        ('{"sentence": "a"}', "--raw", "rows.jsonl:1: the row has no one of inputs, input"),
        ('{"inputs": null}', "--raw", "rows.jsonl:1: column 'inputs' is null; write \"\" "),
        ('{"text": "a"}', "", "rows.jsonl:1: the row has neither sentence nor"),
        ('{"inputs": 3}', "--raw", "rows.jsonl:1: column 'inputs' holds 3"),
        (
            '{"input": "a", "inputs": "b"}',
            "--raw",
            "rows.jsonl:1: the row has a text in each of inputs and input; give one",
        ),
        (
            '{"sentence": "So they fly.", "pronoun": "they", "candidates": []}',
            "--benchmark super_glue --dataset_name dpr --labels",
            "rows.jsonl:1: column 'candidates' holds no candidate",
        ),
        *(
            (
                f'"some {column} here"',
                f"--benchmark super_glue --dataset_name {name} --raw --labels",
                f"rows.jsonl:1: a line of text has no candidates: give objects with '{column}'",
            )
            for name, column in (("dpr", "candidates"), ("record", "entities"))
        ),
        ('"a"', "--benchmark glue --dataset_name mnli", "rows.jsonl:1: .*reads 2 columns.*--raw"),
        ('{"premise": "a"}', "--benchmark glue --dataset_name mnli", "the row has no 'hypothesis', .*; it has premise"),
        ('{"sentence": null}', "", "rows.jsonl:1: column 'sentence'"),
        ('"a"\n\n1', "", "rows.jsonl:3: expected"),
        ("[1]", "", "rows.jsonl: entry 0 .* not an object"),
        (b"\xff", "", "rows.jsonl:1: not UTF-8"),
        (b"good\n\xff", "--input_type text", "rows.jsonl:2: not UTF-8"),
        ("{", "", "rows.jsonl:1: not JSON"),
    )
    def test_rows_that_cannot_be_read_are_named(self, content, flags, message):
        folder = Path(tempfile.mkdtemp())
        (folder / "rows.jsonl").write_bytes((content if isinstance(content, bytes) else content.encode()) + b"\n")
        with exits_with(65, message):
            run_cli(*predict_words(flags, rows=folder / "rows.jsonl", output=folder / "answers.jsonl"))
        self.assertFalse((folder / "answers.jsonl").exists() and (folder / "answers.jsonl").read_text())


class SettingsTest(parameterized.TestCase):
    @parameterized.parameters(
        "--temperature 0.5", "--top_p 0.5", "--top_p 1.5 --do_sample", "--temperature 0.0 --do_sample",
        "--num_beams 2 --do_sample", "--num_return_sequences 2", "--num_beam_groups 3 --num_beams 4",
        "--num_beam_groups 2 --num_beams 4",
        "--max_new_tokens 0", "--diversity_penalty 0.5", "--length_penalty 0.5", f"--seed {2**63}",
    )  # fmt: skip
    def test_settings_without_sense_are_refused_by_flag_and_value(self, flags):
        path = output_path()
        first_flag = " ".join(flags.split()[:2])
        with exits_with(78, first_flag):
            run_cli(*predict_words(flags, rows=rows_file(count=1), output=path))
        self.assertFalse(path.exists())

    @parameterized.parameters(
        ("--max_memory 0=10GiB", "--max_memory 0=10GiB has no effect without --device_map"),
        ("--device_map balanced --max_memory nonsense", "--max_memory nonsense: .*0=10GiB"),
        ("--answer_separator QQ", "--answer_separator 'QQ' has no effect: .*decoder-only"),
        ("--raw --answer_separator QQ", "--answer_separator 'QQ' has no effect: .*decoder-only"),
    )
    @pytest.mark.quick_cases(2)
    def test_flags_that_a_model_does_not_follow_are_refused_before_it_is_loaded(self, flags, message):
        model = Path(shutil.copytree(model_folder(), Path(tempfile.mkdtemp()) / "model"))
        (model / "model.safetensors").write_bytes(b"damaged")
        if "--raw" in flags:
            (model / "task.json").unlink()
        (model / "rows.txt").write_text("a film\n")
        for words in (predict_words(flags, rows=model / "rows.txt", model=model), serve_words(flags, model)):
            with exits_with(78, message):
                run_cli(*words)


def serve_words(flags: str, model: Path) -> list[str]:
    return ["serve", "--model_name_or_path", str(model), "--port", "0", "--use_cpu", *flags.split()]
