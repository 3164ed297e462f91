"""How fast `t5suite serve` answers one client, and many at once.

    python -m benchmarks.serve
    python -m benchmarks.serve --clients 1 8 32 --rows 400 --requests 20000     # with the memory after many requests

A T5 of 4 + 4 layers of width 128 and the bundled pieces, of random weights, on the CPU. Every client sends one row at a
time, of log-normal length with MNLI's mean, and waits for its greedy answer of at most 8 tokens. The peer of many
clients is one client of the same server in the same run.
"""

import argparse
import contextlib
import http.client
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

import numpy as np
import psutil

from t5suite.testing import save_model, tiny_model, tiny_rows

SIZES = "d_model=128,d_kv=32,d_ff=512,num_layers=4,num_heads=4,dropout_rate=0"
MEAN_WORDS, SPREAD = 30, 0.5


class Served(NamedTuple):
    """What some clients got."""

    clients: int
    rows_a_second: float
    mean_batch: float
    median_ms: float
    slowest_ms: float  # of 95 % of the requests


class Server(NamedTuple):
    """A server's address and its process."""

    address: SplitResult
    process: psutil.Process

    def mebibytes(self) -> float:
        """The memory that the process has in use."""
        return self.process.memory_info().rss / 2**20


@contextlib.contextmanager
def started_server(folder: str) -> Iterator[Server]:
    """`t5suite serve` of a model's folder, while the block runs."""
    command = [sys.executable, "-m", "t5suite", "serve", "--model_name_or_path", folder, "--port", "0", "--use_cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            url = re.search(r"http://[\w.]+:\d+", line)
            if url:
                break
        else:
            raise RuntimeError("".join(lines))
        try:
            yield Server(urlsplit(url[0]), psutil.Process(process.pid))
        finally:
            process.terminate()


def texts(count: int) -> list[str]:
    """Made-up texts of log-normal length."""
    draw = np.random.default_rng(0)
    words = " ".join(row["sentence"] for row in tiny_rows(count=200)).split()
    lengths = draw.lognormal(np.log(MEAN_WORDS), SPREAD, count).astype(int).clip(1, 200)
    return [" ".join(draw.choice(words, length)) for length in lengths]


def ask(address, text: str) -> float:
    """Milliseconds until one answer."""
    started = time.perf_counter()
    connection = http.client.HTTPConnection(address.hostname, address.port)
    connection.request("POST", "/predict", json.dumps({"rows": [text], "raw": True, "max_new_tokens": 8}))
    response = connection.getresponse()
    body = response.read()
    connection.close()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {body.decode()}")
    return 1000 * (time.perf_counter() - started)


def batch_figures(address) -> tuple[float, float]:
    """`(rows, batches)` that the server has answered."""
    connection = http.client.HTTPConnection(address.hostname, address.port)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return float(figures["t5suite_batch_rows_sum"]), float(figures["t5suite_batch_rows_count"])


def measure(address, clients: int, rows: list[str]) -> Served:
    """Sends the rows by so many clients."""
    rows_before, batches_before = batch_figures(address)
    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        milliseconds = sorted(pool.map(lambda text: ask(address, text), rows))
    seconds = time.perf_counter() - started
    rows_after, batches_after = batch_figures(address)
    mean_batch = (rows_after - rows_before) / (batches_after - batches_before)
    slowest = milliseconds[int(0.95 * (len(milliseconds) - 1))]
    return Served(clients, len(rows) / seconds, mean_batch, statistics.median(milliseconds), slowest)


def main() -> None:
    """Prints a row for each number of clients, and the memory after many requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument(
        "--requests", type=int, default=0, help="measure the memory after a tenth of them, and after all"
    )
    options = parser.parse_args()
    folder = tempfile.mkdtemp()
    save_model(folder, tiny_model(config_overrides=SIZES))
    with started_server(folder) as server:
        measure(server.address, 4, texts(32))
        print("| clients | rows a second | mean batch | median, 95 % of requests |\n|---|---|---|---|")
        for clients in options.clients:
            served = measure(server.address, clients, texts(options.rows))
            print(
                f"| {served.clients} | {served.rows_a_second:.0f} | {served.mean_batch:.1f} "
                f"| {served.median_ms:.0f}, {served.slowest_ms:.0f} ms |",
                flush=True,
            )
        for count in (options.requests // 10, options.requests - options.requests // 10):
            if count:
                measure(server.address, max(options.clients), texts(count))
                print(f"{server.mebibytes():.0f} MiB after {count} further requests", flush=True)


if __name__ == "__main__":
    main()
