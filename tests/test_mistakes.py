"""What new users get wrong: each is made for real, and answered by one message, the right exit code and a cure; what is
wrong on a command line is said before torch is imported."""

import contextlib
import io
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from unittest import mock

import pyarrow
import pyarrow.parquet
import pytest
import torch
from absl.testing import parameterized

import fine_tune_t5
import pre_train_t5
from docs.builders.mistakes_page import MISTAKES, Mistake
from t5suite import DATASET_VALS
from t5suite.testing import exits_with, run_cli, tiny_tokenizer

ROOT = Path(__file__).resolve().parent.parent
ALL = [entry for entries in MISTAKES.values() for entry in entries]
# So that a mistake that is not noticed ends soon.
TINY = "--max_steps 1 --use_cpu --per_device_train_batch_size 4 --max_eval_samples 4 --disable_tqdm True"
TINY_FINE_TUNING = f"{TINY} --max_train_samples 8"


def named(entries):
    return [(re.sub(r"\W+", "_", entry.title), entry) for entry in entries]


def parquet(**columns) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


FINE, PRE = "fine_tune_t5.py", "pre_train_t5.py"
T5 = '"model_type": "t5", "d_model": 64'
# (command, exit code, what the message names, files); a file may be made by a function.
BAD_INPUTS = [
    # Numbers
    (f"{FINE} --eval_steps 0", 78, "--eval_steps 0: must be above 0", {}),
    (f"{FINE} --max_steps 99999999999999999999", 78, "--max_steps 99999999999999999999: .* below 2\\^63", {}),
    (f"{FINE} --learning_rate inf", 78, "--learning_rate inf: must be .*finite", {}),
    (f"{FINE} --learning_rate -0.001", 78, "--learning_rate -0.001: must be at least 0", {}),
    (f"{FINE} --max_grad_norm nan", 78, "--max_grad_norm nan: ", {}),
    (f"{FINE} --adam_beta2 1", 78, "--adam_beta2 1: must be at least 0 and below 1", {}),
    (f"{FINE} --dataloader_num_workers 10000", 78, "--dataloader_num_workers 10000: .*at most", {}),
    (f"{FINE} --seed 4294967296", 78, "--seed 4294967296: ", {}),
    (f"{FINE} --validation_split nan", 78, "--validation_split nan: ", {}),
    (f"{FINE} --adapter lora --lora_alpha 0", 78, "--lora_alpha 0: ", {}),
    (f"{FINE} run.yaml", 78, "run.yaml:2: --max_steps -5: must be at least 1", {"run.yaml": "seed: 1\nmax_steps: -5\n"}),
    (f"{PRE} --corpus_weights 1 -1 --train_file a b", 78, "--corpus_weights -1: must be above 0", {}),
    (f"{PRE} --mean_span_length 0.5", 78, "--mean_span_length 0.5: must be at least 1", {}),
    (f"{PRE} --streaming --train_file a.jsonl --max_steps -1 --dry_run", 78, "--max_steps -1: a stream has no end", {}),
    (f"{PRE} --streaming --train_file a.jsonl --max_steps 9 --save_strategy epoch --dry_run", 78,
     "--save_strategy epoch: a stream is one epoch", {}),
    (f"{PRE} --streaming --train_file a.jsonl --max_steps 9 --eval_strategy epoch --dry_run", 78,
     "--eval_strategy epoch: a stream is one epoch", {}),
    (f"{PRE} --streaming --train_file a.jsonl --max_steps 9 --logging_strategy epoch --dry_run", 78,
     "give --logging_strategy steps --logging_steps N", {}),
    (f"{PRE} --streaming --train_corpus c --max_steps 9", 78, "--streaming with --train_corpus: a built corpus", {}),
    (f"{PRE} --load_in_8bit", 78, "--load_in_8bit: pre-training trains the matrices", {}),
    (f"{PRE} --load_in_4bit", 78, "--load_in_4bit: pre-training trains the matrices", {}),
    (f"{FINE} --save_on_each_node True", 78, "--save_on_each_node True: all nodes share", {}),
    # Flags, and names in files, that stand twice
    (f"{FINE} --seed=1 ++seed=2", 78, "--seed is given twice: 1 and 2", {}),
    (f"{FINE} --load_best_model_at_end --no_load_best_model_at_end", 78, "given twice: .* and --no_load_best", {}),
    (f"{PRE} --train_file a b --train_file c", 78, "--train_file is given twice: a b and c", {}),
    (f"{FINE} run.json", 78, "run.json:3: 'seed' .* second time", {"run.json": '{"seed": 1,\n "bf16": true,\n "seed": 2}'}),
    (f"{FINE} run.yaml", 78, "run.yaml:2: 'seed' .* second time", {"run.yaml": "seed: 1\nseed: 2\n"}),
    (f"{FINE} --deepspeed ds.json", 78, "ds.json:2: 'bf16' .*second", {"ds.json": '{"bf16": {},\n\t"bf16": {}}'}),
    (f"""{FINE} --lr_scheduler_kwargs '{{"a": 1, "a": 2}}'""", 78, "--lr_scheduler_kwargs: .*'a' .*second", {}),
    ("t5suite tasks --task_file t.yaml", 78, "t.yaml:3: 't' .*second", {"t.yaml": "mine:\n  t: {}\n  t: {}\n"}),
    # Numbers that YAML reads otherwise
    (f"{FINE} run.yaml", 78, "run.yaml:2: 010: .*octal.* quote it", {"run.yaml": "bf16: false\nseed: 010\n"}),
    (f"{FINE} run.yaml", 78, "run.yaml:1: 10:12: .*base 60", {"run.yaml": "profile: 10:12\n"}),
    ("t5suite sweep s.yaml --count 1", 78, "s.yaml:1: 010: ", {"s.yaml": "parameters: {seed: {value: 010}}\n"}),
    # Settings of optimizers and schedules
    (f"{FINE} --optim_args foo=1", 78, "--optim_args foo: --optim adamw_torch_fused reads no such settings, but --adam_beta1", {}),
    (f"{FINE} --optim sgd --optim_args momentumm=1", 78, "sgd .*'momentumm'; did you mean momentum", {}),
    (f"{FINE} --optimizer adafactor --optim_args eps2=1", 78, "adafactor has no setting 'eps2'; did you mean eps", {}),
    (f"{FINE} --lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs min_lr=x", 78, "min_lr=x: expected float", {}),
    # Models
    (f"{FINE} --config_overrides num_layers=many", 78, "num_layers=many", {}),
    (f"{FINE} --config_name c.json", 78, "c.json holds a list", {"c.json": "[]"}),
    (f"{FINE} --config_name c.json", 78, "c.json.*num_layers is 'many'; give a whole number", {"c.json": f'{{{T5}, "num_layers": "many"}}'}),
    (f"{FINE} --model_name_or_path m", 78, "m/generation_config.json:1: not JSON", {"m/config.json": f"{{{T5}}}", "m/generation_config.json": "{"}),
    (f"{FINE} --model_name_or_path m", 78, "num_beams is 'four'", {"m/config.json": f"{{{T5}}}", "m/generation_config.json": '{"num_beams": "four"}'}),
    (f"{FINE} --tokenizer_name m", 78, "m/tokenizer_config.json holds a str", {"m/tokenizer_config.json": '"x"'}),
    (f"{FINE} --model_name_or_path m", 78, "m/task.json is not a task card", {"m/task.json": "{", "m/config.json": "{}"}),
    ("t5suite predict --model_name_or_path m --input r", 78, "m/config.json holds", {"m/config.json": "[]", "r": "x\n"}),
    # Rows
    (f"{FINE} --data_format parquet --train_file a.parquet --validation_file a.parquet --text_column a --target_column b", 65,
     "a.parquet row 1: column 'a' holds b'x'", {"a.parquet": lambda: parquet(a=[b"x"] * 32, b=["y"] * 32)}),
    (f"{PRE} --train_file a.parquet", 65, "a.parquet:1: column 'text' holds b'x'",
     {"a.parquet": lambda: parquet(text=[b"x"] * 32)}),
    (f"{PRE} --train_file a.jsonl", 65, "a.jsonl:2: not JSON", {"a.jsonl": '{"text": "a"}\n{"text\n'}),
]  # fmt: skip


class MistakesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp())
        self.enter_context(contextlib.chdir(self.folder))
        self.enter_context(mock.patch.dict(os.environ, HF_HUB_OFFLINE="1"))
        os.environ.pop("T5SUITE_DATA_DIR", None)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    @parameterized.named_parameters(*named(entry for entry in ALL if not entry.slow))
    def test_it_is_answered(self, entry):
        self.check(entry)

    @parameterized.named_parameters(*named(entry for entry in ALL if entry.slow))
    @pytest.mark.slow
    def test_it_is_answered_once_a_model_is_made(self, entry):
        self.check(entry)

    @parameterized.parameters(*BAD_INPUTS)
    def test_bad_input_is_refused_and_leaves_nothing(self, command, code, message, files):
        contents = {name: content() if callable(content) else content for name, content in files.items()}
        self.check(Mistake("", command, re.compile(message), "", code, contents))

    def check(self, entry: Mistake):
        for name, content in entry.files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with contextlib.ExitStack() as stack:
            stack.enter_context(PREPARATIONS[entry.needs](self))
            if entry.without:
                parts = [name for name in sys.modules if name.partition(".")[0] in entry.without]
                stack.enter_context(mock.patch.dict(sys.modules, dict.fromkeys([*entry.without, *parts])))
            before = sorted(map(str, self.folder.rglob("*")))
            # Whether there is a network is asked once in a process, maybe by an earlier test.
            is_apart = ">" in entry.command or "hub" in str(entry.message)
            code, text = in_a_shell(entry.command) if is_apart else in_process(entry.command)
        self.assertNotIn("Traceback", text)
        self.assertEqual(code, entry.code, text)
        pattern = entry.message
        if isinstance(pattern, str):  # `<word>` stands for anything
            pattern = re.sub(r"<\w+>", ".+", re.escape(pattern).replace(r"\<", "<").replace(r"\>", ">"))
            pattern = f"^error: {pattern}$" if entry.code else pattern
        if entry.code == 0:
            self.assertRegex(text, pattern)
        else:
            (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
            self.assertRegex(line, pattern)
            self.assertEqual(sorted(map(str, self.folder.rglob("*"))), before, "something is left behind")


def words_of(command: str) -> list[str]:
    """The words of a command, with flags by which a mistake that is not noticed ends soon."""
    words = shlex.split(command)
    tiny = {FINE: TINY_FINE_TUNING, PRE: TINY}.get(words[0], "")
    flags = [word for word in words if word.startswith("--")]
    for flag, value in re.findall(r"(--\w+)((?: [^-\s]\S*)?)", tiny):
        # After the words of the mistake, so that a file stays the first.
        words += [] if flag in flags else [flag, *value.split()]
    return words + (["--output_dir", "new"] if tiny and "--output_dir" not in flags else [])


def in_process(command: str) -> tuple[int, str]:
    """`(exit code, what a command shows)`, called as its program calls it."""
    program, *words = words_of(command)
    scripts = {FINE: fine_tune_t5.main, PRE: pre_train_t5.main}
    shown = io.StringIO()
    handler, logger = logging.StreamHandler(shown), logging.getLogger("t5suite")
    logger.addHandler(handler)
    code = 0
    try:
        with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            scripts[program](words) if program in scripts else run_cli(*words)
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None and isinstance(error, OSError):  # the program itself puts it into words
            return in_a_shell(command)
        if code is None:
            raise
        shown.write(f"\nerror: {error}\n")
    finally:
        logger.removeHandler(handler)
    return code, shown.getvalue()


def in_a_shell(command: str) -> tuple[int, str]:
    """As `in_process`, in a process of its own; a command with a redirection stays as it is."""
    line = command if ">" in command else shlex.join(words_of(command))
    program, rest = line.split(maxsplit=1)
    place = "-m t5suite" if program == "t5suite" else shlex.quote(str(ROOT / program))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = f"{shlex.quote(sys.executable)} {place} {rest}"
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


# What a mistake needs beside files; each stands until the command has run.


@contextlib.contextmanager
def no_gpu(test):
    if torch.cuda.is_available():
        test.skipTest("this machine has a GPU")
    yield


@contextlib.contextmanager
def run(test):
    code, text = in_process("fine_tune_t5.py --output_dir out")
    test.assertEqual(code, 0, text)
    yield


@contextlib.contextmanager
def tokenizer(test, num_more=0):
    made = tiny_tokenizer()
    made.add_tokens([f"<new_{i}>" for i in range(num_more)])
    made.save_pretrained(test.folder / "tokenizer")
    yield


@contextlib.contextmanager
def run_and_tokenizer(test):
    """A run in `out`, and a tokenizer of more pieces than its model has rows."""
    with tokenizer(test, num_more=200), run(test):
        yield


@contextlib.contextmanager
def torn(test):
    """A checkpoint of it whose weights have changed on the disk."""
    with run(test):
        (weights,) = (test.folder / "out" / "checkpoint-1").glob("model*.safetensors")
        content = bytearray(weights.read_bytes())
        content[len(content) // 2] ^= 1
        weights.write_bytes(content)
        yield


@contextlib.contextmanager
def owner(test):
    """A process that holds the lock of a run in `out`."""
    code = "import fcntl, os, sys; os.mkdir('out'); lock = open('out/.lock', 'a'); fcntl.lockf(lock, fcntl.LOCK_EX); "
    code += "print(1, flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        test.assertEqual(process.stdout.readline(), "1\n")
        yield
        process.stdin.close()


PREPARATIONS = {"": contextlib.nullcontext, "no GPU": no_gpu, "run": run, "tokenizer": tokenizer,
                "run and tokenizer": run_and_tokenizer, "torn": torn, "owner": owner}  # fmt: skip


PREDICT, EXPORT = "predict --model_name_or_path run", "export --model_name_or_path run --output_dir"
SST2 = "--benchmark glue --dataset_name sst2"
ROWS, CORPUS = f"{PREDICT} --input rows.jsonl", "corpus build --tokenizer_name run"
# {command: (exit code, what the message says)}; in a folder with `run`, `plain`, `full`, `file` and `rows.jsonl`.
REFUSALS = {
    f"{ROWS} --labels --scores": (78, "--scores has no effect: labels are chosen"),
    f"{ROWS} --labels good": (78, "--labels good: give two different labels"),
    f"{ROWS} --num_return_sequences 4": (78, "needs as many --num_beams"),
    f"{ROWS} --top_p 0.9": (78, "--top_p 0.9 has no effect without --do_sample"),
    f"{ROWS} --dataset_name rte": (78, "unknown task 'rte'"),
    f"{ROWS} --benchmark glue --dataset_name rtee": (78, "did you mean rte?"),
    f"{ROWS} --benchmark glue --dataset_name rte": (65, "rows.jsonl:1: the row has neither"),
    f"{ROWS} --task_file missing.yaml": (78, "no file 'missing.yaml'"),
    f"{ROWS} --output full": (78, "a folder; name the file, such as full/answers.jsonl"),
    f"{ROWS} --output file": (78, "--output file cannot be continued"),
    f"{ROWS} --output file/a.jsonl": (78, "file is a file, and a folder is needed"),
    f"{ROWS} --output rows.jsonl --overwrite": (78, "is the file that is read"),
    "predict --model_name_or_path run/none/x --input rows.jsonl": (78, "run/none/x: no such folder"),
    "predict --model_name_or_path ./rum --input rows.jsonl": (78, "no such folder; did you mean run?"),
    "predict --model_name_or_path full --input rows.jsonl": (78, "full: no model in this folder"),
    "predict --model_name_or_path . --input rows.jsonl": (78, "there are plain, run"),
    "predict --model_name_or_path file --input rows.jsonl": (78, "file: a file; name the folder"),
    f"{EXPORT} new --dtype float64": (78, "unknown precision 'float64'"),
    f"{EXPORT} new --quantize int8": (78, "--quantize has no effect on safetensors"),
    "export --init_checkpoint gone.bin --config_name t5-small --output_dir new": (
        65,
        "gone.bin: no such file or folder",
    ),
    f"preview {SST2} --rows gone.csv": (65, "gone.csv: no such file"),
    f"score {SST2} --rows gone.tsv --predictions rows.jsonl": (65, "gone.tsv: no such file"),
    "summary --config_name t5-3b --batch_size 0": (78, "--batch_size 0: must be at least 1"),
    "summary --config_name t5-3b --deepspeed zero4": (78, "--deepspeed: unknown name 'zero4'; did you mean zero"),
    "corpus show corpus --objective masked_lm": (78, "choose from span_corruption"),
    f"{CORPUS} --input gone.txt --output_dir new": (65, "gone.txt: no such file"),
    f"{CORPUS} --input rows.jsonl --output_dir file/x": (78, "a folder is needed"),
    f"{CORPUS} --input rows.jsonl --output_dir new --num_workers 0": (78, "at least 1"),
}
# Refuses torch, and tries every command of a list that it reads.
WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None
from t5suite import testing
outcomes = []
for command in json.load(sys.stdin):
    try:
        testing.run_cli(*command.split())
        outcomes.append([0, "nothing is said"])
    except Exception as error:  # without an exit code where torch was to be imported: this command alone has failed
        outcomes.append([getattr(error, "exit_code", 1), str(error)])
json.dump(outcomes, sys.stdout)
"""
SENTIMENT_CARD = {
    "format": 1, "benchmark": "mini", "tasks": {"sentiment": DATASET_VALS["mini"]["sentiment"]},
    "max_source_length": 64, "max_target_length": 8, "max_answer_tokens": {}, "family": None,
}  # fmt: skip


def workplace() -> Path:
    """A folder with a run's outside, a folder that is full, a file, and rows."""
    place = Path(tempfile.mkdtemp())
    for folder in ("run", "full"):
        (place / folder).mkdir()
    (place / "full" / "notes.txt").write_text("mine")
    (place / "file").write_text("mine")
    (place / "rows.jsonl").write_text('{"sentence": "good", "label": 1}\n')
    for folder in ("run", "plain"):
        (place / folder).mkdir(exist_ok=True)
        (place / folder / "config.json").write_text('{"model_type": "t5"}')
    (place / "run" / "manifest.json").write_text("{}")
    (place / "run" / "task.json").write_text(json.dumps(SENTIMENT_CARD))
    return place


class RefusalsTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        command = [sys.executable, "-c", WITHOUT_TORCH]
        settings = {"input": json.dumps(list(REFUSALS)), "capture_output": True, "text": True, "timeout": 120}
        done = subprocess.run(command, cwd=workplace(), check=True, **settings)
        cls.outcomes = dict(zip(REFUSALS, json.loads(done.stdout), strict=True))

    @parameterized.parameters(*REFUSALS)
    def test_it_is_refused_where_torch_cannot_be_imported(self, command):
        code, words = REFUSALS[command]
        exit_code, message = self.outcomes[command]
        self.assertEqual((exit_code, words in message), (code, True), message)


class PlacesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.dict(os.environ, HF_HUB_OFFLINE="1"))
        self.place = workplace()
        self.enter_context(contextlib.chdir(self.place))

    def refusal(self, *words) -> str:
        """What is said of a model or place that is not there."""
        try:
            run_cli(*words)
        except ValueError as error:
            return str(error)
        return ""

    def of_the_hub(self, name: str) -> bool:
        """Whether the hub, or its cache, is asked for a model of this name: then no folder is missing."""
        message = self.refusal("predict", "--model_name_or_path", name, "--input", "rows.jsonl", "--use_cpu")
        self.assertIn(name, message)
        return f"{name}: no such folder" not in message

    @parameterized.parameters(
        ("lab-t5-small", True), ("lab/t5-small", True), ("../runs/rte", False), ("./t5-small", False),
        ("/models/t5", False), ("runs/rte/checkpoint-7", False), ("runs/", False),
    )  # fmt: skip
    def test_a_hub_name_has_one_slash_at_most(self, name, is_of_the_hub):
        self.assertEqual(self.of_the_hub(name), is_of_the_hub)

    def test_below_a_folder_of_runs_nothing_is_a_hub_name(self):
        model = self.place / "models" / "t5-small"
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
        self.assertTrue(self.of_the_hub("models/t5-base"))
        with contextlib.chdir(self.place.parent):
            shutil.copy(self.place / "rows.jsonl", "rows.jsonl")
            self.assertFalse(self.of_the_hub(f"{self.place.name}/rum"))

    @parameterized.parameters(
        "config.json", "adapter_config.json", "pytorch_model.bin", "checkpoint-5/x", "global_step5/x"
    )
    def test_any_of_a_models_files_makes_a_model(self, name):
        folder = Path(tempfile.mkdtemp())
        words = ["export", "--model_name_or_path", folder, "--output_dir", folder.parent / f"{folder.name}-exported"]
        with exits_with(78, "no model in this folder"):
            run_cli(*words)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
        self.assertNotIn("no model in this folder", self.refusal(*words))

    def test_one_of_several_processes_does_not_look_for_the_rows(self):
        """Its place may be another machine; the main process says what is missing."""
        words = ["predict", "--model_name_or_path", "run", "--input", "missing.jsonl", "--use_cpu"]
        self.assertIn("missing.jsonl", self.refusal(*words))
        with mock.patch.dict(os.environ, WORLD_SIZE="1"):
            self.assertIn("missing.jsonl", self.refusal(*words))
        with mock.patch.dict(os.environ, WORLD_SIZE="2"):
            self.assertIn("no RANK", self.refusal(*words))

    def test_an_input_that_is_the_output_is_left_as_it_is(self):
        before = Path("rows.jsonl").read_bytes()
        Path("link.jsonl").symlink_to("rows.jsonl")
        argv = "predict --model_name_or_path run --input rows.jsonl --output link.jsonl --overwrite".split()
        with exits_with(78, "is the file that is read"):
            run_cli(*argv)
        self.assertEqual(Path("rows.jsonl").read_bytes(), before)
