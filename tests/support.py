"""What many tests use: a folder of their own, and their own flags over those that all tests of a file share."""

import os
import shutil
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from absl.testing import parameterized

from t5suite.cli import parse_arguments


def folder() -> Path:
    """A new one; nobody removes it."""
    return Path(tempfile.mkdtemp())


def later_wins(*parts) -> list[str]:
    """The words of all parts, in order; of a flag that is given twice, the last: a command line gives each flag once.

    >>> later_wins(["run.yaml", "--seed", "1", "--bf16", "--seed=2"])
    ['run.yaml', '--bf16', '--seed=2']
    """
    groups = {}
    for word in [str(word) for part in parts for word in ([part] if isinstance(part, str) else part)]:
        if word.startswith("--"):
            name = word.partition("=")[0].replace("-", "_")
            groups.pop(name, None)
            groups[name] = [word]
        elif groups:
            groups[next(reversed(groups))].append(word)
        else:
            groups[""] = [word]
    return [word for group in groups.values() for word in group]


def command_flags(command: str, *switches: str, **flags):
    """A sub-command's flags as it parses them; None leaves one out.

    >>> command_flags("export", "check", model_name_or_path="m", output_dir="o")
    """
    given = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    return parse_arguments([command, *given, *(f"--{name}" for name in switches)])


def start_browser(test_class):
    """A browser until the tests of a class have run; the class is skipped where there is none."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not program:
        raise unittest.SkipTest("no Chromium here: apt-get install --no-install-recommends chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise unittest.SkipTest("no playwright here: python -m pip install playwright") from None
    driver = sync_playwright().start()
    test_class.addClassCleanup(driver.stop)
    browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
    test_class.addClassCleanup(browser.close)
    return browser


class OwnStopRequests(parameterized.TestCase):
    """Each test has requests to stop of its own: the process's would reach the run that goes on."""

    def setUp(self):
        from t5suite.training.processes.signals import StopRequests

        super().setUp()
        self.enter_context(mock.patch("t5suite.training.trainer.stop_requests", StopRequests))
