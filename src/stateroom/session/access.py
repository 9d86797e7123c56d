"""Which agent may see and change which slots of a desk, and who holds it. Pure; every store asks here.

Rules are about agents: whoever a desk belongs to does everything. A desk without rules is open to every agent. With rules, an
agent that is not named may do what `*` may, and nothing when nothing is said of that. What may not be seen is not there, and
whether a change is refused depends on names only, never on what is there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from stateroom import limits
from stateroom.batch import Record
from stateroom.errors import Conflict, Forbidden, InvalidInput, LimitExceeded, StaleFence
from stateroom.session.model import HoldDesk, PatchSlots, Session, SetAccess, Slot
from stateroom.wire import json

ANYBODY = "*"


class Acting(Record, frozen=True):
    """For which agent a caller acts, and with which desk in hand."""

    agent: str = ""
    hold: int = 0


NOBODY = Acting()


class Grant(msgspec.Struct, frozen=True):
    """Slots by name, or by how their names begin (`files.*`). What may be written may not therefore be read."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()


@functools.lru_cache(maxsize=1024)
def rules_of(access: str) -> Mapping[str, Grant]:
    return msgspec.json.decode(access, type=dict[str, Grant]) if access else {}


def _allows(patterns: tuple[str, ...], name: str) -> bool:
    return any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in patterns)


def grant_of(access: str, agent: str) -> Grant | None:
    """What an agent may; None: everything."""
    if not access or not agent:
        return None
    known = rules_of(access)
    return known.get(agent) or known.get(ANYBODY) or Grant()


def may_read(access: str, agent: str, name: str) -> bool:
    grant = grant_of(access, agent)
    return grant is None or _allows(grant.read, name)


def seen(access: str, agent: str, slots: list[Slot]) -> list[Slot]:
    """What an agent sees of them."""
    grant = grant_of(access, agent)
    return slots if grant is None else [slot for slot in slots if _allows(grant.read, slot.name)]


def check(head: Session, write: PatchSlots) -> None:
    """Forbidden when the agent may not do all of this: change each slot, and look at what it claims to have seen, tests, or
    derives from. StaleFence when it says that it holds the desk and does not any more."""
    check_hold(head, write.hold)
    if (grant := grant_of(head.access, write.agent)) is None:
        return
    looked = {name for name, _ in write.seen}
    for patch in write.patches:
        if not _allows(grant.write, patch.name):
            raise _forbidden(write.agent, "change", patch.name)
        looked.update(patch.sources)
        if patch.expected is not None or patch.op == "patch":
            looked.add(patch.name)
    for name in sorted(looked):
        if not _allows(grant.read, name):
            raise _forbidden(write.agent, "see", name)


def check_whole(head: Session, agent: str, hold: int = 0) -> None:
    """Going back changes whatever it meets: only for an agent that may change everything."""
    check_hold(head, hold)
    grant = grant_of(head.access, agent)
    if grant is not None and not ("*" in grant.write and "*" in grant.read):
        raise Forbidden(f"Agent {agent!r} may not change the whole desk.", code="slot_forbidden")


def _forbidden(agent: str, what: str, name: str) -> Forbidden:
    return Forbidden(f"Agent {agent!r} may not {what} slot {name!r}.", code="slot_forbidden", param=name)


def granted(head: Session, write: SetAccess) -> str:
    """The desk's rules with one agent's, or without them."""
    if not 0 < len(write.agent) <= limits.NAME_CHARS_MAX:
        raise InvalidInput("Rules are for an agent, or for '*'.", code="access_invalid", param="agent")
    patterns = (*(write.read or ()), *(write.write or ()))
    if len(patterns) > limits.ACCESS_PATTERNS_MAX or any(not 0 < len(one) <= limits.NAME_CHARS_MAX for one in patterns):
        raise InvalidInput(
            f"Rules name up to {limits.ACCESS_PATTERNS_MAX} slots, or how their names begin.", code="access_invalid"
        )
    known = dict(rules_of(head.access))
    known.pop(write.agent, None)
    if write.read is not None or write.write is not None:
        known[write.agent] = Grant(write.read or (), write.write or ())
    if len(known) > limits.ACCESS_AGENTS_MAX:
        raise LimitExceeded(f"A session has rules for {limits.ACCESS_AGENTS_MAX} agents.", code="too_many_agents")
    return json.encode(known).decode() if known else ""


def shown(access: str) -> dict[str, Any]:
    return {agent: msgspec.to_builtins(grant) for agent, grant in rules_of(access).items()}


# ── who holds it ────────────────────────────────────────────────────────────────────────────────────────────────────


def check_hold(head: Session, hold: int) -> None:
    if hold and hold != head.hold:
        raise StaleFence("Somebody else holds this desk now.", fence=head.hold)


def held(head: Session, write: HoldDesk, now: int) -> Session:
    """The desk in somebody's hands: taken when it is free, kept, handed on or let go by who holds it. The fence grows with
    every change of hands."""
    if not 0 <= write.ms <= limits.TTL_MS_MAX or len(write.holder) > limits.NAME_CHARS_MAX or not (write.holder or write.hold):
        raise InvalidInput("A desk is held by a named agent, for a while.", code="hold_invalid")
    if write.hold:
        check_hold(head, write.hold)
    elif head.holder and head.held_until > now:
        raise Conflict(f"{head.holder!r} holds this desk.", code="desk_held", holder=head.holder)
    if write.ms == 0:
        return replace(head, holder="", held_until=0, hold=head.hold + 1)
    same = write.hold and write.holder in ("", head.holder)
    return replace(head, holder=write.holder or head.holder, held_until=now + write.ms, hold=head.hold + (0 if same else 1))
