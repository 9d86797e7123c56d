"""`stateroom conversation list | show | export`: what was said and done."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from typing import Any

from stateroom import ids, limits
from stateroom.backends.base import Backend
from stateroom.cli.place import add_reading, opened, scope_of
from stateroom.cli.terminal import OK, count, short, show_json, show_pairs, show_table, when
from stateroom.conversation.model import Item, ItemQuery
from stateroom.conversation.service import Conversations
from stateroom.flows.agent import text_of
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.wire import json


def add(commands: Any) -> None:
    top = commands.add_parser("conversation", help="list, show or export conversations")
    inner = top.add_subparsers(metavar="WHAT", required=True)

    listing = _command(inner, "list", "the newest conversations", "stateroom conversation list --limit 50")
    listing.add_argument("--limit", type=count, default=limits.PAGE_ITEMS_DEFAULT, help="how many (default %(default)s)")
    listing.add_argument("--after", metavar="ID", default="", help="the last one of the page before")
    add_reading(listing)
    listing.set_defaults(command=_list)

    showing = _command(inner, "show", "one conversation, item by item", "stateroom conversation show conv_0123…")
    showing.add_argument("conversation", metavar="ID")
    showing.add_argument("--full", action="store_true", help="whole texts instead of one line each")
    add_reading(showing)
    showing.set_defaults(command=_show)

    exporting = _command(
        inner, "export", "one conversation as a line of JSON that 'stateroom replay' can play: its items exactly as they came",
        "stateroom conversation export conv_0123… > one.jsonl",
    )  # fmt: skip
    exporting.add_argument("conversation", metavar="ID")
    add_reading(exporting)
    exporting.set_defaults(command=_export)


def _command(inner: Any, name: str, what: str, example: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = inner.add_parser(name, help=what, description=what, epilog=f"example: {example}")
    return parser


async def _list(args: argparse.Namespace) -> int:
    scope = scope_of(args)
    async with opened(args) as backend:
        after = ids.parse("conversation", args.after) if args.after else NIL
        found = await Conversations(backend).recent(scope, after=after, limit=args.limit)
        tails = [(await backend.branch(scope, head.id)).tail for head in found]
    rows = [
        {
            "id": ids.text("conversation", head.id), "created_at": head.created_at, "items": tail, "subject": head.subject,
            "metadata": json.decode_trusted(head.metadata),
        }
        for head, tail in zip(found, tails, strict=True)
    ]  # fmt: skip
    if args.json:
        for row in rows:
            show_json(row)
    elif rows:
        columns = [(row["id"], when(row["created_at"]), row["items"], short(str(row["metadata"] or ""))) for row in rows]
        show_table(("conversation", "created (UTC)", "items", "metadata"), columns)
    else:
        print(f"No conversations of tenant {args.tenant} here yet.")
    return OK


async def _show(args: argparse.Namespace) -> int:
    scope, id_ = scope_of(args), ids.parse("conversation", args.conversation)
    async with opened(args) as backend:
        head = await backend.conversation(scope, id_)
        if not args.json:
            show_pairs({"conversation": args.conversation, "created": when(head.created_at), "subject": head.subject})
            print()
        async for item in items_of(backend, scope, id_):
            _show_item(item, args)
    return OK


def _show_item(item: Item, args: argparse.Namespace) -> None:
    if args.json:
        ours = {"seq": item.seq, "id": ids.text("item", item.id), "type": item.kind, "mark": item.mark}
        ours |= {"run": ids.text("run", item.run) if item.run != NIL else "", "at": item.at, "origin": item.origin}
        show_json({**ours, "trust": item.trust, "item": json.decode_trusted(item.body)})
        return
    body = json.decode_trusted(item.body)
    text = text_of(body) if item.kind == "message" else _call_text(body)
    mark = f"  [{item.mark}]" if item.mark else ""
    print(f"{item.seq:>5}  {(item.role or item.kind):<20}  {text if args.full else short(text)}{mark}")


def _call_text(body: dict[str, Any]) -> str:
    """A call as `name(arguments)`, an output as itself, anything else as JSON."""
    if "name" in body and "arguments" in body:
        return f"{body['name']}({body['arguments']})"
    return str(body["output"]) if "output" in body else json.encode(body).decode()


async def _export(args: argparse.Namespace) -> int:
    scope, id_ = scope_of(args), ids.parse("conversation", args.conversation)
    async with opened(args) as backend:
        await backend.conversation(scope, id_)
        bodies = [item.body async for item in items_of(backend, scope, id_)]
    head = json.encode({"id": args.conversation, "source": "stateroom"})
    print((head[:-1] + b',"items":[' + b",".join(bodies) + b"]}").decode())
    return OK


async def items_of(backend: Backend, scope: Scope, conversation: bytes) -> AsyncIterator[Item]:
    """Everything a conversation shows, oldest first, a page at a time."""
    seq = 0
    while page := await backend.items(scope, ItemQuery(branch=conversation, after=seq, limit=limits.READ_ITEMS_MAX)):
        for item in page:
            yield item
        seq = page[-1].seq
