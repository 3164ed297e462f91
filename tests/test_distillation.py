"""A student learns its targets and its teacher's distributions: the loss of the paper, law 1, exact resume."""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import family_worker
import pytest
import torch
from absl.testing import parameterized
from recorded_batches import fine_tuning_batches
from safetensors.torch import load_file
from support import later_wins

import fine_tune_t5
from t5suite import load_task
from t5suite.testing import (
    TINY_T5,
    bundled_model,
    encode_rows,
    exits_with,
    read_rows,
    run_cli,
    save_model,
    tiny_model,
    tiny_rows,
    tiny_tokenizer,
    tiny_tuner,
    write_rows,
)

# A class of models such as a repository brings along.
CODE = """
from transformers import T5ForConditionalGeneration

class OwnT5(T5ForConditionalGeneration):
    pass
"""
RELATIVE = 5e-6
ALPHA, TEMPERATURE = 0.7, 3.0
# 8 + 8 + 5: the last update is not full.
ROWS = tiny_rows("entailment", count=21)
FLAGS = (
    "--benchmark=mini --dataset_name=sentiment --max_train_samples=40 --max_eval_samples=8 --max_steps=4 --use_cpu "
    "--per_device_train_batch_size=4 --eval_strategy=steps --eval_steps=2 --logging_steps=1 --disable_tqdm=True "
    "--save_total_limit=8 --save_strategy=steps --save_steps=2 --load_best_model_at_end=False "
    "--config_overrides=d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"
).split()


@functools.cache
def models() -> tuple:
    """A student and its teacher, both with logits beyond the vocabulary's 621 pieces."""
    return tuple(tiny_model(config_overrides=f"{TINY_T5},vocab_size={630 + seed}", seed=seed).eval() for seed in (0, 7))


@functools.cache
def folders() -> tuple[Path, Path]:
    place = Path(tempfile.mkdtemp())
    return tuple(save_model(place / name, model) for name, model in zip(("student", "teacher"), models(), strict=True))


@functools.cache
def training_flags() -> list[str]:
    """Three updates of a student with a teacher."""
    student, teacher = folders()
    file = write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", ROWS)
    return [
        *("--benchmark=mini", "--dataset_name=entailment", f"--train_file={file}", "--num_train_epochs=1"),
        *(f"--model_name_or_path={student}", "--max_source_length=64", "--max_target_length=16", "--no_eval"),
        *(f"--teacher={teacher}", f"--distillation_alpha={ALPHA}", f"--distillation_temperature={TEMPERATURE}"),
        *("--optim=sgd", "--learning_rate=1e-2", "--logging_steps=1", "--disable_tqdm=True", "--use_cpu"),
    ]


def history_of(directory: Path) -> dict[str, list[float]]:
    lines = [line for line in read_rows(directory / "metrics.jsonl") if "train/loss" in line]
    return {name: [line.get(f"train/{name}") for line in lines] for name in ("loss", "kl", "grad_norm")}


@functools.cache
def history(batch_size: int, accumulation: int) -> dict:
    """Losses, distances and gradient norms."""
    directory = Path(tempfile.mkdtemp()) / "run"
    cut = [f"--per_device_train_batch_size={batch_size}", f"--gradient_accumulation_steps={accumulation}"]
    fine_tune_t5.main([*training_flags(), *cut, f"--output_dir={directory}"])
    return history_of(directory)


def teacher_folder() -> Path:
    """A model of another width with random weights."""
    model = tiny_model(config_overrides="d_model=48,d_kv=8,num_layers=1,num_heads=2", seed=5)
    return save_model(Path(tempfile.mkdtemp()) / "teacher", model)


def train(folder, *flags) -> dict:
    return fine_tune_t5.main(later_wins(FLAGS, [f"--output_dir={folder}"], flags))


SMOOTHING, Z_LOSS = 0.1, 0.05


def loss_of_targets(logits, labels) -> float:
    """The mean over targets of their smoothed surprisal and of the squared log-normaliser's share."""
    losses = []
    for logits_V, label in zip(logits[labels.ne(-100)].double(), labels[labels.ne(-100)], strict=True):
        normaliser = logits_V.exp().sum().log()
        log_p = logits_V - normaliser
        surprisal = -(1 - SMOOTHING) * log_p[label] - SMOOTHING * log_p.mean()
        losses.append(surprisal + Z_LOSS * normaliser**2)
    return float(sum(losses) / len(losses))


class TargetsTest(parameterized.TestCase):
    @parameterized.product(name=("t5", "gpt2", "bert"), is_taught=(True, False))
    def test_smoothing_and_z_loss_are_of_the_targets_of_every_family_with_and_without_a_teacher(self, name, is_taught):
        """A teacher with the student's own weights is at no distance: what is left is the targets' share."""
        place = family_worker.place_of(name, "entailment")
        flags = {"label_smoothing_factor": SMOOTHING, "z_loss": Z_LOSS, "train_file": str(place / "train.jsonl")}
        flags |= {"max_steps": 1, "logging_steps": 1, "eval_strategy": "no", "save_strategy": "no"}
        flags |= {"quiet": True, "use_cpu": True, "output_dir": str(Path(tempfile.mkdtemp()) / "run")}
        if is_taught:
            flags |= {"teacher": str(place / "model"), "distillation_alpha": ALPHA}
        (batch,) = fine_tuning_batches(str(place / "model"), "mini/entailment", **flags)
        labels = batch.pop("labels")
        with torch.no_grad():
            logits = family_worker.model_of(name, load_task("mini", "entailment"))(**batch).logits
        share = 1 - ALPHA if is_taught else 1
        (loss,) = history_of(Path(flags["output_dir"]))["loss"]
        self.assertAlmostEqual(loss, share * loss_of_targets(logits, labels), places=5)


class LossTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_it_is_the_paper_s_token_by_token(self):
        """Of the pieces alone: logits beyond the vocabulary are rows of padding."""
        student, teacher = models()
        pieces, loss, kl, count = 621, 0.0, 0.0, 0
        for row in encode_rows(ROWS, load_task("mini", "entailment")):
            batch = {name: torch.tensor([row[name]]) for name in ("input_ids", "labels")}
            with torch.no_grad():
                ours, theirs = (model(**batch).logits[0].double() for model in (student, teacher))
            for t, label in enumerate(row["labels"]):
                loss -= (1 - ALPHA) * ours[t].log_softmax(0)[label]
                p, q = ((logits[t, :pieces] / TEMPERATURE).exp() for logits in (theirs, ours))
                p, q = p / p.sum(), q / q.sum()
                distance = (p * (p / q).log()).sum()
                kl += distance
                loss += ALPHA * TEMPERATURE**2 * distance
                count += 1
        whole = history(32, 1)
        self.assertLen(whole["loss"], 1)
        self.assertAlmostEqual(whole["loss"][0], float(loss) / count, places=5)
        self.assertAlmostEqual(whole["kl"][0], float(kl) / count, places=5)

    @pytest.mark.slow
    def test_cutting_an_update_into_micro_batches_changes_nothing(self):
        self.assert_near(history(2, 4), history(8, 1))

    @pytest.mark.slow
    def test_cutting_it_in_two_changes_nothing(self):
        self.assert_near(history(4, 2), history(8, 1))

    def assert_near(self, course: dict, expected: dict):
        for key, values in expected.items():
            self.assertLen(values, 3)
            for a, b in zip(course[key], values, strict=True):
                self.assertLess(abs(a - b) / abs(b), RELATIVE, key)

    @pytest.mark.slow
    @pytest.mark.ranks
    def test_two_ranks_equal_one(self):
        directory = Path(tempfile.mkdtemp()) / "run"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        words = [
            fine_tune_t5.__file__,
            *training_flags(),
            "--per_device_train_batch_size=4",
            f"--output_dir={directory}",
        ]
        subprocess.run([*launcher, *words], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=300)
        self.assert_near(history_of(directory), history(8, 1))


class RunTest(parameterized.TestCase):
    @pytest.mark.slow
    @pytest.mark.resume
    def test_a_resumed_run_ends_with_the_same_bytes_and_its_teacher_is_never_saved(self):
        teacher, place = teacher_folder(), Path(tempfile.mkdtemp())
        distil = [f"--teacher={teacher}", "--dropout_rate=0.1"]
        train(place / "whole", *distil)
        train(place / "resumed", *distil, f"--resume={place / 'whole' / 'checkpoint-2'}")
        train(place / "alone", "--dropout_rate=0.1")
        whole, resumed, alone = (load_file(place / n / "model.safetensors") for n in ("whole", "resumed", "alone"))
        self.assertEqual(whole.keys(), alone.keys())
        self.assertTrue(all(torch.equal(whole[name], resumed[name]) for name in whole))
        self.assertFalse(all(torch.equal(whole[name], alone[name]) for name in whole))
        lines = [line for line in read_rows(place / "whole" / "metrics.jsonl") if "train/loss" in line]
        self.assertTrue(all(line["train/kl"] > 0 for line in lines))
        self.assertEqual(json.loads((place / "whole" / "manifest.json").read_text())["teacher"]["name"], str(teacher))
        shutil.copy(place / "alone" / "model.safetensors", teacher)
        shutil.copy(place / "alone" / "config.json", teacher)
        with exits_with(78, "weights have changed since this run began"):
            train(place / "whole", *distil, "--max_steps=6", "--extend")

    def test_a_run_goes_on_with_its_teacher_in_another_place_and_not_with_other_weights_in_the_same(self):
        place = Path(tempfile.mkdtemp())
        first, second = (shutil.copytree(folders()[1], place / name) for name in ("first", "second"))

        def go_on(teacher, steps, *flags):
            train(place / "run", f"--teacher={teacher}", f"--max_steps={steps}", "--extend", *flags)

        def changes_of_teacher() -> list:
            changes = json.loads((place / "run" / "manifest.json").read_text())["changes"]
            return [entry["changed"]["teacher"] for entry in changes if "teacher" in entry["changed"]]

        go_on(first, 1)
        with exits_with(78, "first.* there, .*second.* here.*--allow_changed teacher"):
            go_on(second, 2)
        go_on(second, 2, "--allow_changed=teacher")
        self.assertEqual(changes_of_teacher(), [[str(first), str(second)]])
        save_model(second, tiny_model(config_overrides=f"{TINY_T5},vocab_size=637", seed=8))
        with exits_with(78, "second: its weights have changed .*--allow_changed teacher"):
            go_on(second, 3)
        go_on(second, 3, "--allow_changed=teacher")
        _, (before, now) = changes_of_teacher()
        self.assertEqual((before["name"], now["name"]), (str(second), str(second)))
        self.assertNotEqual(before["fingerprint"], now["fingerprint"])

    @parameterized.parameters(
        (["--teacher=./no-such"], "no-such"), (["--distillation_alpha=0.2"], "belongs to --teacher"),
        (["--teacher=x", "--distillation_alpha=0"], "--distillation_alpha 0: must be above 0"),
    )  # fmt: skip
    def test_wrong_flags_are_named(self, flags, message):
        with exits_with(78, message):
            train(Path(tempfile.mkdtemp()) / "run", *flags)

    def test_a_teacher_whose_head_nothing_has_trained_is_refused(self):
        size = "hidden_size=16,intermediate_size=16,num_hidden_layers=1,num_attention_heads=2"
        folder = save_model(Path(tempfile.mkdtemp()) / "bert", tiny_model("bert", size, family="masked"))
        settings = {"max_steps": 1, "max_train_samples": 8, "eval_strategy": "no", "save_strategy": "no"}
        first = tiny_tuner(folder, "mini/sentiment", load_best_model_at_end=False, **settings)
        with exits_with(78, "it has no trained head for negative, positive, .*; fine-tune it on the same task first"):
            tiny_tuner(folder, "mini/sentiment", teacher=str(folder), load_best_model_at_end=False, **settings).train()
        teacher = str(first.save(Path(tempfile.mkdtemp()) / "teacher"))
        tiny_tuner(folder, "mini/sentiment", teacher=teacher, load_best_model_at_end=False, **settings).train()

    def test_a_teacher_of_the_user_s_own_class_teaches_a_student_of_that_class_alone(self):
        own = {"model_class": "plug_in_modules:Reader", "model_family": "masked", "config_overrides": "hidden_size=8"}
        settings = {"max_steps": 1, "max_train_samples": 8, "no_eval": True, "logging_steps": 1}
        teacher = tiny_tuner(None, "mini/sentiment", **own).save(Path(tempfile.mkdtemp()) / "own")
        student = tiny_tuner(None, "mini/sentiment", teacher=str(teacher), seed=7, **own, **settings)
        student.train()
        self.assertGreater(history_of(Path(student.args.output_dir))["kl"][0], 0)
        other = tiny_tuner(teacher_folder(), "mini/sentiment", teacher=str(teacher), **settings)
        with exits_with(78, f"--teacher {teacher}: .*plug_in_modules:Reader.* student of the same class"):
            other.train()

    def test_the_code_that_a_teacher_brings_along_runs_where_the_user_trusts_it(self):
        teacher = shutil.copytree(folders()[1], Path(tempfile.mkdtemp()) / "teacher")
        (teacher / "own.py").write_text(f"{CODE}\nopen({str(teacher / 'has_run')!r}, 'w').close()\n")
        config = json.loads((teacher / "config.json").read_text())
        config["auto_map"] = {"AutoModelForSeq2SeqLM": "own.OwnT5"}
        (teacher / "config.json").write_text(json.dumps(config))
        for trusts in (False, True):
            train(
                Path(tempfile.mkdtemp()) / "run",
                f"--teacher={teacher}",
                "--max_steps=1",
                f"--trust_remote_code={trusts}",
            )
            self.assertEqual((teacher / "has_run").exists(), trusts)

    def test_an_adapter_that_teaches_without_its_base_is_named_with_a_way_that_works(self):
        place = Path(tempfile.mkdtemp())
        base = shutil.copytree(folders()[1], place / "base")
        teacher = tiny_tuner(str(base), "mini/sentiment", adapter="lora").save(place / "adapter")
        base.rename(place / "moved")
        flags = [f"--model_name_or_path={folders()[0]}", "--max_steps=1"]
        way = f"t5suite export --model_name_or_path {teacher} --adapter_base BASE --output_dir FOLDER"
        with exits_with(78, f"--teacher {teacher}: .*{way}.*--teacher FOLDER$"):
            train(place / "run", *flags, f"--teacher={teacher}")
        words = way.replace("BASE", str(place / "moved")).replace("FOLDER", str(place / "merged")).split()
        run_cli(*words[1:])
        train(place / "run", *flags, f"--teacher={place / 'merged'}")

    @parameterized.parameters(
        ({}, {}, None), ({"prefix": "q: "}, {"prefix": "q: "}, None), ({"prefix": "q: "}, {}, "prefix='q: '"),
        ({}, {"prefix": "q: "}, "prefix=''"), ({"labels": "no,yes"}, {"labels": "yes,no"}, None),
        ({"labels": "no,yes"}, {"labels": "no,yes,may be"}, "labels='no,yes'"),
    )  # fmt: skip
    def test_a_teacher_of_other_texts_gives_a_warning(self, learned, used, difference):
        rows = [{"input": f"It was {word}.", "output": word} for word in ("no", "yes") * 4]
        settings = {"no_eval": True, "max_steps": 1}
        teacher = tiny_tuner(str(folders()[1]), rows, **learned, **settings).save(Path(tempfile.mkdtemp()) / "teacher")
        student = tiny_tuner(str(folders()[0]), rows, teacher=str(teacher), **used, **settings)
        with self.assertLogs("t5suite", "INFO") as logs:
            student.train()
        warnings = [line for line in logs.output if f"--teacher {teacher}" in line]
        self.assertLen(warnings, 1 if difference else 0)
        if difference:
            self.assertIn(difference, warnings[0])

    def test_a_teacher_with_another_separator_gives_a_warning(self):
        size = "n_embd=8,n_layer=1,n_head=1"
        model = save_model(Path(tempfile.mkdtemp()) / "gpt2", tiny_model("gpt2", size, family="causal"))
        settings = {"no_eval": True, "max_steps": 1, "max_train_samples": 8}
        teacher = tiny_tuner(str(model), "mini/sentiment", answer_separator=" = ").save(model.parent / "teacher")
        for separator, is_other in ((" = ", False), (None, True)):
            student = tiny_tuner(
                str(model), "mini/sentiment", teacher=str(teacher), answer_separator=separator, **settings
            )
            with self.assertLogs("t5suite", "INFO") as logs:
                student.train()
            warnings = [line for line in logs.output if f"--teacher {teacher}" in line]
            self.assertEqual(["answer_separator=' = '" in line for line in warnings], [True] * is_other)

    def test_another_vocabulary_is_refused_with_a_piece_that_differs(self):
        folder = Path(tempfile.mkdtemp()) / "teacher"
        shutil.copytree(bundled_model(), folder)
        tokenizer = tiny_tokenizer()
        tokenizer.add_tokens(["<more>"])
        tokenizer.save_pretrained(folder)
        with exits_with(78, "another vocabulary .*'<more>' is [0-9]+ there and None here"):
            train(Path(tempfile.mkdtemp()) / "run", f"--teacher={folder}")
