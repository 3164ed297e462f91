"""The fenced blocks of the README and of docs/, the commands in them, and what makes these small enough for seconds.

>>> blocks(ROOT / "README.md")[0].commands[0]
'git clone <this repository> t5suite && cd t5suite'
>>> small("python fine_tune_t5.py mini.yaml --max_steps 300   # a minute")
'python fine_tune_t5.py mini.yaml $SMALL --max_steps 6'
"""

import contextlib
import functools
import io
import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from t5suite import load_task
from t5suite.constants import DATASET_VALS
from t5suite.testing import example_row, run_cli

ROOT = Path(__file__).parent.parent
# A line that begins like this is a command, whatever the block's language says.
COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ )*(python3?|t5suite|accelerate|torchrun|deepspeed|srun|sbatch|wandb|make|git|pip|conda|echo|export|cat"
    r"|head|tail|cp|mkdir|cmp|cd|kubectl|bsub|docker|[A-Z]=\S+$) ?"
)
SHELL = ("sh", "bash", "console", "shell", "")


class Block(NamedTuple):
    """A fenced block: the page, the line of its fence, its language, its lines (indentation of a list taken off), and the
    headings that it stands below."""

    page: str
    line: int
    language: str
    lines: tuple[str, ...]
    section: str = ""
    feature: str = ""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Logical command lines: continued lines joined, prompts and printed lines left out."""
        found: list[str] = []
        for line in self.lines if self.language in SHELL else ():
            if found and found[-1].endswith("\\"):
                found[-1] = found[-1][:-1] + line.strip()
            elif line.startswith("$ ") or (self.language != "console" and COMMAND.match(line)):
                found.append(line.removeprefix("$ "))
        return found


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]


def blocks(page: Path) -> list[Block]:
    return _parsed(page)[0]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return "\n".join(_parsed(page)[1])


def _parsed(page: Path) -> tuple[list[Block], list[str]]:
    found, kept, fence, headings = [], [], None, ["", ""]
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        stripped = line.lstrip()
        if stripped.startswith("```") and fence is None:
            fence, depth, lines = (number, stripped[3:].strip()), len(line) - len(stripped), []
        elif stripped.startswith("```"):
            found.append(Block(str(page.relative_to(ROOT)), *fence, tuple(lines), *headings))
            fence = None
        elif fence is not None:
            lines.append(line[depth:])
        else:
            kept.append(line)
            if line.startswith(("## ", "### ")):
                headings = [line[3:].strip(), ""] if line[2] == " " else [headings[0], line[4:].strip()]
    return found, kept


# By script: each flag's entry in the schema of its recipes.
SCRIPTS = {
    f"{name}_t5": json.loads((ROOT / f"recipes/{name}.schema.json").read_text())["properties"]
    for name in ("fine_tune", "pre_train")
}
RUN_AS_SCRIPTS = {"fine_tune": "fine_tune_t5", "pre_train": "pre_train_t5", "evaluate": "fine_tune_t5"}
OPERATORS = {"|", "||", "&&", ";", ">", ">>", "<", "&"}
# Folders of the checkout: what a page names in them must be there.
FOLDERS = (
    "recipes", "sweeps", "slurm", "clusters", "accelerate_configs", "deepspeed_configs", "deploy", "examples", "docs"
)  # fmt: skip
# Configuration files that a page leaves to the reader.
READERS_FILES = {"config.yaml", "my_tasks.yaml", "my_tasks.py", "my_sweep.yaml", "FILE.yaml"}
PLACEHOLDER = re.compile(r"\.\.\.|[A-Z][A-Z_/]*|.*[{<$].*")


def help_of(*words: str) -> str:
    """What `t5suite ... --help` prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        run_cli(*words, "--help")
    return output.getvalue()


def names_in(help_text: str, title: str) -> list[str]:
    """The sub-commands that a help text lists below COMMAND or ACTION."""
    part = re.search(rf"^  {title}\n(.*?)\n\n", help_text, re.M | re.S)
    return re.findall(r"^    (\w+)(?=\s|$)", part[1], re.M) if part else []


def flags_by_command() -> dict[str, list[str]]:
    """Each sub-command's flags (and each action's), as their help lists them."""
    flags = {}
    for command in names_in(help_of(), "COMMAND"):
        if command in RUN_AS_SCRIPTS:
            flags[command] = []
            continue
        text = help_of(command)
        flags[command] = re.findall(r"^  (?:-\w, )?--(\w+)", text, re.M)
        for action in names_in(text, "ACTION"):
            flags[f"{command} {action}"] = re.findall(r"^  (?:-\w, )?--(\w+)", help_of(command, action), re.M)
    return flags


SUB_COMMANDS = flags_by_command()


def problems(line: str) -> list[str]:
    """What is wrong with one logical command line; launchers and commands of others are passed over."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        return [f"{error}: {line}"]
    found, commands = [], [[]]
    for word in words:
        if word in OPERATORS:
            commands.append([])
        else:
            commands[-1].append(word.removesuffix(";"))
    own = tuple(f"{folder}/" for folder in FOLDERS)
    for command in commands:
        files = [word for word in command if word.startswith(own) and "*" not in word]
        found += [f"{file} is not in the checkout" for file in files if not (ROOT / file).exists()]
        found += _checked(command)
    return found


def _checked(words: list[str]) -> list[str]:
    for place, word in enumerate(words):
        name, rest = Path(word).name, words[place + 1 :]
        if name in ("fine_tune_t5.py", "pre_train_t5.py"):
            return script_problems(name, rest)
        if name == "t5suite":
            return sub_command_problems(rest)
        if word == "-m" and rest and rest[0].split(".")[0] in ("t5suite", "benchmarks", "faults", "docs"):
            return module_problems(rest[0], rest[1:])
        if name == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
            return [f"make has no target {target}" for target in rest if target not in targets]
    return []


def script_problems(script: str, words: list[str]) -> list[str]:
    """Flags that a script does not have, values that they do not take, a configuration file that is not there."""
    flags, found = SCRIPTS[script.removesuffix(".py")], []
    if words and words[0].endswith((".yaml", ".yml")) and words[0] not in READERS_FILES:
        if not any((folder / words[0]).is_file() for folder in (ROOT, ROOT / "recipes")):
            found.append(f"{words[0]} is neither in the checkout nor a shipped recipe")
    for name, value in _flags(words):
        if name in ("help", "help_all", "config", "version"):
            continue
        if name not in flags:
            found.append(f"{script} has no flag --{name}")
            continue
        choices = choices_of(flags[name])
        # `--optimizer` and `--schedule` take Hugging Face's names, too: only those of one word are ours to check.
        if choices and value and value not in map(str, choices) and "_torch" not in value:
            found += [] if PLACEHOLDER.fullmatch(value) else [f"--{name} takes no {value!r}"]
    return found


def choices_of(entry: dict) -> list:
    """The values that a flag's entry lists; none where any value of its type will do."""
    parts = [entry, *entry.get("anyOf", ())]
    return [value for part in parts for value in part.get("enum", ())]


def sub_command_problems(words: list[str]) -> list[str]:
    """An unknown sub-command of `t5suite`, or flags that it does not have; a command behind `--` is checked, too."""
    cut = words.index("--") if "--" in words else len(words)
    before, after = words[:cut], words[cut + 1 :]
    if not before or before[0].startswith("-"):
        return [f"t5suite has no flag {word}" for word in before if word.split("=")[0] not in ("--help", "--version")]
    if before[0] in RUN_AS_SCRIPTS:
        return script_problems(f"{RUN_AS_SCRIPTS[before[0]]}.py", before[1:])
    if before[0] not in SUB_COMMANDS:
        return [f"t5suite has no sub-command {before[0]}"]
    action = " ".join(before[:2])
    command = action if action in SUB_COMMANDS else before[0]
    own = {flag for name in (command, before[0]) for flag in SUB_COMMANDS.get(name, ())}  # fmt: skip
    found = script_problems("fine_tune_t5.py", after) if after and after[0].startswith("--") else _checked(after)
    return found + [f"t5suite {command} has no flag --{name}" for name, _ in _flags(before) if name not in own]


def module_problems(module: str, words: list[str]) -> list[str]:
    """A module that is not there, or whose text does not hold the flag, nor that of the harness of measurements."""
    if module == "t5suite":
        return sub_command_problems(words)
    path = ROOT / module.replace(".", "/")
    files = [file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()]
    if not files:
        return [f"there is no module {module}"]
    text = files[0].read_text(encoding="utf-8")
    if "from benchmarks.harness import" in text:
        text += (ROOT / "benchmarks/harness.py").read_text(encoding="utf-8")
    words = words[: words.index("--")] if "--" in words else words
    return [
        f"{module} has no flag --{name}"
        for name, _ in _flags(words)
        if not re.search(rf"--{re.escape(name)}\b|\badd\w*\(\W*{re.escape(name)}\b", text) and "add_flags" not in text
    ]


def is_flag(name: str) -> bool:
    """Whether either script or any sub-command has a flag."""
    own = {flag for flags in SUB_COMMANDS.values() for flag in flags}
    return name in own or any(name in flags for flags in SCRIPTS.values())


def is_name(dotted: str) -> bool:
    """Whether `t5suite.a.b` can be imported, or is an attribute (of an attribute) of what can."""
    try:
        pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        return False
    return True


def _flags(words: list[str]):
    """`(name, its first value)` of each flag among the words."""
    for word, following in zip(words, [*words[1:], ""]):
        if re.fullmatch(r"--[A-Za-z][\w-]*(=.*)?", word, re.S):
            name, equals, value = word[2:].partition("=")
            yield name.replace("-", "_"), value if equals else "" if following.startswith("--") else following


# Longest that one block may take, in seconds, beside other work.
HANG = 1500


class Command(NamedTuple):
    """One line of a console block with what it prints; `place` is file:line, `exports` the page's own settings."""

    feature: str
    line: str
    printed: list[str]
    place: str
    exports: tuple[str, ...] = ()


def sections(path: Path) -> dict[str, list[Command]]:
    """`{section: its commands}` of a page's console blocks, in the page's order."""
    found: dict[str, list[Command]] = {}
    exports: list[str] = []
    for block in blocks(path):
        commands = found.setdefault(block.section, [])
        for line in block.lines if block.language == "console" else ():
            if line.startswith("$ export "):
                exports.append(line[2:])
            elif line.startswith("$ "):
                commands.append(Command(block.feature, line[2:], [], block.place, tuple(exports)))
            elif commands[-1].line.endswith("\\") and not commands[-1].printed:
                commands[-1] = commands[-1]._replace(line=f"{commands[-1].line}\n{line}")
            else:
                commands[-1].printed.append(line)
    return {name: commands for name, commands in found.items() if commands}


def workplace() -> Path:
    """A folder with everything of the checkout in it, where runs can write without touching that."""
    folder = Path(tempfile.mkdtemp(prefix="commands-"))
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".") and entry.name not in ("runs", "wandb", "build"):
            (folder / entry.name).symlink_to(entry)
    return folder


def bash(script: str, folder: Path, settings: dict) -> subprocess.CompletedProcess:
    """Runs lines in bash, offline; standard error is part of the output."""
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    kept |= {"PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}", **settings}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(["bash", "-o", "pipefail", "-c", script], cwd=folder, env=kept, timeout=HANG, **streams)


def unprinted(printed: list[str], output: str) -> str | None:
    """The first line of the page that the output does not hold where it should; None where all is as the page says.

    >>> unprinted(["accuracy 71.2"], "accuracy 55.0"), unprinted(["accuracy 71.2"], "f1 55.0")
    (None, 'accuracy 71.2')
    """
    lines = iter(map(_without_figures, output.splitlines()))
    for expected in printed:
        pattern = ".*".join(map(re.escape, _without_figures(expected).split("...")))
        if not any(re.fullmatch(pattern, line) for line in lines):
            return expected
    return None


def _without_figures(line: str) -> str:
    """Numbers, answers and the width of columns are a machine's or a seed's affair."""
    line = re.sub(r'(?<="prediction": )"[^"]*"', "#", re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", line))
    return re.sub(r"[\s─━]+", " ", line).strip()


def check(commands: list[Command], folder: Path) -> list[str]:
    """What does not hold of a section's commands, run in `folder`; after a command that failed nothing more is run."""
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "118"}
    wrong = []
    for command in commands:
        done = bash("\n".join([*command.exports, command.line]), folder, settings)
        missing = unprinted(command.printed, done.stdout)
        if done.returncode != 0 or missing is not None:
            what = f"not printed: {missing!r}" if done.returncode == 0 else f"exit {done.returncode}"
            wrong.append(f"{command.place} ({command.feature}): {what}\n{command.line}\n{done.stdout[-3000:]}")
        if done.returncode != 0:
            break
    return wrong


BUNDLED = ROOT / "t5suite/data/mini/model"
QUICK = (
    "--use_cpu --disable_tqdm True --logging_steps 1 --per_device_train_batch_size 4 --bf16 False --max_eval_samples 8 "
    "--warmup_steps 0"
)
QUICK_PRE = "--inputs_length 32"
STEPS = "--max_steps 2 --eval_strategy steps --eval_steps 1"
# The part of a page's steps that is trained.
PART = 50
NAMES = {
    r"(google/t5-v1_1-\w+|(?<![\w/-])t5-(small|base|large|3b)|models/t5-base)(?![\w.-])": "$T5",
    r"(openai-community/)?gpt2(?![\w.-])": "$GPT2",
    r"bert_sst2\.yaml": "bert_sst2.yaml --model_name_or_path $BERT",
}
# bash functions that make what a page's commands read.
MAKERS = r"""
make_rows() { cp "$ROWS" rows.jsonl; }
make_predictions() { echo '"True"' > predictions.jsonl; }
make_pairs() {
  mkdir -p pairs/train pairs/val
  python -c "for i in range(40): print('{\"input\": \"say %d\", \"output\": \"number %d\"}' % (i, i))" > pairs.jsonl
  cp pairs.jsonl pairs/train/a.jsonl; cp pairs.jsonl pairs/val/a.jsonl; }
make_alpaca() {
  mkdir -p alpaca
  python -c "
import json
rows = [{'instruction': 'Say %d.' % i, 'input': '', 'output': str(i)} for i in range(40)]
print(json.dumps(rows))" > alpaca_data.json
  cp alpaca_data.json alpaca/; }
make_reviews() { python -c "
print('text,label')
[print('film %d is %s,%s' % (i, w, w)) for i in range(20) for w in ('positive', 'negative')]" > reviews.csv; }
make_texts() {
  mkdir -p books texts
  python -c "
for i in range(300):
    print('The farmer sold %d horses at noon. It was a quiet day in the village, and nobody noticed.' % i)" > book.txt
  cp book.txt books/a.txt
  python -c "import json; [print(json.dumps({'text': t.strip()})) for t in open('book.txt')]" | gzip > articles.jsonl.gz
  gzip -c book.txt > articles.txt.gz; }
make_tokens() { mkdir -p tokenized; python -c "
import numpy
ids = numpy.random.default_rng(0).integers(3, 100, 120000).astype('<u2')
ids[39::40] = 1
ids.tofile('tokenized/a.ds')
numpy.arange(40, 120001, 40, dtype='<u8').tofile('tokenized/a.ds.index')"; }
make_crawl() { mkdir -p crawl; cp -r books articles; python -c "
import zstandard
with zstandard.open('crawl/a.jsonl.zst', 'wt') as lines:
    [print('{\"text\": \"A quiet day in village %d.\"}' % i, file=lines) for i in range(40)]"; }
make_more_files() {
  make_alpaca; make_texts; mkdir -p questions wmt stanfordnlp/imdb
  python -c "
print('question\tcontext\tanswer')
[print('who won %d\tAnna won %d\tAnna' % (i, i)) for i in range(40)]" > questions/train.tsv
  python -c "
for i in range(40): print('{\"translation\": {\"en\": \"the %d\", \"de\": \"das %d\"}}' % (i, i))" > wmt/train.jsonl
  python -c "
import pandas
pandas.DataFrame({'document': ['a b %d' % i for i in range(40)], 'summary': ['a'] * 40}).to_parquet('part-0.parquet')"
  cp reviews.csv stanfordnlp/imdb/train.csv; }
"""


def small(command: str) -> str:
    """A command with fewer steps and rows, tiny models and no `...`."""
    line = re.sub(r"\s+#\s.*$", "", command)
    line = re.sub(r" \.\.\.(?= |$)", "", line)
    line = re.sub(r"--vocab_size \d+", "--vocab_size 150", line)
    line = re.sub(r"(--config_name) t5-v?[\w.]*-(small|base)", r"\1 mini", line)
    for name, ours in NAMES.items():
        line = re.sub(rf"(?<!--config_name ){name}", ours.replace("\\", r"\\"), line)
    if not (script := re.search(r"(fine_tune|pre_train)_t5\.py|t5suite (fine_tune|pre_train|evaluate)\b", line)):
        return line
    line = re.sub(r"--(max_steps|eval_steps) (\d+)", _fewer, line)
    given, flags = (f"{QUICK} {QUICK_PRE}", " $SMALL_PRE") if "pre_train" in script[0] else (QUICK, " $SMALL")
    steps = re.search(r" --max_steps \d+", line)
    # What is not evaluated takes no flags of evaluation.
    more = steps[0] if steps else " --max_steps 2" if "--no_eval" in line else " $STEPS"
    for name in re.findall(r"--(\w+)", f"{given} {STEPS if more == ' $STEPS' else '--max_steps'}"):
        line = re.sub(rf" --{name}(?: [^-|&>\s]\S*)?(?=\s|$)", "", line)  # a flag is given once
    flags += more
    return re.sub(r"(?= (\||&&|>) )|$", lambda _: flags, line, count=1)


def _fewer(match: re.Match) -> str:
    least = 2 if match[1] == "max_steps" else 1
    return f"--{match[1]} {max(least, round(int(match[2]) / PART))}"


@functools.cache
def surroundings() -> tuple[str, dict[str, str]]:
    """bash functions and variables that small commands use: rows of every task and three tiny models."""
    folder = Path(tempfile.mkdtemp(prefix="surroundings-"))
    data = folder / "data"
    for benchmark, entries in DATASET_VALS.items():
        for name in entries:
            if benchmark in ("glue", "super_glue"):
                _write_rows(load_task(benchmark, name), data)
    # A mirror that is named is asked for the bundled benchmark, too.
    (data / "mini").symlink_to(BUNDLED.parent)
    rows = folder / "rows.jsonl"
    row = {"sentence": "The lamp was lovely.", "premise": "It rains.", "hypothesis": "It is wet.", "label": 0}
    row |= {"document": "Anna won. It rained.", "summary": "Anna won.", "translation": {"en": "one", "de": "eins"}}
    row |= {"paragraph": "Anna won.", "question": "Who won?", "answer": "Anna"}
    row |= {"idx": {"paragraph": 0, "question": 0, "answer": 0}}
    rows.write_text(json.dumps(row) + "\n", encoding="utf-8")
    settings = {
        "DATA": str(data), "ROWS": str(rows), "T5SUITE_DATA_DIR": str(data), "SMALL": QUICK,
        "SMALL_PRE": f"{QUICK} {QUICK_PRE}", "STEPS": STEPS, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "COLUMNS": "118",
    }  # fmt: skip
    return MAKERS, settings | _tiny_models(folder)


def _write_rows(task, data: Path) -> None:
    """Twelve made-up rows for each split, labels taking turns."""
    row = example_row(task)
    count = len(task.label_words or [0])
    place = data / task.benchmark / task.rows_of
    place.mkdir(parents=True, exist_ok=True)
    names = {name for role in ("train", "validation", "test") for name in task.splits(role).values()}
    for split in names - {path.stem for path in place.glob("*.jsonl")}:
        lines = []
        for i in range(12):
            label = {"label": i % count} if task.value_kind == "class" else {}
            idx = {"paragraph": i, "question": i, "answer": i} if task.name == "multirc" else i
            lines.append(json.dumps({**row, **label, "idx": idx}))
        (place / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _tiny_models(folder: Path) -> dict[str, str]:
    """`{variable: folder}` of a T5, a GPT-2 and a BERT with the bundled vocabulary."""
    import transformers as hf

    words = len(hf.AutoTokenizer.from_pretrained(BUNDLED))
    special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    wide = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    models = {
        "T5": hf.T5ForConditionalGeneration(hf.T5Config.from_pretrained(BUNDLED)),
        "GPT2": hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=words, n_embd=32, n_layer=1, n_head=2, **special)),
        "BERT": hf.BertForMaskedLM(hf.BertConfig(vocab_size=words, pad_token_id=0, **wide)),
    }
    for name, model in models.items():
        shutil.copytree(BUNDLED, folder / name)
        model.save_pretrained(folder / name)
    return {name: str(folder / name) for name in models}
