"""Sweeps without a server, driven as a user would, over a trial that needs no torch (`sweep_trial.py`).

The laws: no trial is lost and none is run twice, whatever is killed; the number of trials is what was asked for, however
many processes work on the sweep; a trial that fails, hangs or diverges does not end the sweep; nothing is left running.
"""

import contextlib
import errno
import fcntl
import io
import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import yaml
from absl.testing import parameterized
from shown_tables import boxed_tables

from t5suite import DATASET_VALS
from t5suite.testing import cli_output, exits_with, run_cli

ROOT = Path(__file__).resolve().parent.parent
TRIAL = str(Path(__file__).resolve().parent / "sweep_trial.py")
HANG = 120.0
# How trials in a shell end: well, if SIGTERM does not come for two seconds; by SIGTERM, which is waited for.
WAITS, ENDS_BY_SIGTERM = (f"trap 'exit 75' TERM; for i in $(seq {n}); do sleep 0.5; done; exit 0" for n in (4, 60))


def run_quietly(*words) -> None:
    """Runs a command whose output does not matter."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run_cli(*words)


def with_closed_pipe(argv: list[str]) -> int:
    """The exit code of a command that prints to a reader that has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(argv, stdout=writer, stderr=subprocess.DEVNULL, cwd=ROOT, timeout=HANG).returncode
    finally:
        os.close(writer)


class SweepTest(parameterized.TestCase):
    SLOW = ("--", "--sleep=0.1")

    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.directory, self.file = self.folder / "sweep", str(self.folder / "file.yaml")
        self.started: list[subprocess.Popen] = []
        self.addCleanup(self.kill_all)

    def kill_all(self):
        for process in self.started:
            self.kill(process)
        for pid in itertools.chain.from_iterable(map(self.processes_of, self.trials())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill(self, process):
        process.kill()
        process.wait()

    def start(self, *words) -> subprocess.Popen:
        """Starts `t5suite sweep`; its output goes to a file of its own."""
        words = list(map(str, words))
        place = words.index("--") if "--" in words else len(words)
        words[place:place] = ["--sweep_dir", str(self.directory)]
        with (self.folder / f"output-{len(self.started)}").open("wb") as output:
            argv = [sys.executable, "-m", "t5suite", "sweep", *words]
            self.started.append(subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT))
        return self.started[-1]

    def ends(self, driver, code=0) -> str:
        found, text = driver.wait(timeout=HANG), self.output(self.started.index(driver))
        self.assertEqual(found, code, text)
        return text

    def sweep(self, *words, code=0) -> str:
        return self.ends(self.start(*words), code)

    def output(self, number: int) -> str:
        return (self.folder / f"output-{number}").read_text()

    def write(self, **changes) -> str:
        """A sweep over `sweep_trial.py`, with these changes."""
        rate = {"distribution": "log_uniform_values", "min": 1e-5, "max": 1e-1}
        metric = {"name": "eval/accuracy", "goal": "maximize"}
        content = {"program": TRIAL, "method": "random", "metric": metric, "parameters": {"learning_rate": rate}}
        Path(self.file).write_text(yaml.safe_dump(content | changes, sort_keys=False))
        return self.file

    def write_curves(self, curves: dict, goal: str, **changes) -> str:
        """A grid of trials, by name: `(its losses, how it ends)`, with all losses negated where more is better."""
        sign = 1 if goal == "minimize" else -1
        for name, (losses, _) in curves.items():
            values = [None if loss is None else sign * loss for loss in losses]
            lines = [json.dumps({"step": step, "eval/x": value}) + "\n" for step, value in enumerate(values, 1)]
            (self.folder / f"{name}.jsonl").write_text("".join(lines))
        ends = "".join(f"--x={name}) {ending};;\n" for name, (_, ending) in curves.items())
        program = self.folder / "trial.sh"
        program.write_text(
            f'mkdir -p "$T5SUITE_RUN_DIR"; cp "{self.folder}/${{1#--x=}}.jsonl" "$T5SUITE_RUN_DIR/metrics.jsonl"\n'
            f'case "$1" in\n{ends}esac\n'
        )
        return self.write(
            command=["/bin/sh", str(program), "${args}"],
            method="grid",
            metric={"name": "eval/x", "goal": goal},
            parameters={"x": {"values": [*curves]}},
            **changes,
        )

    def summary(self) -> dict:
        return json.loads((self.directory / "sweep.json").read_text())

    def trials(self) -> list[Path]:
        return sorted(path for path in self.directory.glob("trials/*") if path.is_dir())

    def starts(self, folder: Path) -> list[list[str]]:
        """`[first step, run id, words]` of each start of a trial."""
        lines = (folder / "steps.log").read_text().splitlines()
        return [line.split(" ", 3)[1:] for line in lines if line.startswith("start")]

    def steps(self, folder: Path) -> list[int]:
        """The steps that a trial has made so far, if it has begun."""
        log = folder / "steps.log"
        lines = log.read_text().splitlines() if log.is_file() else []
        return [int(line.split()[1]) for line in lines if line.startswith("step")]

    def processes_of(self, folder: Path) -> list[int]:
        """Living processes whose run directory this is."""
        wanted, found = f"T5SUITE_RUN_DIR={folder}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_dead = entry.joinpath("stat").read_text().rpartition(")")[2].split()[0] in "ZX"
                if not is_dead and wanted in entry.joinpath("environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def wait_for(self, condition, what: str):
        deadline = time.monotonic() + HANG
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"waited in vain for {what}")
            time.sleep(0.02)

    def wait_for_steps(self, trial: int, count: int):
        folder = self.directory / "trials" / f"{trial:04d}"
        self.wait_for(lambda: len(self.steps(folder)) >= count, f"{count} steps of trial {trial}")

    def check_each_ran_once(self, count: int, steps: int = 9):
        records = self.summary()["trials"]
        self.assertEqual([record["number"] for record in records], list(range(count)))
        self.assertEqual([folder.name for folder in self.trials()], [f"{number:04d}" for number in range(count)])
        for record, folder in zip(records, self.trials(), strict=True):
            self.assertIn(record["state"], ("complete", "pruned"))
            last = steps if record["state"] == "complete" else record["last_step"]
            self.assertEqual(self.steps(folder)[:last], list(range(1, last + 1)), f"{folder.name}: lost or repeated")
            self.assertEmpty(self.processes_of(folder))


class SearchesTest(SweepTest):
    @pytest.mark.slow
    def test_bayes_with_hyperband_and_two_workers(self):
        early = {"type": "hyperband", "min_iter": 2, "eta": 2}
        words = ("--count", 8, "--workers", 2, "--", "--sleep=0.06")
        text = self.sweep(self.write(method="bayes", early_terminate=early), *words)
        self.check_each_ran_once(8)
        summary = self.summary()
        self.assertIn("pruned", [record["state"] for record in summary["trials"]])
        for record in summary["trials"]:
            if record["state"] == "pruned":
                self.assertIn(record["exit_code"], (75, -signal.SIGTERM))
                self.assertLess(record["last_step"], 9)
            rate = record["parameters"]["learning_rate"]
            curve = [[step, 100 - 10 * abs(math.log10(rate) + 3) - 20 / step] for step in range(1, 10)]
            curve = curve[: record["last_step"]]
            self.assertLen(record["curve"], len(curve))
            np.testing.assert_allclose(record["curve"], curve, rtol=1e-12)
            self.assertAlmostEqual(record["value"], curve[-1][1], places=9)
        rates = {record["number"]: record["parameters"]["learning_rate"] for record in summary["trials"]}
        self.assertLen(set(rates.values()), 8)
        nearest = sorted(rates, key=lambda number: abs(math.log10(rates[number]) + 3))
        pruned = {record["number"] for record in summary["trials"] if record["state"] == "pruned"}
        self.assertNotIn(nearest[0], pruned, "the best of all at every step")
        best = min(set(rates) - pruned, key=nearest.index)
        self.assertEqual(summary["best"], best)
        best = summary["trials"][best]
        self.assertIn(best["command"], text)
        self.assertIn(f"best: trial {best['number']}", text)

    @parameterized.parameters((3, 3, "complete"), (6, 3, "pruned"))
    @pytest.mark.slow
    def test_no_trial_is_pruned_that_has_done_all_its_steps(self, steps, rung, state):
        """The second trial is behind the first one at the only rung, by hand."""
        early = {"type": "hyperband", "min_iter": rung, "eta": 2}
        parameters = {"learning_rate": {"values": [1e-3, 1e-5]}, "steps": {"value": steps}, "scores": {"value": 0.4}}
        path = self.write(method="grid", parameters=parameters, early_terminate=early)
        self.sweep(path, "--", "--sleep=0.3")
        records = self.summary()["trials"]
        self.assertEqual([record["state"] for record in records], ["complete", state])
        self.assertEqual((self.trials()[1] / "results.json").is_file(), state == "complete")
        self.assertLen(self.starts(self.trials()[1]), 1)

    @pytest.mark.slow
    def test_a_trial_that_made_its_last_step_before_it_heard_that_it_is_pruned_goes_on_to_its_scores(self):
        """It hears SIGTERM only in its last second, when all steps are made."""
        early = {"type": "hyperband", "min_iter": 2, "eta": 9}
        parameters = {"learning_rate": {"values": [1e-3, 1e-5]}, "steps": {"value": 3}, "late": {"value": True}}
        path = self.write(method="grid", parameters=parameters, early_terminate=early)
        text = self.sweep(path, "--", "--sleep=0.3", "--scores=0.4")
        self.assertIn("has done all its steps, to 3", text)
        self.assertEqual([record["state"] for record in self.summary()["trials"]], ["complete"] * 2)
        self.assertEqual([int(step) for step, *_ in self.starts(self.trials()[1])], [0, 3])

    def test_a_value_is_the_best_of_its_history_and_null_the_worst_also_where_less_is_better(self):
        """Every trial logs its loss + 5, the loss, and the loss + 1; that of 9 logs null."""
        program = self.folder / "loss.py"
        program.write_text(
            "import json, os, pathlib, sys\n"
            "folder = pathlib.Path(os.environ['T5SUITE_RUN_DIR']); folder.mkdir(parents=True)\n"
            "loss = float(sys.argv[1].partition('=')[2])\n"
            "values = [None if loss == 9 else loss + more for more in (5, 0, 1)]\n"
            "lines = [json.dumps({'step': i, 'eval/loss': value}) for i, value in enumerate(values)]\n"
            "(folder / 'metrics.jsonl').write_text('\\n'.join([*lines, '']))\n"
        )
        path = self.write(
            command=[sys.executable, str(program), "${args}"],
            method="grid",
            metric={"name": "eval/loss", "goal": "minimize", "target": 2.5},
            parameters={"x": {"values": [9.0, 3.0, 4.0, 2.0, 1.0]}, "seed": {"values": [1]}},
        )
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run_cli("sweep", path, "--sweep_dir", str(self.directory))
        self.assertRegex(
            err.getvalue(), r"trial 2: started, 3 of 5, x 4, seed 1\n.* trial 2: .* · 3 of 5 done, about \d+s left\n"
        )
        self.assertEqual(re.findall(r"· (\d) of 5 done, about \d+s left", err.getvalue()), ["1", "2", "3", "4"])
        self.assertRegex(
            err.getvalue(), r"trial 0: finished, but eval/loss was never a number; .*/trials/0000.log says why"
        )
        self.assertIn(f"t5suite report {self.directory}\n", err.getvalue())
        summary = self.summary()
        self.assertEqual([record["value"] for record in summary["trials"]], [None, 3.0, 4.0, 2.0])
        self.assertEqual(summary["best"], 3)
        self.assertRegex(out.getvalue(), r"best single trial: 3, x 2, eval/loss 2 ")
        self.assertIn("best setting of sweep file, by the mean of its trials: x 2, mean 2.00", out.getvalue())
        self.assertEqual(re.findall(r"(\d+) │ complete", out.getvalue()), ["3", "1", "2", "0"])

    @pytest.mark.slow
    def test_the_best_trial_is_the_first_of_the_best_that_are_complete(self):
        """By hand over losses: 2 is the lowest of complete trials, `tied` has it first; null is no number."""
        self.check_best("maximize")

    @pytest.mark.slow
    def test_so_it_is_where_less_is_better(self):
        self.check_best("minimize")

    def check_best(self, goal):
        curves = {
            "high": ([5, 4, 9], "exit 0"), "failed": ([1], "exit 1"), "none": ([None, None], "exit 0"),
            "tied": ([None, 2, 7], "exit 0"), "again": ([2, 3], "exit 0"), "killed": ([0], "kill -9 $$"),
        }  # fmt: skip
        shown = cli_output("sweep", self.write_curves(curves, goal), "--sweep_dir", self.directory)
        summary = self.summary()
        sign = 1 if goal == "minimize" else -1
        values = [None if record["value"] is None else sign * record["value"] for record in summary["trials"]]
        states = [record["state"] for record in summary["trials"]]
        self.assertEqual(states, ["complete", "failed", *["complete"] * 3, "preempted"])
        self.assertEqual(values, [4, 1, None, 2, 2, 0])
        self.assertEqual(summary["best"], 3)
        self.assertIn("best: trial 3, eval/x", shown)
        self.assertIn("best: trial 3, eval/x", cli_output("report", self.directory))

    def test_means_are_of_trials_that_are_complete(self):
        """By hand: two seeds end with 2 and 4; one fails after it had reached 9, one ends without a number."""
        curves = {"1": ([7, 2], "exit 0"), "2": ([9], "exit 1"), "3": ([4], "exit 0"), "4": ([None], "exit 0")}
        path = Path(self.write_curves(curves, "minimize"))
        program = self.folder / "trial.sh"
        program.write_text(program.read_text().replace("--x=", "--seed="))
        content = yaml.safe_load(path.read_text()) | {"parameters": {"seed": {"values": [1, 2, 3, 4]}}}
        path.write_text(yaml.safe_dump(content))
        shown = cli_output("sweep", str(path), "--sweep_dir", self.directory)
        (group,) = self.summary()["groups"]
        self.assertEqual((group["n"], group["mean"]), (2, 3.0))
        self.assertAlmostEqual(group["std"], 2**0.5)
        self.assertIn("mean 3.00", shown)

    def test_a_trial_is_stopped_early_by_its_best_value_so_far(self):
        """By hand over the lowest losses of the first two, where one of two stays: 3; 4 is behind it; 2 leads; 2 ties.

        By the worst, 4 would lead (5 before 9); by the last, 2 would be behind 3 (8). A NaN is behind all numbers.
        """
        self.check_stopped("minimize")

    @pytest.mark.slow
    def test_so_it_is_where_more_is_better(self):
        self.check_stopped("maximize")

    def check_stopped(self, goal):
        curves = {
            "first": ([9, 3], "exit 0"), "behind": ([4, 5, 0], ENDS_BY_SIGTERM), "leads": ([2, 8], WAITS),
            "ties": ([7, 2], WAITS), "never": ([None, None], ENDS_BY_SIGTERM), "short": ([6], "exit 0"),
        }  # fmt: skip
        early = {"type": "hyperband", "max_iter": 4, "s": 1, "eta": 2}
        cli_output("sweep", self.write_curves(curves, goal, early_terminate=early), "--sweep_dir", self.directory)
        states = [record["state"] for record in self.summary()["trials"]]
        self.assertEqual(states, ["complete", "pruned", "complete", "complete", "pruned", "complete"])
        self.assertEqual(self.summary()["best"], 2, "one that was stopped early is none")

    @pytest.mark.slow
    def test_words_reach_the_trial_as_they_are(self):
        values = ["a b", "'\"`", "$(touch canary)", "new\nline", "-rf *", "é;#", ""]
        parameters = {"learning_rate": {"value": 1e-3}, "steps": {"value": 1}, "run_name": {"values": values}}
        self.sweep(self.write(method="grid", parameters=parameters), "--", "--x=$HOME *")
        seen = [json.loads(self.starts(folder)[0][2]) for folder in self.trials()]
        self.assertEqual([words[2] for words in seen], [f"--run_name={value}" for value in values])
        self.assertEqual({words[3] for words in seen}, {"--x=$HOME *"})


class FailuresTest(SweepTest):
    @pytest.mark.slow
    @pytest.mark.resume
    def test_failed_trials_are_recorded_and_the_sweep_goes_on_and_resumes_with_those_that_others_killed(self):
        parameters = {"exit_code": {"values": [0, 1, 70, 78, -9, 137]}, "fail_at": {"value": 3}, "steps": {"value": 3}}
        text = self.sweep(self.write(method="grid", parameters=parameters))
        records = self.summary()["trials"]
        self.assertEqual([record["state"] for record in records], ["complete"] + ["failed"] * 4 + ["preempted"])
        self.assertEqual([record["exit_code"] for record in records], [0, 1, 70, 78, 247, 137])
        self.assertEqual([record["last_step"] for record in records], [2] * 6)
        self.assertIn("exit code 78: bad configuration", text)
        self.assertEqual(self.summary()["best"], 0)
        self.sweep(self.file, "--resume")
        starts = [[int(step) for step, *_ in self.starts(folder)] for folder in self.trials()]
        self.assertEqual(starts, [[0]] * 5 + [[0, 2]])

    @pytest.mark.slow
    def test_a_configuration_that_the_first_trial_refuses_ends_the_sweep(self):
        parameters = {"exit_code": {"values": [78, 1]}, "fail_at": {"value": 1}}
        text = self.sweep(self.write(method="grid", parameters=parameters), code=78)
        self.assertEqual([record["exit_code"] for record in self.summary()["trials"]], [78])
        self.assertIn("trial 0 was refused", text)

    @pytest.mark.slow
    def test_when_the_first_trials_all_fail_the_sweep_ends_and_says_why(self):
        text = self.sweep(self.write(command=["python", "no_such_script.py", "${args}"]), "--count", 20, code=78)
        self.assertLen(self.summary()["trials"], 5)
        self.assertIn("no_such_script.py", text)
        self.assertIn("the first 5 trials failed", text)
        self.directory = self.folder / "other"
        path = self.write(command=["no-such-program", "${args}"])
        self.assertIn("not found", self.sweep(path, "--count", 2, code=78))

    def test_after_five_failures_the_parameters_are_hardly_the_cause_and_the_last_error_is_named(self):
        """Every trial logs seven lines of its own; the fifth ends another way than those before it."""
        script = "x=${1#--x=}; for i in 1 2 3 4 5 6 7; do echo line $i of $x; done; [ $x = 4 ] && exit 70; exit 1"
        path = self.write(
            command=["/bin/sh", "-c", script, "sh", "${args}"],
            method="grid",
            parameters={"x": {"values": list(range(9))}},
        )
        with contextlib.redirect_stderr(io.StringIO()) as shown, exits_with(78) as failure:
            run_cli("sweep", path, "--sweep_dir", self.directory)
        first, *lines = failure.message.splitlines()
        self.assertRegex(first, "the first 5 trials failed.*parameters are hardly the cause.*exit code 70.*0004.log")
        self.assertEqual([line.strip() for line in lines], [f"line {i} of 4" for i in range(3, 8)])
        records = self.summary()["trials"]
        self.assertEqual([record["exit_code"] for record in records], [1, 1, 1, 1, 70])
        self.assertEqual([record["state"] for record in records], ["failed"] * 5)
        last_line = shown.getvalue().splitlines()[-1]
        self.assertRegex(last_line, "trial 4: failed, exit code 70: it diverged")
        self.assertNotIn("left", last_line, "the others are not run")

    def test_the_first_five_failures_are_of_the_whole_sweep_whichever_process_ran_them(self):
        values = {"x": {"values": list(range(9))}}
        path = self.write(command=["/bin/sh", "-c", "exit 1", "${args}"], method="grid", parameters=values)
        words = ("sweep", path, "--sweep_dir", self.directory, "--resume")
        with contextlib.redirect_stdout(io.StringIO()), exits_with(78, "none of the 3 trials finished"):
            run_cli(*words, "--count", 3)
        with contextlib.redirect_stderr(io.StringIO()), exits_with(78, "the first 5 trials failed"):
            run_cli(*words)
        self.assertLen(self.summary()["trials"], 5)

    @parameterized.parameters([[]], [["--json"]])
    @pytest.mark.quick_cases(1)
    def test_a_reader_that_closes_the_pipe_does_not_hide_that_no_trial_finished(self, words):
        path = self.write(command=["/bin/sh", "-c", "exit 1", "${args}"])
        argv = [sys.executable, "-m", "t5suite", "sweep", path, "--count=1", f"--sweep_dir={self.directory}", *words]
        self.assertEqual(with_closed_pipe(argv), 78)
        report = [sys.executable, "-m", "t5suite", "report", self.directory, "--format=none", *words]
        self.assertEqual(with_closed_pipe(report), 0)

    def test_a_refusal_that_a_launcher_hides_ends_the_sweep_and_is_noted_by_the_trial_alone(self):
        """The script ends with 78 and the launcher with 1; the file of a batch job is for the job's own workers."""
        codes = self.folder / "codes"
        codes.touch()
        traceback = "echo 'Traceback (most recent call last):'; seq 1000"
        script = f'echo "error: no $1"; {traceback}; echo 78 >> "$T5SUITE_EXIT_CODES"; exit 1'
        command = ["/bin/sh", "-c", script, "sh", "${args}"]
        path = self.write(command=command, method="grid", parameters={"x": {"values": [1, 2]}})
        job = mock.patch.dict(os.environ, {"T5SUITE_EXIT_CODES": str(codes)})
        for more in ((), ("--resume",)):
            with job, contextlib.redirect_stderr(io.StringIO()), exits_with(78, "trial . was refused") as failure:
                run_cli("sweep", path, "--sweep_dir", self.directory, *more)
            self.assertRegex(failure.message, r"log says:\n  error: no --x=.$")
        self.assertEqual([record["exit_code"] for record in self.summary()["trials"]], [78, 78])
        self.assertEqual(codes.read_text(), "")

    def test_codes_and_messages_of_a_trial_s_former_start_do_not_count(self):
        """The first start is stopped, and so the trial is started again; that start fails."""
        marker = self.folder / "started"
        stopped = f'touch {marker}; printf "error: the hub is down"; echo 75 >> "$T5SUITE_EXIT_CODES"; exit 1'
        script = f"if [ -e {marker} ]; then echo ValueError: x; exit 3; fi; {stopped}"
        command = ["/bin/sh", "-c", script, "sh", "${args}"]
        path = self.write(command=command, method="grid", parameters={"x": {"values": [1]}})
        with contextlib.redirect_stderr(io.StringIO()) as shown, exits_with(78, "Trial 0: exit code 3") as failure:
            run_cli("sweep", path, "--sweep_dir", self.directory)
        self.assertIn("trial 0: preempted", shown.getvalue())
        self.assertEndsWith(failure.message, "0000.log says:\n  ValueError: x")

    @pytest.mark.slow
    def test_after_a_trial_that_ended_well_a_refused_one_does_not_end_the_sweep(self):
        curves = {"fine": ([1, 2], "exit 0"), "refused": ([1], "exit 78"), "again": ([3], "exit 0")}
        path = self.write_curves(curves, "maximize")
        run_quietly("sweep", path, "--sweep_dir", self.directory)
        self.assertEqual([record["state"] for record in self.summary()["trials"]], ["complete", "failed", "complete"])
        self.directory = self.folder / "in two parts"
        run_quietly("sweep", path, "--sweep_dir", self.directory, "--count", 1)
        run_quietly("sweep", path, "--sweep_dir", self.directory, "--resume", "--count", 3)
        self.assertEqual([record["state"] for record in self.summary()["trials"]], ["complete", "failed", "complete"])

    def test_a_first_trial_that_runs_out_of_memory_does_not_end_the_sweep(self):
        path = self.write_curves({"large": ([], "exit 71"), "small": ([2], "exit 0")}, "maximize")
        run_quietly("sweep", path, "--sweep_dir", self.directory)
        large, small = self.summary()["trials"]
        self.assertEqual((large["state"], small["state"]), ("failed", "complete"))
        self.assertEqual(large["why"], "exit code 71: out of memory")

    def test_a_trial_without_the_sweep_s_metric_has_failed_and_what_it_logged_is_named(self):
        log = 'mkdir -p "$T5SUITE_RUN_DIR"; '
        line = """echo '{"step": 1, "eval/b": 1, "eval/a": 2, "train/loss": 3}' > "$T5SUITE_RUN_DIR/metrics.jsonl"; """
        for script, message in ((log + line, "it logged eval/a, eval/b ("), ("", "it logged no metric (")):
            self.directory = self.folder / f"sweep-{len(message)}"
            command = ["/bin/sh", "-c", script + "exit 0", "sh", "${args}"]
            path = self.write(command=command, method="grid", parameters={"x": {"values": [1]}})
            with contextlib.redirect_stderr(io.StringIO()) as shown, exits_with(78, "none of the 1 trials finished"):
                run_cli("sweep", path, "--sweep_dir", self.directory)
            self.assertIn(f"it ended without logging eval/accuracy; {message}", shown.getvalue())

    def test_without_a_metric_s_name_a_trial_s_value_is_the_mean_of_its_tasks_results(self):
        """By hand: axg counts by its accuracy alone, cb by the mean of both; the other trial has no number."""
        results = {
            "both": {
                "axg": {"accuracy": 60.0, "gender_parity": 10.0},
                "cb": {"mean_3class_f1": 80.0, "accuracy": 90.0},
            },
            "none": {"wic": {"accuracy": None}},
        }
        for name, tasks in results.items():
            (self.folder / f"{name}.json").write_text(json.dumps({"tasks": tasks, "averages": {}}))
        entries = {name: DATASET_VALS["super_glue"][name] for name in ("axg", "cb", "wic")}
        (self.folder / "manifest.json").write_text(json.dumps({"run_id": "1", "settings": {}, "tasks": entries}))
        script = f'd="$T5SUITE_RUN_DIR"; mkdir -p "$d"; cp {self.folder}/manifest.json "$d"; '
        script += f'cp {self.folder}/${{1#--x=}}.json "$d/results.json"'
        command = ["/bin/sh", "-c", script, "sh", "${args}"]
        self.write(command=command, method="grid", parameters={"x": {"values": [*results]}})
        content = yaml.safe_load(Path(self.file).read_text())
        del content["metric"]
        Path(self.file).write_text(yaml.safe_dump(content))
        run_quietly("sweep", self.file, "--sweep_dir", self.directory)
        records = self.summary()["trials"]
        self.assertEqual([record["state"] for record in records], ["complete", "failed"])
        self.assertEqual([record["value"] for record in records], [(60.0 + 85.0) / 2, None])

    @pytest.mark.slow
    def test_a_sweep_of_which_no_trial_finished_names_the_cause(self):
        path = self.write(command=["python", "no_such_script.py", "${args}"])
        text = self.sweep(path, "--count", 1, code=78)
        self.assertRegex(
            text, r"none of the 1 trials finished. Trial 0: exit code 2; .*0000.log says:\n.*no_such_script"
        )

    @pytest.mark.slow
    def test_a_stopped_trial_that_does_not_end_is_killed(self):
        """Hyperband stops the worse of two; this one ignores SIGTERM."""
        parameters = {"learning_rate": {"values": [1e-3, 1e-5]}, "stubborn": {"value": True}}
        early = {"type": "hyperband", "min_iter": 2, "eta": 2}
        path = self.write(method="grid", parameters=parameters, early_terminate=early)
        self.sweep(path, "--grace", "0.3", *self.SLOW, "--steps=30")
        record = self.summary()["trials"][1]
        self.assertEqual((record["state"], record["exit_code"]), ("pruned", -signal.SIGKILL))
        self.assertEmpty(self.processes_of(self.trials()[1]))


class KilledTest(SweepTest):
    @pytest.mark.slow
    @pytest.mark.resume
    def test_a_sweep_that_was_killed_goes_on(self):
        early = {"type": "hyperband", "min_iter": 4, "eta": 3}
        words = ("--count", 6, "--workers", 2)
        driver = self.start(self.write(method="bayes", early_terminate=early), *words, *self.SLOW)
        self.wait_for_steps(3, 6)
        self.kill(driver)
        text = self.sweep(self.file, *words, "--resume", *self.SLOW)
        self.check_each_ran_once(6)
        again = [folder.name for folder in self.trials() if len(self.starts(folder)) > 1]
        self.assertNotEmpty(again)
        for name in again:
            first, second = self.starts(self.directory / "trials" / name)
            self.assertEqual(first[1:], second[1:], "the same run id and the same words")
        self.assertIn("started again", text)

    @pytest.mark.slow
    def test_what_is_left_of_a_killed_sweep_is_stopped_before_its_trial_goes_on(self):
        """A launcher's worker does not hear of the driver's death."""
        parameters = {"learning_rate": {"value": 1e-3}, "launcher": {"value": True}}
        words = ("--count", 1, "--", "--sleep=0.1", "--steps=120")
        driver = self.start(self.write(parameters=parameters), *words)
        self.wait_for_steps(0, 3)
        self.kill(driver)
        self.wait_for(lambda: len(self.processes_of(self.trials()[0])) == 1, "the launcher's death")
        self.sweep(self.file, "--resume", *words)
        self.check_each_ran_once(1, steps=120)
        starts = [int(start[0]) for start in self.starts(self.trials()[0])]
        self.assertLen(starts, 2)
        self.assertBetween(starts[1], 4, 119, "it was stopped on its way")

    @pytest.mark.slow
    @pytest.mark.resume
    def test_a_sweep_that_is_asked_to_stop_ends_its_trials_with_a_checkpoint(self):
        words = ("--count", 3, "--workers", 2)
        driver = self.start(self.write(), *words, *self.SLOW)
        self.wait_for_steps(0, 2)
        self.wait_for_steps(1, 2)
        driver.send_signal(signal.SIGTERM)
        self.assertRegex(self.ends(driver, 75), "2 trials were stopped.*--resume")
        records = self.summary()["trials"]
        self.assertEqual([record["state"] for record in records], ["preempted", "preempted"])
        self.assertEqual([record["exit_code"] for record in records], [75, 75])
        self.sweep(self.file, *words, "--resume", *self.SLOW)
        self.check_each_ran_once(3)
        self.assertEqual([len(self.starts(folder)) for folder in self.trials()], [2, 2, 1])

    @pytest.mark.slow
    def test_a_trial_whose_directory_is_in_use_waits(self):
        """Its process may live on another machine, where it cannot be stopped."""
        words = ("--count", 1, *self.SLOW)
        driver = self.start(self.write(), *words)
        self.wait_for_steps(0, 2)
        self.kill(driver)
        self.wait_for(lambda: not self.processes_of(self.trials()[0]), "the trial's end")
        with (self.trials()[0] / ".lock").open("a+") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            driver = self.start(self.file, "--resume", *words)
            self.wait_for(lambda: "waiting for its former process" in self.output(1), "the driver's word")
            time.sleep(1)
            self.assertLen(self.starts(self.trials()[0]), 1)
        self.ends(driver)
        self.check_each_ran_once(1)

    @pytest.mark.slow
    def test_killed_again_and_again_at_any_moment(self):
        """Two processes, one of which is killed every so often; the moments are drawn anew each time."""
        early = {"type": "hyperband", "min_iter": 3, "eta": 2}
        path = self.write(method="bayes", early_terminate=early)
        words = (path, "--count", 12, "--workers", 2, "--resume", "--", "--sleep=0.04")
        drivers = [self.start(*words) for _ in range(2)]
        dice = random.Random()
        for i in range(12):
            time.sleep(dice.uniform(0.3, 2.5))
            self.kill(drivers[i % 2])
            drivers[i % 2] = self.start(*words)
        for driver in drivers:
            self.ends(driver)
        self.sweep(*words)
        self.check_each_ran_once(12)


class SharedTest(SweepTest):
    @pytest.mark.slow
    @pytest.mark.resume
    def test_two_processes_share_a_grid_and_go_through_it_once_and_in_order(self):
        parameters = {"learning_rate": {"values": [1e-2, 1e-3, 1e-4]}, "steps": {"min": 3, "max": 5}}
        path = self.write(method="grid", parameters=parameters, run_cap=20)
        drivers = [self.start(path, "--workers", 2, "--resume") for _ in range(2)]
        for driver in drivers:
            self.ends(driver)
        records = self.summary()["trials"]
        self.assertEqual([record["state"] for record in records], ["complete"] * 9)
        found = [tuple(record["parameters"].values()) for record in records]
        self.assertEqual(found, list(itertools.product([1e-2, 1e-3, 1e-4], [3, 4, 5])))
        self.assertEqual([len(self.starts(folder)) for folder in self.trials()], [1] * 9)
        shares = [self.output(i).count(": started") for i in range(2)]
        self.assertEqual(sum(shares), 9)
        self.assertNotIn(0, shares, "each had some")


class DirectoriesTest(SweepTest):
    def test_another_sweep_s_directory_is_named_with_what_differs(self):
        ends = ["/bin/sh", "-c", "exit 78", "${args}"]
        values = {"x": {"values": [1, 2]}}
        path = self.write(command=ends, method="grid", parameters=values)
        words = ("sweep", path, "--sweep_dir", self.directory)
        with contextlib.redirect_stderr(io.StringIO()), exits_with(78, "trial 0 was refused"):
            run_cli(*words)
        before = (self.directory / "sweep.yaml").read_bytes()
        with exits_with(78, f"{self.directory} holds this sweep already; continue it with --resume"):
            run_cli(*words)
        with exits_with(78, "adds nothing to its trials' command, not --steps=3"):
            run_cli(*words, "--resume", "--", "--steps=3")
        self.write(command=ends, method="grid", parameters=values, metric={"name": "eval/f1", "goal": "maximize"})
        for more in ((), ("--resume",)):
            with exits_with(78, "metric.name 'eval/accuracy' there, 'eval/f1' here"):
                run_cli(*words, *more)
        self.assertEqual((self.directory / "sweep.yaml").read_bytes(), before)

    def test_gpus_that_no_worker_has_are_named(self):
        path = self.write(
            command=["/bin/sh", "-c", "exit 78", "${args}"], method="grid", parameters={"x": {"values": [1]}}
        )
        for workers, unused in ((3, "not used: GPU c, d; each of 3 workers has 1"), (5, None), (1, None)):
            self.directory = self.folder / f"sweep-{workers}"
            words = ("sweep", path, "--sweep_dir", self.directory, "--workers", workers)
            five = mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": "x,y,z,c,d"})
            with five, contextlib.redirect_stderr(io.StringIO()) as shown, exits_with(78, "was refused"):
                run_cli(*words)
            self.assertEqual(unused or "", (re.findall("not used: .*", shown.getvalue()) or [""])[0])

    def test_a_grid_goes_on_in_its_directory_s_order_where_another_copy_has_another(self):
        values = {"x": {"values": [1, 2]}, "y": {"values": [3, 4]}}
        log = 'mkdir -p "$T5SUITE_RUN_DIR"; echo \'{"step": 1, "eval/accuracy": 1}\' > "$T5SUITE_RUN_DIR/metrics.jsonl"'
        command = ["/bin/sh", "-c", log, "sh", "${args}"]
        path = self.write(command=command, method="grid", parameters=values)
        run_quietly("sweep", path, "--sweep_dir", self.directory, "--count", 2)
        self.write(command=command, method="grid", parameters=dict(reversed(values.items())))
        run_quietly("sweep", path, "--sweep_dir", self.directory, "--resume")
        combinations = [tuple(record["parameters"].items()) for record in self.summary()["trials"]]
        expected = [(("x", x), ("y", y)) for x in (1, 2) for y in (3, 4)]
        self.assertEqual(combinations, expected)

    def test_the_value_of_a_variable_in_the_command_stays_out_of_the_directory(self):
        """A trial ends with 3 where it gets the value."""
        value = "nobody-may-read-this"
        words = ["--data_dir=${envvar:PLACE_59}", "${envvar:PLACE_59}", "${envvar:PLACE_59}/${envvar:PLACE_59}"]
        script = f'[ "$*" = "--data_dir={value} {value} {value}/{value} --x=1" ] && exit 3; exit 78'
        command = ["/bin/sh", "-c", script.replace(value, "$PLACE_59"), "sh", *words, "${args}"]
        path = self.write(command=command, method="grid", parameters={"x": {"values": [1]}})
        environment = mock.patch.dict(os.environ, {"PLACE_59": value})
        with environment, contextlib.redirect_stdout(io.StringIO()), exits_with(78, "Trial 0: exit code 3"):
            run_cli("sweep", path, "--sweep_dir", self.directory)
        self.assertEndsWith(self.summary()["trials"][0]["command"], f"'{words[0]}' '{words[1]}' '{words[2]}' --x=1")
        files = [file for file in self.directory.rglob("*") if file.is_file()]
        self.assertEmpty([file for file in files if value.encode() in file.read_bytes()])

    def test_secrets_after_the_flags_stay_out_of_the_directory(self):
        ends = ["/bin/sh", "-c", "exit 78", "${args}"]
        path = self.write(command=ends, method="grid", parameters={"x": {"values": [1]}})
        words = ("sweep", path, "--sweep_dir", self.directory)
        secret = "nobody-may-read-this"
        with contextlib.redirect_stderr(io.StringIO()), exits_with(78, "trial 0 was refused"):
            run_cli(*words, "--", f"--hub_token={secret}")
        files = [file for file in self.directory.rglob("*") if file.is_file()]
        self.assertContainsSubset(["journal.log", "sweep.json"], [file.name for file in files])
        self.assertEmpty([file for file in files if secret.encode() in file.read_bytes()])
        self.assertEndsWith(self.summary()["trials"][0]["command"], "'--hub_token=***'")
        with exits_with(78, "holds no secrets; give the same words after -- again"):
            run_cli(*words, "--resume")
        with exits_with(78, r"adds '--hub_token=\*\*\*' to its trials' command, not --steps=3"):
            run_cli(*words, "--resume", "--", "--steps=3")
        with contextlib.redirect_stdout(io.StringIO()), exits_with(78, "none of the 1 trials finished"):
            run_cli(*words, "--resume", "--", f"--hub_token={secret}")

    def test_a_folder_of_something_else_is_refused(self):
        self.directory.mkdir()
        for name in ("b.txt", "a.txt", "c.txt", "d.txt"):
            (self.directory / name).touch()
        with exits_with(78, r"not empty \(a.txt, b.txt, c.txt, ...\) and not a sweep's"):
            run_cli("sweep", self.write(), "--count", 1, "--sweep_dir", self.directory)

    def test_where_files_cannot_be_locked_a_link_is_the_lock(self):
        no_locks = mock.patch("fcntl.lockf", side_effect=OSError(errno.ENOLCK, "No locks available"))
        path = self.write_curves({"one": ([1, 2], "exit 0"), "two": ([3], "exit 0")}, "minimize")
        with no_locks:
            run_quietly("sweep", path, "--sweep_dir", self.directory)
        self.assertEqual([record["value"] for record in self.summary()["trials"]], [1, 3])
        self.assertEmpty([entry for entry in self.directory.iterdir() if entry.is_symlink()])

    @pytest.mark.slow
    def test_a_sweep_is_not_begun_over_another_and_goes_on_behind_half_a_line_of_its_journal(self):
        self.sweep(self.write(), "--count", 1)
        before = (self.directory / "sweep.yaml").read_bytes()
        text = self.sweep(self.file, "--count", 1, code=78)
        self.assertIn(f"--sweep_dir {self.directory} holds this sweep already", text)
        changed = self.write(metric={"name": "eval/accuracy", "goal": "minimize"})
        text = self.sweep(changed, "--count", 2, "--resume", code=78)
        self.assertIn("metric.goal 'maximize' there, 'minimize' here", text)
        self.assertEqual(self.sweep(changed, "--count", 2, code=78), text, "--resume is no advice for another sweep")
        text = self.sweep(self.write(), "--count", 2, "--resume", "--", "--steps=3", code=78)
        self.assertIn("adds nothing to its trials' command, not --steps=3", text)
        self.assertEqual((self.directory / "sweep.yaml").read_bytes(), before)
        with (self.directory / "journal.log").open("ab") as journal:
            journal.write(b'{"op_code": 4, "worker')
        self.sweep(self.file, "--count", 2, "--resume")
        self.check_each_ran_once(2)


class GridTest(SweepTest):
    @pytest.mark.slow
    def test_seeds_and_tasks_end_in_means_and_deviations(self):
        words = ["--grid", "learning_rate=1e-3,1e-2", "--seeds", "1,2,4", "--tasks", "rte,cola", "--workers", 2]
        command = ["--", sys.executable, TRIAL, "--steps=1", "--sleep=0", "--log=eval/average"]
        text, summary = self.sweep(*words, *command), self.summary()
        self.assertLen(summary["trials"], 12)
        self.assertLen(summary["groups"], 4)
        for group in summary["groups"]:
            base = 80.0 if group["parameters"]["learning_rate"] == 1e-3 else 70.0
            self.assertEqual(group["n"], 3)
            self.assertAlmostEqual(group["mean"], base + 7 / 3)
            self.assertAlmostEqual(group["std"], (7 / 3) ** 0.5)
        self.assertEqual({group["task"] for group in summary["groups"]}, {"rte", "cola"})
        self.assertIn("1.53", text)
        self.assertIsNone(summary["best"], "two tasks' scores are not compared")
        self.assertIn("best setting for cola, by the mean of its trials: learning_rate 0.001, mean 82.33", text)
        words = json.loads(self.starts(self.trials()[0])[0][2])
        self.assertEqual(words[3:], ["--learning_rate=0.001", "--seed=1", "--dataset_name=rte"])

    @pytest.mark.slow
    def test_the_tasks_own_metrics_are_shown_as_they_were_where_the_average_was_best(self):
        words = ["--grid", "learning_rate=1e-3", "--seeds", "1,3"]
        command = ["--", sys.executable, TRIAL, "--steps=3", "--sleep=0", "--log=eval/average", "--falling=1"]
        text, summary = self.sweep(*words, *command), self.summary()
        scores = {"eval/pearson": 97.0, "eval/invalid_rate": 3.0}
        self.assertEqual([trial["scores"] for trial in summary["trials"]], [scores] * 2)
        (group,) = summary["groups"]
        self.assertEqual(group["scores"]["eval/pearson"], {"n": 2, "mean": 97.0, "std": 0.0})
        (rows,) = boxed_tables(text)
        self.assertEqual([(row["pearson"], row["invalid_rate"]) for row in rows], [("97", "3")] * 2)
        self.assertIn("97.00 ± 0.00 (2)", text)

    def test_a_setting_whose_metrics_all_equal_its_value_has_their_means_as_the_others(self):
        """By hand: in both trials of x 2 the average is that of equal metrics."""
        for x, scores in ((1, {"accuracy": 100, "f1": 50}), (2, {"accuracy": 80, "f1": 80})):
            line = {"step": 1, "eval/average": sum(scores.values()) / 2}
            line |= {f"eval/{name}": score for name, score in scores.items()}
            (self.folder / f"--x={x}.jsonl").write_text(json.dumps(line) + "\n")
        script = f'mkdir -p "$T5SUITE_RUN_DIR"; cp "{self.folder}/$1.jsonl" "$T5SUITE_RUN_DIR/metrics.jsonl"'
        words = ("--grid", "x=1,2", "--seeds", "1,2", "--", "/bin/sh", "-c", script, "sh")
        shown = cli_output("sweep", "--sweep_dir", self.directory, *words)
        for group, means in zip(self.summary()["groups"], ((100, 50), (80, 80)), strict=True):
            scores = {name: {"n": 2, "mean": mean, "std": 0} for name, mean in zip(("accuracy", "f1"), means)}
            self.assertEqual(group["scores"], {f"eval/{name}": score for name, score in scores.items()})
        self.assertRegex(shown, r"x 2 ( +80.00 ± 0.00 \(2\)){3}")

    @parameterized.parameters(("rte", 1), ("rte,cola", None))
    def test_trials_of_one_task_alone_have_a_best_one(self, tasks, best):
        script = 'mkdir -p "$T5SUITE_RUN_DIR"; echo "{\\"step\\": 1, \\"eval/average\\": ${1#--x=}}" > "$T5SUITE_RUN_DIR/metrics.jsonl"'
        words = ("--grid", "x=60,70", "--tasks", tasks, "--", "/bin/sh", "-c", script, "sh")
        shown = cli_output("sweep", "--sweep_dir", self.directory, *words)
        self.assertEqual(self.summary()["best"], best)
        self.assertEqual("best single trial: 1, x 70" in shown, best == 1)

    def test_secrets_of_a_grid_s_command_stay_out_of_its_directory_which_goes_on_with_them_alone(self):
        """A trial ends with 3 where it gets the secret."""
        script = 'case "$1" in --hub_token=nobody*) exit 3;; esac; exit 78'
        secret = "nobody-may-read-this"
        command = ("--", "/bin/sh", "-c", script, "sh", f"--hub_token={secret}")
        words = ("sweep", "--sweep_dir", self.directory, "--grid", "x=1,2")
        with contextlib.redirect_stdout(io.StringIO()), exits_with(78, "none of the 1 trials finished.*exit code 3"):
            run_cli(*words, "--count", 1, *command)
        for file in ((), (self.directory / "sweep.yaml",)):
            with exits_with(78, r"/sweep.yaml: .* a secret, which the file does not hold .*; give the same --grid"):
                run_cli("sweep", *file, "--sweep_dir", self.directory, "--resume")
        with contextlib.redirect_stdout(io.StringIO()), exits_with(78, "none of the 2 trials finished.*exit code 3"):
            run_cli(*words, "--resume", *command)
        files = [file for file in self.directory.rglob("*") if file.is_file()]
        self.assertContainsSubset(["journal.log", "sweep.json", "sweep.yaml"], [file.name for file in files])
        self.assertEmpty([file for file in files if secret.encode() in file.read_bytes()])

    @parameterized.parameters("--hub_token=${envvar:SECRET_57}", "--hub_token ${envvar:SECRET_57}")
    def test_a_grid_whose_secret_is_named_by_its_variable_goes_on_from_its_directory_alone(self, words):
        """A trial ends with 3 where it gets the secret."""
        script = 'case "$*" in --hub_token?nobody*) exit 3;; esac; exit 78'
        secret = "nobody-may-read-this"
        command = ("--", "/bin/sh", "-c", script, "sh", *words.split())
        with mock.patch.dict(os.environ, {"SECRET_57": secret}), contextlib.redirect_stdout(io.StringIO()):
            with exits_with(78, "none of the 1 trials finished.*exit code 3"):
                run_cli("sweep", "--sweep_dir", self.directory, "--grid", "x=1,2", "--count", 1, *command)
            with exits_with(78, "none of the 2 trials finished.*exit code 3"):
                run_cli("sweep", "--sweep_dir", self.directory, "--resume", "--count", 2)
        self.assertIn(words.split()[-1], (self.directory / "sweep.yaml").read_text())
        files = [file for file in self.directory.rglob("*") if file.is_file()]
        self.assertEmpty([file for file in files if secret.encode() in file.read_bytes()])

    def test_another_command_s_secrets_are_not_named(self):
        command = ["/bin/sh", "-c", "exit 78", "--hub_token=nobody-may-read-this", "${args}"]
        words = ("sweep", "--sweep_dir", self.directory, "--resume")
        values = {"x": {"values": [1]}}
        with contextlib.redirect_stderr(io.StringIO()), exits_with(78, "trial 0 was refused"):
            run_cli(*words, self.write(command=command, method="grid", parameters=values))
        with exits_with(78, r"command \['/bin/sh', '-c', 'exit 78', '--hub_token=\*\*\*'.* there, \['/bin/sh', '-c'"):
            run_cli(*words, self.write(command=[*command[:3], "${args}"], method="grid", parameters=values))

    @parameterized.parameters(
        ("rte,cola", [], ["--benchmark=glue"]),
        ("rte,cb", ["--max_steps", "3"], ["--max_steps", "3", "--benchmark=super_glue"]),
        ("rte", ["--benchmark=super_glue"], ["--benchmark=super_glue"]),
        ("sentiment,entailment", [], []),
        ("rte,cola", ["--task_file", "mine.yaml"], ["--task_file", "mine.yaml"]),
    )
    def test_tasks_bring_the_benchmark_that_has_them_all(self, tasks, flags, expected):
        command = ["python", "fine_tune_t5.py"]
        refusing = self.folder / "python"  # stands first on the path of a trial, beside the interpreter
        refusing.write_text("#!/bin/sh\nexit 78\n")
        refusing.chmod(0o755)
        (self.folder / "python3").symlink_to(sys.executable)
        with (
            mock.patch.object(sys, "executable", str(self.folder / "python3")),
            contextlib.redirect_stdout(io.StringIO()),
            exits_with(78, "trial 0 was refused"),
        ):
            run_cli("sweep", "--sweep_dir", self.directory, "--seeds", "1", "--tasks", tasks, "--", *command, *flags)
        written = yaml.safe_load((self.directory / "sweep.yaml").read_text())
        self.assertEqual(written["command"], [*command, *expected, "${args}"])

    @parameterized.parameters(
        (["--tasks", "rte", "--", "python", "fine_tune_t5.py"], "rte: tasks of glue, super_glue; add --benchmark glue"),
        (["--grid", "learning_rate", "--", "x"], "write flag=value"),
        (["--seeds", "1,a", "--", "x"], "seeds are whole numbers"),
        (["--seeds", "1,1", "--", "x"], "1 is given twice"),
        (["--grid", "seed=1", "--seeds", "2", "--", "x"], "seed is given twice"),
        (["--grid", "seed= 1 ,1", "--", "x"], "seed: 1 is given twice"),
        (["--grid", "prefix=sum up: , sum up: ", "--", "x"], "prefix: 'sum up: ' is given twice"),
        (["--seeds", "1,2"], "need the command"),
        (["--seeds", "1", "--", "python", "fine_tune_t5.py", "--sede=3"], "unknown flag --sede; did you mean --seed"),
        (["--grid", "learning_rate=fast", "--", "python", "fine_tune_t5.py"], "'fast' is not a float"),
        ([], "give a sweep file"),
        (["no_such.yaml", "--count", "1"], "no sweep file 'no_such.yaml'"),
        (["--seeds", "1", "--workers", "0", "--", "x"], "--workers 0"),
    )
    def test_what_is_wrong_is_named(self, words, said):
        with exits_with(78, re.escape(said)):
            run_cli("sweep", "--sweep_dir", str(self.directory), *words)
