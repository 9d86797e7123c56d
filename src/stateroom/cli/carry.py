"""`stateroom session restore`, `export` and `import`: desks that come back from an archive, and that go elsewhere."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from stateroom import ids
from stateroom.cli.place import add_reading, folder_of, opened, scope_of, url_of
from stateroom.cli.terminal import OK, show_json
from stateroom.errors import InvalidInput
from stateroom.flows.archive import Archives
from stateroom.flows.bundle import Bundles
from stateroom.flows.cold import FileCold
from stateroom.flows.failpoint import Failpoints
from stateroom.principal import operator
from stateroom.session.model import Session

_CHUNK = 256 << 10


def add(inner: Any) -> None:
    _add_restore(inner)
    _add_export(inner)
    _add_import(inner)


def _add_restore(inner: Any) -> None:
    what = "bring a session back that has expired and was archived: the same id, versions and owner; its time to live begins anew"
    restoring = inner.add_parser("restore", help="bring an archived session back", description=what)
    restoring.add_argument("session", metavar="ID")
    restoring.add_argument("--archive", metavar="DIR", help="where archives lie (default: archive/ in the store's folder)")
    add_reading(restoring)
    restoring.set_defaults(command=_restore)


def _add_export(inner: Any) -> None:
    what = "write a session as a signed bundle: state, versions, checkpoints, manifest, and which conversation it was bound to"
    epilog = "example: stateroom session export sess_0123… --to desk.bundle --key-file shared.key"
    exporting = inner.add_parser("export", help="write a session as a signed bundle", description=what, epilog=epilog)
    exporting.add_argument("session", metavar="ID")
    exporting.add_argument("--to", metavar="FILE", help="where to (default: standard output); appears whole or not at all")
    _add_key(exporting)
    add_reading(exporting)
    exporting.set_defaults(command=_export)


def _add_import(inner: Any) -> None:
    what = "open a bundle as a session of this store: nothing is written unless its signature is right"
    epilog = "example: stateroom session import desk.bundle --key-file shared.key --same-id"
    importing = inner.add_parser("import", help="open a bundle as a session", description=what, epilog=epilog)
    importing.add_argument("file", metavar="FILE")
    importing.add_argument("--same-id", action="store_true", help="keep its id; fails when there is a session with it")
    importing.add_argument("--principal", default="local", help="whose it will be (default: local)")
    _add_key(importing)
    add_reading(importing)
    importing.set_defaults(command=_import)


def _add_key(parser: argparse.ArgumentParser) -> None:
    what = "a file with a key of 16 bytes or more that both stores share (default: only the store that wrote a bundle opens it)"
    parser.add_argument("--key-file", metavar="FILE", help=what)


async def _restore(args: argparse.Namespace) -> int:
    id_, folder = ids.parse("session", args.session), folder_of(url_of(args))
    cold = Path(args.archive) if args.archive else folder / "archive" if folder is not None else None
    async with opened(args, writing=True) as backend:
        archives = Archives(backend, None if cold is None else FileCold(cold), Failpoints(os.environ))
        _show(args, "restored", await archives.restore(scope_of(args), id_))
    return OK


async def _export(args: argparse.Namespace) -> int:
    id_, key = ids.parse("session", args.session), _key(args)
    async with opened(args) as backend:
        lines = Bundles(backend, Failpoints(os.environ)).export(scope_of(args), id_, key=key)
        if args.to is None:
            async for line in lines:
                sys.stdout.buffer.write(line)
            return OK
        await _kept(args.to).put(Path(args.to).name, _told(lines))
        print(f"wrote {args.to}", file=sys.stderr)
    return OK


async def _import(args: argparse.Namespace) -> int:
    file, key = Path(args.file), _key(args)
    async with opened(args, writing=True) as backend:
        bundles = Bundles(backend, Failpoints(os.environ))
        scope = operator(args.tenant, args.principal)
        _show(args, "imported", await bundles.import_(scope, _pieces(file), key=key, same_id=args.same_id))
    return OK


def _kept(file: str) -> FileCold:
    return FileCold(Path(file).absolute().parent)


def _pieces(file: Path) -> Callable[[], AsyncIterator[bytes]]:
    async def read() -> AsyncIterator[bytes]:
        with file.open("rb") as source:
            while piece := source.read(_CHUNK):
                yield piece

    return read


async def _told(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """How far it has come, for people who watch."""
    written = 0
    async for line in lines:
        yield line
        written += len(line)
        if sys.stderr.isatty():
            print(f"\r{written >> 10:,} KiB", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)


def _key(args: argparse.Namespace) -> bytes:
    if args.key_file is None:
        return b""
    key = Path(args.key_file).read_bytes().strip()
    if len(key) < 16:
        raise InvalidInput("A key has 16 bytes or more.", code="key_too_short")
    return key


def _show(args: argparse.Namespace, what: str, session: Session) -> None:
    text = ids.text("session", session.id)
    if args.json:
        show_json({"session": text, "version": session.version, "owner": session.owner})
    else:
        print(f"{what} {text} at version {session.version}")
