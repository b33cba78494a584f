"""TLS towards clients and towards endpoints: FC-06, and clients that never get through a handshake."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from gslb.proxy.unsent import has_unsent
from tests.support.authority import Authority
from tests.support.edge import RunningEdge, config_of
from tests.support.raw_client import RawClient, Tap, chat, connected_socket, request, until
from tests.support.raw_upstream import DONE, LAST, SSE_HEAD, RawUpstream, chunk, event
from tests.system.conftest import MakeEdge, MakeUpstream
from tests.system.tls import LOCALHOST, Rotating, section

ASK = request(chat())
STREAM = request(chat(stream=True))


async def serial_shown(running: RunningEdge) -> str:
    """The serial number of the certificate a new handshake is shown."""
    client = await running.connect()
    assert client.transport is not None
    shown = client.transport.get_extra_info("peercert")
    client.close()
    return str(shown["serialNumber"])


def https(one: RawUpstream, authority: Authority, **more: Any) -> dict[str, Any]:
    return {"url": one.url, "tls_ca_file": str(authority.ca_file), **more}


# --- endpoints ----------------------------------------------------------------------------------------


async def test_fc_06_a_the_configured_name_is_asked_for_and_verified(
    edge: MakeEdge, upstream: MakeUpstream, authority: Authority
) -> None:
    asked: list[str | None] = []
    one = await upstream(tls=authority.serving(authority.issue("DNS:vllm-eu.internal"), asked))
    running = await edge({"eu": [https(one, authority, tls_server_name="vllm-eu.internal")]})
    found = await running.ask(request(chat(), fields=(("Host", "api.example"),)))
    assert found.status == 200
    assert set(asked) == {"vllm-eu.internal"}
    assert one.requests[0].one("host") == f"127.0.0.1:{one.port}"


async def test_fc_06_b_an_address_is_verified_and_not_asked_for(
    edge: MakeEdge, upstream: MakeUpstream, authority: Authority
) -> None:
    asked: list[str | None] = []
    one = await upstream(tls=authority.serving(authority.issue("IP:127.0.0.1"), asked))
    running = await edge({"eu": [https(one, authority)]})
    assert (await running.ask(ASK)).status == 200
    assert set(asked) == {None}


@pytest.mark.parametrize("wrong", ["name", "address", "authority"])
async def test_fc_06_c_a_wrong_certificate_is_a_failed_connect(
    wrong: str, edge: MakeEdge, upstream: MakeUpstream, authority: Authority, tmp_path: Path
) -> None:
    signer = Authority(tmp_path / "other", "another") if wrong == "authority" else authority
    names = {"name": "DNS:localhost", "address": "IP:127.0.0.2", "authority": "IP:127.0.0.1"}
    u1 = await upstream(tls=signer.serving(signer.issue(names[wrong])), models=())
    u2 = await upstream(tls=authority.serving(authority.issue("IP:127.0.0.1")))
    # Declared, as nothing can be learnt from an endpoint that proves to be another; and not to be ejected at once.
    first = https(u1, authority, models=["m"])
    running = await edge({"eu": [first], "us": [https(u2, authority)]}, health={"fall": 3})
    for view in running.edge.fleet.snapshot.endpoints:
        running.edge.fleet.probe_passed(view.endpoint.key, running.edge.now_s())
    found = await running.ask(ASK)
    assert (found.status, found.one("x-gslb-region")) == (200, "us")
    assert running.attempts() == {("eu", "tls_error"): 1, ("us", "ok"): 1}
    assert found.one("x-gslb-attempts") == "2"
    assert running.failures(u1) == 1
    assert u1.requests == []
    assert all(not link.received for link in u1.links), "not a byte of HTTP"


async def test_a_client_certificate_is_shown_to_endpoints_that_ask(
    edge: MakeEdge, upstream: MakeUpstream, authority: Authority
) -> None:
    context = authority.serving(authority.issue("IP:127.0.0.1"))
    context.load_verify_locations(authority.ca_file)
    context.verify_mode = ssl.CERT_REQUIRED
    one = await upstream(tls=context)
    cert, key = authority.issue("DNS:edge")
    running = await edge({"eu": [https(one, authority, tls_cert_file=str(cert), tls_key_file=str(key))]})
    assert (await running.ask(ASK)).status == 200


async def test_tls_below_1_2_is_refused(edge: MakeEdge, upstream: MakeUpstream, authority: Authority) -> None:
    context = authority.serving(authority.issue("IP:127.0.0.1"))
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    one = await upstream(tls=context)
    running = await edge({"eu": [https(one, authority, models=["m"])]})
    assert (await running.ask(ASK)).status == 503
    assert running.attempts() == {("eu", "tls_error"): 1}


async def test_endpoints_of_equal_settings_share_a_context_and_a_new_authority_is_used(
    edge: MakeEdge, upstream: MakeUpstream, authority: Authority, tmp_path: Path
) -> None:
    pair = authority.issue("IP:127.0.0.1")
    eu, us = await upstream(tls=authority.serving(pair)), await upstream(tls=authority.serving(pair))
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(authority.ca_file.read_text())
    fleet: dict[str, Any] = {
        "eu": [{"url": eu.url, "tls_ca_file": str(trusted)}], "us": [{"url": us.url, "tls_ca_file": str(trusted)}]
    }  # fmt: skip
    running = await edge(fleet)
    client = await running.connect()
    assert (await client.ask(ASK)).status == 200
    pools = running.pool(eu), running.pool(us)
    assert pools[0]._tls is pools[1]._tls
    assert running.reload(config_of(fleet)) == []
    assert (running.pool(eu), running.pool(us)) == pools, "the same files: warm connections stay"
    trusted.write_text(Authority(tmp_path / "other", "another").ca_file.read_text())
    assert running.reload(config_of(fleet)) == []
    assert running.pool(eu) is not pools[0]
    assert (await client.ask(ASK)).status == 503
    assert not any(result == "ok" for _, result in list(running.attempts())[1:])


@pytest.mark.parametrize("says_goodbye", [True, False])
async def test_fc_08_over_tls_only_close_notify_ends_an_answer_without_length(
    says_goodbye: bool, edge: MakeEdge, upstream: MakeUpstream, authority: Authority
) -> None:
    """RFC 9112 section 9.8: anyone on the way can forge the end of a TCP connection."""
    gate = asyncio.Event()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    one = await upstream([head + event("A"), gate, "fin"], tls=authority.serving(authority.issue("IP:127.0.0.1")))
    running = await edge({"eu": [https(one, authority)]})
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: found.body)
    if not says_goodbye:
        (link,) = one.asked
        assert link.transport is not None
        link.transport.abort()
    gate.set()
    await until(lambda: running.records())
    assert (await running.record())["outcome"] == ("ok" if says_goodbye else "upstream_truncated")
    await until(lambda: found.is_complete or client.ended)
    assert found.is_complete is says_goodbye


# --- clients ------------------------------------------------------------------------------------------


async def test_a_request_over_tls(secure_edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await secure_edge({"eu": [one]})
    client = await running.connect()
    for _ in range(3):
        assert (await client.ask(ASK)).status == 200
    assert one.requests[0].one("x-forwarded-proto") == "https"
    assert one.requests[0].one("x-forwarded-for") == "127.0.0.1"
    client.close()
    await until(lambda: running.edge.counters.open_connections == 0)


async def test_the_name_asked_for_picks_the_certificate(
    edge: MakeEdge, upstream: MakeUpstream, authority: Authority
) -> None:
    pairs = authority.issue(*LOCALHOST), authority.issue("DNS:*.gslb.example"), authority.issue("DNS:api.example")
    running = await edge({"eu": [await upstream()]}, tls=section(*pairs))
    for name in ("localhost", "eu.gslb.example", "api.example"):
        client = await RawClient.connect(running.port, tls=authority.trusting(), name=name)
        assert (await client.ask(request(method="GET", path="/v1/models"))).status == 200
        client.close()
    with pytest.raises(ssl.SSLCertVerificationError):
        await RawClient.connect(running.port, tls=authority.trusting(), name="a.b.gslb.example")


async def test_clients_that_must_show_a_certificate(
    edge: MakeEdge, upstream: MakeUpstream, authority: Authority, localhost: tuple[Path, Path]
) -> None:
    tls = section(localhost, client_ca_file=str(authority.ca_file))
    running = await edge({"eu": [await upstream()]}, tls=tls)
    running.tls = authority.trusting(authority.issue("DNS:somebody"))
    assert (await running.ask(ASK)).status == 200
    stranger = await RawClient.connect(running.port, tls=authority.trusting())
    stranger.write(ASK)
    await until(lambda: stranger.is_closed, "being turned away")
    assert not stranger.received
    assert running.edge.counters.tls_handshake_failures == 1


async def test_a_proxy_header_comes_before_the_handshake(
    edge: MakeEdge, upstream: MakeUpstream, authority: Authority, localhost: tuple[Path, Path]
) -> None:
    one = await upstream()
    geo = {"overrides": {"0.0.0.0/0": "Frankfurt"}, "proxy_protocol": True, "trusted_proxies": ["127.0.0.0/8"]}
    running = await edge({"eu": [one]}, tls=section(localhost), geo=geo)
    loop = asyncio.get_running_loop()
    for cut in (None, 3, 20):
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", running.port))
        header = b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 443\r\n"
        await loop.sock_sendall(sock, header[:cut])
        if cut is not None:
            await asyncio.sleep(0.02)
            await loop.sock_sendall(sock, header[cut:])
        _, client = await loop.create_connection(
            RawClient, sock=sock, ssl=authority.trusting(), server_hostname="localhost"
        )
        assert (await client.ask(ASK)).status == 200
        client.close()
    assert {got.one("x-forwarded-for") for got in one.requests} == {"203.0.113.9"}
    bare = await RawClient.connect(running.port)
    bare.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    await until(lambda: bare.ended, "a connection without the header to be closed")


@pytest.mark.parametrize(
    "first", [ASK, b"\x00" * 40, b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x01\xff\xff" + b"x" * 70000]
)
async def test_what_is_no_handshake_is_closed(first: bytes, secure_edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream()
    running = await secure_edge({"eu": [one]})
    plain = await RawClient.connect(running.port)
    plain.write(first)
    await until(lambda: plain.ended, "the connection to be closed")
    assert not bytes(plain.received).startswith(b"HTTP")
    await until(lambda: running.edge.counters.tls_handshake_failures == 1)
    assert (await running.ask(ASK)).status == 200
    assert len(one.requests) == 1


async def test_200_handshakes_that_never_end(
    secure_edge: MakeEdge, upstream: MakeUpstream, authority: Authority
) -> None:
    running = await secure_edge({"eu": [await upstream()]}, timeouts={"tls_handshake": "700ms"})
    hello = client_hello(authority)
    halves = [await RawClient.connect(running.port) for _ in range(200)]
    for number, half in enumerate(halves):
        half.write(hello[: (0, 1, 5, 60, len(hello))[number % 5]])
    assert (await running.ask(ASK)).status == 200, "others get through meanwhile"
    await until(lambda: all(half.ended for half in halves), "all to be dropped")
    await until(lambda: running.edge.counters.tls_handshake_failures == 200)
    server: Any = running.edge._data._server
    await until(lambda: server.handshakes == 0)
    assert running.edge.counters.open_connections == 0 or (await running.ask(ASK)).status == 200
    assert {record["status"] for record in running.records()} == {200}, "a handshake is no exchange"


async def test_handshakes_count_as_connections(secure_edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await secure_edge({"eu": [await upstream()]}, limits={"connections": 2})
    halves = [await RawClient.connect(running.port) for _ in range(2)]
    server: Any = running.edge._data._server
    await until(lambda: server.handshakes == 2)
    third = await RawClient.connect(running.port)
    await until(lambda: third.ended, "the third to be closed")
    for half in halves:
        half.close()
    await until(lambda: server.handshakes == 0, "handshakes of clients that left to be over")
    assert (await running.ask(ASK)).status == 200


async def test_a_client_that_never_says_goodbye_is_dropped(
    secure_edge: MakeEdge, upstream: MakeUpstream, authority: Authority
) -> None:
    """The edge closes after its answer; the client stays silent, or talks on, and keeps its side open."""
    running = await secure_edge({"eu": [await upstream()]})
    silent = await Mute.connect(running.port, authority)
    silent.send(request(chat(), fields=(("Connection", "close"),)))
    await until(lambda: silent.ended, "the edge to end the connection", 4)
    await until(lambda: running.edge.counters.open_connections == 0)
    assert b"chat.completion" in silent.plain()


async def test_fc_08_a_cut_answer_to_an_http_10_client_ends_without_close_notify(
    secure_edge: MakeEdge, upstream: MakeUpstream, authority: Authority
) -> None:
    """To HTTP/1.0 an orderly end of TLS would mean a whole answer."""
    running = await secure_edge({"eu": [await upstream([SSE_HEAD + chunk(event("A")), "rst"])]})
    client = await running.connect()
    found = client.send(request(chat(stream=True), version="1.0"))
    await until(lambda: client.is_closed)
    assert client.ended in ("rst", "cut")
    assert bytes(found.body).startswith(event("A"))


async def test_an_answer_before_a_close_comes_whole_to_a_slow_reader(
    secure_edge: MakeEdge, upstream: MakeUpstream, authority: Authority
) -> None:
    """The edge waits for a goodbye, but not at the cost of what it has written."""
    body = bytes(range(256)) * 240  # less than what makes the edge hold the endpoint back
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    running = await secure_edge({"eu": [await upstream([head + body])]})
    client = await Mute.connect(running.port, authority, receive_bytes=16384)
    await until(lambda: running.edge.counters.open_connections == 1)
    (connection,) = running.edge._listener.connections
    transport = connection._transport
    assert transport is not None
    assert client.transport is not None
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    client.transport.pause_reading()
    client.send(request(chat(), fields=(("Connection", "close"),)))
    await until(transport.is_closing, "the edge to close, with some of the answer unsent")
    assert has_unsent(transport)
    await asyncio.sleep(1.5)  # longer than it waits for a goodbye
    client.transport.resume_reading()
    await until(lambda: client.ended, "the end", 30)  # a kernel takes its time over windows this small
    assert client.plain().endswith(body)
    await until(lambda: running.edge.counters.open_connections == 0)


# --- rotation -----------------------------------------------------------------------------------------


async def test_fc_06_d_a_pair_is_renewed_when_both_files_fit(
    edge: MakeEdge, upstream: MakeUpstream, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Rotating(authority, tmp_path)
    first = files.serial
    gate = asyncio.Event()
    one = await upstream([SSE_HEAD + chunk(event("A")), gate, chunk(DONE) + LAST])
    running = await edge({"eu": [one]}, tls=section((files.cert, files.key)), watch=True)
    running.tls = authority.trusting()
    client = await running.connect()
    found = client.send(STREAM)
    await until(lambda: found.body)
    second = files.issue()
    files.put_cert()
    await until(lambda: running.edge.counters.config_reload_failures == 1, "the half-written pair to be noticed")
    assert await serial_shown(running) == first
    for _ in range(4):
        running.edge._watch.look()
    assert await serial_shown(running) == first
    warnings = [line for line in caplog.records if line.name == "gslb" and line.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "tls.certificates[0].key_file" in warnings[0].getMessage()
    assert "not the key" in warnings[0].getMessage()
    files.put_key()
    await until(lambda: running.edge.counters.config_generation == 2, "the whole pair to be noticed")
    assert await serial_shown(running) == second
    gate.set()
    await client.whole(found)
    assert found.body == event("A") + DONE
    assert running.edge.counters.config_reload_failures == 1


async def test_sessions_outlive_a_reload_that_leaves_the_files_alone(
    edge: MakeEdge, upstream: MakeUpstream, authority: Authority, localhost: tuple[Path, Path]
) -> None:
    one = await upstream()
    tls = section(localhost)
    running = await edge({"eu": [one]}, tls=tls)
    before = running.edge.settings().server_tls
    assert running.reload(config_of({"eu": [one]}, tls=tls, limits={"connections": 7})) == []
    after = running.edge.settings().server_tls
    assert before is not None
    assert after is not None
    assert after.context is before.context


async def test_fc_30_tls_is_not_switched_on_or_off_by_a_reload(
    edge: MakeEdge, upstream: MakeUpstream, localhost: tuple[Path, Path]
) -> None:
    one = await upstream()
    running = await edge({"eu": [one]})
    (problem,) = running.reload(config_of({"eu": [one]}, tls=section(localhost)))
    assert "tls.certificates: a change here needs a restart" in problem
    assert (await running.ask(ASK)).status == 200


# --- helpers ------------------------------------------------------------------------------------------


def client_hello(authority: Authority) -> bytes:
    sent = ssl.MemoryBIO()
    side = authority.trusting().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        side.do_handshake()
    return sent.read()


class Mute(Tap):
    """A TLS client by hand that never sends close_notify and never closes."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")

    @classmethod
    async def connect(cls, port: int, authority: Authority, receive_bytes: int = 0) -> Mute:
        sock = await connected_socket(port, receive_bytes)
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(authority.trusting()), sock=sock)
        done = False
        while not done:
            seen = len(client.received)
            try:
                client._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            client.write(client._out.read())
            if not done:
                await until(lambda: len(client.received) > seen)  # noqa: B023 - awaited within the turn
        return client

    def on_data(self, data: bytes) -> None:
        self._in.write(data)

    def send(self, data: bytes) -> None:
        self._tls.write(data)
        self.write(self._out.read())

    def plain(self) -> bytes:
        """All that came, decrypted."""
        found = b""
        try:
            while piece := self._tls.read(65536):
                found += piece
        except ssl.SSLError:
            pass
        return found
