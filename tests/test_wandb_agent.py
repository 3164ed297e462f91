"""The real `wandb sweep` and `wandb agent` against a server on the loopback: trials, ranks, macros, and a stop."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from absl.testing import parameterized
from process_trees import marked, wait_until_gone, with_mark
from wandb_server import WandbServer

ROOT = Path(__file__).parent.parent
SWEEPS = ROOT / "sweeps"
# Seconds a trial, whatever the file says.
SHORT = {
    "max_train_samples": 64, "max_eval_samples": 20, "max_steps": 4, "eval_strategy": "steps", "eval_steps": 2,
    "per_device_train_batch_size": 8, "use_cpu": True, "disable_tqdm": True, "bf16": False, "schedule": "cosine", "lr_scheduler_kwargs": {"min_lr": 1e-5},
}  # fmt: skip
TORCHRUN = ["${env}", "torchrun", "--standalone", "--nproc_per_node", "2", "-m", "fine_tune_t5", "${args}"]
ACCELERATE = ["${env}", "accelerate", "launch", "--num_processes", "1", "--cpu", "-m", "fine_tune_t5", "${args}"]


def sweep_environment(server, directory):
    """The server's, and nothing of what the machine's user may have set for W&B."""
    found = {name: value for name, value in marked("agent").items() if not name.startswith("WANDB_")}
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{found['PATH']}"
    own = {"PYTHONPATH": str(ROOT), "PATH": scripts, "NETRC": os.devnull, "HOME": str(directory)}
    own["OMP_NUM_THREADS"] = "1"
    return {**found, **own, **server.environment()}


def draw(name, **changes):
    """Parameters of a trial of a shipped sweep, the changes last."""
    drawn = {}
    for parameter, settings in yaml.safe_load((SWEEPS / name).read_text())["parameters"].items():
        drawn[parameter] = settings["values"][0] if "values" in settings else settings.get("value", settings.get("min"))
    return {**drawn, **changes}


def wandb(*argv, environment, directory):
    command = [sys.executable, "-m", "wandb", *argv]
    return subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, timeout=120)


@contextlib.contextmanager
def agent(path, environment, directory):
    """An agent of a new sweep from that file; what it leaves is killed."""
    made = wandb("sweep", str(path), environment=environment, directory=directory)
    assert made.returncode == 0, made.stderr
    name = made.stderr.rpartition("wandb agent ")[2].strip()
    output = (directory / "agent.log").open("w")
    command = [sys.executable, "-m", "wandb", "agent", name]
    process = subprocess.Popen(command, env=environment, cwd=directory, stdout=output, stderr=output)
    try:
        yield process
    finally:
        for pid in with_mark(environment):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        output.close()


def with_command(name, command, directory):
    """A shipped sweep with another command."""
    content = yaml.safe_load((SWEEPS / name).read_text())
    path = directory / name
    path.write_text(yaml.safe_dump({**content, "command": command}))
    return path


def has_metric(server, name):
    return any(name in row for run in server.runs.values() for row in run.rows())


def manifests(directory):
    return {path.parent.name: json.loads(path.read_text()) for path in directory.glob("runs/*/manifest.json")}


@pytest.mark.slow
@pytest.mark.launcher
class AgentTest(parameterized.TestCase):
    @parameterized.named_parameters(("one_process", None), ("two_ranks", TORCHRUN))
    def test_two_trials_are_two_runs_with_their_parameters_and_metric(self, command):
        name, rates = "mini_sentiment_sweep.yaml", [0.01, 1e-05]
        directory = Path(tempfile.mkdtemp())
        path = SWEEPS / name if command is None else with_command(name, command, directory)
        with WandbServer() as server:
            server.trials = [draw(name, **SHORT, learning_rate=rate) for rate in rates]
            environment = sweep_environment(server, directory)
            with agent(path, environment, directory) as process:
                code = process.wait(400)
            self.assertEqual(code, 0, (directory / "agent.log").read_text()[-3000:])
            # One run a trial, whatever the number of ranks, each with its rows once.
            self.assertEqual(list(server.runs), server.started)
            self.assertLen(server.started, 2)
            for run, rate in zip(server.started, rates, strict=True):
                served = server.runs[run]
                self.assertEqual((served.exit_code, served.sweep, served.project), (0, "sweep1", "t5suite"))
                self.assertEqual(served.config["learning_rate"]["value"], rate)
                evaluated = [row["_step"] for row in served.rows() if "eval/accuracy" in row]
                self.assertEqual(evaluated, [2, 4])
        found = manifests(directory)
        self.assertEqual([manifest["status"] for manifest in found.values()], ["finished"] * 2)
        self.assertCountEqual([manifest["run_id"] for manifest in found.values()], server.started)

    @parameterized.named_parameters(("accelerate", ACCELERATE, 1), ("two_ranks", TORCHRUN, 2))
    def test_a_stop_from_the_server_ends_all_processes_with_a_checkpoint(self, command, num_ranks):
        name = "mini_sentiment_sweep.yaml"
        directory = Path(tempfile.mkdtemp())
        path = with_command(name, command, directory)
        with WandbServer() as server:
            server.trials = [draw(name, **{**SHORT, "max_steps": 20000, "eval_steps": 20})]
            environment = sweep_environment(server, directory)
            with agent(path, environment, directory) as process:
                server.wait_for(lambda s: process.poll() is not None or has_metric(s, "eval/accuracy"), 200)
                self.assertTrue(has_metric(server, "eval/accuracy"), (directory / "agent.log").read_text()[-3000:])
                server.stops.update(server.started)
                process.wait(120)
                self.assertEqual(wait_until_gone(environment, 60), [], (directory / "agent.log").read_text()[-3000:])
        (manifest,) = manifests(directory).values()
        self.assertEqual(manifest["status"], "preempted")
        (run,) = directory.glob("runs/*")
        newest = max(int(folder.name.partition("-")[2]) for folder in run.glob("checkpoint-*"))
        log = (directory / "agent.log").read_text()
        self.assertIn(f"stopped after step {newest}; the same command goes on from checkpoint-{newest}", log)
        self.assertEqual(log.count("goes on from checkpoint-"), num_ranks)
