"""Lists from a standby: reads that may be a few seconds old, as long as the standby keeps up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from stateroom.backends.postgres.link import Link, Shared
from stateroom.backends.postgres.pipe import Lost, Pipe, Refused
from stateroom.backends.postgres.tx import OnPrimary, PostgresTx
from stateroom.backends.sql.tx import Tx
from stateroom.errors import Unavailable
from stateroom.principal import Scope

T = TypeVar("T")
LAG_S_MAX = 5.0
REST_MS = 2_000  # how long one that failed or lags is left alone

# Whether it is a standby that has replayed what it was sent, or is at most so many seconds behind.
_FIT = (
    "select pg_is_in_recovery() and (pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn()"
    f" or coalesce(clock_timestamp() - pg_last_xact_replay_timestamp() < interval '{LAG_S_MAX:g} s', false))"
)


class Replica:
    """One standby, used by the reading threads, each with a connection of its own. Whatever it cannot answer, the primary
    is asked."""

    def __init__(self, shared: Shared, conninfo: str) -> None:
        self._shared = shared
        self._standby = Shared(conninfo, shared.clock, prepare=shared.prepare, patience_s=0.0)
        self._here = threading.local()
        self._links: list[Link] = []
        self._resting_until = 0
        self.reads = 0

    def ask(self, scope: Scope, look: Callable[[Tx], T]) -> tuple[T] | None:
        """What it answers; None when it is away, too far behind, does not know the tenant yet, or does not have it at all."""
        if self._shared.clock.boot_ms() < self._resting_until:
            return None
        link = self._link()
        try:
            return self._read(link, link.pipe(bare=True), scope, look)
        except OnPrimary:
            return None
        except (Lost, Refused, Unavailable):
            link.drop()
            self._rest()
            return None

    def _read(self, link: Link, pipe: Pipe, scope: Scope, look: Callable[[Tx], T]) -> tuple[T] | None:
        if not pipe.ask(_FIT)[0][0]:
            self._rest()
            return None
        tenant = self._shared.tenants.find(pipe, scope.tenant)
        if not tenant:
            return None
        with link.reading(pipe, tenant):
            tx = PostgresTx(pipe, scope, tenant=tenant, now=self._shared.time.now())
            tx.standby = True
            found = look(tx)
        self.reads += 1
        return (found,)

    def _rest(self) -> None:
        self._resting_until = self._shared.clock.boot_ms() + REST_MS

    def _link(self) -> Link:
        link: Link | None = getattr(self._here, "link", None)
        if link is None:
            link = self._here.link = Link(self._standby)
            self._links.append(link)
        return link

    def close(self) -> None:
        for link in self._links:
            link.drop()
