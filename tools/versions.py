"""Tests the suite with other versions of its libraries than `constraints.txt`: the oldest that it allows, the newest.

    $ python -m tools.versions oldest
    $ python -m tools.versions newest --torch 2.13.0        # with a smaller torch than the newest one

`oldest` has every lower bound of `pyproject.toml`, of all extras; `newest` has what pip finds best without the upper
bounds, for what the tests need (some extras hold other packages back). Each is an environment of its own in build/. In
it run the quick tests and four whole jobs (`tools.whole_jobs`), then a report is printed: versions, with what is held
back and by what, tests, jobs, and which parts of the suite are proved with these libraries (`t5suite.base.libraries`).
The exit code is 1 if a test or a job failed, or a part is refused.

Needs `packaging` and nothing else, for it runs outside of the environments that it makes.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
# The extra that has all that the quick tests need.
FOR_TESTS = "dev"
# Slow tests that run with the oldest versions because no quick one uses these extras (aim, trackio).
TESTS_OF_EXTRAS = ("tests/test_tracker_mirror.py", "-k", "ExtrasTest", "-m", "slow")
BAD_STATES = ("refused", "failed")


@dataclass(frozen=True)
class Environment:
    """A virtual environment in build/ and its pip."""

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin/python"

    def create(self, requirements: list[str]) -> None:
        """Installs the requirements, resolved together, and the checkout without its own bounds."""
        subprocess.run([sys.executable, "-m", "venv", "--clear", self.folder], check=True)
        self.pip("install", "--upgrade", "pip")
        self.pip("install", *requirements)
        self.pip("install", "--no-deps", "--editable", str(ROOT))

    def pip(self, *words: str, check: bool = True) -> subprocess.CompletedProcess:
        """Runs pip, and keeps what it prints; where it has to succeed, its warnings go to standard error."""
        command = [self.python, "-m", "pip", "--disable-pip-version-check", *words]
        warnings = None if check else subprocess.PIPE
        return subprocess.run(command, check=check, text=True, stdout=subprocess.PIPE, stderr=warnings)

    def run(self, *words: str) -> subprocess.CompletedProcess:
        """Runs Python in the checkout, without a network for models and data; standard output is returned."""
        surroundings = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "T5SUITE_QUICK_SECONDS": "20",  # versions are tested, not speed
        }
        return subprocess.run([self.python, *words], cwd=ROOT, env=surroundings, text=True, stdout=subprocess.PIPE)

    def installed(self) -> dict[str, str]:
        """`{canonical name: version}` of what is installed."""
        rows = json.loads(self.pip("list", "--format", "json").stdout)
        return {canonicalize_name(row["name"]): row["version"] for row in rows}


@dataclass(frozen=True)
class Counts:
    """Counts of one run of pytest."""

    passed: int
    failed: int
    skipped: int


def main(argv=None) -> int:
    """Makes the environment, tests in it and prints the report; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.versions", description=__doc__.split("\n")[0])
    parser.add_argument("which", choices=tuple(REQUIREMENTS))
    parser.add_argument("--torch", metavar="VERSION", help="this torch, whatever the oldest or the newest one is")
    parser.add_argument("--processes", default="2", metavar="N", help="processes of the tests (default: 2)")
    parser.add_argument("--reuse", action="store_true", help="test in the environment that an earlier call made")
    arguments = parser.parse_args(argv)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = REQUIREMENTS[arguments.which](project)
    if arguments.torch:
        requirements["torch"] = f"torch=={arguments.torch}"
    environment = Environment(BUILD / arguments.which)
    if not arguments.reuse:
        environment.create(list(requirements.values()))
    tests = run_tests(environment, "-n", arguments.processes, "--dist", "loadfile")
    if arguments.which == "oldest":
        tests = added(tests, run_tests(environment, *TESTS_OF_EXTRAS))
    jobs = json_lines(environment.run("-m", "tools.whole_jobs", str(BUILD / f"{arguments.which}-jobs")).stdout)
    parts = json_lines(environment.run("-m", "t5suite.base.libraries", "--json").stdout)
    print_versions(environment, requirements, looks_up=arguments.which == "newest")
    return print_results(tests, jobs, parts)


def oldest_requirements(project: dict) -> dict[str, str]:
    """`{name: requirement}`: the lower bound of every dependency, of all extras.

    >>> oldest_requirements({"dependencies": ["numpy>=2.1"], "optional-dependencies": {"web": ["gradio>=6,<7"]}})
    {'numpy': 'numpy==2.1', 'gradio': 'gradio==6'}
    """
    bounds = {}
    for requirement in requirements_of(project, list(project["optional-dependencies"])):
        name = canonicalize_name(requirement.name)
        bounds[name] = max(bounds.get(name, Version("0")), lower_bound(requirement))
    return {name: f"{name}=={version}" for name, version in bounds.items()}


def newest_requirements(project: dict) -> dict[str, str]:
    """`{name: requirement}`: what the tests need, without upper bounds.

    >>> newest_requirements({"dependencies": ["numpy>=2.1,<3"], "optional-dependencies": {"dev": ["pytest>=8"]}})
    {'numpy': 'numpy>=2.1', 'pytest': 'pytest>=8'}
    """
    return {
        canonicalize_name(requirement.name): f"{canonicalize_name(requirement.name)}>={lower_bound(requirement)}"
        for requirement in requirements_of(project, [FOR_TESTS])
    }


def requirements_of(project: dict, extras: list[str]) -> list[Requirement]:
    """The dependencies and those of the extras, as far as they are meant for this Python."""
    texts = [*project["dependencies"], *(text for extra in extras for text in project["optional-dependencies"][extra])]
    return [each for each in map(Requirement, texts) if each.marker is None or each.marker.evaluate()]


def lower_bound(requirement: Requirement) -> Version:
    """The version behind `>=`.

    Raises:
      ValueError: a dependency without one; no test could say from which version on it works.
    """
    versions = [Version(each.version) for each in requirement.specifier if each.operator == ">="]
    if len(versions) != 1:
        raise ValueError(f"pyproject.toml: {requirement} needs one lower bound, such as {requirement.name}>=1.2")
    return versions[0]


def run_tests(environment: Environment, *words: str) -> Counts:
    """Runs pytest, whose lines go to standard error, and counts."""
    report = environment.folder / "tests.xml"
    report.unlink(missing_ok=True)
    done = environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *words)
    print(done.stdout, file=sys.stderr)
    if not report.exists():
        return Counts(passed=0, failed=1, skipped=0)
    suite = ElementTree.parse(report).getroot().find("testsuite")
    number = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    if done.returncode != 0:
        failed = max(failed, 1)
    return Counts(passed=number["tests"] - failed - number["skipped"], failed=failed, skipped=number["skipped"])


def added(one: Counts, other: Counts) -> Counts:
    """The counts of two runs together."""
    return Counts(one.passed + other.passed, one.failed + other.failed, one.skipped + other.skipped)


def json_lines(text: str) -> list[dict]:
    """The JSON objects of a program that prints one a line."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def print_versions(environment: Environment, requirements: dict[str, str], looks_up: bool) -> None:
    """A line a package: what was required, what is installed; with `looks_up`, a newer release and what prevents it."""
    installed = environment.installed()
    print(f"{'package':<24}{'required':<16}{'installed':<16}{'newer' if looks_up else ''}")
    for name, requirement in sorted(requirements.items()):
        note = newer_release(environment, name, requirement, installed[name]) if looks_up else ""
        print(f"{name:<24}{requirement.removeprefix(name):<16}{installed[name]:<16}{note}".rstrip())


def newer_release(environment: Environment, name: str, requirement: str, version: str) -> str:
    """What is said of a package that the index has a newer release of; an empty text if it has none."""
    listed = environment.pip("index", "versions", name, check=False).stdout
    newest = re.match(r"\S+ \((\S+)\)", listed)
    if newest is None:
        return "the index does not say"
    if Version(newest[1]) <= Version(version):
        return ""
    return f"{newest[1]} exists, held back by {obstacle(environment, name, requirement, newest[1])}"


def obstacle(environment: Environment, name: str, requirement: str, newest: str) -> str:
    """What holds a release back: this call's own flag, a constraint of this machine's pip, another package."""
    if "==" in requirement:
        return f"this call ({requirement})"
    tried = environment.pip("install", "--dry-run", "--no-deps", f"{name}=={newest}", check=False)
    if "(constraint)" in tried.stdout + tried.stderr:
        return "a constraint of this machine's pip"
    return "what another package requires" if tried.returncode == 0 else "this Python or this machine"


def print_results(tests: Counts, jobs: list[dict], parts: list[dict]) -> int:
    """Tests, jobs and parts of the suite; 1 if anything is not as it must be."""
    print(f"\nquick tests: {tests.passed} passed, {tests.failed} failed, {tests.skipped} skipped")
    for job in jobs:
        print(f"{'passed' if job['passed'] else 'FAILED'}  {job['job']}: {job['result']}")
    for part in parts:
        if part["state"] != "proved":
            print(f"{part['state']}  {part['entry']}: {part.get('reason')}")
    states = [part["state"] for part in parts]
    print(", ".join(f"{states.count(state)} {state}" for state in sorted(set(states))) or "no part has been examined")
    bad = tests.failed or not jobs or not parts or not all(job["passed"] for job in jobs)
    return 1 if bad or any(state in BAD_STATES for state in states) else 0


REQUIREMENTS = {"oldest": oldest_requirements, "newest": newest_requirements}

if __name__ == "__main__":
    sys.exit(main())
