"""X6: `../x`, absolute names and links, in whatever becomes part of a path.

>>> NAMES["X6"].function(context)
"""

import json
import shutil
from pathlib import Path

from faults.attempts import Attempt, problems
from faults.canaries import Canaries, killed_run
from faults.harness import Check, Context, Outcome

OUTWARD = ("../canary", "{root}/canary", "..", "a/../../canary", "a\\b", "canary/../../canary")
SHORT = {"max_steps": 2, "save_strategy": "no"}


def x6_names(context: Context) -> Outcome:
    """`../x`, absolute names and links, in whatever becomes part of a path; archives."""
    canaries = Canaries(context)
    killed = killed_run(context, "fine_tune_t5")
    attempts = {
        **_outward_tasks(context),
        **_outward_checkpoints(context, killed),
        **_outward_weights(context, killed / "checkpoint-6"),
        **_outward_corpora(context),
        **_archives(context),
    }
    sweeps = {}
    for script in ("fine_tune_t5", "pre_train_t5"):
        flags = context.flags(script, **SHORT)
        sweeps[f"{script}, WANDB_RUN_ID"] = Attempt(script, flags, 78, "WANDB_RUN_ID: the run name", directory=False)
    found = problems(context, sweeps, {"WANDB_RUN_ID": "../../canary"})
    return canaries.outcome(attempts, "refused, nothing written outside", found)


def _outward_tasks(context: Context) -> dict[str, Attempt]:
    """Benchmarks, tasks and splits, by flags and by a task file."""
    entry = {"prefix": "x: ", "text_column_name": "a", "label_column_name": "label", "labels": ["no", "yes"]}
    entry |= {"metric_names": ["accuracy"], "metric_to_optimize": "accuracy"}
    attempts = {}
    for word in [pattern.format(root=context.directory) for pattern in OUTWARD]:
        flags = context.flags("fine_tune_t5", benchmark=word)
        attempts[f"--benchmark {word}"] = Attempt("fine_tune_t5", flags, 78, "unknown benchmark")
        flags = context.flags("fine_tune_t5", dataset_name=word)
        attempts[f"--dataset_name {word}"] = Attempt("fine_tune_t5", flags, 78, "unknown mini task")
        flags = ["preview", "--benchmark", "mini", "--dataset_name", "sentiment", "--split", word]
        attempts[f"--split {word}"] = Attempt("t5suite.cli", flags, 78, "unknown split", directory=False)
        tables = {
            "benchmark": {word: {"words": entry}},
            "task": {"mine": {word: entry}},
            "split": {"mine": {"words": {**entry, "splits": {"train": "train", "validation": word}}}},
            "rows_of": {"mine": {"words": {**entry, "rows_of": word}}},
        }
        for place, table in tables.items():
            path = context.folder("tasks").with_suffix(".yaml")
            path.write_text(json.dumps(table), encoding="utf-8")
            ((benchmark, tasks),) = table.items()
            task = {"task_file": path, "benchmark": benchmark, "dataset_name": next(iter(tasks))}
            flags = context.flags("fine_tune_t5", **task, data_dir=context.directory)
            attempts[f"{place} {word}"] = Attempt("fine_tune_t5", flags, 78, "cannot be part of a path")
    return attempts


def _outward_checkpoints(context: Context, killed: Path) -> dict[str, Attempt]:
    """Names and links in a checkpoint, and links in a run's directory."""
    attempts = {}
    for name, change in {"manifest": _forge_name, "link": _link_weights, "linked folder": _link_checkpoint}.items():
        directory = context.folder("run")
        shutil.copytree(killed, directory)
        change(directory / "checkpoint-6", context.directory)
        said = r"checkpoint-6 is damaged|does not lie below"
        attempts[f"checkpoint, {name}"] = Attempt(
            "fine_tune_t5", context.flags("fine_tune_t5"), (0, 78), said, directory=directory
        )
    for place in ("predictions", "metrics.jsonl", "results.json", "checkpoint-8"):
        directory = context.folder("run")
        shutil.copytree(killed, directory)
        path = directory / place
        path.unlink(missing_ok=True)
        target = context.directory / "canary"
        path.symlink_to(target / "file" if "." in place else target)
        flags = context.flags("fine_tune_t5")
        attempts[f"run, {place}"] = Attempt("fine_tune_t5", flags, 78, "does not lie below", directory=directory)
    return attempts


def _forge_name(checkpoint: Path, root: Path) -> None:
    """The manifest names a file outside, with the right hash, and is signed."""
    import hashlib

    path = checkpoint / "checkpoint.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["sha256"]
    canary = root / "canary" / "file"
    record = {"size": canary.stat().st_size, "sha256": hashlib.sha256(canary.read_bytes()).hexdigest()}
    content["files"]["../../canary/file"] = record
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["sha256"] = hashlib.sha256(canonical.encode()).hexdigest()
    path.write_text(json.dumps(content), encoding="utf-8")


def _link_weights(checkpoint: Path, root: Path) -> None:
    outside = root / f"outside-{checkpoint.parent.name}.safetensors"
    shutil.move(checkpoint / "model.safetensors", outside)
    (checkpoint / "model.safetensors").symlink_to(outside)


def _link_checkpoint(checkpoint: Path, root: Path) -> None:
    outside = root / f"outside-{checkpoint.parent.name}"
    shutil.move(checkpoint, outside)
    checkpoint.symlink_to(outside)


def _outward_weights(context: Context, checkpoint: Path) -> dict[str, Attempt]:
    """Indexes of weights that name files elsewhere."""
    from safetensors import safe_open

    with safe_open(checkpoint / "model.safetensors", "pt") as file:
        weights = list(file.keys())
    attempts = {}
    for word in ("../outside.safetensors", str(context.directory / "outside.safetensors")):
        folder = context.folder("model")
        shutil.copytree(checkpoint, folder)
        shutil.move(folder / "model.safetensors", context.directory / "outside.safetensors")
        index = {"metadata": {}, "weight_map": dict.fromkeys(weights, word)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        said = "does not lie beside its index"
        flags = context.flags("fine_tune_t5", model_name_or_path=folder, config_overrides=None, eval_only=True)
        attempts[f"--model_name_or_path, index of {word}"] = Attempt("fine_tune_t5", flags, 78, said)
        flags = context.flags("pre_train_t5", init_checkpoint=folder)
        attempts[f"--init_checkpoint, index of {word}"] = Attempt("pre_train_t5", flags, 78, said)
    return attempts


def _outward_corpora(context: Context) -> dict[str, Attempt]:
    """A built corpus whose manifest names a folder elsewhere."""
    from t5suite.data.corpora.building import build_corpus
    from t5suite.models.loading import BUNDLED_MODEL, load_tokenizer

    corpus = context.folder("corpus")
    build_corpus([str(context.text())], corpus, load_tokenizer(BUNDLED_MODEL))
    manifest = json.loads((corpus / "corpus.json").read_text(encoding="utf-8"))
    (shard,) = manifest["shards"]
    outside = context.directory / "outside-shard"
    shutil.move(corpus / shard["name"], outside)
    attempts = {}
    for word in ("../outside-shard", str(outside)):
        folder = context.folder("corpus")
        folder.mkdir()
        content = {**manifest, "shards": [{**shard, "name": word}]}
        (folder / "corpus.json").write_text(json.dumps(content), encoding="utf-8")
        flags = context.flags("pre_train_t5", train_file=None, train_corpus=folder)
        attempts[f"corpus, {word}"] = Attempt("pre_train_t5", flags, 65, "cannot be part of a path")
    return attempts


def _archives(context: Context) -> dict[str, Attempt]:
    """Archives are not read, whatever is in them."""
    import io
    import tarfile
    import zipfile

    attempts = {}
    for suffix in (".zip", ".tar", ".tar.gz"):
        path = context.folder("archive").with_suffix(suffix)
        if suffix == ".zip":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("../canary/x.jsonl", '{"sentence": "a", "label": 0}\n')
        else:
            with tarfile.open(path, "w:gz" if suffix.endswith("gz") else "w") as archive:
                member = tarfile.TarInfo("../canary/x.jsonl")
                archive.addfile(member, io.BytesIO())
                member = tarfile.TarInfo("link")
                member.type, member.linkname = tarfile.SYMTYPE, "../canary"
                archive.addfile(member)
        rows = context.flags("fine_tune_t5", dataset_name="sentiment", train_file=path)
        attempts[f"--train_file x{suffix}, rows"] = Attempt("fine_tune_t5", rows, 65, path.name)
        text = context.flags("pre_train_t5", train_file=path)
        attempts[f"--train_file x{suffix}, text"] = Attempt("pre_train_t5", text, 65, path.name)
        model = context.flags("fine_tune_t5", model_name_or_path=path, config_overrides=None)
        attempts[f"--model_name_or_path x{suffix}"] = Attempt("fine_tune_t5", model, 78, path.name)
        weights = context.flags("pre_train_t5", init_checkpoint=path)
        attempts[f"--init_checkpoint x{suffix}"] = Attempt("pre_train_t5", weights, 78, path.name)
    return attempts


NAMES = {
    "X6": Check(
        x6_names,
        injected="../x, absolute and linked names; zip and tar with .. and links",
        expected="refused; nothing written outside",
    )
}
