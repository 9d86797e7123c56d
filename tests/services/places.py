"""Where the store of a test lies. A test that takes `place` (or only its address, `store_url`) runs on every kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Literal, assert_never
from urllib.parse import urlsplit

import apsw
import psycopg
import pytest

from stateroom import copies
from stateroom.backends.base import Backend
from stateroom.backends.postgres import schema
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.ram.backend import RamBackend
from stateroom.backends.ram.store import RamStore
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.clock import Clock, FrozenClock, SystemClock
from stateroom.face import Room
from stateroom.flows.agent import Turn
from stateroom.hosting.callable import CallableAgent
from stateroom.principal import LOCAL, Scope
from stateroom.stack import Stateroom
from tests.services.pgbouncer import Pooler
from tests.services.postgres import Server
from tests.services.store import as_role, new_store

Kind = Literal["ram", "sqlite", "postgres", "pooled"]
DURABLE: Final[tuple[Kind, ...]] = ("sqlite", "postgres")
EVERY: Final[tuple[Kind, ...]] = ("ram", *DURABLE)
POOLED: Final[tuple[Kind, ...]] = (*DURABLE, "pooled")  # "postgres" through a pool in transaction mode


async def echo(turn: Turn) -> str:
    return f"You said: {turn.text}"


class Place:
    """One store. Whatever is opened here, in whichever process, is on it (ram: in this process only).

    `inside` is for who looks at the tables past everything of ours: SQLite's folder, or a superuser's address of the
    database. Workers come `by` another one, the app's role unless something else is given.
    """

    def __init__(self, kind: Kind, inside: Path | str, *, by: str = "", clock: Clock | None = None) -> None:
        self.kind, self.inside = kind, inside
        self.clock = clock or SystemClock()  # of the handles that are opened from now on
        self.url = by or (as_role(inside) if isinstance(inside, str) else f"sqlite:///{inside}")
        self._ram: RamStore | None = None

    async def backend(self) -> Backend:
        """Another handle on it."""
        match self.kind:
            case "ram":
                self._ram = self._ram or RamStore(self.clock)
                return RamBackend(self._ram)
            case "sqlite":
                assert isinstance(self.inside, Path)
                return await SqliteBackend.open(self.inside, clock=self.clock)
            case "postgres" | "pooled":
                return await PostgresBackend.open(self.url, clock=self.clock)
        assert_never(self.kind)

    @asynccontextmanager
    async def opened(self, answer: Callable[[Turn], Any] = echo, *, scope: Scope = LOCAL) -> AsyncIterator[Room]:
        """The whole stack over it, as another process would have it."""
        backend = await self.backend()
        agent = CallableAgent("agent", answer)
        stack = Stateroom(backend, {"agent": agent}, owner=backend.owner, default_agent="agent")
        await stack.start()
        try:
            yield Room(stack, scope)
        finally:
            await stack.close(grace_s=0)

    def lose(self) -> None:
        """What may be lost is lost, as in a power cut; a folder is to be opened anew afterwards."""
        if self._ram is not None:
            self._ram.lose()
        elif isinstance(self.inside, Path):
            assert isinstance(self.clock, FrozenClock)
            self.clock.boot_name += "+"
        else:
            with asking(self.inside) as ask:
                for table in copies.EPHEMERAL:
                    ask(f"with gone as (delete from {table} returning 1) select count(*) from gone")

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def rows(self) -> Mapping[str, int]:
        """Every table (and directory), and how many rows lie in it."""
        if isinstance(self.inside, Path):
            folders = {f"{path.name}/": len(list(path.iterdir())) for path in self.inside.iterdir() if path.is_dir()}
            return folders | {name: count for file in self.inside.glob("*.db") for name, count in _rows_in(file).items()}
        tables = (
            "select relname from pg_class where relnamespace = 'stateroom'::regnamespace"
            " and relkind in ('r', 'p') and not relispartition"
        )
        with asking(self.inside) as ask:  # who is on duty is nobody's row: it comes and goes with the workers
            return {name: ask(f'select count(*) from "{name}"')[0][0] for (name,) in ask(tables) if name != "duty"}

    def holds(self, words: bytes) -> bool:
        """Whether these words lie anywhere in it."""
        if isinstance(self.inside, Path):
            return any(words in file.read_bytes() for file in self.inside.rglob("*") if file.is_file())
        wanted = f"'\\x{words.hex()}'::bytea"
        columns = (
            "select relname, case when atttypid = 'bytea'::regtype then format('%I', attname)"
            " else format('convert_to(%I::text, ''utf8'')', attname) end from pg_class c join pg_attribute on attrelid = c.oid"
            " where relnamespace = 'stateroom'::regnamespace and relkind in ('r', 'p') and not relispartition"
            " and attnum > 0 and not attisdropped"
        )
        with asking(self.inside) as ask:
            return any(
                ask(f'select 1 from "{table}" where position({wanted} in {column}) > 0 limit 1') for table, column in ask(columns)
            )


def _rows_in(file: Path) -> dict[str, int]:
    db = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        tables = [name for (name,) in db.execute("select name from sqlite_schema where type = 'table'")]
        return {name: db.execute(f'select count(*) from "{name}"').get for name in tables}
    finally:
        db.close()


@contextmanager
def asking(url: str) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    with psycopg.connect(url, autocommit=True, options="-c search_path=stateroom") as db:
        yield lambda sql: db.execute(sql.encode()).fetchall()


# ── fixtures ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=DURABLE)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Which kinds of stores a test runs on: a conftest may say otherwise."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


@pytest.fixture
def place(kind: Kind, clock: Clock, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store."""
    if kind in ("ram", "sqlite"):
        return Place(kind, tmp_path / "store", clock=clock)
    by = pooled(request.getfixturevalue("pooler"), request.getfixturevalue("postgres_store")) if kind == "pooled" else ""
    return Place(kind, request.getfixturevalue("postgres_store"), by=by, clock=clock)


def pooled(pooler: Pooler, url: str) -> str:
    """How workers get to a database through a pool."""
    return f"{pooler.url(urlsplit(url).path[1:], user=schema.APP)}?pooler=on"


@pytest.fixture
def store_url(place: Place) -> str:
    return place.url


@pytest.fixture(scope="module", params=DURABLE)
def module_place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A store that the tests of a module share, and nobody empties."""
    if request.param == "sqlite":
        yield Place("sqlite", tmp_path_factory.mktemp("store"))
        return
    yield request.getfixturevalue("module_postgres")


@pytest.fixture(scope="module")
def module_postgres(postgres_server: Server) -> Iterator[Place]:
    """The same, on PostgreSQL only."""
    with new_store(postgres_server) as url:
        yield Place("postgres", url)
