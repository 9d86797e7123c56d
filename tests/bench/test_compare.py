"""The comparison's harness, on what the development environment has: ours and the hand-written store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import compare, peers
from bench.peers import report
from bench.peers.child import Child

HAND = "hand-written apsw, WAL FULL, one commit"


def test_every_peer_is_measured_on_the_same_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "figures.json"
    arguments = ["--reps", "1", "--conversations", "1", "--peers", HAND.split(",")[0], "--lengths", "7 items"]
    monkeypatch.setattr("sys.argv", ["compare", *arguments, "--dir", str(tmp_path), "--json", str(figures)])
    compare.main()

    found = json.loads(figures.read_text())[0]["peers"]
    assert list(found) == [peers.OURS, HAND]
    turns = len(found[HAND]["real"][0]["s"])
    assert turns == len(found[peers.OURS]["real"][0]["s"])
    assert found[HAND]["commits"] == 1
    assert found[peers.OURS]["commits"] == pytest.approx(2 + 1 / turns), "two a turn, and one that makes the conversation"
    assert {peer["items at 7 items"] for peer in found.values()} == {7}
    assert len(found[HAND]["growth"]["7 items"]) == compare.ROUNDS
    assert f"| {peers.OURS} |" in capsys.readouterr().out


def test_a_peer_that_loses_an_item_is_found_out(tmp_path: Path) -> None:
    child = Child(HAND, tmp_path, 1)
    child.real(0)
    child.peer.db.execute("delete from item where place = (select max(place) from item)")
    with pytest.raises(AssertionError, match="kept"):
        child.check("real-0", child.conversations[0])
    child.end()


@pytest.mark.parametrize(("theirs", "word"), [(0.5, "0.50 [0.50-0.50] MISSED"), (3.0, "3.00 [3.00-3.00] MET")])
def test_a_target_is_met_or_missed_by_the_median_of_the_same_turns(theirs: float, word: str) -> None:
    def peer(factor: float) -> dict[str, Any]:
        return {"real": [{"s": [0.001 * factor, 0.004 * factor, 0.002 * factor]}], "growth": {}}

    figures = [{"peers": {peers.OURS: peer(1.0), "openai-agents SQLiteSession": peer(theirs)}}]
    assert word in "\n".join(report.verdicts(figures))
