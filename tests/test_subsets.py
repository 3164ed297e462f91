"""Parts of a split: which rows a run trains on, and which it keeps to select checkpoints on."""

import collections
import functools
import itertools
import json
import re

import pytest
from absl.testing import parameterized
from plug_in_modules import own_running_text, second_label_is_learned
from recorded_batches import fine_tuning_batches, recording_evaluations
from support import folder

from t5suite import FineTuner
from t5suite.testing import TINY_T5, exits_with, load_own_rows, tiny_tokenizer, write_rows

LABELS = ("bad", "good", "fair")
QUICK = {"config_overrides": TINY_T5, "from_scratch": True, "use_cpu": True, "quiet": True, "num_train_epochs": 1}


def rows(count=80) -> list[dict]:
    """Rows whose text is their number, in letters that the bundled tokenizer keeps."""
    return [{"text": spelt(number), "label": number % 3} for number in range(count)]


def spelt(number: int) -> str:
    return " ".join("abcdefghik"[int(digit)] for digit in f"{number:03}")


def flags_of(training_rows, validation_rows=None, formatter="columns", **flags) -> dict:
    """The flags of a run on these rows, of a task of three classes."""
    where = folder()
    entry = {
        "prefix": "text: ", "text_column_name": "text", "label_column_name": "label", "labels": list(LABELS),
        "metric_names": ["accuracy"], "metric_to_optimize": "accuracy", "formatter": formatter,
    }  # fmt: skip
    (where / "tasks.yaml").write_text(json.dumps({"own": {"parts": entry}}))
    files = {
        "train_file": str(write_rows(where / "train.jsonl", training_rows)),
        "validation_file": str(write_rows(where / "validation.jsonl", validation_rows or rows(3))),
    }
    sizes = {"per_device_train_batch_size": 50, "per_device_eval_batch_size": 50}
    sizes |= {"eval_strategy": "no", "save_strategy": "no"}
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


@functools.cache
def not_kept_aside() -> list[int]:
    """The rows of a run that keeps a tenth of 80 aside."""
    return trained_on(selection_split="train[10%]")


def both_parts(training_rows, other_rows, **flags) -> tuple[list[int], list[int]]:
    """The numbers of the rows that a run trains on, and of those that it selects checkpoints on.

    Args:
      other_rows: validation rows, whose number is 900.
    """
    training = numbers_of(fine_tuning_batches(**flags_of(training_rows, other_rows, **flags)))
    with recording_evaluations():
        flags = flags_of(training_rows, other_rows, **flags) | {"eval_strategy": "epoch"}
        seen = collections.Counter(numbers_of(fine_tuning_batches(**flags)))
    selection = seen - collections.Counter([*training, *[900] * seen[900]])
    return training, sorted(selection.elements())


class LimitsTest(parameterized.TestCase):
    @parameterized.parameters(
        (10, {}, 10),
        (10, {"max_train_samples": 3}, 3),
        (10, {"max_train_samples": 99}, 10),
        (1000, {"max_train_samples": 250}, 250),
    )
    @pytest.mark.quick_cases(1)
    def test_as_many_rows_are_used_as_asked_for(self, count, flags, num_rows):
        numbers = trained_on(count, **flags)
        self.assertLen(numbers, num_rows)
        self.assertLen(set(numbers), num_rows)
        self.assertContainsSubset(numbers, range(count))

    @pytest.mark.slow
    def test_the_rows_are_a_function_of_the_seed(self):
        first, again, another = (trained_on(max_train_samples=20, seed=seed) for seed in (1, 1, 2))
        self.assertEqual(first, again)
        self.assertNotEqual(first, another)

    @parameterized.parameters(
        ({"max_train_samples": 0}, "--max_train_samples 0"),
        ({"max_train_samples": -1}, "--max_train_samples"),
        ({"max_eval_samples": 0}, "--max_eval_samples 0"),
    )
    def test_what_keeps_no_row_is_refused_by_flag(self, flags, message):
        with exits_with(78, message):
            trained_on(**flags)


class SelectionTest(parameterized.TestCase):
    @parameterized.parameters(
        ("train[5%]", 76), ("train[0.5%]", 79), ("train[12.5%]", 70), ("train[97.5%]", 2),
        ("validation", 80),
    )  # fmt: skip
    @pytest.mark.quick_cases(1)
    def test_a_share_of_the_training_rows_is_held_out(self, selection_split, num_rows):
        self.assertLen(trained_on(selection_split=selection_split), num_rows)

    @pytest.mark.slow
    def test_parts_of_parts_stay_parts(self):
        """Of 80 rows a tenth is kept aside, and of the others some are drawn: fewer are some of more."""
        all_of_them = not_kept_aside()
        half = trained_on(selection_split="train[10%]", max_train_samples=36)
        few = trained_on(selection_split="train[10%]", max_train_samples=9)
        self.assertEqual([len(part) for part in (all_of_them, half, few)], [72, 36, 9])
        self.assertTrue(set(few) < set(half) < set(all_of_them))

    def test_selection_rows_and_training_rows_have_none_in_common_and_miss_none(self):
        """Evaluations during training read the rows that were kept aside."""
        scored = {"eval_strategy": "epoch", "selection_split": "train[10%]"}
        flags = flags_of(rows(), [{"text": spelt(900), "label": 0}], **scored)
        with recording_evaluations():
            numbers = numbers_of(fine_tuning_batches(**flags))
        self.assertContainsSubset(range(80), numbers)
        self.assertTrue(all(number in (*range(80), 900) for number in numbers))
        training = set(not_kept_aside())
        counts = collections.Counter(number for number in numbers if number < 900)
        self.assertEqual({number for number, count in counts.items() if number in training and count != 1}, set())

    def test_rows_with_equal_inputs_are_on_one_side(self):
        repeated = [rows()[number % 30] for number in range(80)]
        numbers = numbers_of(fine_tuning_batches(**flags_of(repeated, selection_split="train[10%]")))
        self.assertBetween(len(numbers), 72, 79)
        counts = collections.Counter(number % 30 for number in range(80))
        self.assertEqual(collections.Counter(numbers), {number: counts[number] for number in set(numbers)})

    def test_rows_of_one_sentence_and_pronoun_are_on_one_side(self):
        """Two rows of WSC that name different referents have one input."""
        pairs = [
            {"text": f"{spelt(number)} it", "span1_text": "b" if is_right else "c", "span2_index": 3, "span2_text": "it",
             "label": is_right}
            for number in range(20) for is_right in (1, 0)
        ]  # fmt: skip
        task = {"task_file": None, "benchmark": "super_glue", "dataset_name": "wsc.fixed"}
        other_rows = [{**pairs[0], "text": f"{spelt(900)} it"}]
        training, selection = both_parts(pairs, other_rows, selection_split="train[25%]", **task)
        self.assertLen(selection, 10)
        self.assertEqual(set(selection) & set(training), set())

    @parameterized.parameters(0, 1, 2)
    @pytest.mark.quick_cases(1)
    def test_rows_without_a_training_example_are_held_out_like_others(self, seed):
        """A formatter may train on rows of one label only; checkpoints are selected on both."""
        flags = {"selection_split": "train[40%]", "formatter": second_label_is_learned.__name__, "seed": seed}
        labelled_rows = [{"text": spelt(number), "label": number % 2} for number in range(40)]
        _, selection = both_parts(labelled_rows, [{"text": spelt(900), "label": 1}], **flags)
        self.assertLen(selection, 16)
        self.assertEqual({number % 2 for number in selection}, {0, 1})

    @parameterized.parameters(
        "", "train", "test", "train[5]", "train[:5%]", "train[-5%]", "train[0%]", "train[100%]", "train[250%]",
        "train[5%] ", "validation[5%]", "train[five%]", "Validation", "train[5%]x", "train[.5%]",
    )  # fmt: skip
    def test_another_selection_split_is_refused_with_its_text(self, text):
        with exits_with(78, rf"--selection_split {re.escape(repr(text))}.*train\[5%\]"):
            trained_on(4, selection_split=text)

    @parameterized.parameters((1, "50%"), (2, "90%"))
    @pytest.mark.quick_cases(1)
    def test_too_few_rows_to_split_are_refused(self, count, share):
        with exits_with(65, "--selection_split"):
            trained_on(count, selection_split=f"train[{share}]")

    def test_a_part_of_a_published_split_is_named_as_one(self):
        columns = {"sentence1": "It rains.", "sentence2": "It is wet."}
        file = write_rows(folder() / "train.jsonl", [{**columns, "label": n % 2, "idx": n} for n in range(6)])
        directory = folder() / "run"
        flags = {"train_file": str(file), "validation_file": str(file), "max_steps": 1, "output_dir": str(directory)}
        FineTuner(None, "glue/rte", **QUICK, **flags).train()
        manifest = json.loads((directory / "manifest.json").read_text())
        described = {part["official"]: part for part in parts_of(manifest["data"]) if part.get("official")}
        self.assertContainsSubset([2490, 277], described)
        for part in described.values():
            self.assertEqual((part["rows"], part["used"], part["subset"]), (6, 6, True))


class Counted:
    """Rows of one instruction with numbers as their input, for `--data_class`."""

    entry = {"formatter": "instruction", "text_column_name": "instruction"}

    def __init__(self, path, config):
        self.has_validation = config["validation"]

    def rows(self, split):
        if split == "train":
            return counted_rows("instruction", "input")
        return counted_rows("instruction", "input")[:2] if split == "validation" and self.has_validation else None


def counted_rows(*columns: str) -> list[dict]:
    """40 rows of 20 inputs, which differ in the last of these columns alone."""
    texts = dict.fromkeys(columns[:-1], "Count it.")
    return [{**texts, columns[-1]: spelt(number // 2), "output": f"{number}"} for number in range(40)]


def pronoun_rows() -> list[dict]:
    """40 rows of one text, in which one of 20 words is the pronoun that is meant."""
    row = {"text": " ".join(["he"] * 21), "span1_text": "Tom", "span2_text": "he", "label": 1}
    return [{**row, "span2_index": 1 + number // 2} for number in range(40)]


def flags_of_form(form: str, has_validation: bool) -> dict:
    """The flags of a run on rows whose inputs differ where this form alone looks."""
    if form == "class":
        config = json.dumps({"validation": has_validation})
        return {"data_class": ["test_subsets:Counted"], "data_config": [config]}
    if form == "pronoun":
        flags = {"benchmark": "super_glue", "dataset_name": "wsc"}
        rows_of_form = pronoun_rows()
    else:
        columns = {"alpaca": ("instruction", "input"), "jsonl": ("first", "second")}[form]
        flags = {"data_format": form}
        if form == "jsonl":
            flags |= {"text_column": ",".join(columns), "target_column": "output"}
        rows_of_form = counted_rows(*columns)
    where = folder()
    flags["train_file"] = str(write_rows(where / "train.jsonl", rows_of_form))
    if has_validation:
        flags["validation_file"] = str(write_rows(where / "validation.jsonl", rows_of_form[:2]))
    return flags


class SidesTest(parameterized.TestCase):
    """A share of the training rows is held out, for validation or to select checkpoints."""

    @parameterized.parameters(
        ("alpaca", "validation_split"), ("jsonl", "validation_split"), ("class", "validation_split"),
        ("alpaca", "selection_split"), ("jsonl", "selection_split"), ("class", "selection_split"),
        ("pronoun", "selection_split"),
    )  # fmt: skip
    def test_inputs_are_equal_if_all_that_is_read_of_them_is_equal(self, form, flag):
        share = {"validation_split": 0.25, "selection_split": "train[25%]"}[flag]
        flags = flags_of_form(form, has_validation=flag == "selection_split")
        sizes = {"per_device_train_batch_size": 50, "save_strategy": "no", "output_dir": str(folder() / "run")}
        sizes |= {"eval_strategy": "epoch", "max_target_length": 8, flag: share}
        (batch,) = fine_tuning_batches(**QUICK, **sizes, **flags)
        texts = tiny_tokenizer().batch_decode(batch["input_ids"])
        self.assertLen(texts, 30)
        self.assertEqual(set(collections.Counter(texts).values()), {2})

    @parameterized.parameters("super_ni", "record")
    def test_rows_that_differ_in_number_and_answers_alone_are_on_one_side(self, name):
        """An instruction's form is drawn by the row's number, and each answer of a query is an example."""
        flags = {"super_ni": instruction_flags, "record": query_flags}[name]()
        flags |= {"task_file": None, "selection_split": "train[25%]", "per_device_train_batch_size": 80}
        training = collections.Counter(numbers_of(fine_tuning_batches(**flags)))
        self.assertLen(training, 15)
        self.assertEqual(set(training.values()), {4})

    def test_rows_with_an_empty_text_are_on_one_side_whatever_their_answers(self):
        texts = ["", "", "", "", *map(spelt, range(16))]
        data = [{"text": text, "label": "good" if number % 2 else "bad"} for number, text in enumerate(texts)]
        for seed in range(12):
            flags = {"text_column": "text", "target_column": "label", "validation_split": 0.25, "seed": seed}
            sides = [load_own_rows(data, split, **flags).rows for split in ("train", "validation")]
            counts = [[row["text"] for row in side].count("") for side in sides]
            self.assertCountEqual(counts, [0, 4], seed)

    def test_a_missing_input_is_an_empty_one(self):
        """Each instruction stands there with an empty input, and without any."""
        pairs = []
        for number in range(20):
            row = {"instruction": spelt(number), "output": "a"}
            pairs += [row, {**row, "input": ""}]
        file = str(write_rows(folder() / "rows.jsonl", pairs))
        flags = {"data_format": "alpaca", "train_file": file, "validation_split": 0.25}
        for split, count in (("train", 15), ("validation", 5)):
            instructions = collections.Counter(row["instruction"] for row in load_own_rows(None, split, **flags).rows)
            self.assertLen(instructions, count)
            self.assertEqual(set(instructions.values()), {2})

    def test_running_text_of_a_formatter_of_ones_own_is_held_out(self):
        flags = {"selection_split": "train[25%]", "formatter": own_running_text.__name__}
        (batch,) = fine_tuning_batches(**flags_of(rows(40), **flags))
        self.assertLen(batch["labels"], 30)


def instruction_flags() -> dict:
    """The flags of a run on four rows of each of 20 instructions, whose form is drawn."""
    row = {"task": "task1_copy", "category": "Copying", "definition": "Write it", "negative_examples": []}
    row["positive_examples"] = [{"input": "so", "output": "so", "explanation": "It must"}]
    training_rows = [
        {**row, "idx": number, "input": spelt(number % 20), "output": [f"so {number}"]} for number in range(80)
    ]
    flags = flags_of(training_rows, benchmark="super_ni", dataset_name="english", tk_instruct=True)
    del flags["validation_file"]
    return {**flags, "test_file": flags["train_file"]}


def query_flags() -> dict:
    """The flags of a run on 20 queries, each with one answer and with three."""
    row = {"passage": "Tom met Tim", "entities": ["Tom", "Tim", "Tam"]}
    answers = (["Tom"], ["Tom", "Tim", "Tam"])
    training_rows = [
        {**row, "query": spelt(number % 20), "answers": answers[number // 20], "idx": number} for number in range(40)
    ]
    return flags_of(training_rows, training_rows[:1], benchmark="super_glue", dataset_name="record")


def parts_of(value) -> list[dict]:
    """Every dict within a JSON value."""
    if isinstance(value, list):
        return list(itertools.chain.from_iterable(map(parts_of, value)))
    if isinstance(value, dict):
        return [value, *itertools.chain.from_iterable(map(parts_of, value.values()))]
    return []
