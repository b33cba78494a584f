"""A whole exchange over fake transports: client bytes in, upstream bytes in, everything may end at any time.

An input is a list of records divided by `BREAK`; the first byte of each says what happens (see `_STEPS`), the rest
are the bytes it happens with. What must hold in the end: no exception, nothing in flight, one record for each
exchange, upstreams got whole well-formed requests, and each answer the client got is one upstream's or gslb's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from gslb.app import health_marks
from gslb.config.load import check_text
from gslb.config.settings import Settings
from gslb.counters import Counters
from gslb.policy.quota import ConcurrencyLimit, ConnectionLimit
from gslb.policy.rate import RateLimit
from gslb.proxy.client import ClientConnection
from gslb.proxy.deadlines import Deadlines
from gslb.proxy.exchange import Exchange
from gslb.proxy.generation import Door, Generation
from gslb.proxy.holding import Holding, hold_rules
from gslb.proxy.listener import Listener
from gslb.proxy.pool import ConnectFailed, EndpointPool
from gslb.proxy.record import LogValues, log_record
from gslb.proxy.upstream import UpstreamConnection
from gslb.routing.affinity import Affinity
from gslb.routing.load import OwnLoad
from gslb.routing.making import Making
from gslb.routing.view import FleetView
from gslb.wire.body_budget import BodyBudget
from tests.support.strict_http import Malformed, Unfinished, answer_in, requests_in

BREAK = b"\x00|"
_MAX_RECORDS = 60
_CONFIG = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
edge: {location: "aws:eu-central-1"}
geo: {overrides: {"127.0.0.0/8": "aws:eu-central-1"}}
models: {nick: {target: m}}
timeouts: {total: 300s}
limits: {head_bytes: 4KiB, header_count: 30, body_bytes: 8KiB}
regions:
  eu: {location: "aws:eu-central-1", endpoints: [{url: "http://127.0.0.1:1", models: [m], capacity: 3}]}
  us: {location: "aws:us-east-1", endpoints: [{url: "http://127.0.0.1:2", models: [m], capacity: 2}]}
"""


@cache
def _settings() -> Settings:
    return check_text(_CONFIG, "fuzz.yaml", {}, Path())


class Loop:
    """A clock that is moved by hand."""

    def __init__(self, world: World) -> None:
        self.now_s = 100.0
        self._world = world
        self._timers: list[Any] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._world.later.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], object], *args: object) -> Any:
        timer = SimpleNamespace(at_s=self.now_s + delay_s, callback=callback)
        timer.cancel = lambda: self._timers.remove(timer)
        self._timers.append(timer)
        return timer

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise context["exception"]

    def fire(self) -> None:
        """Call what is due."""
        for timer in [timer for timer in self._timers if timer.at_s <= self.now_s]:
            self._timers.remove(timer)
            timer.callback()


class HandTicked(Loop):
    """The same for the deadline ring, whose ticks are called one by one."""

    def time(self) -> float:
        return self._world.loop.now_s

    def call_later(self, delay_s: float, callback: object, *args: object) -> Any:
        return SimpleNamespace(cancel=lambda: None)


class Transport:
    """What both sides need of a transport; an end is told later, as a loop does."""

    def __init__(self, world: World, protocol: Any) -> None:
        self._world = world
        self._protocol = protocol
        self.segments: list[bytes] = []
        self.is_paused = self.is_ended = False
        self.kept_back = b""

    @property
    def written(self) -> bytes:
        return b"".join(self.segments)

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 4000) if name == "peername" else None

    def write(self, data: bytes) -> None:
        assert data, "an empty write is a wasted call"
        if not self.is_ended:
            self.segments.append(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def is_reading(self) -> bool:
        return not self.is_paused

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False
        if self.kept_back:
            data, self.kept_back = self.kept_back, b""
            self._world.later.append(lambda: self.receive(data))

    def receive(self, data: bytes) -> None:
        """Bytes arrive."""
        if self.is_ended or not data:
            return
        if self.is_paused:
            self.kept_back += data
        else:
            self._protocol.data_received(data)

    def close(self) -> None:
        self.end(None)

    def abort(self) -> None:
        self.end(None)

    def end(self, error: Exception | None) -> None:
        """Tell the end, once."""
        if not self.is_ended:
            self.is_ended = True
            self._world.later.append(lambda: self._protocol.connection_lost(error))


class Pool(EndpointPool):
    """A pool whose connections are opened by the world."""

    def __init__(self, world: World, url: str) -> None:
        super().__init__(cast(asyncio.AbstractEventLoop, world.loop), url)
        self._world = world

    def open(self, done: Callable[[UpstreamConnection | ConnectFailed], None]) -> Any:
        waiting = SimpleNamespace(pool=self, done=done)
        waiting.cancel = lambda: self._world.opening.remove(waiting)
        self._world.opening.append(waiting)
        return waiting


class Upstream:
    """One upstream connection: what each of its requests was answered."""

    def __init__(self, world: World, pool: Pool) -> None:
        self.connection = UpstreamConnection(pool)
        self.transport = Transport(world, self.connection)
        self.answers: list[bytes] = []
        self.is_closed = False
        self.connection.connection_made(cast(asyncio.Transport, self.transport))

    def receive(self, data: bytes) -> None:
        while len(self.answers) < self.connection.requests:
            self.answers.append(b"")
        if self.answers and not self.transport.is_ended:
            self.answers[-1] += data
        self.transport.receive(data)

    def payloads(self) -> list[bytes]:
        """What a strict reading finds in its answers."""
        found = []
        for raw in self.answers:
            try:
                found.append(answer_in(raw, is_closed=True)[0].body)
            except (Malformed, Unfinished) as cut:
                found.append(cut.payload)
        return found


class World:
    """One client connection, two endpoints, and a clock."""

    def __init__(self) -> None:
        settings = _settings()
        self.later: list[Callable[[], object]] = []
        self.loop = Loop(self)
        self.taken = 0
        """Places that others have, at each endpoint."""
        self.opening: list[Any] = []
        self.upstreams: list[Upstream] = []
        self.begun: list[Exchange] = []
        self.records: list[dict[str, object]] = []
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.fleet = FleetView(health_marks(settings))
        self.fleet.configure(settings.endpoints, health_marks(settings))
        for endpoint in settings.endpoints:
            self.fleet.probe_passed(endpoint.key, 100.0)
        self.deadlines = Deadlines(cast(asyncio.AbstractEventLoop, HandTicked(self)))
        log = SimpleNamespace(is_on=True, write=self._record)
        counters = Counters()
        self.body_budget = BodyBudget(settings.config.limits.buffered_bytes)
        self.door = Door(
            loop, self.fleet, counters, cast(Any, log), self.deadlines, lambda: 1e9, lambda key: None,
            ConcurrencyLimit(counters.tenant_running), RateLimit(), ConnectionLimit(), self.body_budget, OwnLoad(),
            Holding(loop), Affinity(),
        )  # fmt: skip
        self.pools = {endpoint.key: Pool(self, endpoint.url) for endpoint in settings.endpoints}
        self.door.holding.queue.rules = hold_rules(settings, 1)
        self.listener = Listener(Generation(self.door, settings, self.pools, Making(Random(1))))
        self.client = ClientConnection(self.listener)
        self.transport = Transport(self, self.client)
        self.client.connection_made(cast(asyncio.Transport, self.transport))

    def _record(self, values: LogValues) -> None:
        self.records.append(log_record(values))

    def make_exchange(self, *args: Any) -> Exchange:
        """Count what begins."""
        exchange = Exchange(*args)
        self.begun.append(exchange)
        return exchange

    def take_places(self, count: int) -> None:
        """From now on others have `count` places at each endpoint."""
        for view in self.fleet.snapshot.endpoints:
            view.own.add(count - self.taken, 0)
        self.taken = count
        self.door.holding.room_may_have_come()

    def settle(self) -> None:
        """Let happen what a loop would do next."""
        for _ in range(1000):
            if not self.later:
                return
            self.later.pop(0)()
        raise AssertionError("it never settles")

    def upstream(self, payload: bytes) -> tuple[Upstream | None, bytes]:
        """The upstream connection a record is about: the youngest, or the n-th for a leading digit and colon."""
        if payload[1:2] == b":" and payload[:1].isdigit():
            number = int(payload[:1])
            return (self.upstreams[number] if number < len(self.upstreams) else None), payload[2:]
        return (self.upstreams[-1] if self.upstreams else None), payload


def _client_sends(world: World, payload: bytes) -> None:
    world.transport.receive(payload)


def _client_sends_bytewise(world: World, payload: bytes) -> None:
    for i in range(min(len(payload), 400)):
        world.transport.receive(payload[i : i + 1])


def _upstream_sends(world: World, payload: bytes) -> None:
    one, data = world.upstream(payload)
    if one is not None:
        one.receive(data)


def _upstream_sends_bytewise(world: World, payload: bytes) -> None:
    one, data = world.upstream(payload)
    for i in range(min(len(data), 400)):
        if one is not None:
            one.receive(data[i : i + 1])


def _connected(world: World, payload: bytes) -> None:
    if world.opening:
        waiting = world.opening.pop(0)
        world.upstreams.append(Upstream(world, waiting.pool))
        waiting.done(world.upstreams[-1].connection)


def _not_connected(world: World, payload: bytes) -> None:
    if world.opening:
        world.opening.pop(0).done(ConnectFailed("connect_error", "refused"))


def _upstream_closes(world: World, payload: bytes) -> None:
    one, _ = world.upstream(payload)
    if one is not None and not one.transport.is_ended:
        one.connection.eof_received()
        one.transport.end(None)


def _upstream_resets(world: World, payload: bytes) -> None:
    one, _ = world.upstream(payload)
    if one is not None:
        one.transport.end(ConnectionResetError())


def _client_closes(world: World, payload: bytes) -> None:
    if not world.transport.is_ended and not world.client.eof_received():
        world.transport.close()


def _client_resets(world: World, payload: bytes) -> None:
    world.transport.end(ConnectionResetError())


def _time_passes(world: World, payload: bytes) -> None:
    world.loop.now_s += (0.5, 6.0, 16.0, 70.0, 700.0)[len(payload) % 5]
    for _ in range(51):
        world.deadlines._tick()
    world.loop.fire()


def _client_is_slow(world: World, payload: bytes) -> None:
    if not world.transport.is_ended:
        world.client.pause_writing()


def _client_reads_on(world: World, payload: bytes) -> None:
    if not world.transport.is_ended:
        world.client.resume_writing()


def _edge_stops(world: World, payload: bytes) -> None:
    world.door.is_stopping = True
    world.listener.stop_idle()
    if payload:
        world.listener.stop_all()


def _reloads(world: World, payload: bytes) -> None:
    world.listener.generation = Generation(world.door, _settings(), world.pools, Making(Random(2)))


def _places_are_taken(world: World, payload: bytes) -> None:
    world.take_places(len(payload) % 4)


_STEPS: dict[bytes, Callable[[World, bytes], None]] = {
    b"c": _client_sends, b"C": _client_sends_bytewise, b"u": _upstream_sends, b"U": _upstream_sends_bytewise,
    b"o": _connected, b"n": _not_connected, b"e": _upstream_closes, b"r": _upstream_resets, b"E": _client_closes,
    b"R": _client_resets, b"t": _time_passes, b"p": _client_is_slow, b"q": _client_reads_on, b"s": _edge_stops,
    b"g": _reloads, b"f": _places_are_taken,
}  # fmt: skip


def check_exchange(data: bytes) -> None:
    """Play an input, end everything, and see what is left."""
    world = World()
    with patch("gslb.proxy.client.Exchange", world.make_exchange):
        for record in data.split(BREAK)[:_MAX_RECORDS]:
            step = _STEPS.get(record[:1])
            if step is not None:
                step(world, record[1:])
                world.settle()
        _client_resets(world, b"")
        world.settle()
        world.take_places(0)
        for one in world.upstreams:
            one.transport.end(None)
        world.settle()
    _check_left_over(world)
    _check_upstreams(world)
    _check_client(world)


def _check_left_over(world: World) -> None:
    counters = world.door.counters
    assert counters.open_exchanges == counters.open_connections == 0
    assert not world.opening
    assert world.body_budget.held_bytes == len(world.door.holding.queue) == 0
    assert len(world.records) == len(world.begun) == sum(counters.requests.values())
    for view in world.fleet.snapshot.endpoints:
        assert view.own.requests == view.own.pending_tokens == 0
    assert sum(counters.attempts.values()) == sum(exchange.attempts for exchange in world.begun)


def _check_upstreams(world: World) -> None:
    for one in world.upstreams:
        requests, is_whole = requests_in(one.transport.written)
        assert is_whole, "an upstream got something else than requests"
        assert len(requests) == one.connection.requests, "an upstream got another number of requests"


def _before_error(payload: bytes) -> bytes:
    """A cut stream's payload without the event that tells of the cut."""
    return payload.partition(b"event: error\n")[0].partition(b'data: {"error":')[0]


def _check_client(world: World) -> None:
    """Each answer is one upstream's payload, whole or, the last one, cut; or it is gslb's own."""
    theirs = [payload for one in world.upstreams for payload in one.payloads()]
    raw = world.transport.written
    answers = 0
    while raw.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n"):
        is_head = answers < len(world.begun) and world.begun[answers].head.method == b"HEAD"
        answers += 1
        assert answers <= len(world.begun), "an answer nobody asked for"
        try:
            message, raw = answer_in(raw, is_closed=True, is_head=is_head)
        except Unfinished as cut:
            payload = _before_error(cut.payload)
            assert not payload or any(one.startswith(payload) for one in theirs), payload
            return
        if message.all(b"server") == [b"gslb"] or is_head:
            continue
        if message.ends_at_close:
            assert any(one.startswith(_before_error(message.body)[:64]) for one in theirs)
        else:
            assert message.body in theirs, message.body
