"""One writing connection: groups of batches as transactions, and what becomes of them when something breaks.

Batches of different homes share a transaction and its fsync: they have no row in common. One round trip fetches and
locks what they will read, one carries what they write and the commit. A refused batch leaves the others alone. When the
connection is lost, each batch's leaf says whether it landed: nothing is guessed, nothing is done twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection

from stateroom import ids
from stateroom.backends.postgres.ahead import Hint, hints
from stateroom.backends.postgres.errors import TAKEN, TRY_AGAIN, translate
from stateroom.backends.postgres.link import Link
from stateroom.backends.postgres.pipe import Lost, Pipe, Refused, encode
from stateroom.backends.postgres.tx import PostgresTx
from stateroom.backends.sql.apply import apply, home_of, leaf_of
from stateroom.backends.writer import Entry, Writer
from stateroom.batch import Receipt
from stateroom.errors import AlreadyExists, StateroomError, Unavailable

FAULTS = (ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError)  # of ours
TRIES_MAX = 6  # of one transaction that others got in the way of
KNOWN_MAX = 10_000  # ephemeral desks that are remembered
UNKNOWN_MAX = 1_024  # batches whose fate is not known
Tries = dict[bytes, tuple[Receipt, ...]]  # salt of a try's leaf: its receipts


class Plan:
    """A batch in its transaction: what it will read, and under which salt it leaves its leaf."""

    def __init__(self, entry: Entry, tenant: int, ephemeral: Collection[bytes]) -> None:
        self.entry, self.tenant, self.salt = entry, tenant, ids.salt()
        self.hints: list[Hint] = list(hints(entry.batch, tenant, ephemeral))
        self.asks = [(sql, encode(values)) for sql, values, _ in self.hints]
        self.homes = {hint[1][1] for hint in self.hints} | {home_of(entry.batch)}


class Lane:
    """Takes batches through `writer`, one group at a time."""

    def __init__(self, link: Link, landed: Callable[[set[bytes]], None]) -> None:
        """`landed` is told which topics to wake."""
        self.writer = Writer(self._commit_group)
        self._link, self._landed = link, landed
        self._tries: dict[Entry, Tries] = {}
        self._unknown: OrderedDict[bytes, Tries] = OrderedDict()  # by batch: the database went away before anybody could look
        self._began = 0  # boot ms: the present exchange
        self._ephemeral = set[bytes]()  # desks that were seen to be: more of what they read can be asked for at once
        self._tenant = -1  # the tenant that the transaction names at present
        self.commits = 0

    def _commit_group(self, group: list[Entry]) -> None:
        self._tries = {entry: self._unknown.pop(entry.batch.id, {}) for entry in group}
        left = group
        while left:
            left = self._go_on(left)

    def _go_on(self, group: list[Entry]) -> list[Entry]:
        """Commit as many as can share a transaction; who is left."""
        try:
            together, later = self._sharing(group)
        except Lost as lost:
            return self._look(group, lost)
        except Refused as refused:
            self._fail(group, translate(refused))
            return []
        except StateroomError as denied:
            self._fail(group, denied)
            return []
        if together:
            self._settle(together)
        return later

    def _sharing(self, group: list[Entry]) -> tuple[list[Plan], list[Entry]]:
        """Batches without a home in common, in order, and the rest."""
        self._began = self._link.shared.clock.boot_ms()
        pipe = self._link.pipe()
        taken, together, later = set[int](), list[Plan](), list[Entry]()
        for entry in group:
            try:
                plan = Plan(entry, self._link.tenants.make(pipe, entry.batch.scope.tenant), self._ephemeral)
            except StateroomError as wrong:  # what it asks for cannot even be said
                self._fail([entry], wrong)
                continue
            if taken & plan.homes:
                later.append(entry)
            else:
                taken |= plan.homes
                together.append(plan)
        return together, later

    def _settle(self, plans: list[Plan]) -> None:
        """Every batch gets its fate. What sank several is tried with each alone."""
        for tried in range(TRIES_MAX):
            try:
                return self._transaction(plans)
            except Lost as lost:
                left = self._look([plan.entry for plan in plans], lost)
                plans = [plan for plan in plans if plan.entry in left]
            except Refused as refused:
                self._roll_back()
                if len(plans) > 1:
                    return self._settle_alone(plans)
                if self._is_final(plans[0], refused, last=tried == TRIES_MAX - 1):
                    return None
            except FAULTS as fault:  # one batch that we have a fault with must not take others along
                self._link.drop()
                return self._settle_alone(plans) if len(plans) > 1 else self._fail([plans[0].entry], fault)
            for plan in plans:
                plan.salt = ids.salt()
            if not plans:
                return None
        return self._fail([plan.entry for plan in plans], Unavailable("The database comes and goes.", code="store_away"))

    def _settle_alone(self, plans: list[Plan]) -> None:
        for plan in plans:
            self._settle([plan])

    def _is_final(self, plan: Plan, refused: Refused, *, last: bool) -> bool:
        """Whether a lone batch's refusal is its fate. An id that is taken may be its own, of a try that was lost."""
        if refused.state == TAKEN and not self._look([plan.entry], None):
            return True
        if refused.state in TRY_AGAIN and not last:
            return False
        self._fail([plan.entry], translate(refused))
        return True

    # ── one transaction ─────────────────────────────────────────────────────────────────────────────────────────────

    def _transaction(self, plans: list[Plan]) -> None:
        self._began = self._link.shared.clock.boot_ms()
        pipe = self._link.pipe()
        known = self._fetch(pipe, plans)
        applied = [tx for plan, rows in zip(plans, known, strict=True) if (tx := self._apply(pipe, plan, rows)) is not None]
        for tx in applied:
            self._name(pipe, tx.tenant)
            tx.send()
        if applied and all(tx.only_lossy for tx in applied):  # whatever they locked, there is nothing to wait for the disk with
            pipe.send("set local synchronous_commit = off")
        pipe.send("commit")
        pipe.gather()
        self.commits += 1
        self._doubt([plan.entry for plan in plans if isinstance(plan.entry.fate, StateroomError)])
        for plan in plans:
            plan.entry.settled = True
        self._landed({topic for tx in applied for topic in tx.touched})

    def _fetch(self, pipe: Pipe, plans: list[Plan]) -> list[list[list[tuple[object, ...]]]]:
        """What each batch will read, locked, and the server's time."""
        asked = self._link.time.asking()
        pipe.send("begin")
        self._tenant = plans[0].tenant
        pipe.send(self._link.first_sql, (str(self._tenant),))
        for plan in plans:
            self._name(pipe, plan.tenant)
            for sql, encoded in plan.asks:
                pipe.put(sql, encoded)
        answers = iter(pipe.gather())
        next(answers)
        self._link.sample(pipe, next(answers)[0], asked)
        known, tenant = [], plans[0].tenant
        for plan in plans:
            if plan.tenant != tenant:
                next(answers)
                tenant = plan.tenant
            known.append([next(answers) for _ in plan.hints])
        return known

    def _apply(self, pipe: Pipe, plan: Plan, rows: list[list[tuple[object, ...]]]) -> PostgresTx | None:
        batch = plan.entry.batch
        tx = PostgresTx(pipe, batch.scope, tenant=plan.tenant, at=batch.at, now=self._link.time.now(), locking=True)
        tx.fence_floor = self._link.fence_floor
        for (sql, values, same), found in zip(plan.hints, rows, strict=True):
            statement = (sql, values) if same is None or not found else same(found[0])
            tx.knows(statement, found)
        aside = False

        def put_aside() -> None:
            nonlocal aside
            aside = True
            self._name(pipe, plan.tenant)
            pipe.send("savepoint batch")

        tx.before = put_aside
        try:
            receipts = apply(tx, batch, plan.salt)
        except StateroomError as refusal:
            plan.entry.fate = refusal
            if aside:
                pipe.send("rollback to savepoint batch")
                self._tenant = -1
            return None
        plan.entry.fate = self._tries[plan.entry][plan.salt] = receipts
        if tx.desks:
            if len(self._ephemeral) >= KNOWN_MAX:
                self._ephemeral.clear()
            self._ephemeral |= tx.desks.keys()
        return tx

    def _name(self, pipe: Pipe, tenant: int) -> None:
        """The one place where a writing transaction says whose rows it may touch."""
        if tenant != self._tenant:
            self._link.name(pipe, tenant)
            self._tenant = tenant

    # ── when something breaks ───────────────────────────────────────────────────────────────────────────────────────

    def _roll_back(self) -> None:
        try:
            self._link.pipe().ask("rollback")
        except Lost:
            self._link.drop()

    def _look(self, entries: list[Entry], lost: Lost | None) -> list[Entry]:
        """Which batches landed, by their leaves: those get the receipts of the try that did. Returns the others."""
        if lost is not None:
            self._link.drop()
            self._link.shared.is_away(self._began)
        try:
            return self._link.patiently(lambda pipe: [entry for entry in entries if not self._has_landed(pipe, entry)])
        except StateroomError as away:
            self._leave([entry for entry in entries if not entry.settled], away)
            return []

    def _leave(self, entries: list[Entry], away: StateroomError) -> None:
        """Nobody knows whether these landed. Should they be handed in again, their tries are."""
        for entry in entries:
            if tries := self._tries[entry]:
                self._unknown[entry.batch.id] = tries
        while len(self._unknown) > UNKNOWN_MAX:
            self._unknown.popitem(last=False)
        self._fail(entries, away)

    def _doubt(self, refused: list[Entry]) -> None:
        """A batch that was sent before may have been refused for what it did itself: its first try was still under way
        when its leaf was looked for."""
        if doubtful := [entry for entry in refused if self._tries[entry]]:
            self._look(doubtful, None)

    def _has_landed(self, pipe: Pipe, entry: Entry) -> bool:
        if entry.settled:
            return True
        tenant = self._link.tenants.find(pipe, entry.batch.scope.tenant)
        with self._link.reading(pipe, tenant):
            salt = leaf_of(PostgresTx(pipe, entry.batch.scope, tenant=tenant), entry.batch)
        if salt is None:
            return False
        tries = self._tries[entry]
        entry.fate = tries.get(salt) or AlreadyExists("This batch has landed before.", code="batch_landed")
        entry.settled = True
        self._landed({write.subject_of_change() for write in entry.batch.writes})
        return True

    def _fail(self, entries: list[Entry], error: Exception) -> None:
        for entry in entries:
            entry.fate, entry.settled = error, True

    def close(self) -> None:
        self.writer.close()
        self._link.drop()
