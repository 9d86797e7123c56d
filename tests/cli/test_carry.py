"""session restore, export and import: desks that come back, and that go elsewhere."""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest

from stateroom import face, ids, stack
from stateroom.principal import LOCAL
from stateroom.session.model import OpenSession
from tests.cli.conftest import Cli, Kept


@pytest.fixture
def archived(tmp_path: Path) -> tuple[Path, str]:
    """A store whose only session has expired and lies in the archive."""
    folder = tmp_path / "store"

    async def fill() -> str:
        async with await stack.open(f"sqlite:///{folder}", on_expiry="archive") as room:
            desk = room.sessions.new_id()
            write = OpenSession(id=desk, owner="local", subject="local", ttl_ms=1000)
            await room.sessions.open_as(LOCAL, write)
            await anyio.sleep(1.01)
            while (await room.backend.head(LOCAL, desk)).status != "archived":
                await room.expiry.sweep()
            return ids.text("session", desk)

    return folder, anyio.run(fill)


def test_an_archived_session_comes_back(cli: Cli, archived: tuple[Path, str]) -> None:
    folder, session = archived
    gone = cli("session", "show", session, "--data", str(folder))
    assert (gone.code, "(session_archived)" in gone.err) == (1, True)
    back = cli("session", "restore", session, "--data", str(folder), "--json")
    assert (back.code, msgspec.json.decode(back.out)["session"]) == (0, session)


def test_a_tampered_archive_is_refused(cli: Cli, archived: tuple[Path, str]) -> None:
    folder, session = archived
    (file,) = (folder / "archive").iterdir()
    file.write_bytes(file.read_bytes().replace(b'"ttl_ms":1000', b'"ttl_ms":9000'))
    told = cli("session", "restore", session, "--data", str(folder))
    assert (told.code, "(archive_tampered)" in told.err) == (1, True)


def session_of(kept: Kept) -> str:
    async def look() -> str:
        async with await face.open(f"sqlite:///{kept.folder}") as room:
            (head,) = await room.stack.sessions.recent(LOCAL)
            return ids.text("session", head.id)

    return anyio.run(look)


def test_a_session_goes_into_another_store(cli: Cli, kept: Kept, tmp_path: Path) -> None:
    session, key, bundle, other = session_of(kept), tmp_path / "key", tmp_path / "desk.bundle", tmp_path / "other"
    key.write_bytes(b"0123456789abcdef")
    other.mkdir(mode=0o700)
    assert cli("migrate", "--data", str(other)).code == 0
    where = ("--key-file", str(key), "--data")
    assert cli("session", "export", session, "--to", str(bundle), *where, str(kept.folder)).code == 0
    assert cli("session", "import", str(bundle), "--same-id", *where, str(other)).out.split()[:2] == ["imported", session]
    again = cli("session", "import", str(bundle), "--same-id", *where, str(other))
    assert (again.code, "(already_exists)" in again.err) == (1, True)
    assert "turns" in cli("session", "show", session, "--data", str(other)).out
    anew = cli("session", "import", str(bundle), *where, str(other), "--json")
    assert msgspec.json.decode(anew.out)["session"] != session
    unsigned = cli("session", "import", str(bundle), "--data", str(other))
    assert (unsigned.code, "(archive_tampered)" in unsigned.err) == (1, True)


def test_what_is_no_key_and_no_file_is_refused(cli: Cli, kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    told = cli("session", "import", "x", "--key-file", str(tmp_path / "key"), "--data", str(kept.folder))
    assert (told.code, "(key_too_short)" in told.err) == (1, True)
    assert cli("session", "import", str(tmp_path / "nothing"), "--data", str(kept.folder)).code == 1
