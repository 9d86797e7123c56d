"""What is true of a store in every committed state, as queries that find nothing; for both SQL stores.

The first column of a violation is the id of what is wrong. On PostgreSQL they see the tenant that the transaction names.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

ENDED = "('completed', 'incomplete', 'failed', 'cancelled', 'expired')"
WORKED_ON = "('in_progress', 'requires_action', 'cancelling')"


class Invariant(msgspec.Struct, frozen=True):
    """`says` what is true; `finds` selects where it is not."""

    promise: str
    code: str
    says: str
    finds: str

    def first(self, count: int) -> str:
        """The query for so many violations at most."""
        return f"select * from ({self.finds}) as found limit {count}"


_ALL = (
    Invariant(
        "P2", "record_gap", "the items of a branch are numbered from where it begins to its tail",
        "select b.id, b.up_to, b.tail, count(i.seq) from branch b left join item i"
        " on i.tenant = b.tenant and i.home = b.home and i.branch = b.id group by b.tenant, b.home, b.id"
        " having count(i.seq) <> b.tail - b.up_to"
        " or (count(i.seq) > 0 and (min(i.seq) <> b.up_to + 1 or max(i.seq) <> b.tail))",
    ),
    Invariant(
        "P4", "log_gap", "the log of a run is numbered from 1 to its head",
        "select r.id, r.head, count(l.first) from run r left join run_log l"
        " on l.tenant = r.tenant and l.home = r.home and l.run = r.id group by r.tenant, r.home, r.id"
        " having coalesce(sum(l.count), 0) <> r.head or coalesce(min(l.first), 1) <> 1"
        " or coalesce(max(l.first + l.count - 1), 0) <> r.head",
    ),
    Invariant(
        "P9", "wait_for_nothing", "a run that waits waits for something",
        "select id from run r where status = 'requires_action' and not exists (select 1 from action a"
        " where a.tenant = r.tenant and a.home = r.home and a.run = r.id and a.status = 'pending')",
    ),
    Invariant(
        "P9", "branch_taken", "a branch is taken by a run that works or waits on it, or by nobody",
        "select b.id, b.active_run, r.status from branch b left join run r"
        " on r.tenant = b.tenant and r.home = b.home and r.id = b.active_run"
        f" where b.active_run is not null and (r.id is null or r.branch <> b.id or r.status not in {WORKED_ON})",
    ),
    Invariant(
        "P9", "queue_miscounted", "a branch knows how many wait for it",
        "select b.id, b.queued, count(r.id) from branch b left join run r on r.tenant = b.tenant and r.home = b.home"
        " and r.branch = b.id and r.status = 'queued' group by b.tenant, b.home, b.id having b.queued <> count(r.id)",
    ),
    Invariant(
        "P10", "log_without_end", "a log ends with its end, and has one",
        "select r.id, r.status, count(l.first), r.head from run r left join run_log l"
        " on l.tenant = r.tenant and l.home = r.home and l.run = r.id and l.kind = 'end'"
        f" where r.status in {ENDED} group by r.tenant, r.home, r.id"
        " having count(l.first) <> 1 or max(l.first + l.count - 1) <> r.head",
    ),
    Invariant(
        "P10", "log_ended_early", "a run that has not ended has no end in its log",
        "select r.id from run r join run_log l on l.tenant = r.tenant and l.home = r.home and l.run = r.id"
        f" and l.kind = 'end' where r.status not in {ENDED}",
    ),
    Invariant(
        "P10", "asked_in_vain", "nothing is asked for a run that has ended",
        "select r.id, r.status, a.key from run r join action a on a.tenant = r.tenant and a.home = r.home and a.run = r.id"
        f" where r.status in {ENDED} and a.status = 'pending'",
    ),
    Invariant(
        "P10", "inbox_left", "the input of a run that began or ended lies in the record, not in its inbox",
        "select r.id, r.status from run r join inbox i on i.tenant = r.tenant and i.home = r.home and i.run = r.id"
        " where r.status <> 'queued' or r.in_hi > 0",
    ),
    Invariant(
        "P10", "end_without_time", "a run that has ended says when",
        f"select id from run where status in {ENDED} and finished_at = 0",
    ),
)  # fmt: skip

INVARIANTS: Mapping[str, Invariant] = {invariant.code: invariant for invariant in _ALL}
