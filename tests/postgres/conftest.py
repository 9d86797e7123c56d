"""A server of these tests' own, as an operator would set one up: with fsync, and theirs to break."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.services.postgres import Server
from tests.services.store import migrated


@pytest.fixture(scope="session")
def patient_server() -> Iterator[Server]:
    with Server.start(settings={"max_prepared_transactions": "4"}) as server:
        yield server


@pytest.fixture(scope="session")
def patient_template(patient_server: Server) -> str:
    migrated(patient_server.create_database("made_once"))
    return "made_once"


@pytest.fixture
def patient(patient_server: Server, patient_template: str) -> Iterator[str]:
    """An empty store in a database of its own, for a superuser."""
    name = f"patient_{uuid.uuid4().hex}"
    yield migrated(patient_server.create_database(name, template=patient_template))  # its roles' settings are its own
    patient_server.drop_database(name)
