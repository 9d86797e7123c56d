"""What a backend keeps of runs."""

from __future__ import annotations

from typing import Protocol

from stateroom.batch import Draft, KeyRow
from stateroom.principal import Scope
from stateroom.run.model import Due, LogRow, Run, RunQuery
from stateroom.run.steps import Action, ActionQuery, Step


class RunStore(Protocol):
    """Runs, their logs, inboxes and keys. Writes go through `Backend.commit`.

    R1. One key, one run: of any number of racing accepts one wins, the others are Known (P14).
    R2. A stale fence writes nothing (P8). Fences only grow.
    R3. A branch has at most one active run; queued turns start in the order they were accepted.
    R4. Log numbers are dense per run; an entry is visible only after its commit (P3).
    R5. Outputs, terminal status, usage and the log's end appear together (P5, P10); terminal is final.
    R6. An accepted turn's input is durable even when it never runs; then it is appended, marked `not_run`.
    R7. Leases are measured on the store's clock, which wall jumps do not reach (P13).
    R8. Another tenant's or owner's id answers like one that does not exist (P28).
    R9. A step that is done stays done; an approval is spent once, on the arguments it was given for (P15, P16).
    R10. A paused run holds no lease; the answer to its last pending action queues it again, first in its branch.
    """

    async def run(self, scope: Scope, run: bytes) -> Run:
        """NotFound when unknown, deleted or not visible."""
        ...

    async def runs(self, scope: Scope, query: RunQuery) -> list[Run]: ...

    async def key(self, scope: Scope, operation: str, key: str, home: int) -> KeyRow | None:
        """What the scope's principal used this key for."""
        ...

    async def inbox(self, scope: Scope, run: bytes) -> list[Draft]:
        """Input accepted and not yet in the record."""
        ...

    async def log(self, scope: Scope, run: bytes, *, after: int, limit: int) -> list[LogRow]:
        """Entries whose last wire number is greater than `after`, in order."""
        ...

    async def steps(self, scope: Scope, run: bytes) -> list[Step]:
        """The run's steps, in the order they were first recorded."""
        ...

    async def actions(self, scope: Scope, query: ActionQuery) -> list[Action]:
        """What a run waits for, or what lies in a handoff queue. A run must be visible; a queue shows visible runs'."""
        ...

    async def heads(self, scope: Scope, runs: list[bytes]) -> dict[bytes, tuple[int, bool]]:
        """For a watcher: each run's log head, and whether it has ended. Unknown ones are left out."""
        ...

    async def due(self, kind: str, until: int, limit: int) -> list[Due]:
        """As `system`: what maintenance has to look at, up to store time `until`. Holds no content. The id is the run's, for
        kind `action` the action's."""
        ...

    async def run_of_action(self, tenant: str, action: bytes) -> bytes:
        """As `system`: the run that waits for this action; NIL when there is none."""
        ...

    async def leased_by(self, owner: str, limit: int) -> list[Due]:
        """As `system`: runs whose lease belongs to this owner, for the recovery of a dead process's work."""
        ...

    async def owners(self) -> list[str]:
        """As `system`: every owner that holds a lease."""
        ...
