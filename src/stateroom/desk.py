"""A session in the words a program needs: its state, its versions, its windows and documents."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from stateroom import given, ids, limits, stack
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.replies import CheckpointHead, SlotChange, SlotHead, changed, checkpoint_of, slot_of
from stateroom.session import access, rules, versions
from stateroom.session.access import Acting
from stateroom.session.changes import Changes
from stateroom.session.model import Document, Entry, HoldDesk, Session, Slot, SlotKind
from stateroom.wire import json


class Desk:
    """A session as it was last read: `state` has the values, `slot_versions` the version at which each last changed.

    What changes it returns the session's version then, and has read what others changed meanwhile.
    """

    def __init__(self, stateroom: stack.Stateroom, scope: Scope, session: Session, *, acting: str = "") -> None:
        self._stack, self._sessions, self._scope, self._key = stateroom, stateroom.sessions, scope, session.id
        self.id = ids.text("session", session.id)
        self.conversation = ids.text("conversation", session.conversation) if session.conversation != NIL else ""
        self.agent = session.agent
        self.version = 0
        self.state: dict[str, Any] = {}
        self.slot_versions: dict[str, int] = {}
        self._kinds: dict[str, SlotKind] = {}
        self._acting, self._rules = Acting(acting), session.access

    async def refresh(self) -> None:
        """Read what changed since the last time."""
        session = await self._sessions.get(self._scope, self._key)
        if session.access != self._rules:
            self._forget(session)
        if self.version:
            slots = await self._sessions.slots(self._scope, self._key, since=self.version)
        else:
            slots = await self._stack.hydrator.current(self._scope, session)
        self._take(slots, max([session.version, *(slot.version for slot in slots)]))

    def _take(self, slots: Sequence[Slot], version: int) -> None:
        """What changed since the version that is here, up to another one."""
        for slot in access.seen(self._rules, self._acting.agent, list(slots)):
            if slot.body is None:
                self.state.pop(slot.name, None)
                self.slot_versions.pop(slot.name, None)
                self._kinds.pop(slot.name, None)
            else:
                self.state[slot.name] = json.decode_trusted(slot.body)
                self.slot_versions[slot.name] = slot.version
                self._kinds[slot.name] = slot.kind
        self.version = version

    def _forget(self, session: Session) -> None:
        """Other rules show other slots."""
        self._rules, self.version = session.access, 0
        self.state.clear()
        self.slot_versions.clear()
        self._kinds.clear()

    async def _readable(self, name: str) -> None:
        """What may not be seen is not there."""
        if self._acting.agent and not access.may_read((await self._head()).access, self._acting.agent, name):
            raise rules.no_slot(name)

    async def _seen(self, slots: list[Slot]) -> list[Slot]:
        return access.seen((await self._head()).access, self._acting.agent, slots) if self._acting.agent else slots

    async def _head(self) -> Session:
        return await self._sessions.get(self._scope, self._key)

    async def slot(self, name: str) -> SlotHead:
        """One slot with its version, kind and schema, who wrote it, where it came from and how far it is trusted."""
        await self._readable(name)
        return slot_of(await self._sessions.slot(self._scope, self._key, name))

    # ── changing it ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def patch(
        self, values: Mapping[str, Any], *, removed: Sequence[str] = (), expected: Mapping[str, int] | None = None
    ) -> int:
        """Change slots, all or none. `expected` names the versions the caller saw (0: the slot must not exist): Conflict
        with the actual versions and values when somebody was quicker, also at one that is not changed here."""
        seen, wanted, gone = expected or {}, Changes(), given.names(removed, "removed")
        for name, value in values.items():
            wanted.set(name, value, expected=seen.get(name), kind=self._kinds.get(name, "value"))
        for name in gone:
            wanted.remove(name, expected=seen.get(name))
        wanted.seen = {name: given.whole(seen[name], "expected") for name in seen if name not in values and name not in gone}
        return await self.apply(wanted)

    async def apply(self, changes: Changes, *, expected_version: int | None = None) -> int:
        """Several changes, all or none: `await desk.apply(Changes().set("size", 10).count("visits"))`. `expected_version`
        guards the whole desk."""
        before = self.version
        patched = await self._sessions.change(
            self._scope, self._key, changes, expected_version=expected_version, acting=self._acting
        )
        if before == self.version == patched.version - len(changes.layers()):  # nobody came between: nothing is read
            self._take(patched.slots, patched.version)
        else:
            await self.refresh()
        return patched.version

    async def update(self, change: Callable[[dict[str, Any]], None]) -> int:
        """Let `change` work on the state, nested values too, and write what it changed; returns the version then. When
        somebody was quicker at anything it looked at, it is asked again on what is there now: it must do nothing else."""
        version = await self._sessions.update(self._scope, self._key, change, acting=self._acting)
        await self.refresh()
        return version

    async def set(self, name: str, value: Any, *, expected: int | None = None, schema: Any = "") -> int:
        """A slot's whole value, see `Changes.set`. `schema`: a JSON Schema, a msgspec or pydantic type, or the name of a
        shipped one."""
        return await self.apply(Changes().set(name, value, expected=expected, schema=schema, kind=self._kinds.get(name, "value")))

    async def remove(self, name: str, *, expected: int | None = None) -> int:
        return await self.apply(Changes().remove(name, expected=expected))

    async def merge(self, name: str, patch: Any, *, expected: int | None = None) -> int:
        """JSON Merge Patch (RFC 7396) of a value."""
        return await self.apply(Changes().merge(name, patch, expected=expected))

    async def edit(self, name: str, operations: Sequence[Mapping[str, Any]], *, expected: int | None = None) -> int:
        """JSON Patch (RFC 6902) of a value."""
        return await self.apply(Changes().edit(name, operations, expected=expected))

    async def count(self, name: str, by: int = 1) -> int:
        """More, or less, on a counter. It and what follows never conflicts with anybody."""
        return await self.apply(Changes().count(name, by))

    async def add(self, name: str, *members: Any) -> int:
        """Members of a set."""
        return await self.apply(Changes().add(name, *members))

    async def discard(self, name: str, *members: Any) -> int:
        return await self.apply(Changes().discard(name, *members))

    async def append(self, name: str, *elements: Any) -> int:
        """Elements at the end of a list."""
        return await self.apply(Changes().append(name, *elements))

    async def put(self, name: str, entries: Mapping[str, Any]) -> int:
        """Entries of a map, by key."""
        return await self.apply(Changes().put(name, entries))

    async def drop(self, name: str, *keys: str) -> int:
        """Keys of a map."""
        return await self.apply(Changes().drop(name, *keys))

    # ── windows and documents ───────────────────────────────────────────────────────────────────────────────────────

    async def window(self, name: str, *, seconds: float | None = None, size: int | None = None) -> int:
        """What a window keeps: the last `seconds`, the last `size` bytes, or what fits both."""
        return await self.apply(Changes().window(name, seconds=seconds, size=size))

    async def observe(self, name: str, body: bytes, *, at: int = 0, media: str = "application/octet-stream") -> int:
        """An entry of a window. `at`: when it was observed, ms since 1970; 0: now."""
        return await self.apply(Changes().observe(name, body, at=at, media=media))

    async def entries(self, name: str, *, as_of: int | None = None, limit: int = limits.READ_ITEMS_MAX) -> list[Entry]:
        """What a window shows as of a time (ms; None: now), oldest first; never anything later."""
        await self._readable(name)
        return await self._sessions.entries(self._scope, self._key, name, as_of=as_of, limit=limit)

    async def document(self, name: str) -> Document:
        """A document as a replica takes it up: its `snapshot` for Loro, and its `epoch`."""
        await self._readable(name)
        return await self._sessions.document(self._scope, self._key, name)

    async def sync(self, name: str, update: bytes, *, epoch: int | None = None) -> int:
        """What a replica changed in a document, or a whole new one; `epoch` of the document it had."""
        return await self.apply(Changes().sync(name, update, epoch=epoch))

    async def restart(self, name: str) -> int:
        """A document goes on without its past, in another epoch."""
        return await self.apply(Changes().restart(name))

    # ── versions ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def at(self, version: int) -> dict[str, Any]:
        """The state as it was. Gone when that version is no longer kept."""
        slots = await self._seen(await self._sessions.slots_at(self._scope, self._key, version))
        return {slot.name: json.decode_trusted(slot.body) for slot in slots if slot.body is not None}

    async def diff(self, before: int, after: int | None = None) -> list[SlotChange]:
        """The slots that differ between two versions, by name; `after` None: as it is now."""
        until = (await self._sessions.get(self._scope, self._key)).version if after is None else after
        old, new = [await self._seen(await self._sessions.slots_at(self._scope, self._key, one)) for one in (before, until)]
        return [changed(one) for one in versions.diff(old, new)]

    async def checkpoint(self, name: str, *, version: int | None = None) -> CheckpointHead:
        """Name a version (None: the present one), so that it is kept and can be gone back to."""
        return checkpoint_of(await self._sessions.checkpoint(self._scope, self._key, name, version=version))

    async def checkpoints(self, *, limit: int = limits.PAGE_ITEMS_MAX) -> list[CheckpointHead]:
        """The versions that have names, newest first; automatic ones begin with a dot."""
        return [checkpoint_of(one) for one in await self._sessions.checkpoints(self._scope, self._key, limit=limit)]

    async def drop_checkpoint(self, name: str) -> None:
        """The name goes; its version stays for the forks that were made from it. Conflict for the name by which a fork holds
        it (`.fork/…`)."""
        await self._sessions.drop_checkpoint(self._scope, self._key, name)

    async def roll_back(self, to: str | int, *, expected_version: int | None = None) -> int:
        """A new version equal to a checkpoint or an old version, and the conversation as it was then. What it undoes becomes a
        checkpoint as well. Busy while a turn is active."""
        done = await self._stack.rollbacks.to(self._scope, self._key, to, expected_version=expected_version, acting=self._acting)
        await self.refresh()
        return done.version

    async def fork(
        self, *, to: str | int | None = None, conversation: bool = False, metadata: Mapping[str, str] | None = None
    ) -> Desk:
        """A desk of its own that begins as this one was at a checkpoint or version (None: as it is). With `conversation` its
        conversation is forked with it, at the same place."""
        tags, forks = json.from_plain(metadata or {}), self._stack.forks
        if conversation:
            made, _ = await forks.both(self._scope, self._key, to=to, metadata=tags)
        else:
            made = await forks.session(self._scope, self._key, to=to, metadata=tags)
        desk = Desk(self._stack, self._scope, made, acting=self._acting.agent)
        await desk.refresh()
        return desk

    async def watch(self, *, after: int | None = None) -> AsyncGenerator[dict[str, Any], None]:
        """Every patch after a version, one by one and live until the session's end: `session.patch` events with `version`,
        `slots`, `removed`, `by` and `agent`. Without `after` the first event is the state as it is. To go on later, give the
        version of the last event."""
        start = None if after is None else self._stack.watchers.at(self._key, given.whole(after, "after"))
        agent = self._acting.agent
        async with aclosing(self._stack.watchers.events(self._scope, self._key, start, agent=agent)) as events:
            async for found in events:
                if found is not None:
                    yield found[1]

    # ── agents on one desk ──────────────────────────────────────────────────────────────────────────────────────────

    async def allow(self, agent: str, *, read: Sequence[str] = (), write: Sequence[str] = ()) -> None:
        """What an agent may see and change: slots by name, or by how their names begin (`files.*`; `*`: all). Agents that are
        not named may do what `*` may, and nothing when nothing is said of it. Before the first rule everything is open."""
        grant = access.Grant(read=given.names(read, "read"), write=given.names(write, "write"))
        access.check_whole(await self._head(), self._acting.agent)
        await self._sessions.grant(self._scope, self._key, agent, rules=grant)

    async def hold(self, holder: str = "", *, seconds: float) -> int:
        """Take the desk into this agent's (or `holder`'s) hands for a while, or keep it; Conflict `desk_held` when it is in
        others. The fence that comes back is given with every change from here on: StaleFence when somebody else has it."""
        return await self._hold(holder or self._acting.agent, seconds)

    async def hand_over(self, to: str, *, seconds: float) -> int:
        """Into another agent's hands; what this one still writes is refused. The fence is for `take_over` there."""
        return await self._hold(to, seconds, mine=False)

    def take_over(self, fence: int) -> None:
        """Go on with a desk that was handed over."""
        self._acting = Acting(self._acting.agent, given.whole(fence, "fence"))

    async def let_go(self) -> None:
        """Out of everybody's hands."""
        await self._hold("", 0)
        self._acting = Acting(self._acting.agent)

    async def _hold(self, holder: str, seconds: float, *, mine: bool = True) -> int:
        write = HoldDesk(
            session=self._key, holder=holder, ms=given.ms(seconds, "seconds", code="hold_invalid"), hold=self._acting.hold
        )
        held = await self._sessions.hold(self._scope, write)
        if mine:
            self._acting = Acting(self._acting.agent, held.hold)
        return held.hold

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def touch(self) -> None:
        """An interaction without a change: its time to live begins anew."""
        await self._sessions.touch(self._scope, self._key)

    async def end(self) -> None:
        """It is over: reading it answers `gone`, and what lies on it is gone at once, but for what a fork stands on. No hook is
        asked: what should be archived first is left to expire."""
        await self._sessions.end(self._scope, self._key)
