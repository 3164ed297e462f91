"""The bundled benchmark: its files are what `tools.mini_benchmark` writes, and its tokenizer covers them."""

import gzip
import json
import shutil
import tempfile
from pathlib import Path

from absl.testing import parameterized
from transformers import AutoConfig, AutoTokenizer

from tools.mini_benchmark import FOLDER, MODEL_FOLDER, grammar


def load(task, split):
    """load("sentiment", "test") -> [{'sentence': ..., 'label': -1, 'idx': 0}, ...], as bundled"""
    with gzip.open(FOLDER / task / f"{split}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


class MiniTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = {task: {split: load(task, split) for split in grammar.NUM_ROWS} for task in grammar.TASKS}
        cls.tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
            (Path(folder) / "sentiment" / "test.jsonl.gz").write_bytes(gzip.compress(b"{}"))
            cls.stale = grammar.stale_files(Path(folder))

    def test_bundled_files_equal_what_the_grammar_writes(self):
        self.assertEqual(self.stale, ["sentiment/test.jsonl.gz"])

    def test_rows_are_numbered_differ_and_test_is_unlabelled(self):
        for task, splits in self.rows.items():
            with self.subTest(task):
                self.assertEqual({row["label"] for row in splits["test"]}, {-1})
                rows = [row for rows in splits.values() for row in rows]
                texts = [tuple(v for v in row.values() if isinstance(v, str)) for row in rows]
                self.assertLen(set(texts), len(texts))
                for split, number in grammar.NUM_ROWS.items():
                    self.assertEqual([row["idx"] for row in splits[split]], list(range(number)))

    def test_sentinels_count_down_from_the_last_id_and_the_configuration_fits(self):
        config, last = AutoConfig.from_pretrained(MODEL_FOLDER), len(self.tokenizer) - 1
        found = self.tokenizer.convert_tokens_to_ids([f"<extra_id_{i}>" for i in range(100)])
        self.assertEqual(found, [last - i for i in range(100)])
        self.assertGreater(config.vocab_size, last)
        self.assertEqual((config.pad_token_id, config.eos_token_id, config.decoder_start_token_id), (0, 1, 0))
