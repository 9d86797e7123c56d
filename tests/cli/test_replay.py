"""Recorded conversations through the whole stack and back: everything is equal, and what is not is found."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateroom.cli.replay.command import path_of
from stateroom.cli.replay.player import Player, ask_again
from stateroom.cli.replay.targets import Answered, Asked, TryAgain
from stateroom.errors import StateroomError, Unavailable
from stateroom.hosting import transcripts
from stateroom.hosting.transcripts import Transcript
from tests.cli.conftest import Cli
from tests.cli.test_serve import served

BESIDE = Path(__file__).parents[2].parent / "shared" / "data" / "transcripts.jsonl.gz"


@pytest.fixture
def recorded() -> Path:
    """All the transcripts there are: STATEROOM_TRANSCRIPTS, or those beside the checkout, or else the sample."""
    for found in (os.environ.get("STATEROOM_TRANSCRIPTS"), BESIDE):
        if found and Path(found).exists():
            return Path(found)
    print("\nREPLAY: only the SAMPLE is played: no STATEROOM_TRANSCRIPTS, and nothing beside the checkout", file=sys.__stderr__)
    return path_of("sample")


def counts(out: str) -> tuple[int, ...]:
    """Conversations, items, equal, different."""
    found = re.search(r"(\d+) conversations, (\d+) items, (\d+) equal, (\d+) different", out)
    assert found, out
    return tuple(map(int, found.groups()))


def size_of(file: Path) -> tuple[int, int]:
    played = list(transcripts.read(file))
    return len(played), sum(len(transcript.items) for transcript in played)


def test_the_sample_is_as_wild_as_life() -> None:
    played = list(transcripts.read(path_of("sample")))
    assert len(played) >= 12
    assert any(not transcript.turns()[0].input for transcript in played), "one begins with the assistant"
    assert any(not transcript.turns()[-1].outputs for transcript in played), "one ends on a user message"
    calls = [[item["call_id"] for item in transcript.items if item["type"] == "function_call"] for transcript in played]
    assert any(len(set(ids)) < len(ids) for ids in calls), "one repeats a call id"
    arguments = [item["arguments"] for transcript in played for item in transcript.items if item["type"] == "function_call"]
    assert any(not is_json(text) for text in arguments), "one has arguments that are not JSON"
    licence = path_of("sample").with_name("LICENSES-transcripts.txt").read_text()
    assert {transcript.source.replace("/", "+") for transcript in played} == set(re.findall(r"^== (\S+)", licence, re.MULTILINE))


def is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def test_P2_P30_every_recorded_conversation_comes_back_equal(cli: Cli, recorded: Path) -> None:
    conversations, items = size_of(recorded)
    told = cli("replay", str(recorded), "--concurrency", "8")
    assert counts(told.out) == (conversations, items, items, 0)
    assert told.code == 0
    assert re.search(r"turns/s, p50 [\d.]+ ms, p99 [\d.]+ ms", told.out)
    assert "on disk for" in told.out


def test_P2_P30_and_so_it_does_over_http(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    limit = min(100, size_of(recorded)[0])
    with served("--tape", str(recorded), cwd=tmp_path) as (url, _, _):
        told = cli("replay", str(recorded), "--url", url, "--limit", str(limit), "--concurrency", "8")
    conversations, items, equal, different = counts(told.out)
    assert (told.code, conversations, equal, different) == (0, limit, items, 0)


def test_for_machines_the_figures_are_json(cli: Cli) -> None:
    figures = msgspec.json.decode(cli("replay", "sample", "--json", "--limit", "2").out)
    assert figures["verdict"]["conversations"] == 2
    played = list(transcripts.read(path_of("sample")))[:2]
    assert figures["turns"] == sum(bool(turn.input) for transcript in played for turn in transcript.turns())
    assert figures["p99_ms"] >= figures["p50_ms"] > 0
    assert figures["disk_bytes"] > figures["payload_bytes"] > 0


def test_P14_the_same_store_may_be_played_on_again(cli: Cli, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'store'}"
    assert cli("replay", "sample", "--store", store).code == 0
    assert cli("replay", "sample", "--store", store).code == 0
    assert len(cli("conversation", "list", "--store", store, "--limit", "100").out.splitlines()) == 1 + 2 * 12


def test_a_server_with_another_tape_is_found_out(cli: Cli, tmp_path: Path) -> None:
    """The negative control: one word of one answer differs."""
    other = tmp_path / "other.jsonl"
    lines = gzip.decompress(path_of("sample").read_bytes()).splitlines()
    first = msgspec.json.decode(lines[0])
    first["items"][1]["content"] += " Really."
    other.write_bytes(b"\n".join([msgspec.json.encode(first), *lines[1:]]))
    with served("--tape", str(other), cwd=tmp_path) as (url, _, _):
        told = cli("replay", "sample", "--url", url)
    assert told.code == 1
    assert counts(told.out)[3] == 1
    assert "item 2: said" in told.out
    assert "Really." in told.out


def test_a_server_that_is_not_there_is_told(cli: Cli) -> None:
    told = cli("replay", "sample", "--url", "http://127.0.0.1:9")
    assert (told.code, "(server_unreachable)" in told.err) == (1, True)


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_a_file_without_conversations_is_told(cli: Cli, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "empty").write_bytes(content)
    assert "(transcripts_missing)" in cli("replay", str(tmp_path / "empty")).err


def test_interrupted_it_compares_what_was_acknowledged(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    lines = gzip.decompress(path_of("sample").read_bytes())
    file.write_bytes(lines * 200)
    command = [sys.executable, "-m", "stateroom.cli", "replay", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        time.sleep(2.0)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert out.startswith("Interrupted")
    conversations, items, equal, different = counts(out)
    assert 0 < conversations < 2400
    assert (equal, different) == (items, 0)


class Flaky:
    """A target in memory whose every second answer is lost on the way, and whose first run of a turn may be lost."""

    def __init__(self, *, forgetful: bool = False, lost: bool = False) -> None:
        self.keys: dict[str, Answered] = {}
        self.kept: list[dict[str, Any]] = []
        self._forgetful, self._lost, self._calls = forgetful, lost, 0

    async def begin(self, key: str) -> str:
        return "conv_1"

    async def append(self, key: str, conversation: str, items: Any) -> None:
        self.kept += items

    async def turn(self, asked: Asked) -> Answered:
        known = self.keys.get(asked.key)
        if known is None or self._forgetful:
            failed = self._lost and "~" not in asked.key
            status, error = ("failed", "run_lost") if failed else ("completed", "")
            answer = self.keys[asked.key] = Answered(f"resp_{len(self.kept)}", status, error, False, [])
            self.kept += [*asked.input, *([] if failed else [{"type": "message", "role": "assistant", "content": "b"}])]
        else:
            answer = msgspec.structs.replace(known, replayed=True)
        self._calls += 1
        if self._calls % 2:
            raise TryAgain("lost on the way")
        return answer

    async def record(self, conversation: str) -> list[dict[str, Any]]:
        return self.kept


SAID = [{"type": "message", "role": "user", "content": "a"}, {"type": "message", "role": "assistant", "content": "b"}]
TWO = [Transcript(id="t", source="s", items=SAID * 2)]


@pytest.mark.anyio
async def test_P14_a_lost_answer_is_asked_for_again_under_its_key() -> None:
    target = Flaky()
    player = Player(target, run="x")
    await player.play(TWO, concurrency=1)
    assert (player.retries, player.replayed) == (2, 2)
    assert player.stories[0].said == target.kept == SAID * 2


@pytest.mark.anyio
async def test_a_target_without_keys_shows_as_doubled_and_as_changed_answers() -> None:
    target = Flaky(forgetful=True)
    player = Player(target, run="x")
    await player.play(TWO, concurrency=1)
    assert len(target.kept) == 2 * len(player.stories[0].said)
    target._calls = 1
    with pytest.raises(TryAgain):
        await ask_again(target, player.stories)


@pytest.mark.anyio
async def test_a_turn_given_up_is_said_again_under_another_key_and_both_stay() -> None:
    target = Flaky(lost=True)
    player = Player(target, run="x")
    await player.play(TWO, concurrency=1)
    assert player.lost_runs == 2
    assert player.stories[0].said == target.kept == [SAID[0], *SAID, SAID[0], *SAID]


@pytest.mark.anyio
async def test_patience_ends() -> None:
    class Dead(Flaky):
        async def turn(self, asked: Asked) -> Answered:
            raise TryAgain("nobody there")

    with pytest.raises(ExceptionGroup) as raised:
        await Player(Dead(), run="x", patience_s=0.2).play(TWO, concurrency=1)
    assert raised.group_contains(Unavailable, match="nobody there")


@pytest.mark.anyio
async def test_a_turn_that_fails_otherwise_ends_the_replay() -> None:
    class Failing(Flaky):
        async def turn(self, asked: Asked) -> Answered:
            return Answered("resp_1", "failed", "agent_error", False, [])

    with pytest.raises(ExceptionGroup) as raised:
        await Player(Failing(), run="x").play(TWO, concurrency=1)
    assert raised.group_contains(StateroomError, match="ended as failed")
