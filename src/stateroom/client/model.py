"""What a program gets back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from stateroom.connection.model import Cursor


class Event(msgspec.Struct, frozen=True):
    """One event of a run. `cursor`: `follow(run, after=cursor)` goes on behind it, in any process, at any time.
    `body` is the event as it was sent, with its `type` and `sequence_number`."""

    cursor: str
    body: dict[str, Any]

    @property
    def type(self) -> str:
        """`response.output_text.delta` and so on."""
        return str(self.body["type"])


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A turn and what came of it, in the words of `stateroom.Reply` as far as a server tells them.

    `text` is what the assistant said, `items` everything the turn put out. `status` is completed, incomplete, failed or
    cancelled, `error` why it is not completed; in_progress: it waits for somebody, and `run(reply.run)` says for what.
    `conversation` is "" for a turn that was taken outside of one; go on from it with `previous=reply.response`.
    """

    text: str
    items: list[dict[str, Any]]
    conversation: str
    run: str
    response: str
    status: str
    error: dict[str, Any] | None
    usage: dict[str, Any]


def reply_of(response: Mapping[str, Any]) -> Reply:
    """A response object as a Reply."""
    items: list[dict[str, Any]] = list(response.get("output") or ())
    said = [_text_of(item) for item in items if item.get("type") == "message"]
    incomplete = response.get("incomplete_details")
    return Reply(
        text="\n".join(filter(None, said)),
        items=items,
        conversation=(response.get("conversation") or {}).get("id", ""),
        run=run_of(response["id"]),
        response=response["id"],
        status=response["status"],
        error=response.get("error") or ({"code": incomplete.get("reason"), "message": ""} if incomplete else None),
        usage=response.get("usage") or {},
    )


def run_of(given: str) -> str:
    """The run's id as a step of a path, by the run's or its response's."""
    return quote("run_" + given.partition("_")[2] if given.startswith("resp_") else given, safe="")


def cursor_of(given: str) -> Cursor | None:
    """A cursor as the server writes it; None when it is none."""
    epoch, _, seq = given.partition(".")
    return Cursor(epoch, int(seq)) if epoch and seq.isascii() and seq.isdigit() else None


def _text_of(item: Mapping[str, Any]) -> str:
    parts = item.get("content") or ()
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
