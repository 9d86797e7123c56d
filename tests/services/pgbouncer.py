"""A private pgbouncer in front of a server of ours, from Debian's package (`make services`)."""

from __future__ import annotations

import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import quote

import psutil
import psycopg

from tests.services import processes
from tests.services.postgres import Server

Mode = Literal["session", "transaction", "statement"]
READY_S: Final = 10.0
STOP_S: Final = 10.0
# Any user of the server is let in under its own name, as the server itself does.
SETTINGS: Final = """\
[databases]
* = host={server.home} port={server.port} auth_user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_query = select rolname, '' from pg_roles where rolname = $1
auth_file = {home}/users.txt
pool_mode = {mode}
default_pool_size = {pool_size}
max_client_conn = 500
server_login_retry = 1
"""


def program() -> str | None:
    """Where it is, if it is installed."""
    return shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")


@dataclass(frozen=True)
class Pooler:
    """One of them; it ends with `close()`, and at the latest with the process that started it."""

    port: int
    home: Path
    held: int
    process: psutil.Process

    @classmethod
    def start(cls, server: Server, *, mode: Mode = "transaction", pool_size: int = 20) -> Self:
        """In front of every database of the server, with so many connections for each pair of database and user."""
        if (found := program()) is None:
            raise LookupError("pgbouncer is not installed here")
        home, port = processes.new_home(), processes.free_port()
        held = processes.use(home)
        assert held is not None
        (home / "users.txt").write_text('"postgres" ""\n', encoding="utf-8")
        settings = home / "pgbouncer.ini"
        settings.write_text(
            SETTINGS.format(server=server, port=port, home=home, mode=mode, pool_size=pool_size), encoding="utf-8"
        )
        try:
            process = processes.start(home, [found, str(home / "pgbouncer.ini")], log=home / "log")
            pooler = cls(port=port, home=home, held=held, process=process)
            if not processes.wait_until(lambda: processes.is_gone(process) or pooler._answers(), within_s=READY_S):
                raise processes.NotStarted(f"pgbouncer did not come up:\n{processes.tail(home / 'log')}")
            if processes.is_gone(process):
                raise processes.NotStarted(f"pgbouncer ended:\n{processes.tail(home / 'log')}")
        except BaseException:
            processes.leave(home, held)
            raise
        return pooler

    def url(self, database: str = "postgres", *, user: str = "postgres") -> str:
        """A database of the server, through the pool."""
        return f"postgresql://{quote(user, safe='')}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def close(self) -> None:
        """At once; clients see their connections end."""
        if not processes.is_gone(self.process):
            self.process.send_signal(signal.SIGQUIT)  # SIGTERM waits for clients, since 1.23
            if not processes.wait_until(lambda: processes.is_gone(self.process), within_s=STOP_S):
                processes.kill(self.process)
        processes.leave(self.home, self.held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.url(), autocommit=True, connect_timeout=10) as connection:
                return connection.execute("select 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False
