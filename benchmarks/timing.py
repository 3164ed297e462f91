"""Timing contenders side by side, in processor time, so that what else the machine does slows both alike or neither.

times = interleaved({"ours": f, "plain": g}, repetitions=15)
summary(times["ours"])        {"median": 0.7, "low": 0.6, "high": 0.9}      milliseconds; quartiles
"""

import statistics
import time
from collections.abc import Callable


def interleaved(contenders: dict[str, Callable[[], object]], repetitions: int) -> dict[str, list[float]]:
    """Processor milliseconds of every call, the contenders taking turns, after one call of each that is not counted."""
    for call in contenders.values():
        call()
    times = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, call in contenders.items():
            started = time.process_time()
            call()
            times[name].append(1e3 * (time.process_time() - started))
    return times


def summary(times: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(times, n=4)
    return {"median": median, "low": low, "high": high}
