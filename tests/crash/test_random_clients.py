"""Many clients on one store, in several processes that are killed at random: shared conversations, every policy, steps of
every class, cancels, answers to what is asked. Nothing is lost, nothing is done twice (P1, P2, P9, P10, P12, P14-P17)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from stateroom import limits
from tests.crash import plays, scale
from tests.crash.history import History, history
from tests.crash.zygote import Zygote, zygotes

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

HOSTS, CLIENTS = 3, 4


class Campaign:
    """Processes with clients; each lives a moment, dies, and goes on."""

    def __init__(self, folder: Path, *, seed: int, kills: int, build: str = "") -> None:
        self._folder, self._kills_wanted = folder, kills
        self._given = {"seed": seed, "count": CLIENTS, "build": build}
        self._dice = Random(seed)
        self.kills = 0

    async def play(self) -> History:
        """Until there were enough kills; then what became of it all."""
        self._folder.mkdir()
        with zygotes(HOSTS) as hosts:
            async with asyncio.TaskGroup() as group:
                for number, zygote in enumerate(hosts):
                    group.create_task(self._lives(number, zygote))
        return await history(self._folder)

    async def _lives(self, host: int, zygote: Zygote) -> None:
        enough = self._folder / "enough"
        while True:
            child = await zygote.fork(plays.clients, self._folder, host=host, **self._given)
            if self.kills < self._kills_wanted:
                await asyncio.sleep(self._dice.uniform(0.05, 0.6))
                status = await child.killed()
                assert status in (0, -signal.SIGKILL), child.last_words()  # 0: there were enough, and it knew
                self.kills += status != 0
                continue
            enough.touch()
            assert await child.ended() == 0, child.last_words()
            return


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUE_LOOK_MS", 40)


@pytest.mark.parametrize("seed", range(scale.SEED, scale.SEED + scale.CAMPAIGNS))
async def test_P1_P2_P9_P10_P12_P14_P15_P16_P17_random_kills_of_many_clients(
    tmp_path: Path, seed: int, figure: Callable[[str], None]
) -> None:
    campaign = Campaign(tmp_path / "store", seed=seed, kills=scale.CLIENT_KILLS)
    found = await campaign.play()
    figure(f"random clients: {campaign.kills} kills (seed {seed}); {found.text}")
    assert found.faults == []
    assert found.told > campaign.kills


async def test_P15_a_build_that_forgets_what_was_done_is_found_out(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """The negative control."""
    found = await Campaign(tmp_path / "store", seed=scale.SEED, kills=12, build="no memory").play()
    figure(f"random clients of a build that forgets its steps: {len(found.faults)} faults found, as they must be")
    assert found.faults
