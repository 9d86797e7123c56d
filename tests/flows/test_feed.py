"""A feed: many readers of one run share what is read, whoever falls behind misses nothing, and nothing is kept for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stateroom import ids, limits
from stateroom.batch import Batch
from stateroom.errors import Gone, Unavailable
from stateroom.flows.agent import AgentEvent, Delta, Done, Start, Turn
from stateroom.flows.feed import Feed
from stateroom.principal import LOCAL
from stateroom.run.model import Run
from stateroom.run.steps import Compact
from stateroom.stack import Stateroom
from stateroom.wire import rows
from tests.flows.conftest import Acts, Bench, ask, take

pytestmark = pytest.mark.anyio
STREAM = b'{"stream":true}'


class Speaker:
    """Says a word, a commit of its own, each time it is asked to."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[str] = asyncio.Queue()

    async def work(self, turn: Turn) -> AsyncIterator[AgentEvent]:
        yield Start({"type": "message", "role": "assistant"})
        while word := await self.words.get():
            yield Delta(word)
            await asyncio.sleep(1.2 * limits.DELTA_MS_MAX / 1000)
        yield Done()


async def begun(bench: Bench) -> tuple[Speaker, Stateroom, Run]:
    speaker = Speaker()
    room = await bench.room(Acts(speaker.work))
    return speaker, room, (await take(room, "hi", options=STREAM)).run


def feeds(room: Stateroom) -> list[Feed]:
    return list(room.followers._feeds.values())


def kept(room: Stateroom) -> int:
    (feed,) = feeds(room)
    return len(feed._recent)


async def reader(room: Stateroom, run: Run, found: list[int], *, pause: asyncio.Event | None = None, after: int = 0) -> None:
    async for event in room.followers.events(LOCAL, run.id, room.followers.at(run, after), poll_s=None):
        if event is not None:
            found.append(event[0].seq)
            if pause is not None:
                await pause.wait()


async def until(done: Any) -> None:
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.005)


async def test_a_hundred_readers_cost_one_read_for_each_thing_that_is_new(bench: Bench) -> None:
    speaker, room, run = await begun(bench)
    found = [list[int]() for _ in range(100)]
    readers = [asyncio.create_task(reader(room, run, seen)) for seen in found]
    await until(lambda: all(len(seen) >= 2 for seen in found))
    reads, log = 0, room.backend.log

    async def counted(*given: Any, **named: Any) -> Any:
        nonlocal reads
        reads += 1
        return await log(*given, **named)

    room.backend.log = counted  # type: ignore[method-assign]
    for number in range(10):
        speaker.words.put_nowait(f"w{number} ")
    speaker.words.put_nowait("")
    await asyncio.gather(*readers)
    assert reads <= 40  # each commit: what is new, and that there is no more
    assert all(seen == list(range(1, len(seen) + 1)) for seen in found)
    assert 2 + 2 + 1 + 3 + 1 <= len(found[0]) <= 2 + 2 + 10 + 3 + 1, "words that come while others are written share a delta"


async def test_what_everybody_has_taken_is_forgotten(bench: Bench) -> None:
    speaker, room, run = await begun(bench)
    found = [list[int]() for _ in range(3)]
    pause = asyncio.Event()
    pause.set()
    readers = [asyncio.create_task(reader(room, run, seen, pause=pause)) for seen in found]
    await until(lambda: all(len(seen) >= 2 for seen in found))
    await until(lambda: not kept(room))
    pause.clear()
    speaker.words.put_nowait("word ")
    await until(lambda: kept(room))
    pause.set()
    await until(lambda: not kept(room))
    speaker.words.put_nowait("")
    await asyncio.gather(*readers)
    assert not feeds(room)


async def test_P4_P7_who_falls_behind_what_is_kept_catches_up_from_the_log(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLLOW_ROWS_MAX", 4)
    speaker, room, run = await begun(bench)
    quick, slow, late, pause = list[int](), list[int](), list[int](), asyncio.Event()
    tasks = [asyncio.create_task(reader(room, run, quick)), asyncio.create_task(reader(room, run, slow, pause=pause))]
    await until(lambda: len(quick) >= 2 and slow)
    for number in range(20):
        speaker.words.put_nowait(f"w{number} ")
    await until(lambda: len(quick) >= 16)
    assert kept(room) <= 8, "a page, and no more than as much again"
    tasks.append(asyncio.create_task(reader(room, run, late, after=3)))
    pause.set()
    speaker.words.put_nowait("")
    await asyncio.gather(*tasks)
    assert quick == slow == list(range(1, len(quick) + 1))
    assert 16 <= len(quick) <= 2 + 2 + 20 + 3 + 1, "words that come while others are written share a delta"
    assert late == quick[3:]


async def test_P4_a_reader_that_knows_more_than_this_process_was_told_is_believed(bench: Bench) -> None:
    """Its cursor comes from another process; here nobody has said yet that there is more."""
    if bench.place.kind == "ram":
        pytest.skip("one process only: what is told to one is told to all")
    speaker, room, run = await begun(bench)
    other = await bench.room(Acts(speaker.work))
    here, there, late = list[int](), list[int](), list[int]()
    tasks = [asyncio.create_task(reader(room, run, there)), asyncio.create_task(reader(other, run, here))]
    await until(lambda: len(here) >= 2 and len(there) >= 2)
    other.backend.wakeups.touch = lambda *topics: None  # type: ignore[attr-defined]
    for number in range(3):
        speaker.words.put_nowait(f"w{number} ")
    await until(lambda: len(there) >= 6)
    tasks.append(asyncio.create_task(reader(other, run, late, after=5)))
    await until(lambda: late)
    assert late[0] == 6
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    speaker.words.put_nowait("")


async def test_P4_a_reader_that_read_further_by_itself_than_this_process_was_told_is_believed(bench: Bench) -> None:
    """It came from the beginning, when what everybody else had taken was forgotten, and found more than they were told."""
    if bench.place.kind == "ram":
        pytest.skip("one process only: what is told to one is told to all")
    speaker, room, run = await begun(bench)
    other = await bench.room(Acts(speaker.work))
    here, there, late = list[int](), list[int](), list[int]()
    tasks = [asyncio.create_task(reader(room, run, there)), asyncio.create_task(reader(other, run, here))]
    await until(lambda: len(here) >= 4 and not kept(other))
    other.backend.wakeups.touch = lambda *topics: None  # type: ignore[attr-defined]
    speaker.words.put_nowait("more ")
    await until(lambda: len(there) > len(here))
    tasks.append(asyncio.create_task(reader(other, run, late)))
    await until(lambda: len(late) > len(here))
    await asyncio.sleep(0.05)
    assert not tasks[-1].done(), "it goes on following"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    speaker.words.put_nowait("")


@pytest.mark.parametrize("how", ["the store fails", "it leaves"])
async def test_P4_a_read_that_one_reader_gives_up_halfway_loses_nothing_for_the_others(bench: Bench, how: str) -> None:
    """The end is read in two steps; who reads it for all of them meets a fault between them, or goes."""
    speaker, room, run = await begun(bench)
    found = [list[int]() for _ in range(3)]
    tasks = [asyncio.create_task(reader(room, run, seen)) for seen in found]
    look, halfway = room.backend.run, list[asyncio.Task[Any] | None]()

    async def faulty(*given: Any) -> Any:
        if asyncio.current_task() in tasks and not halfway:
            halfway.append(asyncio.current_task())
            if how == "the store fails":
                raise Unavailable("gone for a moment")
            await asyncio.sleep(3600)
        return await look(*given)

    speaker.words.put_nowait("word ")
    await until(lambda: all(len(seen) == 5 for seen in found))
    room.backend.run = faulty  # type: ignore[method-assign]
    speaker.words.put_nowait("")
    await until(lambda: halfway)
    if how == "it leaves":
        tasks[tasks.index(halfway[0])].cancel()  # type: ignore[arg-type]
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(end is None for end in ends) == 2
    assert sorted(map(len, found)) == [5, 9, 9]
    assert all(seen == list(range(1, len(seen) + 1)) for seen in found)


async def test_P6_a_log_that_is_compacted_under_a_slow_reader_is_gone_not_wrong(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FOLLOW_ROWS_MAX", 2)
    room = await bench.room()
    run = (await ask(room, "hi", options=STREAM)).run
    events = room.followers.events(LOCAL, run.id, room.followers.cursor(run, None))
    first = await anext(events)
    assert first is not None
    now = room.backend.clock.wall_ms()
    write = Compact(run=run.id, rows=(*rows.OPENED, rows.end_row(())))
    await room.backend.commit(Batch(id=ids.new(ids.home(run.id), now), scope=LOCAL, at=now, writes=(write,)))
    with pytest.raises(Gone) as gone:
        async for _ in events:
            pass
    assert gone.value.reason == "cursor_gone"
