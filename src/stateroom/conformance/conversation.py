"""C1 to C7: what a store promises about the record."""

from __future__ import annotations

import asyncio
from itertools import chain
from pathlib import Path

from stateroom.batch import Draft
from stateroom.conformance.kit import Actor, refusal
from stateroom.conformance.suite import Suite
from stateroom.conversation.model import (
    Append,
    Appended,
    DeleteConversation,
    DeleteItem,
    Fork,
    Forked,
    SetMetadata,
)
from stateroom.errors import Conflict, InvalidInput, NotFound
from stateroom.ids import NIL


async def append_in_pairs(actor: Actor, branch: bytes, name: str, *, times: int = 10) -> list[Appended]:
    return [await actor.appends(branch, f"{name}{n}a", f"{name}{n}b") for n in range(times)]


class ConversationPromises(Suite):
    # ── appending ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_C1_an_append_shows_all_its_items_in_order(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        receipt = await alice.appends(conversation, "one", "two")
        assert receipt == Appended(branch=conversation, first=1, tail=2)
        assert [(i.seq, i.role, i.origin, i.trust, i.branch) for i in await alice.items(conversation)] == [
            (1, "user", "user", 60, conversation),
            (2, "user", "user", 60, conversation),
        ]
        assert await alice.reads(conversation) == ["one", "two"]

    async def test_C2_P2_seqs_are_dense_whichever_handle_writes(self, alice: Actor, beside: Actor) -> None:
        conversation = await alice.opens_conversation()
        receipts = await asyncio.gather(append_in_pairs(alice, conversation, "a"), append_in_pairs(beside, conversation, "b"))
        self.dense(await alice.items(conversation), list(chain(*receipts)))
        assert await alice.reads(conversation) == await beside.reads(conversation)

    async def test_C2_P2_seqs_are_dense_with_writers_in_threads(self, alice: Actor, place: Path) -> None:
        conversation = await alice.opens_conversation()
        receipts = await self.in_threads(place, lambda actor: append_in_pairs(actor, conversation, "t"))
        self.dense(await alice.items(conversation), list(chain(*receipts)))

    def dense(self, items: list, receipts: list[Appended]) -> None:  # type: ignore[type-arg]
        assert [item.seq for item in items] == list(range(1, len(items) + 1))
        given = sorted(seq for receipt in receipts for seq in range(receipt.first, receipt.tail + 1))
        assert given == [item.seq for item in items], "every seq was given once"

    async def test_C2_a_deleted_items_seq_is_not_given_again(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("one", "two")
        await alice.deletes(conversation, "two")
        await alice.appends(conversation, "three")
        assert [item.seq for item in await alice.items(conversation)] == [1, 3]

    async def test_C3_a_stale_expected_tail_is_told_the_tail_and_writes_nothing(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("one", "two")
        before = await alice.store.branch(alice.scope, conversation)
        error = await refusal(alice.appends(conversation, "late", expected_tail=1))
        assert isinstance(error, Conflict)
        assert (error.reason, error.facts) == ("tail_conflict", {"tail": 2})
        assert await alice.store.branch(alice.scope, conversation) == before
        assert (await alice.appends(conversation, "three", expected_tail=2)).tail == 3

    async def test_C3_of_two_appends_that_expect_the_same_tail_one_wins(self, alice: Actor, beside: Actor) -> None:
        conversation = await alice.opens_conversation("one")
        acts = [actor.appends(conversation, "two", expected_tail=1) for actor in (alice, beside) for _ in range(5)]
        done = await asyncio.gather(*acts, return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in done) == ["Appended"] + 9 * ["Conflict"]
        assert await alice.reads(conversation) == ["one", "two"]

    async def test_C6_P30_bodies_come_back_byte_for_byte(self, alice: Actor) -> None:
        bodies = [
            b'{ "type":"message" ,"role":"user","content":"spaces kept" }',
            b'{"type":"x_from_tomorrow","a":1.50,"deep":[{"z":null,"b":"\\u00fc"}],"u":"\xf0\x9f\x9a\xaa"}',
            b'{"b":1,"a":2,"n":123456789012345678901234567890,"type":"custom"}',
        ]
        drafts = tuple(
            Draft(id=alice.new_id(), kind=f"kind_{n}", role="", origin="unknown", trust=0, body=body)
            for n, body in enumerate(bodies)
        )
        conversation = await alice.opens_conversation()
        await alice.does(Append(branch=conversation, items=drafts))
        items = await alice.items(conversation)
        assert [item.body for item in items] == bodies
        assert [(item.id, item.kind, item.origin, item.trust) for item in items] == [
            (draft.id, draft.kind, "unknown", 0) for draft in drafts
        ]

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_pages_go_both_ways_across_a_forks_edge(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation(*"abcd")
        fork = await alice.forks(conversation, 3)
        await alice.appends(fork, "x", "y")
        assert await alice.reads(fork) == [*"abcxy"]
        assert await alice.reads(fork, limit=2, after=2) == ["c", "x"]
        assert await alice.reads(fork, limit=2, newest_first=True) == ["y", "x"]
        assert await alice.reads(fork, limit=2, before=4, newest_first=True) == ["c", "b"]
        assert await alice.reads(fork, after=1, before=5) == ["b", "c", "x"]
        assert await alice.reads(fork, after=5) == []

    async def test_a_page_is_full_though_items_in_it_were_deleted(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation(*"abcdef")
        for text in "bcd":
            await alice.deletes(conversation, text)
        assert await alice.reads(conversation, limit=2) == ["a", "e"]
        assert await alice.reads(conversation, limit=2, before=6, newest_first=True) == ["e", "a"]

    async def test_items_can_be_read_by_run_and_by_id(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("before")
        run = (await alice.asks(conversation, "question")).run
        await alice.appends(conversation, "aside")
        await alice.answers(run, "answer")
        assert await alice.reads(conversation, run=run.id) == ["question", "answer"]
        (first, *_) = await alice.items(conversation)
        assert await alice.store.item(alice.scope, conversation, first.id) == first

    async def test_conversations_are_listed_by_creation_and_chains_are_not(self, alice: Actor) -> None:
        made = []
        for _ in range(5):
            made.append(await alice.opens_conversation())
            await alice.opens_conversation(kind="chain")
            self.clock.advance(1)

        async def listed(after: bytes, limit: int, newest_first: bool) -> list[bytes]:
            rows = await alice.store.conversations(alice.scope, after=after, limit=limit, newest_first=newest_first)
            return [row.id for row in rows]

        assert await listed(NIL, 10, False) == made
        assert await listed(NIL, 2, True) == [made[4], made[3]]
        assert await listed(made[3], 10, True) == [made[2], made[1], made[0]]
        assert await listed(made[3], 10, False) == [made[4]]

    async def test_metadata_is_replaced_whole(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        await alice.does(SetMetadata(conversation=conversation, metadata=b'{"b":"2"}'))
        assert (await alice.store.conversation(alice.scope, conversation)).metadata == b'{"b":"2"}'

    # ── forks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_C4_P25_a_fork_writes_the_same_rows_at_any_length(self, alice: Actor, place: Path) -> None:
        short = await alice.opens_conversation(*(str(n) for n in range(10)))
        long = await alice.opens_conversation(*(str(n) for n in range(2_000)))
        costs = []
        for conversation, up_to in ((short, 10), (long, 2_000)):
            before = self.rows(place)
            await alice.forks(conversation, up_to)
            after = self.rows(place)
            costs.append({name: after[name] - before[name] for name in after if after[name] != before[name]})
        assert costs[0] == costs[1]
        assert sum(costs[0].values()) <= 4

    async def test_C4_a_fork_shows_its_parent_as_it_was_then(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("one", "two", "three")
        fork = await alice.forks(conversation, 2)
        await alice.appends(conversation, "four")
        assert await alice.reads(fork) == ["one", "two"]
        assert (await alice.appends(fork, "other")).first == 3
        assert await alice.reads(fork) == ["one", "two", "other"]
        assert await alice.reads(conversation) == ["one", "two", "three", "four"]
        assert (await alice.store.branch(alice.scope, fork)).conversation == conversation

    async def test_C4_a_fork_point_lies_within_the_branch(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("one")
        for up_to in (-1, 2):
            error = await refusal(alice.forks(conversation, up_to))
            assert isinstance(error, InvalidInput)
            assert error.reason == "fork_point_invalid"
        assert await alice.reads(await alice.forks(conversation, 0)) == []

    async def test_C4_nested_forks_hang_on_the_nearest_branch_that_owns_something(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("one", "two", "three")
        empty = await alice.forks(conversation, 3)
        over_empty = await alice.gets(Forked, Fork(id=alice.new_id(), parent=empty, up_to=3))
        assert over_empty.parent == conversation
        await alice.appends(empty, "four")
        on_item = await alice.gets(Forked, Fork(id=alice.new_id(), parent=empty, up_to=4))
        below_item = await alice.gets(Forked, Fork(id=alice.new_id(), parent=empty, up_to=3))
        assert (on_item.parent, below_item.parent) == (empty, conversation)
        await alice.deletes(empty, "two")
        on_tombstone = await alice.gets(Forked, Fork(id=alice.new_id(), parent=empty, up_to=2))
        below_tombstone = await alice.gets(Forked, Fork(id=alice.new_id(), parent=empty, up_to=1))
        assert (on_tombstone.parent, below_tombstone.parent) == (empty, conversation)
        shown = [await alice.reads(fork.id) for fork in (over_empty, on_item, below_item, on_tombstone, below_tombstone)]
        assert shown == [
            ["one", "two", "three"],
            ["one", "two", "three", "four"],
            ["one", "two", "three"],
            ["one"],
            ["one"],
        ]

    async def test_C4_a_fork_can_become_a_conversation_of_its_own(self, alice: Actor) -> None:
        chain_ = await alice.opens_conversation("one", "two", kind="chain")
        fork = await alice.forks_away(chain_, 1)
        row = await alice.store.conversation(alice.scope, fork)
        assert (row.kind, row.subject, row.owner) == ("chain", "someone", "alice")
        assert (await alice.store.branch(alice.scope, fork)).conversation == fork
        await alice.appends(fork, "other")
        assert await alice.reads(fork) == ["one", "other"]

    # ── deletions ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def test_C5_earlier_forks_keep_a_deleted_item_and_later_ones_never_show_it(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("one", "two", "three")
        earlier = await alice.forks(conversation, 3)
        await alice.deletes(conversation, "two")
        between = await alice.forks(conversation, 3)
        await alice.deletes(conversation, "one")
        later = await alice.forks(conversation, 3)
        shown = [await alice.reads(branch) for branch in (conversation, earlier, between, later)]
        assert shown == [["three"], ["one", "two", "three"], ["one", "three"], ["three"]]

    async def test_C5_a_fork_of_an_earlier_fork_still_shows_what_that_one_shows(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("one", "two")
        earlier = await alice.forks(conversation, 2)
        await alice.deletes(conversation, "one")
        assert await alice.reads(await alice.forks(earlier, 2)) == ["one", "two"]

    async def test_C5_a_fork_deletes_its_ancestors_item_for_itself_only(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("one", "two")
        fork = await alice.forks(conversation, 2)
        before = await alice.forks(fork, 2)
        await alice.deletes(fork, "one")
        after = await alice.forks(fork, 2)
        shown = [await alice.reads(branch) for branch in (conversation, fork, before, after)]
        assert shown == [["one", "two"], ["two"], ["one", "two"], ["two"]]

    async def test_C5_deleting_shows_in_the_revision_and_happens_once(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("one", "two")
        item, _ = await alice.items(conversation)
        before = await alice.store.branch(alice.scope, conversation)
        await alice.does(DeleteItem(branch=conversation, item=item.id))
        after = await alice.store.branch(alice.scope, conversation)
        assert after.revision > before.revision
        assert (after.deletions, after.tail) == (before.deletions + 1, before.tail)
        for again in (
            alice.does(DeleteItem(branch=conversation, item=item.id)),
            alice.store.item(alice.scope, conversation, item.id),
        ):
            error = await refusal(again)
            assert isinstance(error, NotFound)

    async def test_C5_an_item_of_another_branch_cannot_be_deleted(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("one", "two")
        fork = await alice.forks(conversation, 1)
        await alice.appends(fork, "other")
        (_, other), (_, two) = await alice.items(fork), await alice.items(conversation)
        assert isinstance(await refusal(alice.does(DeleteItem(branch=conversation, item=other.id))), NotFound)
        assert isinstance(await refusal(alice.does(DeleteItem(branch=fork, item=two.id))), NotFound)

    async def test_C5_a_payload_is_purged_when_no_branch_shows_it(self, place: Path) -> None:
        async with self.handle(place) as store:
            alice = Actor(store)
            conversation = await alice.opens_conversation("kept-by-a-fork", "gone-for-all", "stays")
            fork = await alice.forks(conversation, 1)
            await alice.deletes(conversation, "kept-by-a-fork")
            await alice.deletes(conversation, "gone-for-all")
            assert await alice.reads(fork) == ["kept-by-a-fork"]
        assert self.holds(place, b"kept-by-a-fork")
        assert self.holds(place, b"stays")
        assert not self.holds(place, b"gone-for-all")

    async def test_C5_a_purge_leaves_what_a_living_fork_shows_through_a_deleted_one(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("one", "two")
        middle = await alice.forks_away(conversation, 2)
        await alice.appends(middle, "three")
        living = await alice.forks_away(middle, 3)
        await alice.does(DeleteConversation(conversation=middle))
        await alice.deletes(conversation, "one")
        assert await alice.reads(living) == ["one", "two", "three"]

    async def test_a_deleted_conversation_is_gone_with_its_branches(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation("one")
        fork = await alice.forks(conversation, 1)
        await alice.does(DeleteConversation(conversation=conversation))
        for act in (
            alice.store.conversation(alice.scope, conversation),
            alice.store.branch(alice.scope, fork),
            alice.items(conversation),
            alice.appends(fork, "more"),
            alice.asks(conversation, "still there?"),
            alice.does(DeleteConversation(conversation=conversation)),
        ):
            assert isinstance(await refusal(act), NotFound)
        assert await alice.store.conversations(alice.scope, after=NIL, limit=10) == []

    async def test_a_conversation_with_a_turn_at_work_cannot_be_deleted(self, alice: Actor) -> None:
        conversation = await alice.opens_conversation()
        run = (await alice.asks(conversation, "working")).run
        for _ in range(2):
            error = await refusal(alice.does(DeleteConversation(conversation=conversation)))
            assert isinstance(error, Conflict)
            assert error.reason == "conversation_busy"
            if run.status == "in_progress":
                run = await alice.requeues(run)
        await alice.cancels(run)
        await alice.does(DeleteConversation(conversation=conversation))

    async def test_payloads_go_with_their_conversation_except_what_a_fork_elsewhere_shows(self, place: Path) -> None:
        async with self.handle(place) as store:
            alice = Actor(store)
            origin = await alice.opens_conversation("shared-words")
            fork = await alice.forks_away(origin, 1)
            lonely = await alice.opens_conversation("lonely-words")
            await alice.does(DeleteConversation(conversation=origin), DeleteConversation(conversation=lonely))
            assert await alice.reads(fork) == ["shared-words"]
        assert not self.holds(place, b"lonely-words")
        assert self.holds(place, b"shared-words")
        async with self.handle(place) as store:
            await Actor(store).does(DeleteConversation(conversation=fork))
        assert not self.holds(place, b"shared-words")
