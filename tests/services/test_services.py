"""The services that other tests stand on do what those tests believe: they start, die, come back, and never outlive a run."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.services import processes
from tests.services.fixtures import need_pgbouncer, need_version
from tests.services.pgbouncer import Pooler
from tests.services.postgres import Server
from tests.services.proxy import Proxy

ROOT = Path(__file__).parent.parent.parent
SOON_S = 10.0
SILENT_S = 0.3
NOBODY = pwd.getpwnam("nobody").pw_uid


@pytest.fixture(scope="module")
def quick() -> Iterator[Server]:
    """A server of this module's own, which its tests may cut off and pool."""
    with Server.start(fsync=False) as server:
        server.execute("create table told (word text primary key)")
        yield server


def connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(url, autocommit=True, connect_timeout=5)


def told(server: Server) -> set[str]:
    return {word for (word,) in server.execute("select word from told")}


# ── a server ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", [15, 18])
def test_a_server_keeps_what_was_committed_when_it_is_killed(version: int) -> None:
    with Server.start(version=need_version(version)) as server, ExitStack() as open_ones:
        assert server.execute("show fsync") == [("on",)]
        assert server.execute("show server_version_num")[0][0].startswith(str(version))
        server.execute("create table kept (x int)")
        server.execute("insert into kept values (1)")
        half = open_ones.enter_context(connect(server.url(tcp=True)))
        half.execute("begin; insert into kept values (2)")
        running = server.process()
        assert running is not None
        family = [running, *running.children()]

        server.kill()
        assert [process for process in family if processes.lives(process)] == []
        with pytest.raises(psycopg.OperationalError):
            half.execute("commit")
        with pytest.raises(psycopg.OperationalError):
            connect(server.url())

        server.restart()
        assert server.execute("select x from kept") == [(1,)]
        assert connect_once(server.url(tcp=True)) == 1
        assert "not properly shut down" in server.log.read_text()


def connect_once(url: str) -> object:
    with connect(url) as connection:
        return (connection.execute("select 1").fetchone() or (None,))[0]


def test_a_busy_server_is_killed_with_all_it_does() -> None:
    with Server.start(fsync=False) as server, ThreadPoolExecutor(1) as aside:
        counting: Future[object] = aside.submit(server.execute, "select count(*) from generate_series(1, 1000000000)")
        busy = "select pid from pg_stat_activity where query like '%generate_series%' and pid <> pg_backend_pid()"
        assert processes.wait_until(lambda: len(server.execute(busy)) == 1, within_s=SOON_S)
        [(pid,)] = server.execute(busy)
        server.kill()
        assert not psutil.pid_exists(pid) or not processes.lives(psutil.Process(pid))
        assert isinstance(counting.exception(SOON_S), psycopg.OperationalError)
        server.restart()


def test_a_stopped_server_comes_back_as_it_was(quick: Server) -> None:
    quick.execute("insert into told values ('before')")
    before = quick.url(tcp=True)
    quick.stop()
    assert quick.process() is None
    quick.stop()
    quick.restart()
    assert quick.url(tcp=True) == before
    assert "before" in told(quick)


def test_a_setting_is_in_force_at_once(quick: Server) -> None:
    quick.configure({"work_mem": "5MB", "log_line_prefix": "it's %p "})
    assert quick.execute("show work_mem") == [("5MB",)]
    assert quick.execute("show log_line_prefix") == [("it's %p ",)]


def test_a_folder_that_was_given_stays(tmp_path: Path) -> None:
    with Server.start(tmp_path / "pg", fsync=False) as server:
        home = server.home
    assert not home.exists()
    assert (tmp_path / "pg" / "data" / "PG_VERSION").exists()
    assert "database system is shut down" in (tmp_path / "pg" / "server.log").read_text()


def test_a_server_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = processes.new_home()
    monkeypatch.setattr(processes, "new_home", lambda: home)
    with pytest.raises(processes.NotStarted, match="no_such_setting"):
        Server.start(tmp_path / "pg", settings={"no_such_setting": "1"})
    assert not home.exists()
    assert processes.wait_until(lambda: of_home(home) == [], within_s=SOON_S)


def test_an_unknown_version_is_an_error_that_names_the_known() -> None:
    with pytest.raises(LookupError, match="18"):
        Server.start(version=7)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED AS ROOT: we are not; every other test here shows the rest")
def test_a_server_runs_whether_we_are_root_or_not(quick: Server) -> None:
    running = quick.process()
    assert running is not None
    assert running.uids().real == NOBODY
    with child(
        "with Server.start(fsync=False) as server: print(os.geteuid(), server.process().uids().real)", as_nobody=True
    ) as it:
        assert line(it) == f"{NOBODY} {NOBODY}"


# ── whom a server belongs to ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("before", ["pass", "server.kill()", "server.kill(); server.restart()"])
def test_a_server_does_not_outlive_a_killed_owner(before: str) -> None:
    with child(f"server = Server.start(fsync=False); {before}; print(server.home); sys.stdin.read()") as owner:
        home = Path(line(owner))
        left = 1 if before.endswith("kill()") else 2  # a guard, and what it guards
        assert processes.wait_until(lambda: len(of_home(home)) == left, within_s=SOON_S)
        owner.kill()
        assert processes.wait_until(lambda: not home.exists() and of_home(home) == [], within_s=SOON_S)


def test_a_shared_server_ends_with_its_last_user_and_is_then_made_anew(tmp_path: Path) -> None:
    using = f"server = shared(Path({str(tmp_path)!r})); print(server.home); sys.stdin.read()"
    with child(using) as first, child(using) as second:
        home = Path(line(first))
        assert Path(line(second)) == home
        first.kill()
        first.wait(SOON_S)
        assert not processes.wait_until(lambda: not home.exists() or of_home(home) == [], within_s=1)
        second.kill()
        assert processes.wait_until(lambda: not home.exists() and of_home(home) == [], within_s=SOON_S)
    with child(using) as third:
        assert Path(line(third)) != home


def test_each_test_has_a_database_of_its_own(postgres_server: Server, postgres_database: str) -> None:
    with connect(postgres_database) as connection:
        assert connection.execute("select count(*) from pg_class where relnamespace = 'public'::regnamespace").fetchone() == (0,)
        connection.execute("create table here (x int)")
        copy = postgres_server.create_database("copied_from_a_test")
    try:
        assert postgres_server.execute("select to_regclass('here')", database="copied_from_a_test") == [(None,)]
        with connect(copy) as connected:
            postgres_server.drop_database("copied_from_a_test")
            with pytest.raises(psycopg.OperationalError):
                connected.execute("select 1")
    finally:
        postgres_server.drop_database("copied_from_a_test")


def test_a_database_can_be_copied(quick: Server) -> None:
    quick.create_database("original")
    quick.execute("create table here as select 7 as x", database="original")
    quick.create_database("copy", template="original")
    assert quick.execute("select x from here", database="copy") == [(7,)]


# ── the network ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def proxy(quick: Server) -> Iterator[Proxy]:
    with Proxy.before(quick.port) as made:
        yield made


def test_a_cut_ends_every_connection_and_new_ones_are_welcome(quick: Server, proxy: Proxy) -> None:
    url = proxy.url(quick.url(tcp=True))
    with connect(url) as one, connect(url) as other:
        assert one.execute("select 1").fetchone() == (1,)
        proxy.cut()
        for connection in (one, other):
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 1")
    assert connect_once(url) == 1
    assert proxy.connections == 3


def test_a_cut_in_the_middle_of_an_answer_ends_it(quick: Server, proxy: Proxy) -> None:
    with connect(proxy.url(quick.url(tcp=True))) as connection, connection.cursor() as cursor, ThreadPoolExecutor(1) as aside:
        proxy.stall(answers_only=True)
        answer = aside.submit(cursor.execute, "select repeat('x', 1000) from generate_series(1, 10000)")
        assert silent(answer)
        proxy.cut()
        assert isinstance(answer.exception(SOON_S), psycopg.OperationalError)


def test_what_is_stalled_arrives_later(quick: Server, proxy: Proxy) -> None:
    with connect(proxy.url(quick.url(tcp=True))) as connection, ThreadPoolExecutor(2) as aside:
        proxy.stall()
        asked = aside.submit(connection.execute, "insert into told values ('stalled')")
        joining = aside.submit(connect_once, proxy.url(quick.url(tcp=True)))
        assert silent(asked)
        assert silent(joining)
        assert "stalled" not in told(quick)
        proxy.resume()
        asked.result(SOON_S)
        assert joining.result(SOON_S) == 1
    assert "stalled" in told(quick)


def test_a_commit_can_land_without_its_answer(quick: Server, proxy: Proxy) -> None:
    with connect(proxy.url(quick.url(tcp=True))) as connection, ThreadPoolExecutor(1) as aside:
        proxy.stall(answers_only=True)
        asked = aside.submit(connection.execute, "insert into told values ('unanswered')")
        assert processes.wait_until(lambda: "unanswered" in told(quick), within_s=SOON_S)
        assert silent(asked)
        proxy.cut()
        assert isinstance(asked.exception(SOON_S), psycopg.OperationalError)


def test_who_is_refused_may_come_later(quick: Server, proxy: Proxy) -> None:
    url = proxy.url(quick.url(tcp=True))
    with connect(url) as early:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            connect(url)
        assert early.execute("select 1").fetchone() == (1,)
    proxy.resume()
    assert connect_once(url) == 1


def test_before_nothing_a_proxy_resets(quick: Server) -> None:
    with Proxy.before(processes.free_port()) as proxy, pytest.raises(psycopg.OperationalError, match=r"reset|closed"):
        connect(proxy.url(quick.url(tcp=True)))


# ── a standby ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_synchronous_standby_has_what_was_committed_and_takes_over() -> None:
    with ExitStack() as running:
        primary = running.enter_context(Server.start())
        primary.execute("create table kept (x int)")
        standby = running.enter_context(Server.standby(None, primary, synchronous=True))
        primary.execute("insert into kept values (1)")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            standby.execute("insert into kept values (2)")

        standby.stop()
        with connect(primary.url()) as waiting, ThreadPoolExecutor(1) as aside:
            commit = aside.submit(waiting.execute, "insert into kept values (3)")
            assert silent(commit)
            standby.restart()
            commit.result(SOON_S)

        primary.kill()
        standby.promote()
        assert standby.execute("select x from kept order by x") == [(1,), (3,)]
        standby.execute("insert into kept values (4)")


def test_another_standby_does_not_hold_commits_up(quick: Server) -> None:
    with Server.standby(None, quick, synchronous=False) as standby:
        standby.kill()
        quick.execute("insert into told values ('alone')")
        standby.restart()
        seen = "select count(*) from told where word = 'alone'"
        assert processes.wait_until(lambda: standby.execute(seen) == [(1,)], within_s=SOON_S)


# ── a pool ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_transactions_of_many_share_a_few_connections(quick: Server) -> None:
    need_pgbouncer()
    with Pooler.start(quick, pool_size=2) as pooler, ExitStack() as open_ones:
        clients = [open_ones.enter_context(connect(pooler.url())) for _ in range(10)]
        backends = {client.execute("select pg_backend_pid()").fetchone() for client in clients}
        assert 1 <= len(backends) <= 2


def test_a_session_is_not_shared(quick: Server) -> None:
    need_pgbouncer()
    with Pooler.start(quick, mode="session", pool_size=1) as pooler, ThreadPoolExecutor(1) as aside:
        with connect(pooler.url()) as first:
            first.execute("select 1")
            second = aside.submit(connect_once, pooler.url())
            assert silent(second)
        assert second.result(SOON_S) == 1


def test_a_pool_lets_in_whom_the_server_knows(quick: Server) -> None:
    need_pgbouncer()
    quick.execute("create role somebody login")
    with Pooler.start(quick) as pooler:
        with connect(pooler.url(user="somebody")) as connection:
            assert connection.execute("select current_user").fetchone() == ("somebody",)
        with pytest.raises(psycopg.OperationalError):
            connect(pooler.url(user="stranger"))


# ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def silent(asked: Future[Any]) -> bool:
    """Whether there still is no answer after a while."""
    with suppress(TimeoutError):
        asked.exception(SILENT_S)
    return not asked.done()


def of_home(home: Path) -> list[psutil.Process]:
    """The processes that were started for a home: the guard and the service."""
    return [process for process in psutil.process_iter() if str(home) in " ".join(command_of(process))]


def command_of(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []


@contextmanager
def child(code: str, *, as_nobody: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs this; whatever happens it is gone afterwards."""
    names = "import os, sys; from pathlib import Path; from tests.services.fixtures import shared"
    source = f"{names}; from tests.services.postgres import Server\n{code}"
    command = [*(processes.unprivileged() if as_nobody else ()), sys.executable, "-u", "-c", source]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def line(of: subprocess.Popen[str]) -> str:
    assert of.stdout is not None
    return of.stdout.readline().strip()
