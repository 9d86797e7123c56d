"""Both clients on a network that fails: whatever it does, every event comes once and every turn is taken once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stateroom.client import Client, Event
from stateroom.errors import Unavailable
from tests.client.chaos import Chaos, Fault, between
from tests.client.reading import Calls, exactly_once, on_a_loop, waiting
from tests.server.serving import Gate, Served

BOTH = pytest.mark.parametrize("calls", [waiting, on_a_loop], ids=["waiting", "on_a_loop"])
SILENCE_S = 0.3
SAMPLE = 30  # byte positions beside the edges of events


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
    edges = [at + 2 for at in range(len(answer)) if answer[at : at + 2] == b"\n\n"]
    assert len(edges) == len(recorded)
    anywhere = random.Random(1).sample(range(len(answer)), SAMPLE)
    return sorted({0, 1, *anywhere, *(edge + by for edge in edges for by in (-1, 0, 1))})


@BOTH
@pytest.mark.parametrize("how", ["close", "reset"])
def test_P4_a_connection_cut_anywhere_is_mended(chaos: Chaos, recorded: list[Event], calls: Calls, how: Any) -> None:
    at = cuts(chaos, recorded)
    chaos.faults.extend(Fault(how, after) for after in at)
    # One call after the other: each meets the next cut, and, because most go on after it, the one after that.
    found = calls(chaos.url, [lambda client: client.follow(run_of(recorded)) for _ in at])
    assert not chaos.faults
    for events in found:
        exactly_once(events, recorded)


@BOTH
def test_P4_cut_twice_with_nothing_in_between_at_every_event(chaos: Chaos, recorded: list[Event], calls: Calls) -> None:
    head = chaos_head(chaos, recorded)
    for edge in cuts(chaos, recorded)[::6]:
        chaos.faults.extend(
            [Fault("reset", edge), Fault("close", head), Fault("close", head // 2), Fault("refuse"), Fault("close")]
        )
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


@BOTH
def test_signs_of_life_keep_a_quiet_stream_open(served: Served, chaos: Chaos, gate: Gate, calls: Calls) -> None:
    """Longer than the silence that is allowed, on one connection."""
    gate.opened.clear()
    opening = threading.Timer(3 * SILENCE_S, gate.opened.set)
    opening.start()
    before = chaos.connections
    (events,) = calls(chaos.url, [lambda client: client.stream("hi", agent="pieces")], silence_s=SILENCE_S)
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
    """From the last event before it to the first one after it, half of the time; connection and backoff included."""
    took = []
    with Client(chaos.url) as client:
        for _ in range(21):
            chaos.faults.append(Fault("reset", 4000))
            last = time.monotonic()
            for _ in client.follow(run_of(recorded)):
                took.append(time.monotonic() - last)
                last = time.monotonic()
            if not chaos.faults:
                continue
    longest = sorted(took)[-21:]
    assert sorted(longest)[10] < 0.05, longest
