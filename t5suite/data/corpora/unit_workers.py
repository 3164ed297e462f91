"""Units of a corpus, built or adopted in this process or by several others.

    >>> for unit, facts in run_jobs(jobs, functools.partial(build_unit, encoder=encoder), num_workers=8):
    ...     print(unit, facts["splits"]["train"]["documents"])
    0 2310

Workers are spawned: a process with threads, as tokenizers and torch have, cannot be forked safely. They load neither
torch nor transformers, because jobs and the encoder are plain data.
"""

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool

from t5suite.base.errors import DataError

Work = Callable[[object], dict]

_work: Work | None = None


def run_jobs(jobs: dict[int, object], work: Work, num_workers: int) -> Iterator[tuple[int, dict]]:
    """`(unit, facts)` of each job as it finishes; after an error, units in progress are finished first.

    Args:
      work: job -> facts; it pickles, as the jobs do.

    Raises:
      DataError: a worker was killed; or what `work` raises.
    """
    if num_workers == 1 or len(jobs) <= 1:
        for unit, job in jobs.items():
            yield unit, work(job)
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        min(num_workers, len(jobs)), multiprocessing.get_context("spawn"), _start_worker, (work,)
    )
    try:
        futures = {pool.submit(_done, job): unit for unit, job in jobs.items()}
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        raise DataError(
            "a worker was killed, perhaps for lack of memory: lower --num_workers; the same command resumes after the "
            "finished units"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(work: Work) -> None:
    global _work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _work = work
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Ends a worker whose parent was killed: it would wait for jobs forever."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _done(job) -> dict:
    return _work(job)
