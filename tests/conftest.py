"""Shared by every test: one event-loop backend, and a report of what is being tested with."""

from __future__ import annotations

import sys

import apsw
import pytest

pytest_plugins = ["tests.services.fixtures", "tests.services.store", "tests.services.places"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_report_header() -> str:
    return f"stateroom on Python {sys.version.split()[0]}, SQLite {apsw.sqlite_lib_version()}"
