"""C5, D7: what nobody shows any more is gone from the store, and what somebody shows is not."""

from __future__ import annotations

from pathlib import Path

from stateroom.conformance.kit import Actor, put, refusal
from stateroom.conformance.suite import Suite
from stateroom.conversation.model import DeleteConversation
from stateroom.errors import Gone, NotFound
from stateroom.run.model import DeleteRun


class PurgePromises(Suite):
    """A payload goes when no living branch shows it, in whatever order things are deleted."""

    async def test_a_fork_keeps_its_items_when_its_parent_deleted_others_of_the_same_seq(self, alice: Actor) -> None:
        origin = await alice.opens_conversation("1", "2", "3", "4")
        await alice.deletes(origin, "3")
        fork = await alice.forks(origin, 2)
        await alice.appends(fork, "f3", "f4")
        assert await alice.reads(fork) == ["1", "2", "f3", "f4"]

    async def test_an_item_deleted_on_parent_and_fork_is_purged(self, place: Path) -> None:
        async with self.handle(place) as store:
            alice = Actor(store)
            origin = await alice.opens_conversation("both-words", "kept")
            fork = await alice.forks(origin, 2)
            await alice.deletes(origin, "both-words")
            assert await alice.reads(fork) == ["both-words", "kept"]
            await alice.deletes(fork, "both-words")
        assert not self.holds(place, b"both-words")
        assert self.holds(place, b"kept")

    async def test_a_fork_that_is_gone_keeps_nothing(self, place: Path) -> None:
        async with self.handle(place) as store:
            alice = Actor(store)
            origin = await alice.opens_conversation("first-words", "later-words", "kept")
            fork = await alice.forks_away(origin, 3)
            await alice.deletes(origin, "first-words")
            await alice.does(DeleteConversation(conversation=fork))
            await alice.deletes(origin, "later-words")
        assert not self.holds(place, b"first-words")
        assert not self.holds(place, b"later-words")
        assert self.holds(place, b"kept")

    async def test_what_lies_beyond_the_last_fork_goes_with_its_conversation(self, place: Path) -> None:
        async with self.handle(place) as store:
            alice = Actor(store)
            origin = await alice.opens_conversation("shared-words", "own-words")
            fork = await alice.forks_away(origin, 1)
            await alice.does(DeleteConversation(conversation=origin))
            assert await alice.reads(fork) == ["shared-words"]
        assert not self.holds(place, b"own-words")
        assert self.holds(place, b"shared-words")

    async def test_a_chain_deleted_from_its_beginning_leaves_nothing(self, place: Path) -> None:
        async with self.handle(place) as store:
            alice = Actor(store)
            first = (await alice.asks(await alice.opens_conversation(kind="chain"), "one-words")).run
            first = (await alice.answers(first, "One-words")).run
            second = (await alice.answers((await alice.follows(first, "two-words")).run, "Two-words")).run
            await alice.does(DeleteRun(run=first.id))
            assert await alice.reads(second.branch) == ["one-words", "One-words", "two-words", "Two-words"]
            await alice.does(DeleteRun(run=second.id))
        for words in (b"one-words", b"One-words", b"two-words", b"Two-words"):
            assert not self.holds(place, words)

    async def test_desks_and_runs_go_with_their_conversation(self, place: Path) -> None:
        async with self.handle(place) as store:
            alice = Actor(store)
            conversation = await alice.opens_conversation()
            session = await alice.opens_session(conversation=conversation, agent="clerk")
            await alice.patches(session, put("size", "slot-words"))
            await alice.patches(session, put("size", "newer-words"))
            run = (await alice.asks(conversation, "hello", options=b'{"instructions":"option-words"}')).run
            run = (await alice.answers(run, "fine")).run
            await alice.does(DeleteConversation(conversation=conversation))
            assert isinstance(await refusal(store.session(alice.scope, session)), Gone)
            assert isinstance(await refusal(alice.run(run)), NotFound)
        for words in (b"slot-words", b"newer-words", b"option-words"):
            assert not self.holds(place, words)
