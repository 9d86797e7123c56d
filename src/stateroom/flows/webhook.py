"""Tell an address that a desk expires: one signed POST, to nobody inside our own network, in bounded time.

    POST …                                   the session as JSON: id, owner, agent, version, metadata, state
    Stateroom-Timestamp: 1795973867          seconds since 1970
    Stateroom-Signature: v1=<hex>            HMAC-SHA-256 over "<timestamp>.<body>", with the store's webhook key

Any 2xx takes the desk; everything else, and silence, keeps it. An address is looked up once and that very address is called,
so that a name cannot point elsewhere between the look and the call. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import hmac
import http.client
import ipaddress
import socket
import ssl
from urllib.parse import SplitResult, urlsplit

from stateroom import limits
from stateroom.backends.base import Backend
from stateroom.errors import InvalidInput, LimitExceeded, Unavailable
from stateroom.flows import sealed
from stateroom.flows.told import described
from stateroom.principal import Scope
from stateroom.session.model import Session
from stateroom.wire import json

_TIMEOUT_S = 10.0
_TRIES = 3


class Webhook:
    """`private` allows addresses of this machine and of private networks."""

    name = "webhook"

    def __init__(self, backend: Backend, url: str, *, private: bool = False) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise InvalidInput("A webhook is an http or https address without a password in it.", code="webhook_invalid")
        self._backend, self._parts, self._private = backend, parts, private
        self._key = sealed.key_of(backend.secret, "webhook")

    def place(self, head: Session) -> str:
        return ""

    async def take(self, scope: Scope, head: Session) -> str:
        body = json.encode({"event": "session.expired", **await described(self._backend, scope, head)})
        if len(body) > limits.BODY_BYTES_MAX:
            raise LimitExceeded(f"A webhook is told {limits.BODY_BYTES_MAX} bytes.", code="webhook_too_large")
        for tries_left in range(_TRIES - 1, -1, -1):
            at = str(self._backend.clock.wall_ms() // 1000)
            try:
                await asyncio.to_thread(_post, self._parts, body, headers=self._signed(at, body), private=self._private)
                return ""
            except (OSError, http.client.HTTPException, Unavailable) as error:
                if not tries_left:
                    raise Unavailable(f"The webhook did not answer: {error}", code="webhook_failed") from error
                await asyncio.sleep(0.2 * (_TRIES - tries_left))
        raise AssertionError("the last try raises or returns")

    async def drop(self, place: str) -> None:
        """It was told: nothing to take back."""

    def _signed(self, at: str, body: bytes) -> dict[str, str]:
        signature = hmac.digest(self._key, at.encode() + b"." + body, "sha256").hex()
        return {
            "Content-Type": "application/json", "Stateroom-Timestamp": at, "Stateroom-Signature": f"v1={signature}",
            "User-Agent": "stateroom",
        }  # fmt: skip


def _post(parts: SplitResult, body: bytes, *, headers: dict[str, str], private: bool) -> None:
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    plain = socket.create_connection((_address(host, port, private), port), timeout=_TIMEOUT_S)
    try:
        secure = parts.scheme == "https"
        connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host) if secure else plain
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", path, body, headers)
        status = connection.getresponse().status
    finally:
        connection.close()
        plain.close()
    if not 200 <= status < 300:
        raise Unavailable(f"It answered {status}.", code="webhook_failed")


def _address(host: str, port: int, private: bool) -> str:
    """Where it is called. InvalidInput when any of its addresses is one of ours."""
    found = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if not private and not all(ipaddress.ip_address(address.split("%")[0]).is_global for address in found):
        raise InvalidInput("The webhook lies in a private network.", code="webhook_private")
    return found[0]
