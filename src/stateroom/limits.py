"""Every bound, with its unit in the name and the reason beside it. Bad input meets these before it meets a store."""

from __future__ import annotations

from typing import Final

from stateroom.errors import InvalidInput, LimitExceeded

BODY_BYTES_MAX: Final = 8 << 20  # one HTTP request: a long pasted document with attachments inlined, not a file transfer
HEAD_BYTES_MAX: Final = 64 << 10  # request line and headers
ITEM_BYTES_MAX: Final = 1 << 20  # one item; larger values belong into the workspace
APPEND_ITEMS_MAX: Final = 512  # one turn of parallel tool calls, generously
CREATE_ITEMS_MAX: Final = 512  # items given when a conversation is created
BATCH_WRITES_MAX: Final = 64
JSON_DEPTH_MAX: Final = 64  # deeper than any tool schema seen; keeps recursion bounded everywhere
JSON_INT_MAX: Final = 2**53  # integers in state must survive every language
PAGE_ITEMS_MAX: Final = 100  # OpenAI's own bound on list pages
PAGE_ITEMS_DEFAULT: Final = 20
READ_ITEMS_MAX: Final = 1000  # one read of a store
KEY_CHARS_MAX: Final = 255  # idempotency keys, as Stripe and IETF have it
METADATA_PAIRS_MAX: Final = 16
METADATA_KEY_CHARS_MAX: Final = 64
METADATA_VALUE_CHARS_MAX: Final = 512
NAME_CHARS_MAX: Final = 64  # tenants, principals, agents, slots
SLOT_BYTES_MAX: Final = 1 << 20
SLOTS_MAX: Final = 4096  # names that one session ever had: a removed one is still told to those who read the delta
PATCH_SLOTS_MAX: Final = 256
PATCH_OPERATIONS_MAX: Final = 256  # of one JSON Patch
SCHEMA_BYTES_MAX: Final = 64 << 10  # the JSON Schema of one slot
WINDOW_SECONDS_MAX: Final = 86_400  # a window holds what was just observed, not a history
WINDOW_SLOT_BYTES_MAX: Final = 256 << 20  # about 30 s of a LiDAR
ENTRY_AHEAD_MS: Final = 86_400_000  # how far ahead of the store an entry of a window may claim to be from
WINDOW_ENTRIES_MAX: Final = 100_000  # in one window
WINDOW_APPEND_MAX: Final = 256  # entries of one patch
CHECKPOINTS_MAX: Final = 1_000  # with a name, on one desk
TIDY_EVERY: Final = 64  # versions of a desk, or items of its conversation, between two looks at what may go
DESK_VERSIONS_KEPT: Final = 256  # of a desk's newest versions; older ones stay where a name keeps them
DESK_TURNS_KEPT: Final = 256  # of the checkpoints that turns make
TIDY_ROWS_MAX: Final = 512  # old versions of slots that go in one batch
UPDATE_TRIES_MAX: Final = 64  # a state function is asked so often before its caller is told of the conflict
RESTORE_MS: Final = 3_600_000  # a desk that comes from an archive or a bundle is there within this, or it is cleared away
EXPIRE_PAGE: Final = 8  # desks that expire in one batch: what a turn may have to wait for
EXPIRE_RETRY_MS: Final = 60_000  # after this a desk whose hook failed is tried again, at first; then as long as it has waited
EXPIRE_RETRY_MS_MAX: Final = 3_600_000
HOOK_MS_MAX: Final = 30_000  # one call of a hook
ARCHIVE_LINE_BYTES_MAX: Final = 4 << 20  # one record of an archive or a bundle
ARCHIVE_ROWS: Final = 16  # records in one page of a desk, and in one batch on the way back
ACCESS_AGENTS_MAX: Final = 64  # agents that one desk has rules for
ACCESS_PATTERNS_MAX: Final = 256  # slots, or beginnings of their names, that one agent's rules name
TTL_MS_MAX: Final = 31_622_400_000  # 366 days
QUEUE_TURNS_MAX: Final = 16  # turns waiting on one branch; more is a client gone wild
ATTEMPTS_MAX: Final = 3  # executions of one run before it is given up
LEASE_MS: Final = 30_000  # a dead worker may hold a run this long (an OS lock frees it at once on one machine)
AGENT_WAIT_MS: Final = 60_000  # a turn whose agent no process has is given up after this
QUEUE_LOOK_MS: Final = 1_000  # after this a turn that waits is looked after, should nobody hand the branch on to it
HEARTBEAT_MS: Final = 10_000
LOG_MS: Final = 86_400_000  # how long after its end a run's deltas are kept; its outputs stay
PERSIST_MS_MAX: Final = 60_000  # a worker waits this long for a store that is full before it leaves its run to recovery
RUN_MS_MAX: Final = 3_600_000  # one execution
DEADLINE_S_MAX: Final = 2_592_000  # 30 days: longer than anybody waits for an approval
RETRY_ATTACH_MS_MAX: Final = 600_000  # how long a retry without a key may find its first try; the openai client's read timeout
RETRY_AFTER_END_MS: Final = 30_000  # a retry without a key finds its first try this long after that one ended
CANCEL_GRACE_MS: Final = 2_000  # a worker has this long to end by itself
DELTA_BYTES_MAX: Final = 4_096  # one group of deltas
DELTA_MS_MAX: Final = 30
WINDOW_ITEMS_MAX: Final = 200  # items handed to an agent
WINDOW_BYTES_MAX: Final = 262_144  # about 64k tokens
GROUP_BATCHES_MAX: Final = 64  # batches in one fsync
GROUP_BYTES_MAX: Final = 4 << 20
PENDING_BATCHES_MAX: Final = 4_096  # waiting for the writer; beyond this callers are told to come back
PENDING_READS_MAX: Final = 4_096  # waiting for a reading thread, where reads need one
SSE_HEARTBEAT_S: Final = 15.0
STALL_S: Final = 15.0  # a socket may keep an event waiting this long; whoever reads less often comes back by cursor
LAG_EVENTS_MAX: Final = 10_000  # a reader whose socket is full may be this far behind
SOCKET_BYTES_MAX: Final = 256 << 10  # waiting to be sent on one socket, here and in the kernel
SOCKET_TURNS_MAX: Final = 16  # turns asked for and not answered on one WebSocket
SOCKET_PAST_MAX: Final = 8  # unstored responses that one WebSocket remembers, each within …
SOCKET_PAST_BYTES_MAX: Final = 1 << 20  # … so much of input and output, its past included
FOLLOW_ROWS_MAX: Final = 256  # log rows read at once for one follower, and events kept for those who are a little behind
FOLLOW_BYTES_MAX: Final = 64 << 10  # of log rows in one page of events
FORK_DEPTH_MAX: Final = 10_000  # ancestors walked when reading a branch
HYDRATED_MS: Final = 300_000  # a desk or record that nobody asked for so long leaves the cache
PREFETCHES_MAX: Final = 64  # desks fetched ahead at once; beyond it hints are passed over
POLL_MS: Final = 100  # how often a watcher looks for other processes' commits
WAL_BYTES_MAX: Final = 16 << 20  # the write-ahead log is folded back beyond this


def batch(writes: int) -> None:
    """Whether so many writes may land together, checked once for every store. LimitExceeded above BATCH_WRITES_MAX."""
    if writes > BATCH_WRITES_MAX:
        raise LimitExceeded(f"One batch holds {BATCH_WRITES_MAX} writes.", code="batch_too_large")


def page(limit: int) -> int:
    """How many one read returns, checked once for every store. InvalidInput outside of 1..READ_ITEMS_MAX."""
    if type(limit) is not int or not 1 <= limit <= READ_ITEMS_MAX:
        raise InvalidInput(f"'limit' lies between 1 and {READ_ITEMS_MAX}.", code="limit_invalid", param="limit")
    return limit
