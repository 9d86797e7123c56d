"""Two backends that are sent the same batches and asked the same questions."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from stateroom.backends.base import Backend
from stateroom.backends.ram.backend import RamBackend
from stateroom.backends.ram.store import RamStore
from stateroom.batch import Batch, Draft, Write
from stateroom.clock import FrozenClock
from stateroom.ids import NIL
from stateroom.principal import Scope
from stateroom.run.model import AcceptTurn, Lease, NewRow, Run, RunQuery
from stateroom.run.steps import Action
from tests.stateful.drawing import EVERYBODY, NOBODYS, outcome

Factory = Callable[[Path, FrozenClock], Awaitable[Backend]]


class Both(RuleBasedStateMachine):
    """Ram and what it is compared with, which subclasses say, at work on the same batches."""

    factory: Factory

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.run = self.runner.get_loop().run_until_complete  # a runner's own `run` costs more than what it runs
        self.directory = tempfile.TemporaryDirectory()
        self.clock = FrozenClock()
        self.ram: Backend = RamBackend(RamStore(self.clock))
        self.other = self.run(type(self).factory(Path(self.directory.name), self.clock))
        self.made = 0
        self.conversations: list[bytes] = []
        self.branches: list[bytes] = []
        self.sessions: list[bytes] = []
        self.runs: list[bytes] = []
        self.actions: list[Action] = []
        self.held: list[Write] = []
        self.seen: dict[bytes, Run] = {}

    def teardown(self) -> None:
        self.run(self.other.close())
        self.runner.close()
        self.directory.cleanup()

    # ── both at once ────────────────────────────────────────────────────────────────────────────────────────────────

    def new_id(self) -> bytes:
        self.made += 1
        return (7).to_bytes(2, "big") + self.made.to_bytes(14, "big")

    def pick(self, pool: list[bytes], n: int) -> bytes:
        return pool[-1 - n % len(pool)] if pool and n != NOBODYS else b"\x00\x07" + 14 * b"?"

    def drafts(self, count: int) -> tuple[Draft, ...]:
        made = [(self.new_id(), self.made) for _ in range(count)]
        return tuple(Draft(id=id_, kind="x", role="", origin="unknown", trust=0, body=b'{"n":%d}' % n) for id_, n in made)

    def rows(self, count: int) -> tuple[NewRow, ...]:
        return tuple(NewRow(kind="r", count=n + 1, body=b"%d" % n) for n in range(count))

    def current(self, run: bytes) -> Run | None:
        found = self.run(self.ram.runs(EVERYBODY, RunQuery(limit=100)))
        return next((row for row in found if row.id == run), None)

    def fence(self, run: bytes, off: int) -> int:
        row = self.current(run)
        return (row.fence if row is not None else 0) + off

    def runs_that(self, match: Callable[[Run], bool]) -> list[bytes]:
        return [id_ for id_ in self.runs if id_ in self.seen and match(self.seen[id_])]

    def turn(self, input: int, **fields: Any) -> AcceptTurn:
        given = {"agent": "clerk", "owner": "alice", "subject": "s", "claim": Lease("w1", 30_000), **fields}
        return AcceptTurn(run=self.new_id(), fork=self.new_id(), input=self.drafts(input), **given)

    def does(self, scope: Scope, write: Write, hold: bool = False) -> None:
        """Both take the batch, and say the same."""
        self.held.append(write)
        if hold:
            return
        batch = Batch(id=self.new_id(), scope=scope, at=self.clock.wall_ms(), writes=tuple(self.held))
        self.held = []
        self.learn(self.compare(f"commit {batch}", lambda store: store.commit(batch)))
        self.compare("landed", lambda store: store.landed(batch))

    def learn(self, receipts: Any) -> None:
        """What there is now to do something with."""
        for kind, fields in receipts if isinstance(receipts, list) else []:
            if kind == "Created":
                self.conversations.append(fields["id"])
                self.branches.append(fields["id"])
            elif kind == "Forked":
                self.branches.append(fields["id"])
            elif kind == "Opened":
                self.sessions.append(fields["id"])
            elif kind == "Accepted":
                _, run = fields["run"]
                self.runs.append(run["id"])
                self.branches += [run["branch"]] if fields["forked"] else []
                self.sessions += [run["session"]] if run["session"] not in (NIL, *self.sessions) else []

    def compare(self, what: str, act: Callable[[Backend], Awaitable[Any]]) -> Any:
        async def both() -> tuple[Any, Any]:
            return await outcome(act(self.ram)), await outcome(act(self.other))

        ours, theirs = self.run(both())
        assert ours == theirs, f"{what}\n ram   {ours}\n other {theirs}"
        return ours
