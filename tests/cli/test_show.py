"""conversation list, show and export; session show; run show: the same facts for people and for machines."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stateroom import blocking
from stateroom.flows.agent import Turn
from stateroom.hosting import transcripts
from tests.cli.conftest import Cli, Kept

UNKNOWN = "conv_" + "0a" * 16


def test_conversations_are_listed_newest_first(cli: Cli, kept: Kept) -> None:
    told = cli("conversation", "list", "--data", str(kept.folder))
    head, line = told.out.splitlines()
    assert head.split() == ["conversation", "created", "(UTC)", "items", "metadata"]
    assert line.split()[0] == kept.first.conversation
    machine = cli("conversation", "list", "--data", str(kept.folder), "--json")
    row = msgspec.json.decode(machine.out)
    assert (row["id"], row["items"], row["metadata"]) == (kept.first.conversation, 4, {})


def test_another_tenant_sees_nothing(cli: Cli, kept: Kept) -> None:
    assert "No conversations of tenant other" in cli("conversation", "list", "--data", str(kept.folder), "--tenant", "other").out
    told = cli("conversation", "show", kept.first.conversation, "--data", str(kept.folder), "--tenant", "other")
    unknown = cli("conversation", "show", UNKNOWN, "--data", str(kept.folder))
    assert (told.code, unknown.code) == (1, 1)
    assert "(not_found)" in told.err
    assert told.err.replace(kept.first.conversation, "X") == unknown.err.replace(UNKNOWN, "X")


def test_a_conversation_is_shown_item_by_item(cli: Cli, kept: Kept) -> None:
    lines = cli("conversation", "show", kept.first.conversation, "--data", str(kept.folder)).out.splitlines()
    shown = [line.split(maxsplit=2) for line in lines if line.strip()[:1].isdigit()]
    assert shown == [
        ["1", "user", "hello·there"],
        ["2", "assistant", "heard hello·there"],
        ["3", "user", "again"],
        ["4", "assistant", "heard again"],
    ]
    full = cli("conversation", "show", kept.first.conversation, "--data", str(kept.folder), "--full").out
    assert "hello\nthere" in full
    machine = cli("conversation", "show", kept.first.conversation, "--data", str(kept.folder), "--json").out.splitlines()
    assert [msgspec.json.decode(line)["seq"] for line in machine] == [1, 2, 3, 4]


def test_an_export_is_a_transcript_that_can_be_played_again(cli: Cli, kept: Kept, tmp_path: Path) -> None:
    exported = cli("conversation", "export", kept.first.conversation, "--data", str(kept.folder))
    file = tmp_path / "one.jsonl"
    file.write_text(exported.out)
    (transcript,) = transcripts.read(file)
    assert transcript.id == kept.first.conversation
    assert [item["role"] for item in transcript.items] == ["user", "assistant", "user", "assistant"]
    assert "id" not in transcript.items[0], "verbatim, without ids of ours"
    played = cli("replay", str(file))
    assert (played.code, "4 items, 4 equal, 0 different" in played.out) == (0, True)


def test_an_answer_with_a_nul_can_be_exported_and_played_again(cli: Cli, tmp_path: Path) -> None:
    async def careless(turn: Turn) -> str:
        return "one\0two"

    with blocking.open(f"sqlite:///{tmp_path / 'store'}", agents=[careless]) as room:
        made = room.turn("hello").conversation
    file = tmp_path / "one.jsonl"
    file.write_text(cli("conversation", "export", made, "--data", str(tmp_path / "store")).out)
    played = cli("replay", str(file))
    assert (played.code, "2 items, 2 equal, 0 different" in played.out) == (0, True)


def test_a_session_is_shown_with_its_slots(cli: Cli, kept: Kept) -> None:
    told = cli("session", "show", kept.second.session, "--data", str(kept.folder))
    assert told.out.splitlines()[-1].split() == ["turns", "2", "local", "agent:counting", "50", "2"]
    machine = msgspec.json.decode(cli("session", "show", kept.second.session, "--data", str(kept.folder), "--json").out)
    assert machine["version"] == 2
    assert machine["slots"]["turns"]["value"] == 2
    since = cli("session", "show", kept.second.session, "--data", str(kept.folder), "--json", "--since", "2")
    assert msgspec.json.decode(since.out)["slots"] == {}


@pytest.mark.parametrize("kind", ["run", "response"])
def test_a_run_is_shown_by_its_run_or_response_id(cli: Cli, kept: Kept, kind: str) -> None:
    told = cli("run", "show", getattr(kept.second, kind), "--data", str(kept.folder), "--json")
    fields = msgspec.json.decode(told.out)
    assert (fields["run"], fields["status"], fields["agent"]) == (kept.second.run, "completed", "counting")
    assert "completed" in cli("run", "show", getattr(kept.second, kind), "--data", str(kept.folder)).out


def test_a_run_is_followed_to_its_end(cli: Cli, kept: Kept) -> None:
    told = cli("run", "show", kept.second.run, "--follow", "--data", str(kept.folder))
    assert told.code == 0
    assert "heard again" in told.out
    assert told.out.rstrip().endswith("response.completed")
    events = cli("run", "show", kept.second.run, "--follow", "--json", "--data", str(kept.folder)).out.splitlines()
    numbers = [msgspec.json.decode(event)["sequence_number"] for event in events]
    assert numbers == list(range(len(numbers)))


def test_an_id_of_another_kind_is_not_found(cli: Cli, kept: Kept) -> None:
    told = cli("run", "show", kept.first.conversation, "--data", str(kept.folder))
    assert (told.code, "(not_found)" in told.err) == (1, True)


def test_control_characters_of_stored_text_do_not_reach_the_terminal(cli: Cli, kept: Kept, tmp_path: Path) -> None:
    file = tmp_path / "hostile.jsonl"
    line = {"id": "h", "source": "s", "items": [{"type": "message", "role": "user", "content": "\x1b[2Jgone\x07"}]}
    file.write_bytes(msgspec.json.encode(line))
    store = f"sqlite:///{tmp_path / 'hostile'}"
    assert cli("replay", str(file), "--store", store).code == 0
    conversation = cli("conversation", "list", "--store", store).out.splitlines()[1].split()[0]
    assert "\x1b" not in cli("conversation", "show", conversation, "--store", store).out
