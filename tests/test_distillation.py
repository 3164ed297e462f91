"""A student learns its targets and its teacher's distributions: the loss of the paper, law 1, exact resume.

torchrun --nproc_per_node 2 tests/test_distillation.py out.json
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import law_worker
import pytest
import torch
from absl.testing import parameterized
from safetensors.torch import load_file
from support import later_wins
from transformers.utils import ModelOutput

import fine_tune_t5
from t5suite.base.errors import UserError
from t5suite.models.loading import load_model
from t5suite.testing import bundled_model, exits_with, read_rows, tiny_tokenizer
from t5suite.training.distillation import DistilledLoss, distance_to
from t5suite.training.losses import TokenLoss

RELATIVE = 5e-6
FLAGS = (
    "--benchmark=mini --dataset_name=sentiment --max_train_samples=40 --max_eval_samples=8 --max_steps=4 --use_cpu "
    "--per_device_train_batch_size=4 --eval_strategy=steps --eval_steps=2 --logging_steps=1 --disable_tqdm=True "
    "--save_total_limit=8 --save_strategy=steps --save_steps=2 --load_best_model_at_end=False "
    "--config_overrides=d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"
).split()


def history(batch_size: int, accumulation: int) -> dict:
    """Losses, distances and gradient norms of three updates of a student with a teacher."""
    trainer = law_worker.make_trainer(batch_size, accumulation, epochs=1)
    teacher = law_worker.tiny_model(trainer.processing_class, seed=7).eval().requires_grad_(False)
    trainer.compute_loss_func = DistilledLoss(TokenLoss(), teacher, 0.7, 3.0, len(trainer.processing_class))
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    return {key: [line[key] for line in lines] for key in ("loss", "kl", "grad_norm")}


def teacher_folder() -> Path:
    """A model with random weights."""
    folder = Path(tempfile.mkdtemp()) / "teacher"
    torch.manual_seed(5)
    tokenizer = tiny_tokenizer()
    load_model(tokenizer=tokenizer, config_overrides="d_model=48,d_kv=8,num_layers=1,num_heads=2").save_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)
    return folder


def train(folder, *flags) -> dict:
    return fine_tune_t5.main(later_wins(FLAGS, [f"--output_dir={folder}"], flags))


class LossTest(parameterized.TestCase):
    def test_it_is_the_paper_s_token_by_token(self):
        torch.manual_seed(0)
        ours, theirs = torch.randn(2, 3, 9), torch.randn(2, 3, 11)  # 8 pieces; the rest are rows of padding
        labels = torch.tensor([[1, 5, -100], [7, -100, -100]])
        teacher, outputs = lambda **batch: ModelOutput(logits=theirs), ModelOutput(logits=ours)
        loss = DistilledLoss(TokenLoss(), teacher, alpha=0.3, temperature=2.0, pieces=8)
        loss.batch = {"input_ids": labels}
        total = 0.0
        for b, t in ((0, 0), (0, 1), (1, 0)):
            total -= 0.7 * ours[b, t].double().log_softmax(0)[labels[b, t]]
            p, q = ((logits[b, t, :8].double() / 2).exp() for logits in (theirs, ours))
            p, q = p / p.sum(), q / q.sum()
            total += 0.3 * 4 * sum(p[v] * (p[v] / q[v]).log() for v in range(8))
        self.assertAlmostEqual(loss(outputs, labels, num_items_in_batch=5).item(), total.item() / 5, places=5)
        self.assertAlmostEqual(distance_to(ours[0, :, :8], ours[0, :, :8], 3.0).item(), 0.0, places=6)

    @parameterized.parameters((4, 2), (2, 4))
    def test_cutting_an_update_into_micro_batches_changes_nothing(self, batch_size, accumulation):
        self.assert_near(history(batch_size, accumulation), history(8, 1))

    def assert_near(self, found: dict, expected: dict):
        for key, values in expected.items():
            self.assertLen(values, 3)
            for a, b in zip(found[key], values, strict=True):
                self.assertLess(abs(a - b) / abs(b), RELATIVE, key)

    @pytest.mark.slow
    @pytest.mark.ranks
    def test_two_ranks_equal_one(self):
        self.assert_near(law_worker.reported_by_two_ranks(__file__), history(8, 1))


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
        load_model(str(place / "alone"), tokenizer=tiny_tokenizer()).save_pretrained(teacher)
        with exits_with(78, "weights have changed since this run began"):
            train(place / "whole", *distil, "--max_steps=6", "--extend")

    @parameterized.parameters(
        (["--teacher=no/such"], "no/such"), (["--distillation_alpha=0.2"], "belongs to --teacher"),
        (["--teacher=x", "--distillation_alpha=0"], "--distillation_alpha 0: must be above 0"),
    )  # fmt: skip
    def test_wrong_flags_are_named(self, flags, message):
        with self.assertRaisesRegex(UserError, message):
            train(Path(tempfile.mkdtemp()) / "run", *flags)

    def test_another_vocabulary_is_refused_with_a_piece_that_differs(self):
        folder = Path(tempfile.mkdtemp()) / "teacher"
        shutil.copytree(bundled_model(), folder)
        tokenizer = tiny_tokenizer()
        tokenizer.add_tokens(["<more>"])
        tokenizer.save_pretrained(folder)
        with exits_with(78, "another vocabulary .*'<more>' is [0-9]+ there and None here"):
            train(Path(tempfile.mkdtemp()) / "run", f"--teacher={folder}")


if __name__ == "__main__":
    found = history(4, 1)
    if int(os.environ["RANK"]) == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))
