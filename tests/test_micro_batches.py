"""Micro-batches in pieces: what is cut, what stays the same, and failures on one of two ranks."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import guard_ranks
import pytest
import torch
from absl.testing import parameterized

from t5suite.testing import exits_with
from t5suite.training.updates.micro_batches import MicroBatches, cut, is_out_of_memory, num_rows


@functools.cache
def reports_of(script: str) -> dict[str, list[dict]]:
    """`{scenario: [report by rank]}` of a script that starts ranks and writes `SCENARIO-RANK.json`."""
    folder = Path(tempfile.mkdtemp())
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, script, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    reports = {}
    for path in sorted(folder.glob("*.json")):
        scenario, _, _rank = path.stem.rpartition("-")
        reports.setdefault(scenario, []).append(json.loads(path.read_text()))
    return reports


def batch_of(rows, width=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {"input_ids": torch.randn(rows, width, generator=generator), "labels": torch.arange(rows)}


class Machine:
    """A linear model whose memory holds `limit` rows at once, and that fails before or in the middle of backward."""

    def __init__(self, limit=1000, dropout=0.0, fails_in_backward=False, error=torch.OutOfMemoryError):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 3)
        self.dropout = torch.nn.Dropout(dropout)
        self.limit, self.fails_in_backward, self.error = limit, fails_in_backward, error
        self.calls, self.in_no_sync, self.synced = [], 0, []

    def step(self, batch):
        rows = num_rows(batch)
        self.calls.append(rows)
        self.synced.append(not self.in_no_sync)
        loss = self.dropout(self.model(batch["input_ids"])).square().sum() / 100
        if rows > self.limit:
            if self.fails_in_backward:
                (loss * 7).backward()
            raise self.error("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        loss.backward()
        return loss.detach()

    def no_sync(self):
        machine = self

        class NoSync:
            def __enter__(self):
                machine.in_no_sync += 1

            def __exit__(self, *error):
                machine.in_no_sync -= 1

        return NoSync()

    def redo(self, failure, synchronising):
        self.model.zero_grad(set_to_none=True)

    def update(self, micro_batches, batches):
        micro_batches.begin()
        self.model.zero_grad(set_to_none=True)
        losses = [micro_batches.run(batch, self.step, redo=self.redo, no_sync=self.no_sync) for batch in batches]
        return sum(map(float, losses)), self.model.weight.grad.clone()


class CutTest(parameterized.TestCase):
    @parameterized.product(rows=(1, 2, 5, 8), pieces=(1, 2, 4, 16))
    def test_pieces_hold_every_row_once_and_in_order(self, rows, pieces):
        parts = cut(batch_of(rows), pieces)
        self.assertLen(parts, min(rows, pieces))
        self.assertEqual(torch.cat([part["labels"] for part in parts]).tolist(), list(range(rows)))
        self.assertLessEqual(max(map(num_rows, parts)) - min(map(num_rows, parts)), 1)

    def test_odd_forms(self):
        batch = {
            "input_ids": torch.zeros(4, 7),
            "scale": torch.tensor(2.0),
            "positions": torch.arange(7),
            "names": ["a", "b", "c", "d"],
            "pairs": {"next_sentence_label": torch.arange(4), "weights": (torch.ones(4, 2), torch.ones(3))},
            "task": "rte",
        }
        second = cut(batch, 2)[1]
        self.assertEqual(second["input_ids"].shape, (2, 7))
        self.assertEqual(second["scale"].item(), 2.0)
        self.assertEqual(second["positions"].shape, (7,))
        self.assertEqual(second["names"], ["c", "d"])
        self.assertEqual(second["pairs"]["next_sentence_label"].tolist(), [2, 3])
        self.assertEqual([len(tensor) for tensor in second["pairs"]["weights"]], [2, 3])
        self.assertEqual(second["task"], "rte")


class MicroBatchesTest(parameterized.TestCase):
    @parameterized.product(fails_in_backward=(False, True), failing=(0, 1, 2))
    def test_the_update_is_the_same_and_nothing_of_the_failed_pass_stays(self, fails_in_backward, failing):
        batches = [batch_of(8 if i == failing else 4, seed=i) for i in range(3)]
        loss, gradient = Machine().update(MicroBatches(), batches)
        machine, micro_batches = Machine(limit=4, fails_in_backward=fails_in_backward), MicroBatches()
        loss_in_pieces, gradient_in_pieces = machine.update(micro_batches, batches)
        self.assertEqual(micro_batches.pieces, 2)
        self.assertAlmostEqual(loss_in_pieces, loss, delta=1e-6 * loss)
        torch.testing.assert_close(gradient_in_pieces, gradient, rtol=1e-6, atol=1e-7)

    def test_later_updates_are_cut_at_once(self):
        machine, micro_batches = Machine(limit=4), MicroBatches()
        machine.update(micro_batches, [batch_of(8)])
        self.assertIsNotNone(micro_batches.failure)
        machine.calls.clear()
        machine.update(micro_batches, [batch_of(8), batch_of(3)])
        self.assertEqual(machine.calls, [4, 4, 1, 2])
        self.assertIsNone(micro_batches.failure)

    def test_only_the_last_piece_may_synchronise(self):
        machine, micro_batches = Machine(limit=4), MicroBatches()
        micro_batches.begin()
        micro_batches.run(batch_of(4), machine.step, redo=machine.redo, no_sync=machine.no_sync)
        machine.calls.clear(), machine.synced.clear()
        micro_batches.run(batch_of(8), machine.step, redo=machine.redo, no_sync=machine.no_sync, synchronises=True)
        self.assertEqual(machine.calls, [8, 2, 2, 4, 4])
        self.assertEqual(machine.synced, [True, False, False, False, True])

    def test_random_numbers_are_those_of_a_run_that_was_cut_from_the_start(self):
        batches = [batch_of(4), batch_of(8, seed=1)]
        failing, cut_before = Machine(limit=4, dropout=0.5), Machine(dropout=0.5)
        torch.manual_seed(7)
        loss, gradient = failing.update(MicroBatches(), batches)
        after = torch.rand(1)
        torch.manual_seed(7)
        expected_loss, expected = cut_before.update(MicroBatches(pieces=2), batches)
        self.assertTrue(torch.equal(gradient, expected))
        self.assertAlmostEqual(loss, expected_loss, places=6)
        self.assertTrue(torch.equal(after, torch.rand(1)))

    def test_one_row_that_does_not_fit_is_an_error_with_its_shapes(self):
        with exits_with(78, r"one row.*'input_ids': \(1, 4\).*can't allocate.*gradient_checkpointing"):
            Machine(limit=0).update(MicroBatches(), [batch_of(2)])

    def test_every_way_to_say_it_counts_and_other_errors_pass(self):
        for error in (torch.OutOfMemoryError, RuntimeError, MemoryError):
            micro_batches = MicroBatches()
            Machine(limit=4, error=error).update(micro_batches, [batch_of(8)])
            self.assertEqual(micro_batches.pieces, 2)

        def step(batch):
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

        with self.assertRaisesRegex(RuntimeError, "mat1"):
            MicroBatches().run(batch_of(8), step)
        self.assertFalse(is_out_of_memory(ValueError("no")))

    def test_what_failed_is_freed_before_it_runs_again(self):
        import weakref

        machine, alive = Machine(limit=4), []

        def step(batch):
            large = torch.zeros(num_rows(batch))
            still = [ref() is not None for ref in alive]
            alive.append(weakref.ref(large))
            self.assertFalse(any(still))
            return machine.step(batch)

        MicroBatches().run(batch_of(16), step, redo=machine.redo)
        self.assertLen(alive, 1 + 1 + 4)


RELATIVE = 1e-5


@pytest.mark.slow
@pytest.mark.ranks
class RanksTest(parameterized.TestCase):
    def both(self, scenario):
        first, second = reports_of(guard_ranks.__file__)[scenario]
        for report in (first, second):
            self.assertNotIn("error", report, report.get("traceback"))
        self.assertEqual(first["digests"], second["digests"])
        self.assertEqual(first["pieces"], second["pieces"])
        self.assertEqual(first["skipped"], second["skipped"])
        return first

    def test_a_loss_that_is_none_on_one_rank_skips_the_update_on_both(self):
        report = self.both("nan_on_one_rank")
        self.assertEqual(report["digests"][3], report["digests"][2])
        self.assertNotEqual(report["digests"][4], report["digests"][3])
        (line,) = report["incidents"]
        self.assertEqual((line["step"], line["kind"]), (3, "non_finite"))
        first, second = [report["examples_in_3"] for report in reports_of(guard_ranks.__file__)["nan_on_one_rank"]]
        self.assertCountEqual(line["examples"], first + second)
        self.assertEqual(report["skipped"], 1)

    def test_a_flipped_bit_on_one_rank_stops_both_and_is_named(self):
        for report in reports_of(guard_ranks.__file__)["flipped_bit_on_one_rank"]:
            self.assertEqual(report["error"], "NumericsError")
            self.assertRegex(report["message"], r"step 3: the weights of ranks 0 and 1 differ.*\(shared.weight\)")

    def test_a_weight_that_nothing_uses_is_named_before_any_update_unless_it_is_looked_for(self):
        for report in reports_of(guard_ranks.__file__)["idle_weight"]:
            self.assertEqual(report["error"], "ConfigError")
            self.assertRegex(report["message"], "no gradient reached idle, .*--ddp_find_unused_parameters True")
        self.assertEqual(self.both("idle_weight_that_is_looked_for")["losses"], self.both("undisturbed")["losses"])

    @parameterized.parameters(
        ("memory_in_model", "undisturbed", 2),
        ("memory_in_loss", "undisturbed", 2),
        ("memory_in_backward", "undisturbed", 2),
        ("memory_with_buffers_of_each_rank", "undisturbed", 2),
        ("memory_in_first_piece_at_once", "undisturbed_at_once", 4),
    )
    def test_memory_that_one_rank_lacks_between_exchanges_changes_no_update(self, scenario, reference, pieces):
        report, undisturbed = self.both(scenario), self.both(reference)
        self.assertEqual(report["pieces"], pieces)
        self.assertLen(report["losses"], len(undisturbed["losses"]))
        for step, (loss, grad_norm) in enumerate(report["losses"]):
            expected_loss, expected_norm = undisturbed["losses"][step]
            self.assertAlmostEqual(loss, expected_loss, delta=RELATIVE * expected_loss)
            self.assertAlmostEqual(grad_norm, expected_norm, delta=RELATIVE * expected_norm)
        (line,) = report["incidents"]
        self.assertEqual((line["kind"], line["ranks"]), ("out_of_memory", [1]))

    @parameterized.parameters(
        ("memory_in_model_at_once", 4, "--per_device_train_batch_size 2 --gradient_accumulation_steps 2"),
        ("memory_in_loss_at_once", 4, "--per_device_train_batch_size 2 --gradient_accumulation_steps 2"),
        ("memory_in_backward_at_once", 4, "--per_device_train_batch_size 2 --gradient_accumulation_steps 2"),
        ("memory_with_buffers", 3, "--per_device_train_batch_size 1 --gradient_accumulation_steps 4"),
    )
    def test_a_rank_that_fails_while_ranks_exchange_says_what_to_do_and_the_other_does_not_hang(
        self, scenario, step, flags
    ):
        first, second = reports_of(guard_ranks.__file__)[scenario]
        self.assertEqual(second["error"], "ConfigError")
        self.assertIn(f"out of memory on rank 1 in step {step} (CUDA out of memory", second["message"])
        self.assertIn(f"{flags}: it goes on from its last checkpoint, with the same updates", second["message"])
        self.assertIn("error", first)
