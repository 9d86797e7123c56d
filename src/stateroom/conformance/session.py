"""S1 to S7: what a store promises about desks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stateroom.conformance.kit import OTHER_WORKER, Actor, put, refusal
from stateroom.conformance.suite import Suite
from stateroom.errors import AlreadyExists, Conflict, Gone, InvalidInput, LimitExceeded, StaleFence
from stateroom.ids import NIL
from stateroom.limits import PATCH_SLOTS_MAX, SLOTS_MAX
from stateroom.session.model import EndSession, SlotPatch


async def count_up(actor: Actor, session: bytes, times: int) -> list[int]:
    return [await actor.sets(session, n=n) for n in range(times)]


async def compare_and_set(actor: Actor, session: bytes, times: int) -> None:
    """Add one, so often as it takes to do it `times` times."""
    done = 0
    while done < times:
        slots = await actor.store.slots(actor.scope, session)
        version, value = (slots[0].version, int(slots[0].body or b"0")) if slots else (0, 0)
        await asyncio.sleep(0)  # let the other one in between
        try:
            await actor.patches(session, put("n", value + 1, expected=version))
            done += 1
        except Conflict:
            continue


class SessionPromises(Suite):
    async def test_S1_P21_the_version_grows_by_one_per_patch(self, alice: Actor) -> None:
        session = await alice.opens_session()
        assert (await alice.store.session(alice.scope, session)).version == 0
        assert await alice.sets(session, size=43, colour="green") == 1
        assert await alice.sets(session, size=44) == 2
        slots = await alice.store.slots(alice.scope, session)
        assert [(slot.name, slot.version, slot.body) for slot in slots] == [("colour", 1, b'"green"'), ("size", 2, b"44")]
        assert (await alice.store.session(alice.scope, session)).version == 2

    async def test_S1_P21_no_version_is_given_twice(self, alice: Actor, beside: Actor, place: Path) -> None:
        session = await alice.opens_session()
        given = [*await asyncio.gather(count_up(alice, session, 10), count_up(beside, session, 10))]
        given += await self.in_threads(place, lambda actor: count_up(actor, session, 10))
        assert sorted(version for versions in given for version in versions) == list(range(1, 51))

    async def test_S1_P21_compare_and_set_loses_no_update(self, alice: Actor, beside: Actor) -> None:
        session = await alice.opens_session()
        await asyncio.gather(compare_and_set(alice, session, 10), compare_and_set(beside, session, 10))
        assert await alice.desk(session) == {"n": 20}

    async def test_S1_P21_patches_through_one_handle_at_once_get_versions_of_their_own(self, alice: Actor) -> None:
        session = await alice.opens_session()
        versions = await asyncio.gather(*(alice.sets(session, **{f"n{number}": number}) for number in range(20)))
        assert sorted(versions) == list(range(1, 21))
        assert await alice.desk(session) == {f"n{number}": number for number in range(20)}

    async def test_S2_a_stale_slot_is_told_its_version_and_nothing_is_written(self, alice: Actor) -> None:
        session = await alice.opens_session()
        await alice.sets(session, size=43)
        await alice.sets(session, colour="green")
        patch = alice.patches(session, put("budget", 80), put("size", 44, expected=2), put("colour", "red", expected=0))
        error = await refusal(patch)
        assert isinstance(error, Conflict)
        assert error.reason == "slot_conflict"
        assert error.facts == {"version": 2, "slots": {"size": 1, "colour": 2}, "values": {"colour": "green", "size": 43}}
        assert await alice.desk(session) == {"size": 43, "colour": "green"}
        assert (await alice.store.session(alice.scope, session)).version == 2

    async def test_S2_expected_zero_means_absent_and_removed_is_absent(self, alice: Actor) -> None:
        session = await alice.opens_session()
        await alice.patches(session, put("size", 43, expected=0))
        assert isinstance(await refusal(alice.patches(session, put("size", 44, expected=0))), Conflict)
        await alice.sets(session, size=None)
        error = await refusal(alice.patches(session, put("size", 44, expected=2)))
        assert error.facts["slots"] == {"size": 0}
        assert await alice.patches(session, put("size", 44, expected=0)) == 3

    async def test_S2_a_stale_session_version_is_told_the_version(self, alice: Actor) -> None:
        session = await alice.opens_session()
        await alice.sets(session, size=43)
        error = await refusal(alice.patches(session, put("colour", "green"), expected_version=0))
        assert (error.reason, error.facts) == ("version_conflict", {"version": 1})
        assert await alice.patches(session, put("colour", "green"), expected_version=1) == 2

    async def test_S2_bad_names_and_double_names_write_nothing(self, alice: Actor) -> None:
        session = await alice.opens_session()
        for patches in ([put("", 1)], [put("a", 1), put("a", 2)], [put("good", 1), put("x" * 65, 1)]):
            assert isinstance(await refusal(alice.patches(session, *patches)), InvalidInput)
        assert await alice.desk(session) == {}

    async def test_P31_a_session_has_a_bound_of_names(self, alice: Actor) -> None:
        session = await alice.opens_session()
        names = [f"n{n}" for n in range(SLOTS_MAX)]
        for start in range(0, SLOTS_MAX, PATCH_SLOTS_MAX):
            await alice.patches(session, *(put(name, 1) for name in names[start : start + PATCH_SLOTS_MAX]))
        error = await refusal(alice.sets(session, n0=2, one_more=1))
        assert (type(error), error.reason) == (LimitExceeded, "too_many_slots")
        assert len(await alice.desk(session)) == SLOTS_MAX
        await alice.sets(session, n0=2, n1=None)
        assert (await refusal(alice.sets(session, one_more=1))).reason == "too_many_slots", "the delta still tells of n1"
        await alice.sets(session, n1=3)
        assert (await alice.desk(session))["n1"] == 3

    async def test_S3_patches_to_different_slots_never_collide(self, alice: Actor, beside: Actor) -> None:
        session = await alice.opens_session()
        await alice.sets(session, size=1, colour=1)
        await alice.patches(session, put("size", 2, expected=1))
        await beside.patches(session, put("colour", 2, expected=1))
        assert await alice.desk(session) == {"size": 2, "colour": 2}

    async def test_S4_the_delta_is_what_changed_since_removals_included(self, alice: Actor) -> None:
        session = await alice.opens_session()
        await alice.sets(session, a=1, b=1, c=1)
        await alice.sets(session, b=2)
        await alice.sets(session, c=None)
        assert await alice.desk(session) == {"a": 1, "b": 2}
        assert await alice.desk(session, since=1) == {"b": 2, "c": None}
        assert await alice.desk(session, since=2) == {"c": None}
        assert await alice.desk(session, since=3) == {}

    async def test_S5_P8_a_stale_fence_patches_nothing(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        run = (await alice.asks(conversation, "work", session=alice.new_id())).run
        await alice.patches(run.session, put("size", 43), run=run.id, fence=run.fence)
        again = await alice.claims(await alice.requeues(run), OTHER_WORKER)
        error = await refusal(alice.patches(run.session, put("size", 44), run=run.id, fence=run.fence))
        assert isinstance(error, StaleFence)
        assert await alice.desk(run.session) == {"size": 43}
        await alice.patches(run.session, put("size", 45), run=run.id, fence=again.run.fence)
        await alice.answers(again.run)
        late = alice.patches(run.session, put("size", 46), run=run.id, fence=again.run.fence)
        assert isinstance(await refusal(late), StaleFence)
        assert await alice.desk(run.session) == {"size": 45}

    async def test_S6_earlier_versions_are_kept_apart(self, alice: Actor) -> None:
        session = await alice.opens_session()
        for value in ("small", None, "large"):
            await alice.sets(session, size=value)
        past = await alice.store.past(alice.scope, session, "size", 10)
        assert [(slot.version, slot.body) for slot in past] == [(2, None), (1, b'"small"')]
        assert [slot.version for slot in await alice.store.past(alice.scope, session, "size", 1)] == [2]
        assert await alice.store.past(alice.scope, session, "other", 10) == []

    async def test_S6_a_slot_keeps_what_it_came_with(self, alice: Actor) -> None:
        session = await alice.opens_session()
        body = b'{ "n" : 1.0, "z":[ ] }'
        patch = SlotPatch(name="cart", body=body, schema="cart/2", origin="tool", trust=20)
        await alice.patches(session, patch, run=b"r" * 16)
        (slot,) = await alice.store.slots(alice.scope, session)
        assert (slot.body, slot.schema, slot.origin, slot.trust, slot.kind) == (body, "cart/2", "tool", 20, "value")
        assert (slot.by, slot.run, slot.at) == ("alice", b"r" * 16, self.clock.wall_ms())

    async def test_S7_turns_of_one_conversation_and_agent_share_one_session(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        sessions = []
        for agent in ("clerk", "clerk", "other"):
            run = (await alice.asks(conversation, "hello", agent=agent, session=alice.new_id())).run
            await alice.answers(run)
            sessions.append(run.session)
        assert sessions[0] == sessions[1] != sessions[2]
        bound = await alice.store.bound(alice.scope, conversation, "clerk")
        assert bound is not None
        assert (bound.id, bound.lineage, bound.owner, bound.subject) == (sessions[0], sessions[0], "alice", "someone")
        assert await alice.store.bound(alice.scope, conversation, "nobody") is None

    async def test_S7_of_racing_openings_one_wins(self, alice: Actor, beside: Actor) -> None:
        conversation = await alice.opens_conversation()
        acts = [actor.opens_session(conversation=conversation, agent="a") for actor in (alice, beside) for _ in range(5)]
        outcomes = await asyncio.gather(*acts, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes].count(AlreadyExists) == 9
        won = next(outcome for outcome in outcomes if isinstance(outcome, bytes))
        bound = await alice.store.bound(alice.scope, conversation, "a")
        assert bound is not None
        assert bound.id == won

    async def test_S7_a_turn_without_a_desk_opens_none(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        accepted = await alice.asks(conversation, "hello")
        assert (accepted.run.session, accepted.session_version) == (NIL, 0)
        assert await alice.store.sessions(alice.scope, after=NIL, limit=10) == []

    async def test_S7_the_turn_is_told_the_version_of_its_desk(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        session = await alice.opens_session(conversation=conversation, agent="clerk")
        await alice.sets(session, size=43)
        accepted = await alice.asks(conversation, "hello", session=alice.new_id())
        assert (accepted.run.session, accepted.session_version) == (session, 1)

    async def test_an_ended_session_is_gone_and_makes_room_for_another(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        session = await alice.opens_session(conversation=conversation, agent="clerk")
        await alice.does(EndSession(session=session))
        for act in (
            alice.store.session(alice.scope, session),
            alice.desk(session),
            alice.store.past(alice.scope, session, "size", 1),
            alice.sets(session, size=1),
            alice.does(EndSession(session=session)),
        ):
            error = await refusal(act)
            assert isinstance(error, Gone)
            assert error.reason == "session_ended"
        assert await alice.store.bound(alice.scope, conversation, "clerk") is None
        offered = alice.new_id()
        assert (await alice.asks(conversation, "hello", session=offered)).run.session == offered
        assert [row.id for row in await alice.store.sessions(alice.scope, after=NIL, limit=10)] == [offered]

    async def test_sessions_are_listed_newest_first(self, alice: Actor) -> None:
        made = []
        for _ in range(4):
            made.append(await alice.opens_session())
            self.clock.advance(1)
        first = await alice.store.sessions(alice.scope, after=NIL, limit=3)
        rest = await alice.store.sessions(alice.scope, after=first[-1].id, limit=3)
        assert [row.id for row in [*first, *rest]] == made[::-1]
