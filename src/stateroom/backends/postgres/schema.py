"""The tables in PostgreSQL, as forward migrations, and who may touch them.

The same tables as in SQLite, with two walls: keys start with (tenant, home), and row-level security shows a transaction
the tenant that it named, and nothing when it named none. Three roles: the owner (who migrates; nobody logs in as it), the
app (workers), the reader (people who look). What runs over all tenants is content-free: `due` has no wall, and three
functions answer as the owner with ids and numbers only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stateroom import copies
from stateroom.backends.sql.migration import Migration, Step
from stateroom.copies import CopyClass

SCHEMA = "stateroom"
OWNER, APP, READER = "stateroom_owner", "stateroom_app", "stateroom_reader"
PARTITIONS = 8
PARTITIONED = ("item", "run_log", "slot_past", "leaf")

# A plan may be made while a table is nearly empty, and stays until the table is analyzed: to it, every index that begins
# with the tenant looks as good as the key. Every other index therefore has a condition, always true, that only the
# statements it is for say (`accepted > 0`) or imply (`lineage is not null`): nothing else can be planned through it.


_HEADS = """
create table tenant(number bigint primary key generated always as identity, name text collate "C" not null unique);

create table conversation(
    tenant bigint, home bigint, id bytea, owner text collate "C" not null, subject text not null, kind text not null,
    metadata bytea not null, created_at bigint not null, agent text not null default '', gone bigint not null default 0,
    primary key (tenant, home, id));
create index conversation_by_time on conversation(tenant, created_at, id) where kind = 'managed' and gone = 0;

create table branch(
    tenant bigint, home bigint, id bytea, conversation bytea not null, owner text collate "C" not null, parent bytea,
    up_to bigint not null default 0, parent_count bigint not null default 0, tail bigint not null default 0,
    deletions bigint not null default 0, revision bigint not null default 0, active_run bytea,
    queued bigint not null default 0, last_run bytea, queue_no bigint not null default 0, gone bigint not null default 0,
    primary key (tenant, home, id)) with (fillfactor = 70);
create index branch_by_parent on branch(tenant, home, parent) where parent is not null;
create index branch_by_conversation on branch(tenant, home, conversation) where id <> conversation;

create table item(
    tenant bigint, home bigint, branch bytea, seq bigint, id bytea not null, run bytea, kind text not null,
    role text not null, origin text not null, trust bigint not null, mark text not null default '', at bigint not null,
    body bytea not null, primary key (tenant, home, branch, seq)) partition by hash (tenant, home);
create unique index item_by_id on item(tenant, home, id) where seq > 0;

create table tombstone(
    tenant bigint, home bigint, branch bytea, seq bigint, number bigint not null, primary key (tenant, home, branch, seq));
"""

_DESKS = """
create table session(
    tenant bigint, home bigint, id bytea, owner text collate "C" not null, subject text not null, conversation bytea,
    agent text not null default '', lineage bytea not null, version bigint not null default 0,
    status text not null default 'active', metadata bytea not null, created_at bigint not null, touched_at bigint not null,
    primary key (tenant, home, id)) with (fillfactor = 70);
create unique index session_bound on session(tenant, home, conversation, agent)
    where conversation is not null and status = 'active';
create index session_by_time on session(tenant, created_at, id) where status = 'active' and created_at > 0;

create table slot(
    tenant bigint, home bigint, session bytea, name text collate "C", version bigint not null, kind text not null,
    schema text not null, origin text not null, trust bigint not null, body bytea, by text not null, run bytea,
    at bigint not null, primary key (tenant, home, session, name)) with (fillfactor = 70);
create table slot_past(
    tenant bigint, home bigint, session bytea, name text collate "C", version bigint, kind text not null,
    schema text not null, origin text not null, trust bigint not null, body bytea, by text not null, run bytea,
    at bigint not null, primary key (tenant, home, session, name, version)) partition by hash (tenant, home);
"""

_RUNS = """
create table run(
    tenant bigint, home bigint, id bytea, conversation bytea, branch bytea, session bytea, agent text not null,
    owner text collate "C" not null, subject text not null, status text not null, attempt bigint not null default 1,
    fence bigint not null default 0, lease_owner text not null default '', lease_until bigint not null default 0,
    cancel_at bigint not null default 0, queue_no bigint not null default 0, in_lo bigint not null default 0,
    in_hi bigint not null default 0, out_hi bigint not null default 0, previous bytea, head bigint not null default 0,
    stored bigint not null default 1, options bytea not null, usage bytea not null, error bytea not null,
    created_at bigint not null, started_at bigint not null default 0, finished_at bigint not null default 0,
    key text not null default '', deadline_at bigint not null default 0, merge bigint not null default 0,
    merged_into bytea, epoch bigint not null default 0, due_at bigint not null default 0,
    accepted bigint generated always as identity, primary key (tenant, home, id)) with (fillfactor = 70);
create index run_by_acceptance on run(tenant, accepted) where accepted > 0;
create index run_queued on run(tenant, home, branch, queue_no) where status = 'queued';
create index run_leased on run(lease_owner) where lease_owner <> '';
create index run_by_conversation on run(tenant, home, conversation) where conversation is not null;

create table turn_key(
    tenant bigint, home bigint, principal text collate "C", operation text collate "C", key text collate "C",
    fingerprint bytea not null, ref bytea not null, at bigint not null,
    primary key (tenant, home, principal, operation, key));

create table inbox(
    tenant bigint, home bigint, run bytea, n bigint, id bytea not null, kind text not null, role text not null,
    origin text not null, trust bigint not null, body bytea not null, primary key (tenant, home, run, n));

create table run_log(
    tenant bigint, home bigint, run bytea, first bigint, count bigint not null, kind text not null, body bytea not null,
    at bigint not null, item bytea, primary key (tenant, home, run, first)) partition by hash (tenant, home);

create table step(
    tenant bigint, home bigint, run bytea, n bigint not null, key text collate "C", name text not null,
    effect text not null, status text not null, digest bytea not null, attempt bigint not null, body bytea not null,
    at bigint not null, primary key (tenant, home, run, key));

create table action(
    tenant bigint, home bigint, id bytea not null, run bytea, n bigint not null, key text collate "C", kind text not null,
    name text not null, status text not null, digest bytea not null, queue text collate "C" not null,
    body bytea not null, resolution bytea not null, by text not null, until bigint not null, policy text not null,
    at bigint not null, primary key (tenant, home, run, key));
create unique index action_by_id on action(tenant, home, id) where id is not null;
create index action_by_queue on action(tenant, queue, at) where status = 'pending' and queue <> '';

create table leaf(
    tenant bigint, home bigint, batch bytea, at bigint not null, body bytea not null, salt bytea,
    primary key (tenant, home, batch)) partition by hash (tenant, home);
"""

_MAINTENANCE = """
create table due(kind text, at bigint, tenant bigint, id bytea, primary key (kind, at, tenant, id));
create table clock(
    correction bigint not null default 0, boot text not null default '', boot_ms bigint not null default 0,
    store_ms bigint not null default 0);
insert into clock default values;

create table duty(name text primary key, owner text not null, until bigint not null);

create function clock_ms() returns bigint language sql volatile
    as $$ select (extract(epoch from clock_timestamp()) * 1000)::bigint $$;

-- They run as the owner, whom the wall lets through while the transaction says so; to other roles the word means nothing.
create function leased_by(holder text, most bigint) returns table(at bigint, tenant bigint, id bytea)
    language sql security definer set search_path = stateroom, pg_temp
    as $$ select set_config('stateroom.system', 'on', true);
          select lease_until, tenant, id from run where lease_owner = holder limit most $$;
create function lease_owners() returns table(owner text)
    language sql security definer set search_path = stateroom, pg_temp
    as $$ select set_config('stateroom.system', 'on', true);
          select distinct lease_owner from run where lease_owner <> '' $$;
create function going_on() returns table(id bytea, head bigint)
    language sql security definer set search_path = stateroom, pg_temp
    as $$ select set_config('stateroom.system', 'on', true);
          select id, head from run where lease_owner <> '' union all select id, -1 from run where status = 'queued' $$;
create function new_timeline(line text) returns bigint
    language plpgsql security definer set search_path = stateroom, pg_temp
    as $$
    declare known text;
    begin
        perform set_config('stateroom.system', 'on', true);
        select value into known from meta where name = 'timeline';
        if known is distinct from line then
            select value into known from meta where name = 'timeline' for update;
        end if;
        if known is distinct from line then
            update meta set value = line where name = 'timeline';
            update meta set value = (value::bigint + 1)::text where name = 'epoch';
            update run set fence = fence + 1048576 where lease_owner <> '';
        end if;
        return (select value::bigint from meta where name = 'epoch');
    end $$;
"""

# The wall: rows of the tenant that the transaction named; the owner sees all of them, and only when it says so.
_FIRST_WALLED = (
    "conversation", "branch", "item", "tombstone", "session", "slot", "slot_past", "run", "turn_key", "inbox", "run_log",
    "step", "action", "leaf",
)  # fmt: skip
OPEN = ("tenant", "due", "clock", "duty", "meta", "migration")  # no content in them


def wall(tables: tuple[str, ...]) -> str:
    """Row-level security for tables, their partitions included."""
    return "\n".join(
        wall_of(name)
        for table in tables
        for name in (table, *(f"{table}_{n}" for n in range(PARTITIONS) if table in PARTITIONED))
    )


def wall_of(name: str) -> str:
    """Row-level security for one table or partition."""
    return (
        f"alter table {name} enable row level security; alter table {name} force row level security;"
        f" create policy tenant on {name} to {APP}, {READER}"
        " using (tenant = nullif(current_setting('stateroom.tenant', true), '')::bigint);"
        f" create policy system on {name} to {OWNER} using (current_setting('stateroom.system', true) = 'on');"
    )


def partitions(tables: tuple[str, ...]) -> str:
    """The hash partitions of tables."""
    return "\n".join(
        f"create table {table}_{n} partition of {table} for values with (modulus {PARTITIONS}, remainder {n});"
        for table in tables
        for n in range(PARTITIONS)
    )


def concurrently(name: str, on: str, *, unique: bool = False) -> Step:
    """An index on a table that has rows, made while they are written."""
    made = f"create {'unique ' if unique else ''}index concurrently {name} on {on}"
    return Step(made, outside=True, again=f"drop index concurrently if exists {name}")


_SESSION_ROOM = """
alter table session add column parent bytea, add column base bigint not null default 0,
    add column kept_from bigint not null default 0, add column durability text not null default 'durable',
    add column ttl_ms bigint not null default 0, add column expires_at bigint not null default 0,
    add column dies_at bigint not null default 0, add column archive text not null default '',
    add column access text not null default '', add column holder text not null default '',
    add column hold bigint not null default 0, add column held_until bigint not null default 0,
    add column due_at bigint not null default 0;

alter table slot add column agent text not null default '', add column epoch bigint not null default 0;
alter table slot_past add column agent text not null default '', add column epoch bigint not null default 0;

create table slot_entry(
    tenant bigint, home bigint, session bytea, name text collate "C", at bigint, version bigint, n bigint,
    size bigint not null, media text not null, body bytea not null,
    primary key (tenant, home, session, name, at, version, n));

create table slot_doc(
    tenant bigint, home bigint, session bytea, name text collate "C", version bigint, body bytea not null,
    primary key (tenant, home, session, name, version));

create table slot_schema(
    tenant bigint, home bigint, lineage bytea, digest text collate "C", body text not null,
    primary key (tenant, home, lineage, digest));

create table checkpoint(
    tenant bigint, home bigint, session bytea, name text collate "C", version bigint not null, kind text not null,
    by text not null, agent text not null, run bytea, branch bytea, seq bigint not null, at bigint not null,
    primary key (tenant, home, session, name));
create index checkpoint_by_version on checkpoint(tenant, home, session, version, kind) where version is not null;
"""

_TAKEN_BACK = """
alter table branch add column moved_to bytea;
alter table run add column desk_version bigint not null default 0;
"""

# Whoever sweeps reads the lines of all tenants; only in its tenant's name may one be written or deleted.
_DUE_WALL = wall_of("due") + f" create policy look on due for select to {APP}, {READER} using (true);"

# A crash empties what is not logged: all of it at once. What was declared ephemeral until now was kept durably, and stays so.
_EPHEMERAL = """
create unlogged table ephemeral_session(
    tenant bigint, home bigint, id bytea, version bigint not null, touched_at bigint not null, expires_at bigint not null,
    kept_from bigint not null, primary key (tenant, home, id)) with (fillfactor = 70);
create unlogged table ephemeral_slot(
    tenant bigint, home bigint, session bytea, name text collate "C", version bigint not null, kind text not null,
    schema text not null, origin text not null, trust bigint not null, body bytea, by text not null, run bytea,
    at bigint not null, agent text not null default '', epoch bigint not null default 0,
    primary key (tenant, home, session, name)) with (fillfactor = 70);
create unlogged table ephemeral_slot_past(
    tenant bigint, home bigint, session bytea, name text collate "C", version bigint, kind text not null,
    schema text not null, origin text not null, trust bigint not null, body bytea, by text not null, run bytea,
    at bigint not null, agent text not null default '', epoch bigint not null default 0,
    primary key (tenant, home, session, name, version));
create unlogged table ephemeral_slot_entry(
    tenant bigint, home bigint, session bytea, name text collate "C", at bigint, version bigint, n bigint,
    size bigint not null, media text not null, body bytea not null,
    primary key (tenant, home, session, name, at, version, n));
create unlogged table ephemeral_slot_doc(
    tenant bigint, home bigint, session bytea, name text collate "C", version bigint, body bytea not null,
    primary key (tenant, home, session, name, version));
create unlogged table ephemeral_slot_schema(
    tenant bigint, home bigint, lineage bytea, digest text collate "C", body text not null,
    primary key (tenant, home, lineage, digest));
create unlogged table ephemeral_checkpoint(
    tenant bigint, home bigint, session bytea, name text collate "C", version bigint not null, kind text not null,
    by text not null, agent text not null, run bytea, branch bytea, seq bigint not null, at bigint not null,
    primary key (tenant, home, session, name));
create index ephemeral_checkpoint_by_version on ephemeral_checkpoint(tenant, home, session, version, kind)
    where version is not null;
create table desk_beyond(
    tenant bigint, home bigint, session bytea, place text collate "C", k1 bigint, k2 bigint, k3 bigint, body bytea not null,
    primary key (tenant, home, session, place, k1, k2, k3));
create unlogged table ephemeral_desk_beyond(
    tenant bigint, home bigint, session bytea, place text collate "C", k1 bigint, k2 bigint, k3 bigint, body bytea not null,
    primary key (tenant, home, session, place, k1, k2, k3));
create unlogged table ephemeral_leaf(
    tenant bigint, home bigint, batch bytea, at bigint not null, body bytea not null, salt bytea,
    primary key (tenant, home, batch));
update session set durability = 'durable' where durability <> 'durable';
"""

_FIRST = _HEADS + _DESKS + _RUNS + _MAINTENANCE + partitions(PARTITIONED) + wall(_FIRST_WALLED)
_DESK_TABLES = ("slot_entry", "slot_doc", "slot_schema", "checkpoint")
MIGRATIONS = (
    Migration(version=1, name="first light", needs=1, steps=(Step(_FIRST),)),
    # An older worker would show what has expired, take a fork for empty, and overwrite what it does not understand.
    Migration(
        version=2, name="the session room", needs=2,
        steps=(
            Step(_SESSION_ROOM + wall(_DESK_TABLES)),
            concurrently("session_by_lineage", "session(tenant, home, lineage) where lineage is not null"),
        ),
    ),
    # An older worker would go on where a conversation was taken back from.
    Migration(version=3, name="conversations that go back", needs=3, steps=(Step(_TAKEN_BACK + _DUE_WALL),)),
    # An older worker would take for empty what lies in the new tables.
    Migration(
        version=4, name="desks that may be lost", needs=4, steps=(Step(_EPHEMERAL + wall(("desk_beyond", *copies.EPHEMERAL))),),
    ),
)  # fmt: skip
VERSION = MIGRATIONS[-1].version

# What stands before the first migration: where they are recorded, and what a store is known by.
BASE = """
create table if not exists meta(name text primary key, value text not null);
create table if not exists migration(
    version bigint not null, step bigint not null, name text not null, at bigint not null, primary key (version, step));
"""

GRANTS = f"""
grant usage on schema {SCHEMA} to {APP}, {READER};
grant select, insert, update, delete on all tables in schema {SCHEMA} to {APP};
revoke all on all tables in schema {SCHEMA} from {READER};
grant select on all tables in schema {SCHEMA} to {READER};
revoke insert, update, delete on migration from {APP};
revoke delete on meta, clock, tenant from {APP};
revoke all on all functions in schema {SCHEMA} from public;
grant execute on all functions in schema {SCHEMA} to {APP};
grant execute on function going_on() to {READER};
"""

COPIES: Mapping[str, CopyClass] = {
    "tenant": copies.TENANTS,
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
    "clock": copies.MAINTENANCE,
    "duty": copies.MAINTENANCE,
    "meta": copies.MAINTENANCE,
    "migration": copies.MAINTENANCE,
    **copies.EPHEMERAL,
}

WALLED = tuple(table for table in COPIES if table not in OPEN)

_PART = re.compile(r"_\d+$")


def table_of(name: str) -> str:
    """The table that a partition belongs to."""
    return _PART.sub("", name)
