"""Carry a desk elsewhere: all of it as one signed stream, out of one Stateroom and into another, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec
from msgspec.structs import replace

from stateroom import ids, limits
from stateroom.backends.base import Backend
from stateroom.batch import Batch, Receipt, Write
from stateroom.errors import AlreadyExists, InvalidInput, NotFound
from stateroom.flows import sealed
from stateroom.flows.failpoint import Failpoints
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.session import lifetime
from stateroom.session import remains as r
from stateroom.session.model import Checkpoint, Session
from stateroom.wire import json

Hit = Callable[[str], Awaitable[None]]
Source = Callable[[], AsyncIterator[bytes]]  # opened twice: the signature is looked at before anything is written


class Bundles:
    """`key` is shared by those who exchange bundles; without one, only the store that made a bundle opens it."""

    def __init__(self, backend: Backend, failpoints: Failpoints) -> None:
        self._backend, self._failpoints = backend, failpoints

    async def export(self, scope: Scope, session: bytes, *, key: bytes = b"") -> AsyncIterator[bytes]:
        """State, versions that are kept, checkpoints, what windows and documents hold, and the manifest."""
        head = await self._backend.session(scope, session)
        async for line in written(self._backend, scope, head, key=self._key(key)):
            yield line

    async def examine(self, source: Source, *, key: bytes = b"") -> sealed.Manifest:
        """The manifest of a bundle whose signature is right. InvalidInput `archive_tampered` else."""
        return await examined(source, self._key(key))

    async def import_(self, scope: Scope, source: Source, *, key: bytes = b"", same_id: bool = False) -> Session:
        """A desk of the caller's own, bound to no conversation, under a new id; or under the `same_id`: AlreadyExists when
        there is one."""
        manifest = await self.examine(source, key=key)
        theirs, now = manifest.session, self._backend.clock.wall_ms()
        lifetime.check_given(theirs.ttl_ms, 0)
        if theirs.id == NIL or len(theirs.id) != ids.ID_BYTES:
            raise InvalidInput("This is no archive of a session: it has no id.", code="archive_invalid")
        head = replace(
            r.whole(theirs), id=theirs.id if same_id else ids.new(ids.new_home(), now), owner=scope.principal,
            subject=scope.principal, conversation=NIL, dies_at=0, holder="", hold=0, held_until=0,
        )  # fmt: skip
        head = replace(head, lineage=head.id)
        if same_id:
            await self._check_free(scope, head.id)
        await brought(self._backend, scope, head, source=source, key=self._key(key), hit=self._failpoints.hit)
        return await self._backend.session(scope, head.id)

    async def _check_free(self, scope: Scope, id_: bytes) -> None:
        try:
            await self._backend.head(scope, id_)
        except NotFound:
            return
        raise AlreadyExists("A session with this id exists.")

    def _key(self, given: bytes) -> bytes:
        return sealed.key_of(given or self._backend.secret, "bundle")


async def written(backend: Backend, scope: Scope, head: Session, *, key: bytes) -> AsyncIterator[bytes]:
    """A desk as the lines of an archive. It may be written meanwhile only when it is none: the caller sees to it, or takes
    what each page finds."""
    writer = sealed.Writer(key)
    conversation = ids.text("conversation", head.conversation) if head.conversation != NIL else ""
    at = backend.clock.wall_ms()
    manifest = sealed.Manifest(stateroom=sealed.FORMAT, session=r.whole(head), conversation=conversation, at=at)
    said = Said(backend, scope, head.id, "manifest")
    yield writer.manifest(manifest, await said.of(("", 0, 0, 0)))
    for part in r.PARTS:
        after, beside = r.FIRST, [Said(backend, scope, head.id, of) for of in _SAID.get(part, (part,))]
        while page := await backend.remains(scope, head.id, part, after=after, limit=limits.ARCHIVE_ROWS):
            for remnant in page:
                own, *others = [await said.of(r.mark(remnant)) for said in beside]
                inner = json.encode({"slot": msgspec.Raw(own)}) if own and part == "past" else own
                yield writer.row(part, remnant, inner, *others)
            after = r.key(page[-1])
    async for unknown in Said(backend, scope, head.id, "+").all():
        yield writer.row(unknown.of[1:], msgspec.Raw(unknown.body))
    yield writer.end()


_SAID: Mapping[str, tuple[str, ...]] = {"past": ("slot", "past")}


class Said:
    """What newer versions said of a desk's records of one part, in the order of their keys."""

    def __init__(self, backend: Backend, scope: Scope, desk: bytes, of: str) -> None:
        self._backend, self._scope, self._desk, self._of = backend, scope, desk, of
        self._rows = self.all()
        self._next: r.Beyond | None = None
        self._over = False

    async def all(self) -> AsyncIterator[r.Beyond]:
        after: r.Key = (self._of, *r.FIRST[1:])
        while True:
            page = await self._backend.remains(self._scope, self._desk, "beyond", after=after, limit=limits.ARCHIVE_ROWS)
            for row in page:
                assert isinstance(row, r.Beyond)
                if not row.of.startswith(self._of):
                    return
                yield row
            if not page:
                return
            after = r.key(page[-1])

    async def of(self, key: r.Key) -> bytes:
        """Of one record; keys are asked for in their order."""
        while not self._over:
            row = self._next or await anext(self._rows, None)
            self._next, self._over = row, row is None
            if row is None or (row.name, row.k1, row.k2, row.k3) > key:
                return b""
            self._next = None
            if (row.name, row.k1, row.k2, row.k3) == key:
                return row.body
        return b""


async def examined(source: Source, key: bytes) -> sealed.Manifest:
    """Read to the end: only then is the signature known to be right."""
    reader = sealed.Reader(source(), key)
    manifest = await reader.manifest()
    async for _ in reader.rows():
        pass
    return manifest


async def brought(backend: Backend, scope: Scope, head: Session, *, source: Source, key: bytes, hit: Hit) -> None:
    """The rows of an archive onto a desk that nobody sees before all of them are there."""

    async def commit(*writes: Write) -> tuple[Receipt, ...]:
        now = backend.clock.wall_ms()
        return await backend.commit(Batch(id=ids.new(ids.home(head.id), now), scope=scope, at=now, writes=writes))

    (begun,) = await commit(r.BeginRestore(head=head))
    assert isinstance(begun, r.Restoring)
    reader, page = sealed.Reader(source(), key), list[r.Remnant]()
    await reader.manifest()
    if reader.rest and not begun.whole:
        page.append(r.set_apart("manifest", ("", 0, 0, 0), reader.rest))
    async for remnant in reader.rows():
        if begun.whole:
            continue
        page.append(_here(remnant, head))
        if len(page) >= limits.ARCHIVE_ROWS:
            await commit(r.PutRemnants(session=head.id, remnants=tuple(page)))
            page.clear()
            await hit("restore.begun")
    if page:
        await commit(r.PutRemnants(session=head.id, remnants=tuple(page)))
    await commit(r.Revive(head=head))


def _here(remnant: r.Remnant, head: Session) -> r.Remnant:
    """What it says of a conversation holds where that is."""
    if isinstance(remnant, Checkpoint) and head.conversation == NIL:
        return replace(remnant, branch=NIL, seq=0)
    return remnant
