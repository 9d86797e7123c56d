"""What you can ask of sessions: open, read what changed, patch, go back, fork, end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from stateroom import given, ids, limits
from stateroom.batch import Batch, ClaimKey, Receipt, Write, key_ref
from stateroom.clock import Clock
from stateroom.errors import Conflict, InvalidInput
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.session import access, kinds, rules, versions
from stateroom.session.access import NOBODY, Acting
from stateroom.session.changes import Changes
from stateroom.session.model import (
    Change,
    Checkpoint,
    Document,
    DropCheckpoint,
    EndSession,
    Entry,
    ForkSession,
    HoldDesk,
    MakeCheckpoint,
    OpenSession,
    PatchSlots,
    RollBack,
    Session,
    SetAccess,
    Slot,
    SlotKind,
    SlotPatch,
    TouchSession,
)
from stateroom.session.receipts import Held, Marked, Patched, RolledBack
from stateroom.session.store import SessionStore
from stateroom.session.working import Working
from stateroom.wire import json

R = TypeVar("R", bound=Receipt)


class Committing(SessionStore, Protocol):
    """The part of a backend this service needs."""

    @property
    def clock(self) -> Clock: ...

    async def commit(self, batch: Batch) -> tuple[Receipt, ...]: ...


class Sessions:
    """The session room's face for the layers above."""

    def __init__(self, store: Committing) -> None:
        self._store = store

    async def open(
        self,
        scope: Scope,
        *,
        id: bytes = NIL,
        subject: str = "",
        metadata: bytes = b"{}",
        slots: Mapping[str, Any] | None = None,
        claim: ClaimKey | None = None,
    ) -> Session:
        """A desk of its own (invocations style), optionally with first slots."""
        id = id if id != NIL else self.new_id()
        write = OpenSession(id=id, owner=scope.principal, subject=subject or scope.principal, metadata=metadata)
        return await self.open_as(scope, write, slots=slots, claim=claim)

    async def open_as(
        self,
        scope: Scope,
        write: OpenSession,
        *,
        slots: Mapping[str, Any] | None = None,
        changes: Changes | None = None,
        claim: ClaimKey | None = None,
    ) -> Session:
        """The same, with all that a desk may be told: bound to a conversation, with a time to live."""
        first = [tuple(patches_of(slots))] if slots else [] if changes is None else changes.layers()
        for patches in first:
            rules.check_patches(patches)
        patching = [PatchSlots(session=write.id, patches=patches, by=scope.principal) for patches in first]
        writes = [*_after(claim), write, *patching]
        await self._commit(scope, write.id, *writes)
        return await self._store.session(scope, write.id)

    async def get(self, scope: Scope, session: bytes) -> Session:
        return await self._store.session(scope, session)

    async def bound(self, scope: Scope, conversation: bytes, agent: str) -> Session | None:
        """The desk that a conversation's turns with this agent work on; None before the first one."""
        return await self._store.bound(scope, conversation, agent)

    async def recent(self, scope: Scope, *, after: bytes = NIL, limit: int = 20) -> list[Session]:
        return await self._store.sessions(scope, after=after, limit=limits.page(limit))

    async def slots(self, scope: Scope, session: bytes, *, since: int = 0) -> list[Slot]:
        """Slots changed after version `since`; removals (body None) only when `since` > 0."""
        return await self._store.slots(scope, session, since)

    async def slot(self, scope: Scope, session: bytes, name: str) -> Slot:
        """One slot as it is. NotFound when it is not there."""
        given.text(name, "name")
        found = await self._store.slots(scope, session)
        for slot in found:
            if slot.name == name:
                return slot
        raise rules.no_slot(name)

    async def state(self, scope: Scope, session: bytes) -> dict[str, Any]:
        """The desk as plain values."""
        slots = await self._store.slots(scope, session)
        return {slot.name: json.decode_trusted(slot.body) for slot in slots if slot.body is not None}

    async def patch(
        self,
        scope: Scope,
        session: bytes,
        patches: Sequence[SlotPatch],
        *,
        expected_version: int | None = None,
        claim: ClaimKey | None = None,
    ) -> Patched:
        """Change slots, all or none. Conflict with the actual versions when a precondition does not hold."""
        rules.check_patches(patches)
        write = PatchSlots(session=session, patches=tuple(patches), by=scope.principal, expected_version=expected_version)
        receipts = await self._commit(scope, session, *([write] if claim is None else [claim, write]))
        patched = receipts[-1]
        assert isinstance(patched, Patched)
        return patched

    async def change(
        self,
        scope: Scope,
        session: bytes,
        changes: Changes,
        *,
        expected_version: int | None = None,
        acting: Acting = NOBODY,
        claim: ClaimKey | None = None,
    ) -> Patched:
        """Several changes, all or none; the version then, and every slot that they changed. One that is changed twice has had two
        versions."""
        given.whole_or_none(expected_version, "expected_version")
        layers = changes.layers()
        for patches in layers:
            rules.check_patches(patches)
        writes = [
            PatchSlots(
                session=session,
                patches=patches,
                by=scope.principal,
                expected_version=None if n else expected_version,
                seen=() if n else tuple(sorted(changes.seen.items())),
                agent=acting.agent,
                hold=acting.hold,
            )
            for n, patches in enumerate(layers)
        ]
        if not writes:
            raise InvalidInput("There is nothing to change.", code="patch_empty")
        receipts = await self._commit(scope, session, *_after(claim), *writes)
        patched = [receipt for receipt in receipts if isinstance(receipt, Patched)]
        slots = {slot.name: slot for one in patched for slot in one.slots}
        return Patched(session=session, version=patched[-1].version, slots=tuple(slots.values()))

    async def update(
        self,
        scope: Scope,
        session: bytes,
        change: Callable[[Working], Any],
        *,
        expected_version: int | None = None,
        acting: Acting = NOBODY,
        claim: ClaimKey | None = None,
    ) -> int:
        """Let `change` work on the state, and write what it changed; returns the session's version then. When somebody was
        quicker at anything it looked at, the desk is read anew and it is asked again, up to UPDATE_TRIES_MAX times: it must
        not do anything else. Its last conflict is raised then."""
        for tries_left in range(limits.UPDATE_TRIES_MAX - 1, -1, -1):
            if expected_version is not None:  # a change that is meant for another version need not even fit this one
                rules.check_version(expected_version, (await self._store.session(scope, session)).version)
            state = Working(await self.seen(scope, session, acting.agent))
            rules.check_silent(change(state))
            if not (patches := state.patches()):
                return await self._nothing(scope, session, expected_version, claim)
            rules.check_patches(patches)
            write = PatchSlots(
                session=session,
                patches=tuple(patches),
                by=scope.principal,
                seen=state.seen(),
                expected_version=expected_version,
                agent=acting.agent,
                hold=acting.hold,
            )
            try:
                if state.walked and expected_version is None:
                    write = replace(write, expected_version=await self._whole(scope, session, state, acting.agent))
                patched = (await self._commit(scope, session, *_after(claim), write))[-1]
                assert isinstance(patched, Patched)
                return patched.version
            except Conflict as quicker:
                again = quicker.reason == "slot_conflict" or (expected_version is None and quicker.reason == "version_conflict")
                if not again or not tries_left:
                    raise
                await asyncio.sleep(_rest_s(limits.UPDATE_TRIES_MAX - tries_left))
        raise AssertionError("the last try raises or returns")

    async def _whole(self, scope: Scope, session: bytes, state: Working, agent: str) -> int:
        """The version of a desk that has these slots and no others: who looked at all of them decided by what was not there
        as well. Conflict when there is anything else by now."""
        head = await self._store.session(scope, session)
        if {slot.name: slot.version for slot in await self.seen(scope, session, agent)} != state.versions:
            raise Conflict("Slots changed meanwhile.", code="slot_conflict", version=head.version)
        return head.version

    async def _nothing(self, scope: Scope, session: bytes, expected: int | None, claim: ClaimKey | None) -> int:
        """Nothing was changed, which is right only as long as the desk is what its caller thinks it is."""
        head = await self._store.session(scope, session)
        rules.check_version(expected, head.version)
        if claim is not None:
            await self._commit(scope, session, replace(claim, ref=key_ref(claim.ref, head.version)))
        return head.version

    # ── versions ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def slots_at(self, scope: Scope, session: bytes, version: int) -> list[Slot]:
        """The slots as they were. Gone when that version is no longer kept."""
        return await self._store.slots_at(scope, session, given.whole(version, "version"))

    async def diff(self, scope: Scope, session: bytes, before: int, *, after: int) -> list[Change]:
        """The slots that differ between two versions, by name."""
        old = await self._store.slots_at(scope, session, before)
        return versions.diff(old, await self._store.slots_at(scope, session, after))

    async def checkpoints(self, scope: Scope, session: bytes, *, limit: int = limits.PAGE_ITEMS_MAX) -> list[Checkpoint]:
        """Newest version first."""
        return await self._store.checkpoints(scope, session, limits.page(limit))

    async def checkpoint(
        self, scope: Scope, session: bytes, name: str, *, version: int | None = None, claim: ClaimKey | None = None
    ) -> Checkpoint:
        """Name a version (None: the present one), so that it is kept."""
        write = MakeCheckpoint(
            session=session, name=rules.check_name(name), by=scope.principal, version=given.whole_or_none(version, "version")
        )
        return (await self._does(Marked, scope, session, write, claim)).checkpoint

    async def drop_checkpoint(self, scope: Scope, session: bytes, name: str) -> None:
        """The name goes; NotFound when there is none."""
        await self._commit(scope, session, DropCheckpoint(session=session, name=given.text(name, "name")))

    async def roll_back(
        self,
        scope: Scope,
        session: bytes,
        to: str | int,
        *,
        expected_version: int | None = None,
        acting: Acting = NOBODY,
        claim: ClaimKey | None = None,
    ) -> RolledBack:
        """A new version equal to a checkpoint or an old version. What it undoes can be gone back to as well."""
        given.place(to)
        write = RollBack(
            session=session, by=scope.principal, checkpoint=to if isinstance(to, str) else "",
            version=to if isinstance(to, int) else None, expected_version=expected_version,
            agent=acting.agent, hold=acting.hold,
        )  # fmt: skip
        return await self._does(RolledBack, scope, session, write, claim)

    async def fork(
        self,
        scope: Scope,
        session: bytes,
        *,
        version: int | None = None,
        metadata: bytes = b"{}",
        id: bytes = NIL,
        claim: ClaimKey | None = None,
    ) -> Session:
        """A desk of its own that begins as this one was at `version` (None: as it is)."""
        made = id if id != NIL else ids.new(ids.home(session), self._store.clock.wall_ms())
        write = ForkSession(id=made, parent=session, owner=scope.principal, version=version, metadata=metadata)
        await self._commit(scope, session, *_after(claim), write)
        return await self._store.session(scope, made)

    # ── windows and documents ───────────────────────────────────────────────────────────────────────────────────────

    async def entries(
        self, scope: Scope, session: bytes, name: str, *, as_of: int | None = None, limit: int = limits.READ_ITEMS_MAX
    ) -> list[Entry]:
        """What a window shows as of a time (ms; None: now), oldest first; never anything later."""
        given.text(name, "name")
        at = given.whole_or_none(as_of, "as_of")
        return await self._store.entries(scope, session, name, as_of=at, limit=limits.page(limit))

    async def document(self, scope: Scope, session: bytes, name: str) -> Document:
        """A document as a replica takes it up."""
        return await self._store.document(scope, session, given.text(name, "name"))

    # ── agents on one desk ──────────────────────────────────────────────────────────────────────────────────────────

    async def seen(self, scope: Scope, session: bytes, agent: str) -> list[Slot]:
        """The living slots that an agent sees. The rules are read first and again, should they have changed meanwhile."""
        found = await self._store.slots(scope, session)
        return found if not agent else access.seen((await self._store.session(scope, session)).access, agent, found)

    async def grant(
        self, scope: Scope, session: bytes, agent: str, *, rules: access.Grant | None, claim: ClaimKey | None = None
    ) -> Patched:
        """What an agent may read and write; None: nothing is said of it any more."""
        read, write = (None, None) if rules is None else (rules.read, rules.write)
        for one in (*(read or ()), *(write or ())):
            given.text(one, "slot")
        change = SetAccess(session=session, agent=given.text(agent, "agent"), read=read, write=write)
        return await self._does(Patched, scope, session, change, claim)

    async def hold(self, scope: Scope, write: HoldDesk, *, claim: ClaimKey | None = None) -> Held:
        """A desk into an agent's hands, from one's hands to another's, or out of them."""
        given.text(write.holder, "holder")
        return await self._does(Held, scope, write.session, write, claim)

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def touch(self, scope: Scope, session: bytes, *, claim: ClaimKey | None = None) -> None:
        """An interaction without a change: the desk's time to live begins anew."""
        await self._commit(scope, session, *_after(claim), TouchSession(session=session))

    async def end(self, scope: Scope, session: bytes) -> None:
        await self._commit(scope, session, EndSession(session=session))

    def new_id(self) -> bytes:
        return ids.new(ids.new_home(), self._store.clock.wall_ms())

    async def _does(self, kind: type[R], scope: Scope, session: bytes, write: Write, claim: ClaimKey | None = None) -> R:
        """One write, and its receipt."""
        receipt = (await self._commit(scope, session, *_after(claim), write))[-1]
        assert isinstance(receipt, kind)
        return receipt

    async def _commit(self, scope: Scope, session: bytes, *writes: Write) -> tuple[Receipt, ...]:
        now = self._store.clock.wall_ms()
        return await self._store.commit(Batch(id=ids.new(ids.home(session), now), scope=scope, at=now, writes=writes))


def _rest_s(lost: int) -> float:
    """Whoever lost against many others again and again comes back at another moment than they do."""
    return 0 if lost < 4 else lost * ids.salt()[0] / 255_000


def _after(claim: ClaimKey | None) -> list[Write]:
    """A key is claimed before what it stands for."""
    return [] if claim is None else [claim]


def patches_of(
    values: Mapping[str, Any], *, removed: Sequence[str] = (), expected: Mapping[str, int] | None = None
) -> list[SlotPatch]:
    """Plain values as patches. `expected` gives the versions the caller saw, per slot."""
    versions = expected or {}
    for value in values.values():
        kinds.check_integers(value)
    changed = [SlotPatch(name=name, body=json.encode(value), expected=versions.get(name)) for name, value in values.items()]
    return changed + [SlotPatch(name=name, body=None, expected=versions.get(name)) for name in removed]


def operation(name: str, kind: SlotKind, op: str, *, operand: Any) -> SlotPatch:
    """One of `kinds.OPERATIONS` on a slot, with a plain value as its operand."""
    kinds.check_integers(operand)
    return SlotPatch(name=name, kind=kind, op=op, body=json.encode(operand))
