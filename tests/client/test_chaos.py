"""Both clients on a network that fails: whatever it does, every event comes once and every turn is taken once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from stateroom.client import Client, Event, exchange
from stateroom.errors import Unavailable
from tests.client.chaos import Chaos, Fault, between
from tests.client.reading import Calls, exactly_once, on_a_loop, waiting
from tests.server.serving import Gate, Served

BOTH = pytest.mark.parametrize("calls", [waiting, on_a_loop], ids=["waiting", "on_a_loop"])
SILENCE_S = 0.3
SAMPLE = 30  # byte positions beside the edges of events


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a client waits between tries is shown elsewhere."""
    monkeypatch.setattr(exchange, "BACKOFF_S", 0.005)


@pytest.fixture(scope="module")
def chaos(served: Served) -> Iterator[Chaos]:
    with between(served.url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def recorded(served: Served, gate: Gate) -> list[Event]:
    """A run that is over, as a client sees it on a sound network."""
    gate.opened.set()
    with Client(served.url) as client:
        return list(client.stream("hi", agent="pieces"))


def run_of(recorded: list[Event]) -> str:
    return str(recorded[0].body["response"]["id"])


def cuts(chaos: Chaos, recorded: list[Event]) -> list[int]:
    """Where to cut the answer that shows the run: before it, at and beside each edge of an event, and anywhere."""
    waiting(chaos.url, [lambda client: client.follow(run_of(recorded))])
    answer = chaos.answers[-1]
    edges = edges_of(answer)
    assert len(edges) == len(recorded)
    anywhere = random.Random(1).sample(range(len(answer)), SAMPLE)
    return sorted({0, 1, *anywhere, *(edge + by for edge in edges for by in (-1, 0, 1))})


def edges_of(answer: bytes) -> list[int]:
    """Where its events end."""
    return [at + 2 for at in range(len(answer)) if answer[at : at + 2] == b"\n\n"]


@BOTH
@pytest.mark.parametrize("how", ["close", "reset"])
def test_P4_a_connection_cut_anywhere_is_mended(chaos: Chaos, recorded: list[Event], calls: Calls, how: Any) -> None:
    at, before = cuts(chaos, recorded), chaos.connections

    def cut(after: int) -> Any:
        def follow(client: Any) -> Any:
            chaos.faults.append(Fault(how, after))
            return client.follow(run_of(recorded))

        return follow

    for events in calls(chaos.url, [cut(after) for after in at]):
        exactly_once(events, recorded)
    assert chaos.connections >= before + 2 * len(at) - 3  # all but those at the very end had to come back


@BOTH
def test_P4_cut_twice_with_nothing_in_between_at_every_event(chaos: Chaos, recorded: list[Event], calls: Calls) -> None:
    head = chaos_head(chaos, recorded)
    for edge in edges_of(chaos.answers[-1]):
        chaos.faults.extend([Fault("reset", edge), Fault("close", head), Fault("reset", head // 2), Fault("refuse")])
        (events,) = calls(chaos.url, [lambda client: client.follow(run_of(recorded))])
        exactly_once(events, recorded)
        chaos.faults.clear()


def chaos_head(chaos: Chaos, recorded: list[Event]) -> int:
    """How long an answer is before its first event."""
    waiting(chaos.url, [lambda client: client.follow(run_of(recorded))])
    return chaos.answers[-1].index(b"\r\n\r\n") + 4


@BOTH
def test_P4_stalls_and_servers_that_are_out_are_waited_for(chaos: Chaos, recorded: list[Event], calls: Calls) -> None:
    chaos.faults.extend([Fault("stall", 900), Fault("unavailable"), Fault("unavailable"), Fault("refuse"), Fault("stall")])
    (events,) = calls(chaos.url, [lambda client: client.follow(run_of(recorded))], silence_s=SILENCE_S)
    assert not chaos.faults
    exactly_once(events, recorded)


def test_signs_of_life_keep_a_quiet_stream_open(chaos: Chaos, gate: Gate) -> None:
    """Longer than the silence that is allowed, on one connection. (A server looks for them once a second.)"""
    gate.opened.clear()
    opening = threading.Timer(4.0, gate.opened.set)
    opening.start()
    before = chaos.connections
    (events,) = on_a_loop(chaos.url, [lambda client: client.stream("hi", agent="pieces")], silence_s=3.0)
    opening.join()
    assert events[-1].type == "response.completed"
    assert [event.body["sequence_number"] for event in events] == list(range(len(events)))
    assert chaos.connections == before + 1


@BOTH
@pytest.mark.parametrize("after", [0, 100, 700, 2500])
def test_P14_a_turn_whose_answer_is_lost_is_taken_once(
    served: Served, chaos: Chaos, gate: Gate, calls: Calls, after: int
) -> None:
    gate.opened.set()
    asked = gate.asked
    chaos.faults.extend([Fault("reset", after), Fault("close", after // 2), Fault("refuse")])
    (events,) = calls(chaos.url, [lambda client: client.stream("hi", agent="pieces")])
    chaos.faults.clear()
    assert gate.asked == asked + 1
    assert events[-1].type == "response.completed"
    assert [event.body["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.parametrize(
    "faults", [[Fault("reset")], [Fault("close", 20), Fault("refuse")], [Fault("unavailable")], [Fault("stall")]]
)
def test_P14_waiting_for_an_answer_survives_the_same(served: Served, chaos: Chaos, gate: Gate, faults: list[Fault]) -> None:
    gate.opened.set()
    asked = gate.asked
    chaos.faults.extend(faults)
    with Client(chaos.url, silence_s=SILENCE_S) as client:
        reply = client.turn("hi", agent="pieces")
        again = client.run(reply.run)
    assert gate.asked == asked + 1
    assert (reply.status, reply.text) == ("completed", "word0 word1 word2 word3 ")
    assert (again["status"], again["response"]) == ("completed", reply.response)


def test_a_server_that_stays_away_is_told_when_patience_is_over(chaos: Chaos) -> None:
    chaos.faults.extend([Fault("refuse")] * 100)
    started = time.monotonic()
    with Client(chaos.url, patience_s=0.5) as client, pytest.raises(Unavailable) as told:
        client.turn("hi")
    chaos.faults.clear()
    assert told.value.reason == "server_unreachable"
    assert 0.5 <= time.monotonic() - started < 5


def test_a_drop_is_mended_within_50_ms(chaos: Chaos, recorded: list[Event]) -> None:
    """From the last event before it to the first one after it, half of the time: backoff, connection and reading."""
    took = []
    with Client(chaos.url) as client:
        for _ in range(15):
            chaos.faults.append(Fault("reset", 4000))
            came = [time.monotonic() for _ in client.follow(run_of(recorded))]
            took.append(max(after - before for before, after in pairwise(came)))
    assert not chaos.faults
    assert sorted(took)[7] < 0.05, took
