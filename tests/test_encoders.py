"""T5's encoder by itself, and labels of words: what is read, what is left out, and how labels are scored."""

import contextlib
import io
import json
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from absl.testing import parameterized
from family_worker import VOWELS, config_folder, config_of, model_of, rows_of
from safetensors.torch import load_file, save_file
from support import later_wins
from transformers import AutoModelForSeq2SeqLM, T5EncoderModel

import fine_tune_t5
from t5suite import FineTuner, Task, load_task
from t5suite.tasks.metrics import METRICS
from t5suite.testing import cli_output, exits_with, run_cli, save_model, tiny_tokenizer, tiny_tuner, write_rows

ENTRY = VOWELS.entry
TASK = Task("mine", "words", {**ENTRY, "text_column_name": "tokens", "label_column_name": "tags"})


def saved(name: str) -> tuple[str, object]:
    """A folder with a whole encoder-decoder of random weights, and the model."""
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(config_of(name)).eval()
    return str(save_model(tempfile.mkdtemp(), model)), model


def encoder_of(folder):
    """The encoder of a folder's model, with a head for `mini/sentiment`."""
    return tiny_tuner(str(folder), "mini/sentiment", model_family="encoder", max_train_samples=8, max_eval_samples=4)


class EncoderTest(parameterized.TestCase):
    @parameterized.parameters("t5", "longt5", "t5gemma")
    @pytest.mark.quick_cases(1)
    def test_a_row_s_class_is_told_by_the_mean_of_its_states_and_what_is_left_out_is_named(self, name):
        folder, whole = saved(name)
        file = Path(folder) / "model.safetensors"
        tensors = {**load_file(file), "lm_head.weight": torch.zeros(640, 32)}
        save_file(tensors, file, {"format": "pt"})
        tuner = encoder_of(folder)
        model = tuner.model.eval()
        rows, width = [[5, 6, 7, 8, 9, 1], [11, 1]], 6
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        with torch.no_grad():
            logits_of_rows = model(input_ids=ids, attention_mask=ids.ne(0).long()).logits
            for row, logits in zip(rows, logits_of_rows, strict=True):
                state = whole.get_encoder()(torch.tensor([row])).last_hidden_state[0].mean(0)
                torch.testing.assert_close(logits, model.classifier(state), rtol=1e-4, atol=1e-5)

            labels, mask = torch.tensor([1, 0]), ids.ne(0).long()
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
            expected_loss = torch.nn.functional.cross_entropy(logits_of_rows, labels)
            self.assertAlmostEqual(loss.item(), expected_loss.item(), places=6)
            without_mask = model(input_ids=ids[:1]).logits
            torch.testing.assert_close(without_mask, logits_of_rows[:1], rtol=1e-4, atol=1e-5)

        of_decoder = sum("decoder." in tensor for tensor in tensors)
        self.assertEqual(left_out_of(tuner), {"decoder": of_decoder, "lm_head": 1})

    def test_a_folder_of_an_encoder_alone_is_taken_and_one_that_lacks_a_tensor_is_refused(self):
        plain = T5EncoderModel(config_of("t5"))
        folder = save_model(tempfile.mkdtemp(), plain)
        tuner = encoder_of(folder)
        self.assertTrue(torch.equal(tuner.model.shared.weight, plain.shared.weight))
        self.assertIsNone(left_out_of(tuner))
        file = Path(folder) / "model.safetensors"
        tensors = {name: tensor for name, tensor in load_file(file).items() if "DenseReluDense.wo" not in name}
        save_file(tensors, file, {"format": "pt"})
        with exits_with(65, "missing .*wo.weight"):
            encoder_of(folder)

    def test_other_types_have_no_such_encoder(self):
        with exits_with(78, "--model_family encoder: transformers has no such model of type 'bart'"):
            tiny_tuner(config_name=config_folder("bart"), model_family="encoder")


def left_out_of(tuner) -> dict | None:
    """What the manifest of a run says of tensors that were not loaded."""
    directory = Path(tuner.args.output_dir)
    tuner.train(max_steps=1)
    return json.loads((directory / "manifest.json").read_text())["model"].get("left_out")


@torch.no_grad()
def labels_of_words(model, sentences: list[str]) -> list[str]:
    """What the model itself says at the first token of every word."""
    labels_of_sentences = []
    for sentence in sentences:
        words = sentence.split()
        pieces = tiny_tokenizer()(words, is_split_into_words=True, return_tensors="pt")
        labels = model(**pieces).logits[0].argmax(-1).tolist()
        places = [pieces.word_ids().index(word) for word in range(len(words))]
        labels_of_sentences.append(" ".join(VOWELS.label_words[labels[place]] for place in places))
    return labels_of_sentences


class WordsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"tokens": ["a", "b"], "tags": [0]}, "1 labels in column 'tags' for 2 words in column 'tokens'"),
        ({"tokens": ["a", "b"], "tags": [0, -1]}, "some of its words have no label"),
        ({"tokens": ["a", "b", "c"], "tags": [0, None, 1]}, "some of its words have no label"),
        ({"tokens": ["a", "b", "c"], "tags": [0, None, 1, 1]}, "4 labels in column 'tags' for 3 words"),
        ({"tokens": ["a", "b c"], "tags": [0, 1]}, "holds 'b c', where each word has a label"),
        ({"tokens": [None, "a"], "tags": [0, 1]}, "'tokens' holds None, where each word has a label"),
        ({"tokens": ["a"], "tags": ["maybe"]}, "'maybe' .* is none of 0 no, 1 yes"),
    )
    def test_rows_that_do_not_fit_are_refused(self, row, message):
        with exits_with(65, message):
            TASK.examples(row, "train")

    @parameterized.parameters(
        ({"metric_names": ["accuracy"]}, "need the formatter token_labels"),
        ({"formatter": "columns"}, "need the formatter token_labels"),
        ({"labels": ["no", "not at all"]}, "must not contain spaces"),
        ({"labels": None}, "token_labels needs labels"),
        ({"metric_names": ["span_f1"]}, "span_f1 needs labels O, B-"),
    )
    def test_entries_that_do_not_fit_are_refused(self, changes, message):
        file = Path(tempfile.mkdtemp()) / "tasks.yaml"
        file.write_text(json.dumps({"mine": {"words": {**ENTRY, **changes}}}))
        with exits_with(78, message):
            load_task("mine", "words", str(file))

    def test_metrics_are_counted_by_hand(self):
        draw, labels = random.Random(0), ["O", "B-A", "I-A", "B-B", "I-B"]

        def bio(count):
            row = ["O"]
            while len(row) <= count:
                row.append(draw.choice([n for n in labels if n[0] != "I" or row[-1][2:] == n[2:]]))
            return row[1:]

        def spans(rows):
            spans_of_rows = set()
            for number, row in enumerate(rows):
                for start in (i for i, label in enumerate(row) if label[0] == "B"):
                    end = start + 1
                    while end < len(row) and row[end] == f"I-{row[start][2:]}":
                        end += 1
                    spans_of_rows.add((number, start, end, row[start][2:]))
            return spans_of_rows

        right = [bio(draw.randint(1, 9)) for _ in range(60)]
        predicted = []
        for row in right:
            predicted.append([])
            for label in (draw.choice([label, label, "O", "no label"]) for label in row):
                goes_on = predicted[-1] and predicted[-1][-1][2:] == label[2:]
                predicted[-1].append(label if label[0] != "I" or goes_on else "O")
        ours, theirs = spans(predicted), spans(right)  # "no label" is in none
        self.assertAlmostEqual(
            METRICS["span_f1"](predicted, right), 200 * len(ours & theirs) / (len(ours) + len(theirs))
        )
        pairs = [pair for row in zip(predicted, right, strict=True) for pair in zip(*row, strict=True)]
        self.assertAlmostEqual(METRICS["token_accuracy"](predicted, right), 100 * np.mean([a == b for a, b in pairs]))
        each = [200 * pairs.count((n, n)) / sum((a == n) + (b == n) for a, b in pairs) for n in labels]
        self.assertAlmostEqual(METRICS["token_f1_macro"](predicted, right), np.mean(each))

    def test_a_model_without_a_task_labels_every_word_of_a_text(self):
        """As one of Hugging Face's that was trained elsewhere."""
        model = model_of("bert", VOWELS)
        folder = save_model(Path(tempfile.mkdtemp()) / "model", model, tiny_tokenizer())
        sentences = [row["sentence"] for row in rows_of(VOWELS, 6)]
        expected = labels_of_words(model, sentences)
        file = folder.parent / "lines.txt"
        file.write_text("".join(f"{sentence}\n" for sentence in sentences))
        words = ["predict", f"--model_name_or_path={folder}", f"--input={file}", "--use_cpu"]
        lines = cli_output(*words).splitlines()
        self.assertEqual([json.loads(line)["prediction"] for line in lines], expected)
        self.assertEqual(FineTuner(str(folder), use_cpu=True, quiet=True).predict(sentences), expected)

    def test_an_empty_line_has_no_labels(self):
        model = model_of("bert", VOWELS)
        folder = save_model(Path(tempfile.mkdtemp()) / "model", model, tiny_tokenizer())
        sentence = rows_of(VOWELS, 1)[0]["sentence"]
        (labels,) = labels_of_words(model, [sentence])
        file = folder.parent / "lines.txt"
        for texts, expected in ((["", " ", sentence, ""], ["", "", labels, ""]), ([""], [""])):
            file.write_text("".join(f"{text}\n" for text in texts))
            words = [f"--model_name_or_path={folder}", f"--input={file}", "--use_cpu", "--include_inputs"]
            lines = [json.loads(line) for line in cli_output("predict", *words).splitlines()]
            self.assertEqual([line["prediction"] for line in lines], expected)

    def test_every_word_that_is_asked_for_has_the_label_of_its_first_token(self):
        model = model_of("bert", VOWELS)
        task = Task("mini", "sentiment", {**ENTRY, "prefix": "words: "})
        folder = save_model(Path(tempfile.mkdtemp()) / "model", model, tiny_tokenizer(), [task])
        sentences = [row["sentence"] for row in rows_of(VOWELS, 6)]
        expected = labels_of_words(model, sentences)
        self.assertGreater(len({label for line in expected for label in line.split()}), 1)
        for rows in ([{"sentence": sentence} for sentence in sentences], sentences):
            file = write_rows(folder.parent / "rows.jsonl", rows)
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                run_cli("predict", f"--model_name_or_path={folder}", f"--input={file}", "--use_cpu")
            lines = [json.loads(line) for line in printed.getvalue().splitlines()]
            self.assertEqual([line["prediction"] for line in lines], expected)
        (folder / "task.json").unlink()
        tasks = folder.parent / "tasks.yaml"
        tasks.write_text(json.dumps({"mine": {"words": {**ENTRY, "prefix": "words: "}}}))
        flags = {"task_file": str(tasks), "benchmark": "mine", "dataset_name": "words"}
        words = [f"--{name}={value}" for name, value in flags.items()]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            run_cli("predict", f"--model_name_or_path={folder}", f"--input={file}", "--use_cpu", *words)
        self.assertEqual([json.loads(line)["prediction"] for line in printed.getvalue().splitlines()], expected)
        tuner = tiny_tuner(str(folder), train_file=str(file), **flags)
        self.assertEqual(tuner.predict(sentences), expected)
        with exits_with(78, "predict_labels: this model answers with a label for every word"):
            tuner.predict_labels(sentences)

    @parameterized.parameters("bert", "t5_encoder")
    @pytest.mark.slow
    def test_a_model_of_words_is_trained_and_asked(self, name):
        place = Path(tempfile.mkdtemp())
        (place / "tasks.yaml").write_text(json.dumps({"mine": {"words": {**ENTRY, "prefix": "words: "}}}))
        rows = rows_of(VOWELS, 400)
        for file, part in (("train", rows[:360]), ("validation", rows[360:])):
            write_rows(place / f"{file}.jsonl", part)
            (place / f"{file}.txt").write_text("\n".join(row["sentence"] for row in part))
        save_model(place / "model", model_of(name, VOWELS), tiny_tokenizer())
        flags = [
            f"--task_file={place / 'tasks.yaml'}", "--benchmark=mine", "--dataset_name=words", "--use_cpu",
            f"--train_file={place / 'train.jsonl'}", f"--validation_file={place / 'validation.jsonl'}", "--max_steps=60",
            "--learning_rate=3e-3", "--eval_strategy=steps", "--eval_steps=30", "--save_steps=30", "--disable_tqdm=True",
        ]  # fmt: skip
        results = fine_tune_t5.main(
            [*flags, f"--model_name_or_path={place / 'model'}", f"--output_dir={place / 'run'}"]
        )
        self.assertGreater(results["tasks"]["words"]["token_accuracy"], 85)
        adapter = [f"--model_name_or_path={place / 'run'}", "--adapter=lora", f"--output_dir={place / 'lora'}"]
        fine_tune_t5.main(later_wins(flags, adapter, ["--max_steps=2", "--eval_steps=2"]))
        for run, kind in (("run", "jsonl"), ("run", "txt"), ("lora", "jsonl")):
            lines = (place / run / "predictions" / "words.validation.jsonl").read_text().splitlines()
            ask = ["predict", f"--model_name_or_path={place / run}", f"--input={place / 'validation'}.{kind}"]
            with contextlib.redirect_stdout(io.StringIO()) as predicted:
                run_cli(*ask, "--use_cpu")
            answers = [json.loads(line)["prediction"] for line in predicted.getvalue().splitlines()]
            self.assertEqual(answers, [json.loads(line)["prediction"] for line in lines])
