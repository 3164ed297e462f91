"""Loading maps a checkpoint's file into memory: the ranks of a node share one copy of it."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from absl.testing import absltest, parameterized

from t5suite.models.loading import load_model, load_tokenizer

TESTS = Path(__file__).parent
BIG = "d_model=512,d_ff=2048,num_layers=4,num_decoder_layers=4,num_heads=8,d_kv=64"


def together(folder: str, count: int) -> list[dict]:
    """What each of so many processes holds more than before, while all of them have loaded."""
    environ = {**os.environ, "PYTHONPATH": f"{TESTS.parent}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(TESTS / "loading_rank.py"), folder]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environ}
    ranks = [subprocess.Popen(command, **pipes) for _ in range(count)]
    try:
        loaded = [json.loads(rank.stdout.readline()) for rank in ranks]
        for rank in ranks:
            rank.stdin.write("all have loaded\n")
            rank.stdin.flush()
        return [{**one, **json.loads(rank.stdout.readline())} for one, rank in zip(loaded, ranks, strict=True)]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


@pytest.mark.slow
@pytest.mark.ranks
class LoadingMemoryTest(parameterized.TestCase):
    def test_two_ranks_hold_one_copy_of_a_checkpoint(self):
        if not Path("/proc/self/smaps_rollup").exists():
            self.skipTest("this system does not say which pages are shared")
        folder, tokenizer = tempfile.mkdtemp(), load_tokenizer(None)
        torch.manual_seed(0)
        load_model(tokenizer=tokenizer, config_overrides=BIG).save_pretrained(folder)
        load_model(tokenizer=tokenizer, config_overrides="num_layers=1").save_pretrained(f"{folder}/tiny")
        tokenizer.save_pretrained(folder)
        found = together(folder, 2)
        weights = found[0]["weights"]
        self.assertEqual(found[0]["total"], found[1]["total"])
        for rank in found:
            self.assertGreater(rank["Rss"], 0.9 * weights)
            # Half of the pages that both have mapped, and what loading itself leaves behind.
            self.assertLess(rank["Pss"], 0.75 * weights, found)
            self.assertLess(rank["Private_Dirty"], 0.25 * weights, found)
        self.assertGreater(weights, 10**8)


if __name__ == "__main__":
    absltest.main()
