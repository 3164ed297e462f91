"""Whatever stands in a file or on a command line: a result or a UserError of ours, and nothing written elsewhere.

    python -m pytest -q tests/test_fuzz.py                                   # some hundred inputs
    T5SUITE_FUZZ_EXAMPLES=100000 python -m pytest -q tests/test_fuzz.py      # the full run (minutes)

The number is that of generated inputs over all tests, each of which takes its share. Small runs draw the same inputs
every time, large ones draw new ones. What fuzzing found stays as an example (`@example`).
"""

import contextlib
import gzip
import hashlib
import io
import json
import math
import os
import random
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import yaml
from absl.testing import absltest, parameterized
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from write_guard import WriteGuard, tree

from t5suite.base.errors import CheckpointError, ConfigError, DataError, UserError
from t5suite.constants import DATASET_VALS
from t5suite.data.corpora.documents import Tally, read_documents
from t5suite.data.corpora.store import FORMAT, VERSION, TokenStore
from t5suite.data.rows.jsonl import read_jsonl
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.launch.commands import command_words
from t5suite.launch.sweep_files import DISTRIBUTIONS, check_sweep, read_sweep
from t5suite.launch.sweep_store import grid_of, plan_of, propose, searched, trial_parameters
from t5suite.models.weights import read_weights
from t5suite.runs.directory import open_run
from t5suite.tasks.entries import load_registry
from t5suite.tasks.registry import load_task
from t5suite.training.checkpoints.folders import find_checkpoint
from t5suite.training.checkpoints.manifests import verify
from t5suite.training.flags.fine_tuning import FINE_TUNING_ARGUMENTS
from t5suite.training.flags.parser import SuiteArgumentParser, parse_arguments
from t5suite.training.flags.pre_training import PRE_TRAINING_ARGUMENTS

TOTAL = int(os.environ.get("T5SUITE_FUZZ_EXAMPLES", "300"))
SMALL = TOTAL < 20_000
MUTATED = 7 if SMALL else 15
ARGUMENTS = {"fine_tune": FINE_TUNING_ARGUMENTS, "pre_train": PRE_TRAINING_ARGUMENTS}
SHIPPED = [(benchmark, name) for benchmark, tasks in DATASET_VALS.items() for name in tasks]
ROLES = st.sampled_from(["train", "validation", "test"])
VALUES = st.sampled_from([dict, object, (str, dict)])
UNITS = st.sampled_from(["line", "paragraph", "file"])
TEXT_FILES = [
    (kind, packing) for kind in (".txt", ".jsonl", ".jsonl", ".json", ".parquet") for packing in ("", "", ".gz", ".zst")
]
EMPTY_OBJECT = hashlib.sha256(b"{}").hexdigest()
SEEDS = st.integers(0, 2**32)


def fuzzed(share: float, inputs_a_draw: int = 1):
    """A test's settings: its share of all inputs, of which one draw makes so many."""
    return settings(
        max_examples=max(8, math.ceil(TOTAL * share / inputs_a_draw)),
        deadline=None,
        database=None,
        derandomize=SMALL,
        phases=[Phase.explicit, Phase.generate] + ([] if SMALL else [Phase.shrink]),
        suppress_health_check=list(HealthCheck),
    )


# Inputs that hurt: JSON, YAML, files and flags that nearly fit, and others that do not at all.

DEEP = 100_000
NASTY_NUMBERS = (0, 1, -1, 2, -2, 5, 10**18, 2**63, -(2**63) - 1, 10**400, 0.5, 1e-5, 1e308, -0.0)
NASTY_TEXTS = (
    "", " ", "\n", "\x00", "\ud800", "\udfff", "\ufeff", "../x", "/etc/passwd", "..", "a/b", "$(id)", "; rm -rf x", "'\"`", "True", "None", "nan",
    "1e-5", "-1", "0", "1", "positive", "negative", "entailment", "%s%n", "{}", "\\", "\x1b[31m", "é" * 300,
)  # fmt: skip
NASTY_LINES = (
    b"", b" ", b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"\xed\xa0\x80", b'"\\ud800"', b"NaN", b"-Infinity", b"1e999", b"1" * 5000, b"-" + b"7" * 4301,
    b'{"label": ' + b"9" * 5000 + b"}", b"[" * DEEP, b'{"a":' * DEEP, b"[" * 500 + b"]" * 500, b'{"sentence": "a", "sentence": "b"}',
    b'{"sentence": "x", "label": 1', b'{"text": "\\ud83d"}', b'{"text": "a\\u0000b"}', b"{}", b"[]", b"null", b'"text"', b'{"prediction": null}',
    b'{"prediction": "x"}', b"{'a': 1}", b'{"a": 1}{"b": 2}', b"\x80\x81", b"tru", b'"\t"',
)  # fmt: skip


def texts():
    """Texts, lone surrogates and control characters among them."""
    return st.one_of(
        st.sampled_from(NASTY_TEXTS), st.text(st.characters(), max_size=12), st.text("ab .,XitThe", max_size=12)
    )


def numbers():
    """Whole numbers and others, far too large ones and those that are none among them."""
    return st.one_of(st.sampled_from(NASTY_NUMBERS), st.integers(-3, 6), st.integers(), st.floats())


def json_values():
    """Whatever a JSON reader may give."""
    atoms = st.one_of(st.none(), st.booleans(), numbers(), texts())
    return st.recursive(
        atoms,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts(), inner, max_size=3)),
        max_leaves=6,
    )


def rows(columns):
    """Rows with these columns, more or less: cells that may fit, wrong ones, columns too many or too few."""
    plausible = st.one_of(texts(), st.integers(-1, 3), st.lists(texts(), max_size=3), json_values())
    ids = st.fixed_dictionaries({}, optional={name: json_values() for name in ("passage", "query", "question")})
    cells = {column: plausible | ids if column == "idx" else plausible for column in columns}
    return st.one_of(
        st.fixed_dictionaries(cells),
        st.fixed_dictionaries({}, optional=cells),
        st.dictionaries(texts(), json_values(), max_size=3),
    )


@st.composite
def line_files(draw, values):
    """The bytes of a file of JSON lines: `values` and nasty lines, with any line ends, perhaps behind a BOM."""
    one = st.one_of(values.map(encoded), values.map(encoded), st.sampled_from(NASTY_LINES))
    lines = draw(st.lists(one, max_size=4))
    mark, end = (
        draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"])),
        draw(st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"])),
    )
    return mark + end.join(lines)


def mutations(content: bytes, seed: int, count: int):
    """The content as it is and `count` damaged forms of it: cut off, changed, shortened, doubled, with something put in."""
    yield content
    rng = random.Random(seed)
    for _ in range(count):
        changed = content
        for _ in range(rng.choice((1, 1, 2, 4))):
            changed = rng.choice(MUTATIONS)(changed, rng)
        yield changed


def _cut(content, rng):
    return content[: rng.randint(0, len(content))]


def _flip(content, rng):
    place = rng.randint(0, max(len(content) - 1, 0))
    return content[:place] + bytes([rng.randint(0, 255)]) + content[place + 1 :]


def _drop(content, rng):
    start, end = sorted((rng.randint(0, len(content)), rng.randint(0, len(content))))
    return content[:start] + content[end:]


def _double(content, rng):
    start, end = sorted((rng.randint(0, len(content)), rng.randint(0, len(content))))
    return content[:end] + content[start:]


def _insert(content, rng):
    place = rng.randint(0, len(content))
    return content[:place] + rng.choice(INSERTED) + content[place:]


MUTATIONS = (_cut, _flip, _drop, _double, _insert, _insert)
INSERTED = (
    *(line for line in NASTY_LINES if len(line) < 10_000), b"\n", b"\r\n", b'"', b"\\", b",", b": ", b"{", b"- ", b"\\ud800", b"'", b"\t",
)  # fmt: skip


def packed(content: bytes, suffix: str, seed: int) -> bytes:
    """The content as a file of that suffix holds it, perhaps damaged once it is packed; some only claim to be packed."""
    import zstandard

    rng = random.Random(seed)
    if suffix and rng.random() < 0.8:
        content = gzip.compress(content, 1) if suffix == ".gz" else zstandard.compress(content, 1)
        content = rng.choice(MUTATIONS)(content, rng) if rng.random() < 0.5 else content
    return content


def encoded(value) -> bytes:
    """One JSON value as a careless program would write it."""
    return json.dumps(value, ensure_ascii=len(repr(value)) % 2 == 0).encode("utf-8", "surrogatepass")


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


@st.composite
def yaml_documents(draw, values):
    """YAML text: `values` as a dumper writes them, tags that would run code, oddities, and lines that are cut."""
    kind = draw(st.sampled_from(["dumped", "dumped", "tagged", "odd", "mixed", "raw"]))
    if kind == "raw":
        return draw(st.text(st.sampled_from("abc:-[]{}&*!|>'\"%#\n \t,?0123456789e.~@`\x00\ud800é"), max_size=40))
    if kind == "odd":
        return draw(st.sampled_from(YAML_ODDITIES))
    value = draw(values)
    text = dumped(value, draw(st.sampled_from([None, True, False])))
    if kind == "tagged":
        text += f"{draw(st.sampled_from(['seed', 'mine', 'x']))}: {draw(st.sampled_from(YAML_TAGS))}\n"
    if kind == "mixed":
        text = draw(st.permutations([text, draw(st.sampled_from(YAML_ODDITIES)) + "\n"]).map("".join))
    return text


def dumped(value, flow) -> str:
    """A value as YAML; where YAML cannot say it, as JSON, which it mostly reads too."""
    try:
        return yaml.safe_dump(value, allow_unicode=bool(flow), default_flow_style=flow)
    except (yaml.YAMLError, ValueError):
        return json.dumps(value, default=str) + "\n"


class FuzzTest(parameterized.TestCase):
    """A folder to write to beside a canary, and a count of the inputs."""

    inputs = 0

    def setUp(self):
        super().setUp()
        self.root = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        self.folder = self.root / "here"
        self.folder.mkdir()
        (self.root / "canary").mkdir()
        (self.root / "canary" / "file").write_text("untouched")
        self.enterContext(contextlib.chdir(self.folder))
        before = tree(self.root / "canary")
        self.addCleanup(lambda: self.assertEqual(tree(self.root / "canary"), before))

    def outcome(self, function, *args, **kwargs):
        """The function's result, or the UserError that it raised; anything else fails the test."""
        environment = dict(os.environ)
        try:
            with WriteGuard(self.folder), contextlib.redirect_stdout(io.StringIO()):
                return function(*args, **kwargs)
        except UserError as error:
            assert str(error).strip(), "an error must say something"
            return error
        finally:
            if environment != dict(os.environ):
                os.environ.clear()
                os.environ.update(environment)

    def write(self, name: str, content: bytes) -> Path:
        """Writes an input, and counts it."""
        FuzzTest.inputs += 1
        path = self.folder / name
        path.write_bytes(content)
        return path


class LinesTest(FuzzTest):
    @fuzzed(0.36, inputs_a_draw=MUTATED + 1)
    @given(line_files(json_values()), st.sampled_from(["", "", ".gz", ".zst"]), VALUES, SEEDS)
    def test_json_lines(self, content, suffix, values, seed):
        for i, changed in enumerate(mutations(content, seed, MUTATED)):
            path = self.write("rows.jsonl" + suffix, packed(changed, suffix, seed + i))
            found = self.outcome(read_jsonl, path, values)
            assert isinstance(found, UserError) or found, "a file without a line is an error"

    def test_a_line_that_hurts(self):
        for line in NASTY_LINES:
            for suffix, options in ((".jsonl", {}), (".txt", {}), (".txt", {"text_unit": "file"})):
                path = str(self.write("a" + suffix, line))
                self.outcome(lambda path=path, options=options: list(read_documents(path, **options)))
            self.outcome(read_jsonl, self.write("rows.jsonl", line), object)

    @fuzzed(0.44, inputs_a_draw=MUTATED + 1)
    @given(line_files(rows(["text"])), st.sampled_from(TEXT_FILES), UNITS, st.sampled_from(["error", "skip"]), SEEDS)
    def test_documents(self, content, suffixes, unit, bad_lines, seed):
        for i, changed in enumerate(mutations(content, seed, MUTATED)):
            path = self.write("text" + "".join(suffixes), packed(changed, suffixes[1], seed + i))
            tally = Tally()
            found = self.outcome(list_documents, str(path), text_unit=unit, bad_lines=bad_lines, tally=tally)
            if not isinstance(found, UserError):
                assert found and all(text.strip() for text in found)
                assert "\n".join(found).encode("utf-8"), "only texts that can be written come out"
                assert tally.documents == len(found)


def list_documents(*args, **kwargs) -> list[str]:
    return list(read_documents(*args, **kwargs))


class RowsTest(FuzzTest):
    @fuzzed(0.06, inputs_a_draw=4)
    @given(st.data(), st.sampled_from(SHIPPED), ROLES, SEEDS)
    def test_rows_of_shipped_tasks(self, data, name, role, seed):
        task = load_task(*name)
        content = data.draw(line_files(rows(columns_of(task))))
        for changed in mutations(content, seed, 3):
            path = self.write("rows.jsonl", changed)
            loaded = self.outcome(load_split, task, role, role, DataOptions(**{f"{role}_file": str(path)}))
            if not isinstance(loaded, UserError):
                self.score(task, list(loaded.rows), role, data)

    @fuzzed(0.02)
    @given(st.data(), st.sampled_from(SHIPPED), ROLES)
    def test_rows_given_in_python(self, data, name, role):
        task = load_task(*name)
        FuzzTest.inputs += 1
        self.score(task, data.draw(st.lists(rows(columns_of(task)), min_size=1, max_size=3)), role, data)

    def score(self, task, given_rows, split, data):
        """Formats rows and scores predictions of them."""
        made = self.outcome(lambda: [example for row in given_rows for example in task.examples(row, split)])
        if isinstance(made, UserError):
            return
        assert all(isinstance(text, str) for pair in made for text in pair)
        words = st.one_of(texts(), st.sampled_from(task.label_words or ["1.0"]))
        too_many = data.draw(st.sampled_from([0] * 9 + [1]))
        predictions = data.draw(st.lists(words, min_size=len(made), max_size=len(made) + too_many))
        scores = self.outcome(task.score, given_rows, predictions, split)
        assert isinstance(scores, UserError) or all(isinstance(value, float) for value in scores.values())


def columns_of(task) -> list[str]:
    more = ["positive_examples", "negative_examples"] if task.entry.get("formatter") == "super_ni" else []
    more += [task.entry["references_by"]] if task.entry.get("references_by") else []
    return [*task.text_columns, task.entry["label_column_name"], "idx", *more]


ENTRY_VALUES = {
    "prefix": ["x: ", "", ["a: ", "b: "], "x", 1, None, [], {}, ["a: ", 1]], "text_column_name": ["a", ["a", "b"], "", 5, None, [], {"a": 1}],
    "label_column_name": ["label", "", None, 3, ["label"]],
    "labels": [
        None, ["no", "yes"], {0: "a", 1: "b"}, {0: "a", -1: "z"}, {1: "a"}, {"0": "a"}, {0.0: "a"}, {True: "a"}, [], "ab", ["a", "a"], ["", "b"],
        [True, False], 5, {None: "a"}, {10**400: "a"}, [["a"]], ["../x"],
    ],
    "metric_names": [
        ["accuracy"], ["f1", "accuracy"], ["rouge"], ["bleu"], ["squad"], ["pearson"], ["mcc"], ["grouped_exact_match"], ["gender_parity"], [], None,
        "accuracy", ["nope"], [["f1"]], {"accuracy": 1}, [None],
    ],
    "metric_to_optimize": ["accuracy", "f1", "average", None, "rouge1", "pearson", "nope", 5, ["accuracy"], {}],
    "formatter": [None, "columns", "multirc", "record", "wsc", "wnli_simple", "dpr", "nope", 3, [], {}],
    "target": [None, "nearest_fifth", "one_decimal", "nope", [], 1], "postprocess": [None, "values", "first_answer", "wsc_verdict", "nope", {}, 2],
    "splits": [
        None, {"train": "train"}, {"validation": ["a", "b"]}, {"validation": "../../x"}, {"test": "/etc/x"}, {"dev": "x"}, {"train": 5}, {"train": []},
        {1: "x"}, [], "x", {"validation": "a\x00b"}, {"train": ""},
    ],
    "rows_of": [None, "mine", "../../x", "/etc", 5, [], {}, "", "a/b"], "group_by": [None, "idx", "idx.question", "", 5, [], {}, "a..b"],
    "metric_functions": [None, {}, {"x": "accuracy"}, {"accuracy": "nope"}, [], 5, "x", {1: 2}, {"accuracy": ["f1"]}, {"f1": {}}],
    "hub_path": [None, "nyu-mll/glue", 5, "../x"], "hub_name": [None, "rte", 5], "num_examples": [None, {"train": 5}, 5, [], "x"],
    "source": [None, "super_ni", "hub", 5], "instruction": [None, {}, {"seed": "x"}, 5, DATASET_VALS["super_ni"]["english"]["instruction"]],
    "references_by": [None, "id", "", 5], "report_by": [None, [], ["task"], "task", [5]], "surprise": [1],
}  # fmt: skip
NEEDED = ("prefix", "text_column_name", "label_column_name", "labels", "metric_names", "metric_to_optimize")
GOOD_ENTRY = {
    "prefix": "x: ", "text_column_name": "a", "label_column_name": "label", "labels": ["no", "yes"], "metric_names": ["accuracy"],
    "metric_to_optimize": "accuracy",
}  # fmt: skip
NAMES = (
    "mine", "task", "../x", "/x", "a/b", "", "..", "x" * 300, "a\x00b", "glue", "rte", "sst2", "é", " ", "a b", ".hidden", "$(id)",
)  # fmt: skip


@st.composite
def entries(draw):
    """A task's entry: a good one with some fields changed, or all fields from the table above."""
    entry = (
        dict(GOOD_ENTRY)
        if draw(st.booleans())
        else {name: draw(st.sampled_from(ENTRY_VALUES[name])) for name in NEEDED}
    )
    for name in draw(st.lists(st.sampled_from(sorted(ENTRY_VALUES)), max_size=4)):
        if draw(st.integers(0, 9)) == 0:
            entry[name] = draw(json_values())
        else:
            entry[name] = draw(st.sampled_from(ENTRY_VALUES[name]))
    for name in draw(st.sampled_from([[]] * 9 + [["prefix"], ["labels"]])):
        entry.pop(name, None)
    return entry


def task_tables():
    """What a task file holds."""
    names = st.one_of(st.sampled_from(NAMES), texts(), st.just("mine"))
    tasks = st.dictionaries(names, st.one_of(entries(), entries(), entries(), json_values()), max_size=2)
    return st.one_of(
        st.dictionaries(names, tasks, max_size=2), st.dictionaries(names, tasks, max_size=2), json_values()
    )


class TaskFilesTest(FuzzTest):
    def use(self, content: bytes, data=None):
        path = self.write("tasks.yaml", content)
        registry = self.outcome(load_registry, str(path))
        if isinstance(registry, UserError):
            return
        for benchmark, tasks in registry.items():
            for name in tasks:
                if name not in DATASET_VALS.get(benchmark, {}):
                    task = self.outcome(load_task, benchmark, name, registry=registry)
                    if not isinstance(task, UserError):
                        self.use_task(task, data)

    def use_task(self, task, data):
        for role in ("train", "validation", "test"):
            for title, split in task.splits(role).items():
                for part in (task.benchmark, task.name, task.rows_of, split, f"{title}.{role}"):
                    assert Path("root", part).resolve().parent == Path("root").resolve(), f"{part!r} is no name"
                self.outcome(load_split, task, role, split, DataOptions(data_dir=str(self.folder)))
        for split in ("train", "validation") if data else ():
            row_list = data.draw(st.lists(rows(columns_of(task)), min_size=1, max_size=2))
            RowsTest.score(self, task, row_list, split, data)

    @fuzzed(0.05, inputs_a_draw=4)
    @given(st.data(), SEEDS)
    def test_task_files(self, data, seed):
        text = data.draw(yaml_documents(task_tables()))
        for changed in mutations(text.encode("utf-8", "surrogatepass"), seed, 3):
            self.use(changed, data)

    @parameterized.parameters(*YAML_TAGS[:3])
    def test_yaml_that_hurts(self, text):
        self.hurt(text)

    @parameterized.parameters(*YAML_TAGS[3:], *YAML_ODDITIES)
    @pytest.mark.slow
    def test_more_yaml_that_hurts(self, text):
        self.hurt(text)

    def hurt(self, text):
        for table in (text, f"mine: {text}\n", f"mine:\n  task: {text}\n", f"? {text}\n: {text}\n"):
            self.use(table.encode("utf-8", "surrogatepass"))
        for arguments in ARGUMENTS.values():
            path = self.write("run.yaml", f"seed: {text}\n".encode("utf-8", "surrogatepass"))
            self.outcome(parse_arguments, arguments, [str(path), "--use_cpu"])
            path = self.write("run.yaml", text.encode("utf-8", "surrogatepass"))
            self.outcome(parse_arguments, arguments, [str(path), "--use_cpu"])


SWEEP_NUMBERS = [
    0, 1, -1, 3, 2.5, 1e-5, 1e308, 10**400, "1e-5", "x", None, True, [], {}, [1], float("inf"), float("nan"),
]  # fmt: skip
SWEEP_VALUES = {
    "method": ["bayes", "grid", "random", "custom", "x", None, 5, [], {}],
    "metric": [
        {"name": "eval/accuracy", "goal": "maximize"}, {"name": "accuracy"}, {"name": None}, {"name": []}, {}, [], "x",
        {"name": "eval/average", "target": "9e1"},
    ],
    "program": ["fine_tune_t5.py", "pre_train_t5.py", "other.py", "", None, 5, ["a"], "../../x", "a\x00b"],
    "command": [
        ["python", "${program}", "${args}"], ["${env}", "${arg}"], [], {}, None, ["${args}"], [None, 5, {}],
        ["python", "fine_tune_t5.py", "--seed", "${args_no_boolean_flags}"], ["-m", "fine_tune_t5", "a\x00b"],
        ["python", "fine_tune_t5.py", "/etc/passwd", "--config"], "python x", [["a"]], ["${envvar:HOME}", "${"],
    ],
    "early_terminate": [
        {"type": "hyperband", "min_iter": 3}, {"type": "hyperband", "max_iter": 27, "s": 2}, {"type": "hyperband", "max_iter": 10**400, "s": 1e300},
        {"type": "hyperband", "min_iter": 1, "eta": 1.0000001}, {"type": []}, {}, [], "x", None,
    ],
    "run_cap": [1, 0, -1, 10**400, "1", None], "name": ["a", "", "../x", 5, None, "a\x00b"],
    "scheduler": [{"engine": "optuna"}, {}, [], None, {"engine": []}], "metrics": [[{"name": "a"}], [], {}],
    "controller": [{"type": "local"}, {}, [], 5], "surprise": [1],
}  # fmt: skip
SWEEP_FLAGS = (
    "learning_rate", "seed", "bf16", "benchmark", "dataset_name", "lr_scheduler_kwargs", "output_dir", "schedule", "optim", "nope", "group_by_length",
    "", "2x", "a.b", 5, None,
)  # fmt: skip


GOOD_PARAMETERS = {
    "learning_rate": [
        {"distribution": "log_uniform_values", "min": 1e-5, "max": 1e-2}, {"min": 0.1, "max": 0.2},
        {"distribution": "log_uniform", "min": -9, "max": -2},
    ],
    "seed": [
        {"values": [1, 2]}, {"min": 1, "max": 9}, {"distribution": "q_uniform", "min": 1, "max": 30, "q": 7},
        {"distribution": "q_log_uniform_values", "min": 1, "max": 30, "q": 1},
    ],
    "weight_decay": [
        {"distribution": "q_uniform", "min": 0, "max": 0.35, "q": 0.1}, {"distribution": "q_uniform", "min": 1, "max": 1, "q": 3},
        {"distribution": "normal"},
    ],
    "bf16": [{"values": [True, False, "yes"]}, {"value": None}],
    "run_name": [{"values": ["a b", "$(id)", "", "é\n", None, 5, 1.0, True, 1]}, {"value": "x"}],
    "lr_scheduler_kwargs": [{"parameters": {"min_lr": {"values": [0.0, 1e-5]}, "deep": {"parameters": {"x": {"value": {"a": [1]}}}}}}],
}  # fmt: skip


@st.composite
def sweep_parameters(draw, depth=2):
    """The table of a sweep's parameters: good ones, distributions with settings that hardly fit, or something else."""
    table = {}
    for name in draw(st.lists(st.sampled_from(sorted(GOOD_PARAMETERS)), min_size=1, max_size=3, unique=True)):
        table[name] = draw(st.sampled_from(GOOD_PARAMETERS[name]))
    for name in draw(st.sampled_from([[], [], [SWEEP_FLAGS[0]], SWEEP_FLAGS[1:3], SWEEP_FLAGS])):
        kind = draw(st.sampled_from(["known", "known", "bare", "nested", "json"]))
        if kind == "json":
            table[name] = draw(json_values())
        elif kind == "nested" and depth:
            table[name] = {"parameters": draw(sweep_parameters(depth - 1))}
        else:
            distribution = draw(st.sampled_from(sorted(DISTRIBUTIONS)))
            needed, optional = DISTRIBUTIONS[distribution]
            entry = {key: draw(st.sampled_from(SWEEP_NUMBERS)) for key in (*needed, *optional)}
            for key in ("values", "probabilities"):
                if key in entry and draw(st.booleans()):
                    entry[key] = draw(st.lists(st.sampled_from(SWEEP_NUMBERS), max_size=3))
            table[name] = entry | ({"distribution": distribution} if kind == "known" else {})
    return table


@st.composite
def sweep_tables(draw):
    """What a sweep file holds."""
    method = draw(st.sampled_from(["bayes", "random", "grid"]))
    content = {"method": method, "program": "fine_tune_t5.py", "metric": {"name": "eval/accuracy", "goal": "maximize"}}
    content["parameters"] = draw(sweep_parameters())
    for name in draw(st.sampled_from([[]] * 4 + [[name] for name in SWEEP_VALUES] + [sorted(SWEEP_VALUES)[:4]])):
        content[name] = draw(st.one_of(st.sampled_from(SWEEP_VALUES[name]), json_values()))
    return content


@st.composite
def sweep_texts(draw):
    """Sweep files as YAML: most as a dumper writes them, some as fuzzing has them."""
    content = draw(sweep_tables())
    if draw(st.integers(0, 2)):
        return dumped(content, draw(st.sampled_from([None, True, False])))
    return draw(yaml_documents(st.one_of(st.just(content), json_values())))


class SweepFilesTest(FuzzTest):
    def use(self, content: bytes):
        """Reads and checks a file; in one that nothing is wrong with, a trial can be proposed, and a command made."""
        sweep = self.outcome(read_sweep, str(self.write("sweep.yaml", content)))
        if isinstance(sweep, UserError):
            return
        found = self.outcome(check_sweep, sweep)
        assert all(finding.message.isprintable() or finding.message for finding in found)
        assert all(1 <= finding.line <= content.count(b"\n") + 2 for finding in found)
        if any(finding.level == "error" or finding.needs_server for finding in found):
            return
        plan = self.outcome(plan_of, sweep, 1)
        if isinstance(plan, UserError):
            return
        wanted = plan.search
        values = self.outcome(first_values, wanted)
        if not isinstance(values, UserError):
            given = trial_parameters(wanted.parameters, values)
            words = self.outcome(command_words, plan.command, given, plan.program, "file.json", {})
            assert isinstance(words, UserError) or all(isinstance(word, str) for word in words)

    @fuzzed(0.05, inputs_a_draw=4)
    @given(st.data(), SEEDS)
    def test_sweep_files(self, data, seed):
        text = data.draw(sweep_texts()).encode("utf-8", "surrogatepass")
        for changed in mutations(text, seed, 3):
            self.use(changed)

    @parameterized.parameters(*YAML_TAGS, *YAML_ODDITIES)
    @pytest.mark.slow
    def test_sweeps_that_hurt(self, text):
        start = "method: grid\nprogram: fine_tune_t5.py\nparameters:\n"
        for table in (
            text,
            f"method: {text}\n",
            f"{start}  seed: {text}\n",
            f"{start}  seed: {{value: {text}}}\n",
            f"? {text}\n: {text}\n",
        ):
            self.use(table.encode("utf-8", "surrogatepass"))


def first_values(wanted) -> dict:
    """What a sweep's first trial is given, in Optuna's words."""
    if wanted.method == "grid":
        return grid_of(wanted.parameters)[0]
    return propose([], wanted.goal, wanted.method, "tpe", 0, searched(wanted.parameters))


FLAGS = {kind: [name for name in SuiteArgumentParser(arguments).flag_names()] for kind, arguments in ARGUMENTS.items()}


@st.composite
def flag_names(draw, kind):
    """A flag of the script, or something like one."""
    name = draw(st.sampled_from(FLAGS[kind]))
    others = [name.replace("_", "-"), name[:-1], name + "x", "config", "local_rank", "_wandb", ""]
    return draw(st.sampled_from([name] * 6 + others))


def flag_values():
    """What may stand behind a flag."""
    words = "1 0 0.5 1e-5 True False None no steps epoch best a=1 { [] adamw constant none auto cpu 1,2 x.json".split()
    likely = st.sampled_from([*words, '{"a": 1}', "full_shard auto_wrap"])
    odd = st.sampled_from(["1" * 5000, "0x10", "1_000", "\uff11\uff12", "1e400", "-1e400"])
    return st.one_of(likely, likely, st.integers(-3, 300).map(str), st.floats().map(str), odd, texts())


@st.composite
def command_lines(draw, kind):
    """Flags with values, glued and loose, and stray words."""
    argv = []
    for _ in range(draw(st.integers(1, 4))):
        dashes = draw(st.sampled_from(["--"] * 12 + ["-", "", "---"]))
        flag, value = dashes + draw(flag_names(kind)), draw(flag_values())
        form = draw(st.sampled_from(["=", "=", " ", " ", "alone", "list"]))
        argv += {"=": [f"{flag}={value}"], " ": [flag, value], "alone": [flag], "list": [flag, value, value]}[form]
    return argv


class ArgumentsTest(FuzzTest):
    def parse(self, kind, argv):
        if any(token in ("-h", "--help") for token in argv):
            return
        found = self.outcome(parse_arguments, ARGUMENTS[kind], argv)
        assert isinstance(found, UserError) or len(found) == len(ARGUMENTS[kind])

    @fuzzed(0.05)
    @given(st.data(), st.sampled_from(sorted(ARGUMENTS)))
    def test_command_lines(self, data, kind):
        FuzzTest.inputs += 1
        self.parse(kind, [*data.draw(command_lines(kind)), "--use_cpu"])

    @fuzzed(0.02, inputs_a_draw=4)
    @given(st.data(), st.sampled_from(sorted(ARGUMENTS)), SEEDS)
    def test_configuration_files(self, data, kind, seed):
        values = st.one_of(flag_values(), json_values(), st.lists(flag_values(), max_size=3))
        tables = st.dictionaries(flag_names(kind), values, max_size=4)
        text = data.draw(yaml_documents(st.one_of(tables, tables, tables, json_values())))
        for changed in mutations(text.encode("utf-8", "surrogatepass"), seed, 3):
            self.parse(kind, [str(self.write("run.yaml", changed)), "--use_cpu"])


ALLOWED = st.sampled_from([None, "seed", "seed,max_steps", "data", "nope", "../x"])
RUN_SETTINGS = st.just({"seed": 1, "max_steps": 5}) | st.dictionaries(
    st.sampled_from(["seed", "max_steps", "x"]), json_values()
)
MANIFESTS = st.fixed_dictionaries(
    {"settings": RUN_SETTINGS | json_values(), "run_id": st.just("5f3a9c01") | json_values()},
    optional={key: json_values() for key in ("status", "fingerprint", "changes", "restarts", "versions", "commit")},
)


FILE_NAMES = st.one_of(
    st.sampled_from(["config.json", "../x", "/etc/passwd", "a/../../x", "", ".", "a\x00", "checkpoint.json"]), texts()
)
RECORDS = st.fixed_dictionaries({"size": st.integers(-1, 3), "sha256": st.sampled_from([EMPTY_OBJECT, "0" * 64, ""])})
CHECKPOINT_MANIFESTS = st.fixed_dictionaries(
    {
        "format": st.just(1),
        "step": st.one_of(st.just(2), json_values()),
        "run_id": st.one_of(texts(), json_values()),
        "world_size": st.one_of(st.just(1), json_values()),
        "files": st.dictionaries(FILE_NAMES, st.one_of(RECORDS, RECORDS, json_values()), max_size=2) | json_values(),
        "details": st.one_of(st.just({}), json_values()),
    }
)
INDEXES = st.fixed_dictionaries({"weight_map": st.dictionaries(texts(), FILE_NAMES | json_values()) | json_values()})
COUNTS = st.dictionaries(
    st.sampled_from(["train", "validation"]),
    json_values() | st.fixed_dictionaries({"tokens": st.integers(-1, 2), "documents": st.integers(-1, 2)}),
)
SHARDS = st.fixed_dictionaries(
    {
        "name": FILE_NAMES | json_values(),
        "splits": COUNTS,
        "files": st.dictionaries(FILE_NAMES, RECORDS | json_values()) | json_values(),
    }
)
CORPORA = st.fixed_dictionaries(
    {"format": st.just(FORMAT), "version": st.just(VERSION)},
    optional={
        "splits": COUNTS | json_values(),
        "shards": st.lists(SHARDS, max_size=2) | json_values(),
        "settings": st.just({"split_sentences": False}) | json_values(),
        "dtype": st.just("uint16") | json_values(),
    },
)


class ManifestsTest(FuzzTest):
    @fuzzed(0.01, inputs_a_draw=4)
    @given(st.one_of(MANIFESTS, MANIFESTS, json_values()).map(encoded), st.booleans(), st.booleans(), ALLOWED, SEEDS)
    def test_run_manifests(self, content, extend, need_new, allowed, seed):
        run = self.folder / "run"
        run.mkdir(exist_ok=True)
        for changed in mutations(content, seed, 3):
            self.write("run/manifest.json", changed)
            with mock.patch("t5suite.runs.directory.git_commit", return_value=None):
                self.outcome(open_run, run, {"seed": 1, "max_steps": 5}, [], True, need_new, extend, allowed)

    @fuzzed(0.02, inputs_a_draw=4)
    @given(st.one_of(CHECKPOINT_MANIFESTS, CHECKPOINT_MANIFESTS, json_values()), st.booleans(), SEEDS)
    def test_checkpoint_manifests(self, content, signed, seed):
        checkpoint = self.folder / "checkpoint-2"
        checkpoint.mkdir(exist_ok=True)
        (checkpoint / "config.json").write_text("{}")
        if signed and isinstance(content, dict):
            canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
            content = {**content, "sha256": hashlib.sha256(canonical.encode()).hexdigest()}
        for changed in mutations(encoded(content), seed, 3):
            self.write("checkpoint-2/checkpoint.json", changed)
            found = self.outcome(verify, checkpoint)
            assert isinstance(found, CheckpointError) or set(found.files) <= {"config.json"}
            self.outcome(find_checkpoint, self.folder, "auto")

    @fuzzed(0.01, inputs_a_draw=4)
    @given(st.one_of(INDEXES, INDEXES, json_values()).map(encoded), SEEDS)
    def test_indexes_of_weights(self, content, seed):
        for changed in mutations(content, seed, 3):
            self.outcome(read_weights, self.write("model.safetensors.index.json", changed))

    @fuzzed(0.01, inputs_a_draw=4)
    @given(st.one_of(CORPORA, CORPORA, json_values()).map(encoded), SEEDS)
    def test_corpora(self, content, seed):
        for changed in mutations(content, seed, 3):
            self.write("corpus.json", changed)
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
        with self.assertRaisesRegex(DataError, message):
            load_task(benchmark, name).score([row], ["a"])

    @parameterized.parameters(
        {"formatter": []}, {"formatter": 3}, {"target": []}, {"postprocess": {}}, {"metric_functions": []}, {"metric_functions": {"accuracy": ["f1"]}},
        {"group_by": 5}, {"rows_of": {}}, {"hub_path": 5}, {"num_examples": 5}, {"splits": {"train": ""}}, {"splits": {"train": "a\0b"}},
    )  # fmt: skip
    def test_entries(self, **change):
        path = self.write("tasks.yaml", json.dumps({"mine": {"task": {**GOOD_ENTRY, **change}}}).encode())
        with self.assertRaises(ConfigError):
            load_task("mine", "task", str(path))

    @parameterized.parameters(
        ("seed: 1\nseed: 2\n", "run.yaml:2: 'seed' stands there for the second time"),
        ("learning_rate: 1\nlearning-rate: 2\n", "run.yaml:2: 'learning-rate' gives --learning_rate for the second time"),
        ("accelerator_config: nope.json\n", "--accelerator_config 'nope.json': No such file"),
        ("eval_strategy: steps\neval_steps: .inf\n", "run.yaml:2: --eval_steps inf: must be .* finite"),
        ("eval_only: []\n", "run.yaml:1: --eval_only: an empty list"),
        ("optim_args: {a: 2001-01-01}\n", "run.yaml:1: --optim_args: .* JSON has no form for"),
        ("x: &a [*a]\n", "run.yaml:1: the value holds itself"),
        ("seed: " + "1" * 5000, "run.yaml:1: a number of 5000 digits"),
        ('seed: "\\ud800"\n', "run.yaml:1: .* half a surrogate pair"),
        ("&a a: &b [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" +
         "".join(f"b{i}: &c{i} [{', '.join(['*' + ('b' if i == 0 else f'c{i - 1}')] * 10)}]\n" for i in range(6)), "more than 100000 values"),
    )  # fmt: skip
    def test_configuration_files(self, text, message):
        with self.assertRaisesRegex(ConfigError, message):
            parse_arguments(FINE_TUNING_ARGUMENTS, [str(self.write("run.yaml", text.encode())), "--use_cpu"])

    def test_manifests(self):
        index = self.write("model.safetensors.index.json", b'{"weight_map": null}')
        self.assertIsInstance(self.outcome(read_weights, index), ConfigError)
        self.write("corpus.json", json.dumps({"format": FORMAT, "version": VERSION}).encode())
        self.assertIsInstance(self.outcome(TokenStore.open, self.folder), DataError)
        (self.folder / "run").mkdir()
        for content in (
            b'{"run_id": "a", "settings": {"max_steps": [null]}}',
            b'{"run_id": "a", "settings": {}, "versions": []}',
        ):
            self.write("run/manifest.json", content)
            with mock.patch("t5suite.runs.directory.git_commit", return_value=None):
                self.outcome(open_run, self.folder / "run", {"max_steps": 5}, extend=True)


def tearDownModule():
    print(f"\nfuzzed: {FuzzTest.inputs} inputs")


if __name__ == "__main__":
    absltest.main()
