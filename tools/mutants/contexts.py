"""A plugin of pytest: coverage notes which test runs a line, and the map which test takes how long.

Child processes need no plugin: coverage.ini takes their context from the variable that pytest sets for each test.
"""

import json
import os
from pathlib import Path

import pytest
from coverage import Coverage

DURATIONS_FILE = "T5SUITE_DURATIONS"
_durations: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    measurement = Coverage.current()
    if measurement is not None:
        measurement.switch_context(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report):
    _durations[report.nodeid] = _durations.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish(session):
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker:
        Path(os.environ[DURATIONS_FILE]).write_text(json.dumps(_durations), encoding="utf-8")
