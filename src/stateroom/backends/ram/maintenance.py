"""What maintenance reads, as system: lines without content, over all tenants."""

from __future__ import annotations

from stateroom.backends.ram.store import Tables
from stateroom.run.model import Due


def due(tables: Tables, kind: str, *, until: int, limit: int) -> list[Due]:
    lines = [
        Due(kind=kind, at=at, tenant=tenant, id=run) for (tenant, run, of), at in tables.due.pairs() if of == kind and at <= until
    ]
    return sorted(lines, key=lambda line: (line.at, line.tenant, line.id))[:limit]


def leased_by(tables: Tables, owner: str, limit: int) -> list[Due]:
    lines = [
        Due(kind="lease", at=run.lease_until, tenant=tenant, id=run.id)
        for (tenant, _), run in tables.runs.pairs()
        if run.lease_owner == owner
    ]
    return sorted(lines, key=lambda line: (line.at, line.tenant, line.id))[:limit]


def owners(tables: Tables) -> list[str]:
    return sorted({run.lease_owner for _, run in tables.runs.pairs() if run.lease_owner})
