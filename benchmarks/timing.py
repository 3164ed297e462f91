"""Timing contenders side by side, in processor time, so that what else the machine does slows both alike or neither.

times = interleaved({"ours": f, "plain": g}, repetitions=15)
summary(times["ours"])        {"median": 0.7, "low": 0.6, "high": 0.9}      milliseconds; quartiles
"""

import os
import statistics
import time
from collections.abc import Callable


def processor_time() -> float:
    """Seconds of processor that this process, its threads and its children that have ended took."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def device_time() -> float:
    """Seconds on the wall once the GPU has done all that it was given."""
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


CLOCKS = {"cpu": processor_time, "cuda": device_time}


def interleaved(
    contenders: dict[str, Callable[[], object]], repetitions: int, clock: Callable[[], float] = processor_time
) -> dict[str, list[float]]:
    """Milliseconds of every call by the clock, contenders taking turns, after one call of each that is not counted."""
    for call in contenders.values():
        call()
    times = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, call in contenders.items():
            started = clock()
            call()
            times[name].append(1e3 * (clock() - started))
    return times


def summary(times: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(times, n=4)
    return {"median": median, "low": low, "high": high}
