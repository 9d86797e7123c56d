"""What children do until they are killed. Each play can be played again after any crash: its keys are the same."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
from collections.abc import Container, Sequence
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from stateroom import ids, limits
from stateroom.backends.postgres.lane import Lane
from stateroom.batch import Batch, Receipt
from stateroom.clock import SystemClock
from stateroom.conformance.kit import Actor as Someone
from stateroom.errors import Busy, StaleFence
from stateroom.principal import LOCAL
from stateroom.run.model import DoubleText
from stateroom.server.run import serve
from stateroom.stack import Stateroom
from stateroom.wire import json
from tests.crash.actor import EFFECTS, Actor, begin, ended, opened, take, text_of
from tests.crash.builds import break_it
from tests.crash.where import open_backend, place_of, url_of
from tests.crash.world import World


def store_of(folder: Path) -> Path:
    return folder / "store"


def world_of(folder: Path) -> World:
    return World(folder / "world")


class Told(NamedTuple):
    """What somebody was told about a key: it has to stay true."""

    key: str
    run: str
    status: str
    text: str


def tell(folder: Path, told: Told) -> None:
    """A line outside of the store: this was answered."""
    file = os.open(folder / "told", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, ("\t".join(told) + "\n").encode())
    os.close(file)


def told_in(folder: Path) -> list[Told]:
    file = folder / "told"
    return [Told(*line.split("\t")) for line in file.read_text().splitlines()] if file.exists() else []


async def turns(folder: Path, *, kinds: Sequence[str], pause_s: float = 0.04, build: str = "", lease_ms: int = 0) -> None:
    """Turns of one conversation, streamed, each with its answer: key `k0` does kinds[0], and so on. `build` is one of
    `builds`, broken on purpose; `lease_ms` shortens the lease."""
    break_it(build)
    shorten(lease_ms)
    world = world_of(folder)
    room = await opened(place_of(folder), world, pause_s=pause_s)
    note_refusals(room, folder)
    conversation = await begin(room, "c")
    for number, kind in enumerate(kinds):
        ticket = await take(room, f"{kind} t{number}", conversation=conversation, key=f"k{number}")
        answered = await ended(room, world, ticket.run.id)
        tell(folder, Told(f"k{number}", ids.text("run", ticket.run.id), answered.run.status, text_of(answered)))
    await room.close()


def shorten(lease_ms: int) -> None:
    if lease_ms:
        limits.LEASE_MS, limits.HEARTBEAT_MS = lease_ms, lease_ms // 3  # type: ignore[misc]


def note_refusals(room: Stateroom, folder: Path) -> None:
    """A line for every batch of this worker that was refused because its fence is stale."""
    commit = room.backend.commit

    async def noting(batch: Batch) -> tuple[Receipt, ...]:
        try:
            return await commit(batch)
        except StaleFence:
            with (folder / "refused").open("a") as file:
                file.write(" ".join(type(write).__name__ for write in batch.writes) + "\n")
            raise

    room.backend.commit = noting  # type: ignore[method-assign]


def refused_in(folder: Path) -> list[str]:
    file = folder / "refused"
    return file.read_text().splitlines() if file.exists() else []


async def a_cancel(folder: Path, *, kinds: Sequence[str], wait_s: float, pause_s: float = 0.01, lease_ms: int = 0) -> None:
    """A turn that is cancelled while it works or waits."""
    shorten(lease_ms)
    room = await opened(place_of(folder), world_of(folder), pause_s=pause_s)
    conversation = await begin(room, "c")
    ticket = await take(room, f"{kinds[0]} t0", conversation=conversation, key="k0")
    await asyncio.sleep(wait_s)
    cancelled = await room.cancels.cancel(LOCAL, ticket.run.id)
    tell(folder, Told("k0", ids.text("run", ticket.run.id), cancelled.status, ""))
    await room.close()


POLICIES: tuple[DoubleText, ...] = ("enqueue", "enqueue", "enqueue", "reject", "merge", "latest", "interrupt", "parallel")
DOUBLE = {"k0": "wait+idempotent t0", "k1": "pure t1", "k2": "pure t2"}


async def double(folder: Path, *, policies: Sequence[DoubleText], look_ms: int = 40, lease_ms: int = 0) -> None:
    """A turn, and while it is at work more of them, each with its policy, and all their answers."""
    shorten(lease_ms)
    limits.QUEUE_LOOK_MS = look_ms  # type: ignore[misc]
    world = world_of(folder)
    room = await opened(place_of(folder), world)
    conversation = await begin(room, "c")
    runs = {}
    for (key, text), policy in zip(DOUBLE.items(), ("enqueue", *policies), strict=False):
        try:
            runs[key] = (await take(room, text, conversation=conversation, key=key, policy=policy)).run.id
        except Busy:
            continue
        await asyncio.sleep(0.02)
    for key, run in runs.items():
        answered = await ended(room, world, run)
        tell(folder, Told(key, ids.text("run", run), answered.run.status, text_of(answered)))
    await room.close()


async def clients(folder: Path, *, host: int, seed: int, count: int, build: str = "", store: str = "", **how: Any) -> None:
    """Several clients at once, each with turns in conversations that all share: random kinds, policies and cancels, the same
    for the same seed. What was told is not asked again; what was not is, with the same key. It ends when somebody says
    that it is `enough`."""
    break_it(build)
    limits.QUEUE_LOOK_MS = 40  # type: ignore[misc]
    world = world_of(folder)
    room = await opened(Path(store) if store else place_of(folder), world, **how)
    told = {one.key for one in told_in(folder)}
    async with asyncio.TaskGroup() as group:
        for client in range(count):
            group.create_task(_client(room, folder, f"h{host}c{client}", told, dice=Random(f"{seed} {host} {client}")))
    await room.close()


async def _client(room: Stateroom, folder: Path, name: str, told: Container[str], *, dice: Random) -> None:
    for number in itertools.count():
        kinds = "+".join(dice.sample((*EFFECTS, "wait"), dice.randint(1, 3)))
        conversation, policy = f"c{dice.randrange(3)}", dice.choice(POLICIES)
        cancel_s, wait_s = dice.choice((0.0, 0.0, 0.0, dice.uniform(0.001, 0.1))), dice.uniform(0, 0.02)
        key = f"{kinds} {name}.{number}"  # what is said is also the key
        if key not in told:
            await asyncio.sleep(wait_s)
            await _say(room, folder, key, conversation=conversation, policy=policy, cancel_s=cancel_s)
            if (folder / "enough").exists():  # not before: what was begun before a crash is brought to its end
                return


async def _say(room: Stateroom, folder: Path, key: str, *, conversation: str, policy: DoubleText, cancel_s: float) -> None:
    place = await begin(room, conversation)
    while True:
        try:
            ticket = await take(room, key, conversation=place, key=key, policy=policy)
            break
        except Busy:  # the key is free still
            await asyncio.sleep(0.01)
    if cancel_s:
        await asyncio.sleep(cancel_s)
        await room.cancels.cancel(LOCAL, ticket.run.id)
    answered = await ended(room, world_of(folder), ticket.run.id)
    run = await room.backend.run(LOCAL, ticket.run.id)
    tell(folder, Told(key, ids.text("run", run.id), run.status, text_of(answered)))


async def reads(folder: Path, *, build: str = "", visit: int = 7) -> None:
    """Read the turn `k0` to its end, going away after some events and coming back with the number of the last one."""
    break_it(build)
    backend = await open_backend(place_of(folder))
    room = Stateroom(backend, {}, owner=backend.owner, default_agent="")  # does no work and takes no run over
    home = ids.key_home(LOCAL.tenant, LOCAL.principal, "k0")
    while (found := await backend.key(LOCAL, "turn", "k0", home)) is None:
        await asyncio.sleep(0.01)
    run, seq, over = await backend.run(LOCAL, found.ref), 0, False
    with (folder / "heard").open("wb", buffering=0) as file:
        while not over:
            over = True
            async with aclosing(room.followers.events(LOCAL, run.id, room.followers.at(run, seq), poll_s=0.2)) as events:
                async for event in events:
                    if event is not None:
                        seq = event[0].seq
                        file.write(json.encode(event[1]) + b"\n")
                        if seq % visit == 0:
                            over = False
                            break
    await room.close()


def heard_in(folder: Path) -> list[dict[str, Any]]:
    return [json.decode_trusted(line) for line in (folder / "heard").read_bytes().splitlines()]


class JumpingClock(SystemClock):
    """The machine's clock with a wall that somebody sets: a file holds by how many seconds it is wrong."""

    def __init__(self, file: Path | None) -> None:
        super().__init__()
        self._file = file

    def wall_ms(self) -> int:
        return super().wall_ms() + (int(self._file.read_text().removesuffix("s")) * 1000 if self._file is not None else 0)


async def jumps(folder: Path, *, own: bool, lease_ms: int = 0, name: str = "") -> None:
    """Turns in a conversation while somebody turns the wall clock, and a look after everything every few milliseconds.
    `own`: the clock reads the file itself; otherwise the whole process is deceived. Each told line ends with the wall."""
    shorten(lease_ms)
    world = world_of(folder)
    clock = JumpingClock(folder / "wall" if own else None)
    room = await opened(place_of(folder), world, clock=clock)
    note_refusals(room, folder)
    conversation = await begin(room, f"c{name}")
    for number in itertools.count():
        ticket = await take(room, f"wait+idempotent {name}a{number}", conversation=conversation, key=f"{name}a{number}")
        answered = await ended(room, world, ticket.run.id)
        tell(folder, Told(f"{name}a{number}", ids.text("run", ticket.run.id), answered.run.status, str(clock.wall_ms())))
        if (folder / "enough").exists():
            break
    await room.close()


async def stops_inside(folder: Path, *, text: str) -> None:
    """One append, by a worker that stops while its transaction has the branch; it tells what it got when it goes on."""
    apply, stopping = Lane._apply, [signal.SIGSTOP]

    def stop(self: Lane, *args: Any) -> Any:
        if stopping:
            signal.pthread_kill(threading.get_ident(), stopping.pop())  # this thread takes no further step
        return apply(self, *args)

    backend = await open_backend(place_of(folder))
    bob = Someone(backend, LOCAL)
    Lane._apply = stop  # type: ignore[method-assign]
    appended = await bob.appends(bytes.fromhex((folder / "branch").read_text()), text)
    tell(folder, Told(text, str(appended.tail), "", ""))
    await backend.close()


async def the_same(folder: Path, *, count: int, lease_ms: int = 0) -> None:
    """One turn with one key, asked for many times at once. What was told is told when all were answered."""
    shorten(lease_ms)
    world = world_of(folder)
    room = await opened(place_of(folder), world, pause_s=0.01)
    conversation = await begin(room, "c")
    tickets = await asyncio.gather(*(take(room, "once t", conversation=conversation, key="k") for _ in range(count)))
    answers = await asyncio.gather(*(ended(room, world, ticket.run.id) for ticket in tickets))
    for answered in answers:
        tell(folder, Told("k", ids.text("run", answered.run.id), answered.run.status, text_of(answered)))
    await room.close()


async def serves(folder: Path, *, port: int, pause_s: float = 0.04, lease_ms: int = 0, build: str = "", pending: int = 0) -> None:
    """A server with him in it, until SIGTERM. `pending`: how many writes, and reads, may wait."""
    break_it(build)
    shorten(lease_ms)
    if pending:
        limits.PENDING_BATCHES_MAX = limits.PENDING_READS_MAX = pending  # type: ignore[misc]

    await serve(url_of(place_of(folder)), [Actor(world_of(folder), pause_s=pause_s)], port=port)


async def nothing(folder: Path) -> None:
    """Live, and end."""
