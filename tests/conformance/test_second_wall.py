"""P28 by the second wall alone: no statement asks for its tenant any more, and every promise is kept all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from stateroom.backends.postgres import pipe
from stateroom.backends.postgres.backend import PostgresBackend
from stateroom.backends.sql.conversation import BRANCH
from stateroom.conformance.kit import Actor
from stateroom.errors import StateroomError
from stateroom.ids import NIL
from stateroom.principal import Scope, operator, own
from tests.conformance.blind import blind, blinded, unwalled
from tests.conformance.onplaces import PlaceConformance, run_test
from tests.server import test_tenants as tenants
from tests.server.serving import Served, asking, echo, pieces, serving
from tests.services.places import Place
from tests.services.store import as_role, empty


class TestSecondWall(PlaceConformance):
    SHARE = 3
    ALWAYS = "P28"

    @pytest.fixture
    def place(self, postgres_store: str) -> Iterator[Place]:
        with blind():
            yield Place("postgres", postgres_store)


@pytest.mark.anyio
async def test_P28_what_a_transaction_named_is_forgotten_at_its_end(postgres_store: str) -> None:
    """Whoever gets the connection next (a pool gives it to anybody) has no tenant until it names one."""
    backend = await PostgresBackend.open(as_role(postgres_store))
    alice = Actor(backend)
    for number in range(10):
        await alice.appends(await alice.opens_conversation(), f"{number}")
    await asyncio.gather(*(alice.store.conversations(alice.scope, after=NIL, limit=9) for _ in range(10)))
    for link in (*backend._links, *(lane._link for lane in backend._lanes)):
        assert link.pipe().ask("select coalesce(current_setting('stateroom.tenant', true), '')") == [("",)]
    await backend.close()


# ── the filter really is gone ───────────────────────────────────────────────────────────────────────────────────────


def test_what_asks_for_a_tenant_asks_for_any() -> None:
    assert blinded(pipe.dollars(BRANCH)).endswith("from branch where $1 is not null and home = $2 and id = $3 and gone = 0")


OTHERS = (operator("other"), own("other", "alice"))
RED: list[tuple[str, Scope | None]] = [
    *(("test_C7_R8_P28_a_foreign_id_answers_like_one_that_does_not_exist", stranger) for stranger in OTHERS),
    *(("test_C7_R8_P28_lists_show_what_is_visible_only", stranger) for stranger in OTHERS),
    ("test_P28_the_same_ids_in_two_tenants_do_not_meet", None),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("name", "stranger"), RED, ids=[f"{name}-{stranger and stranger.principal}" for name, stranger in RED])
async def test_somebody_whom_no_wall_holds_is_found_out(postgres_store: str, name: str, stranger: Scope | None) -> None:
    """A superuser, who may not serve for that reason: with the filter everything is as it should be, without it not."""
    above = f"{postgres_store}&options=-c%20search_path%3Dstateroom"
    with unwalled():
        await run_test(suite(), name, Place("postgres", postgres_store, by=above), parameter=stranger)
        empty(postgres_store)
        with blind() as changed, pytest.raises((AssertionError, StateroomError)):
            await run_test(suite(), name, Place("postgres", postgres_store, by=above), parameter=stranger)
    assert changed


def suite() -> PlaceConformance:
    made = PlaceConformance()
    made.setup_method()
    return made


# ── the server ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def served(module_postgres: Place) -> Iterator[Served]:
    tokens = [tenants.ALICE, *tenants.STRANGERS.values()]
    with blind(), serving(echo(), pieces(), asking(), tokens=tokens, url=module_postgres.url) as running:
        yield running


objects = tenants.objects


@pytest.mark.parametrize("stranger", [name for name, token in tenants.STRANGERS.items() if token.tenant != "acme"])
def test_P28_the_server_answers_a_foreign_id_like_a_random_one(served: Served, objects: dict[str, str], stranger: str) -> None:
    for case in tenants.CASES:
        tenants.test_P28_a_foreign_id_is_answered_like_a_random_one(served, objects, stranger, "/v1", *case)


def test_P28_the_server_lists_only_what_is_ones_own(served: Served, objects: dict[str, str]) -> None:
    tenants.test_P28_lists_show_only_what_is_ones_own(served, objects)
    tenants.test_P28_the_probes_find_what_is_there(served, objects)
    tenants.test_P28_a_key_means_nothing_to_others(served)
