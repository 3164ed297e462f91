"""What the devices' own counters say that a training took; where there is none, that it was not measured.

    >>> with metered() as meter:
    ...     trainer.train()
    >>> meter.described()
    {'joules': 5400.2, 'seconds': 12.0, 'of': ['intel-rapl:0 (package-0)', 'NVIDIA H200']}

Processors count by RAPL (https://docs.kernel.org/power/powercap/powercap.html), in files that most systems let root
alone read; NVIDIA's cards by NVML (nvmlDeviceGetTotalEnergyConsumption), through the library pynvml. A counter counts
its whole device, whoever uses it, and nothing is estimated: memory, fans and power supplies are not in the sum.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

POWERCAP = Path("/sys/class/powercap")
# RAPL begins at 0 again after about 262 kJ, which 250 W take in a quarter of an hour.
POLL_SECONDS = 60.0
INSTALL = "pip install 't5suite[energy]'"


@dataclass(frozen=True)
class Counter:
    """A device's counter.

    Attributes:
      read: joules since some time.
      wraps_at: joules at which it begins at 0 again; None: never.
    """

    name: str
    read: Callable[[], float]
    wraps_at: float | None = None


class Meter:
    """Counts while its thread runs.

    Args:
      why: why a device is not counted.
    """

    def __init__(self, counters: list[Counter], why: list[str], poll_seconds: float = POLL_SECONDS):
        self._counters, self._why, self._poll = counters, why, poll_seconds
        self._joules = dict.fromkeys((counter.name for counter in counters), 0.0)
        self._last: dict[str, float] = {}
        self._lock, self._done = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="energy", daemon=True)
        self._started = self._ended = time.perf_counter()

    def start(self) -> None:
        """Begins to count."""
        self._started = time.perf_counter()
        self._update()
        if any(counter.wraps_at for counter in self._counters):
            self._thread.start()

    def stop(self) -> None:
        """Counts for the last time."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._update()
        self._ended = time.perf_counter()

    def described(self) -> dict:
        """For the manifest: joules and what they are of, or why there are none."""
        found = {"seconds": round(self._ended - self._started, 3)}
        if self._joules:
            found |= {"joules": round(sum(self._joules.values()), 3), "of": list(self._joules)}
        return {**found, **({"why": "; ".join(self._why)} if self._why else {})}

    def _run(self) -> None:
        while not self._done.wait(self._poll):
            self._update()

    def _update(self) -> None:
        """Adds what came since the last look; a counter that fails is left out, and said to be."""
        with self._lock:
            for counter in [counter for counter in self._counters if counter.name in self._joules]:
                try:
                    now = counter.read()
                except Exception as error:
                    del self._joules[counter.name]
                    self._why.append(f"{counter.name}: {error or type(error).__name__}")
                    continue
                step = now - self._last.get(counter.name, now)
                self._joules[counter.name] += step if step >= 0 else step + (counter.wraps_at or 0.0)
                self._last[counter.name] = now


@contextlib.contextmanager
def metered(is_main: bool = True) -> Iterator[Meter]:
    """A meter of this node's devices, on the main process; on others one that counts nothing."""
    counters, why = ([], []) if not is_main else devices()
    meter = Meter(counters, why)
    meter.start()
    try:
        yield meter
    finally:
        meter.stop()


def devices() -> tuple[list[Counter], list[str]]:
    """The counters of what this run computes with, and why others are missing."""
    processors, lack = rapl_counters()
    why = [] if processors else [lack]
    cards = []
    if torch.cuda.is_available() and torch.version.cuda:
        cards, lack = nvml_counters()
        why += [lack] if lack else []
    nodes = int(os.environ.get("WORLD_SIZE", "1")) // int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)
    why += [f"the first of {nodes} nodes alone"] if nodes > 1 and (processors or cards) else []
    return processors + cards, why


def rapl_counters(folder: Path = POWERCAP) -> tuple[list[Counter], str]:
    """A counter for every processor, and what is the matter where there is none.

    >>> rapl_counters(Path("/nowhere"))
    ([], 'the processor has no energy counter (RAPL) here')
    """
    found = []
    for zone in sorted(folder.glob("intel-rapl:*")):
        if zone.name.count(":") > 1:
            continue  # a part of a package, which counts it already
        path = zone / "energy_uj"
        try:
            path.read_text()
            largest = int((zone / "max_energy_range_uj").read_text())
            name = f"{zone.name} ({(zone / 'name').read_text().strip()})"
        except OSError:
            return [], f"{path} cannot be read by this user"
        found.append(Counter(name, lambda path=path: int(path.read_text()) / 1e6, largest / 1e6))
    return found, "" if found else "the processor has no energy counter (RAPL) here"


def nvml_counters() -> tuple[list[Counter], str]:
    """A counter for every card that this node's processes use, and what is the matter where there is none."""
    try:
        import pynvml
    except ImportError:
        return [], f"graphics cards need pynvml: {INSTALL}"
    try:
        pynvml.nvmlInit()
        used = min(torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))
        found = [_card(pynvml, index) for index in range(max(1, used))]
    except pynvml.NVMLError as error:
        return [], f"graphics cards: {error}"
    return found, ""


def _card(pynvml, index: int) -> Counter:
    """NVML numbers cards as the machine does, torch as CUDA_VISIBLE_DEVICES: they agree about the id."""
    about = torch.cuda.get_device_properties(index)
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{about.uuid}")
    pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)  # older cards than Volta have none
    return Counter(f"{about.name} {index}", lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
