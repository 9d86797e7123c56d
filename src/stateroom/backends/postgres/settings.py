"""What a store's URL says: everything libpq understands, and a few words of ours."""

from __future__ import annotations

import os
import re
from typing import Annotated
from urllib.parse import quote, unquote

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from stateroom.backends import urls
from stateroom.errors import InvalidInput


class Settings(msgspec.Struct, frozen=True):
    """`lanes` writing and `readers` reading connections per process. `pooler`: a pooler in transaction mode stands
    before the database, so that nothing may be kept on a connection. `patience_s`: how long a caller waits for a database
    that is away before it is told to come back. `replica`: `host:port` of a standby that answers lists."""

    conninfo: str
    lanes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    readers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4
    patience_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 10.0
    pooler: bool = False
    replica: str = ""
    replica_conninfo: str = ""

    def __repr__(self) -> str:
        return f"Settings({urls.shown(self.conninfo)!r}, lanes={self.lanes}, readers={self.readers}, pooler={self.pooler})"

    @property
    def prepare(self) -> bool:
        return not self.pooler

    @property
    def listen(self) -> bool:
        return not self.pooler

    @property
    def connections(self) -> int:
        """How many a process has open at most: its own, one that watches, one that listens."""
        return self.lanes + self.readers + 2

    @classmethod
    def parse(cls, url: str) -> Settings:
        """From `postgresql://user@host/database?lanes=2&pooler=on&…`. InvalidInput for a word of ours with a value that
        is none, and for what libpq does not understand; nothing secret is in the message."""
        place, _, query = url.partition("?")
        ours, theirs = dict[str, str](), list[tuple[str, str]]()
        for name, value in _words(query):
            if name in _OURS:
                ours[name] = value
            else:
                theirs.append((name, value))
        theirs += _ours_for_libpq({name for name, _ in theirs})
        authority, slash, database = place.partition("://")[2].partition("/")
        made = {"conninfo": _conninfo(f"{authority}{slash}{database}", theirs)}
        if ours.get("replica"):
            who, at, _ = authority.rpartition("@")
            apart = [(name, value) for name, value in theirs if name not in _ABOUT_HOSTS]
            made["replica_conninfo"] = _conninfo(f"{who}{at}{ours['replica']}{slash}{database}", apart)
        try:
            return msgspec.convert(made | {name: _plain(ours[name]) for name in ours}, cls, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"The store's URL: {error}.", code="store_url_invalid") from error


_OURS = frozenset({"lanes", "readers", "patience_s", "pooler", "replica"})
_ABOUT_HOSTS = frozenset({"host", "hostaddr", "port", "target_session_attrs", "load_balance_hosts"})
_UNKNOWN_WORD = re.compile(r'invalid URI query parameter: "(\w+)"')


def _conninfo(place: str, words: list[tuple[str, str]]) -> str:
    """What libpq is given. InvalidInput unless it can read it; its own words may quote what should not be shown, so they
    are not passed on."""
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in words)
    made = f"postgresql://{place}?{query}"
    try:
        found = conninfo_to_dict(made)
    except psycopg.ProgrammingError as error:
        word = _UNKNOWN_WORD.search(str(error))
        what = f"neither we nor libpq know the word {word[1]!r}" if word else "libpq cannot read it; see its 'Connection URIs'"
        raise InvalidInput(f"The store's URL: {what}.", code="store_url_invalid") from None
    authority, _, database = place.partition("/")
    if authority.count("@") > 1 or "@" in database or not re.fullmatch(r"[\d,]*", str(found.get("port", ""))):
        what = "in a name or password, write @ : / ? # and % as %40 %3A %2F %3F %23 and %25"
        raise InvalidInput(f"The store's URL: {what}.", code="store_url_invalid")
    return made


# A connection that goes silent is found out within seconds.
_KEEPALIVES = {"keepalives_idle": "5", "keepalives_interval": "2", "keepalives_count": "3"}


def _ours_for_libpq(given: set[str]) -> list[tuple[str, str]]:
    """What we ask of libpq where nobody asked otherwise: in the URL, by PGAPPNAME, or in the service it names."""
    service = "service" in given or "PGSERVICE" in os.environ
    wanted = {"fallback_application_name": "stateroom", **({} if service else _KEEPALIVES)}
    return [(name, value) for name, value in wanted.items() if name not in given]


def _words(query: str) -> list[tuple[str, str]]:
    """As libpq reads them: a plus sign is a plus sign."""
    pairs = [word.partition("=") for word in query.split("&") if word]
    return [(unquote(name), unquote(value)) for name, _, value in pairs]


def _plain(value: str) -> str:
    return {"on": "true", "off": "false"}.get(value, value)
