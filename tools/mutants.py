# ruff: noqa: E501   the long lines are the edits themselves
"""Break one promise at a time, on purpose, and see its tests go red: a check of the checks.

    python -m tools.mutants [P14 …]        all of them, or those of the named promises

Each mutant is one edit of a copy of the sources. A mutant that survives means that a promise has no test.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SQL = "backends/sql/"
SQLITE = "backends/sqlite/"
POSTGRES = "backends/postgres/"


class Mutant(NamedTuple):
    promise: str
    what: str
    file: str  # below src/stateroom
    old: str
    new: str
    tests: str  # what pytest is asked to run; it has to fail


MUTANTS = (
    Mutant("P1", "the answer comes before COMMIT", SQLITE + "backend.py", '            self._db.execute("commit")\n            self.commits += 1', '            self._db.execute("rollback")\n            self.commits += 1', "tests/conformance/test_sqlite.py -k B2"),
    Mutant("P1", "no fsync", SQLITE + "db.py", 'db.execute(f"pragma {file}.synchronous={synchronous}")', 'db.execute(f"pragma {file}.synchronous=off")', "tests/crash/test_power_cut.py"),
    Mutant("P2", "the tail is not moved on", SQL + "conversation.py", "    return tail + len(drafts)", "    return tail + len(drafts) + (len(drafts) > 1)", "tests/conformance/test_sqlite.py -k P2"),
    Mutant("P2", "any tail will do", SQL + "conversation.py", "write.expected_tail != row.tail", "write.expected_tail > row.tail + 99", "tests/conformance/test_sqlite.py -k C3"),
    Mutant("P3", "readers see what is not in the store", "flows/feed.py", "        return self._recent[seq - first :], self._ended", "        return [*self._recent[seq - first :], (self._told + 1, {'type': 'response.output_text.delta'})], self._ended", "tests/flows/test_follow.py -k P3"),
    Mutant("P4", "an event is skipped on resume", "flows/feed.py", "        return self._recent[seq - first :], self._ended", "        return self._recent[seq - first + 1 :], self._ended", "tests/flows/test_follow.py -k P4"),
    Mutant("P4", "an event is told twice on resume", "flows/feed.py", "        return self._recent[seq - first :], self._ended", "        return self._recent[max(0, seq - first - 1) :], self._ended", "tests/flows/test_follow.py -k P4"),
    Mutant("P4", "what was being said when a run began to wait stays open", "flows/perform.py", "rows.RESET if self._scribe.telling else ()", "()", "tests/crash/test_readers.py -k P4"),
    Mutant("P5", "a cut looks like an end", "connection/service.py", "        if ended and seq >= head:\n            return", "        if not events:\n            return", "tests/flows/test_follow.py -k P5"),
    Mutant("P6", "cursors of other runs are taken", "connection/model.py", "    if named != epoch:", "    if False:", "tests/flows/test_follow.py tests/rooms -k P6"),
    Mutant("P7", "nobody sees that a reader has stalled", "server/pulse.py", '                stream.end("lagged")\n', "                pass\n", "tests/server/test_slow_readers.py -k P7"),
    Mutant("P8", "nobody looks at fences", "run/machine.py", '    if run.fence != fence or run.status not in ("in_progress", "cancelling"):', "    if False:", "tests/flows/test_recover.py -k P8"),
    Mutant("P8", "nobody looks at fences", "run/machine.py", '    if run.fence != fence or run.status not in ("in_progress", "cancelling"):', "    if False:", "tests/crash/test_stopped.py -k writes_nothing"),
    Mutant("P9", "leases never end", "flows/recover.py", "            if not owner_gone and run.lease_until > self._backend.now():", "            if not owner_gone:", "tests/flows/test_recover.py -k P9"),
    Mutant("P9", "a dead worker's run is given up at once", "run/machine.py", "    return run.attempt >= attempts_max", "    return True", "tests/flows/test_recover.py -k P9"),
    Mutant("P10", "terminal is not final", "run/machine.py", '    ("cancelling", "expire"): "expired",', '    ("cancelling", "expire"): "expired",\n    ("completed", "fail"): "failed",\n    ("completed", "cancel"): "cancelled",', "tests/rooms tests/conformance -k P10"),
    Mutant("P10", "the end is not in the log", SQL + "ending.py", "    row = log(tx, row, write.rows)\n    compact_at", "    compact_at", "tests/flows/test_follow.py tests/conformance/test_sqlite.py"),
    Mutant("P10", "what was asked stays open at the end", SQL + "ending.py", "        close_actions(tx, row.id)", "        pass", "tests/flows/test_steps.py -k P12"),
    Mutant("P12", "nobody ends a run whose worker does not listen", "flows/turn.py", "            await self._end_over(scope, run)", "            pass", "tests/crash/test_stopped.py -k P12"),
    Mutant("P12", "a run that waits cannot be cancelled", "run/machine.py", '    ("requires_action", "cancel"): "cancelled",\n', "", "tests/flows/test_steps.py -k P12"),
    Mutant("P12", "a run that is about to wait cannot be cancelled", "flows/perform.py", "        except IllegalMove:\n            return await self._cancelled()", "        except IllegalMove:\n            raise", "tests/races/test_ends.py -k P12"),
    Mutant("P13", "leases run on the wall clock", SQLITE + "db.py", "        return store_time(self._clock, boot=self._boot, boot_ms=self._boot_ms, store_ms=self._store_ms)", "        return self._clock.wall_ms()", "tests/flows/test_recover.py -k P13"),
    Mutant("P13", "leases run on the wall clock", SQLITE + "db.py", "        return store_time(self._clock, boot=self._boot, boot_ms=self._boot_ms, store_ms=self._store_ms)", "        return self._clock.wall_ms()", "tests/crash/test_clock_jumps.py -k 'ours and steals'"),
    Mutant("P14", "keys are not looked at", SQL + "accept.py", "    if used is not None and used.at >= key.renew_before:", "    if False:", "tests/flows/test_turn.py -k P14"),
    Mutant("P14", "another request under the same key is answered", "flows/turn.py", "        if key is not None and known.fingerprint != key.fingerprint:", "        if False:", "tests/flows/test_turn.py -k P14"),
    Mutant("P14", "keys are shared between principals", SQL + "accept.py", "tx.scope.principal, key.operation", "'', key.operation", "tests/conformance/test_sqlite.py -k P14"),
    Mutant("P15", "effects begin without an intent", "flows/steps.py", '        if effect != "pure":\n            await self._commit(step)', '        if effect != "pure":\n            pass', "tests/crash/test_steps.py -k 'named_place and once'"),
    Mutant("P15", "a once step is done again by itself", "flows/steps.py", '        if known is not None and effect == "once":\n            happened', '        if False:\n            happened', "tests/flows/test_steps.py -k P15"),
    Mutant("P15", "each attempt has its own effect key", "flows/steps.py", "self._run.id + key.encode(), hashlib", "self._run.id + key.encode() + bytes([self._run.attempt]), hashlib", "tests/flows/test_steps.py -k P15"),
    Mutant("P15", "a transactional step's change lands without its result", "flows/steps.py", "            await self._commit(done, layers=doing.desk.layers())", "            await self._commit(step, layers=doing.desk.layers())", "tests/flows/test_steps.py -k P15"),
    Mutant("P15", "what somebody said about a step counts for ever", "flows/steps.py", "            asked += 1\n            self._results.append", "            asked = max(asked, 1)\n            self._results.append", "tests/crash/test_steps.py -k reconciled"),
    Mutant("P15", "results are dropped when the end is refused once", "flows/steps.py", "        return [RecordSteps(run=self._run.id, fence=self._run.fence, steps=steps, uses=uses)]", "        self._results, self._uses = [], []\n        return [RecordSteps(run=self._run.id, fence=self._run.fence, steps=steps, uses=uses)]", "tests/races/test_ends.py -k P15"),
    Mutant("P16", "an approval counts for whatever is done", "run/machine.py", '    if action.kind == "approval" and write.digest != action.digest:', "    if False:", "tests/flows/test_steps.py -k P16"),
    Mutant("P16", "arguments may change after they were approved", "flows/steps.py", "            if known.digest != bound:", "            if False:", "tests/flows/test_steps.py -k P16"),
    Mutant("P16", "an approval is not spent", "flows/steps.py", "                self._uses.append(known.id)", "                pass", "tests/flows/test_steps.py -k P16"),
    Mutant("P17", "calls that nobody answered stay open", "context/build.py", "    if not pairs.unanswered:", "    if True:", "tests/flows/test_context.py -k P17"),
    Mutant("P17", "what was interrupted by a crash is forgotten", "flows/recover.py", "keep_input=interrupted", "keep_input=False", "tests/crash/test_double_texting.py -k interrupt"),
    Mutant("P17", "who takes a run over does not know what was merged into it", "flows/perform.py", "        steps.news = await self._taken_in() if again else []", "        steps.news = []", "tests/crash/test_double_texting.py -k merge"),
    Mutant("P18", "a conversation goes on in what was undone", SQL + "conversation.py", "    return row if row.moved_to == NIL else branch(tx, row.moved_to)", "    return row", "tests/conformance/test_sqlite.py -k P18"),
    Mutant("P18", "a conversation is taken back under a turn", "conversation/rules.py", "    if now.active_run != NIL or now.queued:\n        raise Busy", "    if now.queued > 99:\n        raise Busy", "tests/conformance/test_ram.py -k P18"),
    Mutant("P18", "who went on meanwhile is not asked", "conversation/rules.py", "    if now.tail != write.expected_tail:", "    if now.tail < 0:", "tests/conformance/test_ram.py -k P18"),
    Mutant("P18", "rollback leaves the desk as it is", SQL + "undo.py", "    undo_desk(tx, write, active, branch)\n    made", "    made", "tests/conformance/test_sqlite.py -k P18"),
    Mutant("P18", "who waits stays on the branch that was left", SQL + "undo.py", "replace(made, queued=hand_over(tx, branch, made))", "made", "tests/conformance/test_sqlite.py -k P18"),
    Mutant("P18", "a branch that was left is extended", "run/machine.py", " and not place.left", "", "tests/conformance/test_ram.py -k P18"),
    Mutant("P18", "a turn leaves no checkpoint", "flows/perform.py", "            writes.append(MarkTurn(", "            tuple[object](MarkTurn(", "tests/flows/test_going_back.py -k checkpoint"),
    Mutant("P23", "two workers write one archive over the other", "flows/archive.py", "-{ids.salt().hex()[:12]}.desk", ".desk", "tests/flows/test_expiry.py -k 'own_place'"),
    Mutant("P23", "a hook that failed is taken for done", "flows/expire.py", "        if place is None:\n            return", "        place = place or ''", "tests/flows/test_expiry.py -k 'hook'"),
    Mutant("P23", "the signature of an archive is not looked at", "flows/sealed.py", "or not hmac.compare_digest(end.signature, self._mac.hexdigest())", "", "tests/flows/test_expiry.py -k tampered"),
    Mutant("P23", "a desk is seen before all of it is back", "session/remains.py", "    if known is not None and not _away(known):", "    if known is None:", "tests/conformance/test_ram.py -k P23"),
    Mutant("P23", "a heartbeat does not keep the desk alive", SQL + "run.py", "        desk_life.keep_alive(tx, row.session)", "        pass", "tests/conformance/test_sqlite.py -k P23"),
    Mutant("P19", "a lost group is called a success", SQLITE + "backend.py", "            lost = [entry for entry in group if not self._landed(entry.batch)]", "            lost = []", "tests/crash/test_P19_io_faults.py"),
    Mutant("P25", "a fork copies its past", SQL + "conversation.py", "    insert_branch(tx, made)\n    return made", "    insert_branch(tx, made)\n    tx.run('insert into tombstone(tenant, home, branch, seq, number) select tenant, home, ?, seq, 0 from item where branch = ?', (id_, parent.id))\n    return made", "tests/conformance/test_sqlite.py -k P25"),
    Mutant("P28", "owners are not looked at", "principal.py", "        return self.sees_all or owner in self.sees", "        return True", "tests/conformance -k P28"),
    Mutant("P28", "tenants share their rows", SQLITE + "tenants.py", "        number = self._numbers.get(name)", "        name = 'all'\n        number = self._numbers.get(name)", "tests/conformance/test_sqlite.py -k P28"),
    Mutant("P30", "unknown fields are dropped", "conversation/rules.py", "    return Draft(id=id_, kind=kind, role=role, origin=origin, trust=TRUST[origin], body=body)", "    known = {name: item[name] for name in ('type', 'role', 'content') if name in item}\n    return Draft(id=id_, kind=kind, role=role, origin=origin, trust=TRUST[origin], body=__import__('json').dumps(known).encode())", "tests/flows/test_P30_old_and_new.py"),
    Mutant("P30", "an older worker rewrites whole rows", SQL + "desk_rows.py", " on conflict(tenant, home, session, name) do update set ", " on conflict(tenant, home, session, name) do update set colour = null, ", "tests/flows/test_P30_old_and_new.py"),
    Mutant("P31", "duplicate keys are taken", "wire/json.py", "    if len(found) != len(pairs):", "    if False:", "tests/wire tests/server -k 'P31 or json'"),
    Mutant("P1", "PostgreSQL: the answer comes and the transaction does not", POSTGRES + "lane.py", '        pipe.send("commit")\n', '        pipe.send("rollback")\n', "tests/conformance/test_postgres.py -k B2"),
    Mutant("P1", "PostgreSQL: the answer comes before the commit's", POSTGRES + "lane.py", '        pipe.send("commit")\n        pipe.gather()\n', '        pipe.post("commit")\n', "tests/crash/postgres/test_lost_answers.py"),
    Mutant("P1", "PostgreSQL: nobody looks what landed before the connection was lost", POSTGRES + "lane.py", "        if salt is None:\n            return False", "        return False", "tests/crash/postgres/test_lost_answers.py"),
    Mutant("P2", "PostgreSQL: no row is locked", POSTGRES + "pipe.py", "    return _BYTES.sub(", '    numbered = numbered.replace(" for update", "")\n    return _BYTES.sub(', "tests/conformance/test_postgres.py -k 'P2 or C3'"),
    Mutant("P21", "PostgreSQL: no row is locked", POSTGRES + "pipe.py", "    return _BYTES.sub(", '    numbered = numbered.replace(" for update", "")\n    return _BYTES.sub(', "tests/conformance/test_postgres.py -k P21"),
    Mutant("P2", "PostgreSQL: batches of one home share a transaction", POSTGRES + "lane.py", "            if taken & plan.homes:", "            if False:", "tests/conformance/test_postgres.py -k 'P2 or P14 or P21'"),
    Mutant("P8", "PostgreSQL: nobody looks at fences", "run/machine.py", '    if run.fence != fence or run.status not in ("in_progress", "cancelling"):', "    if False:", "tests/conformance/test_postgres.py -k P8"),
    Mutant("P11", "PostgreSQL: what was fetched ahead is believed after it was written", POSTGRES + "tx.py", "        if self._ahead and (table := written(sql)):", "        if False and (table := written(sql)):", "tests/conformance/test_postgres.py -k B1"),
    Mutant("P11", "a branch that a batch made is not seen to move", SQL + "run_rows.py", "    tx.made.pop(branch.id, None)\n", "", "tests/conformance/test_postgres.py -k own_batch"),
    Mutant("P28", "PostgreSQL: a connection remembers its tenant", POSTGRES + "link.py", "select set_config('stateroom.tenant', ?, true)", "select set_config('stateroom.tenant', ?, false)", "tests/conformance/test_second_wall.py -k forgotten"),
    Mutant("P28", "PostgreSQL: every tenant is told to be the same", POSTGRES + "tenants.py", "        number = self._numbers.get(name)", "        name = 'all'\n        number = self._numbers.get(name)", "tests/conformance/test_postgres.py -k P28"),
    Mutant("P4", "a reader that knows more than its process was told is refused", "flows/feed.py", " or self._told < seq)", ")", "tests/flows/test_feed.py -k by_itself"),
    Mutant("P31", "PostgreSQL: a refused batch is half written", POSTGRES + "lane.py", '                pipe.send("rollback to savepoint batch")\n', "", "tests/conformance/test_postgres.py -k B1"),
    Mutant("P31", "a refused batch is half written", SQLITE + "backend.py", '                self._db.execute("rollback" if alone else "rollback to batch")', "                pass", "tests/conformance/test_sqlite.py -k B1"),
)  # fmt: skip


def kill(mutant: Mutant) -> bool:
    """Whether the tests notice."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        file = Path(folder) / "src" / "stateroom" / mutant.file
        text = file.read_text()
        if mutant.old not in text:
            raise SystemExit(f"{mutant.promise}, {mutant.what}: {mutant.file} has changed, mend the mutant")
        file.write_text(text.replace(mutant.old, mutant.new))
        env = {**os.environ, "PYTHONPATH": f"{folder}/src", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *shlex.split(mutant.tests)]
        try:
            done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=180)
        except subprocess.TimeoutExpired:
            return True
        if done.returncode not in (0, 1):
            raise SystemExit(
                f"{mutant.promise}, {mutant.what}: pytest says {done.returncode}\n{done.stdout[-800:]}{done.stderr[-400:]}"
            )
        return done.returncode == 1


def main(promises: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not promises or mutant.promise in promises]
    alive = 0
    for mutant in chosen:
        dead = kill(mutant)
        alive += not dead
        print(f"{mutant.promise:4} {'red' if dead else 'SURVIVED':9} {mutant.what}   ({mutant.tests})", flush=True)
    print(f"{len(chosen)} mutants, {alive} survived")
    return alive > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
