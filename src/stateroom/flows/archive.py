"""Cold storage for desks that have expired: put away whole and signed before they are purged, and brought back (P23)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec.structs import replace

from stateroom import ids
from stateroom.backends.base import Backend
from stateroom.errors import InvalidInput
from stateroom.flows import sealed
from stateroom.flows.bundle import brought, examined, written
from stateroom.flows.cold import ColdStore
from stateroom.flows.failpoint import Failpoints
from stateroom.principal import Scope
from stateroom.session import remains as r
from stateroom.session.model import Session


class Archives:
    """`cold` is where they lie; None: nothing is put away, and nothing comes back."""

    def __init__(self, backend: Backend, cold: ColdStore | None, failpoints: Failpoints) -> None:
        self._backend, self._cold, self._failpoints = backend, cold, failpoints
        self._key = sealed.key_of(backend.secret, "archive")

    @property
    def possible(self) -> bool:
        return self._cold is not None

    def name(self, head: Session) -> str:
        """A place for it. Each try has one of its own: two workers never write over each other, and one that comes after the
        purge not over what the other has put away."""
        return f"{ids.text('session', head.id)}-{head.version}-{ids.salt().hex()[:12]}.desk"

    async def archive(self, scope: Scope, head: Session) -> str:
        """Put a desk away that nobody writes any more, in the place that its head names. Returns where it lies, durable."""
        return await self._where().put(head.archive, written(self._backend, scope, head, key=self._key))

    async def drop(self, place: str) -> None:
        """An archive that nobody stands on: another worker was quicker, or one died over it."""
        await self._where().remove(place)

    async def restore(self, scope: Scope, session: bytes) -> Session:
        """The desk as it was, under its id, with its versions, for those who could see it. Its time to live begins anew."""
        known = await self._backend.head(scope, session)
        r.check_archived(known)
        cold, place = self._where(), known.archive

        def source() -> AsyncIterator[bytes]:
            return cold.open(place)

        manifest = await examined(source, self._key)
        if manifest.session.id != session:
            raise InvalidInput("The archive is of another session.", code="archive_tampered")
        head = replace(manifest.session, owner=known.owner, conversation=known.conversation)
        await brought(self._backend, scope, head, source=source, key=self._key, hit=self._failpoints.hit)
        return await self._backend.session(scope, session)

    def _where(self) -> ColdStore:
        if self._cold is None:
            raise InvalidInput("This store has no cold storage: say where archives lie.", code="archive_unset")
        return self._cold
