"""What a batch leaves behind for the audit: who did what to which object, as salted digests without content.

The leaf goes into the same transaction as the change. It has no number; a sequencer numbers, tiles and signs leaves
later, so the hot path never waits for a counter. The salt lies in a column of its own: destroying it makes the digests
unguessable while the leaf, and with it the log, stays verifiable.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from stateroom.batch import Batch

_encode = msgspec.msgpack.Encoder().encode


def encode(batch: Batch, salt: bytes) -> bytes:
    """MessagePack array: version, principal, [[action, object], …], digest. Tenant, batch id and time lie beside it.

    The digest is HMAC-SHA256(salt, MessagePack array of the writes): it shows later whether given contents are those.
    """
    digest = hmac.digest(salt, _encode(batch.writes), hashlib.sha256)
    actions = [(type(write).__name__, write.subject_of_change()) for write in batch.writes]
    return _encode((1, batch.scope.principal, actions, digest))
