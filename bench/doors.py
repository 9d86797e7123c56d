"""Our doors beside the hand-written limit, in one run: interleaved blocks of turns, the median of the blocks' ratios.

    python -m bench.doors [--blocks 30] [--turns 40] [--dir FOLDER]

Every side writes the same tables with the same bytes and checks, in two commits a turn, with full fsync, on the same
disk. Absolute figures belong to this machine; the ratios are the result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from bench import hand
from bench.workload import BenchTurn, turns
from stateroom import ids
from stateroom.backends.sqlite.backend import SqliteBackend
from stateroom.batch import Batch, Receipt
from stateroom.conversation.rules import TRUST, draft
from stateroom.flows.agent import AgentEvent, Output, Turn
from stateroom.flows.failpoint import Failpoints
from stateroom.flows.turn import TurnRequest, Turns
from stateroom.principal import LOCAL, Scope
from stateroom.run.model import Accepted, AcceptTurn, Finish, Lease, TurnKey
from stateroom.session.model import PatchSlots, SlotPatch
from stateroom.wire import json as codec
from stateroom.wire import rows

clock = time.perf_counter


class Recorded:
    """An agent that says what the transcript says and changes the slots that the workload changes."""

    name, style = "bench", "responses"

    def __init__(self) -> None:
        self.turn: dict[str, BenchTurn] = {}

    async def work(self, turn: Turn) -> AsyncIterator[AgentEvent]:
        recorded = self.turn[turn.request["n"]]
        for item in recorded.raw[len(recorded.inputs) :]:
            yield Output(item)
        for name, body in recorded.slots.items():
            turn.set(name, codec.decode_trusted(body))


def by_hand(db, conv: bytes, n: int, turn: BenchTurn, *, hydrate: bool = False) -> None:
    at = time.time_ns() // 1_000_000
    db.execute("begin immediate")
    run = hand.accept(db, conv, f"k{n}", turn.inputs, at)
    db.execute("commit")
    if hydrate:
        hand.hydrate(db, conv)
    db.execute("begin immediate")
    hand.finish(db, run, turn.outputs, turn.slots, at)
    db.execute("commit")


class DoorTurn:
    """A turn as the store's door takes it: two batches of records, no flow."""

    def __init__(self, conv: bytes, n: int, turn: BenchTurn, scope: Scope = LOCAL) -> None:
        self.conv, self.n, self.turn, self.scope = conv, n, turn, scope
        self.at, self.home = time.time_ns() // 1_000_000, ids.home(conv)
        bodies = [body for *_, body in (*turn.inputs, *turn.outputs)]
        self.items = [codec.decode_trusted(body) for body in bodies]
        self.drafts = [draft(self.id(), item, body) for item, body in zip(self.items, bodies, strict=True)]

    def id(self) -> bytes:
        return ids.new(self.home, self.at)

    def accept(self, owner: str) -> Batch:
        key = TurnKey("turn", f"k{self.n}", b"f" * 32, ids.key_home(self.scope.tenant, self.scope.principal, f"k{self.n}"))
        accept = AcceptTurn(
            run=self.id(), agent="bench", owner="local", subject="local", conversation=self.conv, session=self.id(),
            fork=self.id(), key=key, input=tuple(self.drafts[: len(self.turn.inputs)]), claim=Lease(owner, 30_000),
            claimed_rows=rows.OPENED,
        )  # fmt: skip
        return Batch(id=self.id(), scope=self.scope, at=self.at, writes=(accept,))

    def finish(self, receipt: Receipt) -> Batch:
        assert isinstance(receipt, Accepted)
        run, inputs, slots = receipt.run, len(self.turn.inputs), self.turn.slots
        patches = tuple(SlotPatch(name, body, origin="agent:bench", trust=TRUST["agent"]) for name, body in slots.items())
        finish = Finish(
            run=run.id, fence=run.fence, status="completed", outputs=tuple(self.drafts[inputs:]),
            rows=(rows.end_row(self.items[inputs:]),),
        )  # fmt: skip
        patch = PatchSlots(session=run.session, patches=patches, by="local", run=run.id, fence=run.fence)
        return Batch(id=self.id(), scope=self.scope, at=self.at, writes=(patch, finish))


def by_door(commit: Callable, conv: bytes, n: int, turn: BenchTurn, owner: str) -> None:
    """The store's synchronous door."""
    door = DoorTurn(conv, n, turn)
    accepted = commit(door.accept(owner))[0]
    commit(door.finish(accepted))


async def by_flow(flow: Turns, agent: Recorded, conv: bytes, n: int, turn: BenchTurn, scope: Scope = LOCAL) -> None:
    """The whole turn flow."""
    key = str(n)
    agent.turn[key] = turn
    options = b'{"n":"%s"}' % key.encode()
    request = TurnRequest(agent="bench", input=tuple(b for *_, b in turn.inputs), options=options, conversation=conv, key=key)
    ticket = await flow.take(scope, request)
    await flow.outcome(scope, ticket.run.id)
    del agent.turn[key]


def timed(work: Callable[[], object]) -> float:
    start = clock()
    work()
    return clock() - start


class Bench:
    def __init__(self, folder: Path, blocks: int, size: int) -> None:
        self.folder, self.blocks, self.size = folder, blocks, size
        self.turns = turns(2 * blocks * size)
        self.db = hand.make(folder / "hand.db")
        self.n = 0

    async def open(self) -> None:
        self.backend = await SqliteBackend.open(self.folder / "ours")
        self.agent = Recorded()
        self.flow = Turns(self.backend, {"bench": self.agent}, owner=self.backend.owner, failpoints=Failpoints())

    def block(self, number: int) -> list[BenchTurn]:
        return self.turns[number * self.size : (number + 1) * self.size]

    async def conversation(self) -> bytes:
        from stateroom.conversation.service import Conversations

        return (await Conversations(self.backend).create(LOCAL)).id

    def next(self) -> int:
        self.n += 1
        return self.n

    async def flow_turn(self, conv: bytes, turn: BenchTurn) -> None:
        await by_flow(self.flow, self.agent, conv, self.next(), turn)

    async def serial(self) -> dict[str, float]:
        """Door and flow against the hand-written side, one caller."""
        door, flow, bare, plain = [], [], [], []
        c_door, c_flow, c_hand = await self.conversation(), await self.conversation(), hand.new_conversation(self.db, 1)
        for number in range(self.blocks):
            block = self.block(number)
            limit = timed(lambda b=block: [by_hand(self.db, c_hand, self.next(), t) for t in b])
            commit, owner = self.backend.commit_now, self.backend.owner
            door.append(timed(lambda b=block: [by_door(commit, c_door, self.next(), t, owner) for t in b]) / limit)
            before, start = self.backend.commits, clock()
            for turn in block:
                await self.flow_turn(c_flow, turn)
            spent = clock() - start
            whole = timed(lambda b=block: [by_hand(self.db, c_hand, self.next(), t, hydrate=True) for t in b])
            flow.append(spent / whole)
            bare.append(spent / limit)
            assert self.backend.commits - before == 2 * self.size, "an ordinary turn costs exactly two commits"
            plain.append(limit / self.size * 1000)
        return {
            "hand_written_ms_per_turn": statistics.median(plain),
            "commits_per_turn": 2.0,
            "store_door_sync_ratio": statistics.median(door),
            "turn_flow_async_one_caller_ratio": statistics.median(flow),
            "turn_flow_against_writes_alone_ratio": statistics.median(bare),
        }

    async def threads(self, count: int = 8) -> dict[str, float]:
        """Eight threads at the synchronous door against hand-written serial and hand-written group commit (turns/s)."""
        convs = [await self.conversation() for _ in range(count)]
        hands = [hand.new_conversation(self.db, 1) for _ in range(count)]
        group = hand.Group(self.folder / "hand.db")
        against_serial, against_group, commits = [], [], []
        for number in range(self.blocks):
            block = self.block(self.blocks + number)
            serial = timed(lambda b=block: [by_hand(self.db, hands[0], self.next(), t) for t in b])
            shares = [block[i::count] for i in range(count)]
            before = self.backend.commits
            ours = timed(
                lambda s=shares: together(
                    s, lambda i, t: by_door(self.backend.commit_now, convs[i], self.next(), t, self.backend.owner)
                )
            )
            commits.append((self.backend.commits - before) / self.size)
            theirs = timed(lambda s=shares: together(s, lambda i, t: by_group(group, hands[i], self.next(), t)))
            against_serial.append(serial / ours)
            against_group.append(theirs / ours)
        group.close()
        return {
            f"{count}_threads_turns_per_s_vs_hand_serial": statistics.median(against_serial),
            f"{count}_threads_turns_per_s_vs_hand_group_commit": statistics.median(against_group),
            f"{count}_threads_commits_per_turn": statistics.median(commits),
        }

    async def growth(self) -> dict[str, float]:
        """Statement steps (rows visited) of a turn in a short and in a long conversation."""
        out = {}
        for length in (100, 1000):
            conv = await self.conversation()
            for turn in (self.turns * 2)[:length]:
                by_door(self.backend.commit_now, conv, self.next(), turn, self.backend.owner)
            out[f"rows_read_per_turn_at_{length}_turns"] = await self.rows_read(conv)
        return out

    async def rows_read(self, conv: bytes) -> float:
        """Rows every reading statement of one flow turn returns, hydration included, with a cold cache."""
        agent = Recorded()
        flow = Turns(self.backend, {"bench": agent}, owner=self.backend.owner, failpoints=Failpoints())
        seen = [0]

        def count(cursor, row):
            seen[0] += 1
            return row

        self.backend._db.row_trace = count
        reader = self.backend._readers.db
        reader.row_trace = count
        self.flow, self.agent, old = flow, agent, (self.flow, self.agent)
        await self.flow_turn(conv, self.turns[0])
        self.flow, self.agent = old
        self.backend._db.row_trace = reader.row_trace = None
        return float(seen[0])

    async def disk(self) -> dict[str, float]:
        """Bytes on disk of a fresh store after real turns, as a factor on the items and a rest per turn."""
        backend = await SqliteBackend.open(self.folder / "disk")
        kept, self.backend, self.flow = (
            (self.backend, self.flow),
            backend,
            Turns(backend, {"bench": self.agent}, owner=backend.owner, failpoints=Failpoints()),
        )
        payload, slots, count, conv = 0, 0, 0, b""
        for count, turn in enumerate((self.turns * 3)[:4000], 1):
            if count % 8 == 1:
                conv = await self.conversation()
            payload += turn.bytes
            slots += sum(len(body) for body in turn.slots.values())
            await self.flow_turn(conv, turn)
        await backend.close()
        size = (self.folder / "disk" / "state.db").stat().st_size
        self.backend, self.flow = kept
        return {
            "disk_bytes_over_payload": size / payload,
            "disk_bytes_per_turn_beyond_1.3x_items": (size - slots - 1.3 * payload) / count,
        }


def together(shares: list[list[BenchTurn]], work: Callable[[int, BenchTurn], None]) -> None:
    threads = [threading.Thread(target=lambda i=i, s=s: [work(i, t) for t in s]) for i, s in enumerate(shares)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def by_group(group: hand.Group, conv: bytes, n: int, turn: BenchTurn) -> None:
    at = time.time_ns() // 1_000_000
    run = group.do(lambda db: hand.accept(db, conv, f"k{n}", turn.inputs, at))
    group.do(lambda db: hand.finish(db, run, turn.outputs, turn.slots, at))


TARGETS = {
    "commits_per_turn": ("exactly", 2.0),
    "store_door_sync_ratio": ("at most", 1.25),
    "turn_flow_async_one_caller_ratio": ("at most", 2.2),
    "8_threads_turns_per_s_vs_hand_serial": ("at least", 1.0),
    "8_threads_turns_per_s_vs_hand_group_commit": ("at least", 0.7),
    "disk_bytes_per_turn_beyond_1.3x_items": ("at most", 1536.0),
}


async def measure(args: argparse.Namespace) -> dict[str, float]:
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=args.dir))
    try:
        bench = Bench(folder, args.blocks, args.turns)
        await bench.open()
        figures = await bench.serial()
        figures |= await bench.threads()
        figures |= await bench.growth()
        figures |= await bench.disk()
        await bench.flow.workshop.close(0)
        await bench.backend.close()
        return figures
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report(figures: Mapping[str, float], targets: Mapping[str, tuple[str, float]] = TARGETS) -> bool:
    """Print each figure beside its target; whether all are met."""
    met = True
    for name, value in figures.items():
        word, target = targets.get(name, ("", 0.0))
        good = {"": True, "exactly": value == target, "at most": value <= target, "at least": value >= target}[word]
        met &= good
        print(f"{name:48} {value:10.3f}   {f'{word} {target:g}' if word else '':18}{'' if good else 'MISSED'}")
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--turns", type=int, default=40, help="turns in one block")
    parser.add_argument("--dir", default=None, help="a folder on the disk that is meant; a RAM disk makes fsync free")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures = asyncio.run(measure(args))
    if args.json:
        print(json.dumps(figures))
    else:
        report(figures)


if __name__ == "__main__":
    main()
