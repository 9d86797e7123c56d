"""What maintenance reads, as system: lines without content, over all tenants."""

from __future__ import annotations

from stateroom.backends.ram.store import Tables
from stateroom.ids import NIL
from stateroom.run.model import Due


def due(tables: Tables, kind: str, *, until: int, limit: int) -> list[Due]:
    lines = [
        Due(kind=kind, at=at, tenant=tenant, id=id_) for (tenant, id_, of), at in tables.due.pairs() if of == kind and at <= until
    ]
    return sorted(lines, key=lambda line: (line.at, line.tenant, line.id))[:limit]


def run_of_action(tables: Tables, tenant: str, action: bytes) -> bytes:
    return tables.action_places.get((tenant, action)) or NIL


def leased_by(tables: Tables, owner: str, limit: int) -> list[Due]:
    lines = [
        Due(kind="lease", at=run.lease_until, tenant=tenant, id=run.id)
        for (tenant, _), run in tables.runs.pairs()
        if run.lease_owner == owner
    ]
    return sorted(lines, key=lambda line: (line.at, line.tenant, line.id))[:limit]


def owners(tables: Tables) -> list[str]:
    return sorted({run.lease_owner for _, run in tables.runs.pairs() if run.lease_owner})
