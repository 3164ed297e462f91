"""Every fast path can be switched off, and the run comes out the same: one row of FAST_PATHS for each.

A tiny run is made with the fast path and without it. Losses, gradient norms and scores are compared, and predictions;
and which of our functions were called, so that a row whose flag does nothing fails.
"""

import cProfile
import functools
import itertools
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest, parameterized

import fine_tune_t5
import pre_train_t5
from t5suite.data.batches import training_data as token_cache
from t5suite.data.rows.jsonl import read_jsonl, write_jsonl
from t5suite.data.rows.sources import BUNDLED_DIR
from t5suite.reports import finishing as reports

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
SCRIPTS = {"fine_tune": fine_tune_t5.main, "pre_train": pre_train_t5.main}
TINY = "--use_cpu --disable_tqdm True --logging_steps 1 --max_steps 4 --per_device_train_batch_size 8 --eval_strategy steps"
SMALL = "--config_overrides d_model=32,d_kv=8,d_ff=48,num_layers=2,num_heads=2 --eval_steps 2 --save_strategy no"
BASE = {
    "fine_tune": f"{TINY} {SMALL} --train_file ROWS:32 --validation_file ROWS:12 --load_best_model_at_end False",
    "pre_train": f"{TINY} {SMALL} --max_eval_samples 8 --inputs_length 32",
}
# What a run is compared by; speeds, shares of padding and memory are what a fast path is to change.
COMPARED = re.compile(r"(train/(loss|grad_norm|learning_rate)|eval/.*(loss|nll|accuracy|invalid_rate))$")


@dataclass(frozen=True)
class FastPath:
    """How to leave what is quick, and to know that it was left.

    Attributes:
      off: the flag's value without it.
      code: the module of ours whose functions run on one of the two ways alone.
      on: the flag's value with it, where the default takes it under other circumstances (a GPU, much text) only.
      among: further flags of both runs.
      tolerance: of losses and norms, relative; 0: bit by bit. None: the draw differs, and so do losses.
    """

    off: str
    code: str
    script: str = "fine_tune"
    on: str | None = None
    among: str = ""
    tolerance: float | None = 1e-5


class Run:
    """A run's numbers, its predictions, and `(module, function)` of ours that it called."""

    def __init__(self, script: str, argv: str):
        self.calls: set[tuple[str, str]] = set()
        directory = Path(tempfile.mkdtemp()) / "run"
        argv = re.sub(r"ROWS:(\d+)", lambda found: rows_file(found[1]), argv)
        self._watch(SCRIPTS[script], [*argv.split(), "--output_dir", str(directory)])
        lines = read_jsonl(directory / "metrics.jsonl")
        self.numbers = {
            (line["step"], name): value for line in lines for name, value in line.items() if COMPARED.match(name)
        }
        self.predictions = {path.name: read_jsonl(path) for path in directory.glob("predictions/*.jsonl")}

    def _watch(self, main, argv) -> None:
        profile = cProfile.Profile()
        with mock.patch.multiple(reports, learning_curves=mock.DEFAULT, write_fine_tuned_card=mock.DEFAULT):
            profile.runcall(main, argv)
        for code in [entry.code for entry in profile.getstats() if hasattr(entry.code, "co_qualname")]:
            if code.co_filename.startswith(str(ROOT / "t5suite")):
                place = Path(code.co_filename).relative_to(ROOT).with_suffix("")
                self.calls.add((".".join(place.parts), code.co_qualname))


@functools.cache
def rows_file(count: str) -> str:
    """The first of the bundled rows, since all of them take longer to read than to train on a few."""
    path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    rows = itertools.islice(read_jsonl(BUNDLED_DIR / "sentiment" / "train.jsonl.gz"), int(count))
    write_jsonl(path, rows)
    return str(path)


@functools.cache
def run(script: str, argv: str) -> Run:
    """Runs of the same flags are made once."""
    return Run(script, argv)


def both(flag: str, path: FastPath) -> tuple[Run, Run]:
    """With the fast path and without it."""
    common = f"{BASE[path.script]} {path.among}".strip()
    on = f"{common} --{flag} {path.on}" if path.on else common
    return run(path.script, on), run(path.script, f"{common} --{flag} {path.off}")


# Every flag of docs/performance.md, "Switching it off", but for those of COMPILED.
FAST_PATHS = {
    "tokenizer_engine": FastPath("tokenizers", "data.corpora.sentence_pieces", "pre_train", tolerance=0),
    "train_sampling_strategy": FastPath("random", "data.batches.samplers", tolerance=None),
    "length_buckets": FastPath("0", "data.batches.collators", on="2"),
    "token_cache": FastPath("none", "data.batches.training_data", on=tempfile.mkdtemp(), tolerance=0),
    "per_device_eval_batch_size": FastPath("2", "training.eval_batches"),
}

# Flags of --torch_compile, which takes minutes on a CPU: where they are tested.
COMPILED = {
    "compile_cache": "test_compile.py",
}


class FastPathTest(parameterized.TestCase):
    def test_every_documented_fast_path_has_a_row_here(self):
        section = PAGE.read_text(encoding="utf-8").partition("## Switching it off")[2]
        documented = dict(re.findall(r"^\| .* \| `--(\w+)` \| (.*) \|$", section, re.MULTILINE))
        self.assertGreaterEqual(len(documented), 4)
        self.assertContainsSubset(documented, [*FAST_PATHS, *COMPILED])
        for flag, off in documented.items():
            if flag in FAST_PATHS:
                self.assertIn(off, (f"`{FAST_PATHS[flag].off}`", "a number"))

    @parameterized.parameters(*COMPILED.items())
    def test_what_is_compiled_is_tested_elsewhere(self, flag, file):
        self.assertIn(flag, (ROOT / "tests" / file).read_text(encoding="utf-8"))

    @parameterized.parameters(*FAST_PATHS)
    @pytest.mark.slow
    def test_a_run_without_it_takes_another_way_to_the_same_numbers(self, flag):
        path = FAST_PATHS[flag]
        with mock.patch.object(token_cache, "FEWEST_ROWS", 1 if flag == "token_cache" else token_cache.FEWEST_ROWS):
            on, off = both(flag, path)
        self.assertIn(f"t5suite.{path.code}", {module for module, _ in on.calls ^ off.calls})
        self.assertEqual(on.numbers.keys(), off.numbers.keys())
        self.assertGreaterEqual(len(on.numbers), 12)
        if path.tolerance is None:
            self.assertNotEqual(on.numbers, off.numbers)
            return
        for name, value in on.numbers.items():
            np.testing.assert_allclose(off.numbers[name], value, rtol=path.tolerance, err_msg=str(name))
        self.assertEqual(on.predictions, off.predictions)


if __name__ == "__main__":
    absltest.main()
