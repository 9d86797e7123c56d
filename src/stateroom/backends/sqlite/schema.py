"""The tables, as forward migrations. A worker runs what is missing at open (`migrate`).

Every table starts its key with (tenant, home), so that shards hold whole batches; `due` is read by maintenance across
tenants and holds no content. Statements always name their columns: an older worker neither sees nor erases a column
that a newer one added.
"""

from __future__ import annotations

from collections.abc import Mapping

from stateroom import copies
from stateroom.backends.sql.migration import Migration, Step
from stateroom.copies import CopyClass

_FIRST = """
create table tenant(number integer primary key autoincrement, name text not null unique);

create table conversation(
    tenant integer not null, home integer not null, id blob not null, owner text not null, subject text not null,
    kind text not null, metadata blob not null, created_at integer not null, agent text not null default '',
    gone integer not null default 0, primary key (tenant, home, id)) without rowid;
create index conversation_by_time on conversation(tenant, created_at, id) where kind = 'managed' and gone = 0;

create table branch(
    tenant integer not null, home integer not null, id blob not null, conversation blob not null, owner text not null,
    parent blob, up_to integer not null default 0, parent_count integer not null default 0,
    tail integer not null default 0, deletions integer not null default 0, revision integer not null default 0,
    active_run blob, queued integer not null default 0, last_run blob, queue_no integer not null default 0,
    gone integer not null default 0, primary key (tenant, home, id)) without rowid;
create index branch_by_parent on branch(tenant, home, parent) where parent is not null;
create index branch_by_conversation on branch(tenant, home, conversation) where id <> conversation;

create table item(
    tenant integer not null, home integer not null, branch blob not null, seq integer not null, id blob not null, run blob,
    kind text not null, role text not null, origin text not null, trust integer not null, mark text not null default '',
    at integer not null, body blob not null, primary key (tenant, home, branch, seq));
create unique index item_by_id on item(id, tenant);

create table tombstone(
    tenant integer not null, home integer not null, branch blob not null, seq integer not null, number integer not null,
    primary key (tenant, home, branch, seq)) without rowid;

create table session(
    tenant integer not null, home integer not null, id blob not null, owner text not null, subject text not null,
    conversation blob, agent text not null default '', lineage blob not null, version integer not null default 0,
    status text not null default 'active', metadata blob not null, created_at integer not null,
    touched_at integer not null, primary key (tenant, home, id)) without rowid;
create unique index session_bound on session(tenant, home, conversation, agent)
    where conversation is not null and status = 'active';
create index session_by_time on session(tenant, created_at, id) where status = 'active';

create table slot(
    tenant integer not null, home integer not null, session blob not null, name text not null, version integer not null,
    kind text not null, schema text not null, origin text not null, trust integer not null, body blob,
    by text not null, run blob, at integer not null, primary key (tenant, home, session, name));
create table slot_past(
    tenant integer not null, home integer not null, session blob not null, name text not null, version integer not null,
    kind text not null, schema text not null, origin text not null, trust integer not null, body blob,
    by text not null, run blob, at integer not null, primary key (tenant, home, session, name, version));

create table run(
    tenant integer not null, home integer not null, id blob not null, conversation blob, branch blob, session blob,
    agent text not null, owner text not null, subject text not null, status text not null,
    attempt integer not null default 1, fence integer not null default 0, lease_owner text not null default '',
    lease_until integer not null default 0, cancel_at integer not null default 0, queue_no integer not null default 0,
    in_lo integer not null default 0, in_hi integer not null default 0, out_hi integer not null default 0, previous blob,
    head integer not null default 0, stored integer not null default 1, options blob not null, usage blob not null,
    error blob not null, created_at integer not null, started_at integer not null default 0,
    finished_at integer not null default 0, key text not null default '', deadline_at integer not null default 0,
    merge integer not null default 0, merged_into blob, epoch integer not null default 0,
    due_at integer not null default 0, primary key (tenant, home, id));
create index run_queued on run(tenant, home, branch, queue_no) where status = 'queued';
create index run_leased on run(lease_owner) where lease_owner <> '';
create index run_by_conversation on run(tenant, home, conversation) where conversation is not null;

create table turn_key(
    tenant integer not null, home integer not null, principal text not null, operation text not null, key text not null,
    fingerprint blob not null, ref blob not null, at integer not null,
    primary key (tenant, home, principal, operation, key)) without rowid;

create table inbox(
    tenant integer not null, home integer not null, run blob not null, n integer not null, id blob not null,
    kind text not null, role text not null, origin text not null, trust integer not null, body blob not null,
    primary key (tenant, home, run, n));

create table run_log(
    tenant integer not null, home integer not null, run blob not null, first integer not null, count integer not null,
    kind text not null, body blob not null, at integer not null, item blob,
    primary key (tenant, home, run, first)) without rowid;

create table step(
    tenant integer not null, home integer not null, run blob not null, n integer not null, key text not null,
    name text not null, effect text not null, status text not null, digest blob not null, attempt integer not null,
    body blob not null, at integer not null, primary key (tenant, home, run, key));

create table action(
    tenant integer not null, home integer not null, id blob not null, run blob not null, n integer not null,
    key text not null, kind text not null, name text not null, status text not null, digest blob not null,
    queue text not null, body blob not null, resolution blob not null, by text not null, until integer not null,
    policy text not null, at integer not null, primary key (tenant, home, run, key));
create unique index action_by_id on action(id, tenant);
create index action_by_queue on action(tenant, queue, at) where status = 'pending' and queue <> '';

create table leaf(
    tenant integer not null, home integer not null, batch blob not null, at integer not null, body blob not null, salt blob);
create unique index leaf_by_batch on leaf(batch, tenant);

create table due(
    kind text not null, at integer not null, tenant integer not null, id blob not null,
    primary key (kind, at, tenant, id)) without rowid;
"""

# An older worker would show what has expired, take a fork for empty, and overwrite what it does not understand: it may not.
_SESSION_ROOM = """
alter table session add column parent blob;
alter table session add column base integer not null default 0;
alter table session add column kept_from integer not null default 0;
alter table session add column durability text not null default 'durable';
alter table session add column ttl_ms integer not null default 0;
alter table session add column expires_at integer not null default 0;
alter table session add column dies_at integer not null default 0;
alter table session add column archive text not null default '';
alter table session add column access text not null default '';
alter table session add column holder text not null default '';
alter table session add column hold integer not null default 0;
alter table session add column held_until integer not null default 0;
alter table session add column due_at integer not null default 0;
create index session_by_lineage on session(tenant, home, lineage);

alter table slot add column agent text not null default '';
alter table slot add column epoch integer not null default 0;
alter table slot_past add column agent text not null default '';
alter table slot_past add column epoch integer not null default 0;

create table slot_entry(
    tenant integer not null, home integer not null, session blob not null, name text not null, at integer not null,
    version integer not null, n integer not null, size integer not null, media text not null, body blob not null,
    primary key (tenant, home, session, name, at, version, n));

create table slot_doc(
    tenant integer not null, home integer not null, session blob not null, name text not null, version integer not null,
    body blob not null, primary key (tenant, home, session, name, version));

create table slot_schema(
    tenant integer not null, home integer not null, lineage blob not null, digest text not null, body text not null,
    primary key (tenant, home, lineage, digest)) without rowid;

create table checkpoint(
    tenant integer not null, home integer not null, session blob not null, name text not null, version integer not null,
    kind text not null, by text not null, agent text not null, run blob, branch blob, seq integer not null,
    at integer not null, primary key (tenant, home, session, name)) without rowid;
create index checkpoint_by_version on checkpoint(tenant, home, session, version, kind);
"""

# An older worker would go on where a conversation was taken back from: it may not.
_TAKEN_BACK = """
alter table branch add column moved_to blob;
alter table run add column desk_version integer not null default 0;
"""

# What was declared ephemeral until now was kept durably, and stays so. An older worker would take one that lies beside for
# empty: it may not.
_EPHEMERAL = """
update session set durability = 'durable' where durability <> 'durable';
create table desk_beyond(
    tenant integer not null, home integer not null, session blob not null, place text not null, k1 integer not null,
    k2 integer not null, k3 integer not null, body blob not null, primary key (tenant, home, session, place, k1, k2, k3));
create table ephemeral_redo(number integer primary key, statements blob not null);
"""

MIGRATIONS = (
    Migration(version=1, name="first light", needs=1, steps=(Step(_FIRST),)),
    Migration(version=2, name="the session room", needs=2, steps=(Step(_SESSION_ROOM),)),
    Migration(version=3, name="conversations that go back", needs=3, steps=(Step(_TAKEN_BACK),)),
    Migration(version=4, name="desks that may be lost", needs=4, steps=(Step(_EPHEMERAL),)),
)
VERSION = MIGRATIONS[-1].version

# What migrations are recorded in exists before the first of them: whole ones, and their steps.
BASE = """
create table if not exists meta(name text primary key, value) without rowid;
create table if not exists migration(version integer primary key, name text not null, at integer not null);
create table if not exists migration_step(
    version integer not null, step integer not null, at integer not null, primary key (version, step)) without rowid;
"""

COPIES: Mapping[str, CopyClass] = {
    "tenant": copies.TENANTS,
    "sqlite_sequence": copies.MAINTENANCE,
    "conversation": copies.CONVERSATION_HEADS,
    "branch": copies.CONVERSATION_HEADS,
    "item": copies.ITEMS,
    "tombstone": copies.TOMBSTONES,
    "session": copies.DESKS,
    "slot": copies.DESKS,
    "slot_past": copies.DESKS,
    "slot_entry": copies.DESKS,
    "slot_doc": copies.DESKS,
    "slot_schema": copies.DESKS,
    "checkpoint": copies.DESKS,
    "desk_beyond": copies.DESKS,
    "run": copies.RUNS,
    "run_log": copies.RUN_LOGS,
    "step": copies.STEPS,
    "action": copies.STEPS,
    "inbox": copies.INBOX,
    "turn_key": copies.KEYS,
    "leaf": copies.LEAVES,
    "due": copies.MAINTENANCE,
    "meta": copies.MAINTENANCE,
    "migration": copies.MAINTENANCE,
    "migration_step": copies.MAINTENANCE,
    "owners/": copies.OWNERSHIP,
    "archive/": copies.ARCHIVES,
    **copies.EPHEMERAL,
    "ephemeral_redo": copies.DESKS,
    "ephemeral_mark": copies.MAINTENANCE,
}
