"""P22: documents of replicas that were offline. Needs the extra `docs`."""

from __future__ import annotations

from typing import Any

import pytest

from stateroom.conformance.kit import Actor, refusal
from stateroom.conformance.suite import Suite
from stateroom.errors import Conflict, InvalidInput
from stateroom.session import doc
from stateroom.session.model import RollBack, SlotPatch


def update(body: bytes, **fields: Any) -> SlotPatch:
    return SlotPatch(name="spec", kind="doc", op="update", body=body, **fields)


class Replica:
    """Somebody's copy of a document."""

    def __init__(self, snapshot: bytes = b"") -> None:
        self.loro = pytest.importorskip("loro")
        self.document = self.loro.LoroDoc()
        if snapshot:
            self.document.import_(snapshot)

    def writes(self, text: str, at: int = 0) -> bytes:
        """The update that this edit makes."""
        before = self.document.oplog_vv
        self.document.get_text("text").insert(at, text)
        self.document.commit()
        return bytes(self.document.export(self.loro.ExportMode.Updates(before)))

    def says(self) -> Any:
        return self.document.get_deep_value()


class DocPromises(Suite):
    async def test_P22_replicas_converge_whatever_the_order(self, alice: Actor, beside: Actor) -> None:
        session = await alice.opens_session()
        await alice.patches(session, update(Replica().writes("hello")))
        start = await alice.store.document(alice.scope, session, "spec")
        assert (start.version, start.epoch) == (1, 1)
        one, two = Replica(start.snapshot), Replica(start.snapshot)
        first, second, third = one.writes("A"), two.writes("B", 5), one.writes("C")
        for actor, change in ((beside, second), (alice, first), (alice, third), (beside, second)):
            await actor.patches(session, update(change, epoch=1))
        merged = await beside.store.document(beside.scope, session, "spec")
        for replica in (one, two):
            replica.document.import_(merged.snapshot)
        assert one.says() == two.says() == (await alice.desk(session))["spec"]
        assert sorted(one.says()["text"]) == sorted("helloABC")
        assert doc.since(merged.snapshot, one.document.oplog_vv.encode()) is not None

    async def test_P22_an_update_that_builds_on_what_is_not_there_is_refused(self, alice: Actor) -> None:
        session = await alice.opens_session()
        replica = Replica()
        first, second = replica.writes("a"), replica.writes("b")
        error = await refusal(alice.patches(session, update(second)))
        assert (type(error), error.reason) == (Conflict, "doc_update_incomplete")
        assert await alice.desk(session) == {}
        await alice.patches(session, update(first))
        await alice.patches(session, update(second))
        assert await alice.desk(session) == {"spec": {"text": "ba"}}

    async def test_P22_P31_bytes_that_are_no_document_are_refused(self, alice: Actor) -> None:
        session = await alice.opens_session()
        whole = Replica().writes("hello")
        for bad in (b"garbage", whole[:-3], bytes([*whole[:20], whole[20] ^ 1, *whole[21:]])):
            error = await refusal(alice.patches(session, update(bad)))
            assert (type(error), error.reason) == (InvalidInput, "doc_invalid")
        assert await alice.desk(session) == {}

    async def test_P22_a_new_epoch_has_no_past_and_takes_no_update_of_an_old_one(self, alice: Actor) -> None:
        session = await alice.opens_session()
        replica = Replica()
        await alice.patches(session, update(replica.writes("secret")))
        replica.document.get_text("text").delete(0, 6)
        replica.document.commit()
        await alice.patches(session, update(bytes(replica.document.export(replica.loro.ExportMode.Snapshot()))))
        await alice.patches(session, SlotPatch(name="spec", kind="doc", op="restart", body=None))
        now = await alice.store.document(alice.scope, session, "spec")
        assert (now.epoch, now.version) == (3, 3)
        assert b"secret" not in now.snapshot
        error = await refusal(alice.patches(session, update(replica.writes("late"), epoch=1)))
        assert (error.reason, error.facts["epoch"]) == ("doc_epoch_over", 3)

    async def test_P18_P22_a_document_that_was_rolled_back_begins_a_new_epoch(self, alice: Actor) -> None:
        session = await alice.opens_session()
        replica = Replica()
        await alice.patches(session, update(replica.writes("good")))
        undone = replica.writes("bad ")
        await alice.patches(session, update(undone))
        await alice.does(RollBack(session=session, by="alice", version=1))
        now = await alice.store.document(alice.scope, session, "spec")
        assert (now.version, now.epoch, Replica(now.snapshot).says()) == (3, 3, {"text": "good"})
        assert (await refusal(alice.patches(session, update(undone, epoch=1)))).reason == "doc_epoch_over"
        assert await alice.desk(session) == {"spec": {"text": "good"}}
