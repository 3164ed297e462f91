"""A Slurm cluster on this machine: real daemons, two nodes, in a temporary folder of their own.

    cluster = SlurmCluster()
    cluster.start()
    assert cluster.wait(cluster.sbatch("slurm/fine_tune.sbatch", "python", "fine_tune_t5.py")) == "COMPLETED"
    cluster.stop()

Needs root (slurmd becomes the users whose jobs it runs) and Debian's `slurm-wlm` and `munge`; `why_not` says what is
missing. The nodes bear two names of this machine, so that processes find each other by a node's name. Daemons get
their configuration by SLURM_CONF, listen on free ports, and are stopped after their jobs.
"""

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "setpriv", "sbatch", "srun", "scontrol", "scancel")
CONFIGURATION = """\
ClusterName=t5suite
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={munge}/munge.sock
CredType=cred/munge
SlurmUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
ReturnToService=2
KillWait={kill_wait}
InactiveLimit=0
MinJobAge=3600
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={port_1} CPUs=4 RealMemory=1000 Gres=gpu:2
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 Port={port_2} CPUs=4 RealMemory=1000 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL")


def why_not() -> str | None:
    """Why no cluster can be started here; None if one can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if missing:
        return f"no Slurm here: {', '.join(missing)} missing (apt-get install slurm-wlm munge)"
    if os.geteuid() != 0:
        return "Slurm's daemons are started by root only"
    return None


def free_ports(count: int) -> list[int]:
    """So many ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _end_with_parent() -> None:
    """In a daemon, before it starts: SIGTERM for it when the tests are killed (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class SlurmCluster:
    """The daemons of a cluster of two nodes, each of four CPUs.

    Attributes:
      environment: what clients need, for `subprocess`.
    """

    def __init__(self, kill_wait: int = 30):
        self.host = socket.gethostname().partition(".")[0]
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.munge = self.folder / "munge"
        self.kill_wait = kill_wait
        self.daemons: list[subprocess.Popen] = []
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        self.environment["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")

    def start(self) -> None:
        """Starts munged, slurmctld and the two slurmd, and waits until both nodes are idle."""
        self.folder.chmod(0o755)
        for name in ("state", "spool-localhost", f"spool-{self.host}"):
            (self.folder / name).mkdir()
        self._start_munge()
        port, port_1, port_2 = free_ports(3)
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=self.host, folder=self.folder, munge=self.munge, kill_wait=self.kill_wait,
                port=port, port_1=port_1, port_2=port_2,
            )
        )  # fmt: skip
        # GPUs in name alone: Slurm counts them and tells jobs of them.
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
        self._daemon("slurmctld", "-D", "-i")
        for node in (self.host, "localhost"):
            self._daemon("slurmd", "-D", "-N", node)
        self._wait_for(lambda: self.run("sinfo", "--noheader", "--format=%T %D").split() == ["idle", "2"])

    def _wait_for(self, condition) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"Slurm does not start: {self.logs()}")
            time.sleep(0.2)

    def _start_munge(self) -> None:
        self.munge.mkdir()
        (self.munge / "key").write_bytes(os.urandom(1024))
        (self.munge / "key").chmod(0o400)
        for path in (self.munge, self.munge / "key"):
            shutil.chown(path, "munge", "munge")
        self.munge.chmod(0o711)
        places = {"key-file": "key", "socket": "munge.sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        flags = [f"--{flag}={self.munge / name}" for flag, name in places.items()]
        as_munge = ("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups")
        self._daemon(*as_munge, "munged", "--foreground", "--num-threads=2", *flags)
        self._wait_for((self.munge / "munge.sock").exists)

    def _daemon(self, *words) -> None:
        with (self.folder / f"{Path(words[0]).name}-{len(self.daemons)}.out").open("wb") as output:
            self.daemons.append(
                subprocess.Popen(
                    words, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    start_new_session=True, cwd=self.folder, preexec_fn=_end_with_parent,
                )
            )  # fmt: skip

    def stop(self) -> None:
        """Cancels what runs, stops the daemons, removes the folder."""
        if len(self.daemons) == 4:
            for flags in ([], ["--signal=KILL", "--full"]):
                self.client("scancel", "--user=root", *flags)
            deadline = time.monotonic() + 30
            while self.client("squeue", "--noheader").stdout.strip() and time.monotonic() < deadline:
                time.sleep(0.2)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()
        self.daemons = []
        shutil.rmtree(self.folder, ignore_errors=True)

    def client(self, *words, cwd=None, timeout=120, **environment) -> subprocess.CompletedProcess:
        words, environment = list(map(str, words)), {**self.environment, **environment}
        return subprocess.run(words, env=environment, cwd=cwd, timeout=timeout, capture_output=True, text=True)

    def run(self, *words, **options) -> str:
        """What a client prints.

        Raises:
          RuntimeError: it fails.
        """
        done = self.client(*words, **options)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def sbatch(self, *words, cwd=None, **environment) -> str:
        return self.run("sbatch", "--parsable", *words, cwd=cwd, **environment).strip()

    def show(self, job: str) -> dict[str, str]:
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "show", "job", "--oneliner", job)))

    def state(self, job: str) -> str:
        """'PENDING', 'RUNNING', ...; of an array, its tasks' states, joined if they differ."""
        return ",".join(sorted(set(re.findall(r"JobState=(\w+)", self.run("scontrol", "show", "job", "-o", job)))))

    def wait(self, job: str, timeout: float = 300) -> str:
        """The job's last state; a requeued job's pause of two minutes is cut short.

        Raises:
          TimeoutError: it has not ended by then.
        """
        deadline, pending_since = time.monotonic() + timeout, None
        while time.monotonic() < deadline:
            states = self.state(job).split(",")
            if all(state in ENDED for state in states):
                return ",".join(states)
            pending_since = (pending_since or time.monotonic()) if "PENDING" in states else None
            # The pause is there for a reason: the end of the old batch script must not be taken for the new one's.
            if pending_since and time.monotonic() - pending_since > 3:
                self.client("scontrol", "update", f"JobId={job}", "StartTime=now")
            time.sleep(0.5)
        raise TimeoutError(f"job {job} is {self.state(job)} after {timeout} s: {self.logs()}")

    def logs(self) -> str:
        return "\n".join(f"{path}: {path.read_text(errors='replace')[-800:]}" for path in self.folder.rglob("*.out"))
