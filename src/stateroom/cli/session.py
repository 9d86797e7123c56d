"""`stateroom session show`: what lies on the desk. Its other commands are in `carry`."""

from __future__ import annotations

import argparse
from typing import Any

from stateroom import ids
from stateroom.cli import carry
from stateroom.cli.place import add_reading, opened, scope_of
from stateroom.cli.terminal import OK, short, show_json, show_pairs, show_table, when
from stateroom.ids import NIL
from stateroom.session.model import Session, Slot
from stateroom.wire import json


def add(commands: Any) -> None:
    top = commands.add_parser("session", help="show a session, bring it back, carry it elsewhere")
    inner = top.add_subparsers(metavar="WHAT", required=True)
    what = "a session and its slots, each with the version at which it last changed"
    showing = inner.add_parser("show", help=what, description=what, epilog="example: stateroom session show sess_0123… --since 3")
    showing.add_argument("session", metavar="ID")
    showing.add_argument("--since", type=int, default=0, metavar="VERSION", help="only what changed after this version")
    add_reading(showing)
    showing.set_defaults(command=_show)
    carry.add(inner)


async def _show(args: argparse.Namespace) -> int:
    scope, id_ = scope_of(args), ids.parse("session", args.session)
    async with opened(args) as backend:
        session = await backend.session(scope, id_)
        slots = await backend.slots(scope, id_, args.since)
    if args.json:
        show_json({**_head(session), "slots": {slot.name: _slot(slot) for slot in slots}})
        return OK
    show_pairs(_head(session) | {"touched_at": when(session.touched_at)})
    if slots:
        print()
        rows = [(slot.name, slot.version, slot.by, slot.origin, slot.trust, short(_text(slot))) for slot in slots]
        show_table(("slot", "version", "by", "origin", "trust", "value"), rows)
    return OK


def _head(session: Session) -> dict[str, Any]:
    return {
        "session": ids.text("session", session.id),
        "conversation": ids.text("conversation", session.conversation) if session.conversation != NIL else "",
        "agent": session.agent,
        "status": session.status,
        "version": session.version,
        "touched_at": session.touched_at,
    }


def _slot(slot: Slot) -> dict[str, Any]:
    value = None if slot.body is None else json.decode_trusted(slot.body)
    return {
        "value": value, "removed": slot.body is None, "version": slot.version, "by": slot.by, "origin": slot.origin,
        "trust": slot.trust,
    }  # fmt: skip


def _text(slot: Slot) -> str:
    return "(removed)" if slot.body is None else slot.body.decode()
