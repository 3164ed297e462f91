"""Whatever stands in a file or on a command line: a result or a UserError of ours, and nothing written elsewhere.

    python -m pytest -q tests/test_fuzz.py                                   # some hundred inputs
    T5SUITE_FUZZ_EXAMPLES=100000 python -m pytest -q tests/test_fuzz.py      # the full run (minutes)

The number is that of generated inputs over all tests, each of which takes its share. An input is made from its number
alone: small runs draw the same ones every time, T5SUITE_FUZZ_SEED shifts them. A failure names the number. What fuzzing
found stays in FoundTest.
"""

import contextlib
import copy
import gzip
import hashlib
import io
import json
import os
import random
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import yaml
import zstandard
from absl.testing import parameterized
from write_guard import WriteGuard, tree

from t5suite import load_task
from t5suite.base.errors import ConfigError, DataError, UserError
from t5suite.base.provenance import loaded_software
from t5suite.constants import DATASET_VALS
from t5suite.data.corpora.documents import read_documents
from t5suite.data.corpora.store import FORMAT, VERSION, TokenStore
from t5suite.data.corpora.tally import Tally
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.launch.commands import command_words
from t5suite.launch.sweep_checks import check_sweep
from t5suite.launch.sweep_files import read_sweep
from t5suite.launch.sweep_plans import plan_of
from t5suite.launch.sweep_search import distributions_of, grid_of, propose, trial_parameters
from t5suite.models.weight_files import read_weights
from t5suite.runs.opening import open_run
from t5suite.tasks.entries import load_registry
from t5suite.testing import exits_with, read_rows
from t5suite.training.checkpoints.manifests import damage
from t5suite.training.checkpoints.starts import find_checkpoint
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS
from t5suite.training.flags.parser import SuiteArgumentParser, parse_arguments
from t5suite.training.flags.pre_training import PRE_TRAINING_ARGUMENTS

TOTAL = int(os.environ.get("T5SUITE_FUZZ_EXAMPLES", "300"))
FIRST = int(os.environ.get("T5SUITE_FUZZ_SEED", "0"))
ARGUMENTS = {"fine_tune": FINE_TUNING_ARGUMENTS, "pre_train": PRE_TRAINING_ARGUMENTS}
SHIPPED = [(benchmark, name) for benchmark, tasks in DATASET_VALS.items() for name in tasks]
ROLES = ("train", "validation", "test")

# Inputs that hurt: JSON, YAML, files and flags that nearly fit, and others that do not at all.

DEEP = 100_000
NASTY_LINES = (
    b"", b" ", b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"\xed\xa0\x80", b'"\\ud800"', b"NaN", b"-Infinity", b"1e999", b"1" * 5000, b"-" + b"7" * 4301,
    b'{"label": ' + b"9" * 5000 + b"}", b"[" * DEEP, b'{"a":' * DEEP, b"[" * 500 + b"]" * 500, b'{"sentence": "a", "sentence": "b"}',
    b'{"sentence": "x", "label": 1', b'{"text": "\\ud83d"}', b'{"text": "a\\u0000b"}', b"{}", b"[]", b"null", b'"text"', b'{"prediction": null}',
    b'{"prediction": "x"}', b"{'a': 1}", b'{"a": 1}{"b": 2}', b"\x80\x81", b"tru", b'"\t"',
)  # fmt: skip
NASTY_VALUES = (
    0, 1, -1, 2, 5, 10**18, 2**63, -(2**63) - 1, 10**400, 0.5, 1e-5, 1e308, -0.0, float("nan"), float("inf"), None, True, False, [], {}, [1], [[]], [None],
    {"a": 1}, {"": []}, ["a", "a"], ["../x"], "", " ", "\n", "\x00", "\ud800", "\ufeff", "../x", "/etc/passwd", "..", "a/b", "$(id)", "; rm -rf x", "'\"`",
    "True", "None", "nan", "1e-5", "-1", "0", "positive", "entailment", "accuracy", "f1", "average", "auto", "%s%n", "{}", "\\", "\x1b[31m", "é" * 300,
)  # fmt: skip
YAML_TAGS = (
    "!!python/object/apply:os.system ['touch canary']", "!!python/name:os.system", "!!python/object/new:subprocess.Popen [['touch', 'canary']]",
    "!!python/module:os", "!!binary '@'", "!!timestamp x", "!!int x", "!!float 1__", "!!set {a, b}", "!!omap [a: 1]", "!!bool x", "!x y",
)  # fmt: skip
YAML_ODDITIES = (
    "[" * 500, "{a: " * 500, "- " * 500, "&a [*a]", "&a {x: *a}", "a: &x 1\nb: *x", "b: *nothing", "a: 1\na: 2", "? [1, 2]\n: 3", "? {a: 1}\n: 2",
    "<<: 5", "<<: [a]", "---\na: 1\n---\nb: 2", "%YAML 9.9\n---\na", "\t", "a:\tb: c", "1" * 5000, "a: " + "1" * 5000, "a: 0x" + "f" * 5000,
    "2001-99-99", "a: 2001-02-30", "a: 1:99:99", "~", "null", "''", "\x00", "\x85", "\ufeffa: 1", "a: |\n  x\n y", "a: !!binary |\n  @@@", "1e-5",
    "0b2", "0o9", "a: .nan", "a: -.inf", "yes: no", "? a", ": a", "x: 12345678901234567890:59", "=: 1", "a: =", "a: 190:20:30.15",
)  # fmt: skip


def altered(value, rng, times: int = 2):
    """A copy of a JSON value of which some nodes are other values, gone, doubled, or under another key."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(0, times)):
        if rng.random() < 0.03 or not isinstance(value, (dict, list)) or not value:
            value = copy.deepcopy(rng.choice(NASTY_VALUES))
            continue
        node = value
        while True:  # down to some entry
            key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
            if rng.random() < 0.5 or not isinstance(node[key], (dict, list)) or not node[key]:
                break
            node = node[key]
        kind = rng.random()
        if kind < 0.7:
            node[key] = copy.deepcopy(rng.choice(NASTY_VALUES))
        elif kind < 0.85 or not isinstance(node, dict):
            node.pop(key)
        else:
            node[rng.choice(NASTY_VALUES[-20:])] = node.pop(key)
    return value


def damaged(content: bytes, rng) -> bytes:
    """The content, half of the times cut off, changed, shortened, doubled, or with something put in."""
    short = [line for line in NASTY_LINES if len(line) < 10_000] + [b"\n", b'"', b"\\", b": ", b"- ", b"\t"]
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        start, end = sorted((rng.randint(0, len(content)), rng.randint(0, len(content))))
        inserted = rng.choice(short)
        content = rng.choice((
            content[:end], content[:start] + content[end:], content[:end] + content[start:], content[:start] + inserted + content[start:],
            content[:start] + bytes([rng.randint(0, 255)]) + content[start + 1 :],
        ))  # fmt: skip
    return content


def encoded(value, rng) -> bytes:
    """One JSON value as a careless program would write it."""
    return json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def lines(values, rng) -> bytes:
    """A damaged file of JSON lines: altered values and nasty lines, with any line ends, perhaps behind a BOM."""
    wellformed = lambda: encoded(altered(rng.choice(values), rng), rng)
    drawn = [wellformed() if rng.random() < 0.7 else rng.choice(NASTY_LINES) for _ in range(rng.randint(0, 4))]
    start, end = rng.choice((b"", b"", b"\xef\xbb\xbf")), rng.choice((b"\n", b"\n", b"\r\n", b"\r"))
    return damaged(start + end.join(drawn), rng)


def packed(content: bytes, suffix: str, rng) -> bytes:
    """The content as a file of that suffix holds it, perhaps damaged once it is packed; some only claim to be packed."""
    if suffix in (".gz", ".zst") and rng.random() < 0.8:
        content = damaged(gzip.compress(content, 1) if suffix == ".gz" else zstandard.compress(content, 1), rng)
    return content


def document(value, rng) -> bytes:
    """An altered value as YAML or JSON, perhaps with a tag that would run code or an oddity, perhaps damaged."""
    value, form = altered(value, rng, 3), rng.choice((None, True, False))
    try:
        text = yaml.safe_dump(value, allow_unicode=rng.random() < 0.5, default_flow_style=form)
    except (yaml.YAMLError, ValueError):
        text = json.dumps(value, default=str) + "\n"
    if rng.random() < 0.2:
        text += f"{rng.choice(('seed', 'mine', 'x'))}: {rng.choice(YAML_TAGS)}\n"
    if rng.random() < 0.2:
        text = "".join(rng.sample([text, rng.choice(YAML_ODDITIES) + "\n"], 2))
    return damaged(text.encode("utf-8", "surrogatepass"), rng)


class FuzzTest(parameterized.TestCase):
    """A folder to write to beside a canary."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        loaded_software()  # asks git, once in a process

    def setUp(self):
        super().setUp()
        self.root = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        self.folder = self.root / "here"
        self.folder.mkdir()
        (self.root / "canary").mkdir()
        (self.root / "canary" / "file").write_text("untouched")
        self.enterContext(contextlib.chdir(self.folder))
        self.drawn = ""
        self.addCleanup(lambda: self.drawn and print(self.drawn))
        before = tree(self.root / "canary")
        self.addCleanup(lambda: self.assertEqual(tree(self.root / "canary"), before))

    def draws(self, share: float):
        """A source of random numbers for every input of this test; a failure's output ends with the input's number."""
        for number in range(FIRST, FIRST + max(8, round(TOTAL * share))):
            self.drawn = f"input {number}: T5SUITE_FUZZ_SEED={number}"
            yield random.Random(f"{self.id()} {number}")
        self.drawn = ""

    def outcome(self, function, *args, **kwargs):
        """The function's result, or the UserError that it raised; anything else fails the test."""
        with mock.patch.dict(os.environ):
            try:
                with WriteGuard(self.folder), contextlib.redirect_stdout(io.StringIO()):
                    return function(*args, **kwargs)
            except UserError as error:
                assert str(error).strip(), "an error must say something"
                return error

    def write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path


class LinesTest(FuzzTest):
    VALUES = ({"text": "a b"}, {"prediction": "x"}, {"sentence": "a", "label": 1}, ["a", {"b": [1, None]}], "text", 5)

    def test_json_lines(self):
        for rng in self.draws(0.36):
            suffix = rng.choice(("", "", ".gz", ".zst"))
            path = self.write("rows.jsonl" + suffix, packed(lines(self.VALUES, rng), suffix, rng))
            found = self.outcome(read_rows, path, rng.choice((dict, object, (str, dict))))
            assert isinstance(found, UserError) or found, "a file without a line is an error"

    def test_a_line_that_hurts(self):
        for line in NASTY_LINES:
            for suffix, options in ((".jsonl", {}), (".txt", {}), (".txt", {"text_unit": "file"})):
                path = str(self.write("a" + suffix, line))
                self.outcome(lambda path=path, options=options: list(read_documents(path, **options)))
            self.outcome(read_rows, self.write("rows.jsonl", line), object)

    def test_documents(self):
        for rng in self.draws(0.44):
            kind = rng.choice((".txt", ".jsonl", ".jsonl", ".json", ".parquet"))
            packing = rng.choice(("", "", ".gz", ".zst"))
            path = self.write(f"text{kind}{packing}", packed(lines(self.VALUES, rng), packing, rng))
            tally, unit = Tally(), rng.choice(("line", "paragraph", "file"))
            settings = {"text_unit": unit, "bad_lines": rng.choice(("error", "skip")), "tally": tally}
            found = self.outcome(lambda path=path, settings=settings: list(read_documents(str(path), **settings)))
            if not isinstance(found, UserError):
                assert found and all(text.strip() for text in found)
                assert "\n".join(found).encode("utf-8"), "only texts that can be written come out"
                assert tally.documents == len(found)


def row_of(task, rng) -> dict:
    """A row with the task's columns: cells that may fit, and wrong ones."""
    more = ["positive_examples", "negative_examples"] if task.entry.get("formatter") == "super_ni" else []
    more += [task.entry["references_by"]] if task.entry.get("references_by") else []
    row = {column: rng.choice(("a b", "The @placeholder it", ["a"])) for column in (*task.text_columns, *more)}
    row[task.entry["label_column_name"]] = rng.choice((0, 1, "1.0", "yes"))
    row["idx"] = rng.choice((3, {"passage": 1, "query": 2, "question": 3}))
    found = altered(row, rng)
    return found if isinstance(found, dict) else row


class RowsTest(FuzzTest):
    def test_rows_of_shipped_tasks(self):
        for rng in self.draws(0.06):
            task, role = load_task(*rng.choice(SHIPPED)), rng.choice(ROLES)
            path = self.write("rows.jsonl", lines([row_of(task, rng) for _ in range(2)], rng))
            loaded = self.outcome(load_split, task, role, role, DataOptions(**{f"{role}_file": str(path)}))
            given_in_python = [row_of(task, rng) for _ in range(rng.randint(1, 3))]
            for rows in [given_in_python] + ([] if isinstance(loaded, UserError) else [list(loaded.rows)]):
                self.score(task, rows, role, rng)

    def score(self, task, given_rows, split, rng):
        made = self.outcome(lambda: [example for row in given_rows for example in task.examples(row, split)])
        if isinstance(made, UserError):
            return
        assert all(isinstance(text, str) for pair in made for text in pair)
        words = [*(task.label_words or ["1.0"]), *(value for value in NASTY_VALUES if isinstance(value, str))]
        predictions = [rng.choice(words) for _ in range(len(made) + (rng.random() < 0.1))]
        scores = self.outcome(task.score, given_rows, predictions, split)
        assert isinstance(scores, UserError) or all(isinstance(value, float) for value in scores.values())


GOOD_ENTRY = {
    "prefix": "x: ", "text_column_name": "a", "label_column_name": "label", "labels": ["no", "yes"], "metric_names": ["accuracy"],
    "metric_to_optimize": "accuracy",
}  # fmt: skip
# Optional fields of an entry that is good with them, or nearly.
MORE_FIELDS = {
    "formatter": "columns", "target": "nearest_fifth", "postprocess": "values", "splits": {"train": "train", "validation": ["a", "b"]}, "rows_of": "mine",
    "group_by": "idx.question", "metric_functions": {"accuracy": "accuracy"}, "hub_path": "nyu-mll/glue", "hub_name": "rte", "num_examples": {"train": 5},
    "source": "hub", "instruction": DATASET_VALS["super_ni"]["english"]["instruction"], "references_by": "id", "report_by": ["task"], "surprise": 1,
    "prefix": ["a: ", "b: "], "text_column_name": ["a", "b"], "labels": {0: "a", 1: "b"}, "metric_names": ["f1", "accuracy"], "metric_to_optimize": "average",
}  # fmt: skip


class TaskFilesTest(FuzzTest):
    def use(self, content: bytes, rng=None):
        registry = self.outcome(load_registry, str(self.write("tasks.yaml", content)))
        for benchmark, tasks in registry.items() if not isinstance(registry, UserError) else ():
            for name in tasks:
                if name not in DATASET_VALS.get(benchmark, {}):
                    task = self.outcome(load_task, benchmark, name, registry=registry)
                    if not isinstance(task, UserError):
                        self.use_task(task, rng)

    def use_task(self, task, rng):
        for role in ROLES:
            for title, split in task.splits(role).items():
                for part in (task.benchmark, task.name, task.rows_of, split, f"{title}.{role}"):
                    assert Path("root", part).resolve().parent == Path("root").resolve(), f"{part!r} is no name"
                self.outcome(load_split, task, role, split, DataOptions(data_dir=str(self.folder)))
        for split in ("train", "validation") if rng else ():
            RowsTest.score(self, task, [row_of(task, rng) for _ in range(2)], split, rng)

    def test_task_files(self):
        for rng in self.draws(0.05):
            more = rng.sample(sorted(MORE_FIELDS), rng.randint(0, 3))
            entry = {**GOOD_ENTRY, **{name: MORE_FIELDS[name] for name in more}}
            self.use(document({"mine": {"task": entry, rng.choice(("other", "../x", "é")): GOOD_ENTRY}}, rng), rng)

    def test_yaml_that_hurts(self):
        for text in YAML_TAGS[:3]:
            for table in (text, f"mine: {text}\n", f"mine:\n  task: {text}\n", f"? {text}\n: {text}\n"):
                self.use(table.encode())
            for table in (f"seed: {text}\n", text):
                path = self.write("run.yaml", table.encode())
                self.outcome(parse_arguments, FINE_TUNING_ARGUMENTS, [str(path), "--use_cpu"])


GOOD_SWEEP = {
    "method": "bayes", "program": "fine_tune_t5.py", "metric": {"name": "eval/accuracy", "goal": "maximize"}, "name": "a", "run_cap": 3,
    "command": ["${env}", "python", "${program}", "${args}"], "early_terminate": {"type": "hyperband", "max_iter": 27, "s": 2},
    "parameters": {
        "learning_rate": {"distribution": "log_uniform_values", "min": 1e-5, "max": 1e-2}, "seed": {"values": [1, 2]},
        "warmup_steps": {"distribution": "q_uniform", "min": 1, "max": 30, "q": 7}, "bf16": {"values": [True, False]},
        "run_name": {"values": ["a b", "$(id)", "", "é\n", None, 5, 1.0, True, 1]}, "weight_decay": {"distribution": "normal", "mu": 0, "sigma": 1},
        "lr_scheduler_kwargs": {"parameters": {"min_lr": {"values": [0.0, 1e-5]}, "deep": {"parameters": {"x": {"value": {"a": [1]}}}}}},
    },
}  # fmt: skip


class SweepFilesTest(FuzzTest):
    def use(self, content: bytes):
        """Reads and checks a file; in one that nothing is wrong with, a trial can be proposed, and a command made."""
        sweep = self.outcome(read_sweep, str(self.write("sweep.yaml", content)))
        if isinstance(sweep, UserError):
            return
        found = self.outcome(check_sweep, sweep)
        assert all(1 <= finding.line <= content.count(b"\n") + 2 for finding in found)
        if any(finding.level == "error" or finding.needs_server for finding in found):
            return
        plan = self.outcome(plan_of, sweep, 1)
        if isinstance(plan, UserError):
            return
        values = self.outcome(first_values, plan.search)
        if not isinstance(values, UserError):
            given = trial_parameters(plan.search.parameters, values)
            words = self.outcome(command_words, plan.command, given, plan.program, "file.json", {})
            assert isinstance(words, UserError) or all(isinstance(word, str) for word in words)

    def test_sweep_files(self):
        for rng in self.draws(0.05):
            sweep = {**GOOD_SWEEP, "method": rng.choice(("bayes", "random", "grid"))}
            names = rng.sample(sorted(GOOD_SWEEP["parameters"]), rng.randint(1, 3))
            sweep["parameters"] = {name: GOOD_SWEEP["parameters"][name] for name in names}
            self.use(document(sweep, rng))

    @pytest.mark.slow
    def test_sweeps_that_hurt(self):
        start = "method: grid\nprogram: fine_tune_t5.py\nparameters:\n"
        for text in (*YAML_TAGS, *YAML_ODDITIES):
            for form in ("{0}", "method: {0}\n", f"{start}  seed: {{0}}\n", f"{start}  seed: {{{{value: {{0}}}}}}\n"):
                with self.subTest(text=text[:80], form=form):
                    self.use(form.format(text).encode("utf-8", "surrogatepass"))


def first_values(wanted) -> dict:
    """What a sweep's first trial is given, in Optuna's words."""
    if wanted.method == "grid":
        return grid_of(wanted.parameters)[0]
    return propose([], wanted, distributions_of(wanted.parameters))


FLAGS = {kind: list(SuiteArgumentParser(arguments).flag_names()) for kind, arguments in ARGUMENTS.items()}
FLAG_VALUES = (
    *"1 0 0.5 1e-5 True False None no steps epoch best a=1 { [] adamw constant none auto cpu 1,2 x.json 300 -3".split(), '{"a": 1}', "full_shard auto_wrap",
    "1" * 5000, "0x10", "1_000", "\uff11\uff12", "1e400", "-1e400", *(value for value in NASTY_VALUES if isinstance(value, str)),
)  # fmt: skip


class ArgumentsTest(FuzzTest):
    def name(self, kind, rng) -> str:
        name = rng.choice(FLAGS[kind])
        others = [name.replace("_", "-"), name[:-1], name + "x", "config", "local_rank", "_wandb", ""]
        return rng.choice([name] * 6 + others)

    def parse(self, kind, argv):
        if not {"-h", "--help"} & set(argv):
            found = self.outcome(parse_arguments, ARGUMENTS[kind], argv)
            assert isinstance(found, UserError) or len(found) == len(ARGUMENTS[kind])

    def test_command_lines(self):
        for rng in self.draws(0.05):
            kind, argv = rng.choice(sorted(ARGUMENTS)), []
            for _ in range(rng.randint(1, 4)):
                flag, value = rng.choice(["--"] * 12 + ["-", "", "---"]) + self.name(kind, rng), rng.choice(FLAG_VALUES)
                argv += rng.choice(([f"{flag}={value}"], [flag, value], [flag], [flag, value, value]))
            self.parse(kind, [*argv, "--use_cpu"])

    def test_configuration_files(self):
        for rng in self.draws(0.04):
            kind = rng.choice(sorted(ARGUMENTS))
            table = {self.name(kind, rng): rng.choice(FLAG_VALUES + NASTY_VALUES) for _ in range(rng.randint(0, 4))}
            self.parse(kind, [str(self.write("run.yaml", document(table, rng))), "--use_cpu"])


EMPTY_OBJECT = hashlib.sha256(b"{}").hexdigest()
RUN = {"settings": {"seed": 1, "max_steps": 5}, "run_id": "5f3a9c01", "status": "finished", "fingerprint": "x"}
RUN |= {"changes": [], "restarts": 1, "versions": {}}
RECORD = {"size": 2, "sha256": EMPTY_OBJECT}
CHECKPOINT = {"format": 2, "step": 2, "run_id": "a", "world_size": 1, "details": {}}
CHECKPOINT["files"] = {"config.json": RECORD, "../x": RECORD}
INDEX = {"weight_map": {"a": "config.json", "b": "../x", "c": "/etc/passwd", "d": "a/../../x"}}
COUNTS = {"train": {"tokens": 2, "documents": 1}, "validation": {"tokens": 0, "documents": 0}}
CORPUS = {
    "format": FORMAT, "version": VERSION, "splits": COUNTS, "settings": {"split_sentences": False}, "dtype": "uint16",
    "shards": [{"name": "../x", "splits": COUNTS, "files": {"config.json": RECORD}}],
}  # fmt: skip


class ManifestsTest(FuzzTest):
    def test_run_manifests(self):
        (self.folder / "run").mkdir()
        for rng in self.draws(0.04):
            self.write("run/manifest.json", damaged(encoded(altered(RUN, rng, 3), rng), rng))
            how = {"need_new": rng.random() < 0.5, "extend": rng.random() < 0.5}
            how["allow_changed"] = rng.choice((None, "seed", "seed,max_steps", "data", "nope", "../x"))
            self.outcome(open_run, self.folder / "run", {"seed": 1, "max_steps": 5}, **how)

    def use_checkpoint(self, content: bytes):
        self.write("checkpoint-2/checkpoint.json", content)
        self.outcome(damage, self.folder / "checkpoint-2")
        self.outcome(find_checkpoint, self.folder, "auto")

    def test_checkpoint_manifests(self):
        (self.folder / "checkpoint-2").mkdir()
        self.write("checkpoint-2/config.json", b"{}")
        for line in NASTY_LINES:
            self.use_checkpoint(line)
        for rng in self.draws(0.1):
            content = altered(CHECKPOINT, rng, 3)
            if rng.random() < 0.5 and isinstance(content, dict):
                canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
                content = {**content, "sha256": hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()}
            self.use_checkpoint(damaged(encoded(content, rng), rng))

    def test_indexes_of_weights_and_corpora(self):
        for rng in self.draws(0.04):
            index = damaged(encoded(altered(INDEX, rng), rng), rng)
            self.outcome(read_weights, self.write("model.safetensors.index.json", index))
            self.write("corpus.json", damaged(encoded(altered(CORPUS, rng, 3), rng), rng))
            self.outcome(lambda: TokenStore.open(self.folder).split("train"))


HUGE = 10**400


class FoundTest(FuzzTest):
    """What fuzzing found once: each of these ended with another exception than ours."""

    @parameterized.parameters(
        ("glue", "stsb", {"sentence1": "a", "sentence2": "b", "label": HUGE}, "not a finite number"),
        ("glue", "stsb", {"sentence1": "a", "sentence2": "b", "label": 1e300}, "not a finite number"),
        ("super_glue", "record", {"query": "@placeholder", "entities": ["a"], "passage": "b", "answers": 5}, "not a list"),
        ("super_glue", "record", {"query": "q", "entities": ["a"], "passage": "b", "answers": ["a"],
                                  "idx": {"passage": [1], "query": 2}}, "cannot be told apart"),
        ("super_glue", "multirc", {"paragraph": "a", "question": "b", "answer": "c", "label": 1, "idx": {"question": {"a": 1}}}, "cannot be told apart"),
    )  # fmt: skip
    def test_rows(self, benchmark, name, row, message):
        with exits_with(65, message):
            load_task(benchmark, name).score([row], ["a"])

    @parameterized.parameters(
        {"formatter": []}, {"formatter": 3}, {"target": []}, {"postprocess": {}}, {"metric_functions": []}, {"metric_functions": {"accuracy": ["f1"]}},
        {"group_by": 5}, {"rows_of": {}}, {"hub_path": 5}, {"num_examples": 5}, {"splits": {"train": ""}}, {"splits": {"train": "a\0b"}},
    )  # fmt: skip
    def test_entries(self, **change):
        path = self.write("tasks.yaml", json.dumps({"mine": {"task": {**GOOD_ENTRY, **change}}}).encode())
        with exits_with(78):
            load_task("mine", "task", str(path))

    @parameterized.parameters(
        ("seed: 1\nseed: 2\n", "run.yaml:2: 'seed' is given for the second time"),
        ("learning_rate: 1\nlearning-rate: 2\n", "run.yaml:2: 'learning-rate' gives --learning_rate for the second time"),
        ("accelerator_config: nope.json\n", "--accelerator_config 'nope.json': No such file"),
        ("eval_strategy: steps\neval_steps: .inf\n", "run.yaml:2: --eval_steps inf: must be .* finite"),
        ("eval_only: []\n", "run.yaml:1: --eval_only: an empty list"),
        ("optim_args: {a: 2001-01-01}\n", "run.yaml:1: --optim_args: .* JSON has no form for"),
        ("x: &a [*a]\n", "run.yaml:1: the value contains itself"),
        ("seed: " + "1" * 5000, "run.yaml:1: a number of 5000 digits"),
        ('seed: "\\ud800"\n', "run.yaml:1: .* half a surrogate pair"),
        ("&a a: &b [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" +
         "".join(f"b{i}: &c{i} [{', '.join(['*' + ('b' if i == 0 else f'c{i - 1}')] * 10)}]\n" for i in range(6)), "more than 100000 values"),
    )  # fmt: skip
    def test_configuration_files(self, text, message):
        with exits_with(78, message):
            parse_arguments(FINE_TUNING_ARGUMENTS, [str(self.write("run.yaml", text.encode())), "--use_cpu"])

    def test_manifests(self):
        index = self.write("model.safetensors.index.json", b'{"weight_map": null}')
        self.assertIsInstance(self.outcome(read_weights, index), ConfigError)
        self.write("corpus.json", json.dumps({"format": FORMAT, "version": VERSION}).encode())
        self.assertIsInstance(self.outcome(TokenStore.open, self.folder), DataError)
        (self.folder / "run").mkdir()
        for more in (b'{"max_steps": [null]}}', b'{}, "versions": []}'):
            self.write("run/manifest.json", b'{"run_id": "a", "settings": ' + more)
            self.outcome(open_run, self.folder / "run", {"max_steps": 5}, extend=True)
