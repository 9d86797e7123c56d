"""How long a desk lives, pure: by the store's time, which no jump of a clock reaches (P13, P23)."""

from __future__ import annotations

from msgspec.structs import replace

from stateroom import limits
from stateroom.errors import Conflict, Gone, InvalidInput
from stateroom.session.model import Expire, ForkSession, OpenSession, Session


def check_given(ttl_ms: int, max_ms: int) -> None:
    for name, given in (("ttl_ms", ttl_ms), ("max_ms", max_ms)):
        if not 0 <= given <= limits.TTL_MS_MAX:
            raise InvalidInput(f"A session lives at most {limits.TTL_MS_MAX} ms.", code="lifetime_invalid", param=name)


def opened(write: OpenSession, now: int) -> tuple[int, int]:
    """When a new desk expires, and when it dies whatever happens."""
    check_given(write.ttl_ms, write.max_ms)
    dies_at = now + write.max_ms if write.max_ms else 0
    return next_end(write.ttl_ms, dies_at, now), dies_at


def forked(write: ForkSession, parent: Session, now: int) -> tuple[int, int, int]:
    """A fork's ttl, when it expires and when it dies: it lives no longer than its parent may, unless it is told how long."""
    ttl_ms = parent.ttl_ms if write.ttl_ms is None else write.ttl_ms
    check_given(ttl_ms, write.max_ms or 0)
    dies_at = parent.dies_at if write.max_ms is None else now + write.max_ms if write.max_ms else 0
    return ttl_ms, next_end(ttl_ms, dies_at, now), dies_at


def next_end(ttl_ms: int, dies_at: int, now: int) -> int:
    """When a desk that is used now expires; 0: never."""
    ends = [end for end in (now + ttl_ms if ttl_ms else 0, dies_at) if end]
    return min(ends, default=0)


def renewed(session: Session, now: int) -> int:
    """An interaction moves a desk's end; it never comes closer."""
    return max(session.expires_at, next_end(session.ttl_ms, session.dies_at, now))


def over(session: Session, now: int) -> bool:
    """Whether it has expired, swept or not. When a lost one would have expired is not known: see `mourned`."""
    alike = session.status == "active" or (session.status == "lost" and mourned(session))
    return alike and 0 < session.expires_at <= now


def mourned(session: Session) -> bool:
    """Whether it was found out, under a lock, that the desk is lost: none of its versions is kept."""
    return session.kept_from > session.version


def mourn(session: Session, now: int) -> Session:
    """A desk that is found lost when somebody looks after it: for another time to live it says so, and then it goes."""
    return replace(session, kept_from=session.version + 1, expires_at=next_end(session.ttl_ms, session.dies_at, now))


def alive(session: Session, now: int) -> bool:
    return session.status == "active" and not over(session, now)


def check(session: Session, now: int) -> None:
    """Gone at once when the desk is no more, whoever has or has not looked after it (410)."""
    if session.status == "ended":
        raise Gone("This session has ended.", code="session_ended")
    if session.status == "archived":
        raise Gone("This session has expired; its archive can be restored.", code="session_archived")
    if session.status == "lost" and not over(session, now):
        raise Gone("What lay on this ephemeral session was lost. End it, and open another.", code="state_lost")
    if not alive(session, now):
        raise Gone("This session has expired.", code="session_expired")


def check_end(session: Session, now: int) -> None:
    """What is lost can be ended."""
    if session.status != "lost" or over(session, now):
        check(session, now)


def left(session: Session) -> bool:
    """Whether nobody needs what lies there for its own sake: not before it was put away."""
    return session.status not in ("active", "lost", "expiring")


def places(session: Session) -> list[str]:
    """Where an expiring desk is being put away, and where it was before: what lies there may have to go."""
    return session.archive.split()


def put_elsewhere(session: Session, write: Expire) -> Session:
    """Another try, in another place. Whoever is at it in the place before will not be believed."""
    if session.archive != write.instead:
        raise _elsewhere()
    return replace(session, archive=" ".join([write.archive, *places(session)[:1]]))


def _elsewhere() -> Conflict:
    return Conflict("Another worker puts this session away.", code="archive_elsewhere")


def check_purge(session: Session, archive: str) -> None:
    if session.status != "expiring":
        raise Conflict(f"The session is {session.status}.", code="session_not_expiring", status=session.status)
    if archive and session.archive and places(session)[0] != archive:
        raise _elsewhere()
