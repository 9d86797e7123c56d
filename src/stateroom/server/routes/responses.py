"""Responses: turns in the OpenAI form. A response is a run, seen from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast, get_args

from stateroom import given, ids, limits
from stateroom.batch import Batch, ClaimKey, Draft
from stateroom.connection.model import Cursor
from stateroom.conversation.model import Item
from stateroom.errors import Conflict, CursorInvalid, Gone, InvalidInput, LimitExceeded, NotFound
from stateroom.flows.turn import Answer as Outcome
from stateroom.flows.turn import Ticket, TurnRequest
from stateroom.ids import NIL
from stateroom.run.model import DoubleText, Run
from stateroom.server.call import Answer, Call, Endpoint
from stateroom.server.pulse import Watched
from stateroom.server.routes.conversations import items_page
from stateroom.server.sse import EventStream
from stateroom.wire import json, openai

# What a request's fields have to be; others are kept as they are.
FIELDS: Mapping[str, tuple[type, ...]] = {
    "model": (str,),
    "instructions": (str,),
    "conversation": (str, dict),
    "previous_response_id": (str,),
    "stream": (bool,),
    "background": (bool,),
    "store": (bool,),
    "tools": (list,),
    "tool_choice": (str, dict),
    "text": (dict,),
    "reasoning": (dict,),
    "truncation": (str,),
    "service_tier": (str,),
    "temperature": (int, float),
    "top_p": (int, float),
    "presence_penalty": (int, float),
    "frequency_penalty": (int, float),
    "top_logprobs": (int,),
    "max_output_tokens": (int,),
    "max_tool_calls": (int,),
    "parallel_tool_calls": (bool,),
    "safety_identifier": (str,),
    "prompt_cache_key": (str,),
    "double_text": (str,),
    "deadline_s": (int, float),
}


async def create(call: Call) -> Answer:
    """Take a turn. Answers at once (background), as events (stream), or when it has ended."""
    request = turn_request(call)
    ticket = await take(call, request)
    if ticket.replayed:
        call.replayed()
    else:
        call.headers.update(server_timing({"accept": ticket.accept_ms}))
    if call.body.value.get("stream"):
        check_kept(call, ticket.run)
        return _stream(call, ticket.run, 0)
    if call.body.value.get("background"):
        return openai.response_object(ticket.run, await _outputs(call, ticket.run))
    return await _outcome(call, ticket)


async def retrieve(call: Call) -> Answer:
    run = await _run(call)
    check_kept(call, run)
    if call.query_flag("stream"):
        return _stream(call, run, _starting_after(call, run))
    return openai.response_object(run, await _outputs(call, run))


async def cancel(call: Call) -> Answer:
    run = await _run(call)
    if not json.decode_trusted(run.options).get("background"):
        raise InvalidInput("Only a response that was created in the background can be cancelled here.", code="not_background")
    ended = await cancelled(call, run)
    return openai.response_object(ended, await _outputs(call, ended))


async def delete(call: Call) -> Answer:
    run = await _run(call)
    await call.room.runs.delete(call.scope, run.id)
    return {"id": ids.text("response", run.id), "object": "response", "deleted": True}


async def input_items(call: Call) -> Answer:
    run = await _run(call)
    if not run.stored:
        raise Gone("The input of this response was not kept.", code="answer_not_kept")
    items = await call.room.turns.inputs(call.scope, run)
    ordered = items[::-1] if call.newest_first() else items
    start, limit = _behind(ordered, call.query("after")), call.limit()
    return items_page(ordered[start : start + limit], more=len(ordered) > start + limit)


# ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def turn_request(call: Call) -> TurnRequest:
    """The request as a turn. An agent's exact name as `model` chooses it; any other model name goes to the default
    agent as an option, so that a client works with the names it is used to."""
    asked = call.body.value
    for name, kinds in FIELDS.items():
        call.body.get(name, *kinds)
    call.body.metadata()
    options = call.body.without("input")
    if len(options) > limits.ITEM_BYTES_MAX:
        raise LimitExceeded(f"A request's options may have {limits.ITEM_BYTES_MAX} bytes.", code="options_too_large")
    stored = asked.get("store") is not False
    if asked.get("background") and not stored:
        raise InvalidInput("A response in the background has to be stored.", code="background_not_stored", param="store")
    conversation, previous = _place(call)
    model = asked.get("model") or ""
    return TurnRequest(
        agent=model if model in call.room.agents else call.room.default_agent,
        input=_input(call, placed=conversation != NIL or previous != NIL),
        options=options,
        conversation=conversation,
        previous=previous,
        key=call.key,
        retry_ms=call.retry_ms(),
        stored=stored,
        policy=_policy(call),
        deadline_ms=_deadline_ms(call),
    )


def _policy(call: Call) -> DoubleText:
    """What to do when a turn is active on that conversation; `double_text` is ours, unknown to OpenAI."""
    given = call.body.value.get("double_text") or "enqueue"
    for policy in get_args(DoubleText):
        if given == policy:
            return cast(DoubleText, policy)
    known = ", ".join(get_args(DoubleText))
    raise InvalidInput(f"'double_text' is one of {known}.", code="double_text_unknown", param="double_text")


def _deadline_ms(call: Call) -> int:
    return given.deadline_ms(call.body.value.get("deadline_s"), stored=call.body.value.get("store") is not False)


def _input(call: Call, *, placed: bool) -> tuple[bytes, ...]:
    given = call.body.get("input", str, list)
    if given is None and not placed:
        raise InvalidInput(
            "Give 'input', or a 'conversation' or 'previous_response_id' to go on with.", code="input_missing", param="input"
        )
    if isinstance(given, str):
        return (b'{"type":"message","role":"user","content":%s}' % call.body.raw["input"],)
    return tuple(call.body.items("input"))


def _place(call: Call) -> tuple[bytes, bytes]:
    """The conversation or the response that the turn goes on with."""
    conversation, previous = call.body.value.get("conversation"), call.body.value.get("previous_response_id")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
        if not isinstance(conversation, str):
            raise InvalidInput('A conversation is an id or {"id": …}.', code="wrong_type", param="conversation")
    if conversation and previous:
        raise InvalidInput("'conversation' and 'previous_response_id' are mutually exclusive.", code="place_given_twice")
    try:
        return (
            ids.parse("conversation", conversation) if conversation else NIL,
            ids.parse("response", previous) if previous else NIL,
        )
    except NotFound as missing:
        raise _named(call, missing) from None


async def take(call: Call, request: TurnRequest) -> Ticket:
    try:
        return await call.room.turns.take(call.scope, request)
    except NotFound as missing:
        raise _named(call, missing) from None


async def check_place(call: Call, request: TurnRequest) -> None:
    """The place a turn goes on with, looked at without taking the turn."""
    if request.conversation != NIL:
        await call.room.conversations.get(call.scope, request.conversation)
    if request.previous == NIL:
        return
    try:
        kept = (await call.room.runs.get(call.scope, request.previous)).stored
    except NotFound:
        kept = False
    if not kept:
        raise _named(call, ids.missing("response", request.previous))


def _named(call: Call, missing: NotFound) -> NotFound:
    """The place a turn asked for is not there: told by the name the caller gave."""
    previous = call.body.value.get("previous_response_id")
    if not previous or missing.facts.get("facts_kind") == "run":
        return missing
    return NotFound(
        f"Previous response with id '{previous[:80]}' not found.",
        code="previous_response_not_found", param="previous_response_id",
    )  # fmt: skip


# ── answering ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def _outcome(call: Call, ticket: Ticket) -> Answer:
    """Wait for the end. The run does not depend on it: a caller that comes back with its key finds the answer."""
    check_kept(call, ticket.run)
    outcome: Outcome = await call.server.unless_stopped(call.room.turns.outcome(call.scope, ticket.run.id, or_waiting=True))
    if outcome.timings and not ticket.replayed:
        call.headers.update(server_timing(outcome.timings))
    return openai.response_object(outcome.run, outcome.outputs)


def server_timing(timings: Mapping[str, float]) -> dict[str, str]:
    """Where the time of a turn went, in ms."""
    return {"Server-Timing": ", ".join(f"{name};dur={ms:.2f}" for name, ms in timings.items())}


def _stream(call: Call, run: Run, after: int) -> Answer:
    return followed(call, run, call.room.followers.at(run, after))


def followed(call: Call, run: Run, start: Cursor) -> EventStream:
    """The run's events after `start`, as they come."""
    call.room.prefetch.hint(call.scope, run.session)  # whoever listens is likely to answer
    stream = Watched(call.scope, run.id, start)
    events = call.room.followers.events(call.scope, run.id, start, poll_s=None, bell=stream.bell)
    return EventStream(call.server, stream, events, headers=call.headers)


def _starting_after(call: Call, run: Run) -> int:
    """The wire counts from 0, a cursor from 1; without a cursor the stream starts at its first event."""
    given = call.query_int("starting_after")
    after = 0 if given is None else given + 1
    return check_cursor(run, after, "starting_after")


def check_cursor(run: Run, seq: int, param: str) -> int:
    """A cursor that is ahead of its stream belongs to something else (P6)."""
    if seq > run.head:
        raise CursorInvalid(f"The stream has {run.head} events so far.", code="cursor_ahead", param=param)
    return seq


def check_kept(call: Call, run: Run) -> None:
    """What was not stored is where its worker is, until its end."""
    if run.stored or call.room.turns.workshop.job(run.id) is not None:
        return
    if run.ended:
        raise Gone("This response was not stored, and has ended.", code="answer_not_kept")
    raise Conflict("This response is not stored, and another process works on it.", code="not_here")


async def _outputs(call: Call, run: Run) -> list[Item]:
    return await call.room.turns.outputs(call.scope, run) if run.ended else []


async def cancelled(call: Call, run: Run) -> Run:
    """The run after a cancel. A cancel may be asked again and again, so a key adds only that it is not used twice."""

    async def act(claim: ClaimKey | None) -> Run:
        if claim is not None:
            backend, now = call.room.backend, call.room.backend.clock.wall_ms()
            await backend.commit(Batch(id=ids.new(claim.home, now), scope=call.scope, at=now, writes=(claim,)))
        return await call.room.cancels.cancel(call.scope, run.id)

    return await call.once("run.cancel", ref=run.id, act=act, again=lambda made: call.room.cancels.cancel(call.scope, made))


async def _run(call: Call) -> Run:
    given = call.request.path_params["response"]
    try:
        return await call.room.runs.get(call.scope, ids.parse("response", given))
    except NotFound as missing:
        raise ids.missing("response", given) from missing


def _behind(items: Sequence[Item | Draft], after: str | None) -> int:
    """Where a page starts that goes on after an item."""
    if after is None:
        return 0
    wanted = ids.parse_any("item", after)
    for at, item in enumerate(items, 1):
        if item.id == wanted:
            return at
    raise ids.missing("item", after)


ENDPOINTS = (
    Endpoint("POST", "/responses", create, "Take a turn.", body="CreateResponse", answer="Response"),
    Endpoint(
        "GET", "/responses/{response}", retrieve, "Get a response, or follow its events with `stream=true`.",
        query=("stream", "starting_after"), answer="Response",
    ),
    Endpoint("DELETE", "/responses/{response}", delete, "Delete a response and its answer.", answer="Deleted"),
    Endpoint("POST", "/responses/{response}/cancel", cancel, "Cancel a background response.", answer="Response"),
    Endpoint(
        "GET", "/responses/{response}/input_items", input_items, "List what it was given.",
        query=("limit", "order", "after"), answer="List",
    ),
)  # fmt: skip
