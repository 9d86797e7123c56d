"""Who asks, and what they may see."""

from __future__ import annotations

import msgspec


class Scope(msgspec.Struct, frozen=True):
    """Every store method takes one. No filter means deny: a scope that names nobody sees nothing.

    `tenant` is a wall: nothing crosses it. `principal` is who asks. `sees` names the owners whose objects are
    visible; `sees_all` opens the whole tenant (an operator, or a program that embeds the library).
    """

    tenant: str
    principal: str
    sees: frozenset[str] = frozenset()
    sees_all: bool = False

    def may_see(self, owner: str) -> bool:
        """Whether an object of this owner exists for this scope."""
        return self.sees_all or owner in self.sees


def own(tenant: str, principal: str) -> Scope:
    """A scope that sees what its principal owns."""
    return Scope(tenant, principal, sees=frozenset({principal}))


def operator(tenant: str, principal: str = "operator") -> Scope:
    """A scope that sees the whole tenant."""
    return Scope(tenant, principal, sees_all=True)


LOCAL = operator("local", "local")  # an embedded program, or a server on loopback without tokens
