"""Batch scripts with a Slurm of small fakes: what is quoted, what is refused, what is requeued, who is a rank."""

import contextlib
import io
import itertools
import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import parameterized

from t5suite.testing import cli_output, exits_with, run_cli

ROOT = Path(__file__).parent.parent
WORDS = {
    "fine_tune": ["python", "fine_tune_t5.py", "--benchmark", "glue"],
    "pre_train": ["python", "pre_train_t5.py"],
    "sweep_agent": ["wandb", "agent", "--count", "1", "me/project/abc"],
    "corpus": ["t5suite", "corpus", "build", "--input", "text/"],
}
HOSTILE = ("; touch canary", "$(touch canary)", "`touch canary`", "| touch canary #", "a'b\"c", "new\nline", "-rf *", "",
           "\\")  # fmt: skip
# Lines of the templates that are filled in, as words of a command.
MARKS = tuple(f"# [t5suite: {place}]\n" for place in ("options", "settings", "command"))
OPTIONS = {
    "account": "lab", "partition": "gpu", "qos": "normal", "time": "4:00:00", "nodes": "2", "gpus_per_node": "4",
    "cpus_per_task": "16", "mem": "64G", "gres": "gpu:a100:2", "constraint": "a100|h100", "nodelist": "node[01-04]",
    "exclude": "node[05-06]", "reservation": "workshop", "dependency": "afterok:4711", "array": "1-12%4",
    "job_name": "rte-base",
}  # fmt: skip
OF_ARRAYS = ("sweep_agent", "corpus")
FAKES = {
    # What srun was given, as JSON; then what its tasks would have left.
    "srun": """#!{python} -IS
import json, os, sys
with open("srun.json", "w") as file:
    json.dump([sys.argv[1:], dict(os.environ)], file)
with open(os.environ.get("T5SUITE_EXIT_CODES", os.devnull), "a") as file:
    file.write("".join(code + "\\n" for code in os.environ["NOTED"].split()))
sys.exit(int(os.environ["CODE"]))
""",
    "scontrol": """#!/bin/sh
echo "$*" >> "{folder}/scontrol.log"
case "$1 $2" in
"show hostnames") echo gpu003; echo gpu004 ;;
"show "*) echo "JobId=7 JobState=$STATE Restarts=0 EndTime=Unknown" ;;
esac
""",
    "sbatch": """#!{python} -IS
import json, os, sys
with open("sbatch.json", "w") as file:
    json.dump([sys.argv[1:], sys.stdin.read()], file)
if os.environ["CODE"] != "0":
    print("sbatch: error: Invalid account", file=sys.stderr)
else:
    print("4711;cluster")
sys.exit(int(os.environ["CODE"]))
""",
}
# The words after `t5suite` that run an entry script.
NAMES_OF_SCRIPTS = (
    "fine_tune", "fine-tune", "finetune", "train", "pre_train", "pre-train", "pretrain", "evaluate", "eval"
)  # fmt: skip
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "gpu[003-004]"}


def rendered(kind: str, words=(), **options) -> str:
    """The batch script of a command, with these options of the job."""
    flags = [f"--{name}={value}" for name, value in options.items()]
    return cli_output("slurm", "render", kind, *flags, "--", *words)


class FakeSlurm:
    def __init__(self):
        self.folder = Path(tempfile.mkdtemp())
        (self.folder / "bin").mkdir()
        for name, program in FAKES.items():
            path = self.folder / "bin" / name
            path.write_text(program.format(python=sys.executable, folder=self.folder))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        (self.folder / "bin" / "python").symlink_to(sys.executable)

    def write_python(self, folder: str, exit_code='"$5"') -> Path:
        """A `python` that has a free port, and ends as `-m t5suite slurm settle CODE` may, or with another code."""
        path = self.folder / folder / "python"
        path.unlink(missing_ok=True)
        path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo 29500 || exit {exit_code}\n')
        path.chmod(0o755)
        return path

    def environment(self, code=0, noted="", state="RUNNING", **more) -> dict[str, str]:
        """Of a job whose step ends with this code and these codes of workers."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "T5SUITE"))}
        plain |= {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        return {**plain, **JOB, "TMPDIR": str(self.folder), "CODE": str(code), "NOTED": noted, "STATE": state, **more}

    def run(self, script: str, *words, **environment) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash", "-s", "--", *words], input=script, env=self.environment(**environment), cwd=self.folder,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    def received(self, name: str):
        """What a program was called with."""
        return json.loads((self.folder / f"{name}.json").read_text())


class RenderingTest(parameterized.TestCase):
    @parameterized.parameters(*WORDS)
    def test_directives_stand_once_and_before_the_first_command(self, kind):
        options = OPTIONS | ({"array": "0-3", "nodes": "1"} if kind in OF_ARRAYS else {})
        log_dir = tempfile.mkdtemp()
        script = rendered(kind, WORDS[kind], log_dir=log_dir, signal_seconds=90, **options)
        lines = script.splitlines()
        directives = [line for line in lines if line.startswith("#SBATCH")]
        first_command = next(index for index, line in enumerate(lines) if line and not line.startswith("#"))
        self.assertLess(max(lines.index(line) for line in directives), first_command)
        names = [re.match(r"#SBATCH --([\w-]+)", line)[1] for line in directives]
        self.assertLen(set(names), len(names))
        for name, value in options.items():
            self.assertIn(f"#SBATCH --{name.replace('_', '-')}={value}", directives)
        log = "%x-%A_%a.log" if kind in OF_ARRAYS else "%x-%j.log"
        for option in ("signal=TERM@90", "requeue", "open-mode=append", f"output={log_dir}/{log}"):
            self.assertIn(f"#SBATCH --{option}", directives)
        self.assertNotIn("[t5suite:", script)

    @parameterized.parameters(*WORDS)
    @pytest.mark.slow
    def test_words_and_values_come_literally(self, kind):
        words = [*WORDS[kind], *HOSTILE, *MARKS, "#SBATCH --nodes=9"]
        variables = {f"WORD_{index}": word for index, word in enumerate((*HOSTILE, *MARKS))}
        flags = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        flags += ["--array", "0-3"] if kind == "corpus" else []
        fakes = FakeSlurm()
        script = cli_output("slurm", "render", kind, *flags, "--", *words)
        done = fakes.run(script, SLURM_ARRAY_TASK_ID="3", T5SUITE_PROCESSES_PER_NODE="1")
        self.assertEqual(done.returncode, 0, done.stderr)
        srun_words, srun_environment = fakes.received("srun")
        around = srun_words[1:5] if kind == "sweep_agent" else []
        shard = ["--shard", "3/4"] if kind == "corpus" else []
        self.assertEqual(srun_words, ["--wait=300", *around, *words, *shard])
        self.assertEqual({name: srun_environment[name] for name in variables}, variables)
        self.assertEmpty([path for path in fakes.folder.rglob("*") if "canary" in path.name])

    def test_a_value_that_would_need_quotes_and_a_time_of_another_form_are_refused_by_name(self):
        every_option = itertools.product(OPTIONS, ("$(touch canary)", "a b", ""))
        every_word = itertools.product(("account", "nodelist"), (*HOSTILE, "x\n#SBATCH --uid=0"))
        for name, word in (
            *every_option,
            *every_word,
            *(("time", word) for word in ("4h", "0", "1:2:3:4", "4:00:00:00")),
        ):
            with self.subTest(name=name, word=word), exits_with(78, f"^--{name} "):
                rendered("fine_tune", WORDS["fine_tune"], **{name: word})

    @parameterized.parameters(
        (["sweep_agent"], "command is missing"), (["corpus"], "command is missing"), (["pretrain"], "did you mean pre_train"),
        (["corpus", "--array", "1-4", "--", "x"], "count from 0"), (["pre_train", "--nodes", "2", "--", "accelerate"], "torchrun"),
        (["pre_train", "--", "accelerate"], "pre_train --nodes 2: .* torchrun starts it; .*or give --nodes 1"),
        (["pre_train", "--", "accelerate"], "begin with python, or with t5suite fine_tune, pre_train or evaluate"),
        (["fine_tune", "--log_dir", "a b", "--", "x"], "--log_dir 'a b': an #SBATCH line takes letters"),
        (["fine_tune", "--env", "1A=2", "--", "x"], "--env '1A=2': must be NAME=VALUE"),
        (["fine_tune", "--env", "HOME", "--", "x"], "--env 'HOME': must be NAME=VALUE"),
        (["fine_tune", "--setup", "/no/env.sh", "--", "x"], "--setup '/no/env.sh': no such file"),
        (["fine_tune", "--", ""], "empty word"), (["fine_tune", "--", "a\0b"], "NUL"),
    )  # fmt: skip
    def test_what_a_template_cannot_run_is_refused(self, argv, message):
        with exits_with(78, message):
            run_cli("slurm", "render", *argv)

    def test_a_time_limit_is_read_as_slurm_reads_it(self):
        times = {"90": 5400, "1:30": 90, "4:00:00": 14400, "2-12": 216000, "1-0:30": 88200, "1-00:00:01": 86401}
        for time, seconds in times.items():
            script = rendered("fine_tune", WORDS["fine_tune"], time=time, signal_seconds=seconds - 1)
            self.assertIn(f"#SBATCH --signal=TERM@{seconds - 1}\n", script)
            with exits_with(78, f"--signal_seconds {seconds}"):  # the signal would come with the beginning
                rendered("fine_tune", WORDS["fine_tune"], time=time, signal_seconds=seconds)

    @parameterized.parameters(
        "docs/distributed.md", *(f"slurm/{kind}.sbatch" for kind in WORDS), "t5suite/commands/slurm.py"
    )
    def test_examples_of_the_guide_the_templates_and_the_help_can_be_rendered(self, file):
        text = re.sub(r"^#   ", "", (ROOT / file).read_text(), flags=re.MULTILINE)
        text = re.sub(r"\\\\?\n\s*(?:#\s*)?", " ", text).replace("{action}", "submit")
        examples = re.findall(r"^\s*(t5suite slurm submit .*)$", text, flags=re.MULTILINE)
        self.assertNotEmpty(examples)
        for line in examples:
            argv = shlex.split(line.replace('"""', "").replace("--setup env.sh", ""))[1:]
            script = cli_output("slurm", "render", *argv[2:])
            self.assertIn(f"set -- {shlex.join(argv[argv.index('--') + 1 :])}\n", script, line)


class SubmittingTest(parameterized.TestCase):
    SUBMIT = ("slurm", "submit", "fine_tune", "--account", "lab", "--max_requeues", "3", "--", "python", "x.py")

    def test_sbatch_gets_the_script_without_a_shell_and_its_id_alone_is_printed(self):
        with mock.patch("subprocess.run", return_value=subprocess.CompletedProcess([], 0, "4711;cluster\n", "")) as run:
            self.assertEqual(cli_output(*self.SUBMIT), "4711\n")
        (words,), settings = run.call_args
        self.assertEqual((words, settings.get("shell", False)), (["sbatch", "--parsable"], False))
        self.assertIn("#SBATCH --account=lab\n", settings["input"])
        self.assertIn("\nexport T5SUITE_MAX_REQUEUES=3\n", settings["input"])

    @parameterized.parameters(
        ({"side_effect": FileNotFoundError()}, "sbatch is not on PATH"),
        ({"side_effect": subprocess.TimeoutExpired("sbatch", 60)}, "sbatch has not answered for 60 s"),
        (
            {"return_value": subprocess.CompletedProcess([], 1, "", "Invalid account\n")},
            "refused the job: Invalid account",
        ),
        ({"return_value": subprocess.CompletedProcess([], 3, "", "")}, "refused the job: exit code 3"),
    )
    def test_why_a_job_is_not_submitted_is_said(self, outcome, message):
        with mock.patch("subprocess.run", **outcome), exits_with(78, message):
            cli_output(*self.SUBMIT)

    @parameterized.parameters((0, 0, "4711\n", ""), (1, 78, "", "Invalid account"))
    @pytest.mark.slow
    def test_the_script_goes_to_sbatch_and_the_id_is_printed(self, code, exit_code, printed, message):
        fakes = FakeSlurm()
        argv = "slurm submit fine_tune --account lab --log_dir logs/a -- python x.py".split()
        done = subprocess.run(
            [sys.executable, "-m", "t5suite", *argv, "$(touch canary)"],
            env=fakes.environment(code), cwd=fakes.folder, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        self.assertEqual((done.returncode, done.stdout), (exit_code, printed), done.stderr)
        self.assertIn(message, done.stderr)
        flags, script = fakes.received("sbatch")
        self.assertEqual(flags, ["--parsable"])
        self.assertIn("#SBATCH --account=lab\n", script)
        self.assertIn("set -- python x.py '$(touch canary)'\n", script)
        self.assertTrue((fakes.folder / "logs/a").is_dir())


class EndTest(parameterized.TestCase):
    """How a script ends: by the step's code, the workers' codes and the job's state."""

    @parameterized.parameters(
        # step's code, workers', the job's state, requeues so far -> exit code, requeued
        (0, "0 0", "RUNNING", 0, 0, False), (75, "75", "RUNNING", 0, 75, True), (1, "75 75", "RUNNING", 3, 75, True),
        (143, "", "RUNNING", 0, 75, True), (75, "", "RUNNING", 50, 75, False), (75, "75", "CANCELLED", 0, 75, False),
        (75, "75", "PREEMPTED", 0, 75, False), (75, "75", "TIMEOUT", 0, 75, True), (1, "", "TIMEOUT", 0, 75, True),
        (1, "", "RUNNING", 0, 1, False), (1, "78 78", "RUNNING", 0, 78, False), (1, "65", "RUNNING", 0, 65, False),
        (1, "70 70", "RUNNING", 0, 70, False), (74, "74", "RUNNING", 0, 74, False), (1, "75 65", "RUNNING", 0, 65, False),
        (137, "", "RUNNING", 0, 137, False), (1, "0", "TIMEOUT", 0, 1, False),
        (1, "", "COMPLETING Reason=TimeLimit", 0, 75, True), (75, "75", "COMPLETING Reason=None", 0, 75, False),
        # Of the workers that began one noted no end.
        (1, "began began 75", "RUNNING", 0, 1, False), (1, "began began 75", "TIMEOUT", 0, 75, True),
        (1, "began began 75 75", "RUNNING", 0, 75, True), (1, "began began 75 70", "RUNNING", 0, 70, False),
        (0, "began began 0", "RUNNING", 0, 0, False), (1, "1 75 71 65", "RUNNING", 0, 71, False),
        (1, "75 1 1", "RUNNING", 0, 1, False),
        # A launcher started its workers again.
        (0, "71 0", "RUNNING", 0, 0, False), (0, "75 75 0 0", "TIMEOUT", 0, 0, False),
    )  # fmt: skip
    def test_what_was_stopped_is_requeued_and_what_failed_is_not(
        self, code, noted, state, restarts, exit_code, requeued
    ):
        fakes = FakeSlurm()
        codes = fakes.folder / "codes"
        codes.write_text("\n".join(noted.split()))
        more = {"SLURM_RESTART_COUNT": str(restarts), "T5SUITE_EXIT_CODES": str(codes)}
        environment = mock.patch.dict(os.environ, fakes.environment(state=state, **more), clear=True)
        with environment, contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as ending:
            run_cli("slurm", "settle", code)
        self.assertEqual(ending.exception.code, exit_code)
        calls = (fakes.folder / "scontrol.log").read_text().splitlines()
        self.assertEqual("requeue 7" in calls, requeued, calls)

    def test_codes_of_a_further_node_s_workers_count(self):
        codes = Path(tempfile.mkdtemp()) / "codes"
        codes.write_text("began\n75\n")
        answer = {"return_value": subprocess.CompletedProcess([], 0, "JobState=RUNNING Restarts=0", "")}
        for noted, exit_code in (("began\n75\n", 75), ("began\n65\n", 65), ("began\n", 1)):
            Path(f"{codes}.1").write_text(noted)
            code, _ = self.settled(answer, 1, SLURM_JOB_ID="7", T5SUITE_EXIT_CODES=str(codes))
            self.assertEqual(code, exit_code, noted)

    def settled(self, outcome, step_code=75, **environment) -> tuple[int, list[list[str]]]:
        """The exit code of a job whose step ended with this code, 75 if it was stopped, and what scontrol was asked."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "T5SUITE"))}
        self.enter_context(mock.patch.dict(os.environ, {**plain, **environment}, clear=True))
        run = self.enter_context(mock.patch("subprocess.run", **outcome))
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as ending:
            run_cli("slurm", "settle", step_code)
        return ending.exception.code, [call.args[0] for call in run.call_args_list]

    @parameterized.parameters(
        ({"SLURM_ARRAY_JOB_ID": "6", "SLURM_ARRAY_TASK_ID": "2"}, "6_2"),
        ({"SLURM_ARRAY_JOB_ID": "6"}, "7"),
        ({"SLURM_ARRAY_TASK_ID": "2"}, "7"),
    )
    def test_a_task_of_an_array_is_requeued_by_its_own_id(self, array, requeued_id):
        answer = subprocess.CompletedProcess([], 0, "JobState=RUNNING Restarts=0", "")
        code, calls = self.settled({"return_value": answer}, SLURM_JOB_ID="7", **array)
        self.assertEqual((code, calls[-1]), (75, ["scontrol", "requeue", requeued_id]))

    def test_a_job_is_requeued_at_most_as_often_as_its_script_says(self):
        answer = subprocess.CompletedProcess([], 0, "JobState=RUNNING Restarts=2", "")
        for most, requeued in ((0, False), (2, False), (3, True)):
            script = rendered("fine_tune", WORDS["fine_tune"], max_requeues=most)
            (value,) = re.findall(r"^export T5SUITE_MAX_REQUEUES=(.*)$", script, flags=re.MULTILINE)
            code, calls = self.settled({"return_value": answer}, SLURM_JOB_ID="7", T5SUITE_MAX_REQUEUES=value)
            self.assertEqual((code, ["scontrol", "requeue", "7"] in calls), (75, requeued), most)

    def test_a_slurm_that_does_not_answer_counts_as_running(self):
        for outcome in (
            {"side_effect": FileNotFoundError()},
            {"return_value": subprocess.CompletedProcess([], 1, "", "")},
        ):
            code, calls = self.settled(outcome, SLURM_JOB_ID="7", T5SUITE_EXIT_CODES="/no/such/file")
            self.assertEqual((code, calls[-1]), (75, ["scontrol", "requeue", "7"]))

    @parameterized.parameters(
        ({}, "there is no SLURM_JOB_ID"),
        ({"SLURM_JOB_ID": "--all"}, "there is no SLURM_JOB_ID"),
        ({"SLURM_JOB_ID": "7", "T5SUITE_MAX_REQUEUES": "many"}, "T5SUITE_MAX_REQUEUES='many': must be a number"),
    )
    def test_what_is_no_job_is_refused(self, variables, message):
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "T5SUITE"))}
        with mock.patch.dict(os.environ, {**plain, **variables}, clear=True), exits_with(78, message):
            run_cli("slurm", "settle", 75)

    def test_a_job_that_slurm_does_not_requeue_is_named(self):
        fakes = FakeSlurm()
        scontrol = fakes.folder / "bin/scontrol"
        scontrol.rename(fakes.folder / "bin/scontrol.real")
        scontrol.write_text(f'#!/bin/bash\n[ "$1" = requeue ] && exit 1\nexec {fakes.folder}/bin/scontrol.real "$@"\n')
        scontrol.chmod(0o755)
        environment = mock.patch.dict(os.environ, fakes.environment(state="RUNNING"), clear=True)
        message = io.StringIO()
        with environment, contextlib.redirect_stderr(message), self.assertRaises(SystemExit) as ending:
            run_cli("slurm", "settle", 75)
        self.assertEqual(ending.exception.code, 75)
        self.assertRegex(message.getvalue(), r"cannot requeue 7\b")

    @parameterized.parameters((True, 0, 75), (False, 0, 0))
    @pytest.mark.slow
    def test_an_agent_that_was_stopped_is_known_by_the_signal(self, signalled, code, exit_code):
        """wandb's agent ends with 0 when it was stopped."""
        self.check_agent(signalled, code, exit_code)

    @pytest.mark.slow
    def test_an_agent_that_failed_has_failed_though_it_was_stopped(self):
        self.check_agent(True, 78, 78)

    def check_agent(self, signalled, code, exit_code):
        fakes = FakeSlurm()
        (fakes.folder / "bin/srun").write_text('#!/bin/bash\nshift; exec "$@"\n')
        agent = f"import os, signal, sys; os.kill(os.getppid(), signal.SIGTERM) if {signalled} else 0; sys.exit({code})"
        array = {"SLURM_ARRAY_JOB_ID": "6", "SLURM_ARRAY_TASK_ID": "2"}
        done = fakes.run(rendered("sweep_agent", ["python", "-c", agent]), **array)
        self.assertEqual(done.returncode, exit_code, done.stderr)
        calls = (fakes.folder / "scontrol.log").read_text().splitlines()
        self.assertEqual("requeue 6_2" in calls, exit_code == 75, calls)
        self.assertEmpty(list(fakes.folder.glob("tmp.*")))

    @parameterized.parameters(*WORDS)
    def test_the_end_is_decided_by_the_python_beside_the_command_where_the_suite_is_installed(self, kind):
        fakes = FakeSlurm()
        (fakes.folder / "venv").mkdir()
        fakes.write_python("bin", exit_code="1")
        fakes.write_python("venv")
        script, command = (ROOT / f"slurm/{kind}.sbatch").read_text(), str(fakes.folder / "venv/accelerate")
        array = {"SLURM_ARRAY_TASK_ID": "0", "T5SUITE_SHARDS": "1"}
        self.assertEqual(fakes.run(script, command, code=75, **array).returncode, 1)
        (fakes.folder / "venv/t5suite").touch(mode=0o755)
        self.assertEqual(fakes.run(script, command, code=75, **array).returncode, 75)

    @parameterized.parameters(*WORDS)
    def test_programs_in_a_folder_without_python_are_of_the_python_of_path(self, kind):
        """`pip install --user`, pipx and uv leave `t5suite` and `accelerate` in `~/.local/bin`, and no `python`."""
        fakes = FakeSlurm()
        fakes.write_python("bin")
        (fakes.folder / "local").mkdir()
        (fakes.folder / "local/t5suite").touch(mode=0o755)
        script, command = (ROOT / f"slurm/{kind}.sbatch").read_text(), str(fakes.folder / "local/accelerate")
        array = {"SLURM_ARRAY_TASK_ID": "0", "T5SUITE_SHARDS": "1"}
        done = fakes.run(script, command, code=75, **array)
        self.assertEqual(done.returncode, 75, done.stderr)

    @parameterized.product(kind=("fine_tune", "pre_train"), nodes=("1", "2"))
    def test_torchrun_starts_python_and_the_entry_scripts_on_each_gpu_and_a_launcher_once(self, kind, nodes):
        fakes = FakeSlurm()
        python = str(fakes.write_python("bin"))
        job = {"SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_NUM_NODES": nodes}
        training = [["/venv/t5suite", name, "--seed", "1"] for name in NAMES_OF_SCRIPTS]
        for words in ([python, "x.py"], *training):
            self.assertEqual(fakes.run(rendered(kind, words, nodes=nodes), **job).returncode, 0)
            received, _ = fakes.received("srun")
            self.assertIn("torch.distributed.run", received)
            self.assertEqual(received[received.index("--nproc_per_node") + 1], "4")
            self.assertEqual(received[received.index("--no_python") + 1 :], words)
        for words in (["accelerate", "launch", "x.py"], ["t5suite", "sweep"], ["t5suite"]):
            if nodes == "1":
                self.assertEqual(fakes.run(rendered(kind, words, nodes=nodes), **job).returncode, 0)
                self.assertEqual(fakes.received("srun")[0], ["--wait=300", *words])
                continue
            with exits_with(78, f"the command begins with '{words[0]}', but on several nodes torchrun starts it"):
                rendered(kind, words, nodes=nodes)
            template = (ROOT / f"slurm/{kind}.sbatch").read_text()
            done = fakes.run(template, *words, **job)
            self.assertEqual(done.returncode, 78)
            self.assertIn("begin with python, or t5suite fine_tune, pre_train or evaluate", done.stderr)

    def test_an_agent_s_step_lasts_until_its_trial_has_saved(self):
        """The signal comes to all processes: the agent ends, and its trial saves a while later."""
        fakes = FakeSlurm()
        (fakes.folder / "bin/srun").write_text(
            '#!/bin/sh\nshift; setsid -w "$@"; code=$?; mv saved saved_in_time; exit $code\n'
        )
        fakes.write_python("bin")
        trial = '(trap "" TERM; touch began; sleep 0.5; touch saved) &'
        agent = f'trap "exit 0" TERM; {trial} while [ ! -e began ]; do sleep 0.02; done; kill -TERM 0; sleep 9'
        done = fakes.run(rendered("sweep_agent", ["sh", "-c", agent]))
        self.assertEqual(done.returncode, 75, done.stderr)
        self.assertTrue((fakes.folder / "saved_in_time").is_file(), done.stderr)

    @pytest.mark.slow
    def test_the_setup_file_comes_first_and_may_read_what_is_not_set(self):
        fakes = FakeSlurm()
        setup = fakes.folder / "it's a setup.sh"
        setup.write_text('export FROM_SETUP="x$NOT_SET"\n')
        done = fakes.run(rendered("fine_tune", WORDS["fine_tune"], setup=setup))
        self.assertEqual((done.returncode, fakes.received("srun")[1].get("FROM_SETUP")), (0, "x"), done.stderr)


class ExitNotesTest(parameterized.TestCase):
    """A launcher ends with a code of its own: each worker adds its code to the file that the environment names."""

    def setUp(self):
        super().setUp()
        self.codes = Path(tempfile.mkdtemp()) / "codes"
        self.codes.touch()

    def run_script(self, script: str, *words: str) -> int:
        environment = {**os.environ, "T5SUITE_EXIT_CODES": str(self.codes), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(ROOT / f"{script}.py"), *words]
        return subprocess.run(
            command, env=environment, capture_output=True, timeout=120, cwd=self.codes.parent
        ).returncode

    def test_refused_flags_are_noted_by_both_scripts(self):
        for script in ("fine_tune_t5", "pre_train_t5"):
            self.assertEqual(self.run_script(script, "--no_such_flag"), 78)
        self.assertEqual(self.codes.read_text().split(), ["78", "78"])

    @pytest.mark.slow
    def test_how_a_run_ends_is_noted_after_what_was_noted_before(self):
        (self.codes.parent / "bad.jsonl").write_text("{}\n")
        self.assertEqual(self.run_script("fine_tune_t5", "--dry_run", "--use_cpu"), 0)
        self.assertEqual(self.run_script("fine_tune_t5", "--train_file=bad.jsonl", "--use_cpu"), 65)
        self.assertEqual(self.run_script("pre_train_t5", "--dry_run", "--use_cpu"), 0)
        self.assertEqual(self.codes.read_text().split(), ["began", "0", "began", "65", "began", "0"])

    @pytest.mark.slow
    def test_a_worker_of_a_further_node_notes_its_end_in_a_file_of_its_own(self):
        with mock.patch.dict(os.environ, {"SLURM_NODEID": "1"}):
            self.assertEqual(self.run_script("fine_tune_t5", "--no_such_flag"), 78)
            self.assertEqual(Path(f"{self.codes}.1").read_text().split(), ["78"])
            self.codes.unlink()  # as on a node that does not see the folder
            Path(f"{self.codes}.1").unlink()
            self.assertEqual(self.run_script("fine_tune_t5", "--no_such_flag"), 78)
        self.assertEmpty(list(self.codes.parent.iterdir()))
