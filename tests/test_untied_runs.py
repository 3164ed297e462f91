"""An output layer of its own stays so through a whole run: random weights, updates, checkpoints, resume, loading, export."""

import functools
import json
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from absl.testing import absltest, parameterized
from later_flags import later_wins
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent.parent))
import fine_tune_t5
import pre_train_t5
from t5suite.cli import main as t5suite

TINY = "d_model=16,d_kv=8,d_ff=24,num_layers=1,num_decoder_layers=1,num_heads=2"
RUN = "--use_cpu --disable_tqdm True --logging_steps 1 --max_eval_samples 8 --dropout_rate 0".split()
HEAD, EMBEDDINGS = "lm_head.weight", "shared.weight"


def pre_trained(*flags) -> Path:
    """A run of four updates with a checkpoint in the middle."""
    folder = Path(tempfile.mkdtemp()) / "run"
    saving = "--max_steps 4 --save_steps 2 --eval_strategy no --per_device_train_batch_size 4".split()
    config = ["--config_overrides", TINY, "--tokenizer_name", str(bundled())]
    pre_train_t5.main(later_wins([*RUN, *saving, *config, *flags, "--output_dir", str(folder)]))
    return folder


def bundled() -> Path:
    """The folder of the bundled tokenizer."""
    from t5suite.models.loading import BUNDLED_MODEL

    return Path(BUNDLED_MODEL)


@functools.cache
def whole_run() -> Path:
    """A v1.1's."""
    return pre_trained("--config_name", "t5-v1_1-small")


class UntiedRunsTest(parameterized.TestCase):
    def check(self, folder) -> dict:
        """The folder's weights, once it is clear that they hold two matrices and say so."""
        weights = load_file(Path(folder) / "model.safetensors")
        self.assertContainsSubset({HEAD, EMBEDDINGS}, weights)
        self.assertEqual(weights[HEAD].shape, weights[EMBEDDINGS].shape)
        self.assertFalse(torch.equal(weights[HEAD], weights[EMBEDDINGS]))
        settings = json.loads((Path(folder) / "config.json").read_text())
        self.assertFalse(settings["tie_word_embeddings"])
        return weights

    def test_random_weights_are_two_matrices_and_both_are_trained(self):
        self.check_run(whole_run())

    @parameterized.parameters("mt5-small", "umt5")
    @pytest.mark.slow
    def test_so_are_those_of_its_relatives(self, name):
        self.check_run(pre_trained("--config_name", name))

    def check_run(self, folder):
        before, after = self.check(folder / "checkpoint-2"), self.check(folder)
        moved = {matrix: after[matrix] - before[matrix] for matrix in (HEAD, EMBEDDINGS)}
        for matrix in moved:
            self.assertGreater(float(moved[matrix].abs().max()), 0.0)
        self.assertFalse(torch.allclose(moved[HEAD], moved[EMBEDDINGS]))
        counted = json.loads((folder / "manifest.json").read_text())["model"]["parameters"]
        self.assertEqual(counted, sum(tensor.numel() for tensor in after.values()))

    def test_a_resumed_run_ends_with_the_same_two_matrices(self):
        uninterrupted = self.check(whole_run())
        resumed = self.check(
            pre_trained("--config_name", "t5-v1_1-small", "--resume", str(whole_run() / "checkpoint-2"))
        )
        self.assertEqual(resumed.keys(), uninterrupted.keys())
        for name, tensor in uninterrupted.items():
            self.assertTrue(torch.equal(resumed[name], tensor), name)

    def test_fine_tuning_goes_on_with_both(self):
        folder, begun = Path(tempfile.mkdtemp()) / "tuned", self.check(whole_run())
        task = "--benchmark mini --dataset_name sentiment --max_train_samples 16 --max_steps 2".split()
        fine_tune_t5.main(
            [
                *RUN,
                *task,
                "--model_name_or_path",
                str(whole_run()),
                "--learning_rate",
                "1e-2",
                "--output_dir",
                str(folder),
            ]
        )
        tuned = self.check(folder)
        for matrix in (HEAD, EMBEDDINGS):
            self.assertFalse(torch.equal(tuned[matrix], begun[matrix]))
            self.assertLess(float((tuned[matrix] - begun[matrix]).abs().max()), 0.1)

    def test_an_export_holds_both(self):
        folder = Path(tempfile.mkdtemp()) / "exported"
        t5suite(["export", "--model_name_or_path", str(whole_run()), "--output_dir", str(folder)])
        exported, trained = self.check(folder), self.check(whole_run())
        for matrix in (HEAD, EMBEDDINGS):
            self.assertTrue(torch.equal(exported[matrix], trained[matrix]))

    @pytest.mark.slow
    def test_a_tied_run_has_one_matrix(self):
        weights = load_file(pre_trained("--config_name", "t5-small") / "model.safetensors")
        self.assertLen({HEAD, EMBEDDINGS} & weights.keys(), 1)


if __name__ == "__main__":
    absltest.main()
