"""Runs commands that read a stand-in hub whose answers fail, each from a clean cache.

    python tests/hub_fault_worker.py   # prints one JSON line for each command and fault, and for each case

Each command is a fork of this process, which has read nothing of the hub. Pauses before retries are cut short. Each
command is run without a fault, and with each fault in three ways: lasting, then in the same cache once it is gone, and
passing after three answers.
"""

import hashlib
import importlib
import io
import json
import os
import runpy
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hub_server import Fault, HubServer, cut, failing, rate_limited, slow, unauthorized
from support import folder

from t5suite.testing import save_model, tiny_model

MODEL, ROWS, TABLES = "lab/tiny-t5", "lab/reviews", "lab/tables"
PRIVATE, GATED, WITHOUT_WEIGHTS, SHARDED = "lab/secret", "lab/gated", "lab/keras", "lab/sharded"
TINY = "d_model=16,d_kv=4,d_ff=24,num_layers=1,num_heads=2"
FAULTS = {
    "wrong token": unauthorized, "rate limit": rate_limited(0), "server error": failing(500), "reset": cut(40),
}  # fmt: skip
RESULTS = ("model.safetensors", "results.json", "tokenizer.json", "generation_config.json")
OF_ONE_RUN = ("training_args.bin", "incidents.jsonl", "metrics.jsonl")
SLEEP = time.sleep
SHORT_SECONDS = 0.001


class Trial(NamedTuple):
    """A command that reads the hub.

    Attributes:
      words: of the command line; OUT stands for a new folder.
      faulty: what the faulted requests have in their path.
      script: the entry script, if it is one.
    """

    words: str
    faulty: str
    script: str | None = None


TRAIN = (
    "--max_steps 2 --per_device_train_batch_size 4 --use_cpu --disable_tqdm True --save_strategy no --eval_strategy no "
    "--learning_rate 1e-2"
)
FINE_TUNE = (
    f"--data_format hub --text_column text --target_column label --labels good,bad --eval_method score "
    f"--max_target_length 8 --max_source_length 32 --output_dir OUT {TRAIN}"
)
PRE_TRAIN = f"--inputs_length 16 --max_eval_samples 2 --validation_fraction 0.3 --output_dir OUT {TRAIN}"
TRIALS = {
    "fine_tune, its rows": Trial(
        f"--model_name_or_path {MODEL} --hub_path {TABLES} {FINE_TUNE}", "train.parquet", "fine_tune_t5"
    ),
    "fine_tune, its model": Trial(
        f"--model_name_or_path {MODEL} --hub_path {ROWS} {FINE_TUNE}", "generation_config.json", "fine_tune_t5"
    ),
    "pre_train, a stream": Trial(
        f"--train_file hub:{ROWS} --streaming --num_virtual_streams 1 --shuffle_buffer_size 4 --config_overrides {TINY} "
        f"{PRE_TRAIN}", "train.jsonl", "pre_train_t5",
    ),
    "pre_train, a model": Trial(
        f"--model_name_or_path {MODEL} --train_file TEXT {PRE_TRAIN}", "model.safetensors", "pre_train_t5"
    ),
    "predict": Trial(
        f"predict --model_name_or_path {MODEL} --input INPUT --output OUT/answers.jsonl --raw --use_cpu "
        "--max_new_tokens 4", "model.safetensors",
    ),
    "export": Trial(f"export --model_name_or_path {MODEL} --output_dir OUT/exported", "config.json"),
    "tokenizer": Trial(
        f"tokenizer train --type unigram --input hub:{ROWS} --vocab_size 150 --output_dir OUT/tokenizer", "train.jsonl"
    ),
    "mirror": Trial("mirror --benchmark lab --task_file TASKS --output_dir OUT", "train.parquet"),
    "corpus": Trial(
        f"corpus build --input TEXT --tokenizer_name {MODEL} --output_dir OUT/corpus", "tokenizer.json"
    ),
    "preview": Trial(
        "preview --benchmark lab --dataset_name tables --task_file TASKS --split train --json", "train.parquet"
    ),
}  # fmt: skip
TASKS = """
lab:
  tables:
    hub_path: lab/tables
    splits: {train: train, validation: validation}
    prefix: "review: "
    text_column_name: text
    label_column_name: label
    metric_to_optimize: accuracy
    metric_names: [accuracy]
    labels: [good, bad]
"""
WORDS = (
    "the film that was shown again last night had a long story about people who live by sea and like to sing".split()
)


def review(number: int) -> str:
    """A text of some words, another for every number."""
    chosen = hashlib.sha256(str(number).encode()).digest()[:14]
    return " ".join(WORDS[value % len(WORDS)] for value in chosen) + f" {number}"


def model_files() -> dict[str, bytes]:
    """A tiny T5 with its tokenizer and settings for generation."""
    directory, model = folder(), tiny_model(config_overrides=TINY, seed=1)
    model.generation_config.max_new_tokens = 5
    save_model(directory, model)
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def row_files(suffix: str) -> dict[str, bytes]:
    """Training and validation rows, as JSON lines or Parquet."""
    import pyarrow
    import pyarrow.parquet

    files = {"README.md": b"---\nlicense: mit\n---\n"}
    for split, first, count in (("train", 0, 60), ("validation", 100, 8)):
        rows = [{"text": review(first + i), "label": i % 2} for i in range(count)]
        if suffix == "jsonl":
            files[f"{split}.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows).encode()
        else:
            buffer = io.BytesIO()
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
            files[f"{split}.parquet"] = buffer.getvalue()
    return files


class Client(NamedTuple):
    """Whoever reads the hub.

    Attributes:
      seconds: how long it waits for an answer; None: as long as the library does.
    """

    hub: HubServer
    cache: Path
    token: str | None = None
    seconds: float | None = None

    def be_this_process(self) -> None:
        """From here on the libraries, which read most settings as they are imported, read this hub."""
        import datasets
        import huggingface_hub

        from t5suite.base.hub import hub_reachable

        os.environ.pop("HF_TOKEN", None)
        os.environ.update(self.hub.environment(self.cache))
        if self.token is not None:
            os.environ["HF_TOKEN"] = self.token
        importlib.reload(huggingface_hub.constants)
        huggingface_hub.hf_api.api.endpoint = datasets.config.HF_ENDPOINT = self.hub.address
        datasets.config.HF_DATASETS_CACHE = self.cache / "datasets"
        datasets.config.HF_HUB_OFFLINE = False
        hub_reachable.cache_clear()
        if self.seconds is not None:
            huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT = self.seconds


class Outcome(NamedTuple):
    """How a command ended: its exit code, what it said, a digest of what it wrote, the number of files in it."""

    code: int
    said: str
    digest: str
    num_files: int


# The sub-commands that run a script.
COMMANDS = {"fine_tune_t5": ["fine_tune"], "pre_train_t5": ["pre_train"], None: []}


def run(trial: Trial, client: Client) -> Outcome:
    """Runs `t5suite` in a fork of this process, which has imported what commands need."""
    out, streams = folder(), folder()
    places = input_files()
    words = [places.get(word, word.replace("OUT", str(out))) for word in trial.words.split()]
    child = os.fork()
    if child == 0:
        run_and_end([*COMMANDS[trial.script], *words], client, streams)
    _, status = os.waitpid(child, 0)
    if trial.words.startswith("preview"):
        (streams / "shown").rename(out / "shown.jsonl")
    files = written(out)
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + file.read_bytes())
    said = (streams / "said").read_text(encoding="utf-8")
    return Outcome(os.waitstatus_to_exitcode(status), said, digest.hexdigest(), len(files))


def run_and_end(words: list[str], client: Client, streams: Path) -> None:
    """Runs a command as `python -m t5suite` does, and ends the process; its output goes to the files `shown`, `said`."""
    import torch

    for name, descriptor in (("shown", 1), ("said", 2)):
        os.dup2(os.open(streams / name, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    sys.argv = ["t5suite", *words]
    time.sleep = lambda seconds: SLEEP(min(seconds, SHORT_SECONDS))
    torch.set_num_threads(1)  # the threads of the process that this is a fork of are not here
    code = 1
    try:
        client.be_this_process()
        runpy.run_module("t5suite", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def input_files() -> dict[str, str]:
    """The local files that commands name."""
    inputs = folder()
    (inputs / "tasks.yaml").write_text(TASKS)
    (inputs / "input.jsonl").write_text("".join(json.dumps({"inputs": review(i)}) + "\n" for i in range(3)))
    (inputs / "text.txt").write_text("".join(review(i) + "\n" for i in range(200, 240)))
    return {
        "TASKS": str(inputs / "tasks.yaml"), "INPUT": str(inputs / "input.jsonl"), "TEXT": str(inputs / "text.txt"),
    }  # fmt: skip


def written(out: Path) -> list[Path]:
    """The files of results in a folder: those that are the same whenever a command is run."""
    files = []
    for file in sorted(out.rglob("*")):
        is_result = file.name in RESULTS or file.suffix in (".jsonl", ".bin", ".npy")
        if is_result and file.name not in OF_ONE_RUN and "logs" not in file.parts:
            files.append(file)
    return files


def last_error(said: str) -> str:
    """The message that a command ends with; a traceback shows as it is."""
    lines = said.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    if any(line.startswith("Traceback") for line in lines):
        return said[-3000:]
    return errors[-1] if errors else "\n".join(lines[-5:])


def client_of(hub: HubServer, *faults: Fault, cache: Path | None = None, **settings) -> Client:
    """A client of the hub, which has these faults from here on; by default its cache is empty."""
    hub.forget_faults()
    hub.faults[:] = faults
    return Client(hub, cache or folder(), **settings)


def rows_of_command(name: str, trial: Trial, hub: HubServer) -> Iterator[dict]:
    """What each fault does to a command."""
    clean = run(trial, client_of(hub))
    yield {"command": name, "fault": None, "code": clean.code, "files": clean.num_files, "said": last_error(clean.said)}
    for fault, answer in FAULTS.items():
        row = {"command": name, "fault": fault}
        if answer is unauthorized:
            client = client_of(hub, token="hf_expired")
        else:
            client = client_of(hub, Fault(trial.faulty, answer))
        failed = run(trial, client)
        row |= {"code": failed.code, "said": last_error(failed.said)}
        afterwards = run(trial, client_of(hub, cache=client.cache))
        row["afterwards"] = [afterwards.code, afterwards.digest == clean.digest]
        if answer is not unauthorized:
            passing = run(trial, client_of(hub, Fault(trial.faulty, answer, times=3)))
            row["passing"] = [passing.code, passing.digest == clean.digest]
            row["said_while_passing"] = last_error(passing.said)
        yield row


# ---------------------------------------------------------------------------------------------------------------------
# Cases: tokens, names, a full cache


def with_full_cache(hub: HubServer, *faults: Fault, token: str | None = None) -> Outcome:
    """A run whose model and rows are in the cache, as an earlier run has left it; what it writes must be the same."""
    trial = TRIALS["fine_tune, its model"]
    client = client_of(hub)
    first = run(trial, client)
    again = run(trial, client_of(hub, *faults, token=token, cache=client.cache))
    return again._replace(digest="same" if again.digest == first.digest else "other")


def with_half_a_cache(hub: HubServer) -> Outcome:
    """A run after one that got the configuration, but no tokenizer; now the hub does not even list its files."""
    trial = TRIALS["corpus"]
    client = client_of(hub, Fault("tokenizer.json", rate_limited(0)))
    run(trial, client)
    return run(trial, client_of(hub, Fault("/api/", rate_limited(0)), cache=client.cache))


def of_model(hub: HubServer, name: str, *flags: str, faults: tuple = (), **settings) -> Outcome:
    """Exports a model."""
    trial = Trial(f"export --model_name_or_path {name} --output_dir OUT/exported {' '.join(flags)}", "")
    return run(trial, client_of(hub, *faults, **settings))


def with_little_patience(hub: HubServer) -> Outcome:
    """A hub that answers after a second to one who waits a third of it."""
    return of_model(hub, MODEL, faults=(Fault("/", slow(1), times=1),), seconds=0.3)


CASES = {
    "everything cached, wrong token": lambda hub: with_full_cache(hub, token="hf_expired"),
    "everything cached, server error": lambda hub: with_full_cache(
        hub, Fault("/api/", failing(500)), Fault("/resolve/", failing(500))
    ),
    "half cached, rate limit": with_half_a_cache,
    "private, no token": lambda hub: of_model(hub, PRIVATE),
    "private, valid token": lambda hub: of_model(hub, PRIVATE, token="hf_valid"),
    "gated, no token": lambda hub: of_model(hub, GATED),
    "gated, token without access": lambda hub: of_model(hub, GATED, token="hf_other"),
    "misspelt repository": lambda hub: of_model(hub, "lab/tiny-t6"),
    "misspelt revision": lambda hub: of_model(hub, MODEL, "--model_revision", "mian"),
    "no weights": lambda hub: of_model(hub, WITHOUT_WEIGHTS),
    "shards": lambda hub: of_model(hub, SHARDED),
    "slow": with_little_patience,
}


def main(names: list[str]) -> None:
    """Prints the rows of these commands and cases, or of all."""
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, str(Path(__file__).parent.parent))
    with HubServer() as hub:
        import fine_tune_t5  # noqa: F401
        import pre_train_t5  # noqa: F401

        fill(hub)
        for name in names or (*TRIALS, *CASES):
            for row in rows_of(name, hub):
                print(json.dumps(row), flush=True)


def rows_of(name: str, hub: HubServer) -> Iterator[dict]:
    """How a case ends, or a command without and with each fault."""
    begun = time.monotonic()
    if name in CASES:
        rows: Iterable[dict] = [{"case": name, **CASES[name](hub)._asdict()}]
    else:
        rows = rows_of_command(name, TRIALS[name], hub)
    for row in rows:
        yield {**row, "seconds": round(time.monotonic() - begun, 1)}


def fill(hub: HubServer) -> None:
    """Makes the hub's repositories and tokens."""
    # What commands import as they read the hub: forks of this process find it.
    import fsspec.implementations.http  # noqa: F401
    import scipy.io  # noqa: F401

    hub.tokens = {"hf_valid", "hf_other"}
    files = model_files()
    for name in (MODEL, PRIVATE, GATED):
        hub.commit("model", name, files)
    hub.commit("model", WITHOUT_WEIGHTS, {**without_weights(files), "tf_model.h5": b"x"})
    hub.commit("model", SHARDED, {**without_weights(files), **shards(files["model.safetensors"])})
    for name in (PRIVATE, GATED):
        hub.repositories["model", name].readers = {"hf_valid"}
    hub.repositories["model", GATED].is_gated = True
    hub.commit("dataset", ROWS, row_files("jsonl"))
    hub.commit("dataset", TABLES, row_files("parquet"))


def without_weights(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a model that are not its weights."""
    return {name: content for name, content in files.items() if name != "model.safetensors"}


def shards(weights: bytes) -> dict[str, bytes]:
    """The same weights in two files, with their index."""
    import safetensors.torch

    tensors = safetensors.torch.load(weights)
    files, places = {}, {}
    for number, parity in enumerate((0, 1), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        part = {name: tensors[name] for name in sorted(tensors)[parity::2]}
        files[file] = safetensors.torch.save(part, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": len(weights)}, "weight_map": places}
    return {**files, "model.safetensors.index.json": json.dumps(index).encode()}


if __name__ == "__main__":
    main(sys.argv[1:])
