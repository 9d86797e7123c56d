"""Stateroom: the state layer for AI agents. Five kinds of state, five lifetimes, one promise between them.

The public names, and nothing else. Those of the Python face are loaded when they are first asked for, so that
`import stateroom` stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stateroom.errors import StateroomError
from stateroom.principal import LOCAL, Scope, operator, own

if TYPE_CHECKING:
    from stateroom.face import Changes, Desk, Room, open
    from stateroom.replies import Asked, CheckpointHead, ConversationHead, Reply, SlotChange, SlotHead

__version__ = "0.1.0"
__all__ = [
    "LOCAL", "Asked", "Changes", "CheckpointHead", "ConversationHead", "Desk", "Reply", "Room", "Scope", "SlotChange",
    "SlotHead", "StateroomError", "__version__", "open", "operator", "own",
]  # fmt: skip

_FACE = frozenset({"Changes", "Desk", "Room", "open"})
_REPLIES = frozenset({"Asked", "CheckpointHead", "ConversationHead", "Reply", "SlotChange", "SlotHead"})


def __getattr__(name: str) -> Any:
    if name in _FACE:
        return getattr(import_module("stateroom.face"), name)
    if name in _REPLIES:
        return getattr(import_module("stateroom.replies"), name)
    if name == "blocking":
        return import_module("stateroom.blocking")
    raise AttributeError(f"module 'stateroom' has no attribute {name!r}")
