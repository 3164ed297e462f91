"""`t5suite verify`: an untouched run is equal; what was tampered with is found, or only a hash from elsewhere shows it."""

import functools
import hashlib
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
from unittest import mock

import pytest
from absl.testing import parameterized
from hub_server import HubServer
from huggingface_hub import HfApi
from safetensors.torch import load_file, save_file

from t5suite.testing import exits_with, read_rows, run_cli, tiny_run, tiny_trainer, write_rows

ROOT = Path(__file__).parent.parent
WORDS = {"good": ("lovely", "pleasant", "wonderful"), "bad": ("dull", "awful", "unpleasant")}
NOUNS = ("garden", "play", "film", "hotel", "bed", "stage", "meal", "singer")
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


PRIVATE = ("command", "working_directory", "packages", "code_changes", "asked", "restarts", "changes", "ended")
NOT_HASHED = ("record_sha256", "withheld", "status", "finished")
PLACES = re.compile(r"(?<![^\s=,:'\"(\[`])(?:~[\w.-]*/|/(?!/))[^\s,:'\")\]`]*")


def without_places(value):
    if isinstance(value, str):
        return PLACES.sub(lambda path: f"…/{path[0].rstrip('/').split('/')[-1]}", value)
    if isinstance(value, dict):
        return {without_places(key): without_places(part) for key, part in value.items()}
    return [without_places(part) for part in value] if isinstance(value, list) else value


def hash_of_record(manifest: dict) -> str:
    """What `record_sha256` is, written once more from its description."""
    record = {key: value for key, value in manifest.items() if key not in PRIVATE + NOT_HASHED}
    for key in ("settings", "data", "title", "hub", "model"):
        record[key] = without_places(record[key])
    text = json.dumps(record, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def make_hashes_anew(folder: Path) -> None:
    """What somebody does who hides a change: every hash in the manifest fits the files as they are now."""

    def renew(manifest):
        manifest["files"] = {name: sha256(folder / name) for name in manifest["files"]}
        rows = read_rows(folder / ROWS)
        text = "".join(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in rows)
        facts = manifest["scored"][SPLIT]
        facts["rows_sha256"] = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
        facts["n"] = len(rows)
        manifest["record_sha256"] = hash_of_record(manifest)

    change_json(folder / "manifest.json", renew)


# What is tampered with, what verification says, and what it says after every hash was made anew; None: nothing, since
# the record is then that of another run, which only a hash from elsewhere can show.
CASES = {
    "an answer": (swap_answer, "predictions/reviews.*SHA-256", "row 0.* recorded"),
    "an answer and its score": (swap_answer_and_score, "results.json is not the file", "row 0.*no near tie"),
    "a score": (raise_score, "accuracy is .* by the recorded answers", "accuracy is .* by the recorded answers"),
    "the card": (raise_score_on_card, "accuracy is 99.00 on the card", "accuracy is 99.00 on the card"),
    "a row's text": (change_row_text, "rows/reviews.* has changed", "row 0.* recorded"),
    "a row's label": (change_row_label, "rows/reviews.* has changed", "targets are not those of the rows: row 0"),
    "a row left out": (drop_row, "40 rows then, 39 now", None),
    "weights": (change_weights, "model.safetensors is not the file", "no near tie"),
    "a weight that alters no answer": (change_idle_weight, "model.safetensors is not the file", None),
    "a setting of the answers": (change_length, "manifest.json does not say", "row .* recorded"),
    "a setting of the training": (change_learning_rate, "manifest.json does not say", None),
    "the tokenizer": (change_tokenizer, "tokenizer.json is not the file", "the tokenizer is another one"),
    "the text's form": (change_prefix, "manifest.json does not say", "row .* recorded"),
    "the metric": (change_metric, "manifest.json does not say", "accuracy, which is no metric of the task"),
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


def uploaded_files(folder: Path) -> dict[str, bytes]:
    """What `--push_to_hub` sends of a run's directory."""
    sent = {}

    def take(_, *, folder_path, **options):
        for path in sorted(Path(folder_path).rglob("*")):
            if path.is_file():
                sent[path.relative_to(folder_path).as_posix()] = path.read_bytes()

    trainer = tiny_trainer(output_dir=str(folder))
    trainer.hub_model_id = "ada/reviews"
    with mock.patch.object(HfApi, "upload_folder", take):
        trainer.push_to_hub("a message")
    return sent


@pytest.mark.slow
class HubTest(parameterized.TestCase):
    def verified_there(self, hub, *flags) -> subprocess.CompletedProcess:
        environment = {**os.environ, **hub.environment(tempfile.mkdtemp()), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "t5suite", "verify", "ada/reviews", *flags]
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)

    def test_a_run_that_was_pushed_with_its_rows_verifies_from_the_hub(self):
        folder = copy_of_run()
        with HubServer() as hub:
            sent = uploaded_files(folder)
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
    (write_text("manifest.json", "{"), "manifest.json"),
    (write_text("results.json", "[]"), "results.json: not a run's results"),
    (write_text(ANSWERS, '{"row": 0}\n'), "jsonl:1: not a line of predictions"),
    (write_text("model.safetensors", "x"), "the model cannot be loaded: .*model.safetensors"),
    (set_flag(task_file="my_tasks.py"), "code, which is never run: --task_file my_tasks.py"),
    (set_flag(metrics="accuracy,os.path:exists"), r"never run: --metrics os.path:exists \(os/path.py\)"),
    (set_flag(model_class="mine.models:Slow"), r"never run: --model_class mine.models:Slow \(mine/models.py\)"),
)
WRONG_FLAGS = (
    (("--batch_size", "0"), "--batch_size 0: must be at least 1"),
    (("--max_rows", "-1"), "--max_rows -1: must be at least 0"),
    (("--scores_only", "--batch_size", "4"), "--batch_size has no effect with --scores_only"),
    (("--scores_only", "--dtype", "bfloat16"), "--dtype has no effect with --scores_only"),
    (("--model_revision", "main"), "--model_revision main has no effect: .* is a folder"),
    (("--record_sha256", "abc"), "--record_sha256 abc: a SHA-256 has 64 hexadecimal digits"),
    (("--dtype", "int8"), "--dtype.*int8"),
)


@pytest.mark.slow
class RefusalTest(parameterized.TestCase):
    @parameterized.parameters(*range(len(REFUSALS)))
    def test_a_run_that_cannot_be_verified_ends_with_65_and_names_the_file(self, number):
        spoil, message = REFUSALS[number]
        folder = copy_of_run()
        spoil(folder)
        with exits_with(65, message):
            run_cli("verify", folder)

    @parameterized.parameters(*WRONG_FLAGS)
    def test_flags_without_effect_or_sense_end_with_78(self, flags, message):
        with exits_with(78, message):
            run_cli("verify", finished_run(), *flags)

    @parameterized.parameters(
        ("nowhere/at/all", "no such folder, nor OWNER/MODEL"),
        ("no_such_run", "no such folder, nor OWNER/MODEL"),
        (__file__, "a file; give the run's directory"),
    )
    def test_a_run_that_is_nowhere_ends_with_78(self, run, message):
        with exits_with(78, message):
            run_cli("verify", run)
