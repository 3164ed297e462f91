"""Units of a corpus build, done in this process or by several others.

Workers are spawned: a process with threads, as tokenizers and torch have, cannot be forked safely. They load neither
torch nor transformers, because the encoder is plain data.
"""

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool

from t5suite.base.errors import DataError
from t5suite.data.corpora.corpus_plan import UnitJob
from t5suite.data.corpora.encoding import TextEncoder
from t5suite.data.corpora.units import build_unit

_encoder = None


def run_jobs(jobs: dict[int, UnitJob], encoder: TextEncoder, num_workers: int) -> Iterator[tuple[int, dict]]:
    """`(unit, facts)` of each job as it finishes; after an error, units in progress are finished first."""
    if num_workers == 1 or len(jobs) <= 1:
        for unit, job in jobs.items():
            yield unit, build_unit(job, encoder)
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
            "a worker was killed, perhaps for lack of memory: lower --num_workers; the same command resumes after the "
            "finished units"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(encoder: TextEncoder) -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = encoder
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Ends a worker whose parent was killed: it would wait for jobs forever."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _work(job: UnitJob) -> dict:
    return build_unit(job, _encoder)
