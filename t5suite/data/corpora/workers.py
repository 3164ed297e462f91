"""Units of a corpus build, done in this process or by several others.

    >>> for unit, facts in run_jobs({0: job}, encoder, num_workers=4):
    ...     print(unit, facts["splits"]["train"]["tokens"])
    0 1502211

Workers are started afresh (spawned): a process that has threads, as tokenizers and torch do, cannot be forked safely.
They load no torch and no transformers, for the encoder comes as plain data.
"""

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool

from t5suite.base.errors import DataError
from t5suite.data.corpora.units import UnitJob, build_unit
from t5suite.data.text.encoding import TextEncoder

_encoder = None


def run_jobs(jobs: dict[int, UnitJob], encoder: TextEncoder, num_workers: int) -> Iterator[tuple[int, dict]]:
    """`(unit, facts)` of each job as it is finished.

    Raises:
      DataError: what a unit's text is wrong with; units that are under way are finished first. A worker was killed.
    """
    if num_workers == 1 or len(jobs) <= 1:
        yield from ((unit, build_unit(job, encoder)) for unit, job in jobs.items())
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        min(num_workers, len(jobs)), multiprocessing.get_context("spawn"), _start_worker, (encoder,)
    )
    try:
        futures = {pool.submit(_work, job): unit for unit, job in jobs.items()}
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        raise DataError(
            "a worker was killed, perhaps for want of memory: give fewer --num_workers; the same command goes on from "
            "the units that are finished"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(encoder: TextEncoder) -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = encoder
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """A pool's workers wait for jobs for ever, even when the process that would send some was killed."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _work(job: UnitJob) -> dict:
    return build_unit(job, _encoder)
