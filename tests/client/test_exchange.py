"""The core without a network: wherever a stream is cut, and however often, what comes out is exactly 1..n."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from stateroom.client.exchange import BACKOFF_S_MAX, FAULTS_MAX, WELL, Exchange, Request, backoff_s
from stateroom.client.model import Event
from stateroom.clock import FrozenClock
from stateroom.connection.model import Cursor
from stateroom.errors import CursorInvalid, Gone, InvalidInput, NotFound, StateroomError, StorageFull, Unavailable
from stateroom.wire import json
from tests.client.reading import Tape, exactly_once
from tests.server.serving import pieces, serving

RUN = "run_1"


@pytest.fixture(scope="module")
def tape() -> Tape:
    """The stream of a real run, as a real server sends it."""
    with serving(pieces(count=2)) as served, served.client() as http:
        made = http.post("/v1/responses", json={"input": "hi", "stream": True, "background": True})
        return Tape(made.content)


@pytest.fixture(scope="module")
def whole(tape: Tape) -> list[Event]:
    exchange = reader()
    events = list(exchange.feed(tape.whole))
    assert exchange.over
    assert len(events) == len(tape.frames) > 8
    return events


def reader(kind: type[Exchange] = Exchange, *, after: str = "", clock: FrozenClock | None = None) -> Exchange:
    return kind(run=RUN, after=after, clock=clock or FrozenClock(), patience_s=30)


def behind(exchange: Exchange, tape: Tape) -> bytes:
    """What the server sends to the exchange's next request."""
    return tape.behind(exchange.request().headers.get("Last-Event-ID"))


def read_on(exchange: Exchange, tape: Tape) -> Iterator[Event]:
    """To its end; a broken one may not find it."""
    for _ in range(4):
        if not exchange.over:
            yield from exchange.feed(behind(exchange, tape))
            exchange.cut("the stream ended")


def test_P4_a_cut_at_every_byte_of_a_stream_costs_nothing_and_doubles_nothing(tape: Tape, whole: list[Event]) -> None:
    for at in range(len(tape.whole)):
        exchange = reader()
        found = list(exchange.feed(behind(exchange, tape)[:at]))
        exchange.cut("cut")
        found += read_on(exchange, tape)
        exactly_once(found, whole)


@pytest.mark.parametrize("idle", [1, 2, 5])
def test_P4_the_cursor_is_kept_through_connections_that_bring_nothing(tape: Tape, whole: list[Event], idle: int) -> None:
    """Each time cut again before an event came: in the middle of the next one, or with a sign of life only."""
    for seq, _ in tape.frames[:-1]:
        exchange = reader()
        found = list(exchange.feed(tape.whole[: sum(len(frame) for number, frame in tape.frames if number <= seq)]))
        exchange.cut("cut")
        for turn in range(idle):
            found += exchange.feed(behind(exchange, tape)[:40] if turn % 2 else b": still here\n")
            exchange.cut("cut")
        assert exchange.request().headers["Last-Event-ID"] == whole[seq - 1].cursor
        found += read_on(exchange, tape)
        exactly_once(found, whole)


def test_P4_a_cursor_goes_on_in_another_process_and_at_the_end_there_is_nothing_left(tape: Tape, whole: list[Event]) -> None:
    for at, event in enumerate(whole[:-1], 1):
        later = reader(after=event.cursor)
        assert list(read_on(later, tape)) == whole[at:]
    last = reader(after=whole[-1].cursor)
    last.answered(204, {}, b"")
    assert (last.over, last.answer) == (True, None)


def test_half_a_frame_is_no_event(tape: Tape) -> None:
    exchange = reader()
    assert list(exchange.feed(tape.frames[0][1][:-1])) == []
    exchange.cut("cut")
    exchange.request()
    assert list(exchange.feed(b"\n")) == []  # the rest of a frame that belongs to another connection


def test_what_was_seen_is_passed_over_and_what_is_missing_is_asked_for(tape: Tape, whole: list[Event]) -> None:
    frames = [frame for _, frame in tape.frames]
    exchange = reader()
    found = list(exchange.feed(b"".join([frames[0], frames[0], frames[1], frames[0], frames[2]])))
    assert found == whole[:3]
    assert list(exchange.feed(frames[4])) == []
    assert exchange.done
    assert not exchange.over
    assert exchange.request().headers == {"Last-Event-ID": whole[2].cursor}
    exactly_once([*found, *read_on(exchange, tape)], whole)


def test_a_stream_that_cannot_be_read_on_is_told_after_some_tries(tape: Tape) -> None:
    exchange = reader()
    with pytest.raises(StateroomError) as told:
        for _ in range(FAULTS_MAX):
            exchange.request()
            assert list(exchange.feed(tape.frames[1][1])) == []
    assert told.value.reason == "stream_faulty"
    assert "Event 1 is missing" in told.value.message


@pytest.mark.parametrize("frame", [b"id: other.3\n", b"id: 3\n", b"id: \xff.\xff\n"])
def test_an_event_of_another_stream_is_not_taken_for_ours(tape: Tape, whole: list[Event], frame: bytes) -> None:
    exchange = reader()
    assert list(exchange.feed(tape.frames[0][1] + tape.frames[1][1] + frame + b"event: x\ndata: {}\n\n")) == whole[:2]
    assert exchange.done
    exactly_once([*whole[:2], *read_on(exchange, tape)], whole)


def test_P7_a_reader_that_lags_comes_back_to_where_it_was(tape: Tape, whole: list[Event]) -> None:
    exchange = reader()
    lagged = b'event: lagged\ndata: {"cursor":"%s"}\n\n' % whole[5].cursor.encode()
    found = list(exchange.feed(b"".join(frame for _, frame in tape.frames[:3]) + lagged + tape.frames[3][1]))
    assert found == whole[:3]
    assert exchange.wait_s < 0.05
    exactly_once([*found, *read_on(exchange, tape)], whole)


def test_a_fault_that_the_stream_tells_is_tried_again_or_told() -> None:
    def told(code: str) -> bytes:
        body = json.encode({"type": "error", "code": code, "message": "It is gone.", "param": None, "sequence_number": 4})
        return b"event: error\ndata: %s\n\n" % body

    exchange = reader()
    assert list(exchange.feed(told("store_busy"))) == []
    assert (exchange.done, exchange.over) == (True, False)
    exchange.request()
    with pytest.raises(Gone, match="another key"):
        list(exchange.feed(told("answer_not_kept")))


def test_comments_and_frames_without_an_id_move_nothing(tape: Tape, whole: list[Event]) -> None:
    exchange = reader()
    parts = [b": still here\n" + b"event: live\ndata: {}\n\n" + frame for _, frame in tape.frames]
    assert list(exchange.feed(b"".join(parts))) == whole


@pytest.mark.parametrize("given", ["x", "1", "abc.", ".3", "abc.-1", "abc.³"])
def test_a_cursor_that_is_none_is_told_before_anything_is_sent(given: str) -> None:
    with pytest.raises(CursorInvalid):
        reader(after=given)


# ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_P14_a_turn_keeps_its_key_until_its_stream_names_its_run(tape: Tape, whole: list[Event]) -> None:
    first = Request("POST", "/turn", {"key": "k"})
    exchange = Exchange(first, clock=FrozenClock(), patience_s=30)
    for _ in range(3):
        assert exchange.request() == first
        exchange.cut("cut")
    exchange.request()
    found = list(exchange.feed(tape.whole[:2000]))
    exchange.cut("cut")
    run = "run_" + whole[0].body["response"]["id"].removeprefix("resp_")
    assert exchange.request() == Request("GET", f"/v1/runs/{run}/events", {"Last-Event-ID": found[-1].cursor})
    exactly_once([*found, *read_on(exchange, tape)], whole)
    assert exchange.answer == whole[-1].body["response"]


@pytest.mark.parametrize("status", [200, 401, 404])
def test_an_answer_that_takes_long_is_waited_for_while_the_server_is_well(status: int) -> None:
    """However often the connection is cut meanwhile, by silence or by a proxy."""
    clock, first = FrozenClock(), Request("POST", "/turn", {"key": "k"})
    exchange = Exchange(first, clock=clock, patience_s=30)
    for _ in range(100):
        assert exchange.request() == first
        clock.advance(45_000)
        exchange.cut("silence")
        assert exchange.request() == WELL
        exchange.answered(status, {}, b'{"status":"ok"}')
        assert exchange.wait_s == 0
    exchange.request()
    exchange.answered(200, {}, b'{"id":"resp_1"}')
    assert exchange.answer == {"id": "resp_1"}


@pytest.mark.parametrize("well", [True, False])
def test_patience_with_a_server_that_is_not_well_ends(well: bool) -> None:
    """Or that is, and cuts every try at once."""
    clock = FrozenClock()
    exchange = Exchange(Request("POST", "/turn"), clock=clock, patience_s=30)
    with pytest.raises(Unavailable):
        for _ in range(100):
            asked = exchange.request()
            clock.advance(1_000 if well else 45_000)
            if asked == WELL and well:
                exchange.answered(200, {}, b"{}")
            else:
                exchange.cut("cut")


def test_an_answer_ends_it_and_one_that_is_no_JSON_does_not() -> None:
    exchange = Exchange(Request("GET", "/x"), clock=FrozenClock(), patience_s=30)
    exchange.answered(200, {}, b"<html>log in to the network first</html>")
    assert not exchange.over
    exchange.request()
    exchange.answered(200, {}, b'{"id":"run_1"}')
    assert (exchange.over, exchange.answer) == (True, {"id": "run_1"})


# ── patience ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_patience_ends_with_what_was_wrong_and_counts_only_silence(tape: Tape) -> None:
    clock = FrozenClock()
    exchange = reader(clock=clock)
    for _ in range(3):
        exchange.cut("no route")
        clock.advance(20_000)
        list(exchange.feed(b": still here\n"))  # heard: it begins anew
    exchange.cut("no route")
    clock.advance(30_000)
    exchange.cut("no route")
    clock.advance(1)
    with pytest.raises(Unavailable, match="no route") as told:
        exchange.cut("no route")
    assert told.value.reason == "server_unreachable"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 507])
def test_answers_that_pass_are_asked_for_again_as_late_as_the_server_says(status: int) -> None:
    exchange = reader()
    exchange.answered(status, httpx2.Headers({"Retry-After": "7"}), b"busy")
    assert not exchange.over
    assert exchange.wait_s == 7
    exchange.answered(status, httpx2.Headers({"Retry-After": "86400"}), b"busy")
    assert exchange.wait_s == 30
    exchange.answered(status, httpx2.Headers({"Retry-After": "Fri, 1 Jan 2027 00:00:00 GMT"}), b"busy")
    assert exchange.wait_s <= BACKOFF_S_MAX


@pytest.mark.parametrize("seconds", [1, 45])
def test_P6_a_reader_that_was_cut_is_told_when_its_cursor_went(tape: Tape, whole: list[Event], seconds: int) -> None:
    clock = FrozenClock()
    exchange = reader(clock=clock)
    exchange.request()
    assert list(exchange.feed(tape.frames[0][1])) == whole[:1]
    clock.advance(seconds * 1000)
    exchange.cut("cut")
    exchange.request()
    with pytest.raises(Gone):
        exchange.answered(410, {}, b'{"error":{"code":"cursor_gone","message":"It was reset."}}')


def test_a_full_disk_is_waited_for_and_then_told() -> None:
    clock = FrozenClock()
    exchange = reader(clock=clock)
    full = b'{"error":{"code":"storage_full","message":"The disk is full.","type":"server_error","param":null}}'
    exchange.answered(507, {}, full)
    clock.advance(31_000)
    with pytest.raises(StorageFull, match="The disk is full"):
        exchange.answered(507, {}, full)


@pytest.mark.parametrize(("status", "kind"), [(400, InvalidInput), (404, NotFound), (410, Gone), (500, StateroomError)])
def test_answers_that_do_not_pass_are_told_at_once(status: int, kind: type[StateroomError]) -> None:
    exchange = reader()
    with pytest.raises(kind):
        exchange.answered(status, {"x-should-retry": "false"}, b'{"error":{"code":"x","message":"No."}}')


def test_tries_come_later_and_later_and_never_all_at_once() -> None:
    for tries in [*range(12), 10_000]:
        drawn = {backoff_s(tries, progressed=False) for _ in range(50)}
        assert len(drawn) > 10
        assert 0 < min(drawn) <= max(drawn) <= BACKOFF_S_MAX
        assert max(drawn) <= 0.1 * 2 ** min(tries, 20)
    assert max(backoff_s(0, progressed=True) for _ in range(50)) < 0.05  # a drop is mended within 50 ms
    assert backoff_s(1, progressed=True) > 0.05


# ── negative controls: the checker sees what each rule is for ───────────────────────────────────────────────────────


class OffByOne(Exchange):
    """Asks one event too far, and trusts what comes."""

    def request(self) -> Request:
        asked = super().request()
        if self._cursor is not None:
            self._cursor = Cursor(self._cursor.epoch, self._cursor.seq + 1)
            return Request(asked.method, asked.path, {"Last-Event-ID": str(self._cursor)})
        return asked


class Credulous(Exchange):
    """Comes back one event early, and takes whatever it is given."""

    def request(self) -> Request:
        asked = super().request()
        if self._cursor is not None and self._cursor.seq > 1:
            self._cursor = Cursor(self._cursor.epoch, self._cursor.seq - 1)
            return Request(asked.method, asked.path, {"Last-Event-ID": str(self._cursor)})
        return asked


class Hasty(Exchange):
    """Takes the rest of a frame on a new connection for a whole one."""

    def request(self) -> Request:
        frames = self._frames
        asked = super().request()
        self._frames = frames
        return asked


@pytest.mark.parametrize(("broken", "what"), [(OffByOne, "lost"), (Credulous, "doubled"), (Hasty, "")])
def test_P4_a_client_that_is_off_by_one_turns_the_checker_red(
    tape: Tape, whole: list[Event], broken: type[Exchange], what: str
) -> None:
    told = list[str]()
    for at in range(0, len(tape.whole), 97):
        exchange = reader(broken)
        try:
            found = list(exchange.feed(behind(exchange, tape)[:at]))
            exchange.cut("cut")
            found += read_on(exchange, tape)
            exactly_once(found, whole)
        except (AssertionError, StateroomError) as error:
            told.append(str(error))
    assert len(told) > 10
    assert all(what in one for one in told)
