"""Commit and diff are those of the code that runs: of a repository that tracks it, and of no other one around it."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from absl.testing import parameterized
from support import folder

import t5suite
from t5suite.base import provenance
from t5suite.base.provenance import LANDMARKS, SCRIPTS, code_changes, code_sha256, git_commit
from t5suite.reports.evaluated_rows import data_revisions
from t5suite.runs import directory
from t5suite.runs.directory import read_manifest
from t5suite.runs.opening import finished_run, open_run

ROOT = Path(__file__).parent.parent
NOBODY = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
SECRET = "hf_SecretOfSomebodysOwnProject1234"


def git(place, *words) -> str:
    command = ["git", *NOBODY, "-C", str(place), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit_all(place) -> str:
    """Everything in the folder as a new commit; returns its hash."""
    if not (place / ".git").exists():
        git(place, "init")
    git(place, "add", "--all")
    git(place, "commit", "--allow-empty", "-m", "a commit")
    return git(place, "rev-parse", "HEAD")


def small_package(place) -> Path:
    """A package with the files by which a repository proves to be the suite's."""
    package = place / "t5suite"
    for name in LANDMARKS:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(f"# {name}\n")
    for script in SCRIPTS:
        (place / script).write_text(f"# {script}\n")
    return package


def project_around(place) -> None:
    """Somebody's repository with a change that was not committed."""
    (place / "work.py").write_text("a = 1\n")
    (place / ".gitignore").write_text(".venv\n")
    commit_all(place)
    (place / "work.py").write_text(f"token = '{SECRET}'\n")


def install_record(package, origin: dict) -> None:
    """What an installer notes about a package: where it came from, and a hash of every file."""
    about = package.with_name("t5suite-1.0.dist-info")
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: t5suite\nVersion: 1.0\n")
    (about / "direct_url.json").write_text(json.dumps(origin))
    lines = []
    for path in package.rglob("*.py"):
        digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")
        lines.append(f"{path.relative_to(package.parent)},sha256={digest},{path.stat().st_size}\n")
    (about / "RECORD").write_text("".join(lines))


class VersionsTest(parameterized.TestCase):
    def test_a_package_that_is_not_installed_has_no_version(self):
        with mock.patch.object(provenance, "PACKAGES", ["no-such-package", "torch"]):
            versions = provenance.versions()
        self.assertIsNone(versions["no-such-package"])
        # torch's own version may have the name of its build behind it ("2.15.0+cu132"), which pip's has not.
        self.assertEqual(versions["torch"].partition("+")[0], torch.__version__.partition("+")[0])


class KeptDiffTest(parameterized.TestCase):
    def test_the_code_s_changes_are_kept_with_their_hash_and_once_more_where_they_changed(self):
        run = open_run(folder() / "run", {"seed": 1})
        run.update()
        for changes in (("", ["rows.tsv"]), ("+a\n", []), ("+a\n", []), ("+b\n", []), None):
            with mock.patch.object(directory, "loaded_code_changes", return_value=changes):
                run.keep_code()
        untracked, *entries = read_manifest(run.directory)["code_changes"]
        self.assertEqual(untracked["untracked"], ["rows.tsv"])
        self.assertNotIn("file", untracked)  # a diff of nothing
        self.assertCountEqual([path.name for path in run.directory.glob("diff*")], ["diff.patch", "diff-2.patch"])
        self.assertEqual([entry["file"] for entry in entries], ["diff.patch", "diff-2.patch"])
        for entry, diff in zip(entries, ("+a\n", "+b\n"), strict=True):
            self.assertEqual((run.directory / entry["file"]).read_text(), diff)
            self.assertEqual(entry["sha256"], hashlib.sha256(diff.encode()).hexdigest())


class TrackedTest(parameterized.TestCase):
    def test_the_landmarks_are_files_of_the_package(self):
        for name in LANDMARKS:
            self.assertTrue((ROOT / "t5suite" / name).is_file(), name)

    def test_a_checkout_has_its_commit_and_its_changes(self):
        root = folder()
        package = small_package(root)
        commit = commit_all(root)
        self.assertEqual(git_commit(package), {"commit": commit, "changed": False})
        self.assertEqual(code_changes(package), ("", []))
        (package / "cli.py").write_text("# another\n")
        (package / "new.py").write_text("b = 1\n")
        diff, untracked = code_changes(package)
        self.assertIn("+# another", diff)
        self.assertEqual(untracked, ["t5suite/new.py"])
        self.assertEqual(git_commit(package), {"commit": commit, "changed": True})

    @parameterized.parameters(("rows.tsv", False), ("t5suite/new.py", True), ("fine_tune_t5.py", True))
    def test_untracked_files_beside_the_package_are_no_change(self, name, changed):
        root = folder()
        package = small_package(root)
        (root / "pyproject.toml").write_text('name = "t5suite"\n')
        commit = commit_all(root)
        (root / name).write_text("a = 1\n")
        self.assertEqual(git_commit(package), {"commit": commit, "changed": changed})

    def test_a_diff_tells_no_secret_and_leaves_the_checkout_as_it_is(self):
        root = folder()
        package = small_package(root)
        (package / "code.py").write_text("a = 1\n")
        commit_all(root)
        index = (root / ".git" / "index").read_bytes()
        os.utime(package / "code.py", (1, 1))
        self.assertEqual(code_changes(package), ("", []))
        self.assertEqual((root / ".git" / "index").read_bytes(), index, "the checkout's index was written")
        (package / "code.py").write_text(f"a = 2\ntoken = '{SECRET}'\n")
        diff, _ = code_changes(package)
        self.assertIn("-a = 1\n+a = 2\n+token = '***'", diff)
        self.assertNotIn(SECRET, diff)

    def test_a_long_diff_is_cut_off_and_says_so(self):
        root = folder()
        package = small_package(root)
        commit_all(root)
        (package / "cli.py").write_text("# another\n")
        with mock.patch.object(provenance, "LARGEST_DIFF", 20):
            diff, _ = code_changes(package)
        self.assertRegex(diff, r"\A.{20}\n# \d+ more characters are left out\n\Z")

    def test_code_in_no_repository_has_no_diff(self):
        self.assertIsNone(code_changes(folder()))

    @parameterized.parameters("elsewhere", "its own clone")
    def test_what_is_installed_inside_a_repository_has_no_commit_and_no_diff(self, where):
        root = folder()
        if where == "its own clone":
            small_package(root)
        project_around(root)
        package = small_package(root / ".venv/lib/python3.11/site-packages")
        self.assertIsNone(git_commit(package))
        self.assertIsNone(code_changes(package))

    def test_of_a_copy_that_somebodys_repository_tracks_only_changes_of_the_suite_are_shown(self):
        root = folder()
        package = small_package(root)
        project_around(root)
        commit = git(root, "rev-parse", "HEAD")
        self.assertEqual(git_commit(package), {"commit": commit, "changed": False})
        (package / "cli.py").write_text("# another\n")
        diff, _ = code_changes(package)
        self.assertIn("+# another", diff)
        self.assertNotIn("work.py", diff)

    def test_a_hooks_variables_do_not_name_the_suites_repository(self):
        """git sets GIT_DIR for its hooks; a training that a hook starts is not of the hook's repository."""
        root, other = folder(), folder()
        package = small_package(root)
        commit = commit_all(root)
        shutil.copytree(package, other, dirs_exist_ok=True)
        commit_all(other)
        variables = {"GIT_DIR": str(other / ".git"), "GIT_WORK_TREE": str(other)}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            self.assertEqual(git_commit(package)["commit"], commit)

    def test_an_installer_that_took_a_commit_says_so(self):
        site = folder()
        package, commit = small_package(site), "5ae584ff6f0dc4ba91d1a4b2c06ae4cd5be0f4a1"
        install_record(package, {"url": "https://example.org/t5suite", "vcs_info": {"vcs": "git", "commit_id": commit}})
        self.assertEqual(git_commit(package), {"commit": commit, "changed": False})
        (package / "cli.py").write_text("# edited where it is installed\n")
        self.assertEqual(git_commit(package), {"commit": commit, "changed": True})
        self.assertIsNone(git_commit(small_package(folder())), "a package without such a record")

    @parameterized.parameters({"dir_info": {}}, {"dir_info": {"editable": True}}, {})
    def test_a_folder_that_was_installed_has_no_commit(self, **origin):
        package = small_package(folder())
        install_record(package, {"url": "file:///clone", **origin})
        self.assertIsNone(git_commit(package))


class HashTest(parameterized.TestCase):
    def test_the_title_has_the_commit_and_whether_the_code_has_changed(self):
        code = f"code {code_sha256()[:12]}"
        commit = "5ae584ff6f0dc4ba91d1a4b2c06ae4cd5be0f4a1"
        for state, title in (
            (None, f"({code})"),
            ({"commit": commit, "changed": False}, f"(commit 5ae584f; {code})"),
            ({"commit": commit, "changed": True}, f"(commit 5ae584f, changed; {code})"),
        ):
            with mock.patch.object(provenance, "git_commit", lambda state=state: state):
                self.assertEqual(provenance.code_title(), f"t5suite {t5suite.__version__} {title}")

    def test_a_processor_is_named_by_its_model_or_its_architecture(self):
        texts = {"model name\t: EPYC: 9R14 \nmodel name\t: other\n": "EPYC: 9R14", "flags: x\n": "riscv"}
        with mock.patch("platform.processor", lambda: ""), mock.patch("platform.machine", lambda: "riscv"):
            for text, name in texts.items():
                with mock.patch.object(Path, "read_text", lambda *args, text=text, **settings: text):
                    self.assertEqual(provenance.processor_name(), name)
            with mock.patch.object(Path, "read_text", side_effect=OSError()):
                self.assertEqual(provenance.processor_name(), "riscv")

    def test_equal_code_has_one_hash_wherever_it_stands_and_other_code_another(self):
        first, second = small_package(folder()), small_package(folder())
        self.assertEqual(code_sha256(first), code_sha256(second))
        (second / "__pycache__").mkdir()
        (second / "__pycache__" / "cli.cpython-311.pyc").write_bytes(b"compiled")
        self.assertEqual(code_sha256(first), code_sha256(second))
        for change in (second / "cli.py", second / "more.py", second.with_name(SCRIPTS[0])):
            before = code_sha256(second)
            change.write_text(f"# changed: {change.name}\n")
            self.assertNotEqual(code_sha256(second), before)

    def test_the_hash_is_of_the_code_that_runs(self):
        self.assertEqual(code_sha256(), code_sha256(Path(t5suite.__file__).parent))
        self.assertIn(code_sha256()[:12], provenance.code_title())


# A run of the installed suite.
RUN = (
    "-m t5suite fine_tune --benchmark mini --dataset_name sentiment --from_scratch --use_cpu --max_steps 1 --no_eval "
    "--eval_strategy no --max_train_samples 8 --save_strategy no --disable_tqdm True --output_dir run "
    "--config_overrides d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"
).split()


@pytest.mark.slow
class LayoutTest(parameterized.TestCase):
    """The suite as people install it, each in an environment of its own, with the dependencies of this one."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.clone = folder() / "clone"
        for name in git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
            if name and (ROOT / name).is_file():
                (cls.clone / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, cls.clone / name)
        cls.commit = commit_all(cls.clone)
        cls.built = folder()
        source = folder()
        cls.build(git(cls.clone, "rev-parse", "--show-toplevel"), "sdist")
        with tarfile.open(next(cls.built.glob("*.tar.gz"))) as archive:
            archive.extractall(source, filter="data")
        cls.source = next(source.iterdir())
        unchanged = folder() / "source"
        shutil.copytree(cls.source, unchanged)
        cls.build(unchanged, "wheel")
        cls.wheel = next(cls.built.glob("*.whl"))
        git(cls.clone, "clean", "-fdx")
        cls.code = code_sha256(cls.clone / "t5suite")

    @classmethod
    def build(cls, tree, kind):
        call = f"from setuptools import build_meta; build_meta.build_{kind}({str(cls.built)!r})"
        subprocess.run([sys.executable, "-c", call], cwd=tree, check=True, capture_output=True)

    def environment(self, place) -> Path:
        """A new environment's Python; it also finds the packages of the environment that runs the tests."""
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
        packages = next((place / "lib").glob("python3*/site-packages"))
        borrowed = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
        return place / "bin" / "python"

    def call(self, place, *command) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "T5SUITE"))}
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return done.stdout

    def install(self, python, *what) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
        self.call(folder(), *pip, "--no-build-isolation", "--disable-pip-version-check", *map(str, what))

    def manifest(self, python, place=None) -> dict:
        """The manifest of a run in a new folder below `place`; `--version` says the same of the code."""
        place = place or folder()
        self.call(place, python, *RUN)
        manifest = json.loads((place / "run/manifest.json").read_text())
        shown = self.call(place, python, "-m", "t5suite", "--version").splitlines()[0]
        self.assertIn(f"code {manifest['code_sha256'][:12]}", shown)
        commit = manifest.get("commit")
        self.assertEqual("commit" in shown, commit is not None, shown)
        if commit is not None:
            self.assertIn(commit["commit"][:7], shown)
        self.assertNotIn(SECRET, json.dumps(manifest))
        return manifest

    def check_unknown(self, python, place) -> None:
        """No commit, no diff; the hash is that of the code that was installed."""
        manifest = self.manifest(python, place)
        self.assertIsNone(manifest.get("commit"))
        self.assertNotIn("code_changes", manifest)
        self.assertFalse((place / "run/diff.patch").exists())
        self.assertEqual(manifest["code_sha256"], self.code)

    def copy_of_clone(self) -> Path:
        return shutil.copytree(self.clone, folder() / "clone")

    def test_an_editable_clone_has_its_commit_and_its_own_diff(self):
        clone = self.copy_of_clone()
        python = self.environment(clone / ".venv")
        self.install(python, "-e", clone)
        place = folder()
        self.assertEqual(self.manifest(python, place)["commit"]["commit"], self.commit)
        with (clone / "t5suite/constants.py").open("a") as file:
            file.write("# an experiment\n")
        second = folder()
        manifest = self.manifest(python, second)
        self.assertEqual(manifest["commit"], {"commit": self.commit, "changed": True})
        self.assertIn("+# an experiment", (second / "run/diff.patch").read_text())
        self.assertNotEqual(manifest["code_sha256"], self.code)

    def test_a_clone_that_is_installed_and_pulled_later_still_shows_the_installed_code(self):
        clone = self.copy_of_clone()
        python = self.environment(clone / ".venv")
        self.install(python, clone)
        self.check_unknown(python, folder())
        with (clone / "t5suite/constants.py").open("a") as file:
            file.write("# a later commit\n")
        git(clone, "commit", "--all", "-m", "later")
        (clone / "README.md").write_text(f"{SECRET}\n")
        self.check_unknown(python, folder())

    def test_a_wheel_inside_somebodys_repository_shows_nothing_of_it(self):
        project = folder()
        project_around(project)
        python = self.environment(project / ".venv")
        self.install(python, self.wheel)
        self.check_unknown(python, project)

    def test_a_wheel_without_any_repository(self):
        python = self.environment(folder() / "venv")
        self.install(python, self.wheel)
        self.check_unknown(python, folder())

    def test_an_unpacked_source_archive(self):
        project = folder()
        project_around(project)
        source = shutil.copytree(self.source, project / "source")
        python = self.environment(project / ".venv")
        place = folder()
        paths = next((project / ".venv/lib").glob("python3*/site-packages")) / "source.pth"
        paths.write_text(f"{source}\n")
        self.check_unknown(python, place)

    def test_an_installation_from_a_git_address_has_the_commit_that_was_taken(self):
        python = self.environment(folder() / "venv")
        self.install(python, f"git+file://{self.clone}")
        manifest = self.manifest(python)
        self.assertEqual(manifest["commit"], {"commit": self.commit, "changed": False})
        self.assertEqual(manifest["code_sha256"], self.code)


class RowsReadAgainTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"lab/rows": {"commit": "a" * 40, "revision": "v1"}}, "v1", f"lab/rows={'a' * 40}"),
        (
            {"lab/rows": {"commit": "a" * 40}, "lab/x": {"commit": "b" * 40}},
            None,
            f"lab/rows={'a' * 40},lab/x={'b' * 40}",
        ),
        ({}, "v1", "v1"),
        ({}, None, None),
    )
    def test_they_are_those_of_the_commits_that_were_read_and_not_of_the_branch_that_was_named(
        self, read, named, expected
    ):
        manifest = {"hub": {"datasets": read}, "settings": {"data_revision": named}}
        self.assertEqual(data_revisions(manifest), expected)


class SameCommandTest(parameterized.TestCase):
    def test_a_command_finds_the_run_that_it_has_finished_and_no_other_command_does(self):
        place = folder() / "run"
        flags = {"max_steps": "1", "seed": "7"}
        self.assertIsNone(finished_run(str(place), "fine_tune_t5", flags), "nothing is there")
        run = open_run(place, {"max_steps": 1, "seed": 7})
        run.update()
        self.assertIsNone(finished_run(str(place), "fine_tune_t5", flags), "it has not finished")
        (place / "results.json").write_text("{}")
        run.finish()
        self.assertEqual(finished_run(str(place), "fine_tune_t5", flags).run_id, run.run_id)
        for script, changed in (
            ("fine_tune_t5", {"seed": "8"}),
            ("pre_train_t5", {}),
            ("fine_tune_t5", {"lora_r": "4"}),
        ):
            self.assertIsNone(finished_run(str(place), script, flags | changed), changed)
        with mock.patch.dict(os.environ, {"T5SUITE_DATA_DIR": "elsewhere"}):
            self.assertIsNone(finished_run(str(place), "fine_tune_t5", flags))
