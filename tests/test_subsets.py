"""Parts of a split: which rows a run trains on, and which it keeps to select checkpoints on."""

import collections
import itertools
import json
import re

from absl.testing import parameterized
from recorded_batches import fine_tuning_batches
from support import folder

from t5suite import FineTuner
from t5suite.testing import TINY_T5, exits_with, tiny_tokenizer, write_rows

LABELS = ("bad", "good", "fair")
QUICK = {"config_overrides": TINY_T5, "from_scratch": True, "use_cpu": True, "quiet": True, "num_train_epochs": 1}


def rows(count=80) -> list[dict]:
    """Rows whose text is their number, in letters that the bundled tokenizer keeps."""
    return [{"text": spelt(number), "label": number % 3} for number in range(count)]


def spelt(number: int) -> str:
    return " ".join("abcdefghik"[int(digit)] for digit in f"{number:03}")


def flags_of(training_rows, validation_rows=None, **flags) -> dict:
    """The flags of a run on these rows, of a task of three classes."""
    where = folder()
    entry = {
        "prefix": "text: ", "text_column_name": "text", "label_column_name": "label", "labels": list(LABELS),
        "metric_names": ["accuracy"], "metric_to_optimize": "accuracy",
    }  # fmt: skip
    (where / "tasks.yaml").write_text(json.dumps({"own": {"parts": entry}}))
    files = {
        "train_file": str(write_rows(where / "train.jsonl", training_rows)),
        "validation_file": str(write_rows(where / "validation.jsonl", validation_rows or rows(3))),
    }
    sizes = {"per_device_train_batch_size": 50, "per_device_eval_batch_size": 50, "eval_strategy": "no"}
    task = {"task_file": str(where / "tasks.yaml"), "benchmark": "own", "dataset_name": "parts"}
    return {**QUICK, **sizes, **task, **files, "output_dir": str(where / "run"), **flags}


def numbers_of(batches) -> list[int]:
    """The rows of these batches, in ascending order."""
    ids = [row for batch in batches for row in batch["input_ids"].tolist()]
    texts = tiny_tokenizer().batch_decode(ids, skip_special_tokens=True)
    letters = ["".join(re.findall(r"\b[a-k]\b", text))[-3:] for text in texts]
    return sorted(int("".join(str("abcdefghik".index(letter)) for letter in word)) for word in letters)


def trained_on(count=80, **flags) -> list[int]:
    """The numbers of the rows that a run of one epoch trains on."""
    return numbers_of(fine_tuning_batches(**flags_of(rows(count), **flags)))


class LimitsTest(parameterized.TestCase):
    @parameterized.parameters(
        (10, {}, 10),
        (10, {"max_train_samples": 3}, 3),
        (10, {"max_train_samples": 99}, 10),
        (10, {"train_fraction": 0.3}, 3),
        (10, {"train_fraction": 0.001}, 1),
        (10, {"max_train_samples": 2, "train_fraction": 0.5}, 2),
        (10, {"max_train_samples": 8, "train_fraction": 0.5}, 5),
        (1000, {"train_fraction": 0.25}, 250),
    )
    def test_as_many_rows_are_used_as_asked_for(self, count, flags, num_rows):
        numbers = trained_on(count, **flags)
        self.assertLen(numbers, num_rows)
        self.assertLen(set(numbers), num_rows)
        self.assertContainsSubset(numbers, range(count))

    def test_the_rows_are_a_function_of_the_seed(self):
        first, again, another = (trained_on(max_train_samples=20, seed=seed) for seed in (1, 1, 2))
        self.assertEqual(first, again)
        self.assertNotEqual(first, another)

    @parameterized.parameters(
        ({"train_fraction": 0}, "--train_fraction 0"),
        ({"train_fraction": 1.5}, "--train_fraction 1.5"),
        ({"train_fraction": -0.1}, "--train_fraction"),
        ({"max_train_samples": 0}, "--max_train_samples 0"),
        ({"max_train_samples": -1}, "--max_train_samples"),
        ({"max_eval_samples": 0}, "--max_eval_samples 0"),
        ({"few_shot": 0}, "--few_shot 0"),
    )
    def test_what_keeps_no_row_is_refused_by_flag(self, flags, message):
        with exits_with(78, message):
            trained_on(**flags)


class FewShotTest(parameterized.TestCase):
    @parameterized.parameters((1, 0), (2, 1), (5, 2))
    def test_so_many_rows_of_each_class_are_used(self, shots, seed):
        numbers = trained_on(60, few_shot=shots, seed=seed)
        counts = collections.Counter(LABELS[number % 3] for number in numbers)
        self.assertEqual(counts, dict.fromkeys(LABELS, shots))
        self.assertEqual(trained_on(60, few_shot=shots, seed=seed), numbers)
        self.assertNotEqual(trained_on(60, few_shot=shots, seed=seed + 1), numbers)
        self.assertContainsSubset(trained_on(60, few_shot=1, seed=seed), numbers)

    def test_a_class_of_fewer_rows_is_named(self):
        with exits_with(65, "--few_shot 2: class .* has only 1 rows"):
            trained_on(4, few_shot=2)


class SelectionTest(parameterized.TestCase):
    @parameterized.parameters(
        ("train[10%]", 72), ("train[5%]", 76), ("train[0.5%]", 79), ("train[12.5%]", 70), ("train[97.5%]", 2),
        ("validation", 80),
    )  # fmt: skip
    def test_a_share_of_the_training_rows_is_held_out(self, selection_split, num_rows):
        self.assertLen(trained_on(selection_split=selection_split), num_rows)

    def test_parts_of_parts_stay_parts(self):
        """Of 80 rows a tenth is kept aside, a half of the others is drawn, and of those 3 of each class."""
        aside = trained_on(selection_split="train[10%]")
        half = trained_on(selection_split="train[10%]", train_fraction=0.5)
        shots = trained_on(selection_split="train[10%]", train_fraction=0.5, few_shot=3)
        self.assertEqual([len(part) for part in (aside, half, shots)], [72, 36, 9])
        self.assertEqual(collections.Counter(number % 3 for number in shots), {0: 3, 1: 3, 2: 3})
        self.assertTrue(set(shots) < set(half) < set(aside))

    def test_selection_rows_and_training_rows_have_none_in_common_and_miss_none(self):
        """Evaluations during training read the rows that were kept aside."""
        scored = {"eval_strategy": "epoch", "transform_evaluation": True}
        flags = flags_of(rows(), [{"text": spelt(900), "label": 0}], selection_split="train[10%]", **scored)
        numbers = numbers_of(fine_tuning_batches(**flags))
        self.assertContainsSubset(range(80), numbers)
        self.assertTrue(all(number in (*range(80), 900) for number in numbers))
        training = set(trained_on(selection_split="train[10%]"))
        counts = collections.Counter(number for number in numbers if number < 900)
        self.assertEqual({number for number, count in counts.items() if number in training and count != 1}, set())

    @parameterized.parameters(
        "", "train", "test", "train[5]", "train[:5%]", "train[-5%]", "train[0%]", "train[100%]", "train[250%]",
        "train[5%] ", "validation[5%]", "train[five%]", "Validation", "train[5%]x", "train[.5%]",
    )  # fmt: skip
    def test_another_selection_split_is_refused_with_its_text(self, text):
        with exits_with(78, rf"--selection_split {re.escape(repr(text))}.*train\[5%\]"):
            trained_on(4, selection_split=text)

    @parameterized.parameters((1, "50%"), (2, "90%"))
    def test_too_few_rows_to_split_are_refused(self, count, share):
        with exits_with(65, "--selection_split"):
            trained_on(count, selection_split=f"train[{share}]")

    def test_a_part_of_a_published_split_is_named_as_one(self):
        columns = {"premise": "It rains.", "hypothesis": "It is wet."}
        file = write_rows(folder() / "train.jsonl", [{**columns, "label": n % 3, "idx": n} for n in range(6)])
        directory = folder() / "run"
        flags = {"train_file": str(file), "validation_file": str(file), "max_steps": 1, "output_dir": str(directory)}
        FineTuner(None, "glue/mnli", **QUICK, **flags).train()
        manifest = json.loads((directory / "manifest.json").read_text())
        described = [part for part in parts_of(manifest["data"]) if part.get("official")]
        self.assertEqual(
            [(part["official"], part["used"], part["subset"]) for part in described][:1], [(392702, 6, True)]
        )


def parts_of(value) -> list[dict]:
    """Every dict within a JSON value."""
    if isinstance(value, list):
        return list(itertools.chain.from_iterable(map(parts_of, value)))
    if isinstance(value, dict):
        return [value, *itertools.chain.from_iterable(map(parts_of, value.values()))]
    return []
