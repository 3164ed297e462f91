"""Requests to stop: what the first, second and third signal do in each phase, to ranks and to children."""

import contextlib
import errno
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from absl.testing import absltest, parameterized

from t5suite.base.errors import CheckpointError, ConfigError, DataError, NumericsError, Preempted
from t5suite.base.programs import run_command
from t5suite.data.batches.samplers import ignore_in_worker, shielding_workers
from t5suite.testing import exits_with, parse_flags
from t5suite.training.processes.signals import catching_signals

TERM, USR1, INT = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT
HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def start(script, *argv, **settings):
    command = [sys.executable, str(HERE / script), *map(str, argv)]
    return subprocess.Popen(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, **settings)


def signalled(*argv, signals=(TERM,), gap=0.1, delay=0.0):
    """`(exit code, standard output, standard error, seconds since the first signal)` of a victim."""
    victim = start("signal_victim.py", *argv, stderr=subprocess.PIPE)
    assert victim.stdout.readline().startswith("ready")
    time.sleep(delay)
    began = time.monotonic()
    for number in signals:
        victim.send_signal(number)
        time.sleep(gap)
    out, err = victim.communicate(timeout=30)
    return victim.returncode, out, err, time.monotonic() - began


class SignalsTest(parameterized.TestCase):
    @parameterized.parameters(([TERM], "SIGTERM"), ([USR1], "SIGUSR1"), ([INT], "SIGINT"), ([TERM, USR1], "SIGTERM"))
    def test_in_training_the_first_signal_sets_a_flag_and_a_second_changes_nothing(self, signals, name):
        code, out, err, _ = signalled("training", signals=signals)
        self.assertEqual((code, out), (75, "asked\n"))
        # The first signal is answered at once, the end told when it comes.
        self.assertEqual([line.partition(":")[0] for line in err.splitlines()], [name, "stopped"])
        self.assertIn(f"stopped: {name}: stopped after step 7; the same command goes on from checkpoint-7", err)

    @parameterized.parameters("set_up", "importing", "half_made", "importing_half_made")
    def test_set_up_ends_at_once_without_a_traceback(self, mode):
        code, _, err, seconds = signalled(mode)
        self.assertEqual(code, 75)
        self.assertEqual(err, "stopped: SIGTERM: stopped during set-up; the same command starts again\n")
        self.assertLess(seconds, 10)

    def test_sigterms_of_several_senders_at_once_are_one_signal(self):
        """Slurm, torchrun and a sweep send them within 0.1 s; signals further apart than that count separately."""
        code, out, err, _ = signalled("training", signals=[TERM] * 6, gap=0.02)
        self.assertEqual((code, out), (75, "asked\n"), err)
        code, _, err, _ = signalled("with_short_repeat_seconds", signals=[TERM] * 3, gap=0.1)
        self.assertEqual(code, 128 + TERM, err)

    @parameterized.parameters(([INT, INT, INT],), ([USR1, TERM, INT],))
    def test_a_third_signal_ends_the_process_at_once(self, signals):
        code, _, err, seconds = signalled("training", signals=signals, gap=0.05)
        self.assertEqual(code, 128 + signals[-1], err)
        self.assertLess(seconds, 0.6)

    def test_a_third_signal_ends_a_process_that_waits_in_c_code(self):
        code, _, err, seconds = signalled("deaf", "training", signals=[TERM, INT, USR1], delay=0.5)
        self.assertEqual(code, 128 + USR1, err)
        self.assertLess(seconds, 5)

    @parameterized.parameters(["deaf", "set-up"], ["swallowed"])
    def test_set_up_that_does_not_answer_is_ended(self, *mode):
        code, _, err, seconds = signalled(*mode, delay=0.5)
        self.assertEqual(code, 75, err)
        self.assertIn("set-up did not answer for 1 s", err)
        self.assertBetween(seconds, 0.9, 10)

    def test_a_stop_that_set_up_swallowed_is_honoured_in_training_and_none_after_it(self):
        code, _, err, _ = signalled("set_up_then_training")
        self.assertEqual(code, 75)
        self.assertIn("SIGTERM: stopped after step 0", err)
        self.assertEqual(signalled("finished")[:2], (0, "end\n"))

    @parameterized.parameters(0.0, 0.01, 0.03)
    def test_two_signals_at_once_or_around_the_end_do_not_change_it(self, gap):
        """The second may be handled within the first one's handler; and as it ends, the interpreter gives signals their
        default handlers, by which SIGTERM would end it with -15."""
        code, _, err, seconds = signalled("set_up", signals=[TERM, USR1], gap=gap)
        self.assertEqual(code, 75, err)
        self.assertLess(seconds, 10)


class InProcessTest(absltest.TestCase):
    """Callers from Python get back what they had."""

    def test_set_up_raises_in_the_caller(self):
        with catching_signals(), exits_with(75):
            os.kill(os.getpid(), TERM)
            time.sleep(5)

    def test_another_thread_installs_nothing_and_is_never_asked(self):
        found = []
        handler = signal.getsignal(TERM)

        def work():
            with catching_signals() as stop:
                found.extend([stop.requested, signal.getsignal(TERM)])

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        self.assertEqual(found, [False, handler])

    def test_phases_nest_and_set_up_does_not_come_back(self):
        with catching_signals() as stop:
            self.assertEqual(stop.current_phase, "set-up")
            with stop.phase("training"):
                with stop.phase("saving"):
                    self.assertEqual(stop.current_phase, "saving")
                self.assertEqual(stop.current_phase, "training")
            self.assertEqual(stop.current_phase, "finishing")


def bad_flag() -> Exception:
    """The error of a wrong flag."""
    with exits_with(78) as failure:
        parse_flags("fine_tune_t5", ["--learning_rate=fast"])
    return failure.exception


class LostRankTest(parameterized.TestCase):
    LOST = RuntimeError("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711")

    def test_a_lost_rank_counts_as_preempted_when_this_one_is_to_stop_too(self):
        with catching_signals() as stop, stop.phase("training"):
            threading.Timer(0.3, os.kill, (os.getpid(), TERM)).start()  # the signal comes after the failure
            with exits_with(75, "SIGTERM: stopped during training"), stop.excusing_lost_ranks():
                raise self.LOST
        failure = self.assertRaisesRegex(RuntimeError, "closed by peer")  # alone
        with catching_signals() as stop, failure, stop.phase("training"), stop.excusing_lost_ranks():
            raise self.LOST

    def test_a_rank_lost_before_training_counts_as_preempted_too(self):
        code, _, err, _ = signalled("lost_rank", delay=0.5)
        self.assertEqual(code, 75)
        self.assertNotIn("Traceback", err)
        code, _, err, _ = signalled("lost_rank", signals=())
        self.assertEqual(code, 1)
        self.assertIn("Connection closed by peer", err)

    def test_other_failures_stay_failures_but_what_a_library_made_of_the_stop_is_the_stop(self):
        with catching_signals() as stop, stop.phase("training"):
            stop.request("SIGTERM")
            for error in (bad_flag(), OSError(28, "No space left on device"), RuntimeError("shape mismatch")):
                with self.assertRaises(type(error)), stop.excusing_lost_ranks():
                    raise error
            with exits_with(75), stop.excusing_lost_ranks():
                try:
                    raise stop.preempted()
                except BaseException as error:
                    raise ImportError("half a module") from error


class ChildrenTest(parameterized.TestCase):
    @parameterized.parameters(("pool", "True False"), ("child", "-15 False"))
    def test_forked_children_have_the_default_handlers(self, mode, expected):
        victim = start("signal_victim.py", mode)
        self.assertEqual(victim.communicate(timeout=30)[0].split(maxsplit=1)[1].strip(), expected)
        self.assertEqual(victim.returncode, 0)


def stay_as_a_worker():
    ignore_in_worker()
    time.sleep(60)


def leave_a_worker(sender):
    """Starts a worker, tells its id, and ends."""
    worker = multiprocessing.get_context("fork").Process(target=stay_as_a_worker)
    worker.start()
    sender.send(worker.pid)
    os._exit(0)


@contextlib.contextmanager
def as_on_macos():
    """Without `sigtimedwait`, which would tell who has sent a signal."""
    with mock.patch.object(signal, "sigtimedwait"):
        del signal.sigtimedwait
        yield


class WorkerTest(absltest.TestCase):
    def test_a_worker_outlives_every_signal_but_its_parents_end(self):
        context = multiprocessing.get_context("fork")
        with shielding_workers():
            worker = context.Process(target=stay_as_a_worker)
            worker.start()
        for name in ("TERM", "INT", "USR1"):  # of a stranger
            subprocess.run(["kill", f"-{name}", str(worker.pid)], check=True)
        worker.join(0.5)
        self.assertTrue(worker.is_alive())
        os.kill(worker.pid, INT)  # of a terminal that signals the group, say
        worker.join(0.5)
        self.assertTrue(worker.is_alive())
        worker.terminate()
        worker.join(60)
        self.assertEqual(worker.exitcode, 128 + TERM)

    def test_on_macos_a_worker_outlives_ctrl_c_and_its_parent_ends_it(self):
        with as_on_macos(), shielding_workers():
            worker = multiprocessing.get_context("fork").Process(target=stay_as_a_worker)
            worker.start()
        self.addCleanup(worker.kill)
        os.kill(worker.pid, INT)
        worker.join(0.5)
        self.assertTrue(worker.is_alive())
        worker.terminate()
        worker.join(10)
        self.assertEqual(worker.exitcode, -TERM)

    def test_on_macos_a_worker_ends_with_its_parent(self):
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        with as_on_macos():
            context.Process(target=leave_a_worker, args=(sender,)).start()
        worker = receiver.recv()
        deadline = time.monotonic() + 10
        while is_alive(worker) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(is_alive(worker))


@pytest.mark.slow
class WorkersTest(parameterized.TestCase):
    @parameterized.parameters("fork", "forkserver")
    def test_workers_outlive_signals_to_the_whole_group_and_not_their_main_process(self, context):
        victim = start("signal_victim.py", "workers", context, start_new_session=True)
        for line, number in (("started\n", TERM), ("reading\n", INT)):
            self.assertEqual(victim.stdout.readline(), line)
            os.killpg(victim.pid, number)
        self.assertEqual(victim.stdout.readline(), "16 batches\n")
        workers = list(map(int, victim.stdout.readline().split()))
        self.assertEqual(victim.stdout.readline(), "terminated: True\n")
        self.assertTrue(all(map(is_alive, workers[1:])))
        victim.kill()
        deadline = time.monotonic() + 15
        while any(map(is_alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse([pid for pid in workers if is_alive(pid)])
        victim.communicate()


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def full_disk(bytes_wanted=None) -> OSError:
    error = OSError(errno.ENOSPC, "No space left on device", "runs/x")
    error.bytes_wanted = bytes_wanted
    return error


class ExitCodesTest(parameterized.TestCase):
    """How a command ends, by what its work raises: the exit code and all of standard error."""

    def ended(self, error: BaseException | None) -> tuple[int, str]:
        def main(argv):
            if error is not None:
                raise error

        with contextlib.redirect_stderr(io.StringIO()) as message:
            return run_command(main), message.getvalue()

    @parameterized.parameters(
        (None, 0, ""),
        (ConfigError("--seed x"), 78, "error: --seed x\n"),
        (DataError("rows.jsonl:3"), 65, "error: rows.jsonl:3\n"),
        (NumericsError("NaN"), 70, "error: NaN\n"),
        (CheckpointError("cut off"), 74, "error: cut off\n"),
        (Preempted("SIGTERM: at step 7"), 75, "stopped: SIGTERM: at step 7\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (OSError("of a library"), 74, "error: of a library\n"),
        (TimeoutError(), 74, "error: TimeoutError\n"),
        (OSError(errno.ENOTTY, "Not a terminal"), 74, "error: Not a terminal\n"),
    )
    def test_what_a_command_raises_becomes_one_message_and_its_code(self, error, code, message):
        self.assertEqual(self.ended(error), (code, message))

    def test_a_full_disk_is_named_with_its_place_and_what_was_wanted(self):
        place = "error: runs/x: No space left on device"
        for error, beginning in (
            (full_disk(), f"{place}; "),
            (full_disk(1234567), f"{place} (1,234,567 bytes wanted); "),
        ):
            code, message = self.ended(error)
            self.assertEqual((code, message.startswith(beginning)), (74, True), message)
            self.assertNotIn("--output_dir", message)  # a command may have no such flag

    def test_a_current_directory_that_is_gone_is_named(self):
        missing = FileNotFoundError(errno.ENOENT, "No such file or directory")
        self.assertEqual(self.ended(missing), (74, "error: No such file or directory\n"))
        self.addCleanup(os.chdir, os.getcwd())
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        os.rmdir(folder)
        self.assertEqual(
            self.ended(missing), (74, "error: the current directory has been deleted; change to one that exists\n")
        )
        missing.filename = "rows.jsonl"
        self.assertEqual(self.ended(missing), (74, "error: rows.jsonl: No such file or directory\n"))

    @parameterized.parameters(
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        MemoryError(),
        RuntimeError("unable to mmap 400000000 bytes from file <w.pth>: Cannot allocate memory (12)"),
        OSError(errno.ENOMEM, "Cannot allocate memory", "tokens.npy"),
    )
    def test_a_lack_of_memory_is_one_line_with_ways_out(self, error):
        code, message = self.ended(error)
        self.assertEqual((code, message.count("\n")), (71, 1))
        cause = str(error).splitlines()[0] if str(error) else "MemoryError"
        self.assertStartsWith(message, f"error: out of memory ({cause}); use smaller batches, ")

    def test_a_bug_keeps_its_traceback_without_secrets(self):
        code, message = self.ended(AssertionError("not of this world: https://user:hunter2secret@host/x"))
        self.assertEqual(code, 1)
        self.assertStartsWith(message, "Traceback (most recent call last)")
        self.assertIn("AssertionError: not of this world", message)
        self.assertNotIn("hunter2secret", message)

    def test_a_reader_that_has_seen_enough_is_no_failure(self):
        """`t5suite tasks | head -1`: what is still in the buffer goes nowhere."""
        with tempfile.NamedTemporaryFile("w") as output, contextlib.redirect_stdout(output):
            print("in the buffer")
            self.assertEqual(self.ended(BrokenPipeError()), (0, ""))
            output.flush()
            self.assertEqual(os.path.getsize(output.name), 0)
