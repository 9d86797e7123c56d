"""A store's URL: what kind of store it names, and how it may be shown. Nothing secret in it is ever printed."""

from __future__ import annotations

import re

_POSTGRES = ("postgresql", "postgres")
_USERINFO = re.compile(r"(?s)^([^:/?#]+://[^:/?#@]*):.*@")  # up to the last '@': a password may hold one that it should not
_WORDS = re.compile(r"(?i)((?:ssl)?password\s*=\s*)('[^']*'|[^&\s'\"]*)")


def is_postgres(url: str) -> bool:
    """Whether it names a PostgreSQL database."""
    return url.partition("://")[0] in _POSTGRES


def shown(url: str) -> str:
    """The URL with `***` for what is secret in it."""
    return _WORDS.sub(r"\1***", _USERINFO.sub(r"\1:***@", url))
