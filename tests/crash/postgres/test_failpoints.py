"""A worker dies or stops at every named place, and another one on the same database goes on: the same key has one answer, and
what happened outside is what the class of each step promises."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx2 as httpx
import pytest

from stateroom import limits
from stateroom.run.model import DoubleText
from tests.crash import plays, scale
from tests.crash.actor import EFFECTS, done
from tests.crash.invariants import violations
from tests.crash.test_double_texting import PLACES, POLICIES, after_a_crash
from tests.crash.test_server_steps import Client, answering, ready
from tests.crash.test_steps import ALL, ALWAYS, FIRST_LIVES, lives, places
from tests.crash.test_stopped import ONCE, SILENT, overtaken
from tests.crash.verdict import verdict
from tests.crash.view import wrong_with_stream
from tests.crash.where import inside_of, on_postgres
from tests.crash.zygote import Zygote, zygotes
from tests.services.processes import free_port
from tests.services.store import empty

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

LEASE_MS = 1_000  # of those who die: whoever comes waits for its end
STRIDE = 1 if scale.WHOLE else 7


class Folders:
    """A folder for each life, all on one database that is empty when the next is asked for."""

    def __init__(self, base: Path, store: str) -> None:
        self._base, self._store, self._made = base, store, 0

    def next(self) -> Path:
        self._made += 1
        empty(self._store)
        return on_postgres(self._base / str(self._made), self._store)


@pytest.fixture
def folders(tmp_path: Path, postgres_store: str) -> Folders:
    return Folders(tmp_path, postgres_store)


@pytest.mark.parametrize(("effect", "failpoint"), FIRST_LIVES[::STRIDE])
async def test_P1_P9_P10_P14_P15_P16_P17_killed_at_a_named_place(
    zygote: Zygote, folders: Folders, effect: str, failpoint: str
) -> None:
    folder = folders.next()
    assert await lives(zygote, folder, effect, f"{failpoint}:kill", lease_ms=LEASE_MS), "it gets there"
    found = await verdict(folder, [effect])
    assert found.faults == []
    if effect == "once" and failpoint in ("step.intended", "step.performed"):
        assert found.asked == ["reconcile"], "nobody knows whether it happened: somebody is asked"
    elif effect != "once":
        assert found.asked == (["approval"] if effect == "approved" else [])


async def test_P9_P15_P16_killed_in_two_lives(zygote: Zygote, folders: Folders, figure: Callable[[str], None]) -> None:
    """Every place of the second life, recovery's own among them, after every place of the first (bounded: some)."""
    pairs = [
        (effect, first, second)
        for effect in EFFECTS
        for first, second in itertools.product(
            places(effect), dict.fromkeys((*places(effect), "turn.paused", "recover.requeued"))
        )
    ]
    tried = 0
    for effect, first, second in pairs[3 :: 1 if scale.WHOLE else 60]:
        folder = folders.next()
        assert await lives(zygote, folder, effect, f"{first}:kill", lease_ms=LEASE_MS)
        tried += await lives(zygote, folder, effect, f"{second}:kill", lease_ms=LEASE_MS)
        assert (await verdict(folder, [effect])).faults == [], (effect, first, second)
    figure(f"PostgreSQL, steps: two workers died at {tried} pairs of places, 0 lost, 0 doubled")
    assert tried


async def test_P1_P9_P10_P14_P15_P16_P17_killed_at_every_passing_of_every_place(
    zygote: Zygote, folders: Folders, figure: Callable[[str], None]
) -> None:
    tried = 0
    for name in (*ALWAYS, "step.intended", "turn.paused"):
        for number in itertools.count(1 + STRIDE // 2, STRIDE):
            folder = folders.next()
            killed = await lives(zygote, folder, ALL, f"{name}:kill:{number}", pause_s=0.031, lease_ms=LEASE_MS)
            assert (await verdict(folder, [ALL])).faults == [], (name, number)
            tried += killed
            if not killed or not scale.WHOLE:
                break
    figure(f"PostgreSQL, steps: killed at {tried} passings of named places in a turn with every class, 0 lost, 0 doubled")
    assert tried


@pytest.mark.parametrize("effect", EFFECTS if scale.WHOLE else ("approved",))
async def test_P10_P12_P15_P16_killed_when_a_cancel_was_asked_for(zygote: Zygote, folders: Folders, effect: str) -> None:
    for wait_s in (0.0, 0.03, 0.08):
        folder, kinds = folders.next(), f"{effect}+wait"
        assert await lives(zygote, folder, kinds, "cancel.asked:kill", play=plays.a_cancel, wait_s=wait_s, lease_ms=LEASE_MS)
        found = await verdict(folder, [kinds], completed=False)
        assert (found.faults, found.statuses) == ([], ["cancelled"])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUE_LOOK_MS", 40)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("policies", POLICIES, ids="+".join)
async def test_P9_P10_P14_P17_killed_while_turns_want_one_conversation(
    zygote: Zygote, folders: Folders, policies: tuple[DoubleText, ...]
) -> None:
    tried, first = 0, (2 + 5 * POLICIES.index(policies)) % len(PLACES)
    for place in PLACES[first:] + PLACES[:first]:  # the bounded run ends at its first kill, at another place per policy
        if tried and not scale.WHOLE:
            break
        folder, (name, _, number) = folders.next(), place.partition(":")
        child = await zygote.fork(
            plays.double, folder, environ={"STATEROOM_FAILPOINT": f"{name}:kill:{number}"}, policies=policies, lease_ms=LEASE_MS
        )  # fmt: skip
        status = await child.ended()
        assert status in (0, -signal.SIGKILL), child.last_words()
        assert await after_a_crash(folder, policies) == [], place
        tried += status != 0
    assert tried


STOPS = dict.fromkeys([*((effect, "step.intended") for effect in ONCE), *FIRST_LIVES[1::STRIDE]])


@pytest.mark.parametrize(("effect", "failpoint"), STOPS)
async def test_P8_P9_P14_P15_a_worker_that_sleeps_past_its_lease_writes_nothing(
    zygote: Zygote, folders: Folders, effect: str, failpoint: str
) -> None:
    folder = folders.next()
    assert await overtaken(zygote, folder, effect, failpoint) == []
    assert bool(plays.refused_in(folder)) == (failpoint not in SILENT)


async def test_P8_a_build_without_fences_is_found_out(zygote: Zygote, folders: Folders) -> None:
    """The negative control."""
    for name in ("turn.hydrated", "turn.recorded"):
        assert await overtaken(zygote, folders.next(), "pure", name, build="no fence")


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Zygote]]:
    with zygotes(2) as made:
        yield made


@pytest.mark.parametrize(("effect", "failpoint"), FIRST_LIVES[2::STRIDE])
async def test_P4_P14_P15_P16_a_client_goes_on_at_the_other_worker(
    hosts: list[Zygote], folders: Folders, effect: str, failpoint: str
) -> None:
    folder, ports = folders.next(), (free_port(), free_port())
    world = plays.world_of(folder)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    async with httpx.AsyncClient(base_url=urls[0], timeout=20) as one, httpx.AsyncClient(base_url=urls[1], timeout=20) as two:
        dies = await hosts[0].fork(
            plays.serves, folder, port=ports[0], lease_ms=LEASE_MS, environ={"STATEROOM_FAILPOINT": f"{failpoint}:kill"}
        )
        goes_on = await hosts[1].fork(plays.serves, folder, port=ports[1])
        try:
            await asyncio.gather(ready(one), ready(two))
            client = Client(one, effect)
            async with answering(client, world):
                with suppress(httpx.TransportError):
                    await client.listen()
            assert await dies.ended() == -signal.SIGKILL, dies.last_words()
            client.http = two
            async with answering(client, world):
                assert await client.listen()
            again = (await two.get(f"/v1/responses/{client.events[0]['response']['id']}")).json()
        finally:
            goes_on.signal(signal.SIGTERM)
            status = await goes_on.ended()
    assert status == 0, goes_on.last_words()
    assert wrong_with_stream(client.events) == []
    assert again == client.events[-1]["response"]
    assert again["output"][-1]["content"][0]["text"] == done(effect, "t")
    assert violations(inside_of(folder)) == []
