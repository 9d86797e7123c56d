"""Who asks: a bearer token's principal, or everybody as `local` on a loopback server without tokens."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec
from starlette.requests import HTTPConnection

from stateroom.errors import InvalidInput, Unauthorized
from stateroom.limits import NAME_CHARS_MAX
from stateroom.principal import LOCAL, Scope, own
from stateroom.wire import json

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]
_Secret = Annotated[str, msgspec.Meta(min_length=8, pattern=r"^[\x21-\x7e]+$")]  # shorter ones are slips of the pen


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the tokens file. `sees`: only what the principal owns, or its whole tenant."""

    token: _Secret
    tenant: _Name
    principal: _Name
    sees: Literal["own", "tenant"] = "own"

    def scope(self) -> Scope:
        return own(self.tenant, self.principal) if self.sees == "own" else Scope(self.tenant, self.principal, sees_all=True)


class _File(msgspec.Struct, frozen=True):
    tokens: list[Token]


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens of a file: {"tokens": [{"token": …, "tenant": …, "principal": …, "sees": "own"|"tenant"}]}."""
    try:
        tokens = msgspec.convert(json.decode(path.read_bytes()), _File).tokens
    except OSError as error:
        raise InvalidInput(f"The tokens file cannot be read: {error}", code="tokens_invalid") from error
    except (msgspec.ValidationError, InvalidInput) as error:
        raise InvalidInput(f"{path} is no tokens file: {error}", code="tokens_invalid") from error
    if not tokens:
        raise InvalidInput(f"{path} names no token; nobody could get in.", code="tokens_invalid")
    if len({token.token for token in tokens}) < len(tokens):
        raise InvalidInput(f"{path} names a token twice.", code="tokens_invalid")
    return tuple(tokens)


class Auth:
    """Finds the scope of a request. Tokens are compared by digest, in constant time, all of them."""

    def __init__(self, tokens: Sequence[Token] | None) -> None:
        self._tokens = None if tokens is None else [(_digest(token.token.encode()), token.scope()) for token in tokens]

    def scope(self, request: HTTPConnection) -> Scope:
        """Raises Unauthorized without a valid token; InvalidInput (403) for a web page that reaches for a local server."""
        if self._tokens is None:
            check_local(request)
            return LOCAL
        given = request.headers.get("authorization", "")
        kind, _, token = given.partition(" ")
        asked = _digest(token.strip().encode("latin-1", "replace"))
        found = [scope for digest, scope in self._tokens if hmac.compare_digest(digest, asked)]
        if kind.lower() != "bearer" or not found:
            raise Unauthorized("Give a valid token: 'Authorization: Bearer …'.")
        return found[0]


def check_local(request: HTTPConnection) -> None:
    """A server without tokens answers programs of its own machine, not web pages from elsewhere: neither those that
    name their origin nor those that had their own name point here (DNS rebinding)."""
    host = request.headers.get("host", "")
    if not is_local_name(_split(f"//{host}").hostname or ""):
        raise InvalidInput("Without tokens this server answers to 'localhost' and IP addresses only.", code="origin_refused")
    origin = request.headers.get("origin")
    if origin is not None and _split(origin).netloc != host:
        raise InvalidInput("Without tokens this server does not answer web pages of other origins.", code="origin_refused")


def is_local_name(name: str) -> bool:
    """`localhost` or an IP address: names that nobody else can point at this machine."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # what is no URL is nobody's
        return SplitResult("", "", "", "", "")


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
