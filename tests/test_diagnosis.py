"""What one looks at when something is odd: a profile, each rank's log, the code's changes, and no chatter around it."""

import contextlib
import hashlib
import io
import json
import logging
import os
import subprocess
import warnings
from types import SimpleNamespace
from unittest import mock

import torch
from absl.testing import absltest, parameterized
from support import folder

from t5suite.base import provenance
from t5suite.runs.directory import open_run
from t5suite.testing import exits_with
from t5suite.training.monitoring import terminal
from t5suite.training.monitoring.rates import ProfileCallback, parse_steps
from t5suite.training.monitoring.terminal import Progress
from t5suite.training.processes.ranks import RankLog, attached, logging_to

SECRET = "hf_" + "a1B2" * 8


class VersionsTest(parameterized.TestCase):
    def test_a_package_that_is_not_installed_has_no_version(self):
        with mock.patch.object(provenance, "PACKAGES", ["no-such-package", "torch"]):
            found = provenance.versions()
        self.assertIsNone(found["no-such-package"])
        # torch's own version may have the name of its build behind it ("2.15.0+cu132"), which pip's has not.
        self.assertEqual(found["torch"].partition("+")[0], torch.__version__.partition("+")[0])


class ProfileTest(parameterized.TestCase):
    def test_steps_of_a_range_are_read_and_what_is_no_range_is_refused(self):
        for text, expected in (("10:12", (10, 12)), ("7", (7, 7)), (" 3:3 ", (3, 3))):
            self.assertEqual(parse_steps(text), expected)
        for text in ("12:10", "0:3", "a:b", "10-12", "10:", ":12", "1:2:3", "", "-1:4", "1.5:2"):
            with self.subTest(text), exits_with(78, "--profile .*10:12"):
                parse_steps(text)

    def trained(self, steps: str, first: int, last: int, directory) -> str:
        """A loop as the trainer's, over steps from `first` to `last`; what it printed."""
        callback, out = ProfileCallback(steps, directory), io.StringIO()
        state = SimpleNamespace(global_step=first - 1, max_steps=last)
        weight = torch.ones(8, 8, requires_grad=True)
        with contextlib.redirect_stdout(out):
            callback.on_train_begin(None, state, None)
            while state.global_step < last:
                callback.on_step_begin(None, state, None)
                (weight @ weight).sum().backward()
                state.global_step += 1
                callback.on_step_end(None, state, None)
            callback.on_train_end(None, state, None)
        return out.getvalue()

    def test_the_range_s_trace_memory_and_table(self):
        directory = folder()
        printed = self.trained("3:4", 1, 6, directory)
        table, trace = sorted((directory / "profile").iterdir())
        self.assertEqual((table.name, trace.name), ("steps-3-4.rank-0.table.txt", "steps-3-4.rank-0.trace.json"))
        names = [event.get("name") for event in json.loads(trace.read_text())["traceEvents"]]
        self.assertEqual(names.count("aten::matmul"), 2)  # of two steps
        self.assertRegex(printed, r"Self CPU %.*# of Calls")

    @parameterized.parameters(
        ("2:4", 5, 8, "trains steps 5 to 8", None), ("9:10", 1, 8, "trains steps 1 to 8", None),
        ("2:4", 4, 8, None, "steps-4-4"), ("7:20", 1, 8, None, "steps-7-8"),
    )  # fmt: skip
    def test_what_of_the_range_is_there(self, steps, first, last, warning, written):
        directory = folder()
        expect = self.assertLogs("t5suite", "WARNING") if warning else self.assertNoLogs("t5suite", "WARNING")
        with expect as logs:
            self.trained(steps, first, last, directory)
        if warning:
            self.assertIn(f"--profile {steps} has no effect: the run {warning}", logs.output[0])
        found = [path.name.split(".")[0] for path in directory.glob("profile/*.trace.json")]
        self.assertEqual(found, [written] if written else [])

    def test_a_profiler_that_fails_costs_a_warning(self):
        broken = mock.patch("torch.profiler.profile", side_effect=RuntimeError("no CUPTI"))
        with broken, self.assertLogs("t5suite", "WARNING") as logs:
            self.trained("1:2", 1, 3, folder())
        self.assertRegex("|".join(logs.output), r"^[^|]*no CUPTI[^|]*$")


class RankLogTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        while (left := attached()) is not None:  # by a whole run in this process, which listens to its end
            left.detach()

    def test_lines_from_before_the_directory_is_known_and_the_end_are_there_once_and_redacted(self):
        directory, log = folder(), logging.getLogger("t5suite.somewhere")
        listener = RankLog(3).attach()
        self.addCleanup(listener.detach)
        log.warning("before, with %s", SECRET)
        with self.assertRaises(OSError), logging_to(directory):
            logging.getLogger("transformers.trainer").warning("theirs")
            raise OSError(f"the disk {SECRET}")
        with logging_to(directory):
            log.warning("again")
        (full := folder() / "logs").mkdir()
        (full / "rank-3.log").symlink_to("/dev/full")
        with self.assertRaisesRegex(OSError, "the cause"), logging_to(full.parent):
            raise OSError("the cause")
        text = (directory / "logs" / "rank-3.log").read_text()
        pattern = r"(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} rank 3 WARNING t5suite.somewhere: before, with \*\*\*$"
        self.assertRegex(text, pattern)
        for words in ("before, with", "theirs", "OSError: the disk ***", "Traceback", "again"):
            self.assertEqual(text.count(words), 1, words)
        self.assertNotIn(SECRET, text)

    def test_lines_between_two_runs_go_to_the_second_one_s_file(self):
        first, second, listener = folder(), folder(), RankLog(0).attach()
        self.addCleanup(listener.detach)
        with logging_to(first):
            pass
        logging.getLogger("t5suite").warning("between")
        with logging_to(second):
            pass
        self.assertEqual((first / "logs/rank-0.log").read_text(), "")
        self.assertIn("between", (second / "logs/rank-0.log").read_text())

        own = folder()  # without a listener there is one for as long as the run goes
        listener.detach()
        before = list(logging.getLogger("t5suite").handlers)
        with logging_to(own, rank=1):
            logging.getLogger("t5suite").error("within")
        self.assertEqual(logging.getLogger("t5suite").handlers, before)
        self.assertIn("rank 1 ERROR t5suite: within", (own / "logs/rank-1.log").read_text())


class ChatterTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(terminal.quiet_libraries, True)

    def warned(self, text: str, verbose: bool = False) -> list[str]:
        """What comes through of a warning and of a library's log line."""
        shown, log = [], logging.getLogger("transformers.trainer")
        handler = logging.Handler()
        handler.emit = lambda record: shown.append(record.getMessage())
        log.addHandler(handler)
        with mock.patch.object(warnings, "showwarning", lambda message, *rest: shown.append(str(message))):
            terminal.quiet_libraries(verbose)
            log.warning(text)
            warnings.showwarning(UserWarning(text), UserWarning, "x.py", 1)
        log.removeHandler(handler)
        return shown

    def test_what_is_in_the_table_is_left_out_for_a_reason_and_verbose_shows_all(self):
        for text, reason in terminal.LIBRARY_NOISE.items():
            self.assertEmpty(self.warned(f"Note: {text} (in this case)."))
            self.assertGreater(len(reason.split()), 5)
        self.assertLen(self.warned(text, verbose=True), 2)


class CodeTest(absltest.TestCase):
    def test_the_diff_has_the_changes_without_secrets_and_names_unknown_files(self):
        root = folder()
        git = lambda *words: subprocess.run(["git", "-C", root, *words], check=True, capture_output=True)
        git("init")
        for landmark in provenance.LANDMARKS:
            (root / "t5suite" / landmark).parent.mkdir(parents=True, exist_ok=True)
            (root / "t5suite" / landmark).touch()
        package = root / "t5suite"
        (package / "code.py").write_text("a = 1\n")
        git("add", "t5suite")
        git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "first")
        index = (root / ".git" / "index").read_bytes()
        os.utime(package / "code.py", (1, 1))
        self.assertEqual(provenance.code_changes(package), ("", []))
        self.assertEqual((root / ".git" / "index").read_bytes(), index, "the checkout's index was written")
        (package / "code.py").write_text(f"a = 2\ntoken = '{SECRET}'\n")
        (package / "new.py").write_text("b = 1\n")
        diff, untracked = provenance.code_changes(package)
        self.assertIn("-a = 1\n+a = 2\n+token = '***'", diff)
        self.assertNotIn(SECRET, diff)
        self.assertEqual(untracked, ["t5suite/new.py"])
        with mock.patch.object(provenance, "LARGEST_DIFF", 20):
            self.assertRegex(provenance.code_changes(package)[0], r"\A.{20}\n# \d+ more characters are left out\n\Z")
        self.assertIsNone(provenance.code_changes(folder()))

    def test_the_run_keeps_it_with_its_hash_and_another_one_where_it_changed(self):
        directory = folder() / "run"
        run = open_run(directory, {"seed": 1})
        run.update()
        for diff in ("+a\n", "+a\n", "+b\n"):
            with mock.patch("t5suite.runs.directory.code_changes", lambda diff=diff: (diff, [])):
                run.keep_code()
        with mock.patch("t5suite.runs.directory.code_changes", lambda: None):
            run.keep_code()
        kept = json.loads((directory / "manifest.json").read_text())["code_changes"]
        self.assertEqual([entry["file"] for entry in kept], ["diff.patch", "diff-2.patch"])
        for entry, diff in zip(kept, ("+a\n", "+b\n")):
            self.assertEqual((directory / entry["file"]).read_text(), diff)
            self.assertEqual(entry["sha256"], hashlib.sha256(diff.encode()).hexdigest())


class ProgressTest(absltest.TestCase):
    def logged(self, logs: dict, show_bar: bool = False, shown: Progress | None = None) -> tuple[str, str]:
        """What appears on standard output and standard error."""
        out, err = io.StringIO(), io.StringIO()
        state = SimpleNamespace(global_step=3, max_steps=9, is_world_process_zero=True)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            shown = shown or Progress(show_bar)
            shown.on_train_begin(None, state, None)
            shown.on_log(None, state, None, logs)
            shown.on_train_end(None, state, None)
        return out.getvalue(), err.getvalue()

    def test_a_log_is_a_line_and_no_dictionary(self):
        shown = Progress(show_bar=False)
        log = {"loss": 0.5, "learning_rate": 1e-3, "tokens_per_second": 5000.0, "seconds_left": 61.0}
        out, err = self.logged(log, shown=shown)
        legend, line = out.splitlines()
        self.assertEqual((line, err), ("step 3/9 · loss 0.500 · lr 1.0e-03 · 5.0k tokens/s · 1m01s left", ""))
        self.assertRegex(legend, r"loss: .*; lr: learning rate; tokens: of inputs")
        self.assertEqual(self.logged(log, shown=shown)[0], line + "\n", "the legend is there once")
        logs = {"eval/matthews_correlation": float("nan"), "eval/invalid_rate": 12.5, "eval/loss": 0.25}
        expected = "step 3/9 · evaluation · matthews_correlation nan · invalid 12.5% · loss 0.250\n"
        self.assertEqual(self.logged(logs)[0], expected)

    def test_the_bar_has_the_score_and_evaluations_above_it(self):
        out, err = self.logged({"eval/accuracy": 91.0, "eval/average": 91.0}, show_bar=True)
        self.assertEqual(out, "step 3/9 · evaluation · accuracy 91.00\n")
        self.assertRegex(err, r"33%.*3/9, score 91\.00, .* left")
        out, err = self.logged({"loss": 0.5, "tokens_per_second": 5000.0}, show_bar=True)
        self.assertRegex(err, r"3/9, loss 0\.500, 5\.0k tokens/s, .* left")
        self.assertEqual(out, "")
