"""The bundled benchmark: its files are what `tools.mini_benchmark` writes, splits share no template, the tokenizer fits."""

import gzip
import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from absl.testing import parameterized
from transformers import AutoConfig, AutoTokenizer

from tools.mini_benchmark import FOLDER, MODEL_FOLDER, grammar


def load(task, split):
    """load("sentiment", "test") -> [{'sentence': ..., 'label': -1, 'idx': 0}, ...], as bundled"""
    with gzip.open(FOLDER / task / f"{split}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


# What messages are about and say of it. A message without these words is a template.
SUBJECTS = """
    lamp kettle camera phone speaker jacket sweater desk parcel delivery packaging refund support website battery colour
    size price wonderful excellent superb impressive lovely brilliant pleasant fantastic perfect great good delightful
    awful terrible dreadful disappointing poor horrible bad unpleasant annoying useless shabby weak broken damaged intact
    undamaged late delayed prompt punctual dirty stained clean spotless open unsealed closed sealed used worn new unused
    fake forged genuine original wife spouse son boy daughter girl mother mum father dad friend buddy return bring
    exchange swap repair mend discard throw review rate red scarlet purple violet grey silver beige cream blue navy
    sofa couch rug carpet cup mug laptop notebook bicycle bike coat parka loud noisy small tiny
""".split()


def messages_of(rows):
    """messages_of([{'premise': 'A.', 'hypothesis': 'B.', 'label': 0, 'idx': 0}]) -> {'A.', 'B.'}"""
    return {value for row in rows for value in row.values() if isinstance(value, str)}


def templates_of(rows):
    """templates_of([{'sentence': 'The lamp was not bad.', 'label': 1}]) -> {'the _ was not _.'}"""
    phrases = [
        message.lower().replace("bring back", "bring").replace("throw out", "throw") for message in messages_of(rows)
    ]
    return {re.sub(rf"\b({'|'.join(SUBJECTS)})\b", "_", phrase) for phrase in phrases}


class MiniTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = {task: {split: load(task, split) for split in grammar.NUM_ROWS} for task in grammar.TASKS}
        cls.tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)

    @pytest.mark.slow
    def test_bundled_files_equal_what_the_grammar_writes(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
            (Path(folder) / "sentiment" / "test.jsonl.gz").write_bytes(gzip.compress(b"{}"))
            self.assertEqual(grammar.stale_files(Path(folder)), ["sentiment/test.jsonl.gz"])

    @pytest.mark.slow
    def test_bundled_rows_of_a_task_and_text_equal_what_the_grammar_writes(self):
        """Of the task and the split of the text that take the least time."""
        self.assertEqual(grammar.rows("sentiment"), self.rows["sentiment"])
        with gzip.open(FOLDER / "text" / "validation.txt.gz", "rt") as lines:
            self.assertEqual(lines.read().splitlines(), list(grammar.documents("validation")))

    def test_rows_are_numbered_differ_and_test_is_unlabelled(self):
        for task, splits in self.rows.items():
            with self.subTest(task):
                self.assertEqual({row["label"] for row in splits["test"]}, {-1})
                rows = [row for rows in splits.values() for row in rows]
                texts = [tuple(v for v in row.values() if isinstance(v, str)) for row in rows]
                self.assertLen(set(texts), len(texts))
                for split, number in grammar.NUM_ROWS.items():
                    self.assertEqual([row["idx"] for row in splits[split]], list(range(number)))

    @pytest.mark.slow
    def test_no_template_is_in_two_splits(self):
        for task, splits in self.rows.items():
            with self.subTest(task):
                templates = {split: templates_of(rows) for split, rows in splits.items()}
                self.assertEmpty(templates["train"] & templates["validation"])
                self.assertEmpty(templates["train"] & templates["test"])
                self.assertEmpty(templates["validation"] & templates["test"])
                self.assertGreaterEqual(min(map(len, templates.values())), 4)

    def test_every_word_of_a_held_out_row_stands_in_training_rows(self):
        for task, splits in self.rows.items():
            with self.subTest(task):
                words = {split: set(re.findall(r"\w+", " ".join(messages_of(rows)))) for split, rows in splits.items()}
                lower = {word.lower() for word in words["train"]}
                self.assertEmpty({word.lower() for word in words["validation"] | words["test"]} - lower)

    @pytest.mark.slow
    def test_every_word_is_one_piece(self):
        texts = {message for splits in self.rows.values() for rows in splits.values() for message in messages_of(rows)}
        with gzip.open(FOLDER / "text" / "train.txt.gz", "rt") as documents:
            texts.update(documents)
        words = sorted(set(re.findall(r"[A-Za-z]+", " ".join(texts))))
        self.assertEqual([word for word in words if len(self.tokenizer.tokenize(word)) > 1], [])

    def test_sentinels_count_down_from_the_last_id_and_the_configuration_fits(self):
        config, last = AutoConfig.from_pretrained(MODEL_FOLDER), len(self.tokenizer) - 1
        found = self.tokenizer.convert_tokens_to_ids([f"<extra_id_{i}>" for i in range(100)])
        self.assertEqual(found, [last - i for i in range(100)])
        self.assertGreater(config.vocab_size, last)
        self.assertEqual((config.pad_token_id, config.eos_token_id, config.decoder_start_token_id), (0, 1, 0))
