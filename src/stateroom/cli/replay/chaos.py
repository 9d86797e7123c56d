"""Kills the server again and again while conversations are played on it, and proves what that did to them: nothing.

Needs the `server` extra."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from stateroom.cli.replay.compare import Verdict, compare, total
from stateroom.cli.replay.http import HttpTarget
from stateroom.cli.replay.player import Player, Story, ask_again
from stateroom.errors import StateroomError
from stateroom.hosting.transcripts import Transcript
from stateroom.wire import json

_READY_S_MAX = 60.0
_STOP_S_MAX = 20.0
_PATIENCE_S = 120.0  # a server that is killed at every start needs some starts
SERVE = (sys.executable, "-m", "stateroom.cli", "serve")


class Dice:
    """Moments that look random and are the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self._drawn = seed, 0

    def between(self, low: float, high: float) -> float:
        self._drawn += 1
        digest = hashlib.sha256(f"{self.seed}:{self._drawn}".encode()).digest()
        return low + (high - low) * int.from_bytes(digest[:8], "big") / 2**64


class Child:
    """A server of our own: its own process, data folder, tape and port. `serve` is the command that starts one."""

    def __init__(
        self, folder: Path, transcripts: Sequence[Transcript], *, serve: Sequence[str] = SERVE, delay_ms: int = 2
    ) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        tape = folder / "tape.jsonl"
        tape.write_bytes(b"".join(json.encode(transcript) + b"\n" for transcript in transcripts))
        self._command = [
            *serve, "--port", str(self.port), "--data", str(folder / "store"),
            "--tape", str(tape), "--tape-delay-ms", str(delay_ms), "--tape-chars", "24",
        ]  # fmt: skip
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, **environ: str) -> None:
        """Begin to start, with these variables on top of ours; see `ready`."""
        with (self.folder / "server.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=log, stderr=log, env={**os.environ, **environ}
            )

    async def ready(self) -> None:
        """Wait until it takes work. StateroomError with the end of its log when it ends or does not come up."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _READY_S_MAX
        async with HttpTarget(self.url) as target:
            while not await target.ready():
                if loop.time() > until or self._process is None or self._process.returncode is not None:
                    raise StateroomError(f"The server does not start. Its last words:\n{self.last_words()}", code="server_lost")
                await asyncio.sleep(0.02)

    def last_words(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")[-2000:]

    async def dead(self) -> int:
        """Wait until it is gone by itself; its status."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), _READY_S_MAX)

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def stop(self) -> int | None:
        """Let it end by itself, or kill it when it does not; its status."""
        if self._process is None:
            return None
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), _STOP_S_MAX)
            except TimeoutError:
                await self.kill()
        return self._process.returncode


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the kills did. `lost`, `doubled` and `changed` answers have to be 0, and every item equal."""

    seed: int
    kills: int
    acknowledged: int  # turns
    replays: int  # answers to repeated requests that came from their first try
    lost_runs: int  # turns given up after too many kills, and said again
    asked_again: int  # acknowledged turns whose key was used once more at the end
    changed: int  # of those, answered differently
    verdict: Verdict

    @property
    def good(self) -> bool:
        return self.verdict.good and not self.changed

    def text(self) -> str:
        """The counters, for people; differences first."""
        verdict = self.verdict
        lines = [
            *(f"  {difference}" for difference in verdict.differences),
            f"{self.kills} kills (seed {self.seed}), {self.acknowledged} turns acknowledged, {self.replays} answered by replay,"
            f" {self.lost_runs} given up and said again",
            f"{self.asked_again} keys used once more: {self.changed} answered differently",
            f"{verdict.lost} lost, {verdict.doubled} doubled, {verdict.foreign} foreign, {verdict.moved} out of order",
            f"{verdict.conversations} conversations, {verdict.items} items, {verdict.equal} equal, {verdict.different} different",
        ]
        return "\n".join(lines)


class Chaos:
    """One campaign. `kills`: how many at least; the transcripts are played over and over until then."""

    def __init__(self, child: Child, transcripts: Sequence[Transcript], *, kills: int, seed: int) -> None:
        self._child, self._transcripts, self._kills = child, transcripts, kills
        self._dice = Dice(seed)
        self.kills = 0
        self.player: Player | None = None

    async def play(self, *, run: str, concurrency: int) -> Outcome:
        """Play, kill, restart; then read everything back from the last incarnation."""
        async with HttpTarget(self._child.url) as target:
            player = self.player = Player(target, run=run, streamed=lambda number: number % 2 == 1, patience_s=_PATIENCE_S)
            try:
                await self._child.start()
                await self._child.ready()
                await self._under_fire(player, concurrency)
                await self._child.ready()
                verdict = total([await _read_back(target, story) for story in player.stories if story.conversation])
                asked, changed = await ask_again(target, player.stories)
            finally:
                await self._child.stop()
        return Outcome(
            seed=self._dice.seed, kills=self.kills, acknowledged=len(player.took_s), replays=player.replayed,
            lost_runs=player.lost_runs, asked_again=asked, changed=changed, verdict=verdict,
        )  # fmt: skip

    def line(self) -> str:
        """How far it is."""
        turns = len(self.player.took_s) if self.player is not None else 0
        return f"{self.kills} of {self._kills} kills, {turns} turns acknowledged"

    async def _under_fire(self, player: Player, concurrency: int) -> None:
        """Playing and killing at once; whichever fails ends both."""
        async with asyncio.TaskGroup() as group:
            playing = group.create_task(player.play(self._endless(), concurrency=concurrency))
            group.create_task(self._kill_until(playing))

    def _endless(self) -> Iterator[Transcript]:
        """The transcripts once, and again for as long as there are kills to come."""
        yield from self._transcripts
        while self.kills < self._kills:
            yield from self._transcripts

    async def _kill_until(self, playing: asyncio.Task[None]) -> None:
        while not playing.done() and self.kills < self._kills:
            if self._dice.between(0, 1) < 0.8:
                await self._child.ready()
            await asyncio.sleep(self._dice.between(0.02, 0.7))
            await self._child.kill()
            self.kills += 1
            await self._child.start()


async def _read_back(target: HttpTarget, story: Story) -> Verdict:
    return compare(f"{story.conversation} ({story.name})", story.said, await target.record(story.conversation))


def free_port() -> int:
    """A port nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
