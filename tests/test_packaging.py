"""The package has every folder and bundled file, and the shipped recipes are flags that exist."""

import tomllib
from pathlib import Path

from absl.testing import absltest, parameterized

import t5suite
from t5suite.shipped import FOLDERS, shipped_folder

ROOT = Path(__file__).parent.parent
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())


class PackagingTest(parameterized.TestCase):
    def test_every_folder_is_a_listed_package(self):
        folders = {
            path.parent for path in (ROOT / "t5suite").rglob("*") if path.is_file() and "__pycache__" not in path.parts
        }
        expected = {".".join(folder.relative_to(ROOT).parts) for folder in folders} | {
            f"t5suite.{name}" for name in FOLDERS
        }
        self.assertEqual(set(SETUP["tool"]["setuptools"]["packages"]), expected)

    def test_every_bundled_file_matches_a_pattern(self):
        patterns = SETUP["tool"]["setuptools"]["package-data"]["*"]
        files = [path for folder in (ROOT / "t5suite", *map(shipped_folder, FOLDERS)) for path in folder.rglob("*")]
        for path in files:
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                self.assertTrue(any(path.match(pattern) for pattern in patterns), path)

    def test_the_version_is_one(self):
        self.assertEqual(SETUP["project"]["version"], t5suite.__version__)

    def test_every_tested_version_is_pinned(self):
        pinned = {
            line.split("==")[0].lower().replace("_", "-")
            for line in (ROOT / "constraints.txt").read_text().splitlines()
        }
        for requirement in SETUP["project"]["dependencies"]:
            self.assertIn(requirement.split(">")[0].lower(), pinned)


if __name__ == "__main__":
    absltest.main()
