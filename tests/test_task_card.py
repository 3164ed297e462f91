"""What a saved model says of its task is what it was trained with, in every checkpoint, and told when it is damaged."""

import json
import tempfile
from pathlib import Path

from absl.testing import absltest, parameterized

import fine_tune_t5
from t5suite.base.errors import ConfigError
from t5suite.constants import DATASET_VALS
from t5suite.inference.settings import text_settings
from t5suite.tasks.registry import Lengths, load_task
from t5suite.tasks.task_card import TASK_CARD, make_task_card, read_task_card, write_task_card
from t5suite.training.checkpoints.manifests import damage

EVERY_TASK = [(benchmark, name) for benchmark, tasks in DATASET_VALS.items() for name in tasks]


def card_folder(*names, benchmark="mini", **settings):
    folder = tempfile.mkdtemp()
    tasks = [load_task(benchmark, name) for name in names]
    write_task_card(folder, make_task_card(tasks, Lengths(64, 16), {name: 5 for name in names}, "seq2seq", **settings))
    return folder


class TaskCardTest(parameterized.TestCase):
    @parameterized.parameters(*EVERY_TASK)
    def test_every_task_comes_back_as_it_was(self, benchmark, name):
        card = read_task_card(card_folder(name, benchmark=benchmark))
        task, was = card.task(), load_task(benchmark, name)
        self.assertEqual((task.benchmark, task.name, task.label_words), (benchmark, name, was.label_words))
        plain = {key: value for key, value in was.entry.items() if key != "labels"}
        self.assertEqual(json.loads(json.dumps(plain)), {k: v for k, v in task.entry.items() if k != "labels"})

    def test_lengths_and_settings_come_back(self):
        card = read_task_card(card_folder("sentiment", answer_separator="\nanswer: "))
        self.assertEqual(
            (card.lengths, card.max_answer_tokens, card.family), (Lengths(64, 16), {"sentiment": 5}, "seq2seq")
        )
        self.assertEqual(card.settings, {"answer_separator": "\nanswer: "})

    def test_of_several_tasks_one_must_be_named(self):
        card = read_task_card(card_folder("sentiment", "similarity"))
        with self.assertRaisesRegex(ConfigError, "sentiment, similarity"):
            card.task()
        with self.assertRaisesRegex(ConfigError, "did you mean similarity"):
            card.task("similaritie")
        self.assertEqual(card.task("similarity").name, "similarity")

    def test_a_folder_without_a_card_has_none(self):
        self.assertIsNone(read_task_card(tempfile.mkdtemp()))
        self.assertIsNone(read_task_card("google/t5-v1_1-small"))

    @parameterized.parameters(
        "{",
        "[]",
        '{"format": 2}',
        '{"format": 1, "benchmark": "b", "tasks": {"t": {}}}',
        '{"format": 1, "benchmark": "b", "tasks": {}, "max_source_length": 0, "max_target_length": 1, '
        '"max_answer_tokens": {}, "family": null}',
    )
    def test_damage_is_told_with_the_file(self, content):
        folder = tempfile.mkdtemp()
        (Path(folder) / TASK_CARD).write_text(content)
        with self.assertRaisesRegex(ConfigError, f"{folder}/task.json is no task card"):
            read_task_card(folder)


class TextSettingsTest(parameterized.TestCase):
    def test_stored_values_hold_by_default(self):
        text = text_settings(read_task_card(card_folder("sentiment")))
        self.assertEqual((text.task.name, text.lengths, text.max_new_tokens), ("sentiment", Lengths(64, 16), 5))

    @parameterized.parameters(
        ({"max_source_length": 32}, "--max_source_length 32 differs from 64"),
        ({"model_family": "causal"}, "--model_family causal differs from seq2seq"),
        ({"answer_separator": "="}, "--answer_separator = differs from :"),
        (
            {"benchmark": "mini", "dataset_name": "similarity"},
            "mini --dataset_name similarity differs from mini/sentiment",
        ),
    )
    def test_a_flag_that_differs_warns_and_holds(self, flags, message):
        card = read_task_card(card_folder("sentiment", answer_separator=":"))
        with self.assertLogs("t5suite.inference.settings", "WARNING") as logs:
            text = text_settings(card, **flags)
        self.assertIn(message, logs.output[0])
        found = {"max_source_length": text.lengths.source, "model_family": text.family}
        found |= {"answer_separator": text.separator, "benchmark": "mini", "dataset_name": text.task.name}
        self.assertEqual({name: found[name] for name in flags}, flags)

    def test_a_flag_that_agrees_says_nothing(self):
        with self.assertNoLogs("t5suite.inference.settings", "WARNING"):
            flags = {"max_source_length": 64, "model_family": "auto", "benchmark": "mini", "dataset_name": "sentiment"}
            text_settings(read_task_card(card_folder("sentiment")), **flags)

    def test_without_a_card_the_task_is_named_whole(self):
        with self.assertRaisesRegex(ConfigError, "--benchmark"):
            text_settings(None, dataset_name="rte")
        with self.assertRaisesRegex(ConfigError, "--dataset_name"):
            text_settings(None, benchmark="glue")
        self.assertEqual(text_settings(None, benchmark="glue", dataset_name="rte").task.name, "rte")
        self.assertIsNone(text_settings(None).task)


class SavedModelsTest(parameterized.TestCase):
    def test_the_run_and_every_checkpoint_have_a_card_that_the_manifest_covers(self):
        folder = Path(tempfile.mkdtemp()) / "run"
        flags = "--benchmark mini --dataset_name sentiment,entailment --max_train_samples 16 --max_eval_samples 4"
        flags += " --config_overrides d_model=16,d_kv=8,d_ff=16,num_layers=1,num_heads=2 --max_source_length 48"
        flags += f" --max_steps 2 --per_device_train_batch_size 8 --use_cpu --disable_tqdm True --output_dir {folder}"
        fine_tune_t5.main(flags.split())
        (checkpoint,) = folder.glob("checkpoint-*")
        for place in (folder, checkpoint):
            card = read_task_card(place)
            self.assertEqual(list(card.tasks), ["sentiment", "entailment"])
            self.assertEqual((card.lengths.source, card.family), (48, "seq2seq"))
            self.assertEqual(card.max_answer_tokens["sentiment"], 2)
        self.assertIsNone(damage(checkpoint))
        (checkpoint / TASK_CARD).write_text("{}")
        self.assertIn(TASK_CARD, damage(checkpoint))


if __name__ == "__main__":
    absltest.main()
