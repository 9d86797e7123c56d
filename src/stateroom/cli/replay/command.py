"""The replay command: what it takes, where it plays, what it prints."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from stateroom import face, ids
from stateroom.backends import urls
from stateroom.cli.extra import load
from stateroom.cli.place import folder_of
from stateroom.cli.replay.compare import compare, total
from stateroom.cli.replay.player import Player, payload
from stateroom.cli.replay.progress import shown
from stateroom.cli.replay.report import Figures, folder_bytes, percentile, show
from stateroom.cli.replay.targets import StoreTarget, Target
from stateroom.cli.terminal import FAILED, OK, count, show_json
from stateroom.errors import InvalidInput, Unavailable
from stateroom.hosting import transcripts
from stateroom.hosting.tape import Tape, TapeAgent
from stateroom.hosting.transcripts import Transcript

SAMPLE = "sample"

_EPILOG = """examples:
  stateroom replay sample                                  the sample that comes along, in a store that is thrown away
  stateroom replay transcripts.jsonl.gz --store sqlite:///stateroom-data --concurrency 8
  stateroom replay sample --url http://127.0.0.1:8700      on a server started with --tape and the same file
  stateroom replay sample --chaos --kills 50 --seed 7      kill a server of its own 50 times meanwhile

FILE has one {"id", "source", "items"} a line, plain or gzipped; 'sample' is a dozen conversations with tool calls.
Exit code 1 when anything that was acknowledged is lost, doubled, moved or changed."""


def add(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "replay", help="play recorded conversations through the whole stack, and compare",
        description="Play recorded conversations turn by turn, each turn with its key, read everything back and compare.",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("file", metavar="FILE", help="transcripts, or 'sample'")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help="play on a running server")
    where.add_argument(
        "--store", metavar="URL", help="play on a store in this process (default: a new one, thrown away afterwards)"
    )
    where.add_argument("--chaos", action="store_true", help="play on a server of its own that is killed at random moments")
    parser.add_argument("--token", default="", help="the bearer token for --url")
    parser.add_argument("--concurrency", type=count, default=8, metavar="N", help="conversations at a time (default %(default)s)")
    parser.add_argument("--limit", type=count, metavar="N", help="only the first N conversations")
    parser.add_argument("--kills", type=count, default=20, metavar="N", help="with --chaos: how often (default %(default)s)")
    parser.add_argument("--seed", type=int, help="with --chaos: makes the moments the same again")
    parser.add_argument("--json", action="store_true", help="for machines: the figures as JSON")
    parser.set_defaults(command=_run)


async def _run(args: argparse.Namespace) -> int:
    played = list(islice(transcripts.read(path_of(args.file)), args.limit))
    if not played:
        raise InvalidInput(f"{args.file} has no conversations.", code="transcripts_missing")
    if args.chaos:
        return await _chaos(args, played)
    return await (_on_server(args, played) if args.url else _in_process(args, played))


def path_of(name: str) -> Path:
    """The file, or the sample that comes with the package."""
    return Path(str(files("stateroom.samples") / "transcripts.jsonl.gz")) if name == SAMPLE else Path(name)


async def _in_process(args: argparse.Namespace, played: list[Transcript]) -> int:
    with tempfile.TemporaryDirectory(prefix="stateroom-replay-") as scratch:
        url = args.store or f"sqlite:///{scratch}/store"
        async with await face.open(url, agents=[TapeAgent(Tape(played))]) as room:
            figures = await _measured(StoreTarget(room), played, args, place=urls.shown(url) if args.store else "a new store")
        return _told(args, figures, folder_of(url) if not args.store else None)


async def _on_server(args: argparse.Namespace, played: list[Transcript]) -> int:
    http = load("stateroom.cli.replay.http")
    async with http.HttpTarget(args.url, token=args.token) as target:
        if not await target.ready():
            raise Unavailable(f"No server is ready at {args.url}.", code="server_unreachable")
        return _told(args, await _measured(target, played, args, place=args.url), None)


async def _measured(target: Target, played: list[Transcript], args: argparse.Namespace, *, place: str) -> Figures:
    """Play, then read everything back and compare."""
    player = Player(target, run=ids.salt().hex()[:8])
    turns = sum(bool(turn.input) for transcript in played for turn in transcript.turns())
    loop = asyncio.get_running_loop()
    started = loop.time()
    with _interruptible(player):
        async with shown(lambda: f"{len(player.took_s)} of {turns} turns, {player.items} items"):
            await player.play(played, concurrency=args.concurrency)
    seconds = loop.time() - started
    verdicts = [
        compare(f"{story.conversation} ({story.name})", story.said, await target.record(story.conversation))
        for story in player.stories
    ]
    return Figures(
        verdict=total(verdicts),
        turns=len(player.took_s),
        seconds=seconds,
        p50_ms=percentile(player.took_s, 0.50) * 1000,
        p99_ms=percentile(player.took_s, 0.99) * 1000,
        payload_bytes=payload(player.stories),
        retries=player.retries,
        interrupted=player.stopping,
        place=place,
    )


def _told(args: argparse.Namespace, figures: Figures, folder: Path | None) -> int:
    disk = None if folder is None else folder_bytes(folder)
    show(msgspec.structs.replace(figures, disk_bytes=disk), as_json=args.json)
    return OK if figures.verdict.good else FAILED


@contextmanager
def _interruptible(player: Player) -> Iterator[None]:
    """Ctrl-C ends the playing after the turns that are going on; a second one ends the command."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        player.stop()

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _chaos(args: argparse.Namespace, played: list[Transcript]) -> int:
    chaos = load("stateroom.cli.replay.chaos")
    folder = Path(tempfile.mkdtemp(prefix="stateroom-chaos-"))
    seed = ids.new_home() if args.seed is None else args.seed
    print(f"seed {seed}; the server's folder is {folder}", file=sys.stderr)
    campaign = chaos.Chaos(chaos.Child(folder, played), played, kills=args.kills, seed=seed)
    async with shown(campaign.line):
        outcome = await campaign.play(run=ids.salt().hex()[:8], concurrency=args.concurrency)
    if args.json:
        show_json(outcome)
    else:
        print(outcome.text())
    if not outcome.good:
        print(f"The store and the server's log are kept in {folder}", file=sys.stderr)
        return FAILED
    shutil.rmtree(folder)
    return OK
