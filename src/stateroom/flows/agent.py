"""The contract between a turn and whatever answers it: a model endpoint, a Python function, a process, a tape.

The record never depends on the agent (D13): it gets a window and the desk's slots, and tells events. What it says is
stored by the turn; what it wants to remember on the desk it asks for through the turn.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from stateroom.context.build import Window
from stateroom.errors import InvalidInput
from stateroom.flows.steps import Question, Steps
from stateroom.run.model import Style
from stateroom.run.steps import Policy
from stateroom.session import changes
from stateroom.session.changes import Changes


class Start(msgspec.Struct, frozen=True):
    """An output item begins; deltas that follow belong to it. `item` is its head: {"type": "message", "role":
    "assistant"} or {"type": "function_call", "name": …, "call_id": …}."""

    item: dict[str, Any]


class Delta(msgspec.Struct, frozen=True):
    """More text of the started message (one is started by itself if need be), or more of a call's arguments."""

    text: str


class Done(msgspec.Struct, frozen=True):
    """The started item is complete. `item` None: its head plus its deltas; otherwise the whole item, which must agree."""

    item: dict[str, Any] | None = None


class Output(msgspec.Struct, frozen=True):
    """A whole output item that was not streamed."""

    item: dict[str, Any]


class Usage(msgspec.Struct, frozen=True):
    """Tokens used, in the Responses form: input_tokens, output_tokens, total_tokens, …; adds up over a run."""

    usage: dict[str, Any]


class End(msgspec.Struct, frozen=True):
    """An end that is not plain success. `reason` e.g. max_output_tokens, content_filter; for failed: a code and a message."""

    status: Literal["completed", "incomplete", "failed"]
    reason: str = ""
    message: str = ""


AgentEvent = Start | Delta | Done | Output | Usage | End
StateFunction = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Turn:
    """What an agent is given for one turn, and where it puts what the desk should hold afterwards.

    `window`: items (parsed JSON) the model may see, oldest first, this turn's input last. `input`: this turn's input
    alone. `slots`: name -> value as hydrated. `request`: the caller's options as they came (instructions, model, tools,
    …). `conversation`, `session`, `run`: textual ids. `number`: how many turns of an agent the conversation has had.
    """

    def __init__(
        self,
        *,
        window: list[dict[str, Any]] | Window,
        input: list[dict[str, Any]],
        slots: Mapping[str, Any],
        request: Mapping[str, Any],
        ids: Mapping[str, str],
        attempt: int = 1,
    ) -> None:
        self._window = window
        self.input = input
        self.slots = dict(slots)
        self.request = request
        self.conversation = ids.get("conversation", "")
        self.session = ids.get("session", "")
        self.run = ids.get("run", "")
        self.principal = ids.get("principal", "")
        self.attempt = attempt
        self.steps: Steps | None = None  # given by whoever runs the turn
        self.changes: dict[str, Any] = {}
        self.removed: set[str] = set()
        self.operations = Changes(origin="agent")
        self.state_function: StateFunction | None = None

    @property
    def window(self) -> list[dict[str, Any]]:
        return self._window.items if isinstance(self._window, Window) else self._window

    @property
    def text(self) -> str:
        """The text of this turn's input messages, joined by newlines."""
        return "\n".join(text_of(item) for item in self.input if item.get("type", "message") == "message")

    def set(self, name: str, value: Any) -> None:
        """Change a slot when the turn ends; visible in `slots` at once."""
        self.slots[name] = self.changes[name] = value
        self.removed.discard(name)
        self.operations.forget(name)

    def remove(self, name: str) -> None:
        """Remove a slot when the turn ends."""
        self.slots.pop(name, None)
        self.changes.pop(name, None)
        self.operations.forget(name)
        self.removed.add(name)

    def count(self, name: str, by: int = 1) -> None:
        """More, or less, on a counter. This and what follows lands when the turn ends, on whatever lies there then: it
        never conflicts with anybody."""
        self._does(Changes().count(name, by))

    def add(self, name: str, *members: Any) -> None:
        """Members of a set."""
        self._does(Changes().add(name, *members))

    def discard(self, name: str, *members: Any) -> None:
        self._does(Changes().discard(name, *members))

    def append(self, name: str, *elements: Any) -> None:
        """Elements at the end of a list."""
        self._does(Changes().append(name, *elements))

    def put(self, name: str, entries: Mapping[str, Any]) -> None:
        """Entries of a map, by key."""
        self._does(Changes().put(name, entries))

    def drop(self, name: str, *keys: str) -> None:
        """Keys of a map."""
        self._does(Changes().drop(name, *keys))

    def merge(self, name: str, patch: Any) -> None:
        """JSON Merge Patch (RFC 7396) of a value: what it does not name is left as it is then."""
        self._does(Changes().merge(name, patch))

    def edit(self, name: str, operations: Sequence[Mapping[str, Any]]) -> None:
        """JSON Patch (RFC 6902) of a value."""
        self._does(Changes().edit(name, operations))

    def observe(self, name: str, body: bytes, *, at: int = 0, media: str = "application/octet-stream") -> None:
        """An entry of a window; see `Changes.observe`."""
        self._does(Changes().observe(name, body, at=at, media=media))

    def sync(self, name: str, update: bytes, *, epoch: int | None = None) -> None:
        """An update of a document, as Loro exports it."""
        self._does(Changes().sync(name, update, epoch=epoch))

    def _does(self, change: Changes) -> None:
        """Visible in `slots` at once, as far as that can be said here."""
        for patch in change.patches():
            value = changes.shown(patch, self.slots.get(patch.name))
            self.operations.join(patch)
            if patch.kind not in ("window", "doc"):
                self.slots[patch.name] = value

    def update(self, function: StateFunction) -> None:
        """Change slots by a pure function of the current ones. When somebody changed them meanwhile it is asked once
        more with the new ones; without a function the change is then left out and reported as `state_conflict`."""
        self.state_function = function
        for name, value in function(dict(self.slots)).items():
            self.set(name, value)

    # ── effects and questions: recorded, so that a crash or a pause never does them twice ───────────────────────────

    async def step(self, name: str, function: Callable[..., Any], **given: Any) -> Any:
        """Do something in the world and record it.

            await turn.step("charge", lambda doing: pay(doing.key), effect="idempotent")

        `function` takes a `Doing` (or nothing) and returns JSON. `effect` says what recovery may do: `pure` (again),
        `idempotent` (again with the same `doing.key`), `transactional` (`doing.set` lands with the result), `once` (the
        default: never again by itself; `verify=async (doing) -> (happened, result)` asks the outside, without it the run
        waits for somebody to reconcile). `arguments` must be the same in every attempt; `key` names the step if its
        name and ordinal do not. A result that is recorded is returned instead of doing it again.
        """
        return await self._steps.step(name, function, **given)

    async def approval(self, name: str, arguments: Any, *, wait_s: float = 0.0, policy: Policy = "deny", why: str = "") -> bool:
        """Whether somebody approved just these arguments, once. The run waits meanwhile and compute may stop."""
        question = Question(kind="approval", name=name, arguments=arguments, body={"why": why}, wait_s=wait_s, policy=policy)
        return (await self._steps.ask(question)).get("approved") is True

    async def ask(self, name: str, question: str, *, schema: Any = None, wait_s: float = 0.0, policy: Policy = "deny") -> Any:
        """What somebody answered; None when nobody did in time."""
        body = {"question": question, "schema": schema}
        return (await self._steps.ask(Question(kind="input", name=name, body=body, wait_s=wait_s, policy=policy))).get("answer")

    async def client_tool(self, name: str, arguments: Any, *, wait_s: float = 0.0, policy: Policy = "deny") -> Any:
        """What the client's own tool put out; None when it did not in time."""
        asked = Question(kind="tool", name=name, arguments=arguments, wait_s=wait_s, policy=policy)
        return (await self._steps.ask(asked)).get("output")

    async def handoff(
        self, queue: str, body: Mapping[str, Any], *, wait_s: float = 0.0, policy: Policy = "deny"
    ) -> dict[str, Any]:
        """Hand the matter to whoever serves `queue`, and what they decided."""
        return await self._steps.ask(Question(kind="handoff", name=queue, queue=queue, body=body, wait_s=wait_s, policy=policy))

    async def sleep(self, name: str, seconds: float) -> None:
        """Wait without holding compute; survives restarts."""
        await self._steps.ask(Question(kind="timer", name=name, wait_s=max(seconds, 0.001)))

    async def retrieve(self, query: str, function: Callable[..., Any], *, rewritten: str = "") -> list[dict[str, Any]]:
        """Search, and record what was searched and found: the query, how it was rewritten, and id and SHA-256 of each
        document. `function` returns documents with `id` and `text`."""
        found: list[dict[str, Any]] = []

        async def search() -> dict[str, Any]:
            documents = function()
            found.extend(await documents if inspect.isawaitable(documents) else documents)
            marks = [{"id": one["id"], "sha256": hashlib.sha256(one["text"].encode()).hexdigest()} for one in found]
            return {"query": query, "rewritten": rewritten or query, "documents": marks}

        await self._steps.retrieve(search, {"query": query, "rewritten": rewritten})
        return found

    @property
    def news(self) -> list[dict[str, Any]]:
        """Input of turns that were merged into this one since it began (double texting `merge`), in order."""
        return [] if self.steps is None else self.steps.news

    @property
    def _steps(self) -> Steps:
        if self.steps is None:
            raise InvalidInput("This turn has no record to keep steps in: it is not stored.", code="steps_unavailable")
        return self.steps


class Agent(Protocol):
    """Anything that answers turns. `style` says whether the platform keeps the record (responses) or the caller drives
    the session itself (invocations)."""

    @property
    def name(self) -> str: ...

    @property
    def style(self) -> Style: ...

    def work(self, turn: Turn) -> AsyncIterator[AgentEvent]:
        """Answer one turn. Raising ends the run as failed; being cancelled means somebody asked to cancel."""
        ...


def text_of(item: Mapping[str, Any]) -> str:
    """The plain text of a message, whatever form its content has."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))
