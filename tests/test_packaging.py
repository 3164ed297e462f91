"""The package has every folder and bundled file, installs and runs elsewhere; what describes it is in step with it."""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path
from unittest import mock

import pytest
import yaml
from absl.testing import parameterized
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fine_tune_t5
import t5suite
from t5suite.testing import bundled_model, exits_with, run_cli
from tools.versions import REQUIREMENTS

ROOT = Path(__file__).parent.parent
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = SETUP["project"]["optional-dependencies"]
# In a checkout at its root; in the wheel inside the package.
FOLDERS = ("accelerate_configs", "clusters", "deepspeed_configs", "recipes", "slurm", "sweeps")
PYTHONS = ["3.11", "3.12", "3.13"]
LARGEST_FILE, LARGEST_WHEEL = 512 * 1024, 4 * 1024 * 1024


class PackagingTest(parameterized.TestCase):
    def test_every_folder_is_a_listed_package(self):
        files = [path for path in (ROOT / "t5suite").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        expected = {".".join(path.parent.relative_to(ROOT).parts) for path in files}
        expected |= {f"t5suite.{name}" for name in FOLDERS}
        self.assertEqual(set(SETUP["tool"]["setuptools"]["packages"]), expected)

    def test_every_bundled_file_matches_a_pattern(self):
        patterns = SETUP["tool"]["setuptools"]["package-data"]["*"]
        files = [
            path for folder in (ROOT / "t5suite", *(ROOT / name for name in FOLDERS)) for path in folder.rglob("*")
        ]
        for path in files:
            if path.is_file() and path.suffix != ".py" and path.parent.name != "__pycache__":
                self.assertTrue(any(path.match(pattern) for pattern in patterns), path)

    def test_the_source_archive_s_list_names_what_there_is_and_all_of_it(self):
        """`setuptools` itself adds the package, its build files and the README."""
        lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text().splitlines()]
        listed = {name for words in lines if words and words[0] in ("include", "graft") for name in words[1:]}
        self.assertEmpty([name for name in listed if not (ROOT / name).exists()])
        added = {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "t5suite", *FOLDERS}
        added |= {f"{name}.py" for name in SETUP["tool"]["setuptools"]["py-modules"]}
        tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
        tops = {name.split("/")[0] for name in tracked}
        self.assertEmpty(tops - listed - added - {".gitignore"})

    def test_type_checkers_are_told_of_the_annotations(self):
        """PEP 561."""
        self.assertTrue((ROOT / "t5suite/py.typed").is_file())
        self.assertIn("py.typed", SETUP["tool"]["setuptools"]["package-data"]["*"])


class SurroundingsTest(parameterized.TestCase):
    """The files that other programs read: conda, pre-commit, a forge's runners, citation tools."""

    def test_the_conda_environment_is_that_of_the_project(self):
        environment = yaml.safe_load((ROOT / "conda_environment.yml").read_text())
        names = [part for part in environment["dependencies"] if isinstance(part, str)]
        flags = next(part["pip"] for part in environment["dependencies"] if isinstance(part, dict))
        self.assertEqual(environment["name"], "ml_training")
        self.assertIn(f"python={PYTHONS[0]}", names)
        self.assertIn("-c constraints.txt", flags)
        extras = re.fullmatch(r"-e \.\[(.+)\]", flags[-1])[1].split(",")
        self.assertContainsSubset(extras, EXTRAS)
        self.assertContainsSubset({"dev", "tracking", "deepspeed", "peft"}, extras)
        # DeepSpeed compiles its operations: with conda's own compiler.
        self.assertContainsSubset({"cxx-compiler", "ninja"}, names)

    def test_what_the_tests_need_is_pinned_within_the_bounds(self):
        pins = {}
        for line in (ROOT / "constraints.txt").read_text().splitlines():
            pin = Requirement(line.partition("#")[0] or "none==0")
            if pin.marker is None or pin.marker.evaluate():
                pins[canonicalize_name(pin.name)] = next(iter(pin.specifier)).version
        for text in SETUP["project"]["dependencies"] + EXTRAS["dev"]:
            needed = Requirement(text)
            self.assertIn(pins[canonicalize_name(needed.name)], needed.specifier, text)

    def test_the_tests_extra_has_the_bounds_of_the_others(self):
        bounds = {Requirement(text).name: text for text in EXTRAS["dev"]}
        for texts in EXTRAS.values():
            for text in texts:
                self.assertEqual(bounds.get(Requirement(text).name, text), text)

    def test_other_versions_are_tested_every_week(self):
        workflow = yaml.safe_load((ROOT / ".github/workflows/versions.yml").read_text())
        # YAML 1.1 reads the key `on` as true.
        self.assertIn("schedule", workflow[True])
        (job,) = workflow["jobs"].values()
        self.assertEqual(job["strategy"]["matrix"]["versions"], list(REQUIREMENTS))
        self.assertIn("make test-${{ matrix.versions }} PYTHON=python", [step.get("run") for step in job["steps"]])

    def test_python_versions_are_the_same_everywhere(self):
        classified = [c.split(":: ")[-1] for c in SETUP["project"]["classifiers"] if re.search(r":: 3\.\d+$", c)]
        jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
        self.assertEqual(classified, PYTHONS)
        self.assertEqual(jobs["test"]["strategy"]["matrix"]["python"], PYTHONS)
        self.assertEqual(SETUP["project"]["requires-python"], f">={PYTHONS[0]}")


@contextlib.contextmanager
def without(name):
    """While a package cannot be imported. What else is imported meanwhile stays: compiled parts load only once."""
    hidden = {part: sys.modules.pop(part) for part in list(sys.modules) if f"{part}.".startswith(f"{name}.")}
    sys.modules[name] = None
    try:
        yield
    finally:
        del sys.modules[name]
        sys.modules.update(hidden)


def shards_folder() -> Path:
    """A checkpoint of DeepSpeed's, as far as the library is asked for."""
    folder = Path(shutil.copytree(bundled_model(), Path(tempfile.mkdtemp()) / "checkpoint"))
    (folder / "global_step1").mkdir()
    return folder


def command(words: str):
    """A sub-command; OUT stands for a new folder, SHARDS for a checkpoint, MODEL for one without weights, TEXT for a file."""

    def run():
        out = Path(tempfile.mkdtemp())
        (out / "text.txt").write_text("One sentence. Another one.\n")
        places = {"OUT": out / "out", "SHARDS": shards_folder(), "MODEL": bundled_model(), "TEXT": out / "text.txt"}
        run_cli(*(places.get(word, word) for word in words.split()))

    return run


def fine_tune(words: str):
    def run():
        few = "mini.yaml --max_steps 1 --max_train_samples 8 --max_eval_samples 8 --use_cpu --output_dir"
        return fine_tune_t5.main([*few.split(), str(Path(tempfile.mkdtemp()) / "run"), *words.split()])

    return run


EXPORT = "export --model_name_or_path MODEL --output_dir OUT"
# By what is missing: the extra that has it, and a command that needs it.
OPTIONAL = {
    "peft": ("peft", fine_tune("--adapter lora")), "deepspeed": ("deepspeed", fine_tune("--deepspeed zero2")),
    "deepspeed.utils.zero_to_fp32": (
        "deepspeed", command("export --model_name_or_path SHARDS --output_dir OUT")
    ),
    "bitsandbytes": ("quantization", fine_tune("--load_in_8bit")),
    "bitsandbytes.": ("quantization", fine_tune("--optimizer adamw_bnb_8bit")),
    "optuna": ("sweeps", command("sweep mini_sentiment_sweep.yaml --count 1 --sweep_dir OUT")),
    "onnx": ("onnx", command(f"{EXPORT} --format onnx")),
    "onnxscript": ("onnx", command(f"{EXPORT} --format onnx")),
    "onnxruntime": ("onnx", command(f"{EXPORT} --format onnx")),
    "ctranslate2": ("ctranslate2", command(f"{EXPORT} --format ctranslate2")),
    "sentencex": (
        "sentences", command("corpus build --input TEXT --tokenizer_name MODEL --split_sentences --output_dir OUT")
    ),
    "gradio": ("web", command("predict --model_name_or_path MODEL --web")),
}  # fmt: skip

# Trackers, whose absence stops nothing, and the extra that has each.
TRACKERS = {"wandb": "tracking", "tensorboard": "tracking", "aim": "aim", "trackio": "trackio"}


class OptionalTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.dict(os.environ))  # a run with DeepSpeed says there that it is alone

    @parameterized.named_parameters((missing, missing, *how) for missing, how in OPTIONAL.items())
    def test_what_is_missing_says_how_to_install_it(self, missing, extra, need):
        with without(missing.rstrip(".")), exits_with(78, re.escape(f"pip install 't5suite[{extra}]'")) as failure:
            need()
        self.assertLen(failure.message.splitlines(), 1)
        self.assertIn(extra, EXTRAS)

    @parameterized.parameters(
        ("wandb", "tracking"), ("tensorboard", "tracking"), ("aim", "aim"), ("trackio", "trackio")
    )
    @pytest.mark.quick_cases(1)
    def test_a_missing_tracker_says_how_to_install_it_and_training_goes_on(self, missing, extra):
        with without(missing), contextlib.redirect_stderr(io.StringIO()) as errors:
            results = fine_tune(f"--report_to {missing}")()
        lines = errors.getvalue().splitlines()
        self.assertLen([line for line in lines if f"pip install 't5suite[{extra}]'" in line], 1)
        self.assertIn("accuracy", results["tasks"]["sentiment"])
        self.assertIn(extra, EXTRAS)


@pytest.mark.slow
class WheelTest(parameterized.TestCase):
    """The source archive, the wheel that is built from it, and that wheel where nothing else of the project is."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = Path(tempfile.mkdtemp())
        tree = cls.folder / "tree"
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, tracked.split("\0")):
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        cls.archive = cls.build(tree, "sdist")
        with tarfile.open(cls.archive) as archive:
            archive.extractall(cls.folder / "source", filter="data")
        cls.wheel = cls.build(next((cls.folder / "source").iterdir()), "wheel")

    @classmethod
    def build(cls, tree, kind):
        call = f"from setuptools import build_meta; build_meta.build_{kind}({str(cls.folder)!r})"
        subprocess.run([sys.executable, "-c", call], cwd=tree, check=True, capture_output=True)
        return next(cls.folder.glob("*.whl" if kind == "wheel" else "*.tar.gz"))

    def test_the_wheel_has_the_package_and_nothing_else(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            files = {info.filename: info.file_size for info in wheel.infolist()}
            about = next(name for name in files if name.endswith("METADATA"))
            metadata = wheel.read(about).decode()
        tops = {name.split("/")[0] for name in files}
        modules = {top for top in tops if "dist-info" not in top}
        self.assertEqual(modules, {"t5suite", "fine_tune_t5.py", "pre_train_t5.py"})
        self.assertLess(max(files.values()), LARGEST_FILE)
        self.assertLess(self.wheel.stat().st_size, LARGEST_WHEEL)
        self.assertIn(f"Version: {t5suite.__version__}\n", metadata)
        self.assertIn("License-Expression: Apache-2.0", metadata)
        self.assertIn("# t5suite", metadata)

    def test_it_runs_where_nothing_else_of_the_project_is(self):
        home = self.folder / "elsewhere"
        home.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home / "venv")], check=True)
        packages = next((home / "venv/lib").glob("python3*/site-packages"))
        with zipfile.ZipFile(self.wheel) as wheel:
            wheel.extractall(packages)
        self.borrow_dependencies(packages)
        run = [str(home / "venv/bin/python")]
        self.assertIn(str(packages), self.call(home, *run, "-c", "import t5suite; print(t5suite.__file__)"))
        command = [*run, "-m", "t5suite"]
        self.assertIn(t5suite.__version__, self.call(home, *command, "--version"))
        self.assertIn("sentiment", self.call(home, *command, "tasks", "--benchmark", "mini"))
        (home / "rows.jsonl").write_text('{"sentence": "Good.", "label": 1}\n')
        previewed = self.call(
            home, *command, "preview", "--benchmark", "mini", "--dataset_name", "sentiment", "--rows", "rows.jsonl",
            "--split", "validation", "--json",
        )  # fmt: skip
        self.assertIn('"targets": "positive"', previewed)
        for name in FOLDERS:
            self.assertNotEmpty(list((packages / "t5suite" / name).iterdir()))
        self.call(
            home, *run, "-m", "fine_tune_t5", "mini.yaml", "--max_steps", "2", "--max_train_samples", "16",
            "--max_eval_samples", "8", "--per_device_train_batch_size", "8", "--use_cpu", "--output_dir", "run",
        )  # fmt: skip
        self.assertTrue((home / "run/results.json").is_file())
        with self.assertRaises(AssertionError) as caught:
            self.call(home, *command, "sweep", "mini_sentiment_sweep.yaml", "--count", "1")
        self.assertIn("pip install 't5suite[sweeps]'", str(caught.exception))

    def borrow_dependencies(self, packages):
        """The core dependencies of the environment that runs the tests, and not what only extras bring."""
        optional = {name.rstrip(".").split(".")[0] for name in (*OPTIONAL, *TRACKERS)}
        own = {"t5suite", "fine_tune_t5", "pre_train_t5"}
        for folder in {Path(path) for path in sys.path if path.endswith("site-packages")}:
            for path in folder.iterdir():
                name = path.name.split("-")[0].split(".")[0]
                taken = name in optional | own or path.name.startswith("__editable__") or path.suffix == ".pth"
                if not taken and not (packages / path.name).exists():
                    with contextlib.suppress(FileExistsError):
                        (packages / path.name).symlink_to(path)

    def call(self, home, *command):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "T5SUITE"))}
        done = subprocess.run(
            command, cwd=home, env={**environment, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=900
        )
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return done.stdout
