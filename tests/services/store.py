"""Stores of ours on the tests' PostgreSQL."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def app_url(url: str, role: str = "stateroom_app") -> str:
    """The same database for another role."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))
