"""Two nodes that torchrun starts by one line each are one run: the same as two processes on one node."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from absl.testing import absltest
from slurm_cluster import free_ports

ROOT = Path(__file__).parent.parent
FLAGS = (
    "mini.yaml --max_train_samples 128 --max_eval_samples 40 --max_steps 12 --per_device_train_batch_size 4 --use_cpu "
    "--disable_tqdm True"
).split()


@pytest.mark.slow
@pytest.mark.launcher
class TorchrunNodesTest(absltest.TestCase):
    def test_two_nodes_are_one_run(self):
        folder = Path(tempfile.mkdtemp())
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        script = [str(ROOT / "fine_tune_t5.py"), *FLAGS, "--output_dir"]
        line = {"NNODES": "2", "MASTER": f"127.0.0.1:{free_ports(1)[0]}", "PROCESSES": "1"}
        nodes = [
            subprocess.Popen(
                [ROOT / "clusters/torchrun_node.sh", *script, folder / "nodes"],
                env={**environment, **line, "NODE_RANK": str(rank)}, cwd=folder, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        for node in nodes:
            _, said = node.communicate(timeout=400)
            self.assertEqual(node.returncode, 0, said[-3000:])
            self.assertEqual("on 2 x cpu" in said, node is nodes[0], said[-3000:])
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        subprocess.run([*torchrun, *script, folder / "one"], env=environment, cwd=folder, check=True, timeout=400)
        for name in ("results.json", "model.safetensors", "predictions/sentiment.validation.jsonl"):
            self.assertEqual((folder / "nodes" / name).read_bytes(), (folder / "one" / name).read_bytes(), name)


if __name__ == "__main__":
    absltest.main()
