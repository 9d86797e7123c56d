"""A real server, killed with SIGKILL at random moments while real conversations are played on it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.cli.replay.chaos import Chaos, Child
from stateroom.cli.replay.command import path_of
from stateroom.hosting import transcripts
from tests.crash import scale, serve_without_keys
from tests.crash.checks import broken_invariants, damage

pytestmark = [pytest.mark.anyio, pytest.mark.crash]


async def test_P1_P2_P9_P14_random_kills_lose_and_double_nothing(tmp_path: Path, figure: Callable[[str], None]) -> None:
    played = list(transcripts.read(path_of("sample")))
    campaign = Chaos(Child(tmp_path, played), played, kills=scale.KILLS, seed=scale.SEED)
    outcome = await campaign.play(run="kills", concurrency=8)
    figure("random kills: " + outcome.text().replace("\n", "; "))
    assert outcome.good, outcome.text()
    assert outcome.kills >= scale.KILLS
    assert outcome.replays > 0, "some kills must hit between an answer and its reader"

    backend = await SqliteBackend.open(tmp_path / "store")
    assert await broken_invariants(backend) == []
    await backend.close()
    assert damage(tmp_path / "store") == []


async def test_P14_a_build_that_forgets_keys_is_found_out(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """The negative control: retries of a server without turn keys must show as doubled turns."""
    played = list(transcripts.read(path_of("sample")))[:4]
    broken = (sys.executable, str(Path(serve_without_keys.__file__)), "serve")
    campaign = Chaos(Child(tmp_path, played, serve=broken, delay_ms=10), played, kills=2, seed=scale.SEED)
    outcome = await campaign.play(run="broken", concurrency=4)
    figure(f"random kills of a build without turn keys: {outcome.verdict.doubled} items doubled, as they must")
    assert not outcome.good
    assert outcome.verdict.doubled > 0
    assert outcome.changed > 0
