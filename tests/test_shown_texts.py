"""What people are shown of a row is what the model read."""

import functools
import io
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml
from absl.testing import parameterized
from odd_tokenizers import byte_tokenizer, word_tokenizer
from support import folder

import fine_tune_t5
from t5suite import load_task
from t5suite.testing import (
    TINY_T5,
    cli_output,
    encode_rows,
    make_task,
    read_rows,
    tiny_rows,
    tiny_run,
    tiny_tokenizer,
    tiny_trainer,
    write_rows,
)

CUT_MARK = re.compile(r" \[cut: (\d+) more tokens\] ")
LABELS = {"labels": ["no", "yes"], "metric_names": ["accuracy"], "metric_to_optimize": "accuracy"}


def without_mark(text: str) -> str:
    return CUT_MARK.sub("", text)


def dry_run(rows, entry: dict, **flags) -> list[str]:
    """The inputs that `--dry_run` shows of the training rows and the validation rows, which are the same."""
    return dry_run_with_figures(rows, entry, **flags)[0]


def dry_run_with_figures(rows, entry: dict, **flags) -> tuple[list[str], dict]:
    """The inputs that `--dry_run` shows, and the figures that it returns."""
    place = folder()
    (place / "tasks.yaml").write_text(yaml.safe_dump({"own": {"t": entry}}))
    path = write_rows(place / "rows.jsonl", rows)
    settings = {
        "benchmark": "own", "dataset_name": "t", "task_file": place / "tasks.yaml", "train_file": path,
        "validation_file": path, "output_dir": place / "run", "use_cpu": True,
    }  # fmt: skip
    printed = io.StringIO()
    with redirect_stdout(printed):
        words = ["--dry_run", *(f"--{name}={value}" for name, value in {**settings, **flags}.items())]
        figures = fine_tune_t5.main(words)
    return re.findall(r"^  inputs:  (.*?)\n  targets: ", printed.getvalue(), re.S | re.M), figures


# A demonstration is as long as eight words of a row's own.
DEFINITION = "Definition: a b.\n\n"
DEMONSTRATIONS = [f" Positive Example {number} -\nInput: a b c d e f g h.\n Output: it is so.\n\n" for number in (1, 2)]
SEQ2SEQ = {"config_overrides": TINY_T5, "from_scratch": True}


def instance(words: str) -> dict:
    demonstration = {"input": "a b c d e f g h", "output": "it is so", "explanation": None}
    return {
        "task": "task1", "definition": "a b.", "positive_examples": [demonstration] * 2, "negative_examples": [],
        "input": words, "output": ["yes"], "idx": 0, "id": "task1-1", "category": "x",
    }  # fmt: skip


def instructed(words: str, count: int) -> str:
    """What a model reads of an instance with so many demonstrations."""
    question = f"Now complete the following example -\nInput: {words}.\nOutput: "
    return DEFINITION + "".join(DEMONSTRATIONS[:count]) + question


def num_tokens(text: str) -> int:
    return len(tiny_tokenizer()(text)["input_ids"])


@functools.cache
def instances_that_fit() -> tuple[int, list[str]]:
    """A length in tokens, and the words of instances that fill it exactly with 2, 1 and 0 demonstrations."""
    longest = num_tokens(instructed("a", 2))
    inputs = []
    for count in (2, 1, 0):
        words = "a"
        while num_tokens(instructed(words, count)) < longest:
            words += " a"
        inputs.append(words)
    return longest, inputs


class DemonstrationsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.longest, self.inputs = instances_that_fit()
        self.rows = [instance(words) for words in self.inputs]
        self.texts = [instructed(words, count) for words, count in zip(self.inputs, (2, 1, 0), strict=True)]
        self.assertEqual([num_tokens(text) for text in self.texts], [self.longest] * 3)

    @pytest.mark.slow
    def test_a_dry_run_shows_those_that_were_read(self):
        task = load_task("super_ni", "english")
        ids = [example["input_ids"] for example in encode_rows(self.rows, task, "test", source_length=self.longest)]
        self.assertEqual(ids, tiny_tokenizer()(self.texts)["input_ids"])
        entry = {**task.entry, "splits": {"train": "train", "validation": "validation"}}
        shown = dry_run(self.rows, entry, max_source_length=self.longest, **SEQ2SEQ)
        self.assertEqual([text.split() for text in shown], [text.split() for text in self.texts])

    @pytest.mark.slow
    def test_samples_and_card_show_those_that_were_read(self):
        path = write_rows(folder() / "rows.jsonl", self.rows[1:])
        files = {"train_file": str(path), "test_file": str(path)}
        task = {"benchmark": "super_ni", "dataset_name": "english", "max_source_length": self.longest}
        run = tiny_run(**task, **files, max_target_length=8, max_steps=1, share_rows=True)
        lines = read_rows(run.directory / "samples.jsonl")
        self.assertEqual([line["input"] for line in lines if "final" in line], self.texts[1:])
        self.assertIn(repr(self.texts[1][:300]), (run.directory / "README.md").read_text())


class UnknownPiecesTest(parameterized.TestCase):
    ROWS = ("the plot", "a \u20ac", "\u65e5\u672c and \u20ac", "a film")

    def dry_run(self, *flags: str, texts=ROWS) -> str:
        place = folder()
        lines = [f"{text}\tgood\n" for text in texts]
        (place / "rows.tsv").write_text("".join(["text\tmood\n", *lines]), encoding="utf-8")
        files = [f"--{split}_file={place / 'rows.tsv'}" for split in ("train", "validation")]
        columns = ["--text_column=text", "--target_column=mood", "--use_cpu", f"--output_dir={place / 'run'}"]
        printed = io.StringIO()
        with redirect_stdout(printed):
            fine_tune_t5.main(["--dry_run", f"--config_overrides={TINY_T5}", *files, *columns, *flags])
        return printed.getvalue()

    @parameterized.parameters(
        (["--max_steps=1000"], "1,000 epochs"),
        (["--max_steps=1"], "1.0 epochs"),
        (["--num_train_epochs=3"], "3.0 epochs"),
    )
    @pytest.mark.quick_cases(1)
    def test_many_passes_over_few_rows_are_seen_before_they_are_made(self, flags, epochs):
        """An update of at most 32 examples is one pass over four rows."""
        text = self.dry_run(*flags, "--per_device_train_batch_size=32")
        self.assertIn(f"4 examples an epoch: {epochs}\n", text)

    def test_an_update_of_more_examples_than_rows_is_one_pass_in_training_as_in_the_dry_run(self):
        trainer = tiny_trainer(tiny_rows("entailment", count=4), per_device_train_batch_size=32, max_steps=3)
        trainer.train()
        self.assertEqual(trainer.state.epoch, 3.0)

    def test_a_mixtures_epoch_has_its_tasks_examples_up_to_the_limit(self):
        """25 + 25 draws in updates of 32: two updates an epoch."""
        flags = "--dataset_name sentiment,entailment --max_train_samples 100 --mixing_limit 25 --num_train_epochs 3"
        words = f"--dry_run {flags} --per_device_train_batch_size 32 --max_eval_samples 4 --use_cpu"
        printed = io.StringIO()
        with redirect_stdout(printed):
            fine_tune_t5.main([*words.split(), f"--config_overrides={TINY_T5}", f"--output_dir={folder() / 'run'}"])
        self.assertRegex(printed.getvalue(), r"\n6 steps of 32 examples .*, 50 examples an epoch: 3.0 epochs\n")

    def test_pieces_that_the_tokenizer_does_not_know_are_named_with_their_rows(self):
        unknown = {tiny_tokenizer().unk_token_id}
        for text in ("\u20ac", "\u65e5\u672c"):
            self.assertEqual(set(tiny_tokenizer()(text, add_special_tokens=False)["input_ids"]) & unknown, unknown)
        lines = [line for line in self.dry_run().splitlines() if line.startswith("unknown to the tokenizer")]
        named = (
            "'\u20ac' in 2 (first rows.tsv:3), '\u65e5\u672c' in 1 (rows.tsv:4); 50.00% of the texts have such a piece"
        )
        self.assertEqual(
            lines, [f"unknown to the tokenizer in rows {split} inputs: {named}" for split in ("train", "validation")]
        )

    def test_all_pieces_that_the_tokenizer_does_not_know_are_named(self):
        """Who adds them to the vocabulary needs the whole list."""
        pieces = "\u20ac \u65e5 \u672c \u597d \u8bc4 \u5dee \u4e2d \u6587 \u5b57"
        line = next(line for line in self.dry_run(texts=[pieces]).splitlines() if line.startswith("unknown to"))
        self.assertEqual(re.findall("'(.)'", line), pieces.split())

    def test_a_settings_value_is_shown_as_it_is(self):
        """Brackets are rich's markup, and a word between colons is an emoji of its own."""
        values = {"freeze_regex": r".*\.[qv]\.weight$", "run_name": "[/INST] :x:"}
        text = self.dry_run(*[f"--{name}={value}" for name, value in values.items()])
        for name, value in values.items():
            self.assertRegex(text, rf"--{name} +{re.escape(value)}")

    def test_no_line_numbers_are_shown_if_rows_are_held_out(self):
        """They are not the file's first rows, so that a line's number would be another row's."""
        place = folder()
        lines = [f"the plot \u20ac {number}\tgood\n" for number in range(10)]
        (place / "rows.tsv").write_text("".join(["text\tmood\n", *lines]), encoding="utf-8")
        (place / "held_out.tsv").write_text("text\tmood\na film\tgood\n")
        files = [f"--train_file={place / 'rows.tsv'}", f"--validation_file={place / 'held_out.tsv'}"]
        files.append("--selection_split=train[50%]")
        columns = ["--text_column=text", "--target_column=mood", "--use_cpu", f"--output_dir={place / 'run'}"]
        printed = io.StringIO()
        with redirect_stdout(printed):
            fine_tune_t5.main(["--dry_run", f"--config_overrides={TINY_T5}", *files, *columns])
        [line] = [line for line in printed.getvalue().splitlines() if line.startswith("unknown to") and "train" in line]
        self.assertNotIn("rows.tsv:", line)


# Rows that are read whole, that are cut, and that are cut beyond what a sample shows of a text.
ROOM = 500
READ_WHOLE = "It rains."
CUT = "a b c d e f g h. " * 80
CUT_LATE = "the delivery undamaged excellent delightful. " * 100


@functools.cache
def run_with_long_rows():
    rows = [{"text": text, "label": "yes"} for text in (READ_WHOLE, CUT, CUT_LATE)]
    columns = {"text_column": "text", "target_column": "label", "labels": ["no", "yes"]}
    lengths = {"max_source_length": ROOM, "max_target_length": 4}
    return tiny_run(data={"train": rows, "validation": rows}, **columns, **lengths, max_steps=1)


class CutTest(parameterized.TestCase):
    def assert_cut(self, shown: str, text: str):
        """The mark counts what is not read, and stands where the model stops reading."""
        task = make_task(prefix="", labels=None, metric_names=[], metric_to_optimize=None)
        texts = (text, CUT_MARK.split(shown)[0])
        cut, before = ([{"text": part, "label": "yes"}] for part in texts)
        whole, read = (encode_rows(cut, task, source_length=length)[0]["input_ids"] for length in (9999, ROOM))
        self.assertEqual(without_mark(shown), text)
        self.assertEqual(CUT_MARK.findall(shown), [str(len(whole) - ROOM)])
        self.assertEqual(encode_rows(before, task, source_length=ROOM)[0]["input_ids"], read)

    @pytest.mark.slow
    def test_predictions_of_rows_in_memory_say_where_a_long_row_is_cut(self):
        (path,) = (run_with_long_rows().directory / "predictions").iterdir()
        whole, cut, cut_late = (line["inputs"] for line in read_rows(path))
        self.assertEqual(whole, READ_WHOLE)
        self.assert_cut(cut, CUT)
        self.assert_cut(cut_late, CUT_LATE)

    def test_samples_say_it_also_where_a_very_long_text_is_not_shown_whole(self):
        lines = read_rows(run_with_long_rows().directory / "samples.jsonl")
        whole, cut, cut_late = (line["input"] for line in lines if "final" in line)
        self.assertEqual(whole, READ_WHOLE)
        self.assert_cut(cut, CUT)
        count = num_tokens(CUT_LATE) - ROOM
        hidden = len(CUT_LATE) - 2000
        self.assertEqual(cut_late, f"{CUT_LATE[:2000]} ... ({hidden} more characters) [cut: {count} more tokens]")

    @pytest.mark.slow
    def test_a_row_is_the_same_one_wherever_it_is_cut(self):
        """Two runs with other lengths are compared row by row."""
        run = run_with_long_rows()
        other = Path(shutil.copytree(run.directory, folder() / "other"))
        (path,) = (other / "predictions").iterdir()
        lines = read_rows(path)
        self.assertLen([line for line in lines if CUT_MARK.search(line["inputs"])], 2)
        write_rows(path, [{**line, "inputs": without_mark(line["inputs"])} for line in lines])
        compared = cli_output("compare", run.directory, other, "--json")
        self.assertIn('"rows": 3', compared)


TEXT = {"prefix": "", "text_column_name": "a", "label_column_name": "label", **LABELS}
PAIR = {**TEXT, "prefix": ["a: ", "b: "], "text_column_name": ["a", "b"]}
TAGS = {
    **TEXT, "formatter": "token_labels", "label_column_name": "tags", "labels": ["O", "B"],
    "metric_names": ["token_accuracy"], "metric_to_optimize": "token_accuracy",
}  # fmt: skip
SENTINELS = {**TEXT, "input_format": "__input__ <extra_id_0>", "output_format": "<extra_id_0> __output__"}
BERT = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32"


class FamiliesTest(parameterized.TestCase):
    """What a dry run shows of a row, for each family of models."""

    ROW = {"a": "it rains . it is wet", "b": "it is", "label": 1, "tags": [0, 1, 0, 0, 0, 1]}

    def shown(self, entry: dict, length: int, **flags) -> str:
        """Of the training row and of the validation row."""
        of_training, of_validation = dry_run([self.ROW], entry, max_source_length=length, **flags)
        self.assertEqual(of_training, of_validation)
        return of_training

    @parameterized.parameters(
        (PAIR, 99, "it rains . it is wet [SEP] it is"),
        # [CLS] and two [SEP] are around five words.
        (PAIR, 8, "it rains . [cut: 3 more tokens]  it is wet [SEP] it is"),
        (TAGS, 99, "it rains . it is wet"),
        # [CLS] and [SEP] are around three words.
        (TAGS, 5, "it rains . [cut: 3 more tokens]  it is wet"),
    )
    def test_encoders(self, entry, length, expected):
        words = folder()
        word_tokenizer().save_pretrained(words)
        flags = {"config_name": "bert", "config_overrides": BERT, "tokenizer_name": words}
        self.assertEqual(self.shown(entry, length, **flags), expected)

    @parameterized.parameters((11, 0.0), (10, 100.0))
    def test_a_pair_for_an_encoder_is_cut_off_where_its_words_and_three_control_tokens_are_more(self, length, share):
        words = folder()
        word_tokenizer().save_pretrained(words)
        flags = {"config_name": "bert", "config_overrides": BERT, "tokenizer_name": words}
        _, figures = dry_run_with_figures([self.ROW], PAIR, max_source_length=length, **flags)
        self.assertEqual(figures["lengths"]["t train inputs"]["cut_off"], share)

    @parameterized.parameters(0, 3)
    @pytest.mark.quick_cases(1)
    def test_decoder_only_models_cut_before_the_separator(self, num_cut):
        data = folder()
        tokenizer = byte_tokenizer()
        tokenizer.save_pretrained(data)
        flags = {"config_name": "gpt2", "config_overrides": "n_embd=32,n_layer=1,n_head=2", "tokenizer_name": data}
        separator, text = (len(tokenizer(part)["input_ids"]) for part in ("\nanswer:", self.ROW["a"]))
        flags["max_source_length"] = separator + text - num_cut
        texts, figures = dry_run_with_figures([self.ROW], TEXT, **flags)
        for shown in texts:
            self.assertEqual(without_mark(shown), self.ROW["a"])
            self.assertEqual(CUT_MARK.findall(shown), ["3"] * bool(num_cut))
        cut_shares = [figures["lengths"][f"t {split} inputs"]["cut_off"] for split in ("train", "validation")]
        self.assertEqual(cut_shares, [100.0 * bool(num_cut)] * 2)

    def test_sentinels_at_the_end_are_read_in_spite_of_the_cut(self):
        shown = self.shown(SENTINELS, 5, **SEQ2SEQ)
        count = num_tokens(f"{self.ROW['a']} <extra_id_0>") - 5
        self.assertEqual(CUT_MARK.findall(shown), [str(count)])
        self.assertEqual(without_mark(shown), f"{self.ROW['a']} <extra_id_0>")
        (example,) = encode_rows([self.ROW], make_task(**SENTINELS), source_length=5)
        sentinel = tiny_tokenizer().convert_tokens_to_ids("<extra_id_0>")
        self.assertEqual(example["input_ids"][3:], [sentinel, tiny_tokenizer().eos_token_id])
        self.assertEqual(num_tokens(CUT_MARK.split(shown)[0]), 3 + 1)  # and the end of the sequence
