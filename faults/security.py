"""X: code that hides in data, and names that lead out of a folder, through runs of both scripts.

    >>> SECURITY["X1"].function(context)
    Outcome(passed=True, observed='64 of 64 not run; refused, set aside or never read')

Whatever would run code makes a file in a folder of canaries, which is looked at after every run; that it would indeed
is shown each time by reading it the careless way in a process of its own.
"""

import importlib
import json
import shlex
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from faults.attempts import Attempt, Ended, problems
from faults.batch_scripts import hostile_scripts
from faults.canaries import Canaries, killed_run
from faults.fork_server import ROOT
from faults.harness import TINY_MODEL, Check, Context, Outcome, all_hold
from faults.outward_names import NAMES

# Files of a checkpoint of ours; what else trainers and libraries would look for beside them.
LISTED = (
    "model.safetensors", "optimizer.pt", "scheduler.pt", "rank-0.json", "progress.json",
    "position.json", "trainer_state.json", "config.json", "tokenizer.json", "checkpoint.json",
)  # fmt: skip
UNLISTED = ("pytorch_model.bin", "optimizer.bin", "rng_state.pth", "scaler.pt", "training_args.bin")
FORGED = ("pytorch_model.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")
OF_A_MODEL = (
    "model.safetensors", "pytorch_model.bin", "config.json", "generation_config.json", "tokenizer.json",
    "tokenizer_config.json", "spiece.model", "optimizer.pt", "training_args.bin",
)  # fmt: skip
BARE_WEIGHTS = ("weights.bin", "weights.pt", "weights.pth", "weights.ckpt", "weights.safetensors")
FORMS = ("raw", "zip")
TAGS = (
    "!!python/object/apply:os.system ['touch {canary}']",
    "!!python/object/apply:subprocess.check_output [['touch', '{canary}']]",
    "!!python/object/new:os.system ['touch {canary}']",
    "!!python/name:os.system",
    "!!python/module:os",
)
HOSTILE = (
    "x; touch {canary}",
    "$(touch {canary})",
    "`touch {canary}`",
    "| touch {canary} #",
    "a'b\"c",
    "new\nline",
    "-rf *",
)
SHORT = {"max_steps": 2, "save_strategy": "no"}


def x1_pickles(context: Context) -> Outcome:
    """A pickle that runs a command, in the place of every file that is read, or beside them."""
    canaries = Canaries(context)
    attempts = {}
    for script in ("fine_tune_t5",) if context.quick else ("fine_tune_t5", "pre_train_t5"):
        killed = killed_run(context, script)
        for form in FORMS[:1] if context.quick else FORMS:
            for file in (*LISTED, *UNLISTED):
                attempts[f"{script}, {file}, {form}"] = _resumed(canaries, script, killed, file, form)
        for file in FORGED:
            attempts[f"{script}, {file}, listed"] = _resumed_from_forged(canaries, script, killed, file)
        attempts[f"{script}, DeepSpeed"] = _resumed_from_deepspeed(canaries, script, killed)
    attempts |= _models(canaries, killed_run(context, "fine_tune_t5") / "checkpoint-6")
    return canaries.outcome(attempts, "not run; refused, set aside or never read")


def x2_remote_code(context: Context) -> Outcome:
    """Folders like a hub repository's that bring code along."""
    canaries = Canaries(context)
    scored = {"config_overrides": None, "eval_only": True}
    cases = {
        "a model of an unknown type": ("config.json", {"model_type": "evil", "auto_map": _auto_map("evil")}, 78),
        "a T5 with another class": ("config.json", {"auto_map": _auto_map("evil")}, (0, 78)),
        "a tokenizer": ("tokenizer_config.json", {"tokenizer_class": "Evil", "auto_map": _auto_map("evil")}, (0, 78)),
    }
    attempts = {}
    for name, (file, changes, code) in cases.items():
        folder = _model_folder(context)
        content = json.loads((folder / file).read_text(encoding="utf-8"))
        (folder / file).write_text(json.dumps({**content, **changes}), encoding="utf-8")
        (folder / "evil.py").write_text(_evil_module(canaries.new(name)), encoding="utf-8")
        flags = context.flags("fine_tune_t5", model_name_or_path=folder, **scored)
        attempts[name] = Attempt("fine_tune_t5", flags, code)
    attempts |= _dataset_scripts(context, canaries)
    live = {"the code, when it is asked for": _run_when_asked_for(context, canaries)}
    return canaries.outcome(attempts, "not run; refused, or the library's own code taken", live)


def x3_yaml_tags(context: Context) -> Outcome:
    """Tags that make PyYAML's unsafe loaders run code, in every YAML file that is read."""
    canaries = Canaries(context)
    attempts = {}
    for i, tag in enumerate(TAGS):
        for script in ("fine_tune_t5", "pre_train_t5"):
            name = f"{script}, configuration, tag {i}"
            path = context.folder("run").with_suffix(".yaml")
            path.write_text(f"seed: 1\nrun_name: {tag.format(canary=canaries.new(name))}\n", encoding="utf-8")
            said = f"{path.name}:2: could not determine a constructor"
            attempts[name] = Attempt(script, [str(path), *context.flags(script, **SHORT)], 78, said)
            flags = [*context.flags(script, **SHORT), "--config", str(path)]
            attempts[f"{name}, --config"] = Attempt(script, flags, 78, said)
        for name, argv in {"run": None, "t5suite preview": ["preview"]}.items():
            name = f"{name}, task file, tag {i}"
            path = context.folder("tasks").with_suffix(".yaml")
            path.write_text(f"mine:\n  words: {tag.format(canary=canaries.new(name))}\n", encoding="utf-8")
            said = f"{path.name}:2: could not determine a constructor"
            words = ["--benchmark", "mine", "--dataset_name", "words", "--task_file", str(path)]
            if argv:
                attempts[name] = Attempt("t5suite.cli", [*argv, *words], 78, said, directory=False)
            else:
                attempts[name] = Attempt("fine_tune_t5", [*context.flags("fine_tune_t5", **SHORT), *words], 78, said)
        attempts |= _tagged_sweeps(context, canaries, i, tag)
    offences = _source_offences()
    return canaries.outcome(attempts, "refused with file and line", offences)


def _tagged_sweeps(context: Context, canaries: "Canaries", i: int, tag: str) -> dict[str, Attempt]:
    """Sweep files with a tag: one that is run, one that is checked, and the one in the directory of a begun sweep."""
    attempts = {}
    for name in ("sweep", "sweep lint", "sweep --resume"):
        folder = context.folder("sweep")
        folder.mkdir()
        path = folder / "sweep.yaml"
        canary = canaries.new(f"t5suite {name}, tag {i}")
        path.write_text(f"method: grid\nprogram: {tag.format(canary=canary)}\n", encoding="utf-8")
        flags = {
            "sweep": ["sweep", path, "--sweep_dir", folder / "begun"],
            "sweep lint": ["sweep", "lint", path],
            "sweep --resume": ["sweep", "--resume", "--sweep_dir", folder],
        }[name]
        said = f"{path.name}:2: could not determine a constructor"
        attempts[f"t5suite {name}, tag {i}"] = Attempt("t5suite.cli", list(map(str, flags)), 78, said, directory=False)
    return attempts


def x4_shell_words(context: Context) -> Outcome:
    """What a shell would take apart, in names, values and paths."""
    attempts = {}
    for i, pattern in enumerate(HOSTILE[:3] if context.quick else HOSTILE):
        for script in ("fine_tune_t5", "pre_train_t5"):
            canary = f"canary-{i}-{script}"
            word = pattern.format(canary=canary)
            folder = context.folder("words") / word
            folder.mkdir(parents=True)
            flags = _hostile_flags(context, script, folder, word)
            look = partial(_taken_literally, context.directory, word, canary)
            attempts[f"{script}, {i}"] = Attempt(script, flags, look=look, directory=folder / "run")
        attempts[f"t5suite sweep, {i}"] = _hostile_sweep(context, pattern, f"canary-{i}-sweep")
    found = {**problems(context, attempts), **_source_offences()}
    for i, pattern in enumerate(HOSTILE[:3] if context.quick else HOSTILE):
        found |= hostile_scripts(context.folder("scripts"), pattern, i)
    return all_hold(found, "taken literally")


# ---------------------------------------------------------------------------------------------------------------------
# X1


def _resumed(canaries: Canaries, script: str, killed: Path, file: str, form: str) -> Attempt:
    context, name = canaries.context, f"{script}, {file}, {form}"
    directory = context.folder("run")
    shutil.copytree(killed, directory)
    (directory / "checkpoint-6" / file).write_bytes(canaries.payload(name, form))
    said = rf"checkpoint-6 is damaged \(.*{file}.*set aside as damaged-checkpoint-6"
    return Attempt(script, context.flags(script), 0, f"(?s){said}", directory=directory)


def _resumed_from_forged(canaries: Canaries, script: str, killed: Path, file: str) -> Attempt:
    """The newest checkpoint says itself that the file belongs to it."""
    from t5suite.training.checkpoints.manifests import MANIFEST_FILE, Manifest, hash_file

    context = canaries.context
    directory = context.folder("run")
    shutil.copytree(killed, directory)
    checkpoint = directory / "checkpoint-6"
    (checkpoint / file).write_bytes(canaries.payload(f"{script}, {file}, listed"))
    manifest = Manifest.read(checkpoint)
    (checkpoint / MANIFEST_FILE).unlink()
    replace(manifest, files={**manifest.files, file: hash_file(checkpoint / file)}).write(checkpoint)
    return Attempt(script, context.flags(script), (0, 74, 78), directory=directory)


def _resumed_from_deepspeed(canaries: Canaries, script: str, killed: Path) -> Attempt:
    context, name = canaries.context, f"{script}, DeepSpeed"
    folder = context.folder("deepspeed") / "checkpoint-6"
    shutil.copytree(killed / "checkpoint-6", folder)
    (folder / "checkpoint.json").unlink()
    (folder / "global_step6").mkdir()
    (folder / "latest").write_text("global_step6")
    for file in ("mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        (folder / "global_step6" / file).write_bytes(canaries.payload(name))
    return Attempt(script, context.flags(script, resume=folder), 74, "--trust_checkpoint")


def _models(canaries: Canaries, checkpoint: Path) -> dict[str, Attempt]:
    """Models and bare weights that are not a run's own."""
    context, attempts = canaries.context, {}
    for form in FORMS[:1] if context.quick else FORMS:
        for file in OF_A_MODEL:
            folder, name = context.folder("model"), f"--model_name_or_path, {file}, {form}"
            shutil.copytree(checkpoint, folder)
            if file == "pytorch_model.bin":
                (folder / "model.safetensors").unlink()
            (folder / file).write_bytes(canaries.payload(name, form))
            flags = context.flags("fine_tune_t5", model_name_or_path=folder, config_overrides=None, eval_only=True)
            attempts[name] = Attempt("fine_tune_t5", flags, (0, 65, 78))
        for file in BARE_WEIGHTS:
            folder, name = context.folder("weights"), f"--init_checkpoint, {file}, {form}"
            folder.mkdir()
            (folder / file).write_bytes(canaries.payload(name, form))
            flags = context.flags("pre_train_t5", init_checkpoint=folder / file)
            attempts[name] = Attempt("pre_train_t5", flags, 78, "--init_checkpoint .*weights")
    for file in ("model.safetensors", "pytorch_model.bin"):
        directory, name = context.folder("run"), f"--eval_checkpoints, {file}"
        shutil.copytree(checkpoint.parent, directory)
        (directory / "checkpoint-6" / "model.safetensors").unlink()
        (directory / "checkpoint-6" / file).write_bytes(canaries.payload(name))
        flags = context.flags("fine_tune_t5", eval_checkpoints="all", config_overrides=None)
        attempts[name] = Attempt("fine_tune_t5", flags, (0, 65, 74, 78), directory=directory)
    return attempts


# ---------------------------------------------------------------------------------------------------------------------
# X2


def _model_folder(context: Context) -> Path:
    from t5suite.models.loading import BUNDLED_MODEL, load_model, load_tokenizer

    folder, tokenizer = context.folder("model"), load_tokenizer(BUNDLED_MODEL)
    load_model(None, tokenizer=tokenizer, config_overrides=TINY_MODEL).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _run_when_asked_for(context: Context, canaries: Canaries) -> str | None:
    """Shows that the code would run: with the flag that asks for it, it does."""
    canary, folder = canaries.folder / "asked-for", _model_folder(context)
    config = {"model_type": "evil", "auto_map": _auto_map("evil")}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "evil.py").write_text(_evil_module(canary), encoding="utf-8")
    flags = context.flags("fine_tune_t5", model_name_or_path=folder, config_overrides=None, eval_only=True)
    problems(context, {"asked for": Attempt("fine_tune_t5", [*flags, "--trust_remote_code", "True"])})
    if not canary.exists():
        return "does not run either, so nothing is shown"
    canary.unlink()
    return None


def _auto_map(module: str) -> dict:
    names = ("AutoConfig", "AutoModelForSeq2SeqLM", "AutoTokenizer")
    return {name: f"{module}.Evil" if name != "AutoTokenizer" else [f"{module}.Evil"] * 2 for name in names}


def _evil_module(canary: Path) -> str:
    return f"from pathlib import Path\nPath({str(canary)!r}).touch()\nfrom transformers import T5Config as Evil\n"


def _dataset_scripts(context: Context, canaries: Canaries) -> dict[str, Attempt]:
    """A data set that is a script: as a text of pre-training, and as the place of a task's rows."""
    folder = context.folder("words")
    folder.mkdir()
    script = folder / f"{folder.name}.py"
    script.write_text(_evil_module(canaries.new("a data set's script, text")), encoding="utf-8")
    entry = {"prefix": "x: ", "text_column_name": "a", "label_column_name": "label", "labels": ["no", "yes"]}
    entry |= {"metric_names": ["accuracy"], "metric_to_optimize": "accuracy", "hub_path": str(folder)}
    tasks = context.folder("tasks").with_suffix(".yaml")
    tasks.write_text(json.dumps({"mine": {"words": entry}}), encoding="utf-8")
    task = {"task_file": tasks, "benchmark": "mine", "dataset_name": "words"}
    said = "scripts are no longer supported|cannot reach the hub"
    streamed = {"train_file": f"hub:{folder}", "streaming": True, "num_virtual_streams": 1}
    return {
        "a data set's script, text": Attempt("pre_train_t5", context.flags("pre_train_t5", **streamed), 65, said),
        "a data set's script, rows": Attempt("fine_tune_t5", context.flags("fine_tune_t5", **task), 65, said),
    }


# ---------------------------------------------------------------------------------------------------------------------
# X3, X4


def _source_offences() -> dict[str, str | None]:
    """What ruff's rules (pyproject.toml) and the gate over the source find; the gate is one of the suite's tests."""
    sys.path.append(str(ROOT / "tests"))
    gate = importlib.import_module("test_source_gate")
    wrong = [f"{path}:{line}" for path in gate.SOURCES for line in gate.offences(path.read_text(encoding="utf-8"))]
    wrong += [
        line
        for line in gate.ruff(".", "--select", "S102,S301,S302,S307,S506,S602,S604,S605,TID251").splitlines()
        if ".py:" in line
    ]
    return {"the source": ", ".join(wrong) or None}


def _hostile_flags(context: Context, script: str, folder: Path, word: str) -> list[str]:
    """The word as a file's name and a run's; the folder has it already."""
    changes = {**SHORT, "run_name": word}
    if script == "pre_train_t5":
        return context.flags(script, **changes, train_file=shutil.copy(context.text(), folder / f"{word}.txt"))
    rows = folder / f"{word}.jsonl"
    rows.write_text('{"sentence": "The soup is good.", "label": 1}\n' * 16, encoding="utf-8")
    return context.flags(script, **changes, dataset_name="sentiment", train_file=rows)


# A trial that says what it was given.
SHOWING = """
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["T5SUITE_RUN_DIR"])
folder.mkdir()
(folder / "words.json").write_text(json.dumps(sys.argv[1:]))
(folder / "metrics.jsonl").write_text('{"step": 1, "eval/accuracy": 1.0}' + chr(10))
"""


def _hostile_sweep(context: Context, pattern: str, canary: str) -> Attempt:
    """The word as a sweep's name, its file's and directory's, in its command, a value, and behind `--`."""
    word = pattern.format(canary=canary)
    folder = context.folder("sweeps") / word
    folder.mkdir(parents=True)
    content = {
        "name": word,
        "method": "grid",
        "metric": {"name": "eval/accuracy", "goal": "maximize"},
        "parameters": {"run_name": {"values": [word]}},
        "command": [sys.executable, "-c", SHOWING, word, "${args}"],
    }
    (folder / f"{word}.yaml").write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML
    flags = ["sweep", str(folder / f"{word}.yaml"), "--sweep_dir", str(folder / "sweep"), "--", word]
    wanted = [word, f"--run_name={word}", word]
    look = partial(_given_literally, context.directory, folder / "sweep", wanted, canary)
    return Attempt("t5suite.cli", flags, look=look, directory=False)


def _given_literally(root: Path, sweep: Path, wanted: list[str], canary: str, ended: Ended) -> str | None:
    if any(path.name == canary for path in root.rglob("*")):
        return "ITS COMMAND RAN"
    words = json.loads((sweep / "trials" / "0000" / "words.json").read_text(encoding="utf-8"))
    if words != wanted:
        return f"the trial was given {words!r}"
    shown = json.loads((sweep / "sweep.json").read_text(encoding="utf-8"))["trials"][0]["command"]
    return None if shlex.split(shown)[-3:] == wanted else f"the command that is shown is another one: {shown!r}"


def _taken_literally(root: Path, word: str, canary: str, ended: Ended) -> str | None:
    if any(path.name == canary for path in root.rglob("*")):
        return "ITS COMMAND RAN"
    settings = ended.manifest()["settings"]
    return None if settings["run_name"] == word else f"run_name is {settings['run_name']!r}"


SECURITY = {
    "X1": Check(
        x1_pickles,
        injected="pickle payload in each checkpoint file, DeepSpeed's included; in models and bare weights",
        expected="never executed; unverified DeepSpeed refused without a flag",
    ),
    "X2": Check(
        x2_remote_code, injected="repository with remote code; data set that is a script", expected="refused by default"
    ),
    "X3": Check(
        x3_yaml_tags, injected="!!python/object/apply in any YAML", expected="refused; only safe loaders in the source"
    ),
    "X4": Check(
        x4_shell_words,
        injected="`; touch`, $(), quotes, newline in values, names, paths",
        expected="taken literally; no shell in the source",
    ),
    **NAMES,
}
