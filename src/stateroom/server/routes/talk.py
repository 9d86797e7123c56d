"""Responses over one WebSocket, as OpenAI's WebSocket mode has them.

The client sends `response.create` with the fields of a POST; the answers are the events of its stream, one frame each,
and `error` frames. Turns of one lane (`stream_id`; without it there is one lane) are taken one after another, however
early they are sent; lanes go on beside each other. A turn belongs to the server, not to the socket: what is stored goes
on without it. What is not stored (`store: false`) can be gone on with on this socket, and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.websockets import WebSocket, WebSocketDisconnect

from stateroom import ids, limits
from stateroom.batch import Record
from stateroom.errors import Busy, InvalidInput, StateroomError, Unavailable
from stateroom.flows.job import Job
from stateroom.flows.turn import TurnRequest
from stateroom.ids import NIL
from stateroom.run.model import Run
from stateroom.server import body as bodies
from stateroom.server import problems
from stateroom.server.body import Body
from stateroom.server.call import Call, checked_key
from stateroom.server.pulse import Watched
from stateroom.server.routes.responses import check_kept, check_place, take, turn_request
from stateroom.server.websocket import SocketEndpoint, leave, say, tell
from stateroom.wire import openai

ENVELOPE = ("type", "stream_id", "idempotency_key", "stream")  # of a frame, not of the request in it


class Past(Record, frozen=True):
    """What an unstored response can be gone on with: the stored place it began at, and everything said since."""

    conversation: bytes
    previous: bytes
    items: tuple[bytes, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.items))


class Frame(msgspec.Struct):
    """A turn that was asked for. `size` in bytes, as it came."""

    body: Body
    size: int


class Talk:
    """One socket: its lanes, and what it remembers of unstored responses."""

    def __init__(self, call: Call, websocket: WebSocket) -> None:
        self._call, self._room, self._websocket = call, call.room, websocket
        self._lanes: dict[str, deque[Frame]] = {}
        self._working: set[asyncio.Task[None]] = set()
        self._streams: set[Watched] = set()
        self._past: OrderedDict[bytes, Past] = OrderedDict()

    async def run(self) -> None:
        """Until the client leaves."""
        await self._websocket.accept()
        try:
            while (message := await self._websocket.receive())["type"] == "websocket.receive":
                await self._take(message.get("bytes") or (message.get("text") or "").encode())
        finally:
            for stream in self._streams:
                stream.end("gone")
            for task in self._working:
                task.cancel()
            await asyncio.gather(*self._working, return_exceptions=True)

    async def _take(self, data: bytes) -> None:
        lane = ""
        try:
            body = await asyncio.to_thread(bodies.decode, data) if len(data) > bodies.THREAD_BYTES else bodies.decode(data)
            lane = _lane_of(body)
            if body.value.get("type") == "response.steer":
                await say(self._websocket, _on(lane, _not_steered(body)))
                return
            if body.value.get("type") != "response.create":
                raise InvalidInput("A frame is a 'response.create'.", code="frame_unknown", param="type")
            self._line_up(lane, Frame(body, len(data)))
        except StateroomError as error:
            await say(self._websocket, _on(lane, problems.frame(error)))

    def _line_up(self, lane: str, frame: Frame) -> None:
        waiting = [frame, *(other for frames in self._lanes.values() for other in frames)]
        if len(waiting) > limits.SOCKET_TURNS_MAX or sum(other.size for other in waiting) > limits.BODY_BYTES_MAX:
            raise Busy(f"A socket takes {limits.SOCKET_TURNS_MAX} turns that are not answered yet.", code="queue_full")
        if lane in self._lanes:
            self._lanes[lane].append(frame)
            return
        self._lanes[lane] = deque([frame])
        task = asyncio.create_task(self._work(lane), name="lane")
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _work(self, lane: str) -> None:
        """Answer what stands in a lane, in order."""
        frames = self._lanes[lane]
        with suppress(WebSocketDisconnect, OSError):  # the reader is gone
            while frames:
                await self._answer(lane, frames[0].body)
                frames.popleft()
        del self._lanes[lane]

    async def _answer(self, lane: str, body: Body) -> None:
        previous = body.value.get("previous_response_id")
        try:
            await self._turn(lane, body)
        except (WebSocketDisconnect, OSError):
            raise
        except Exception as error:  # noqa: BLE001 — the face
            self._forget(previous)
            await say(self._websocket, _on(lane, problems.frame(error)))

    async def _turn(self, lane: str, body: Body) -> None:
        if self._call.server.stopping.is_set():
            raise Unavailable("The server is going down.", code="shutting_down")
        call = self._asked(body)
        request = self._placed(turn_request(call))
        if body.value.get("generate") is False:
            await self._warm_up(lane, call, request)
            return
        run = (await take(call, request)).run
        check_kept(call, run)
        job = self._room.turns.workshop.job(run.id)
        await self._tell(lane, run)
        if not request.stored and job is not None and not await self._remember(request, run, job):
            self._forget(body.value.get("previous_response_id"))

    def _asked(self, body: Body) -> Call:
        """A frame as the request it stands for: streamed, with a key of its own if it has one."""
        if body.value.get("background"):
            raise InvalidInput("On a socket every turn is followed; take it with POST.", code="background_on_socket")
        raw = {name: value for name, value in body.raw.items() if name not in ENVELOPE}
        value = {name: body.value[name] for name in raw}
        asked = Body({**value, "stream": True}, {**raw, "stream": b"true"})
        call = Call(self._call.server, self._websocket, self._call.scope, body=asked)
        key = body.get("idempotency_key", str)
        call.key = None if key is None else checked_key(key)
        return call

    # ── what is not stored ──────────────────────────────────────────────────────────────────────────────────────────

    def _placed(self, request: TurnRequest) -> TurnRequest:
        """A turn that goes on with an unstored response of this socket begins where that one's past did."""
        past = self._past.get(request.previous)
        if request.stored or past is None:
            return replace(request, retry_ms=0)
        return replace(request, retry_ms=0, conversation=past.conversation, previous=past.previous, prior=past.items)

    async def _remember(self, request: TurnRequest, run: Run, job: Job) -> bool:
        """After an unstored turn: it can be gone on with. Not when it failed; as with OpenAI nor can its predecessor."""
        done = await job.done()
        if done is None or done.run.status not in ("completed", "incomplete"):
            return False
        outputs = tuple(item.body for item in done.outputs)
        self._keep(run.id, Past(request.conversation, request.previous, (*request.prior, *request.input, *outputs)))
        return True

    def _keep(self, run: bytes, past: Past) -> None:
        if past.size > limits.SOCKET_PAST_BYTES_MAX:
            return
        self._past[run] = past
        while len(self._past) > limits.SOCKET_PAST_MAX:
            self._past.popitem(last=False)

    def _forget(self, response: Any) -> None:
        with suppress(StateroomError):
            self._past.pop(ids.parse("response", response) if isinstance(response, str) else NIL, None)

    async def _warm_up(self, lane: str, call: Call, request: TurnRequest) -> None:
        """`generate: false`: nothing is run, and nothing is kept but on this socket."""
        if request.stored:
            raise InvalidInput("What is stored cannot be prepared only.", code="warm_up_stored", param="generate")
        await check_place(call, request)
        now = self._room.backend.clock.wall_ms()
        run = Run(
            id=ids.new(ids.new_home(), now), conversation=NIL, branch=NIL, session=NIL, agent=request.agent, owner="", subject="",
            status="completed", stored=False, options=request.options, created_at=now, finished_at=now,
        )  # fmt: skip
        self._keep(run.id, Past(request.conversation, request.previous, (*request.prior, *request.input)))
        begun = openai.response_object(replace(run, status="in_progress", finished_at=0))
        for number, (name, response) in enumerate((("created", begun), ("completed", openai.response_object(run)))):
            event = {"type": f"response.{name}", "sequence_number": number, "response": response}
            await say(self._websocket, _on(lane, event))

    # ── answering ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _tell(self, lane: str, run: Run) -> None:
        start = self._room.followers.at(run, 0)
        stream = Watched(self._call.scope, run.id, start)
        events = self._room.followers.events(self._call.scope, run.id, start, poll_s=None, bell=stream.bell)
        self._streams.add(stream)
        try:
            with self._call.server.pulse.watching(stream):
                await tell(self._websocket, stream, events, shape=lambda _, event: _on(lane, event))
                if stream.why == "stopping":
                    gone = Unavailable("The server is going down; a stored response goes on.", code="shutting_down")
                    await say(self._websocket, _on(lane, problems.frame(gone)))
                if stream.why:
                    await leave(self._websocket, stream)
        finally:
            self._streams.discard(stream)
        if stream.why:
            raise WebSocketDisconnect


def _lane_of(body: Body) -> str:
    """The frame's `stream_id`, "" without one."""
    lane = body.get("stream_id", str)
    if lane is not None and not 0 < len(lane) <= limits.NAME_CHARS_MAX:
        why = f"A 'stream_id' has 1 to {limits.NAME_CHARS_MAX} characters."
        raise InvalidInput(why, code="stream_id_invalid", param="stream_id")
    return lane or ""


def _on(lane: str, frame: dict[str, Any]) -> dict[str, Any]:
    return {**frame, "stream_id": lane} if lane else frame


def _not_steered(body: Body) -> dict[str, Any]:
    """Steering is not offered, and said so as OpenAI does."""
    error = {"type": "invalid_request_error", "code": "steering_not_supported", "message": "Send the next turn instead."}
    steer = {"input": body.value.get("input"), "previous_response_id": body.value.get("previous_response_id")}
    return {"type": "response.steer.failed", "sequence_number": 0, "error": error, "steer": steer}


async def talk(call: Call, websocket: WebSocket) -> None:
    await Talk(call, websocket).run()


SOCKETS = (SocketEndpoint("/responses", talk, "Take turns, one after another."),)
