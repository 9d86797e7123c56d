"""The backend for many machines: one PostgreSQL database, any number of workers."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from stateroom import ids, limits
from stateroom.backends.postgres import check, schema
from stateroom.backends.postgres.errors import translate
from stateroom.backends.postgres.lane import Lane
from stateroom.backends.postgres.link import Link, Shared
from stateroom.backends.postgres.pipe import Lost, Pipe, Refused
from stateroom.backends.postgres.replica import Replica
from stateroom.backends.postgres.settings import Settings
from stateroom.backends.postgres.tx import PostgresTx
from stateroom.backends.postgres.wakeups import PostgresWakeups
from stateroom.backends.sql.apply import home_of, leaf_of
from stateroom.backends.sql.reads import SqlReads
from stateroom.backends.sql.tx import Tx
from stateroom.batch import Batch, Receipt
from stateroom.clock import Clock, SystemClock
from stateroom.copies import CopyClass
from stateroom.errors import Closed, Forbidden, Unavailable
from stateroom.principal import Scope
from stateroom.run.model import Due

T = TypeVar("T")
GRANTED_MS = 10_000  # how long grants that were there are taken to be there


class PostgresBackend(SqlReads):
    """Open it with `open`; one object per process is enough. Writes go through a few lanes by home, reads through a few
    threads; each has a connection of its own."""

    copies: Mapping[str, CopyClass] = schema.COPIES

    def __init__(self, settings: Settings, clock: Clock, *, reading: bool = False) -> None:
        self.clock, self.settings, self._reading = clock, settings, reading
        self._shared = Shared(settings.conninfo, clock, prepare=settings.prepare, patience_s=settings.patience_s, reading=reading)
        self.secret = self._meet()
        self.owner = f"{socket.gethostname()[:32]}-{os.getpid()}-{ids.new(ids.new_home(), clock.wall_ms()).hex()[-12:]}"
        self._watcher = Link(self._shared)
        self.wakeups = PostgresWakeups(settings.conninfo, self._going_on, clock, listen=settings.listen)
        self._lanes = [Lane(Link(self._shared), self.wakeups.tell) for _ in range(settings.lanes)]
        self._threads = ThreadPoolExecutor(settings.readers, thread_name_prefix="stateroom-reader")
        self._here = threading.local()
        self._links: list[Link] = []
        self._replica = Replica(self._shared, settings.replica_conninfo) if settings.replica else None
        self._closed = False
        self._reads = 0  # asked for and not answered
        self._granted_until = 0  # boot ms

    @classmethod
    async def open(cls, url: str, *, clock: Clock | None = None, reading: bool = False) -> PostgresBackend:
        """Connect, and see whether the database is fit to serve (`check`). InvalidInput says what is wrong and what to
        do; Unavailable when it does not answer. `reading`: nothing will be written, so that a role will do that only looks."""
        make = partial(cls, Settings.parse(url), clock or SystemClock(), reading=reading)
        return await asyncio.to_thread(make)

    def _meet(self) -> bytes:
        """The first look: is it fit, what time is it, what is its secret."""

        def look(pipe: Pipe) -> bytes:
            if self._reading:
                self._shared.time.look(pipe)
            else:
                self._shared.time.settle(pipe)
            return bytes.fromhex(pipe.ask("select value from meta where name = 'secret'")[0][0])

        link = Link(self._shared)
        try:
            check.refuse(link.patiently(check.findings if self._reading else check.of_worker, bare=True))
            link.drop()
            return link.patiently(look)
        except Refused as refused:
            raise translate(refused) from refused
        finally:
            link.drop()

    @property
    def epoch(self) -> int:
        return self._shared.epoch

    @property
    def commits(self) -> int:
        """Transactions so far: what benches and tests count."""
        return sum(lane.commits for lane in self._lanes)

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def commit(self, batch: Batch) -> tuple[Receipt, ...]:
        limits.batch(len(batch.writes))
        self._check_writing()
        return await self._lane(batch).writer.commit(batch)

    def commit_now(self, batch: Batch) -> tuple[Receipt, ...]:
        """`commit` for synchronous callers: in this thread, no hand-over."""
        limits.batch(len(batch.writes))
        self._check_writing()
        return self._lane(batch).writer.commit_now(batch)

    def _check_writing(self) -> None:
        if self._reading:
            raise Forbidden("This store was opened for reading.", code="store_read_only")

    def _lane(self, batch: Batch) -> Lane:
        """The same for everything of one home: what belongs together does not wait for itself."""
        return self._lanes[home_of(batch) % len(self._lanes)]

    async def landed(self, batch: Batch) -> bool:
        return await self.read(batch.scope, lambda tx: leaf_of(tx, batch) is not None)

    def now(self) -> int:
        return self._shared.time.now()

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, scope: Scope, look: Callable[[Tx], T]) -> T:
        return await self._in_thread(lambda: self._look(scope, look))

    async def read_list(self, scope: Scope, look: Callable[[Tx], T]) -> T:
        if (replica := self._replica) is None:
            return await self.read(scope, look)

        def ask() -> T:
            found = replica.ask(scope, look)
            return found[0] if found is not None else self._look(scope, look)

        return await self._in_thread(ask)

    async def _in_thread(self, act: Callable[[], T]) -> T:
        """In one of the reading threads. Unavailable when too many wait for one already."""
        if self._closed:
            raise Closed("This handle was closed.")
        if self._reads >= limits.PENDING_READS_MAX:
            raise Unavailable("Too many reads are waiting; come back in a moment.", code="overloaded")
        self._reads += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, act)
        finally:
            self._reads -= 1

    def _look(self, scope: Scope, look: Callable[[Tx], T]) -> T:
        link = self._link()

        def act(pipe: Pipe) -> T:
            tenant = self._shared.tenants.find(pipe, scope.tenant)
            with link.reading(pipe, tenant):
                return look(PostgresTx(pipe, scope, tenant=tenant, now=self.now()))

        try:
            return link.patiently(act)
        except Refused as refused:
            raise translate(refused) from refused

    def _link(self) -> Link:
        """This thread's connection."""
        link: Link | None = getattr(self._here, "link", None)
        if link is None:
            link = self._here.link = Link(self._shared)
            self._links.append(link)
        return link

    async def _ask(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        """As `system`, outside of every tenant: content-free answers only."""

        def ask() -> list[tuple[object, ...]]:
            try:
                return self._link().patiently(lambda pipe: pipe.ask(sql, values))
            except Refused as refused:
                raise translate(refused) from refused

        return await self._in_thread(ask)

    async def due(self, kind: str, until: int, limit: int) -> list[Due]:
        """After the database was away for longer than a heartbeat, leases that ended meanwhile are left alone for one:
        their holders are most likely alive and about to renew them."""
        if kind == "lease" and self.clock.boot_ms() < self._shared.lenient_until:
            return []
        sql = (
            "select kind, at, name, id from due join tenant on number = due.tenant"
            " where kind = ? and at <= ? order by at, due.tenant, id limit ?"
        )
        return [Due(*row) for row in await self._ask(sql, kind, until, limit)]  # type: ignore[arg-type]

    async def leased_by(self, owner: str, limit: int) -> list[Due]:
        sql = "select 'lease'::text, l.at, name, l.id from leased_by(?, ?) l join tenant on number = l.tenant"
        return [Due(*row) for row in await self._ask(sql, owner, limit)]  # type: ignore[arg-type]

    async def owners(self) -> list[str]:
        return [str(owner) for (owner,) in await self._ask("select owner from lease_owners()")]

    def _going_on(self) -> dict[bytes, int] | None:
        """For the watcher, in its own thread; None while the database is away."""
        try:
            return dict(self._watcher.pipe().ask("select id, head from going_on()"))
        except (Lost, Refused, Unavailable):
            self._watcher.drop()
            return None

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def alive(self, owner: str) -> bool | None:
        return None  # it may be on another machine: only its lease tells

    async def on_duty(self, duty: str, ms: int) -> bool:
        """The holder keeps it as long as it asks again in time; then somebody else gets it. It persists, for all workers,
        how far time has come."""
        now = self.now()
        held = bool(
            await self._ask(
                "insert into duty(name, owner, until) values (?1, ?2, ?3) on conflict (name) do update"
                " set owner = excluded.owner, until = excluded.until where duty.owner = ?2 or duty.until < ?4 returning 1",
                duty, self.owner, now + ms, now,
            )
        )  # fmt: skip
        if held and (mark := self._shared.time.mark()) is not None:
            await self._ask(mark[0], *mark[1])
        return held

    async def noted(self, name: str) -> str:
        found = await self._ask("select value from meta where name = ?", name)
        return str(found[0][0]) if found else ""

    async def note(self, name: str, value: str) -> None:
        sql = "insert into meta(name, value) values (?, ?) on conflict (name) do update set value = excluded.value"
        await self._ask(sql, name, value)

    async def check(self) -> None:
        """A primary answers, and takes writes."""
        ((standby,),) = await self._ask("select pg_is_in_recovery() or current_setting('transaction_read_only')::boolean")
        if standby:
            raise Unavailable("The database takes no writes: it is a standby.", code="store_away")
        if self.clock.boot_ms() >= self._granted_until:
            await self._in_thread(self._check_grants)

    def _check_grants(self) -> None:
        """Somebody may have taken them away. What was good is good for a while: who asks whether we are ready asks often."""
        try:
            found = self._link().patiently(check.grants)
        except Refused as refused:
            raise translate(refused) from refused
        if found:
            raise Unavailable(f"{found[0].what} {found[0].remedy}", code="store_not_ready")
        self._granted_until = self.clock.boot_ms() + GRANTED_MS

    async def close(self) -> None:
        """Land what is queued, and let go of every connection."""
        self._closed = True
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._shared.closing.set()
        self._threads.shutdown()
        for lane in self._lanes:
            lane.close()
        self.wakeups.close()
        if self._replica is not None:
            self._replica.close()
        for link in (*self._links, self._watcher):
            link.drop()
