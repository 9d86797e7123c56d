"""S17 and S18: what agents may do on a desk, and in whose hands it is (P8)."""

from __future__ import annotations

from stateroom.conformance.desk_versions import forks_desk, goes_back
from stateroom.conformance.kit import Actor, put, refusal
from stateroom.conformance.suite import Suite
from stateroom.errors import Conflict, Forbidden, InvalidInput, StaleFence
from stateroom.session.model import HoldDesk, SetAccess
from stateroom.session.receipts import Held, Patched


async def allows(actor: Actor, session: bytes, agent: str, *, read: tuple[str, ...], write: tuple[str, ...]) -> int:
    return (await actor.gets(Patched, SetAccess(session=session, agent=agent, read=read, write=write))).version


async def holds(actor: Actor, session: bytes, holder: str, *, ms: int = 30_000, hold: int = 0) -> Held:
    return await actor.gets(Held, HoldDesk(session=session, holder=holder, ms=ms, hold=hold))


class HoldPromises(Suite):
    async def test_S17_an_agent_changes_what_it_may_and_nothing_is_half_written(self, alice: Actor, beside: Actor) -> None:
        session = await alice.opens_session()
        await alice.sets(session, spec=1, secret=1)
        assert await allows(alice, session, "coder", read=("spec",), write=("files.*",)) == 2
        await beside.patches(session, put("files.a", 1), agent="coder")
        for patches, seen in (
            ((put("spec", 2),), ()),
            ((put("files.b", 1), put("secret", 2)), ()),
            ((put("files.b", 1, expected=0),), ()),
            ((put("files.b", 1),), (("secret", 1),)),
        ):
            error = await refusal(alice.patches(session, *patches, agent="coder", seen=seen))
            assert isinstance(error, Forbidden)
            assert error.reason == "slot_forbidden"
        assert isinstance(await refusal(alice.patches(session, put("files.b", 1), agent="other")), Forbidden)
        assert isinstance(await refusal(goes_back(alice, session, version=1, agent="coder")), Forbidden)
        assert (await alice.store.session(alice.scope, session)).version == 3
        await alice.patches(session, put("spec", 2))  # whoever it belongs to may

    async def test_S17_a_refusal_is_the_same_whether_or_not_there_is_such_a_slot(self, alice: Actor) -> None:
        session = await alice.opens_session()
        await alice.sets(session, secret=1)
        await allows(alice, session, "coder", read=(), write=("mine",))
        there, absent = [await refusal(alice.patches(session, put(name, 1), agent="coder")) for name in ("secret", "absent")]
        assert there.message.replace("secret", "absent") == absent.message
        assert (there.facts, there.reason) == (absent.facts, absent.reason)

    async def test_S17_a_fork_has_its_parents_rules_and_rules_can_go(self, alice: Actor) -> None:
        session = await alice.opens_session()
        await allows(alice, session, "*", read=("*",), write=("a",))
        fork = await forks_desk(alice, session)
        await alice.patches(fork, put("a", 1), agent="anybody")
        assert isinstance(await refusal(alice.patches(fork, put("b", 1), agent="anybody")), Forbidden)
        await alice.does(SetAccess(session=fork, agent="*"))
        await alice.patches(fork, put("b", 1), agent="anybody")
        assert isinstance(await refusal(alice.patches(session, put("b", 1), agent="anybody")), Forbidden)
        assert isinstance(await refusal(alice.does(SetAccess(session=session, agent="", read=()))), InvalidInput)

    async def test_S18_P8_a_desk_is_in_one_pair_of_hands_and_a_stale_one_writes_nothing(
        self, alice: Actor, beside: Actor
    ) -> None:
        session = await alice.opens_session()
        first = await holds(alice, session, "planner")
        error = await refusal(holds(beside, session, "coder"))
        assert isinstance(error, Conflict)
        assert (error.reason, error.facts) == ("desk_held", {"holder": "planner"})
        assert (await holds(alice, session, "planner", hold=first.hold)).hold == first.hold
        await alice.patches(session, put("a", 1), hold=first.hold)
        second = await holds(alice, session, "coder", hold=first.hold)
        assert (second.holder, second.hold) == ("coder", first.hold + 1)
        assert isinstance(await refusal(alice.patches(session, put("a", 2), hold=first.hold)), StaleFence)
        assert isinstance(await refusal(holds(alice, session, "planner", hold=first.hold)), StaleFence)
        assert isinstance(await refusal(goes_back(alice, session, version=0, hold=first.hold)), StaleFence)
        await beside.patches(session, put("a", 3), hold=second.hold)
        await alice.patches(session, put("b", 1))  # without hands: as ever
        let_go = await holds(beside, session, "", ms=0, hold=second.hold)
        assert (let_go.holder, let_go.hold) == ("", second.hold + 1)
        assert isinstance(await refusal(alice.patches(session, put("a", 4), hold=second.hold)), StaleFence)
        assert (await holds(alice, session, "planner")).hold == second.hold + 2
