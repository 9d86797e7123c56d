"""The run room: one execution, its status, its log and its inbox. Only its outputs graduate into the conversation."""

from __future__ import annotations

from typing import Literal

from stateroom.batch import Draft, Receipt, Record, Write
from stateroom.ids import NIL

Status = Literal[
    "queued", "in_progress", "requires_action", "cancelling", "completed", "incomplete", "failed", "cancelled", "expired"
]
TERMINAL: frozenset[str] = frozenset({"completed", "incomplete", "failed", "cancelled", "expired"})
Style = Literal["responses", "invocations"]
# What to do with a turn while another one is active on its branch: wait; refuse; join the active one at its next step;
# wait and drop the others that wait; cancel the active one and go first; answer beside it on a fork; undo the
# active one and take its place.
DoubleText = Literal["enqueue", "reject", "merge", "latest", "interrupt", "parallel", "rollback"]


class Run(Record, frozen=True):
    """One execution. `input` lies at seqs in_lo < seq <= in_hi of the branch, output at in_hi < seq <= out_hi
    (items of other writers may lie between; items carry their run). `head` is the last wire number of the log."""

    id: bytes
    conversation: bytes
    branch: bytes
    session: bytes
    agent: str
    owner: str
    subject: str
    status: Status
    attempt: int = 1
    fence: int = 0
    lease_owner: str = ""
    lease_until: int = 0  # store time, ms
    cancel_at: int = 0  # store time at which a cancel was asked for; 0: never
    queue_no: int = 0
    in_lo: int = 0
    in_hi: int = 0
    out_hi: int = 0
    previous: bytes = NIL  # the response this turn continues
    head: int = 0
    stored: bool = True  # false: content lives in the worker only
    options: bytes = b"{}"  # the request without its input, as it came
    usage: bytes = b""
    error: bytes = b""  # JSON {code, message}; also why it is incomplete
    created_at: int = 0
    started_at: int = 0
    finished_at: int = 0
    key: str = ""  # the turn key its caller gave
    deadline_at: int = 0  # store time by which it has to end; 0: none
    merge: bool = False  # waits to be taken in by the run before it
    merged_into: bytes = NIL  # the run that took its input in and answers it
    epoch: int = 0  # incarnation of its log; a compaction starts another
    desk_version: int = 0  # the session's when it was claimed first

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL


class LogRow(Record, frozen=True):
    """One entry of a run's log. It stands for the wire events first .. first+count-1; `kind` and `body` say which
    (flows and renderers know the kinds; the store does not)."""

    first: int
    count: int
    kind: str
    body: bytes
    at: int
    item: bytes = NIL  # the output it shows a part of: purging the item blanks its entries


class NewRow(Record, frozen=True):
    """A log entry on its way in; the store gives it its first number."""

    kind: str
    count: int
    body: bytes = b""
    item: bytes = NIL


class Lease(Record, frozen=True):
    """Who wants to work, and for how long without a heartbeat. `agents` limits what it can run (empty: anything)."""

    owner: str
    ms: int
    agents: frozenset[str] = frozenset()


class TurnKey(Record, frozen=True):
    """The key of a turn, scoped to (tenant, principal, operation)."""

    operation: str
    key: str
    fingerprint: bytes
    home: int
    renew_before: int = 0  # wall ms: a row older than this is taken over instead of being Known (retries without a key)


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class AcceptTurn(Write, frozen=True):
    """Make a turn's input durable; with a lease and an idle branch also claim it, in the same breath (D5).

    The place: `previous` (a response whose branch is extended or forked) or the main branch of `conversation`, or
    nothing at all when `stored` is false. `fork` is the id a fork would get, `session` the id a desk would get if
    (conversation, agent) has none. Known when the key was used; Busy when the policy or the queue's cap says no.
    """

    run: bytes
    agent: str
    owner: str
    subject: str
    conversation: bytes = NIL
    branch: bytes = NIL  # NIL: the conversation's main branch
    previous: bytes = NIL
    fork: bytes = NIL
    session: bytes = NIL
    key: TurnKey | None = None
    input: tuple[Draft, ...] = ()
    options: bytes = b"{}"
    stored: bool = True
    policy: DoubleText = "enqueue"
    queue_max: int = 16
    deadline_at: int = 0
    claim: Lease | None = None
    claimed_rows: tuple[NewRow, ...] = ()  # the log's first entries when it starts at once …
    queued_rows: tuple[NewRow, ...] = ()  # … and when it has to wait
    dropped_rows: tuple[NewRow, ...] = ()  # the log's end of turns that it supersedes

    @property
    def weight(self) -> int:
        return sum(len(draft.body) for draft in self.input) + len(self.options)

    def subject_of_change(self) -> bytes:
        return self.run


class Claim(Write, frozen=True):
    """Take a queued run: the head of its branch's queue, on an idle branch. Conflict otherwise."""

    run: bytes
    lease: Lease
    rows: tuple[NewRow, ...] = ()

    def subject_of_change(self) -> bytes:
        return self.run


class Heartbeat(Write, frozen=True):
    """Prolong a lease. The receipt says whether somebody asked to cancel."""

    run: bytes
    fence: int
    lease: Lease

    def subject_of_change(self) -> bytes:
        return self.run


class Log(Write, frozen=True):
    """Entries for the log of a run in progress, under its fence."""

    run: bytes
    fence: int
    rows: tuple[NewRow, ...]

    def subject_of_change(self) -> bytes:
        return self.run


class Finish(Write, frozen=True):
    """The end of a run: outputs, terminal status, usage, the log's last entries, and the claim of the branch's next
    queued turn, all at once. `fence` None is for those who end a run that nobody works on (cancel, recovery)."""

    run: bytes
    fence: int | None
    status: Status
    outputs: tuple[Draft, ...] = ()
    keep_input: bool = False  # its input stays in the window although it did not complete: it was interrupted
    usage: bytes = b""
    error: bytes = b""
    rows: tuple[NewRow, ...] = ()
    next: Lease | None = None
    next_rows: tuple[NewRow, ...] = ()
    compact_ms: int = 0  # when the log is due to be compacted, after the end; 0: it has nothing to lose

    @property
    def weight(self) -> int:
        return sum(len(draft.body) for draft in self.outputs)

    def subject_of_change(self) -> bytes:
        return self.run


class Cancel(Write, frozen=True):
    """Ask for the end. A queued run ends at once; one in progress becomes `cancelling`; a terminal one is refused."""

    run: bytes
    rows: tuple[NewRow, ...] = ()  # the log's end, when it ends at once

    def subject_of_change(self) -> bytes:
        return self.run


class Requeue(Write, frozen=True):
    """Recovery: the lease of this fence has ended; the run goes back to the head of its queue for another attempt.
    Conflict when the lease lives, StaleFence when somebody was quicker. `owner_gone` says the lease's owner is dead
    (its OS lock is free), so its end need not be waited for."""

    run: bytes
    fence: int
    owner_gone: bool = False
    planned: bool = False  # the worker itself lets go, because it stops: the attempt does not count
    rows: tuple[NewRow, ...] = ()  # what the log tells readers of the attempt that is lost

    def subject_of_change(self) -> bytes:
        return self.run


class DeleteRun(Write, frozen=True):
    """The run and its answer. Items of a conversation stay; those of a bare chain go when no later response shows them."""

    run: bytes

    def subject_of_change(self) -> bytes:
        return self.run


# ── receipts ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Accepted(Receipt, frozen=True):
    """The turn is durable. `run` is the row as written: status in_progress with a fence (claimed), or queued.
    `interrupted` is the active run that was asked to cancel for it."""

    run: Run
    revision: int  # of the branch
    session_version: int
    forked: bool
    interrupted: bytes = NIL


class Claimed(Receipt, frozen=True):
    run: Run
    revision: int
    session_version: int


class Beaten(Receipt, frozen=True):
    """The lease was prolonged."""

    lease_until: int
    cancel: bool


class Recorded(Receipt, frozen=True):
    """The rows got wire numbers first..head; `cancel` as in Beaten."""

    first: int
    head: int
    cancel: bool


class Finished(Receipt, frozen=True):
    """`next` is the queued run that this worker now holds, if it asked for one."""

    run: Run
    next: Claimed | None


class Cancelled(Receipt, frozen=True):
    run: Run


class Requeued(Receipt, frozen=True):
    run: Run


class Resolved(Receipt, frozen=True):
    """The run after it: still waiting, queued again, or ended by the action's policy."""

    run: Run


class Paused(Receipt, frozen=True):
    run: Run


class Drained(Receipt, frozen=True):
    """What was taken in, in order, and the runs it came from; `run`'s branch has this `revision` and `tail` now."""

    items: tuple[Draft, ...]
    runs: tuple[bytes, ...]
    tail: int
    revision: int


class Due(Record, frozen=True):
    """One line of the due table: no content, only what to look at and when (store time, ms)."""

    kind: str
    at: int
    tenant: str
    id: bytes


class RunQuery(Record, frozen=True):
    """Runs of the scope, newest first. NIL and None mean any; `after` is exclusive. With `session` give the conversation
    that it is bound to: its runs are walked."""

    conversation: bytes = NIL
    session: bytes = NIL
    status: Status | None = None
    after: bytes = NIL
    limit: int = 20
