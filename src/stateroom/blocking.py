"""The Python face for programs without an event loop: the same calls, each of which waits.

    with stateroom.blocking.open("sqlite:///shop-data") as room:
        print(room.turn("I need black running shoes, size 10").text)

One background thread runs the loop; every call here hands over to it. Names, signatures and errors are those of
`stateroom.face`, forwarded one by one: nothing is decided here. A room may be used from several threads.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from anyio.from_thread import BlockingPortal, start_blocking_portal

from stateroom import face
from stateroom.principal import LOCAL, Scope

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")


class _Wrapped:
    """An object of the async face, and the way to its loop."""

    def __init__(self, portal: BlockingPortal, inner: Any) -> None:
        self._portal, self._inner = portal, inner


def _call(method: Callable[Concatenate[F, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """`method` as a call that waits for its result."""

    @functools.wraps(method)
    def call(self: _Wrapped, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self._portal.call(functools.partial(method, self._inner, *args, **kwargs)))

    return cast("Callable[Concatenate[Any, P], R]", call)


def _desk(method: Callable[Concatenate[F, P], Coroutine[Any, Any, face.Desk]]) -> Callable[Concatenate[Any, P], Desk]:
    """The same, for what gives a desk."""

    @functools.wraps(method)
    def call(self: _Wrapped, *args: P.args, **kwargs: P.kwargs) -> Desk:
        return Desk(self._portal, self._portal.call(functools.partial(method, self._inner, *args, **kwargs)))

    return cast("Callable[Concatenate[Any, P], Desk]", call)


def _each(method: Callable[Concatenate[F, P], AsyncIterator[R]]) -> Callable[Concatenate[Any, P], Iterator[R]]:
    """`method` as an iterator that waits for each element."""

    @functools.wraps(method)
    def call(self: _Wrapped, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        elements: Any = method(self._inner, *args, **kwargs)
        try:
            while True:
                try:
                    yield self._portal.call(elements.__anext__)
                except StopAsyncIteration:
                    return
        finally:
            self._portal.call(elements.aclose)

    return cast("Callable[Concatenate[Any, P], Iterator[R]]", call)


class Desk(_Wrapped):
    """`face.Desk`, waiting."""

    _inner: face.Desk

    id = property(lambda self: self._inner.id)
    conversation = property(lambda self: self._inner.conversation)
    agent = property(lambda self: self._inner.agent)
    version = property(lambda self: self._inner.version)
    state = property(lambda self: self._inner.state)
    slot_versions = property(lambda self: self._inner.slot_versions)

    refresh = _call(face.Desk.refresh)
    slot = _call(face.Desk.slot)
    patch = _call(face.Desk.patch)
    apply = _call(face.Desk.apply)
    update = _call(face.Desk.update)
    set = _call(face.Desk.set)
    remove = _call(face.Desk.remove)
    merge = _call(face.Desk.merge)
    edit = _call(face.Desk.edit)
    count = _call(face.Desk.count)
    add = _call(face.Desk.add)
    discard = _call(face.Desk.discard)
    append = _call(face.Desk.append)
    put = _call(face.Desk.put)
    drop = _call(face.Desk.drop)
    window = _call(face.Desk.window)
    observe = _call(face.Desk.observe)
    entries = _call(face.Desk.entries)
    document = _call(face.Desk.document)
    sync = _call(face.Desk.sync)
    restart = _call(face.Desk.restart)
    at = _call(face.Desk.at)
    diff = _call(face.Desk.diff)
    checkpoint = _call(face.Desk.checkpoint)
    checkpoints = _call(face.Desk.checkpoints)
    drop_checkpoint = _call(face.Desk.drop_checkpoint)
    roll_back = _call(face.Desk.roll_back)
    fork = _desk(face.Desk.fork)
    watch = _each(face.Desk.watch)
    allow = _call(face.Desk.allow)
    hold = _call(face.Desk.hold)
    hand_over = _call(face.Desk.hand_over)
    let_go = _call(face.Desk.let_go)
    touch = _call(face.Desk.touch)
    end = _call(face.Desk.end)

    def take_over(self, fence: int) -> None:
        """As `face.Desk.take_over`."""
        self._inner.take_over(fence)


class Room(_Wrapped):
    """`face.Room`, waiting. Use as a context manager, or `close` it."""

    _inner: face.Room
    _held: ExitStack

    turn = _call(face.Room.turn)
    stream = _each(face.Room.stream)
    follow = _each(face.Room.follow)
    run = _call(face.Room.run)
    reply = _call(face.Room.reply)
    resolve = _call(face.Room.resolve)
    handed_off = _call(face.Room.handed_off)
    cancel = _call(face.Room.cancel)
    create = _call(face.Room.create)
    conversation = _call(face.Room.conversation)
    conversations = _call(face.Room.conversations)
    items = _each(face.Room.items)
    append = _call(face.Room.append)
    fork = _call(face.Room.fork)
    delete = _call(face.Room.delete)
    session = _desk(face.Room.session)
    open_session = _desk(face.Room.open_session)
    end_session = _call(face.Room.end_session)

    def prefetch(self, session: str) -> None:
        """As `face.Room.prefetch`."""
        self._portal.call(self._inner.prefetch, session)

    def stats(self) -> dict[str, int]:
        """As `face.Room.stats`."""
        return self._portal.call(self._inner.stats)

    def close(self) -> None:
        """As `face.Room.close`; the background thread ends too. Closing twice is closing once."""
        self._held.close()

    def __enter__(self) -> Room:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def open(url: str = "sqlite:///stateroom-data", *, agents: Iterable[face.AgentLike] = (), scope: Scope = LOCAL) -> Room:
    """As `face.open`."""
    with ExitStack() as held:
        portal = held.enter_context(start_blocking_portal("asyncio"))
        room = Room(portal, portal.call(functools.partial(face.open, url, agents=agents, scope=scope)))
        held.callback(lambda: portal.call(room._inner.close))
        room._held = held.pop_all()
    return room
