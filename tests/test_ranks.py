"""Ranks: one that has died takes the others with it; weights that differ or are no numbers are found before they are saved."""

import contextlib
import functools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from absl.testing import absltest, parameterized

from t5suite.base.errors import Preempted
from t5suite.testing import exits_with
from t5suite.training.processes import lost_ranks, weight_check
from t5suite.training.processes.ranks import Ranks
from t5suite.training.processes.signals import StopRequests, catch_signals
from t5suite.training.processes.weight_check import check_agreement, check_weights, digest_tensors, disagreement

HERE = Path(__file__).parent


@functools.cache
def three_ranks(number) -> dict:
    """What became of three ranks of which this one ended, by the way in which it did."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__, "three_ranks", str(number)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# Ways in which one of three ranks may end; run in a process of their own.
GRACE = 1.0


def waits():
    """In one C call, as in a collective."""
    import ctypes

    mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)


def is_killed(rank, number, stop):
    if rank == number:
        os.kill(os.getpid(), signal.SIGKILL)
    waits()


def is_killed_with_a_child(rank, number, stop):
    """A worker that outlives its process must not keep the connection open."""
    if rank == number and os.fork() == 0:
        time.sleep(25)
        os._exit(0)
    is_killed(rank, number, stop)


def is_killed_after_a_request(rank, number, stop):
    stop.request("SIGTERM")
    is_killed(rank, number, stop)


def fails(rank, number, stop):
    if rank == number:
        raise ValueError("a row")
    waits()


def leaves_set_up(rank, number, stop):
    if rank == number:
        raise stop.preempted()
    waits()


def is_done_first(rank, number, stop):
    if rank != number:
        time.sleep(2.5 * GRACE)


def stops_as_agreed(rank, number, stop):
    with stop.phase("training"):
        pass
    if rank != number:
        time.sleep(2.5 * GRACE)
    raise stop.preempted(3, "checkpoint-3")


def cannot_be_reached(rank, number, stop):
    time.sleep(0.1)


MODES = (is_killed, is_killed_with_a_child, is_killed_after_a_request, fails, leaves_set_up, is_done_first)
MODES = (*MODES, stops_as_agreed, cannot_be_reached)


def live(rank, port, mode, number):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="3")
    lost_ranks.GRACE_SECONDS = GRACE
    stop = catch_signals()
    dist.init_process_group("gloo")
    deaf = mock.patch.object(lost_ranks, "_call", side_effect=ConnectionRefusedError("refused"))
    lost_ranks.CONNECT_SECONDS = 1.0 if mode is cannot_be_reached else 20.0
    with contextlib.ExitStack() as stack:
        if mode is cannot_be_reached:
            stack.enter_context(deaf)
        stack.enter_context(lost_ranks.watching_ranks(Ranks.of_process(), stop))
        mode(rank, number, stop)


def life(*arguments):
    try:
        live(*arguments)
        code = 0
    except Preempted:
        code = 75
    except Exception:
        code = 1
    os._exit(code)


def outcome(mode, number):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(3):
        pids.append(os.fork())
        if pids[-1] == 0:
            life(rank, port, mode, number)
    started = time.monotonic()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return [codes, time.monotonic() - started]


@pytest.mark.slow
@pytest.mark.ranks
class ThreeRanksTest(parameterized.TestCase):
    @parameterized.product(
        number=(0, 2),
        ends=(
            ("is_killed", -signal.SIGKILL, 74), ("is_killed_with_a_child", -signal.SIGKILL, 74),
            ("is_killed_after_a_request", -signal.SIGKILL, 75), ("fails", 1, 74), ("leaves_set_up", 75, 74),
            ("is_done_first", 0, 0), ("stops_as_agreed", 75, 75), ("cannot_be_reached", 0, 0),
        ),
    )  # fmt: skip
    def test_the_others_end_unless_one_is_done_or_stops_as_agreed(self, number, ends):
        mode, own, others = ends
        codes, seconds = three_ranks(number)[mode]
        self.assertEqual(codes, [own if rank == number else others for rank in range(3)], mode)
        self.assertLess(seconds, 20)


class WatcherTest(parameterized.TestCase):
    def test_rank_0_tells_the_others_at_once(self):
        ours, theirs = zip(*(socket.socketpair() for _ in range(2)), strict=True)
        watcher = lost_ranks.Watcher(dict(enumerate(ours, 1)), StopRequests())
        theirs[0].close()
        theirs[1].settimeout(10.0)
        self.assertEqual(theirs[1].recv(1), lost_ranks.LOST)
        watcher.close(orderly=False)
        self.assertEqual(theirs[1].recv(1), b"")
        theirs[1].close()

    def test_a_stranger_is_no_rank(self):
        listener = lost_ranks._listen("127.0.0.1")
        address = listener.getsockname()
        with listener, socket.create_connection(address) as silent, socket.create_connection(address) as stranger:
            stranger.sendall(b"guess 1\n")
            silent.shutdown(socket.SHUT_WR)
            ours = lost_ranks._call(address, "token", 1)
            theirs = lost_ranks._accept(listener, "token", 2)
        self.assertEqual(list(theirs), [1])
        ours[0].sendall(lost_ranks.FAREWELL)
        self.assertEqual(lost_ranks._receive(theirs[1]), lost_ranks.FAREWELL)
        for line in (ours[0], theirs[1]):
            line.close()


TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8)


def tensors(dtype=torch.float32):
    torch.manual_seed(0)
    return [(torch.randn(*shape) * 20).to(dtype) for shape in ((7, 5), (3,), (1,), (2, 3, 4))]


def reference_digest(values):
    """By the definition, with Python's integers."""
    total = 0
    for tensor in values:
        bits = tensor.contiguous().view(-1).view(weight_check.BITS[tensor.element_size()]).tolist()
        for start in range(0, len(bits), weight_check.CPU_CHUNK):
            part = sum(b * (2 * i + 1) for i, b in enumerate(bits[start : start + weight_check.CPU_CHUNK]))
            total = (total * weight_check.FACTOR + part) % (1 << 64)
    return total - (1 << 64) if total >= 1 << 63 else total


class FixedRanks(Ranks):
    """Ranks of which the others have said already what they will say."""

    def gather(self, value):
        return [value, *self.others.pop(0)]


class DigestTest(parameterized.TestCase):
    def test_it_is_what_its_definition_says(self):
        for values in (*map(tensors, TYPES), [torch.randn(weight_check.CPU_CHUNK + 5)]):
            self.assertEqual(digest_tensors(values), reference_digest(values))

    @parameterized.parameters(torch.float32, torch.bfloat16)
    def test_any_flipped_bit_changes_it(self, dtype):
        rng, before = random.Random(0), digest_tensors(tensors(dtype))
        for _ in range(100):
            values = tensors(dtype)
            value = rng.choice(values)
            bits = value.view(-1).view(torch.uint8)
            bits[rng.randrange(len(bits))] ^= 1 << rng.randrange(8)
            self.assertNotEqual(digest_tensors(values), before)

    def test_swapped_values_and_swapped_tensors_change_it(self):
        values = tensors()
        before = digest_tensors(values)
        swapped = [value.clone() for value in values]
        swapped[0].view(-1)[[3, 17]] = values[0].view(-1)[[17, 3]]
        self.assertNotEqual(digest_tensors(swapped), before)
        self.assertNotEqual(digest_tensors(values[::-1]), before)


class AgreementTest(parameterized.TestCase):
    def test_the_rank_that_differs_is_named_with_its_weights(self):
        model = torch.nn.Linear(2, 2)
        good = digest_tensors(model.parameters())
        ranks = FixedRanks(0, 3)
        parts = [digest_tensors([p.detach()]) for p in model.parameters()]
        ranks.others = [[good, good + 1], [parts, [parts[0], parts[1] + 1]]]
        named = r"step 7: the weights of rank 2 differ from those of ranks 0 and 1 \(bias\)"
        with exits_with(70, named):
            check_agreement(model, ranks, 7)
        self.assertIn("weights of ranks 0 and 1 differ, and no value has a majority", disagreement([1, 2], ["w"], 3))


class CheckWeightsTest(parameterized.TestCase):
    @parameterized.parameters(float("nan"), float("inf"), float("-inf"))
    def test_a_weight_that_is_not_finite_is_named(self, value):
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
        check_weights(model, 5)
        with torch.no_grad():
            model[1].weight[1, 2] = value
        with exits_with(70, r"step 5: weights are NaN or infinite: 1.weight \(1 of 6\); they are not"):
            check_weights(model, 5)

    def test_all_ranks_learn_what_one_found(self):
        ranks = FixedRanks(0, 2)
        ranks.others = [[["bias (1 of 2)"]]]
        with exits_with(70, "on rank 1: bias"):
            check_weights(torch.nn.Linear(2, 2), 5, ranks)


if __name__ == "__main__":
    if sys.argv[1:2] == ["three_ranks"]:
        print(json.dumps({mode.__name__: outcome(mode, int(sys.argv[2])) for mode in MODES}))
    else:
        absltest.main()
