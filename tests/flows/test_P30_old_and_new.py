"""Old and new workers on one store: a fixture build one schema further on, with a column, a field and an item type that
this build does not know (P30)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from stateroom import ids
from stateroom.backends.sql.migration import Migration, Step
from stateroom.backends.sqlite import schema
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.backends.sqlite.migrate import migrate
from stateroom.conversation.model import ItemQuery
from stateroom.errors import InvalidInput
from stateroom.flows.agent import AgentEvent, Delta, Output, Turn
from stateroom.flows.turn import TurnRequest
from stateroom.principal import LOCAL
from stateroom.session.model import SlotPatch
from stateroom.stack import Stateroom
from tests.flows.conftest import Acts

pytestmark = pytest.mark.anyio

LATER = (
    "alter table item add column mood text; alter table run add column priority integer not null default 5;"
    "alter table slot add column colour text; create table later(tenant integer, home integer, id blob);"
)
NEWER = Migration(version=schema.VERSION + 1, name="a later build", needs=1, steps=(Step(LATER),))
STRANGE = b'{"type":"hologram","depth":1.50,"parts":[{"type":"beam","n":12345678901234567890}],"future":{"a":null}}'
FIELDS = b'{"type":"message","role":"user","content":"hi","sentiment":{"score":0.10},"tags":["x"]}'


async def odd(turn: Turn) -> AsyncIterator[AgentEvent]:
    if "boom" in turn.text:
        raise RuntimeError("no")
    yield Output({"type": "hologram_reply", "depth": 2, "future": [1, {"b": None}]})
    yield Delta("ok")
    turn.set("n", turn.slots.get("n", 0) + 1)


async def opened(place: Path) -> Stateroom:
    backend = await SqliteBackend.open(place)
    return Stateroom(backend, {"odd": Acts(odd, "odd")}, owner=backend.owner, default_agent="odd")


def newer_build(place: Path) -> apsw.Connection:
    """What a later build does to the file: its migration, and its own columns on rows that are in flight."""
    db = apsw.Connection(str(place / "state.db"))
    assert migrate(db, 0, migrations=(*schema.MIGRATIONS, NEWER)) == 1
    db.execute("update item set mood = 'glad' where seq = 1")
    db.execute("update run set priority = 9")
    db.execute("update slot set colour = 'red'")
    return db


async def test_P30_an_older_worker_keeps_a_newer_ones_columns_and_goes_on_working(tmp_path: Path) -> None:
    room = await opened(tmp_path)
    conversation = (await room.conversations.create(LOCAL)).id
    first = await answer(room, conversation, FIELDS)
    db = newer_build(tmp_path)
    second = await answer(room, conversation, FIELDS)
    await room.sessions.patch(LOCAL, first.run.session, [SlotPatch(name="n", body=b"7")])
    assert [row for (row,) in db.execute("select mood from item where seq = 1")] == ["glad"]
    assert dict(db.execute("select hex(id), priority from run").fetchall()) == {
        first.run.id.hex().upper(): 9,
        second.run.id.hex().upper(): 5,
    }
    assert db.execute("select colour, body from slot where name = 'n'").fetchall() == [("red", b"7")]
    db.close()
    await room.close()
    again = await opened(tmp_path)  # an older worker also starts on the newer store
    assert (await answer(again, conversation, FIELDS)).run.status == "completed"
    await again.close()


async def test_P30_a_failed_turn_keeps_a_newer_ones_columns_on_the_items_it_marks(tmp_path: Path) -> None:
    room = await opened(tmp_path)
    conversation = (await room.conversations.create(LOCAL)).id
    await answer(room, conversation, FIELDS)
    db = newer_build(tmp_path)
    failed = await answer(room, conversation, b'{"type":"message","role":"user","content":"boom","sentiment":1}')
    assert failed.run.status == "failed"
    assert db.execute("select mark, mood, body from item where run = ?", (failed.run.id,)).fetchall() == [
        ("failed", None, b'{"type":"message","role":"user","content":"boom","sentiment":1}')
    ]
    db.close()
    await room.close()


async def test_P30_unknown_types_and_fields_come_back_byte_for_byte(tmp_path: Path) -> None:
    room = await opened(tmp_path)
    conversation = (await room.conversations.create(LOCAL, items=[STRANGE])).id
    await answer(room, conversation, FIELDS)
    items = await room.conversations.items(LOCAL, ItemQuery(branch=conversation, limit=10))
    assert [item.body for item in items[:2]] == [STRANGE, FIELDS]
    assert (items[0].kind, items[0].origin, items[0].trust) == ("hologram", "unknown", 0)
    assert items[2].body == b'{"type":"hologram_reply","depth":2,"future":[1,{"b":null}]}'
    await room.close()


async def test_a_store_that_needs_a_newer_worker_is_refused_and_left_untouched(tmp_path: Path) -> None:
    await (await opened(tmp_path)).close()
    db = apsw.Connection(str(tmp_path / "state.db"))
    db.execute("update meta set value = ? where name = 'needs'", (schema.VERSION + 1,))
    db.close()
    before = (tmp_path / "state.db").read_bytes()
    with pytest.raises(InvalidInput) as refused:
        await opened(tmp_path)
    assert refused.value.reason == "store_too_new"
    assert (tmp_path / "state.db").read_bytes() == before


async def answer(room: Stateroom, conversation: bytes, body: bytes):  # type: ignore[no-untyped-def]
    ticket = await room.turns.take(LOCAL, TurnRequest(agent="odd", input=(body,), conversation=conversation))
    return await room.turns.outcome(LOCAL, ticket.run.id, timeout_s=10)


def test_ids_read_back() -> None:
    id_ = ids.new(513, 1_700_000_000_000)
    assert (ids.home(id_), ids.parse("run", ids.text("run", id_))) == (513, id_)
