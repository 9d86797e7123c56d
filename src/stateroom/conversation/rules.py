"""Pure rules of the record: paths of branches, what a tombstone hides, where items come from, what a draft must be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stateroom import limits
from stateroom.batch import Draft
from stateroom.conversation.model import Branch, Item, MoveBranch, Segment
from stateroom.errors import Busy, Conflict, InvalidInput, LimitExceeded
from stateroom.ids import NIL
from stateroom.trust import TRUST

# Where an item comes from, by its kind and role. Nothing a caller claims can change it (D14).
ORIGINS: Mapping[tuple[str, str], str] = {
    ("message", "user"): "user",
    ("message", "assistant"): "agent",
    ("message", "system"): "operator",
    ("message", "developer"): "operator",
    ("function_call", ""): "agent",
    ("reasoning", ""): "agent",
    ("function_call_output", ""): "tool",
}

# Calls and the outputs that answer them, by kind: how a window knows what belongs together.
ANSWERS: Mapping[str, str] = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
}


def origin_of(kind: str, role: str) -> str:
    """The origin of an item of this kind; kinds this version does not know are `unknown` and trusted least."""
    if kind.endswith("_call_output"):
        return "tool"
    return ORIGINS.get((kind, role)) or ("agent" if kind.endswith("_call") else "unknown")


def draft(id_: bytes, item: Mapping[str, Any], body: bytes, *, imported: bool = False) -> Draft:
    """An item ready to append. `body` is its JSON as it came; `item` the parsed object."""
    kind = item.get("type") or ("message" if "role" in item else None)
    role = item.get("role") or ""
    if not isinstance(kind, str) or not kind:
        raise InvalidInput("An item needs a string 'type'.", code="item_type_missing", param="type")
    if not isinstance(role, str):
        raise InvalidInput("An item's 'role' must be a string.", code="wrong_type", param="role")
    if kind == "message" and not role:
        raise InvalidInput("A message needs a 'role'.", code="item_role_missing", param="role")
    if len(body) > limits.ITEM_BYTES_MAX:
        raise LimitExceeded(f"An item may have {limits.ITEM_BYTES_MAX} bytes; this one has {len(body)}.", code="item_too_large")
    origin = "import" if imported else origin_of(kind, role)
    return Draft(id=id_, kind=kind, role=role, origin=origin, trust=TRUST[origin], body=body)


def check_move(write: MoveBranch, now: Branch) -> None:
    """Whether a conversation that goes on in `now` may go on elsewhere."""
    if now.id != write.expected:
        raise Conflict("The conversation was taken back meanwhile.", code="branch_moved")
    if now.active_run != NIL or now.queued:
        raise Busy("A turn is active or waiting on this conversation.", code="conversation_busy", run=now.active_run)
    if now.tail != write.expected_tail:
        raise Conflict(f"The tail is {now.tail}, not {write.expected_tail}.", code="tail_conflict", tail=now.tail)


def path(branches: Sequence[Branch]) -> list[Segment]:
    """The stretches a branch shows, newest first. `branches` is the branch itself, its parent, and so on to the root."""
    out: list[Segment] = []
    hi, count = branches[0].tail, branches[0].deletions
    for branch in branches:
        out.append(Segment(branch=branch.id, lo=branch.up_to, hi=hi, count=count))
        hi, count = min(hi, branch.up_to), branch.parent_count
    return out


def hidden(tombstones: Iterable[tuple[bytes, int, int]], segments: Sequence[Segment]) -> set[int]:
    """Seqs that the path does not show. A tombstone is (branch, seq, its number on that branch); one on an ancestor
    counts only up to the number the path knows of it, so earlier forks keep the item and later ones never show it, and
    only up to where the path leaves it: beyond that the same seqs are other items."""
    known = {segment.branch: segment for segment in segments}
    return {
        seq
        for branch, seq, number in tombstones
        if (segment := known.get(branch)) is not None and number <= segment.count and seq <= segment.hi
    }


def fork_parent(path_of_parent: Sequence[Branch], up_to: int, owns: Sequence[bool], *, tail: int) -> tuple[Branch, int]:
    """Which branch a fork at `up_to` hangs on, and with which deletion count: the nearest ancestor that owns an item
    or a tombstone the fork shows. `owns[i]` says whether the i-th branch of the path has a tombstone at or below
    `up_to`. So nested forks without items of their own cost nothing to read."""
    if not 0 <= up_to <= tail:
        raise InvalidInput(f"A fork point lies between 0 and {tail}; {up_to} does not.", code="fork_point_invalid")
    count = path_of_parent[0].deletions
    for branch, has_tombstone in zip(path_of_parent, owns, strict=True):
        last = branch is path_of_parent[-1]
        if last or up_to > branch.up_to or has_tombstone:
            return branch, count
        count = branch.parent_count
    raise AssertionError("a path has at least one branch")


def call_of(item: Item | Draft, parsed: Mapping[str, Any]) -> str | None:
    """The call id of a tool call or of an output, if it has one."""
    if item.kind in ANSWERS or item.kind.endswith("_output"):
        call = parsed.get("call_id")
        return call if isinstance(call, str) else None
    return None
