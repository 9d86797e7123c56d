"""A session of a Stateroom server: the verbs of `stateroom.Desk`, asked over HTTP. What comes back is what the server shows.

Every change carries a key of its own, so that a connection that broke is asked again without doing anything twice.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, cast
from urllib.parse import quote, urlencode

from stateroom import given
from stateroom.client.exchange import Exchange, Request
from stateroom.client.model import Event
from stateroom.errors import Conflict, InvalidInput
from stateroom.session import rules
from stateroom.session.changes import Changes
from stateroom.session.model import SlotPatch
from stateroom.wire import json

if TYPE_CHECKING:
    from stateroom.client.clients import AsyncClient, Client

P = ParamSpec("P")
TRIES_MAX: Final = 64  # a state function is asked so often before its caller is told of the conflict
JSON, JSON_PATCH, BYTES = "application/json", "application/json-patch+json", "application/octet-stream"


class Asks:
    """What can be asked of one session, as exchanges."""

    def __init__(self, session: str, exchange: Callable[..., Exchange], agent: str = "") -> None:
        self.id, self._path, self._exchange = session, f"/v1/sessions/{_step(session)}", exchange
        self._agent = agent
        self.fence = 0  # of the hands in which this desk is, when they are ours

    def get(self, *, since: int | None = None, version: int | None = None) -> Exchange:
        """The session with its `slots` and `slot_versions`; `since` a version only what changed, `version`: as it was."""
        return self._ask("GET", since_version=since, version=version)

    def apply(
        self, changes: Changes, *, expected_version: int | None = None, expected: Mapping[str, int] | None = None
    ) -> Exchange:
        """Several changes, all or none; the session after them. `expected` names versions of slots that are changed."""
        operations = [operation_of(patch) for patch in changes.patches()]
        seen = {patch.name: patch.expected for patch in changes.patches() if patch.expected is not None}
        body = {"operations": operations, "expected": {**seen, **(expected or {})}}
        return self._change("PATCH", "", json.from_plain(body), if_match=expected_version)

    def edit(self, operations: list[dict[str, Any]], *, expected_version: int | None = None) -> Exchange:
        """JSON Patch (RFC 6902) of the whole state."""
        return self._change("PATCH", "", json.from_plain(operations), media=JSON_PATCH, if_match=expected_version)

    def merge(self, patch: Mapping[str, Any], *, expected_version: int | None = None) -> Exchange:
        """JSON Merge Patch (RFC 7396) of the whole state."""
        media = "application/merge-patch+json"
        return self._change("PATCH", "", json.from_plain(patch), media=media, if_match=expected_version)

    def slot(self, name: str) -> Exchange:
        """One slot with all that is known of it."""
        return self._ask("GET", f"/slots/{_step(name)}")

    def observe(self, name: str, body: bytes, *, at: int = 0, media: str = "application/octet-stream") -> Exchange:
        """An entry for a window."""
        entry = {"at": at, "media": media, "base64": base64.b64encode(body).decode()}
        return self._change("POST", f"/slots/{_step(name)}/entries", json.from_plain({"entries": [entry]}))

    def entries(self, name: str, *, as_of: int | None = None, limit: int | None = None) -> Exchange:
        """What a window shows as of a time, as a list's `data`."""
        return self._ask("GET", f"/slots/{_step(name)}/entries", as_of=as_of, limit=limit)

    def diff(self, before: int, after: int | None = None) -> Exchange:
        """The `changes` between two versions."""
        return self._ask("GET", "/diff", before=before, after=after)

    def checkpoint(self, name: str, *, version: int | None = None) -> Exchange:
        """Name a version (None: the present one)."""
        return self._change("POST", "/checkpoints", json.from_plain(_given(name=name, version=version)))

    def checkpoints(self, *, limit: int = 100) -> Exchange:
        """The versions with names, newest first, as a list's `data`."""
        return self._ask("GET", "/checkpoints", limit=limit)

    def drop_checkpoint(self, name: str) -> Exchange:
        """The name goes."""
        return self._ask("DELETE", f"/checkpoints/{_step(name)}")

    def roll_back(self, to: str | int, *, expected_version: int | None = None) -> Exchange:
        """A new version equal to a checkpoint or an old version; the session after it."""
        body = json.from_plain({"checkpoint" if isinstance(to, str) else "version": to})
        return self._change("POST", "/rollback", body, if_match=expected_version)

    def fork(
        self, *, to: str | int | None = None, conversation: bool = False, metadata: Mapping[str, str] | None = None
    ) -> Exchange:
        """Another session that begins as this one is, or was at a checkpoint or version; with its conversation."""
        place = {} if to is None else {"checkpoint" if isinstance(to, str) else "version": to}
        return self._change("POST", "/fork", json.from_plain({**place, **_given(conversation=conversation, metadata=metadata)}))

    def touch(self) -> Exchange:
        """Its time to live begins anew."""
        return self._change("POST", "/touch", b"{}")

    def end(self) -> Exchange:
        """No more patches; from then on it is Gone."""
        return self._ask("DELETE")

    def document(self, name: str) -> Exchange:
        """A document as a replica takes it up: its `snapshot` (bytes) for Loro, its `epoch` and `version`."""
        return self._ask("GET", f"/slots/{_step(name)}/document")

    def sync(self, name: str, update: bytes, *, epoch: int | None = None) -> Exchange:
        """What a replica changed in a document, or a whole new one; `epoch` of the document it had."""
        return self._change("POST", f"/slots/{_step(name)}/document", update, media=BYTES, epoch=epoch)

    def allow(self, agent: str, *, read: Sequence[str] = (), write: Sequence[str] = ()) -> Exchange:
        """What an agent (`*`: any that is not named) may see and change: slots by name, or by how their names begin
        (`files.*`)."""
        given_ = {"read": given.names(read, "read"), "write": given.names(write, "write")}
        return self._change("POST", "/access", json.from_plain({"agent": agent, **given_}))

    def hold(self, holder: str = "", *, seconds: float) -> Exchange:
        return self._change("POST", "/hold", json.from_plain({"holder": holder, "seconds": seconds, "hold": self.fence}))

    def watch(self, after: str = "") -> Exchange:
        asked = urlencode(_given(agent=self._agent or None))
        return self._exchange(watch=f"{self._path}/watch{'?' if asked else ''}{asked}", after=after)

    def _ask(self, method: str, path: str = "", **query: Any) -> Exchange:
        return self._exchange(Request(method, self._url(path, agent=self._agent or None, **query)))

    def _change(
        self, method: str, path: str, body: bytes, *, media: str = JSON, if_match: int | None = None, epoch: int | None = None
    ) -> Exchange:
        headers = {"Content-Type": media} | ({} if if_match is None else {"If-Match": f'"{if_match}"'})
        url = self._url(path, agent=self._agent or None, hold=self.fence or None, epoch=epoch)
        return self._exchange(Request(method, url, headers, body), keyed=True)

    def _url(self, path: str, **query: Any) -> str:
        asked = urlencode(_given(**query))
        return f"{self._path}{path}{'?' if asked else ''}{asked}"


def _step(name: str) -> str:
    """A name as one step of a path. `..` is the name of nothing, and would lead to something else."""
    if given.text(name, "name") in ("", ".", ".."):
        raise InvalidInput(f"{name!r} is no name.", code="slot_name_invalid")
    return quote(name, safe="")


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def operation_of(patch: SlotPatch) -> dict[str, Any]:
    """A patch in the words of the wire."""
    common = _given(slot=patch.name, sources=list(patch.sources) or None, epoch=patch.epoch)
    if not patch.op:
        if patch.body is None:
            return {**common, "op": "remove"}
        return {**common, "op": "set", "value": json.decode_trusted(patch.body), "kind": patch.kind, "schema": patch.schema}
    done = {**common, "op": f"{patch.kind}.{patch.op}"}
    if patch.kind == "window":
        return {**done, "entries": [
            {"at": entry.at, "media": entry.media, "base64": base64.b64encode(entry.body).decode()} for entry in patch.entries
        ]}  # fmt: skip
    if patch.kind == "doc":
        return {**done, "value": base64.b64encode(patch.body or b"").decode()}
    return {**done, "value": json.decode_trusted(patch.body or b"null")}


def edited(found: Mapping[str, Any], change: Callable[[dict[str, Any]], Any]) -> list[dict[str, Any]]:
    """What a function changed in a session's state, as a JSON Patch."""
    before = found["slots"]
    after = json.decode_trusted(json.encode(before))
    rules.check_silent(change(after))
    pointers = {name: "/" + name.replace("~", "~0").replace("/", "~1") for name in before.keys() | after.keys()}
    gone = [{"op": "remove", "path": pointers[name]} for name in before if name not in after]
    same = {name for name in after if name in before and json.encode(after[name]) == json.encode(before[name])}
    return gone + [{"op": "add", "path": pointers[name], "value": value} for name, value in after.items() if name not in same]


def _awaited(ask: Callable[Concatenate[Asks, P], Exchange]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, dict[str, Any]]]:
    @functools.wraps(ask)
    async def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        return cast(dict[str, Any], await self._client._answer(ask(self._asks, *args, **kwargs)))

    return cast("Callable[Concatenate[Any, P], Coroutine[Any, Any, dict[str, Any]]]", call)


def _waited(ask: Callable[Concatenate[Asks, P], Exchange]) -> Callable[Concatenate[Any, P], dict[str, Any]]:
    @functools.wraps(ask)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        return cast(dict[str, Any], self._client._answer(ask(self._asks, *args, **kwargs)))

    return cast("Callable[Concatenate[Any, P], dict[str, Any]]", call)


class AsyncDesk:
    """A session at a server, by its `id`; `AsyncClient.session` gives it."""

    def __init__(self, client: AsyncClient, session: str, agent: str = "") -> None:
        self._client, self._asks, self.id = client, Asks(session, client._exchange, agent), session
        self._agent = agent

    get, apply, edit, merge = _awaited(Asks.get), _awaited(Asks.apply), _awaited(Asks.edit), _awaited(Asks.merge)
    slot, observe, entries = _awaited(Asks.slot), _awaited(Asks.observe), _awaited(Asks.entries)
    diff, checkpoint, checkpoints = _awaited(Asks.diff), _awaited(Asks.checkpoint), _awaited(Asks.checkpoints)
    drop_checkpoint, roll_back, fork = _awaited(Asks.drop_checkpoint), _awaited(Asks.roll_back), _awaited(Asks.fork)
    touch, end = _awaited(Asks.touch), _awaited(Asks.end)
    document, sync, allow = _awaited(Asks.document), _awaited(Asks.sync), _awaited(Asks.allow)

    async def update(self, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Let `change` work on the state and write what it changed; the session then. When anybody was quicker the state is
        read anew and it is asked again: it must do nothing else."""
        for tries_left in range(TRIES_MAX - 1, -1, -1):
            found = await self.get()
            if not (operations := edited(found, change)):
                return found
            try:
                return await self.edit(operations, expected_version=found["version"])
            except Conflict as quicker:
                if quicker.reason != "version_conflict" or not tries_left:
                    raise
        raise AssertionError("the last try raises or returns")

    async def hold(self, holder: str = "", *, seconds: float) -> int:
        """Take the desk into this agent's (or `holder`'s) hands for a while, or keep it; Conflict `desk_held` when it is in
        others. Its fence goes with every change from here on: StaleFence when somebody else has it."""
        self._asks.fence = await self.hand_over(holder or self._agent, seconds=seconds)
        return self._asks.fence

    async def hand_over(self, to: str, *, seconds: float) -> int:
        """Into another agent's hands; what this one still writes is refused. The fence is for `take_over` there."""
        held = await self._client._answer(self._asks.hold(to, seconds=seconds))
        return cast(int, held["hold"])

    def take_over(self, fence: int) -> None:
        """Go on with a desk that was handed over."""
        self._asks.fence = fence

    async def let_go(self) -> None:
        """Out of everybody's hands."""
        await self.hand_over("", seconds=0)
        self._asks.fence = 0

    async def watch(self, *, after: str = "") -> AsyncGenerator[Event, None]:
        """Every patch behind a cursor, each exactly once, live until the session's end; without one the state first."""
        async with aclosing(self._client._events(self._asks.watch(after))) as events:
            async for event in events:
                yield event


class Desk:
    """`AsyncDesk`, waiting."""

    def __init__(self, client: Client, session: str, agent: str = "") -> None:
        self._client, self._asks, self.id = client, Asks(session, client._exchange, agent), session
        self._agent = agent

    get, apply, edit, merge = _waited(Asks.get), _waited(Asks.apply), _waited(Asks.edit), _waited(Asks.merge)
    slot, observe, entries = _waited(Asks.slot), _waited(Asks.observe), _waited(Asks.entries)
    diff, checkpoint, checkpoints = _waited(Asks.diff), _waited(Asks.checkpoint), _waited(Asks.checkpoints)
    drop_checkpoint, roll_back, fork = _waited(Asks.drop_checkpoint), _waited(Asks.roll_back), _waited(Asks.fork)
    touch, end = _waited(Asks.touch), _waited(Asks.end)
    document, sync, allow = _waited(Asks.document), _waited(Asks.sync), _waited(Asks.allow)

    def update(self, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """As `AsyncDesk.update`."""
        for tries_left in range(TRIES_MAX - 1, -1, -1):
            found = self.get()
            if not (operations := edited(found, change)):
                return found
            try:
                return self.edit(operations, expected_version=found["version"])
            except Conflict as quicker:
                if quicker.reason != "version_conflict" or not tries_left:
                    raise
        raise AssertionError("the last try raises or returns")

    def hold(self, holder: str = "", *, seconds: float) -> int:
        """As `AsyncDesk.hold`."""
        self._asks.fence = self.hand_over(holder or self._agent, seconds=seconds)
        return self._asks.fence

    def hand_over(self, to: str, *, seconds: float) -> int:
        """As `AsyncDesk.hand_over`."""
        held = self._client._answer(self._asks.hold(to, seconds=seconds))
        return cast(int, held["hold"])

    def take_over(self, fence: int) -> None:
        """As `AsyncDesk.take_over`."""
        self._asks.fence = fence

    def let_go(self) -> None:
        """As `AsyncDesk.let_go`."""
        self.hand_over("", seconds=0)
        self._asks.fence = 0

    def watch(self, *, after: str = "") -> Generator[Event, None, None]:
        """As `AsyncDesk.watch`."""
        yield from self._client._events(self._asks.watch(after))
