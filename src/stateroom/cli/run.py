"""`stateroom run show [--follow]`: one execution, and its events as they come."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from stateroom import ids
from stateroom.backends.base import Backend
from stateroom.cli.place import add_reading, opened, run_id, scope_of
from stateroom.cli.terminal import OK, short, show_json, show_pairs, when
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.follow import Followers
from stateroom.flows.turn import Turns
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.run.model import Run
from stateroom.wire import json


def add(commands: Any) -> None:
    top = commands.add_parser("run", help="show or follow a run")
    inner = top.add_subparsers(metavar="WHAT", required=True)
    what = "a run's status, usage and error; with --follow its events from the first on, until it ends"
    showing = inner.add_parser("show", help=what, description=what, epilog="example: stateroom run show run_0123… --follow")
    showing.add_argument("run", metavar="ID", help="run_… or resp_…")
    showing.add_argument("--follow", action="store_true", help="show its events, live")
    add_reading(showing)
    showing.set_defaults(command=_show)


async def _show(args: argparse.Namespace) -> int:
    scope, id_ = scope_of(args), run_id(args.run)
    async with opened(args) as backend:
        run = await backend.run(scope, id_)
        if not args.follow:
            show_json(_fields(run)) if args.json else _show_run(run)
            return OK
        await _follow(backend, scope, run, args.json)
    return OK


def _fields(run: Run) -> dict[str, Any]:
    def text(kind: str, id_: bytes) -> str:
        return ids.text(kind, id_) if id_ != NIL else ""

    return {
        "run": text("run", run.id),
        "response": text("response", run.id),
        "status": run.status,
        "agent": run.agent,
        "conversation": text("conversation", run.conversation),
        "session": text("session", run.session),
        "previous": text("response", run.previous),
        "attempt": run.attempt,
        "lease_owner": run.lease_owner,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "events": run.head,
        "usage": json.decode_trusted(run.usage) if run.usage else {},
        "error": json.decode_trusted(run.error) if run.error else None,
    }


def _show_run(run: Run) -> None:
    fields = _fields(run)
    times = {name: when(fields[name]) for name in ("created_at", "started_at", "finished_at")}
    show_pairs({**fields, **times})


async def _follow(backend: Backend, scope: Scope, run: Run, as_json: bool) -> None:
    """Text as it comes; other events by their names."""
    followers = Followers(backend, Turns(backend, {}, owner=backend.owner, failpoints=Failpoints()))
    spoke = False
    async for found in followers.events(scope, run.id, followers.cursor(run, None)):
        if found is None:
            continue
        event = found[1]
        if as_json:
            show_json(event)
        elif event["type"] == "response.output_text.delta":
            sys.stdout.write(event["delta"])
            spoke = True
        else:
            print(("\n" if spoke else "") + f"[{event['sequence_number']}] {event['type']}{_about(event)}")
            spoke = False
        sys.stdout.flush()


def _about(event: dict[str, Any]) -> str:
    item = event.get("item")
    if isinstance(item, dict) and event["type"].endswith("output_item.done") and "name" in item:
        return "  " + short(f"{item['name']}({item.get('arguments', '')})")
    return ""
