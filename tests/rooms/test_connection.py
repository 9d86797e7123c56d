"""Cursors: a good one is read back, any other gets 400 or 410; and readers that follow a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from stateroom.backends.wakeups import LocalWakeups
from stateroom.connection.model import Cursor, epoch_of, parse
from stateroom.connection.service import Page, follow
from stateroom.errors import CursorInvalid, Gone, StateroomError

pytestmark = pytest.mark.anyio

EPOCH = epoch_of(7, b"r" * 16)


@pytest.mark.parametrize("seq", [0, 1, 42, 10**15 - 1])
def test_P6_a_cursor_reads_back(seq: int) -> None:
    cursor = Cursor(EPOCH, seq)
    assert parse(str(cursor), epoch=EPOCH) == cursor


@pytest.mark.parametrize(
    "given",
    [
        "",
        ".",
        "7",
        EPOCH,
        f"{EPOCH}.",
        f"{EPOCH}.-1",
        f"{EPOCH}.+1",
        f"{EPOCH}. 1",
        f"{EPOCH}.1.2",
        f"{EPOCH}.1e3",
        f"{EPOCH}.0x1",
        f"{EPOCH}.²",
        f"{EPOCH}.٣",
        f"{EPOCH}.{10**15}",
        f"{EPOCH[:-1]}.1",
        f"{EPOCH}0.1",
        f" {EPOCH}.1",
        "null",
        "\x00",
        "9" * 10_000,
    ],
)
def test_P6_P31_a_malformed_cursor_is_refused(given: str) -> None:
    with pytest.raises(CursorInvalid) as refused:
        parse(given, epoch=EPOCH)
    assert refused.value.reason == "cursor_invalid"


@pytest.mark.parametrize(
    "foreign",
    [epoch_of(7, b"s" * 16), epoch_of(8, b"r" * 16), "00000000"],
    ids=["another run", "another incarnation", "an invented one"],
)
def test_P6_a_cursor_of_another_stream_is_gone(foreign: str) -> None:
    with pytest.raises(Gone) as refused:
        parse(f"{foreign}.1", epoch=EPOCH)
    assert refused.value.reason == "cursor_gone"


def test_epochs_of_a_thousand_runs_differ() -> None:
    assert len({epoch_of(1, n.to_bytes(16, "big")) for n in range(1_000)}) == 1_000


# ── following ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Stream:
    """Events 1..n that appear as told; pages of two."""

    def __init__(self) -> None:
        self.head, self.ended, self.wakeups = 0, False, LocalWakeups()

    async def read(self, after: int) -> Page:
        return [(n, f"e{n}") for n in range(after + 1, min(after + 2, self.head) + 1)], self.ended, self.head

    def grows(self, to: int, *, ended: bool) -> None:
        self.head, self.ended = to, ended
        self.wakeups.touch(b"t")

    async def collect(self, start: int, on_idle: Callable[[], None] = lambda: None) -> list[int]:
        found = []
        events = follow(self.read, self.wakeups, topic=b"t", start=Cursor(EPOCH, start), poll_s=0.001)
        async for event in events:
            if event is None:
                on_idle()
            else:
                cursor, content = event
                assert (cursor.epoch, content) == (EPOCH, f"e{cursor.seq}")
                found.append(cursor.seq)
        return found


@pytest.mark.parametrize("start", range(6))
async def test_P4_a_reader_that_starts_anywhere_gets_the_rest_and_the_end(start: int) -> None:
    stream = Stream()
    stream.head, stream.ended = 5, True
    assert await stream.collect(start) == list(range(start + 1, 6))


async def test_P4_a_reader_gets_events_that_come_later() -> None:
    stream = Stream()
    found = stream.collect(0, lambda: stream.grows(stream.head + 3, ended=stream.head + 3 >= 9))
    assert await asyncio.wait_for(found, 10) == list(range(1, 10))


async def test_P5_a_stream_that_has_not_ended_does_not_end() -> None:
    stream = Stream()
    stream.head = 2
    idle = 0

    def count() -> None:
        nonlocal idle
        idle += 1
        if idle == 3:
            stream.grows(2, ended=True)

    assert await asyncio.wait_for(stream.collect(0, count), 10) == [1, 2]
    assert idle == 3


async def test_P6_a_cursor_ahead_of_the_stream_is_refused() -> None:
    stream = Stream()
    stream.head = 2
    with pytest.raises(StateroomError) as refused:
        await stream.collect(3)
    assert (type(refused.value), refused.value.reason) == (CursorInvalid, "cursor_ahead")
