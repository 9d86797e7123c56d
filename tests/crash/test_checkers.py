"""The checkers go red: each is shown forged histories with something lost, doubled, reordered or made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateroom.cli.replay.compare import Verdict, compare, total
from stateroom.principal import LOCAL
from tests.crash import writer
from tests.crash.checks import Acked, acks, broken_invariants, runs_of, wrong_with

SAID: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": text} for text in ("a", "b", "c")]
ACKED = [Acked(f"t0:{number}", "conv_1", f"resp_{number}") for number in range(3)]
KEPT = [text for number in range(3) for text in (f"turn t0:{number}", f"heard turn t0:{number}")]


def test_a_true_copy_is_equal_whatever_ids_and_status_say() -> None:
    kept = [{"id": f"item_{place}", "status": "completed", **item} for place, item in enumerate(SAID)]
    verdict = compare("x", SAID, kept)
    assert verdict.good
    assert (verdict.items, verdict.equal, verdict.different) == (3, 3, 0)


@pytest.mark.parametrize(
    ("kept", "lost", "doubled", "foreign", "moved"),
    [
        pytest.param(SAID[:2], 1, 0, 0, 0, id="lost at the end"),
        pytest.param(SAID[1:], 1, 0, 0, 0, id="lost at the start"),
        pytest.param([], 3, 0, 0, 0, id="all lost"),
        pytest.param([SAID[0], *SAID], 0, 1, 0, 0, id="doubled"),
        pytest.param([SAID[1], SAID[0], SAID[2]], 0, 0, 0, 2, id="reordered"),
        pytest.param([*SAID, {"type": "message", "role": "user", "content": "d"}], 0, 0, 1, 0, id="foreign"),
        pytest.param([SAID[0], {**SAID[1], "content": "B"}, SAID[2]], 1, 0, 1, 0, id="changed"),
        pytest.param([SAID[0], {**SAID[1], "extra": None}, SAID[2]], 1, 0, 1, 0, id="a field too many"),
    ],
)
def test_P1_P2_what_is_wrong_with_a_record_is_counted(
    kept: list[dict[str, Any]], lost: int, doubled: int, foreign: int, moved: int
) -> None:
    verdict = compare("x", SAID, kept)
    assert not verdict.good
    assert verdict.differences
    assert (verdict.lost, verdict.doubled, verdict.foreign, verdict.moved) == (lost, doubled, foreign, moved)


def test_items_that_are_the_same_may_be_said_twice() -> None:
    assert compare("x", [*SAID, SAID[0]], [*SAID, SAID[0]]).good
    assert compare("x", [*SAID, SAID[0]], SAID).lost == 1


def test_verdicts_add_up() -> None:
    verdict = total([compare("x", SAID, SAID), compare("y", SAID, SAID[:1])])
    assert verdict == Verdict(2, 6, 4, 2, lost=2, differences=verdict.differences)
    assert not verdict.good
    assert total([]).good


def test_a_sound_record_has_no_faults() -> None:
    assert wrong_with(ACKED, {"conv_1": KEPT}) == []
    assert wrong_with(ACKED, {"conv_1": [*KEPT, "turn t0:3"]}) == []  # nobody was told of it


@pytest.mark.parametrize(
    ("kept", "fault"),
    [
        pytest.param(KEPT[:-1], "lost", id="an answer lost"),
        pytest.param(KEPT[2:], "lost", id="a turn lost"),
        pytest.param([*KEPT, *KEPT[-2:]], "doubled", id="a turn doubled"),
        pytest.param([*KEPT[:2], KEPT[0], *KEPT[2:]], "doubled", id="a question doubled"),
        pytest.param([*KEPT[2:4], *KEPT[:2], *KEPT[4:]], "reordered", id="turns reordered"),
        pytest.param([KEPT[1], KEPT[0], *KEPT[2:]], "reordered", id="an answer before its question"),
    ],
)
def test_P1_P14_faults_of_a_record_are_named(kept: list[str], fault: str) -> None:
    assert any(found.startswith(fault) for found in wrong_with(ACKED, {"conv_1": kept}))


def test_a_line_that_was_cut_is_no_acknowledgement() -> None:
    assert acks(b"k c r\nk2 c2 r2\nk3 c3") == [Acked("k", "c", "r"), Acked("k2", "c2", "r2")]
    assert acks(b"k c") == []


@pytest.mark.anyio
async def test_P9_P10_a_store_in_disorder_is_found_out(tmp_path: Path) -> None:
    room = await writer.opened(tmp_path)
    backend = room.stack.backend
    await room.turn("hello")
    assert await broken_invariants(backend) == []
    run = (await runs_of(backend))[0]
    for statement, fault in (
        ("update run set status = 'in_progress'", "is in_progress"),
        ("update run set lease_owner = '1-dead'", "still leased"),
        ("update run_log set first = first + 1", "has numbers"),
        ("update branch set tail = tail + 1", "its tail is"),
        ("delete from item where seq = 1", "has seqs [2]"),
        ("update branch set active_run = x'00'", "is busy"),
    ):
        backend._db.execute("savepoint forged")  # type: ignore[attr-defined]
        backend._db.execute(statement)  # type: ignore[attr-defined]
        backend._db.execute("release forged")  # type: ignore[attr-defined]
        assert any(fault in found for found in await broken_invariants(backend)), statement
    assert (await backend.run(LOCAL, run.id)).id == run.id
    await room.close()
