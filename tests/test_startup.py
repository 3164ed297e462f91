"""What a run imports, and what it does not do twice."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from absl.testing import absltest, parameterized

ROOT = Path(__file__).resolve().parent.parent
# What a plain run needs nothing of, though it is installed in many environments; each takes 0.2 to 2 s to import.
UNNEEDED = (
    "aim bitsandbytes deepspeed evaluate IPython matplotlib nltk onnx onnxruntime rouge_score sacrebleu sklearn "
    "tensorboard tensorflow torchvision torchaudio trackio wandb"
).split()
RUN = """
import json, sys
import fine_tune_t5
fine_tune_t5.main(json.loads(sys.argv[1]))
print("MODULES", json.dumps(sorted(sys.modules)))
"""
FLAGS = (
    "mini.yaml --max_train_samples 32 --max_eval_samples 8 --max_steps 1 --per_device_train_batch_size 8 "
    "--save_strategy no --load_best_model_at_end False --use_cpu --disable_tqdm True"
).split()


def run(*flags, cache=None) -> subprocess.CompletedProcess:
    """A run of one step in a process of its own, which must succeed."""
    words = [*FLAGS, "--output_dir", tempfile.mkdtemp(), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({"HF_DATASETS_CACHE": cache} if cache else {})}
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(words)], cwd=ROOT, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done


class ImportsTest(parameterized.TestCase):
    def test_a_run_imports_nothing_that_it_does_not_need(self):
        lines = run().stdout.splitlines()
        modules = json.loads(next(line for line in lines if line.startswith("MODULES")).removeprefix("MODULES "))
        self.assertEmpty(set(UNNEEDED) & set(modules))
        self.assertIn("torch", modules)


if __name__ == "__main__":
    absltest.main()
