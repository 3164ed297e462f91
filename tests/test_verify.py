"""`t5suite verify`: an untouched run is equal; what was tampered with is found, or only a hash from elsewhere shows it."""

import contextlib
import functools
import hashlib
import importlib.util
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import transformers
from absl.testing import parameterized
from hub_server import HubServer
from huggingface_hub import HfApi
from safetensors.torch import load_file, save_file

from t5suite.testing import exits_with, read_rows, run_cli, tiny_run, tiny_trainer, write_rows

ROOT = Path(__file__).parent.parent
WORDS = {"good": ("lovely", "pleasant", "wonderful"), "bad": ("dull", "awful", "unpleasant")}
NOUNS = ("garden", "play", "film", "hotel", "bed", "stage", "meal", "singer")
BERT = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=48"
GPT2 = "n_embd=32,n_layer=1,n_head=2,n_positions=128"
BART = (
    "d_model=32,encoder_layers=1,decoder_layers=1,encoder_ffn_dim=48,decoder_ffn_dim=48,"
    "encoder_attention_heads=2,decoder_attention_heads=2"
)
ANSWERS = "predictions/reviews.validation.jsonl"
ROWS = "rows/reviews.validation.jsonl"
SPLIT = "reviews"


def reviews(count: int, seed: int) -> list[dict]:
    """Texts whose first adjective is their label; the second one misleads."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        label, other = draw.choice(["good", "bad"]), draw.choice(["good", "bad"])
        first, second = draw.choice(WORDS[label]), draw.choice(WORDS[other])
        text = f"The {draw.choice(NOUNS)} was {first}, and the {draw.choice(NOUNS)} was {second}."
        rows.append({"text": text, "label": label})
    return rows


def difference_of_answers(output: str) -> list[str]:
    """The lines of rows that differ."""
    return [line for line in output.splitlines() if line.startswith("  reviews row")]


@functools.cache
def finished_run() -> Path:
    """A run on rows of one's own, with some right and some wrong answers; its rows are shared."""
    folder = Path(tempfile.mkdtemp())
    write_rows(folder / "train.jsonl", reviews(200, seed=1))
    write_rows(folder / "validation.jsonl", reviews(40, seed=2))
    run = tiny_run(
        data_format="jsonl",
        train_file=str(folder / "train.jsonl"),
        validation_file=str(folder / "validation.jsonl"),
        dataset_name=SPLIT,
        text_column="text",
        target_column="label",
        labels="bad,good",
        config_overrides=None,
        max_steps=50,
        max_eval_samples=None,
        per_device_train_batch_size=16,
        eval_strategy="steps",
        eval_steps=50,
        learning_rate=1e-2,
        optimizer="adafactor",
        output_dir=str(folder / "run"),
        share_rows=True,
    )
    return run.directory


def copy_of_run() -> Path:
    """A copy of the finished run, without its checkpoints."""
    place = Path(tempfile.mkdtemp()) / "run"
    shutil.copytree(finished_run(), place, ignore=shutil.ignore_patterns("checkpoint-*"))
    return place


@functools.cache
def small_run() -> Path:
    """A run of one step, whose eight answers are the labels that it finds likelier."""
    folder = Path(tempfile.mkdtemp())
    write_rows(folder / "train.jsonl", reviews(8, seed=1))
    write_rows(folder / "validation.jsonl", reviews(8, seed=2))
    run = tiny_run(
        data_format="jsonl",
        train_file=str(folder / "train.jsonl"),
        validation_file=str(folder / "validation.jsonl"),
        dataset_name=SPLIT,
        text_column="text",
        target_column="label",
        labels="bad,good",
        max_steps=1,
        eval_method="score",
        output_dir=str(folder / "run"),
        share_rows=True,
    )
    return run.directory


def copy_of_small_run() -> Path:
    place = Path(tempfile.mkdtemp()) / "run"
    return Path(shutil.copytree(small_run(), place, ignore=shutil.ignore_patterns("checkpoint-*", "logs")))


@functools.cache
def record_of_six_right_answers() -> Path:
    """The small run's record, had it answered all but the first two rows as they are labelled."""
    folder = copy_of_small_run()
    lines = read_rows(folder / ANSWERS)
    for line in lines:
        is_wrong = line["row"] < 2
        line["prediction"] = line["target"] if not is_wrong else {"bad": "good", "good": "bad"}[line["target"]]
    write_rows(folder / ANSWERS, lines)
    set_score(folder, 75.0)
    make_hashes_anew(folder)
    return folder


def copy_of_record() -> Path:
    """A copy of the record of six right answers of eight."""
    return Path(shutil.copytree(record_of_six_right_answers(), Path(tempfile.mkdtemp()) / "run"))


def verified(folder, *flags) -> tuple[int, str]:
    """Exit code and output."""
    output = io.StringIO()
    code = 0
    try:
        with redirect_stdout(output):
            run_cli("verify", folder, *flags)
    except SystemExit as stop:
        code = stop.code
    return code, output.getvalue()


def change_json(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content, indent=2))


def swap_answer(folder: Path) -> None:
    """Turns the first recorded answer into the other label."""
    lines = read_rows(folder / ANSWERS)
    lines[0]["prediction"] = "good" if lines[0]["prediction"] == "bad" else "bad"
    write_rows(folder / ANSWERS, lines)


def score_of_answers(folder: Path) -> float:
    lines = read_rows(folder / ANSWERS)
    return 100 * sum(line["prediction"] == line["target"] for line in lines) / len(lines)


def set_score(folder: Path, score: float) -> None:
    """Writes an accuracy into the results, and onto the card where it had the other one."""
    before = json.loads((folder / "results.json").read_text())["tasks"][SPLIT]["accuracy"]
    change_json(folder / "results.json", lambda results: results["tasks"][SPLIT].update(accuracy=score))
    card = (folder / "README.md").read_text()
    card = card.replace(f"accuracy | {before:.2f} |", f"accuracy | {score:.2f} |")
    (folder / "README.md").write_text(card.replace(f"value: {before}\n", f"value: {score}\n"))


def swap_answer_and_score(folder: Path) -> None:
    swap_answer(folder)
    set_score(folder, score_of_answers(folder))


def raise_score(folder: Path) -> None:
    set_score(folder, score_of_answers(folder) + 5)


def raise_score_on_card(folder: Path) -> None:
    card = (folder / "README.md").read_text()
    (folder / "README.md").write_text(re.sub(r"accuracy \| [\d.]+ \|", "accuracy | 99.00 |", card))


def change_row_text(folder: Path) -> None:
    """Gives the first row the words of the other label."""
    rows = read_rows(folder / ROWS)
    is_good = rows[0]["label"] == "good"
    word, other = ("lovely", "awful") if not is_good else ("awful", "lovely")
    rows[0]["text"] = f"The film was {word}, and the bed was {word}."
    write_rows(folder / ROWS, rows)
    assert other not in rows[0]["text"]


def change_row_label(folder: Path) -> None:
    rows = read_rows(folder / ROWS)
    rows[0]["label"] = "good" if rows[0]["label"] == "bad" else "bad"
    write_rows(folder / ROWS, rows)


def drop_row(folder: Path) -> None:
    """Leaves out the first row, its answer, and one from every count."""
    write_rows(folder / ROWS, read_rows(folder / ROWS)[1:])
    lines = read_rows(folder / ANSWERS)[1:]
    write_rows(folder / ANSWERS, [{**line, "row": line["row"] - 1} for line in lines])
    set_score(folder, score_of_answers(folder))


def change_weights(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.block.0.layer.0.SelfAttention.q.weight"] *= -3
    tensors["shared.weight"] = tensors["shared.weight"].roll(1, 0)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def change_idle_weight(folder: Path) -> None:
    """Changes one number of the weights by a hundred-millionth."""
    tensors = load_file(folder / "model.safetensors")
    tensors["shared.weight"][600, 0] += 1e-8 + tensors["shared.weight"][600, 0].abs() * 1e-6
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def change_length(folder: Path) -> None:
    """The manifest says that texts were cut after three tokens."""
    change_json(folder / "manifest.json", lambda manifest: manifest["settings"].update(max_source_length=3))


def change_learning_rate(folder: Path) -> None:
    change_json(folder / "manifest.json", lambda manifest: manifest["settings"].update(learning_rate=3e-4))


def change_tokenizer(folder: Path) -> None:
    """Exchanges two pieces."""

    def exchange(content):
        vocabulary = content["model"]["vocab"]
        places = [place for place, (piece, _) in enumerate(vocabulary) if piece in ("▁lovely", "▁the", "▁was", "▁and")]
        first, second = places[0], places[1]
        vocabulary[first][0], vocabulary[second][0] = vocabulary[second][0], vocabulary[first][0]

    change_json(folder / "tokenizer.json", exchange)


def change_prefix(folder: Path) -> None:
    """Manifest and task.json say that texts began with other words."""
    for name in ("manifest.json", "task.json"):
        change_json(folder / name, lambda content: content["tasks"][SPLIT].update(prefix="dull awful unpleasant: "))


def change_metric(folder: Path) -> None:
    """Manifest and task.json name another metric, under the name of the one that was reported."""
    for name in ("manifest.json", "task.json"):
        change_json(folder / name, lambda content: content["tasks"][SPLIT].update(metric_names=["precision_macro"]))
        change_json(folder / name, lambda content: content["tasks"][SPLIT].update(metric_to_optimize="precision_macro"))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_hashes_anew(folder: Path, split: str = SPLIT) -> None:
    """What somebody does who hides a change: every hash in the manifest fits the files as they are now."""

    def renew(manifest):
        manifest.pop("record_sha256", None)
        manifest.pop("tokenizer", None)  # a description of the tokenizer, which has hashes, too
        names = [name for name in manifest["files"] if (folder / name).exists()]
        manifest["files"] = {name: sha256(folder / name) for name in names}
        path = folder / "rows" / f"{split}.validation.jsonl"
        if not path.exists():
            return
        rows = read_rows(path)
        text = "".join(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in rows)
        facts = manifest["scored"][split]
        facts["rows_sha256"] = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
        facts["n"] = len(rows)

    if (folder / "task.json").exists():
        change_json(folder / "task.json", lambda card: card.pop("tokenizer", None))
    change_json(folder / "manifest.json", renew)
    with contextlib.suppress(ValueError):  # refused: no hash is looked at
        record_hash = re.search("record: ([0-9a-f]{64})", verified(folder, "--scores_only")[1])[1]
        change_json(folder / "manifest.json", lambda manifest: manifest.update(record_sha256=record_hash))


# What is tampered with, what verification says, and what it says after every hash was made anew; None: nothing, since
# the record is then that of another run, which only a hash from elsewhere can show.
CASES = {
    "an answer": (swap_answer, "predictions/reviews.*SHA-256", "row 0.* recorded"),
    "an answer and its score": (swap_answer_and_score, "results.json is not the file", "row 0.*no near tie"),
    "a score": (raise_score, "accuracy is .* by the recorded answers", "accuracy is .* by the recorded answers"),
    "the card": (raise_score_on_card, "^different: all 40 answers are equal, but 1 part of the record differs\n", "accuracy is 99.00 on the card"),
    "a row's text": (change_row_text, "rows/reviews.* has changed", "row 0.* recorded"),
    "a row's label": (change_row_label, "rows/reviews.* has changed", "targets are not those of the rows: row 0"),
    "a row left out": (drop_row, "^different: 0 of 39 answers are equal, 39 were not compared; .*\n.*\ndifferent: .*40 rows then, 39 now", None),
    "weights": (change_weights, "model.safetensors is not the file", "no near tie"),
    "a weight that alters no answer": (change_idle_weight, "model.safetensors is not the file", None),
    "a setting of the answers": (change_length, "manifest.json does not say", "row .* recorded"),
    "a setting of the training": (change_learning_rate, "manifest.json does not say", None),
    "the tokenizer": (change_tokenizer, "the tokenizer is another one: its 621 pieces", "row .* recorded"),
    "the text's form": (change_prefix, "manifest.json does not say", "row .* recorded"),
    "the metric": (change_metric, "manifest.json does not say", "accuracy, which the recorded answers do not give"),
}  # fmt: skip


@pytest.mark.slow
class TamperingTest(parameterized.TestCase):
    def test_an_untouched_run_is_equal_wherever_it_lies(self):
        code, output = verified(copy_of_run())
        self.assertEqual(code, 0, output)
        self.assertStartsWith(output, "equal: 40 of 40 answers, accuracy ")

    @parameterized.named_parameters((name.replace(" ", "_"), name) for name in CASES)
    def test_tampering_is_found(self, name):
        tamper, expected, _ = CASES[name]
        folder = copy_of_run()
        tamper(folder)
        code, output = verified(folder)
        self.assertEqual(code, 1, output)
        self.assertRegex(output, expected)
        self.assertStartsWith(output, "different: ")

    @parameterized.named_parameters((name.replace(" ", "_"), name) for name in CASES)
    def test_tampering_with_new_hashes_is_found_or_needs_a_hash_from_elsewhere(self, name):
        tamper, _, expected = CASES[name]
        folder = copy_of_run()
        hash_before = json.loads((folder / "manifest.json").read_text())["record_sha256"]
        tamper(folder)
        make_hashes_anew(folder)
        code, output = verified(folder)
        if expected is None:
            self.assertEqual(code, 0, output)
            code, output = verified(folder, "--record_sha256", hash_before)
            expected = "the record is another one: its SHA-256 is"
        self.assertEqual(code, 1, output)
        self.assertRegex(output, expected)

    def test_no_file_that_is_there_can_be_withheld(self):
        folder = copy_of_run()
        hash_before = json.loads((folder / "manifest.json").read_text())["record_sha256"]
        change_idle_weight(folder)
        change_json(folder / "manifest.json", lambda manifest: manifest.update(withheld=["model.safetensors"]))
        code, output = verified(folder, "--scores_only", "--record_sha256", hash_before)
        self.assertEqual(code, 1, output)
        self.assertIn("different: model.safetensors is not the file that the run wrote (SHA-256)\n", output)
        (folder / "model.safetensors").unlink()
        code, output = verified(folder, "--scores_only", "--record_sha256", hash_before)
        self.assertEqual(code, 1, output)
        self.assertIn("different: model.safetensors is missing, which the run wrote\n", output)

    def test_a_file_that_the_run_did_not_write_is_named(self):
        folder = copy_of_run()
        shutil.copy(folder / "model.safetensors", folder / "second.safetensors")
        (folder / "notes.txt").write_text("Weights, answers and tokenizers are named; notes may be added.")
        (folder / "tokenizer_x.py").write_text("raise SystemExit")
        code, output = verified(folder, "--scores_only")
        self.assertEqual(code, 1, output)
        problems = [line for line in output.splitlines()[1:] if line.startswith("different: ")]
        self.assertEqual(
            problems, ["different: second.safetensors is in the folder, but is no file that the run wrote"]
        )


def recorded_as_right(folder: Path) -> None:
    """The record says that every answer to its benchmark's rows is right, and brings rows that say so, too."""
    path = folder / "predictions" / "sentiment.validation.jsonl"
    lines = [{**line, "target": line["prediction"]} for line in read_rows(path)]
    write_rows(path, lines)
    rows = [{"sentence": "x", "label": ["negative", "positive"].index(line["target"])} for line in lines]
    (folder / "rows").mkdir()
    write_rows(folder / "rows" / "sentiment.validation.jsonl", rows)

    def change(results):
        results["tasks"]["sentiment"].update(accuracy=100.0)

    change_json(folder / "results.json", change)
    (folder / "README.md").unlink()


class RowsTest(parameterized.TestCase):
    """Which rows a verification takes."""

    @pytest.mark.slow
    def test_rows_of_a_benchmark_are_never_taken_from_the_record(self):
        folder = tiny_run(eval_method="score").directory
        recorded_as_right(folder)
        change_json(folder / "manifest.json", lambda manifest: manifest["scored"]["sentiment"].update(own_rows=True))
        make_hashes_anew(folder, "sentiment")
        code, output = verified(folder, "--scores_only")
        self.assertEqual(code, 1, output)
        self.assertRegex(output, "different: sentiment: its rows are not those that the run was scored on: ")
        self.assertRegex(
            output, r"different: sentiment: accuracy is [\d.]+ by the recorded answers, and 100.00 in results"
        )

    @pytest.mark.slow
    def test_a_reader_that_closes_the_pipe_does_not_hide_that_a_run_differs(self):
        folder = copy_of_record()
        change_json(folder / "results.json", lambda results: results["averages"].update(other=1.0))
        self.assertEqual(verified(folder, "--scores_only")[0], 1)
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "t5suite", "verify", folder, "--scores_only"]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
        os.close(writer)
        self.assertEqual((done.returncode, done.stderr), (1, ""))

    def test_rows_of_the_verifier_come_before_those_of_the_record(self):
        folder = copy_of_record()
        change_row_label(folder)
        make_hashes_anew(folder)
        mine = Path(tempfile.mkdtemp())
        code, output = verified(folder, "--scores_only", "--data_dir", mine)  # has none of them
        self.assertNotIn("its rows are not those", output)
        for name in ("train", "validation"):
            shutil.copy(small_run().parent / f"{name}.jsonl", mine)
        code, output = verified(folder, "--scores_only", "--data_dir", mine)
        self.assertEqual(code, 1, output)
        self.assertIn(
            f"its rows are not those that the run was scored on: {mine / 'validation.jsonl'} has changed", output
        )

    def test_rows_of_the_verifier_that_cannot_be_read_do_not_give_way_to_those_of_the_record(self):
        mine = Path(tempfile.mkdtemp())
        for name in ("train", "validation"):
            shutil.copy(small_run().parent / f"{name}.jsonl", mine)
        (mine / "validation.jsonl").write_text('{"text": ')
        with exits_with(65, f"{mine / 'validation.jsonl'}.*without --data_dir, rows/reviews.validation.jsonl"):
            run_cli("verify", copy_of_record(), "--scores_only", "--data_dir", mine)

    def test_the_authors_own_rows_are_named_as_not_verified(self):
        _, output = verified(copy_of_record(), "--scores_only")
        self.assertIn(
            "cannot be verified: where the rows of reviews come from (they are the author's own), how the weights were trained\n",
            output,
        )

    def test_the_base_of_an_adapter_in_a_folder_is_named_as_not_verified(self):
        folder = copy_of_record()
        base = Path(tempfile.mkdtemp())
        config = folder / "adapter_config.json"
        config.write_text(json.dumps({"base_model_name_or_path": str(base)}))
        _, output = verified(folder, "--scores_only")
        self.assertIn(f", the weights of {base}, the adapter's base (no hashes were recorded), ", output)
        config.write_text(json.dumps({"base_model_name_or_path": "google-t5/t5-small"}))  # known by its commit
        _, output = verified(folder, "--scores_only")
        self.assertNotIn("the adapter's base", output)
        config.write_text("[]")
        with exits_with(65, f"{config}: a list, not a table"):
            run_cli("verify", folder, "--scores_only")

    @pytest.mark.slow
    def test_a_folder_that_the_record_names_is_named_as_not_verified(self):
        folder = tiny_run(eval_method="score").directory
        set_flag(data_dir=str(folder))(folder)
        _, output = verified(folder, "--scores_only")
        self.assertIn(f"where the rows of sentiment come from (a folder that the record names, {folder})", output)
        _, output = verified(folder, "--scores_only", "--data_dir", folder)
        self.assertNotIn("the rows of sentiment", output)
        without_rows = Path(tempfile.mkdtemp())
        (without_rows / "mini").mkdir()
        _, output = verified(folder, "--scores_only", "--data_dir", without_rows)
        self.assertIn(f"where the rows of sentiment come from (a folder that the record names, {folder})", output)

    def test_rows_that_have_changed_are_named_first_and_without_distances(self):
        folder = copy_of_record()
        rows = read_rows(folder / ROWS)
        write_rows(folder / ROWS, [*rows[1:], rows[0]])
        code, output = verified(folder)
        self.assertEqual(code, 1, output)
        problems = [line for line in output.splitlines()[1:] if line.startswith("different: ")]
        self.assertEqual(
            problems[0],
            "different: reviews: its rows are not those that the run was scored on: rows/reviews.validation.jsonl has changed",
        )
        self.assertNotEmpty(difference_of_answers(output))
        for line in difference_of_answers(output):
            self.assertEndsWith(line, "; not measured how far apart, since the rows have changed")


def replace_in_card(folder: Path, text: str, replacement: str) -> None:
    card = (folder / "README.md").read_text()
    assert text in card, card
    (folder / "README.md").write_text(card.replace(text, replacement))


def change_results(folder: Path, change) -> None:
    """Changes the results, and every hash with them."""
    change_json(folder / "results.json", change)
    (folder / "README.md").unlink(missing_ok=True)
    make_hashes_anew(folder, "no split with rows of its own")


def problems_of(folder: Path) -> list[str]:
    """What differs in a record, without its model."""
    _, output = verified(folder, "--scores_only")
    return [line.removeprefix("different: ") for line in output.splitlines()[1:] if line.startswith("different: ")]


# What stands on the card of a run whose accuracy is 75.00, and what is said of it.
CARDS = (
    ("value: 75.0\n", "value: 75.004\n", None),
    ("value: 75.0\n", "value: '75.0'\n", None),
    ("value: 75.0\n", "value: 75.02\n", "75.02"),
    ("value: 75.0\n", "value: '99'\n", "99.00"),
    ("value: 75.0\n", "value: high\n", "'high'"),
    ("accuracy | 75.00 |", "accuracy | 75.02 |", "75.02"),
    ("accuracy | 75.00 |", "accuracy | **99.00** |", "'**99.00**'"),
    ("accuracy | 75.00 | points", "accuracy | 99.00 | as its metric returns it", "99.00"),
)  # fmt: skip


class ScoresTest(parameterized.TestCase):
    """Every score in results and on the card follows from the recorded answers."""

    @parameterized.parameters(*CARDS)
    def test_the_card_differs_by_rounding_alone(self, text, replacement, shown):
        folder = copy_of_record()
        replace_in_card(folder, text, replacement)
        expected = (
            [] if shown is None else [f"README.md: reviews: accuracy is {shown} on the card, and 75.00 in results.json"]
        )
        self.assertEqual(problems_of(folder), expected)

    @parameterized.parameters(
        ("model-index: abc", []),
        ("model-index: {name: x}", []),
        ("model-index: [{name: x, results: abc}]", []),
        ("model-index: [{name: x, results: [{task: {name: reviews}, metrics: abc}]}]", []),
        (
            "model-index: [{results: [{task: {name: [reviews]}, metrics: [{name: accuracy, value: 75.0}]}]}]",
            ["README.md: ['reviews']: accuracy is 75.00 on the card, and none in results.json"],
        ),
        (
            "model-index: [{results: [{task: {name: reviews}, metrics: [{name: accuracy, value: true}]}]}]",
            ["README.md: reviews: accuracy is True on the card, and 75.00 in results.json"],
        ),
    )
    def test_what_is_no_table_in_the_header_of_a_card_is_no_score(self, header, problems):
        folder = copy_of_record()
        (folder / "README.md").write_text(f"---\n{header}\n---\n# reviews\n")
        self.assertEqual(problems_of(folder), problems)

    @pytest.mark.slow
    def test_rows_without_labels_give_no_score(self):
        place = Path(tempfile.mkdtemp())
        rows = reviews(24, seed=3)
        write_rows(place / "train.jsonl", rows)
        write_rows(place / "test.jsonl", [{"text": row["text"]} for row in rows[:8]])
        files = {f"{split}_file": str(place / f"{split}.jsonl") for split in ("train", "test")}
        columns = {"text_column": "text", "target_column": "label", "labels": "bad,good"}
        folder = tiny_run(data_format="jsonl", dataset_name=SPLIT, do_predict=True, **files, **columns).directory
        self.assertEmpty(problems_of(folder))
        (name,) = [name for name in json.loads((folder / "manifest.json").read_text())["scored"] if "test" in name]
        change_results(folder, lambda results: results["tasks"].update({name: {"accuracy": 99.0}}))
        self.assertEqual(
            problems_of(folder), [f"{name}: results.json has accuracy, which the recorded answers do not give"]
        )

    @pytest.mark.slow
    def test_of_a_loss_only_the_loss_is_reported(self):
        folder = tiny_run(eval_method="loss").directory
        code, output = verified(folder)
        self.assertEqual(code, 0, output)
        change_results(folder, lambda results: results["tasks"]["sentiment"].update(accuracy=99.0, nll=0.1, loss=0.2))
        code, output = verified(folder)
        self.assertEqual(code, 1, output)
        self.assertIn("sentiment: results.json has accuracy, which the recorded answers do not give\n", output)
        self.assertIn("sentiment: results.json has nll, which the model does not give\n", output)
        self.assertRegex(output, r"sentiment: loss is \d+\.\d{6} by the model, and 0.200000 in results.json\n")

    @pytest.mark.slow
    def test_the_scores_of_parts_are_those_of_their_answers(self):
        place = Path(tempfile.mkdtemp())
        entry = {
            "prefix": "review: ", "text_column_name": "text", "label_column_name": "label", "labels": ["bad", "good"],
            "metric_names": ["accuracy"], "metric_to_optimize": "accuracy", "report_by": ["town"],
        }  # fmt: skip
        (place / "tasks.yaml").write_text(json.dumps({"mine": {SPLIT: entry}}))
        rows = [{**row, "town": "Ulm" if number % 3 else "Bonn"} for number, row in enumerate(reviews(24, seed=4))]
        rows = [{**row, "label": ["bad", "good"].index(row["label"])} for row in rows]
        for split in ("train", "validation"):
            write_rows(place / f"{split}.jsonl", rows)
        files = {f"{split}_file": str(place / f"{split}.jsonl") for split in ("train", "validation")}
        task = {"task_file": str(place / "tasks.yaml"), "benchmark": "mine", "dataset_name": SPLIT}
        folder = tiny_run(**task, **files, max_eval_samples=None).directory
        groups = json.loads((folder / "results.json").read_text())["groups"][SPLIT]["town"]
        self.assertEqual({town: scores["n"] for town, scores in groups.items()}, {"Bonn": 8, "Ulm": 16})
        self.assertEmpty(problems_of(folder))

        def change(results):
            towns = results["groups"][SPLIT]["town"]
            towns["Bonn"]["n"] = 9
            towns["Ulm"]["f1"] = 50.0
            towns["Linz"] = {"accuracy": 99.0}
            results["groups"]["other"] = {}

        change_results(folder, change)
        expected = [
            "reviews, town Bonn: n is 8.00 by the recorded answers, and 9.00 in results.json",
            "reviews, town Linz: results.json has accuracy, which the recorded answers do not give",
            "reviews, town Ulm: results.json has f1, which the recorded answers do not give",
            "other: results.json has scores, but nothing was answered for it",
        ]
        self.assertEqual(problems_of(folder), expected)

    @parameterized.parameters(
        ({"average": 99.0}, r"average: the mean of the tasks is [\d.]+, and 99.00 in results.json"),
        ({}, r"average: results.json has no average, and the mean of the tasks is [\d.]+"),
        ({"glue": 99.0}, "glue: results.json has an average, which the run's tasks do not give"),
    )
    @pytest.mark.slow
    def test_the_average_is_that_of_the_runs_tasks(self, averages, problem):
        folder = run_of_two_tasks()
        self.assertEmpty(problems_of(folder))
        folder = Path(shutil.copytree(folder, Path(tempfile.mkdtemp()) / "run"))
        change_results(folder, lambda results: results.update(averages=averages))
        self.assertRegex("\n".join(problems_of(folder)), problem)


@functools.cache
def run_of_two_tasks() -> Path:
    return tiny_run(dataset_name="sentiment,entailment").directory


def uploaded_files(folder: Path) -> dict[str, bytes]:
    """What `--push_to_hub` sends of a run's directory."""
    sent = {}

    def take(_, *, folder_path, **options):
        for path in sorted(Path(folder_path).rglob("*")):
            if path.is_file():
                sent[path.relative_to(folder_path).as_posix()] = path.read_bytes()

    trainer = tiny_trainer(output_dir=str(folder))
    trainer.hub_model_id = "ada/reviews"
    no_earlier_run = mock.patch.object(HfApi, "hf_hub_download", return_value=os.devnull)
    with no_earlier_run, mock.patch.object(HfApi, "upload_folder", take):
        trainer.push_to_hub("a message")
    return sent


@pytest.mark.slow
class HubTest(parameterized.TestCase):
    def verified_there(self, hub, *flags, cache=None) -> subprocess.CompletedProcess:
        environment = {**os.environ, **hub.environment(cache or tempfile.mkdtemp()), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "t5suite", "verify", "ada/reviews", *flags]
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)

    def test_a_run_that_was_pushed_with_its_rows_verifies_from_the_hub(self):
        folder = copy_of_run()
        with HubServer() as hub:
            sent = uploaded_files(folder)
            self.assertIn("\n`t5suite verify .` fetches these rows", sent["README.md"].decode())
            commit = hub.commit("model", "ada/reviews", sent)
            done = self.verified_there(hub)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertStartsWith(done.stdout, "equal: 40 of 40 answers, accuracy ")
            self.assertIn(commit, done.stdout)
            there = re.search("record: ([0-9a-f]{64})", done.stdout)[1]
            here = re.search("record: ([0-9a-f]{64})", verified(folder, "--scores_only")[1])[1]
            self.assertEqual(there, here)

            # A weight that alters no answer, with new hashes: the commit is another one, and the old one is untouched.
            change_idle_weight(folder)
            make_hashes_anew(folder)
            second_commit = hub.commit("model", "ada/reviews", uploaded_files(folder))
            self.assertNotEqual(commit, second_commit)
            done = self.verified_there(hub, "--scores_only", "--model_revision", commit, "--record_sha256", here)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            done = self.verified_there(hub, "--scores_only", "--record_sha256", here)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)

    def test_only_the_files_of_the_run_are_downloaded(self):
        sent = uploaded_files(copy_of_run())
        others = {"checkpoint-5/model.safetensors": b"x" * 8, "tokenizer_x.py": b"raise SystemExit", "notes.txt": b"x"}
        cache = Path(tempfile.mkdtemp())
        with HubServer() as hub:
            hub.commit("model", "ada/reviews", {**sent, **others})
            done = self.verified_there(hub, "--scores_only", cache=cache)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        names = {path.name for path in cache.rglob("*") if "snapshots" in path.parts}
        self.assertContainsSubset({"manifest.json", "model.safetensors", "tokenizer.json"}, names)
        self.assertNoCommonElements(names, {"checkpoint-5", "tokenizer_x.py", "notes.txt"})

    def test_rows_and_answers_of_ones_own_stay_without_the_flag(self):
        folder = copy_of_run()
        change_json(folder / "manifest.json", lambda manifest: manifest["settings"].update(share_rows=False))
        sent = uploaded_files(folder)
        self.assertEmpty([name for name in sent if name.startswith(("rows/", "predictions/"))])
        texts = [row["text"] for row in read_rows(folder / ROWS)]
        manifest = sent["manifest.json"].decode()
        self.assertEmpty([text for text in texts if text in manifest])
        self.assertNotIn(str(folder.parent), manifest)
        self.assertNotIn(str(finished_run().parent), manifest)
        with HubServer() as hub:
            hub.commit("model", "ada/reviews", sent)
            done = self.verified_there(hub)
            self.assertEqual(done.returncode, 65, done.stdout + done.stderr)
            self.assertIn("predictions/reviews.validation.jsonl is missing", done.stderr)
            self.assertIn("--share_rows", done.stderr)

    def test_folders_of_the_author_are_not_sent_and_do_not_count_in_the_hash(self):
        folder = copy_of_run()
        places = {
            "train_file": "/home/ada/my data/train.jsonl",
            "validation_file": "file:///home/ada/v 1/validation.jsonl",
            "test_file": "C:\\Users\\ada\\test set\\test.jsonl",
            "data_dir": "../../ada/my rows",
            "model_name_or_path": "~/ada/my models/t5",
            "output_dir": "/home/ada/one, two/run, /home/ada/second",
            "run_name": "from /home/ada/x.csv, ../ada/y.csv and file:///home/ada/z.csv",
        }
        names = {
            "train_file": "…/train.jsonl",
            "validation_file": "…/validation.jsonl",
            "test_file": "…/test.jsonl",
            "data_dir": "…/my rows",
            "model_name_or_path": "…/t5",
            "output_dir": "…/run, …/second",
            "run_name": "from …/x.csv, …/y.csv and …/z.csv",
        }
        set_flag(**places)(folder)
        sent = json.loads(uploaded_files(folder)["manifest.json"])
        self.assertEqual({name: sent["settings"][name] for name in places}, names)
        hashes = []
        for settings in (places, names):
            set_flag(**settings)(folder)
            hashes.append(re.search("record: ([0-9a-f]{64})", verified(folder, "--scores_only")[1])[1])
        self.assertEqual(hashes[0], hashes[1])

    def test_the_weights_of_each_tasks_best_step_stay_and_the_card_says_so(self):
        flags = {"select": "per_task", "eval_strategy": "steps", "eval_steps": 1, "learning_rate": 0.1}
        folder = tiny_run(dataset_name="sentiment,entailment", max_steps=2, **flags).directory
        with self.assertLogs("t5suite", "INFO") as logs:
            sent = uploaded_files(folder)
        self.assertIn("in the run's own folder alone: the weights of each task's best step", sent["README.md"].decode())
        (line,) = [line for line in logs.output if "not uploaded: " in line]
        self.assertIn("best/", line)
        self.assertNotIn("--share_rows", line)

    def test_code_of_a_repository_is_neither_downloaded_nor_run(self):
        folder = copy_of_run()
        trap = Path(tempfile.mkdtemp()) / "ran"
        code = f"open({str(trap)!r}, 'w')\n"
        for name in ("modeling_x.py", "tasks.py", "generation.py", "custom_generate/generate.py"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(code)
        auto_map = {"AutoModelForSeq2SeqLM": "modeling_x.T5ForConditionalGeneration", "AutoConfig": "modeling_x.Config"}
        change_json(folder / "config.json", lambda config: config.update(auto_map=auto_map))
        make_hashes_anew(folder)
        code_of_exit, output = verified(folder)
        self.assertEqual(code_of_exit, 0, output)  # a T5's own class needs none of it
        self.assertFalse(trap.exists())
        change_json(folder / "manifest.json", lambda manifest: manifest["settings"].update(trust_remote_code=True))
        make_hashes_anew(folder)
        with exits_with(65, "--trust_remote_code, config.json: .*modeling_x.py"):
            run_cli("verify", folder)
        self.assertFalse(trap.exists())


def set_flag(**settings):
    return lambda folder: change_json(folder / "manifest.json", lambda manifest: manifest["settings"].update(settings))


def set_configuration(**settings):
    return lambda folder: change_json(folder / "config.json", lambda config: config.update(settings))


def set_auto_map_list(folder: Path) -> None:
    set_flag(trust_remote_code=True)(folder)
    set_configuration(auto_map=["modeling_x.X"])(folder)


def number_in_row(folder: Path) -> None:
    rows = read_rows(folder / ROWS)
    write_rows(folder / ROWS, [*rows[:-1], {**rows[-1], "text": 3}])


def change_task_card(**entries):
    return lambda folder: change_json(folder / "task.json", lambda card: card.update(entries))


def set_entry(**entries):
    return lambda folder: change_json(folder / "manifest.json", lambda manifest: manifest.update(entries))


def remove(name: str):
    def change(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def remove_both_rows(folder: Path) -> None:
    """Neither the shared rows nor the author's file are there."""
    (folder / ROWS).unlink()
    set_flag(validation_file="/nowhere/validation.jsonl")(folder)


def write_text(name: str, text: str):
    return lambda folder: (folder / name).write_text(text)


REFUSALS = (
    (remove("manifest.json"), "manifest.json is missing"),
    (remove("results.json"), "results.json is missing"),
    (remove(ANSWERS), "predictions/reviews.validation.jsonl is missing"),
    (remove_both_rows, "the rows of reviews .* cannot be fetched.*rows/reviews.validation.jsonl is missing"),
    (remove("model.safetensors"), "the model cannot be loaded: .*model.safetensors"),
    (
        set_flag(objective="span_corruption", train_file=["raw.txt"]),
        "a pre-training run, .*: t5suite verify checks runs that were fine-tuned or evaluated",
    ),
    (write_text("manifest.json", "{"), "manifest.json"),
    (write_text("results.json", "[]"), "results.json: not a run's results"),
    (write_text(ANSWERS, '{"row": 0}\n'), "jsonl:1: not a line of predictions"),
    (write_text("model.safetensors", "x"), "the model cannot be loaded: .*model.safetensors"),
    (set_flag(task_file="my_tasks.py"), "code, which is never run: --task_file my_tasks.py"),
    (set_flag(metrics="accuracy,os.path:exists"), r"never run: --metrics os.path:exists \(os/path.py\)"),
    (set_flag(attn_implementation="ada/kernel"), r"never run: --attn_implementation ada/kernel \(a kernel of the hub"),
    (set_configuration(attn_implementation="ada/kernel"), "never run: config.json: attn_implementation ada/kernel"),
    (
        write_text("results.json", '{"tasks": {"reviews": {"accuracy": "75"}}, "averages": {}}'),
        "results.json: .*'tasks.reviews.accuracy' is '75', not a finite number",
    ),
    (
        write_text("results.json", f'{{"tasks": {{"reviews": {{"accuracy": 1{"0" * 400}}}}}, "averages": {{}}}}'),
        "'tasks.reviews.accuracy' is 10.*, not a finite number",
    ),
    (
        write_text("results.json", '{"tasks": {"reviews": {"accuracy": Infinity}}, "averages": {}}'),
        "'tasks.reviews.accuracy' is inf, not a finite number",
    ),
    (
        write_text("results.json", '{"tasks": {"reviews": [75]}, "averages": {}}'),
        "'tasks.reviews' is .75., not a table",
    ),
    (
        write_text("results.json", '{"tasks": {}, "averages": {"mini": []}}'),
        "'averages.mini' is .., not a finite number",
    ),
    (
        write_text("results.json", '{"tasks": {}, "averages": {}, "groups": {"reviews": 3}}'),
        "'groups.reviews' is 3, not a table",
    ),
    (set_entry(files=["model.safetensors"]), "manifest.json: .*'files' is .*, not a table"),
    (set_entry(files={"model.safetensors": 3}), "'files.model.safetensors' is 3, not a text"),
    (set_entry(withheld=3), "'withheld' is 3, not a list"),
    (set_entry(scored={SPLIT: [3]}), "'scored.reviews' is .3., not a table"),
    (set_entry(scored={SPLIT: {"n": "40"}}), "'scored.reviews.n' is '40', not a whole number"),
    (set_entry(scored={SPLIT: {"method": ["generate"]}}), "'scored.reviews.method' is .*, not one of generate, score"),
    (set_entry(trained_on="own"), "'trained_on' is 'own', not a list of a benchmark and its tasks"),
    (set_entry(tasks={SPLIT: "reviews"}), "'tasks.reviews' is 'reviews', not a table"),
    (set_entry(hub={"models": {"ada/x": "main"}}), "'hub.models.ada/x' is 'main', not a table"),
    (set_entry(answering={"max_length": 10**10}), "manifest.json: 'answering': max_length is 10000000000"),
    (change_task_card(tasks={SPLIT: {"prefix": True}}), "the model cannot be loaded: .*task.json is not a task card"),
    (set_entry(answering={"dtype": ["float32"]}), "'answering.dtype' is .*, not a text"),
    (set_entry(answering={"tf32": "yes"}), "'answering.tf32' is 'yes', not true or false"),
    (set_entry(tokenizer={"pieces": 3}), "'tokenizer' has no 'vocabulary'"),
    (set_flag(plug_ins=["os:path"]), "'settings.plug_ins' is .*, not a table"),
    (set_flag(plug_ins={"callbacks": [{"sha256": "x"}]}), "'settings.plug_ins.callbacks.0' has no 'name'"),
    (set_flag(max_eval_samples="40"), "'settings.max_eval_samples' is '40', not a whole number"),
    (set_flag(seed=2**64), "'settings.seed' is 18446744073709551616, not a whole number"),
    (set_flag(validation_file=["a.jsonl"]), "'settings.validation_file' is .*, not a text"),
    (set_configuration(dtype=1e308), "config.json: .*'dtype' is 1e.308, not a text"),
    (number_in_row, "the rows of reviews: a column has values of several types"),
    (set_configuration(dense_act_fn=["a"]), "the model cannot be loaded: .*config.json: feed_forward_proj is"),
    (set_configuration(decoder_start_token_id={}), "'decoder_start_token_id' is .., not a whole number"),
    (
        change_task_card(tokenizer={"pieces": 3}),
        "task.json: .*'tokenizer' has no 'vocabulary'",
    ),
    (set_auto_map_list, "config.json: .*'auto_map' is .*, not a table"),
    (set_flag(model_class="mine.models:Slow"), r"never run: --model_class mine.models:Slow \(mine/models.py\)"),
)
WRONG_FLAGS = (
    (("--batch_size", "0"), "--batch_size 0: must be at least 1"),
    (("--max_rows", "-1"), "--max_rows -1: must be at least 0"),
    (("--scores_only", "--batch_size", "4"), "--batch_size has no effect with --scores_only"),
    (("--scores_only", "--dtype", "bfloat16"), "--dtype has no effect with --scores_only"),
    (("--model_revision", "main"), "--model_revision main has no effect: .* is a folder"),
    (("--record_sha256", "abc"), "--record_sha256 abc: a SHA-256 has 64 hexadecimal digits"),
    (("--record_sha256", ""), "--record_sha256 : a SHA-256 has 64 hexadecimal digits"),
    (("--exported", ""), "--exported : no such folder"),
    (("--scores_only", "--exported", ""), "--exported has no effect with --scores_only"),
    (("--dtype", "int8"), "--dtype.*int8"),
)


class RefusalTest(parameterized.TestCase):
    @parameterized.parameters(*range(len(REFUSALS)))
    def test_a_run_that_cannot_be_verified_ends_with_65_and_names_the_file(self, number):
        spoil, message = REFUSALS[number]
        folder = copy_of_small_run()
        spoil(folder)
        with exits_with(65, message):
            run_cli("verify", folder)

    def test_a_model_that_does_not_fit_into_memory_is_no_fault_of_the_record(self):
        error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        with (
            mock.patch.object(transformers.AutoModelForSeq2SeqLM, "from_pretrained", side_effect=error),
            exits_with(71, "the model does not fit into memory .*allocate 2 GiB"),
        ):
            run_cli("verify", copy_of_small_run())


class LargeNumberTest(parameterized.TestCase):
    @parameterized.parameters(-1e305, 1.7e308)
    def test_a_number_that_a_float_can_hold_is_one_of_a_record(self, number):
        folder = copy_of_small_run()
        set_flag(weight_decay=number)(folder)
        change_json(folder / "results.json", lambda results: results["tasks"][SPLIT].update(accuracy=number))
        code, _ = verified(folder, "--scores_only")
        self.assertEqual(code, 1, "the score differs from that of the answers")


class FlagsTest(parameterized.TestCase):
    """What needs neither torch nor a run to be refused."""

    @parameterized.parameters(*WRONG_FLAGS)
    def test_flags_without_effect_or_sense_end_with_78(self, flags, message):
        with exits_with(78, message):
            run_cli("verify", tempfile.mkdtemp(), *flags)

    @parameterized.parameters(
        ("nowhere/at/all", "no such folder, nor OWNER/MODEL"),
        ("no_such_run", "no such folder, nor OWNER/MODEL"),
        (__file__, "a file; give the run's directory"),
    )
    def test_a_run_that_is_nowhere_ends_with_78(self, run, message):
        with exits_with(78, message):
            run_cli("verify", run)

    def test_an_empty_folder_ends_with_65_and_names_the_first_missing_file(self):
        with exits_with(65, "manifest.json is missing: .*give a finished run"):
            run_cli("verify", tempfile.mkdtemp())


def differences(folder: Path, *flags) -> list[str]:
    """What is said to differ, rows apart."""
    _, output = verified(folder, *flags)
    return [line.removeprefix("different: ") for line in output.splitlines()[1:] if line.startswith("different: ")]


def in_json(folder: Path, *flags) -> tuple[dict, list[dict]]:
    """The verdict as JSON, and the other lines."""
    first, *lines = [json.loads(line) for line in verified(folder, "--json", *flags)[1].splitlines()]
    return first, lines


def name_two_tasks(folder: Path) -> None:
    """A second task has the rows of the first one, and right answers to all."""
    for name in (ANSWERS, ROWS):
        shutil.copy(folder / name, folder / name.replace(SPLIT, "second"))
    second = folder / ANSWERS.replace(SPLIT, "second")
    write_rows(second, [{**line, "prediction": line["target"]} for line in read_rows(second)])

    def change(manifest):
        manifest["trained_on"] = ["own", f"{SPLIT},second"]
        for key in ("tasks", "scored"):
            manifest[key]["second"] = manifest[key][SPLIT]

    change_json(folder / "manifest.json", change)


NO_FILE = "is not the file that the run wrote (SHA-256)"
OTHER_MANIFEST = "manifest.json does not say what the run wrote into it (record_sha256)"
OTHER_ROWS = "reviews: its rows are not those that the run was scored on: rows/reviews.validation.jsonl has changed"
# What is tampered with in a record, and what differs without a look at the model.
DIFFERENCES = {
    swap_answer: (f"{ANSWERS} {NO_FILE}", "reviews: accuracy is 87.50 by the recorded answers, and 75.00 in results.json"),
    raise_score: (f"results.json {NO_FILE}", "reviews: accuracy is 75.00 by the recorded answers, and 80.00 in results.json"),
    raise_score_on_card: ("README.md: reviews: accuracy is 99.00 on the card, and 75.00 in results.json",),
    change_row_text: (OTHER_ROWS, f"{ROWS} {NO_FILE}"),
    drop_row: (f"{OTHER_ROWS} (8 rows then, 7 now)", f"{ANSWERS} {NO_FILE}", f"results.json {NO_FILE}", f"{ROWS} {NO_FILE}"),
    change_idle_weight: (f"model.safetensors {NO_FILE}",),
    change_learning_rate: (OTHER_MANIFEST,),
    change_prefix: (OTHER_MANIFEST, f"task.json {NO_FILE}"),
}  # fmt: skip


class RecordTest(parameterized.TestCase):
    """What a record says against itself; the model is not asked."""

    def test_weights_of_an_adapter_s_own_base_model_that_the_run_did_not_write_are_named(self):
        folder = copy_of_record()
        (folder / "base").mkdir()
        (folder / "base" / "model.safetensors").touch()
        self.assertIn("base/model.safetensors is in the folder, but is no file that the run wrote", problems_of(folder))

    def test_each_part_that_was_tampered_with_is_named(self):
        self.assertEmpty(differences(record_of_six_right_answers(), "--scores_only"))
        for tamper, expected in DIFFERENCES.items():
            with self.subTest(tamper.__name__):
                folder = copy_of_record()
                tamper(folder)
                self.assertEqual(differences(folder, "--scores_only"), list(expected))

    def test_answers_in_another_order_and_for_other_targets_are_named(self):
        folder = copy_of_record()
        lines = read_rows(folder / ANSWERS)
        write_rows(folder / ANSWERS, [lines[1], lines[0], *lines[2:]])
        self.assertIn("reviews: the recorded answers are not in the order of the rows", problems_of(folder))
        write_rows(folder / ANSWERS, lines[1:])
        self.assertIn("reviews: 7 recorded answers for 8 examples", problems_of(folder))
        change_row_label(folder)
        write_rows(folder / ANSWERS, lines)
        before, after = lines[0]["target"], read_rows(folder / ROWS)[0]["label"]
        self.assertIn(
            f"reviews: 1 targets are not those of the rows: row 0 ({before!r} recorded, {after!r} in the rows)",
            problems_of(folder),
        )

    @pytest.mark.slow
    def test_no_number_is_the_correlation_of_answers_that_are_all_alike(self):
        folder = copy_of_record()
        write_rows(folder / ANSWERS, [{**line, "prediction": "good"} for line in read_rows(folder / ANSWERS)])
        metric = {"metric_names": ["pearson"], "metric_to_optimize": "pearson"}
        for name in ("manifest.json", "task.json"):
            change_json(folder / name, lambda content: content["tasks"][SPLIT].update(metric))
        scores = {"pearson": None, "invalid_rate": 0.0}
        change_json(folder / "results.json", lambda results: results["tasks"].update({SPLIT: scores}))
        problem = "reviews: pearson is nan by the recorded answers, and 99.00 in results.json"
        self.assertNotIn(problem.partition(" is nan")[0], " ".join(problems_of(folder)))
        change_json(folder / "results.json", lambda results: results["tasks"][SPLIT].update(pearson=99.0))
        self.assertIn(problem, problems_of(folder))

    def test_names_groups_and_averages_that_answers_do_not_give_are_named(self):
        folder = copy_of_record()
        change_json(
            folder / "results.json",
            lambda results: results.update(
                tasks={"rte": {"accuracy": 1}, SPLIT: {"invalid_rate": 0.0, "f1": None}},
                groups={SPLIT: {"town": {"Bonn": {"n": 9}}}},
                averages={"glue": 99.0},
            ),
        )
        (folder / "README.md").unlink()
        expected = [
            f"results.json {NO_FILE}",
            "reviews: results.json has no accuracy, which is 75.00 by the answers",
            "reviews: results.json has f1, which the recorded answers do not give",
            "reviews, town Bonn: results.json has n, which the recorded answers do not give",
            "rte: results.json has scores, but nothing was answered for it",
            "glue: results.json has an average, which the run's tasks do not give",
        ]
        self.assertEqual(problems_of(folder), expected)
        scores = {f"task_{number}": {} for number in range(40)}
        change_json(folder / "results.json", lambda results: results["tasks"].update(scores))
        *_, last = problems_of(folder)
        self.assertEqual(last, "16 more")  # of 46; 30 are shown

    @parameterized.parameters(
        (100.0, {"average": 87.5}, []),
        (100.0, {"average": 99.0}, ["average: the mean of the tasks is 87.50, and 99.00 in results.json"]),
        (100.0, {}, ["average: results.json has no average, and the mean of the tasks is 87.50"]),
        (None, {"average": None}, []),
        (None, {"average": 99.0}, ["average: the mean of the tasks is nan, and 99.00 in results.json"]),
    )
    def test_the_average_is_the_mean_of_the_tasks(self, accuracy, averages, problems):
        """None stands for NaN, as that of answers of which a correlation is not defined."""
        folder = copy_of_record()
        name_two_tasks(folder)
        scores = {"second": {"accuracy": accuracy, "invalid_rate": 0.0}}

        def change(results):
            results["averages"] = averages
            results["tasks"].update(scores)

        change_json(folder / "results.json", change)
        self.assertEqual([problem for problem in problems_of(folder) if "average" in problem], problems)

    @parameterized.parameters(
        # (the second task's error and, by an earlier version, the mean with it, what is named)
        ({"own (1 of 2 tasks)": 75.0}, 0), ({"average": -1462.5}, 0), ({"average": -1462.0}, 2),
        ({"average": -1462.5, "own (1 of 2 tasks)": 75.0}, 1),
    )  # fmt: skip
    def test_an_average_with_an_error_in_it_is_what_an_earlier_version_gave(self, averages, num_problems):
        folder = copy_of_record()
        name_two_tasks(folder)
        metric = "neg_mean_absolute_error"

        def change(manifest):
            entry = {**manifest["tasks"][SPLIT], "metric_names": [metric], "metric_to_optimize": metric}
            manifest["tasks"]["second"] = entry

        change_json(folder / "manifest.json", change)
        scores = {"second": {metric: -3000.0}}
        change_json(folder / "results.json", lambda results: results["tasks"].update(scores))
        change_json(folder / "results.json", lambda results: results.update(averages=averages))
        self.assertLen([problem for problem in problems_of(folder) if "average" in problem], num_problems)

    def test_the_hash_of_the_record_is_compared_with_one_from_elsewhere(self):
        folder = record_of_six_right_answers()
        sha256 = json.loads((folder / "manifest.json").read_text())["record_sha256"]
        for form in (sha256, sha256.upper()):
            self.assertEqual(verified(folder, "--scores_only", "--record_sha256", form)[0], 0)
        expected = f"the record is another one: its SHA-256 is {sha256}, not {'0' * 64}"
        self.assertEqual(differences(folder, "--scores_only", "--record_sha256", "0" * 64), [expected])

    def test_only_a_finished_run_that_has_answered_can_be_verified(self):
        with exits_with(65, f"a checkpoint has no scores of its own: give its run, {small_run()}"):
            run_cli("verify", small_run() / "checkpoint-1")
        for entries, message in (
            ({"status": "running"}, "the run is not finished .status 'running'."),
            ({"scored": {}}, "manifest.json names no answers"),
            ({"scored": {"rte": {"n": 1}}}, "'scored' has 'rte', which is a split of none of its 'tasks'"),
        ):
            folder = copy_of_record()
            set_entry(**entries)(folder)
            with exits_with(65, message):
                run_cli("verify", folder)

    def test_code_that_a_models_files_name_is_never_run(self):
        auto_map = {"AutoConfig": "lab/repository--modeling_x.Config", "AutoModel": ["modeling_x.X", None]}
        for configuration, settings, message in (
            ({"auto_map": auto_map}, {"trust_remote_code": True}, r"config.json: lab/repository--modeling_x.Config \(lab/repository: modeling_x.py\)"),
            ({"model_class": "mine.models:Slow"}, {}, r"config.json: model_class mine.models:Slow \(mine/models.py\)"),
        ):  # fmt: skip
            folder = copy_of_record()
            set_configuration(**configuration)(folder)
            set_flag(**settings)(folder)
            with exits_with(65, f"never run: .*{message}"):
                run_cli("verify", folder)

    def test_rows_are_read_from_where_they_are_now(self):
        folder = copy_of_record()
        (folder / ROWS).unlink()
        set_flag(validation_file="validation.jsonl", train_file="train.jsonl")(folder)
        make_hashes_anew(folder)
        set_entry(working_directory=str(small_run().parent))(folder)
        self.assertEmpty(problems_of(folder))
        set_entry(working_directory="/nowhere")(folder)
        with exits_with(65, "They are the author's own, and rows/reviews.validation.jsonl is missing"):
            run_cli("verify", folder, "--scores_only")
        mine = Path(tempfile.mkdtemp())
        rows = reviews(8, seed=2)
        for name in ("train", "validation"):
            write_rows(mine / f"{name}.jsonl", rows)
        self.assertNotIn("has changed", verified(folder, "--scores_only", "--data_dir", mine)[1])
        write_rows(mine / "validation.jsonl", [rows[1], *rows[1:]])
        _, output = verified(folder, "--scores_only", "--data_dir", mine)
        self.assertIn(f"was scored on: {mine / 'validation.jsonl'} has changed\n", output)


def reference_model(folder: Path):
    """The model of a run, as transformers reads it."""
    return transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()


def read_by_reference(texts: list[str]):
    return transformers.AutoTokenizer.from_pretrained(small_run())(texts, return_tensors="pt", padding=True)


def token(word: str) -> int:
    """The single piece of a word."""
    (piece, _) = transformers.AutoTokenizer.from_pretrained(small_run())(word).input_ids
    return piece


def texts_of_run() -> list[str]:
    return [row["text"] for row in reviews(8, seed=2)]


def give_both_labels_the_weights_of_one(folder: Path, share: float) -> None:
    """Makes the weights of `bad` a multiple of those of `good`."""
    tensors = load_file(folder / "model.safetensors")
    tensors["shared.weight"][token("bad")] = share * tensors["shared.weight"][token("good")]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def record_answers(folder: Path, answers: list[str]) -> None:
    lines = read_rows(folder / ANSWERS)
    write_rows(folder / ANSWERS, [{**line, "prediction": answer} for line, answer in zip(lines, answers, strict=True)])


def nats_of_bad_over_good(model) -> list[float]:
    """By how many nats a model prefers one label to the other, for each row."""
    scores = []
    for label in ("bad", "good"):
        decoder_ids = torch.tensor([[0, token(label)]]).expand(8, 2)
        with torch.no_grad():
            logits = model(**read_by_reference(texts_of_run()), decoder_input_ids=decoder_ids).logits
        log_probabilities = logits.log_softmax(-1)
        scores.append(log_probabilities[:, 0, token(label)] + log_probabilities[:, 1, 1])
    return (scores[0] - scores[1]).tolist()


class ModelTest(parameterized.TestCase):
    """A run's rows answered again, and by how much its model prefers another answer."""

    def test_an_untouched_run_is_equal(self):
        code, output = verified(small_run())
        self.assertEqual(code, 0, output)
        score = score_of_answers(small_run())
        self.assertStartsWith(
            output, f"equal: 8 of 8 answers, accuracy {score:.2f}, invalid_rate 0.00\nreviews: 8 rows, "
        )
        self.assertNotIn("different: ", output)

    def test_flags_replace_how_the_run_answered(self):
        """A number format for the products, too, and rows a batch for tokens a batch."""
        folder = copy_of_small_run()

        def change(manifest):
            manifest["answering"] |= {"batch_tokens": 4096, "autocast": "bf16"}

        change_json(folder / "manifest.json", change)
        make_hashes_anew(folder)
        _, output = verified(folder, "--batch_size", "3", "--dtype", "float32")
        for line in ("batch_tokens: 4096 then, none now", "autocast: bf16 then, no now"):
            self.assertIn(f"  {line}\n", output)
        self.assertRegex(output, r"  batch_rows: \d+ then, 3 now\n")

    def test_scores_that_are_others_now_stand_beside_the_recorded_ones(self):
        folder = copy_of_small_run()
        other_label = {"bad": "good", "good": "bad"}
        record_answers(folder, [other_label[line["prediction"]] for line in read_rows(folder / ANSWERS)])
        score = score_of_answers(small_run())
        set_score(folder, 100 - score)
        _, output = verified(folder)
        self.assertIn(f", accuracy (recorded {100 - score:.2f}, now {score:.2f}), invalid_rate 0.00\n", output)

        folder = copy_of_small_run()
        set_score(folder, 99.0)
        _, lines = in_json(folder)
        (split,) = [line for line in lines if "split" in line]
        self.assertEqual(split["scores"], {"accuracy": 99.0, "invalid_rate": 0.0})
        self.assertEqual(split["scores_now"], {"accuracy": score, "invalid_rate": 0.0})

    def test_apples_gpu_which_was_never_tested_answers_nothing(self):
        folder = copy_of_small_run()
        change_json(folder / "manifest.json", lambda manifest: manifest["answering"].update(device="cuda"))
        make_hashes_anew(folder)
        self.enter_context(mock.patch("torch.accelerator.is_available", return_value=True))
        self.enter_context(mock.patch("torch.accelerator.current_accelerator", return_value=torch.device("mps")))
        self.enter_context(mock.patch("torch.backends.mps.is_available", return_value=True))
        code, output = verified(folder)
        self.assertEqual(code, 0, output)
        self.assertIn("  device: cuda then, cpu now\n", output)

    @pytest.mark.slow
    def test_a_label_lies_as_far_away_as_the_models_probabilities_say(self):
        """The two labels have almost the same weights, so that in bfloat16 rounding may turn each answer.

        What differs around the run is named, besides.
        """
        folder = copy_of_small_run()
        give_both_labels_the_weights_of_one(folder, share=1.02)
        nats = nats_of_bad_over_good(reference_model(folder).bfloat16().float())
        unlikelier = ["good" if distance > 0 else "bad" for distance in nats]
        record_answers(folder, unlikelier)

        def change(manifest):
            manifest["versions"]["torch"] = "2.11.0"
            manifest["answering"]["ranks"] = 2
            manifest["hardware"]["gpus"] = ["NVIDIA H100"]

        change_json(folder / "manifest.json", change)
        verdict, lines = in_json(folder, "--dtype", "bfloat16", "--batch_size", "3", "--use_cpu")
        self.assertEqual((verdict["verdict"], verdict["answers"], verdict["equal"]), ("different", 8, 0))
        rows = [line for line in lines if "nats" in line]
        self.assertEqual([(row["row"], row["recorded"]) for row in rows], list(enumerate(unlikelier)))
        self.assertEqual([row["key"] for row in rows], [f"validation.jsonl:{number}" for number in range(1, 9)])
        for row, distance in zip(rows, nats, strict=True):
            self.assertAlmostEqual(row["nats"], abs(distance), 4)
            self.assertBetween(row["nats"], 1e-3, 0.25)
            self.assertTrue(row["is_near_tie"])
        then_and_now = {line["differs"]: (line["then"], line["now"]) for line in lines if "differs" in line}
        self.assertEqual(then_and_now["dtype"], ("float32", "bfloat16"))
        self.assertEqual(then_and_now["batch_rows"], ("64", "3"))
        self.assertEqual(then_and_now["ranks"], ("2", "1"))
        self.assertEqual(then_and_now["gpus"][0], "NVIDIA H100")
        self.assertEqual(then_and_now["torch"][0], "2.11.0")

    @pytest.mark.slow
    def test_in_float32_only_what_is_almost_equally_likely_is_a_near_tie(self):
        folder = copy_of_small_run()
        give_both_labels_the_weights_of_one(folder, share=1.00005)
        nats = nats_of_bad_over_good(reference_model(folder))
        self.assertBetween(max(map(abs, nats)), 1e-5, 1e-3)
        record_answers(folder, ["good" if distance > 0 else "bad" for distance in nats])
        _, output = verified(folder)
        self.assertRegex(output, "^different: 0 of 8 answers are equal, the others are near ties; ")
        self.assertLen(difference_of_answers(output), 8)
        for line in difference_of_answers(output):
            self.assertEndsWith(line, " nats apart: a near tie, which rounding may turn")

    @parameterized.parameters((True, "a near tie"), (False, "no near tie"))
    @pytest.mark.quick_cases(1)
    def test_tf32_has_near_ties_of_its_own(self, tf32, verdict):
        """The run's model answers in TF32 again where the machine can; distances are those of float32."""
        self.addCleanup(setattr, torch.backends, "fp32_precision", torch.backends.fp32_precision)
        folder = copy_of_small_run()
        give_both_labels_the_weights_of_one(folder, share=1.003)
        nats = nats_of_bad_over_good(reference_model(folder))
        for distance in map(abs, nats):
            self.assertBetween(distance, 1e-3, 0.05)
        record_answers(folder, ["good" if distance > 0 else "bad" for distance in nats])
        change_json(folder / "manifest.json", lambda manifest: manifest["answering"].update(tf32=tf32))
        _, output = verified(folder)
        self.assertLen(difference_of_answers(output), 8)
        for line in difference_of_answers(output):
            self.assertIn(f"nats apart: {verdict}", line)
        self.assertNotIn("tf32", output)

    def test_weights_in_8_bits_of_a_run_on_the_cpu_are_loaded_there(self):
        """Also on a machine with a GPU, which accelerate takes where a process says nothing else."""
        folder = copy_of_small_run()
        change_json(folder / "manifest.json", lambda manifest: manifest["settings"].update(load_in_8bit=True))
        states = []
        find_spec = importlib.util.find_spec

        def find_bitsandbytes(name, package=None):
            return find_spec("json" if name.startswith("bitsandbytes") else name, package)

        def state_on_gpu_machine(cpu=False):
            states.append(SimpleNamespace(device=torch.device("cpu" if cpu else "cuda")))
            return states[0]  # the first call chooses for the process

        model_class = transformers.AutoModelForSeq2SeqLM
        with (
            mock.patch("accelerate.PartialState", state_on_gpu_machine),
            mock.patch("torch.cuda.current_device", lambda: 0),
            mock.patch("importlib.util.find_spec", find_bitsandbytes),
            mock.patch("transformers.BitsAndBytesConfig"),
            mock.patch.object(model_class, "from_pretrained", side_effect=LookupError("reached")) as load,
            self.assertRaisesRegex(LookupError, "reached"),
        ):
            verified(folder)
        self.assertEqual(load.call_args.kwargs["device_map"], {"": "cpu"})

    def test_a_text_lies_as_far_away_as_its_first_other_token(self):
        """The farthest rows come first."""
        folder = copy_of_small_run()
        change_json(folder / "manifest.json", lambda manifest: manifest["scored"][SPLIT].update(method="generate"))
        record_answers(folder, ["good"] * 8)
        with torch.no_grad():
            start = torch.zeros((8, 1), dtype=torch.long)
            logits = reference_model(folder)(**read_by_reference(texts_of_run()), decoder_input_ids=start).logits[:, 0]
        nats = logits.max(1).values - logits[:, token("good")]
        self.assertGreater(nats.min(), 0.25)
        farthest = nats.argsort(descending=True)[:2].tolist()
        code, output = verified(folder, "--max_rows", "2")
        self.assertEqual(code, 1)
        self.assertIn("\n  and 6 more rows (--max_rows)\n", output)
        shown = [
            re.search(r"row (\d+).* now; ([\d.]+) nats apart: no near tie", line)
            for line in difference_of_answers(output)
        ]
        self.assertEqual([int(line[1]) for line in shown], farthest)
        for line, row in zip(shown, farthest):
            self.assertAlmostEqual(float(line[2]), nats[row].item(), 2)

    def test_a_loss_is_compared_with_that_of_the_model(self):
        folder = copy_of_small_run()
        change_json(folder / "manifest.json", lambda manifest: manifest["scored"][SPLIT].update(method="loss"))
        change_json(
            folder / "results.json", lambda results: results["tasks"].update({SPLIT: {"loss": 0.2, "nll": 0.1}})
        )
        labels = torch.tensor([[token(row["label"]), 1] for row in reviews(8, seed=2)])
        with torch.no_grad():
            loss = reference_model(folder)(**read_by_reference(texts_of_run()), labels=labels).loss.item()
        problems = differences(folder)
        self.assertIn("reviews: results.json has nll, which the model does not give", problems)
        (problem,) = [line for line in problems if "by the model" in line]
        shown = re.fullmatch(r"reviews: loss is (\d+\.\d{6}) by the model, and 0.200000 in results.json", problem)
        self.assertAlmostEqual(float(shown[1]), loss, 4)

    @pytest.mark.slow
    def test_rows_that_are_others_or_fewer_are_not_measured(self):
        folder = copy_of_small_run()
        change_row_text(folder)
        swap_answer(folder)
        (row,) = [line for line in in_json(folder)[1] if "nats" in line]
        self.assertEqual((row["row"], row["nats"], row["rows_changed"]), (0, None, True))
        drop_row(folder)
        self.assertStartsWith(verified(folder)[1], "different: 0 of 7 answers are equal, 7 were not compared; ")

    def test_another_tokenizer_answers_nothing(self):
        folder = copy_of_small_run()
        change_tokenizer(folder)
        code, output = verified(folder)
        self.assertEqual(code, 1)
        self.assertStartsWith(
            output, "different: the record of 8 answers; the model was not run (its tokenizer is another one)\n"
        )
        self.assertIn("\ndifferent: the tokenizer is another one: its 621 pieces and their ids differ\n", output)

    def test_each_task_is_answered_by_the_weights_of_its_best_step(self):
        """Those here prefer `good` where the last ones prefer `bad`: the two words have exchanged their weights."""
        folder = copy_of_small_run()
        set_flag(select="per_task")(folder)
        set_entry(best_per_task={SPLIT: {"step": 1}})(folder)
        with exits_with(65, "best/reviews is missing"):
            run_cli("verify", folder)
        best = folder / "best" / SPLIT
        shutil.copytree(small_run(), best, ignore=shutil.ignore_patterns("checkpoint-*", "logs"))
        tensors = load_file(best / "model.safetensors")
        pieces = [token("good"), token("bad")]
        tensors["shared.weight"][pieces] = tensors["shared.weight"][pieces[::-1]]
        save_file(tensors, best / "model.safetensors", metadata={"format": "pt"})
        verdict, lines = in_json(folder)
        self.assertEqual(verdict["equal"], 0)
        answers = [line["prediction"] for line in read_rows(folder / ANSWERS)]
        turned = [{"good": "bad", "bad": "good"}[answer] for answer in answers]
        self.assertEqual([line["now"] for line in lines if "now" in line and "row" in line], turned)

    def test_a_model_that_was_evaluated_is_the_one_that_the_run_has_read(self):
        folder = copy_of_record()
        trained = Path(tempfile.mkdtemp()) / "trained"
        shutil.copytree(small_run(), trained, ignore=shutil.ignore_patterns("checkpoint-*", "logs"))
        names = (
            "model.safetensors",
            "config.json",
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
        )
        for name in names:
            (folder / name).unlink()
        hashes = {name: sha256(trained / name) for name in names}

        def change(manifest):
            del manifest["training"]
            manifest["files"] = {name: value for name, value in manifest["files"].items() if name not in names}
            manifest["settings"]["model_name_or_path"] = "trained"
            manifest.update(working_directory=str(trained.parent), model_files=hashes)

        change_json(folder / "manifest.json", change)
        self.assertEqual(problems_of(folder), [OTHER_MANIFEST])
        change_idle_weight(trained)
        place = f"the model in {trained}"
        expected = f"{place}: model.safetensors is not the file that the run has read (SHA-256)"
        self.assertEqual(problems_of(folder), [OTHER_MANIFEST, expected])
        shutil.rmtree(trained)
        with exits_with(65, "the model that answered, trained, is missing"):
            run_cli("verify", folder)

    @pytest.mark.slow
    def test_an_export_chooses_labels_in_place_of_the_model(self):
        pytest.importorskip("ctranslate2")
        exported = Path(tempfile.mkdtemp()) / "exported"
        run_cli("export", "--model_name_or_path", small_run(), "--output_dir", exported, "--format", "ctranslate2")
        code, output = verified(small_run(), "--exported", exported)
        self.assertEqual(code, 0, output)
        self.assertStartsWith(output, "equal: 8 of 8 answers")
        self.assertIn("\n  answered by: the run's model then, CTranslate2", output)

    @pytest.mark.slow
    def test_an_encoder_s_export_answers_with_the_whole_template(self):
        pytest.importorskip("onnxruntime")
        rows = [{"text": f"parcel {i}", "label": ("bad", "good")[i % 2]} for i in range(8)]
        flags = {"text_column": "text", "target_column": "label", "labels": ["bad", "good"], "max_steps": 1}
        sizes = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=32"
        path = str(write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", rows))
        files = {"data_format": "jsonl", "train_file": path, "validation_file": path}
        form = {"output_format": "It is __output__."}
        run = tiny_run(config_name="bert", config_overrides=sizes, **form, **flags, **files).directory
        exported = Path(tempfile.mkdtemp()) / "onnx"
        run_cli("export", "--model_name_or_path", run, "--output_dir", exported, "--format", "onnx")
        code, output = verified(run, "--exported", exported)
        self.assertEqual(code, 0, output)
        self.assertStartsWith(output, "equal: 8 of 8 answers")

    def test_an_export_that_is_none_is_refused(self):
        with exits_with(78, "--exported .*: no folder of t5suite export"):
            run_cli("verify", small_run(), "--exported", small_run())


@pytest.mark.slow
class HonestDifferencesTest(parameterized.TestCase):
    """What differs between then and now is named; answers that stay the same are equal all the same."""

    def test_the_size_of_batches(self):
        code, output = verified(finished_run(), "--batch_size", "3")
        self.assertEqual(code, 0, output)
        self.assertIn("  batch_rows: 64 then, 3 now\n", output)

    def test_the_number_format(self):
        code, output = verified(finished_run(), "--dtype", "bfloat16")
        self.assertIn("  dtype: float32 then, bfloat16 now\n", output)
        for line in difference_of_answers(output):
            distance = float(re.search("now; (.*) nats apart", line)[1])
            self.assertEqual(distance <= 0.25, "near tie, which rounding may turn" in line, line)
        self.assertEqual(code, bool(difference_of_answers(output)))

    def test_versions_ranks_and_machine(self):
        folder = copy_of_run()

        def change(manifest):
            manifest["versions"]["torch"] = "2.11.0"
            manifest["answering"]["ranks"] = 2
            manifest["hardware"]["processor"] = "AMD EPYC 9R14"
            manifest["hardware"]["gpus"] = ["NVIDIA H100"]
            manifest["answering"]["device"] = "cuda"

        change_json(folder / "manifest.json", change)
        make_hashes_anew(folder)
        code, output = verified(folder, "--use_cpu")
        self.assertEqual(code, 0, output)
        self.assertRegex(output, r"\n  torch: 2.11.0 then, \S+ now\n")
        for line in ("ranks: 2 then, 1 now", "device: cuda then, cpu now", "gpus: NVIDIA H100 then, none now"):
            self.assertIn(f"  {line}\n", output)
        self.assertRegex(output, r"\n  processor: AMD EPYC 9R14 then, .+ now\n")

    def test_rows_are_found_where_they_are_now(self):
        folder = copy_of_run()
        (folder / ROWS).unlink()
        set_flag(validation_file="/nowhere/validation.jsonl", train_file="/nowhere/train.jsonl")(folder)
        moved = Path(tempfile.mkdtemp())
        for name in ("train", "validation"):
            shutil.copy(finished_run().parent / f"{name}.jsonl", moved)
        make_hashes_anew(folder)
        code, output = verified(folder, "--data_dir", moved)
        self.assertEqual(code, 0, output)
        rows = reviews(40, seed=2)
        rows[3]["label"] = "good" if rows[3]["label"] == "bad" else "bad"
        write_rows(moved / "validation.jsonl", rows)
        code, output = verified(folder, "--data_dir", moved)
        self.assertEqual(code, 1, output)
        self.assertRegex(output, "validation.jsonl has changed")
        self.assertIn("1 targets are not those of the rows: row 3", output)

    def test_many_rows_are_counted_and_json_has_all(self):
        folder = copy_of_run()
        change_weights(folder)
        code, output = verified(folder, "--max_rows", "2")
        self.assertEqual(code, 1)
        self.assertRegex(output, r"\n  and \d\d more rows \(--max_rows\)\n")
        self.assertLen(difference_of_answers(output), 2)
        code, output = verified(folder, "--json")
        self.assertEqual(code, 1)
        first, *others = [json.loads(line) for line in output.splitlines()]
        num_different = sum("recorded" in line for line in others)
        self.assertEqual((first["verdict"], first["answers"], first["equal"]), ("different", 40, 40 - num_different))
        not_shown = ["where the rows of reviews come from (they are the author's own)", "how the weights were trained"]
        self.assertEqual((first["not_answered"], first["unverified"]), (None, not_shown))
        _, output = verified(folder, "--json", "--scores_only")
        self.assertEqual(json.loads(output.splitlines()[0])["not_answered"], "--scores_only")
        self.assertGreater(num_different, 2)

    def test_labels_that_are_chosen_by_their_scores(self):
        folder = tiny_run(eval_method="score", max_eval_samples=30).directory
        code, output = verified(folder)
        self.assertEqual(code, 0, output)
        self.assertStartsWith(output, "equal: 30 of 30 answers, accuracy ")
        code, output = verified(folder, "--scores_only")
        self.assertEqual(code, 0, output)
        self.assertStartsWith(output, "equal: the record of 30 answers; the model was not run (--scores_only)\n")

    @parameterized.parameters(
        {"model_family": "encoder", "dataset_name": "sentiment"},
        {"config_name": "bert", "config_overrides": BERT, "dataset_name": "entailment"},
        {"config_name": "bert", "config_overrides": BERT, "dataset_name": "similarity"},
        {"config_name": "gpt2", "config_overrides": GPT2, "dataset_name": "sentiment,entailment"},
        {"config_name": "bart", "config_overrides": BART, "dataset_name": "sentiment", "generation_num_beams": 2},
        {"bf16": True, "dataset_name": "sentiment,similarity", "per_device_eval_batch_size": 7},
        {"adapter": "lora", "dataset_name": "sentiment"},
    )
    def test_every_family_and_way_of_answering_is_repeated(self, **flags):
        folder = tiny_run(max_eval_samples=30, **flags).directory
        code, output = verified(folder)
        self.assertEqual(code, 0, output)
        self.assertRegex(output, r"^equal: (30 of 30|60 of 60) answers")

    def test_the_base_model_that_a_run_keeps_below_its_adapter(self):
        folder = tiny_run(max_eval_samples=8, max_steps=1, dataset_name="sentiment", adapter="lora").directory
        _, output = verified(folder, "--scores_only")
        self.assertNotIn("the adapter's base", output)
        with (folder / "base" / "model.safetensors").open("ab") as file:
            file.write(b" ")
        self.assertRegex("\n".join(problems_of(folder)), "base/model.safetensors")

    def test_each_task_with_the_weights_of_its_best_step(self):
        flags = {"select": "per_task", "eval_strategy": "steps", "eval_steps": 1, "learning_rate": 0.1}
        folder = tiny_run(max_eval_samples=30, dataset_name="sentiment,entailment", max_steps=3, **flags).directory
        code, output = verified(folder)
        self.assertEqual(code, 0, output)
        shutil.rmtree(folder / "best" / "entailment")
        with exits_with(65, "best/entailment is missing"):
            run_cli("verify", folder)

    def test_an_evaluation_of_another_model_that_a_relative_path_names(self):
        place = Path(tempfile.mkdtemp())
        shutil.copytree(copy_of_run(), place / "trained")
        flags = ["--benchmark", "mini", "--dataset_name", "sentiment", "--max_eval_samples", "30", "--use_cpu"]
        words = ["evaluate", "--model_name_or_path", "trained", "--output_dir", "scored", *flags]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "t5suite", *words]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        code, output = verified(place / "scored")
        self.assertEqual(code, 0, output)
        self.assertStartsWith(output, "equal: 30 of 30 answers, accuracy ")
        self.assertNotIn("the weights of", output)
        change_idle_weight(place / "trained")
        code, output = verified(place / "scored")
        self.assertEqual(code, 1, output)
        self.assertIn("trained: model.safetensors is not the file that the run has read (SHA-256)\n", output)
        change_json(place / "scored" / "manifest.json", lambda manifest: manifest.pop("model_files"))
        make_hashes_anew(place / "scored")
        code, output = verified(place / "scored")
        self.assertEqual(code, 0, output)
        self.assertRegex(output, r"cannot be verified: the weights of .*trained \(no hashes were recorded\)\n")
        shutil.rmtree(place / "trained")
        with exits_with(65, "the model that answered, trained, is missing"):
            run_cli("verify", place / "scored")

    def test_an_export_answers_no_longer_than_the_run(self):
        pytest.importorskip("onnxruntime")
        source = tiny_run(dataset_name="similarity", generation_max_length=2).directory
        answers = [line["prediction"] for line in read_rows(source / "predictions" / "similarity.validation.jsonl")]
        exported = Path(tempfile.mkdtemp()) / "onnx"
        run_cli("export", "--model_name_or_path", source, "--output_dir", exported, "--format", "onnx")
        code, output = verified(source, "--exported", exported)
        self.assertEqual(code, 0, output)
        self.assertNotEmpty("".join(answers))

    @parameterized.parameters("generate", "score")
    def test_an_export_answers_in_place_of_the_model(self, method):
        pytest.importorskip("onnxruntime")
        source = finished_run() if method == "generate" else tiny_run(eval_method="score").directory
        exported = Path(tempfile.mkdtemp()) / "onnx"
        run_cli("export", "--model_name_or_path", source, "--output_dir", exported, "--format", "onnx")
        code, output = verified(source, "--exported", exported)
        self.assertEqual(code, 0, output)
        self.assertRegex(output, r"\n  answered by: the run's model then, ONNX files in .* now\n")
        with exits_with(78, "--exported .*: no folder of t5suite export"):
            run_cli("verify", source, "--exported", source)
