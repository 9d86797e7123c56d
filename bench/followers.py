"""Readers of streams: what 5,000 idle ones cost, how fast one event reaches them, whether stalled ones hold anybody up.

    python -m bench.followers [--sockets 5000] [--idle-s 30] [--rounds 5] [--dir FOLDER]

A real server in a process of its own, raw sockets in another one. Targets: idle ≤ 300 MB, ≤ 20 store reads/s, ≤ 3 % of a
core; one event at everybody in ≤ 1 s (p99); with 100 stalled sockets the producer is ≥ 0.95 as fast, RSS ≤ +30 MB; a
dropped reader has its next event in < 50 ms (p50). Absolute figures belong to this machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bench import children


class Figure(NamedTuple):
    what: str
    value: float
    target: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.target if self.at_least else self.value <= self.target

    def __str__(self) -> str:
        sign, word = ("≥" if self.at_least else "≤"), "MET" if self.met else "MISSED"
        return f"{self.what:58} {self.value:9.2f} {self.unit:8} {sign} {self.target:g}   {word}"


# ── the measurement ─────────────────────────────────────────────────────────────────────────────────────────────────


class Child(children.Child):
    """A process of this measurement."""

    def __init__(self, *arguments: str) -> None:
        super().__init__("bench.ends", *arguments)

    def ask(self, *order: Any) -> Any:
        self.tell(order[0] if order == ("stats",) else json.dumps(order))
        return self.answer()


class Bench:
    """A server, a crowd, and what was found."""

    def __init__(self, folder: Path, *, sockets: int, idle_s: float, rounds: int) -> None:
        self.sockets, self.idle_s, self.rounds = sockets, idle_s, rounds
        self.folder, self.crowd = folder, Child("crowd")
        self.figures: list[Figure] = []

    def close(self) -> None:
        for child in (self.crowd, self.server):
            child.end()

    def run(self) -> list[Figure]:
        for part in (self.same_run, self.own_runs, self.stalled, self.resume):
            self.server = Child("serve", str(self.folder / part.__name__))
            self.url = self.server.answer()
            part()
            self.server.end()
        return self.figures

    def note(self, what: str, value: float, target: float, unit: str, *, at_least: bool = False) -> None:
        self.figures.append(Figure(what, value, target, unit, at_least))
        print(self.figures[-1], flush=True)

    def same_run(self) -> None:
        """Everybody follows one run that says something now and then."""
        run, cursor = self.begin("told")
        self.crowd.ask("open", self.url, [f"/v1/runs/{run}/events"] * self.sockets, cursor)
        self.idle(f"{self.sockets} idle followers of one run")
        waited = list[float]()
        for _ in range(max(self.rounds, 3)):
            self.server.tell("say")
            heard = self.crowd.ask("heard", self.sockets)
            assert len(heard) == self.sockets, f"{len(heard)} of {self.sockets} heard it"
            waited += heard
        self.note("one event at all of them, p99", quantile(waited, 0.99), 1000, "ms")
        self.server.tell("end")
        self.crowd.ask("leave")
        self.ended(run)

    def own_runs(self) -> None:
        """Everybody follows a run of its own; all of these wait for an approval."""
        runs = [self.begin("asks")[0] for _ in range(self.sockets)]
        self.crowd.ask("open", self.url, [f"/v1/runs/{run}/events" for run in runs], "")
        self.idle(f"{self.sockets} idle followers of their own runs")
        self.crowd.ask("leave")

    def idle(self, what: str) -> None:
        time.sleep(6)  # a process that begins to watch looks at everything once more after 5 s
        before, began = self.server.ask("stats"), time.monotonic()
        time.sleep(self.idle_s)
        after, took = self.server.ask("stats"), time.monotonic() - began
        self.note(f"{what}: RSS", after["rss"], 300, "MB")
        self.note(f"{what}: store reads", (after["reads"] - before["reads"]) / took, 20, "/s")
        self.note(f"{what}: CPU", 100 * (after["cpu"] - before["cpu"]) / took, 3, "% core")

    def stalled(self, count: int = 100) -> None:
        """A producer at full speed, with and without sockets that do not read: in turn, under one load of the machine."""
        ratios, grown = list[float](), list[float]()
        for _ in range(self.rounds):
            alone, usual = self.shout(0)
            beside, more = self.shout(count)
            ratios.append(beside / alone)
            grown.append(more - usual)
        self.note(f"producer beside {count} stalled sockets", statistics.median(ratios), 0.95, "×", at_least=True)
        self.note(f"RSS for {count} stalled sockets", statistics.median(grown), 30, "MB")

    def shout(self, stalled: int, seconds: float = 1.0) -> tuple[float, float]:
        """Pieces per second once the sockets stand still, and by how many MB the server grew until then."""
        run, _ = self.begin("loud")
        before = self.server.ask("stats")
        self.crowd.ask("stall", self.url, f"/v1/runs/{run}/events", stalled)
        time.sleep(seconds)
        first, began = self.server.ask("stats"), time.monotonic()
        assert first["blocked"] >= stalled * 0.9, f"{first['blocked']} of {stalled} stand still"
        time.sleep(seconds)
        last, took = self.server.ask("stats"), time.monotonic() - began
        self.server.tell("quiet")
        self.ended(run)
        self.crowd.ask("leave")
        return (last["pieces"] - first["pieces"]) / took, first["rss"] - before["rss"]

    def resume(self, times: int = 60) -> None:
        """A reader that was cut comes back with its cursor: until it has the next event."""
        run, _ = self.begin("told")
        for _ in range(times):
            self.server.tell("say")
            time.sleep(0.04)  # each becomes an event of its own
        waited = list[float]()
        for cursor in self.cursors(run, times - 5)[:times]:
            began = time.monotonic()
            next(self.lines(run, cursor))
            waited.append((time.monotonic() - began) * 1000)
        self.note("a dropped reader has its next event, p50", statistics.median(waited), 50, "ms")
        self.server.tell("end")

    # ── asking the server ───────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, agent: str) -> tuple[str, str]:
        """A run in the background, and the cursor after what it says first."""
        made = self.asked("POST", "responses", json.dumps({"model": agent, "input": "x", "background": True}))
        run = "run_" + made["id"][5:]
        return run, self.cursors(run, 1)[-1] if agent == "told" else ""

    def ended(self, run: str) -> None:
        while self.asked("GET", f"runs/{run}")["status"] == "in_progress":
            time.sleep(0.05)

    def asked(self, method: str, path: str, body: str = "") -> Any:
        with self.connected() as made:
            head = f"{method} /v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
            made.sendall((head + body).encode())
            answer = b"".join(iter(lambda: made.recv(65536), b""))
        return json.loads(answer.partition(b"\r\n\r\n")[2])

    def cursors(self, run: str, deltas: int) -> list[str]:
        """The cursors up to so many deltas."""
        found = list[str]()
        for line in self.lines(run, ""):
            if line.startswith("id: "):
                found.append(line[4:])
            if line == "event: response.output_text.delta":
                deltas -= 1
                if not deltas:
                    break
        return found

    def lines(self, run: str, cursor: str) -> Iterator[str]:
        """The lines of a stream's events, as they come."""
        with self.connected() as made:
            made.sendall(f"GET /v1/runs/{run}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nLast-Event-ID: {cursor}\r\n\r\n".encode())
            with made.makefile("r", encoding="utf-8", newline="\n") as file:
                for line in file:
                    if line.startswith(("id: ", "event: ", "data: ")):
                        yield line.rstrip("\n")

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        place = urlsplit(self.url)
        with socket.create_connection((place.hostname, place.port), timeout=30) as made:
            yield made


def quantile(values: Sequence[float], at: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * at))]


def measure(folder: Path, *, sockets: int, idle_s: float, rounds: int) -> list[Figure]:
    """Every figure, with so many sockets."""
    bench = Bench(folder, sockets=sockets, idle_s=idle_s, rounds=rounds)
    try:
        return bench.run()
    finally:
        bench.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sockets", type=int, default=5000)
    parser.add_argument("--idle-s", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="followers-", dir=args.dir))
    try:
        missed = [
            figure for figure in measure(folder, sockets=args.sockets, idle_s=args.idle_s, rounds=args.rounds) if not figure.met
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
