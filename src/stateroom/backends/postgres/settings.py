"""What a store's URL says: everything libpq understands, and a few words of ours."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from stateroom.errors import InvalidInput


class Settings(msgspec.Struct, frozen=True):
    """`lanes` writing and `readers` reading connections per process. `pooler`: a pooler in transaction mode stands
    before the database, so that nothing may be kept on a connection. `patience_s`: how long a caller waits for a database
    that is away before it is told to come back. `replica`: `host:port` of a standby that answers lists."""

    conninfo: str
    lanes: int = 2
    readers: int = 4
    patience_s: float = 10.0
    pooler: bool = False
    replica: str = ""
    replica_conninfo: str = ""

    @property
    def prepare(self) -> bool:
        return not self.pooler

    @property
    def listen(self) -> bool:
        return not self.pooler

    @classmethod
    def parse(cls, url: str) -> Settings:
        """From `postgresql://user@host/database?lanes=2&pooler=on&…`. InvalidInput for a word of ours with a value that
        is none; words that are not ours go to libpq."""
        parts = urlsplit(url)
        ours, theirs = dict[str, str](), list[tuple[str, str]]()
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name in _OURS:
                ours[name] = value
            else:
                theirs.append((name, value))
        theirs += [(name, value) for name, value in _LIBPQ.items() if name not in dict(theirs)]
        parts = parts._replace(scheme="postgresql", query=urlencode(theirs))
        made = {"conninfo": urlunsplit(parts), "replica_conninfo": ""}
        if ours.get("replica"):
            who = parts.netloc.rpartition("@")
            apart = urlencode([(name, value) for name, value in theirs if name not in ("host", "port", "target_session_attrs")])
            made["replica_conninfo"] = urlunsplit(parts._replace(netloc=f"{who[0]}{who[1]}{ours['replica']}", query=apart))
        try:
            return msgspec.convert(made | {name: _plain(ours[name]) for name in ours}, cls, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"The store's URL: {error}.", code="store_url_invalid") from error


_OURS = frozenset({"lanes", "readers", "patience_s", "pooler", "replica"})
_LIBPQ = {"application_name": "stateroom", "keepalives_idle": "5", "keepalives_interval": "2", "keepalives_count": "3"}


def _plain(value: str) -> str:
    return {"on": "true", "off": "false"}.get(value, value)
