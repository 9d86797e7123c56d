"""How each write is applied in SQL, and the leaf that every batch leaves."""

from __future__ import annotations

from collections.abc import Mapping

from stateroom import ids, leaf
from stateroom.backends.sql import accept, conversation, desk_life, desk_remains, desk_versions, ephemeral, run, session, steps
from stateroom.backends.sql.tx import Apply, Tx
from stateroom.batch import Batch, ClaimKey, Receipt
from stateroom.conversation import model as c
from stateroom.run import model as r
from stateroom.run import steps as st
from stateroom.session import model as s
from stateroom.session import remains as rm

APPLY: Mapping[type, Apply] = {
    c.CreateConversation: conversation.create,
    c.SetMetadata: conversation.set_metadata,
    c.Append: conversation.append,
    c.Fork: conversation.fork,
    c.MoveBranch: conversation.move_branch,
    c.DeleteItem: conversation.delete_item,
    c.DeleteConversation: conversation.delete_conversation,
    s.OpenSession: session.open_,
    s.ForkSession: desk_versions.fork_session,
    s.PatchSlots: run.patch_slots,
    s.MakeCheckpoint: desk_versions.make_checkpoint,
    s.MarkTurn: run.mark_turn,
    s.DropCheckpoint: desk_versions.drop_checkpoint,
    s.RollBack: run.roll_back,
    s.CompactPast: desk_versions.compact_past,
    s.TouchSession: desk_life.touch_session,
    s.SetAccess: desk_life.set_access,
    s.HoldDesk: desk_life.hold_desk,
    s.EndSession: desk_life.end_session,
    s.Expire: desk_life.expire,
    s.PurgeSession: desk_life.purge_session,
    rm.BeginRestore: desk_remains.begin,
    rm.PutRemnants: desk_remains.put,
    rm.Revive: desk_remains.revive,
    r.AcceptTurn: accept.accept,
    r.Claim: accept.claim,
    r.Heartbeat: run.heartbeat,
    r.Log: run.record,
    r.Finish: run.finish,
    r.Cancel: run.cancel,
    r.Requeue: run.requeue,
    r.DeleteRun: run.delete,
    st.RecordSteps: steps.record,
    st.Pause: steps.pause,
    st.Resolve: steps.resolve,
    st.Drain: steps.drain,
    st.Compact: steps.compact,
    ClaimKey: accept.claim_key,
}


LEAF = "select salt from leaf where batch = ? and tenant = ? and home = ?"
_EPHEMERAL_LEAF = LEAF.replace(" leaf ", " ephemeral_leaf ")
_LEAVE = "insert into leaf(tenant, home, batch, at, body, salt) values (?, ?, ?, ?, ?, ?)"
_LEAVE_EPHEMERAL = _LEAVE.replace(" leaf(", " ephemeral_leaf(")


def apply(tx: Tx, batch: Batch, salt: bytes) -> tuple[Receipt, ...]:
    """Each write in turn, then the leaf. What is raised on the way undoes them all: the caller sees to it. `salt` (16
    bytes) makes the leaf's digests unguessable, and tells one try of a batch from another."""
    receipts = tuple(APPLY[type(write)](tx, write) for write in batch.writes)
    accept.keep_keys(tx, batch, receipts)
    row = (tx.tenant, home_of(batch), batch.id, batch.at, leaf.encode(batch, salt), salt)
    if tx.only_lossy:
        tx.run(_LEAVE_EPHEMERAL, row)
    else:
        ephemeral.raise_floors(tx)
        tx.run(_LEAVE, row)
    return receipts


def leaf_of(tx: Tx, batch: Batch) -> bytes | None:
    """The salt of a batch's leaf; None when it has not landed."""
    place = (batch.id, tx.tenant, home_of(batch))
    found = tx.one(LEAF, place)
    if found is None and tx.has_ephemeral:
        tx.need_ephemeral()
        found = tx.one(_EPHEMERAL_LEAF, place)
    return found[0] if found else None


def home_of(batch: Batch) -> int:
    """Where a batch's leaf is kept: with the object that it changes first."""
    return ids.home(batch.writes[0].subject_of_change())
