"""On a real Slurm, two nodes of it on this machine: what is stopped is requeued and ends as if it had not been.

Skipped, with the reason, where there is no Slurm or no root.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from absl.testing import absltest, parameterized
from slurm_cluster import SlurmCluster, why_not

ROOT = Path(__file__).parent.parent
SCRIPT = str(ROOT / "fine_tune_t5.py")
MINI = (
    "mini.yaml --max_train_samples 128 --max_eval_samples 40 --per_device_train_batch_size 8 --use_cpu "
    "--disable_tqdm True --logging_steps 5"
).split()
SHORT = [*MINI, "--max_steps", "12"]
PYTHON_PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
CLUSTER: SlurmCluster | None = None

pytestmark = pytest.mark.slow


def setUpModule():
    global CLUSTER
    reason = why_not()
    if reason:
        raise absltest.SkipTest(reason)
    CLUSTER = SlurmCluster()
    CLUSTER.environment |= {"PATH": PYTHON_PATH, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    CLUSTER.environment["HF_HUB_OFFLINE"] = "1"
    CLUSTER.start()


def tearDownModule():
    if CLUSTER is not None:
        CLUSTER.stop()


def processes(word: str, without: str) -> list[int]:
    """Python programs that have one word on their command line and have not the other."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if word in words and without not in words and "python" in Path(words[0]).name:
            found.append(int(path.parent.name))
    return found


def goes(pid: int) -> bool:
    """Whether a process that is stopped has ended; it may go on once a request to stop has come (Slurm lets it, too)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
        if any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks):
            os.kill(pid, signal.SIGCONT)
    except (FileNotFoundError, ProcessLookupError):
        return True
    return any(line.startswith("State:\tZ") for line in lines)


def until(condition, seconds: float = 300):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise TimeoutError(f"{condition}: not within {seconds} s")


def last_step(run: Path) -> int:
    lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").is_file() else []
    return json.loads(lines[-1])["step"] if lines else 0


@pytest.mark.launcher
class ClusterTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp(prefix="jobs-"))

    def submit(self, kind: str, *words, flags=(), **environment) -> str:
        flags = ["--time", "20", *flags] if "--time" not in flags else flags
        command = [sys.executable, "-m", "t5suite", "slurm", "submit", kind, *flags, "--", *words]
        return CLUSTER.run(*command, cwd=self.folder, **environment).strip()

    def log(self, job: str) -> str:
        """All that the job printed, its requeued runs' output too."""
        logs = sorted(self.folder.glob(f"*-{job}.log")) + sorted(self.folder.glob(f"*-{job}_*.log"))
        return "\n".join(path.read_text(errors="replace") for path in logs)

    def wait(self, job: str) -> str:
        try:
            return CLUSTER.wait(job, 480)
        except TimeoutError as error:
            self.fail(f"{error}\n{self.log(job)[-3000:]}")

    @parameterized.parameters(("fine_tune", 1), ("pre_train", 2))
    def test_a_run_that_its_time_limit_stops_ends_as_if_it_had_not_been(self, kind, nodes):
        """The run is held in the middle of training until Slurm's signal before the limit has come."""
        run, alone = self.folder / "run", self.folder / "alone"
        command = [SCRIPT, *MINI, "--max_steps", "60", "--output_dir"]
        flags = ["--time", "30", "--signal_seconds", "60", "--nodes", str(nodes)]
        job = self.submit(kind, "python", *command, str(run), flags=flags)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"] if nodes > 1 else []
        reference = subprocess.Popen(
            [sys.executable, *launcher, *command, str(alone)], env=CLUSTER.environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        until(lambda: last_step(run) >= 5)
        workers = processes(str(run), "torch.distributed.run")
        self.assertLen(workers, nodes)
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        stopped_at = last_step(run)
        # The limit comes in 61 s, the signal 60 s before it, as far as Slurm looks, which it does twice a minute.
        CLUSTER.run("scontrol", "update", f"JobId={job}", "EndTime=now+61seconds")
        until(lambda: all(map(goes, workers)), 120)
        until(lambda: CLUSTER.state(job) != "RUNNING", 60)
        CLUSTER.run("scontrol", "update", f"JobId={job}", "TimeLimit=30")

        self.assertEqual(self.wait(job), "COMPLETED", self.log(job)[-3000:])
        self.assertEqual(CLUSTER.show(job)["Restarts"], "1")
        self.assertLess(stopped_at, 60)
        self.assertIn("the same command goes on from", self.log(job))
        self.assertIn("requeued", self.log(job))
        self.assertEqual(reference.wait(300), 0, reference.stderr.read()[-2000:])
        for name in ("results.json", "model.safetensors", "predictions/sentiment.validation.jsonl"):
            self.assertEqual((run / name).read_bytes(), (alone / name).read_bytes(), name)
        steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(steps, sorted(steps))

    def test_tasks_of_one_srun_and_torchrun_on_every_node_are_the_same_two_ranks(self):
        command = ["python", SCRIPT, *SHORT, "--output_dir"]
        log = self.folder / "srun.log"
        words = ["srun", "--nodes=2", "--ntasks=2", f"--output={log}", *command, self.folder / "srun"]
        CLUSTER.run(*words, cwd=self.folder, timeout=480)
        job = self.submit("pre_train", *command, str(self.folder / "torchrun"), flags=["--nodes", "2"])
        self.assertEqual(self.wait(job), "COMPLETED", self.log(job)[-3000:])
        for text in (log.read_text(), self.log(job)):
            self.assertEqual(text.count("on 2 x cpu"), 1, text[-2000:])
        for name in ("results.json", "model.safetensors", "predictions/sentiment.validation.jsonl"):
            srun, torchrun = (self.folder / launcher / name for launcher in ("srun", "torchrun"))
            self.assertEqual(srun.read_bytes(), torchrun.read_bytes(), name)

    def test_a_job_that_is_killed_at_its_limit_without_a_word_is_requeued(self):
        """It uses no signal before the limit, and dies of the one at the limit."""
        program = (
            "import os, signal, time\n"
            "if os.environ.get('SLURM_RESTART_COUNT'): raise SystemExit(0)\n"
            "times = []\n"
            "signal.signal(signal.SIGTERM, lambda *_: times.append(1) if not times else os._exit(1))\n"
            "while True: time.sleep(0.2)"
        )
        job = self.submit("fine_tune", "python", "-c", program, flags=["--time", "1", "--signal_seconds", "5"])
        self.assertEqual(self.wait(job), "COMPLETED")
        self.assertEqual(CLUSTER.show(job)["Restarts"], "1")
        self.assertIn("killed at its time limit", self.log(job))

    def test_a_sweeps_worker_that_is_stopped_goes_on_with_its_trial(self):
        """Steps are few and slow, so that both the trial before and the one after the stop are there."""
        sweep, directory = self.folder / "one.yaml", self.folder / "sweep"
        trial = ROOT / "tests/sweep_trial.py"
        sweep.write_text(
            "program: sweep_trial.py\nmethod: grid\nname: one\nmetric: {name: eval/accuracy, goal: maximize}\n"
            "parameters:\n  learning_rate: {values: [0.01, 0.001]}\n"
            f"command: [python, {trial}, '--steps=30', '--sleep=0.2', '${{args}}']\n"
        )
        words = ["t5suite", "sweep", str(sweep), "--sweep_dir", str(directory), "--workers", "1", "--resume"]
        job = self.submit("sweep_agent", *words, flags=["--array", "1-1"])
        until(lambda: last_step(directory / "trials/0000") >= 3)
        CLUSTER.run("scancel", "--signal=TERM", f"{job}_1")
        self.assertEqual(self.wait(job), "COMPLETED", self.log(job)[-3000:])
        self.assertEqual(CLUSTER.show(job)["Restarts"], "1")
        for number in (0, 1):
            log = (directory / f"trials/000{number}/steps.log").read_text().splitlines()
            steps = [int(line.split()[1]) for line in log if line.startswith("step")]
            self.assertEqual(steps, list(range(1, 31)))
            self.assertEqual(sum(line.startswith("start") for line in log), 2 - number)

    def test_the_templates_run_as_they_stand(self):
        for kind, count in {"fine_tune": 1, "pre_train": 2, "sweep_agent": 4, "corpus": 8}.items():
            words = ("python", "-c", "import sys; print('ran', sys.argv[1:])")
            job = CLUSTER.sbatch("--cpus-per-task=1", ROOT / f"slurm/{kind}.sbatch", *words, cwd=self.folder)
            self.assertEqual(self.wait(job), "COMPLETED", self.log(job))
            self.assertEqual(self.log(job).count("ran"), count, kind)
        self.assertIn("ran ['--shard', '7/8']", self.log(job))
