"""What runs on LSF, on Kubernetes and in a container: the scripts' own shell, the manifest's fields, pip's constraints."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from absl.testing import parameterized

from t5suite.testing import parse_flags

ROOT = Path(__file__).parent.parent
CLUSTERS = ROOT / "clusters"
BSUB = (CLUSTERS / "fine_tune.bsub").read_text()
# Bad data, non-finite numbers, out of memory, bad configuration; what was stopped exits with 75.
FINAL_CODES = [65, 70, 71, 78]
STOPPED = 75
# As torchrun: two workers that leave their codes, and an exit code of its own.
FAKE_TORCHRUN = """#!{python}
import os, sys
with open("words", "w") as file:
    file.write("\\0".join(sys.argv[1:]))
with open(os.environ["T5SUITE_EXIT_CODES"], "a") as file:
    file.write("".join(code + "\\n" for code in os.environ["NOTED"].split()))
sys.exit(1 if set(os.environ["NOTED"].split()) - {{"0", "began"}} else 0)
"""
STOPPABLE = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
pathlib.Path("ready").touch()
time.sleep(60)
"""


def program(folder: Path, name: str, text: str) -> dict[str, str]:
    (folder / "bin").mkdir(exist_ok=True)
    path = folder / "bin" / name
    path.write_text(text)
    path.chmod(0o755)
    return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(folder)}


class LsfTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp())

    def test_the_job_is_warned_before_its_limit_and_requeued_by_its_code(self):
        options = dict(re.findall(r"^#BSUB (-\w+) ?(.*)$", BSUB, flags=re.MULTILINE))
        self.assertEqual((options["-wa"], options["-Q"]), ("TERM", f'"{STOPPED}"'))
        hours, minutes = map(int, options["-W"].split(":"))
        self.assertLess(int(options["-wt"]), 60 * hours + minutes)

    def test_the_signal_reaches_the_program_and_its_code_is_the_jobs(self):
        (self.folder / "program.py").write_text(STOPPABLE)
        environment = {**os.environ, "COMMAND": f"{sys.executable} program.py"}
        job = subprocess.Popen(
            ["bash", "-s"], stdin=subprocess.PIPE, env=environment, cwd=self.folder, start_new_session=True
        )
        job.stdin.write(BSUB.encode())
        job.stdin.close()
        deadline = time.monotonic() + 60
        while not (self.folder / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(job.pid, signal.SIGTERM)
        self.assertEqual(job.wait(60), STOPPED)

    @parameterized.parameters(
        ("0 0", 0), ("75 75", 75), ("75 78", 78), ("65", 65), ("began 75 began 75", 75), ("began began 0 0", 0),
        ("began began 75", 1), ("began began 70", 70),
    )  # fmt: skip
    def test_with_several_processes_the_workers_codes_count(self, noted, code):
        environment = program(self.folder, "python", FAKE_TORCHRUN.format(python=sys.executable))
        environment |= {"NOTED": noted, "T5SUITE_PROCESSES": "2", "COMMAND": "python x.py --a b"}
        done = subprocess.run(["bash", "-s"], input=BSUB, text=True, env=environment, cwd=self.folder, timeout=60)
        self.assertEqual(done.returncode, code)
        words = (self.folder / "words").read_text().split("\0")
        self.assertEqual(words[-5:], ["--no_python", "python", "x.py", "--a", "b"])
        self.assertEmpty(list(self.folder.glob("tmp.*")))


class KubernetesTest(parameterized.TestCase):
    def test_what_would_fail_again_fails_the_job_what_was_stopped_does_not_and_the_run_is_on_the_volume(self):
        job = yaml.safe_load((CLUSTERS / "fine_tune_job.yaml").read_text())
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        fails, ignored = job["spec"]["podFailurePolicy"]["rules"]
        self.assertEqual((fails["action"], fails["onExitCodes"]["operator"]), ("FailJob", "In"))
        self.assertEqual(fails["onExitCodes"]["values"], FINAL_CODES)
        self.assertEqual(fails["onExitCodes"]["containerName"], container["name"])
        self.assertEqual((ignored["action"], ignored["onPodConditions"]), ("Ignore", [{"type": "DisruptionTarget"}]))
        self.assertGreaterEqual(job["spec"]["backoffLimit"], 1)
        # The program is process 1 and has time to save.
        self.assertGreaterEqual(pod["terminationGracePeriodSeconds"], 60)
        workdir = re.search(r"^WORKDIR (.*)$", (CLUSTERS / "Dockerfile").read_text(), flags=re.MULTILINE)[1]
        self.assertEqual(container["command"], ["python", f"{workdir}/fine_tune_t5.py"])
        output_dir = parse_flags("fine_tune_t5", container["args"])["output_dir"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        self.assertTrue(output_dir.startswith(f"{mounts['runs']}/"), output_dir)
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        self.assertEqual(set(volumes), set(mounts))
        self.assertEqual(mounts["shared-memory"], "/dev/shm")
        self.assertEqual(volumes["shared-memory"]["emptyDir"]["medium"], "Memory")


class DockerfileTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp())
        text = (CLUSTERS / "Dockerfile").read_text().replace("\\\n", " ")
        self.lines = [line for line in text.splitlines() if line and not line.startswith("#")]

    def build(self, pip: str):
        """Runs the image's RUN step with another `pip`; every other call of python is the real one."""
        (step,) = [line.partition(" ")[2] for line in self.lines if line.startswith("RUN ")]
        step = step.replace("/tmp/", f"{self.folder}/")
        python = (
            f'#!/bin/bash\nif [[ "$1 $2 $3" == "-m pip install" ]]; then {pip}; else exec {sys.executable} "$@"; fi\n'
        )
        environment = program(self.folder, "python", python)
        return subprocess.run(["sh", "-c", step], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)

    @pytest.mark.slow
    def test_pip_may_not_replace_the_base_images_torch(self):
        done = self.build(f"printf '%s\\n' \"$@\" > {self.folder}/words")
        self.assertEqual(done.returncode, 0, done.stderr)
        words = (self.folder / "words").read_text().splitlines()
        first, second = [
            Path(words[n + 1]).read_text().split("\n") for n, word in enumerate(words) if word == "--constraint"
        ]
        # pip's version: torch's own may have the name of its build behind it ("2.15.0+cu132").
        self.assertIn(f"torch=={version('torch')}", first)
        self.assertEmpty([line for line in second if line.startswith("torch==")])

    @pytest.mark.slow
    def test_all_else_has_the_versions_of_the_tests(self):
        self.build(f"cat {self.folder}/constraints.txt > {self.folder}/second")
        tested = (ROOT / "constraints.txt").read_text().splitlines()
        expected = [line for line in tested if not line.startswith("torch==")]
        self.assertEqual((self.folder / "second").read_text().splitlines(), expected)
        self.assertLen(expected, len(tested) - 1)

    @pytest.mark.slow
    def test_a_build_that_replaced_it_all_the_same_fails(self):
        done = self.build(f"sed -i s/^torch==.*/torch==1.0/ {self.folder}/installed.txt")
        self.assertEqual(done.returncode, 78)
        self.assertIn("replaced: torch==1.0", done.stderr)
