"""Checks that the suite's own tests run: they pass, fail, raise, hang, die, and look around."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from faults.harness import outcome


def passes(context):
    return outcome(True, f"quick {context.quick}, {context.rng.random()}")


def raises(context):
    raise OSError("the disk is gone")


def hangs(context):
    child = subprocess.Popen(["sleep", "600"])
    (context.directory / "child").write_text(str(child.pid))
    time.sleep(600)


def dies(context):
    os.kill(os.getpid(), signal.SIGKILL)


def starts_victims(context):
    """Victims of this module, their codes and what they found."""
    script = "tests.fault_examples:report"
    env = {"COLOUR": "blue"}
    clean = context.run(script, ["0"], env=env, traced=False)
    failing = context.run(script, ["3"], ranks=2, traced=False)
    cold = context.run(script, ["4"], cold=True, traced=False)
    killed = context.run(script, ["0"], patch="tests.fault_examples:kill", traced=False)
    found = {
        "codes": [victim.codes for victim in (clean, failing, cold, killed)],
        "clean": json.loads(clean.output.splitlines()[0]),
        "ranks": [json.loads(failing.output_of(rank).splitlines()[0])["rank"] for rank in (0, 1)],
    }
    return outcome(True, json.dumps(found))


def report(argv):
    """What a victim sees of its surroundings; ends with the code that it was given."""
    import atexit

    atexit.register(print, "the end")
    here = {
        "threads": len(os.listdir("/proc/self/task")),
        "argv": sys.argv[1:],
        "rank": os.environ.get("RANK"),
        "colour": os.environ.get("COLOUR"),
        "preloaded": "pre_train_t5" in sys.modules,
        "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "main_thread": threading.current_thread() is threading.main_thread(),
        "folder": Path.cwd().name,
    }
    print(json.dumps(here))
    sys.exit(int(argv[0]))


def kill():
    os.kill(os.getpid(), signal.SIGKILL)
