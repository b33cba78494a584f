"""Where a message ends and which fields cross: FC-01 to FC-05 over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.raw_client import Answer, chat, chunked, request, until
from tests.support.raw_upstream import DONE, SSE_HEAD, answer, chunk, event, stream
from tests.system.conftest import MakeEdge, MakeUpstream

GET_MODELS = request(method="GET", path="/v1/models")
BODY = b'{"model":"m","messages":[]}'


def is_model_list(found: Answer) -> bool:
    return found.status == 200 and found.json["object"] == "list"


async def test_the_tests_run_on_the_loop_that_gslb_runs_on() -> None:
    assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")


async def test_fc01_a_an_upstream_error_keeps_its_own_length(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-01 a: an answer's length is that of the body that is sent."""
    fault = b'{"error":{"message":"too long, 41 bytes"}}'[:41]
    one = await upstream([answer(400, fault)])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = await client.ask(request(chat(stream=True)))
    assert (found.status, found.one("content-length"), bytes(found.body)) == (400, "41", fault)
    assert found.one("content-type") == "application/json"
    assert found.one("transfer-encoding") is None
    assert is_model_list(await client.ask(GET_MODELS))


async def test_fc01_b_an_error_of_gslb_has_the_length_of_its_own_body(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-01 b: an answer's length is that of the body that is sent."""
    eu, us = await upstream([answer(503, b"x" * 41)]), await upstream([answer(502, b"y" * 41)])
    running = await edge({"eu": [eu], "us": [us]})
    client = await running.connect()
    found = await client.ask(request(chat(stream=True)))
    assert found.status == 503
    assert found.error["code"] == "no_healthy_region"
    assert is_model_list(await client.ask(GET_MODELS))


FC_02 = {
    "length and chunked": ["Content-Length: 5", "Transfer-Encoding: chunked"],
    "chunked and length": ["Transfer-Encoding: chunked", "Content-Length: 5"],
    "chunked, gzip": ["Transfer-Encoding: chunked, gzip"],
    "chunked twice": ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
    "length twice": ["Content-Length: 3", "Content-Length: 3"],
    "length list": ["Content-Length: 3, 3"],
    "length +3": ["Content-Length: +3"],
    "length 0x3": ["Content-Length: 0x3"],
    "length 3 3": ["Content-Length: 3 3"],
    "length empty": ["Content-Length:"],
    "length -1": ["Content-Length: -1"],
    "length 1e1": ["Content-Length: 1e1"],
    "length huge": ["Content-Length: 99999999999999999999999"],
    "chunked,": ["Transfer-Encoding: chunked,"],
    "x chunked": ["Transfer-Encoding: xchunked"],
    "space before colon": ["Transfer-Encoding : chunked"],
    "folded": ["X-A: b", " chunked", "Transfer-Encoding: chunked"],
    "gzip then chunked on two lines": ["Transfer-Encoding: gzip", "Transfer-Encoding: chunked"],
    "two hosts": ["Host: b", "Content-Length: 0"],
}


@pytest.mark.parametrize("name", FC_02)
async def test_fc02_doubtful_lengths_are_refused_and_reach_nobody(
    name: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-02: doubtful framing is refused and reaches nobody."""
    one = await upstream()
    running = await edge({"eu": [one]})
    client = await running.connect()
    lines = ["POST /v1/chat/completions HTTP/1.1", "Host: a", *FC_02[name]]
    found = await client.ask("\r\n".join(lines).encode() + b"\r\n\r\n0\r\n\r\n" + GET_MODELS)
    assert found.status in ((501, 400) if "chunked" in name else (400,))
    assert found.error["code"] in ("bad_request", "not_implemented")
    assert found.one("connection") == "close"
    assert await client.end() == "fin"
    assert client.unread == b""
    assert one.requests == []
    assert running.failures(one) == 0
    record = await running.record()
    assert (record["status"], record["outcome"], record["attempts"]) == (found.status, "refused", 0)


async def test_fc02_5_a_coding_not_implemented_is_501(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-02 5 and a: doubtful framing is refused and reaches nobody."""
    one = await upstream()
    running = await edge({"eu": [one]})
    client = await running.connect()
    raw = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
    found = await client.ask(raw + GET_MODELS)
    assert (found.status, found.error["code"]) == (501, "not_implemented")
    assert await client.end() == "fin"
    assert client.unread == b""


async def test_fc02_9_chunked_in_http_10_is_faulty(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-02 9: doubtful framing is refused and reaches nobody."""
    one = await upstream()
    running = await edge({"eu": [one]})
    client = await running.connect()
    raw = b"POST /v1/completions HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    found = await client.ask(raw + GET_MODELS)
    assert (found.status, found.error["code"]) == (400, "bad_request")
    assert await client.end() == "fin"
    assert one.requests == []


H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize("way", ["one segment", "body later", "chunked in two pieces", "byte by byte"])
async def test_fc03_an_offered_upgrade_is_ignored_and_the_body_is_kept(
    way: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-03: an offered upgrade is ignored, CONNECT refused."""
    one = await upstream()
    running = await edge({"eu": [one]})
    client = await running.connect()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n{H2C}"
    if way == "chunked in two pieces":
        raw = head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(BODY, 20)
    else:
        raw = head.encode() + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    cut = {"one segment": len(raw), "body later": raw.index(b"\r\n\r\n") + 4}.get(way, len(raw) - 10)
    pieces = [raw[:cut], raw[cut:]] if way != "byte by byte" else [raw[i : i + 1] for i in range(len(raw))]
    found = client.expect()
    for piece in pieces:
        client.write(piece)
        await asyncio.sleep(0)
    await client.whole(found)
    assert found.status == 200
    assert found.interim == []
    (got,) = one.requests
    assert got.body == BODY
    for name in ("upgrade", "http2-settings", "connection", "transfer-encoding"):
        assert got.one(name) is None
    assert is_model_list(await client.ask(GET_MODELS))


async def test_fc03_e_connect_is_refused(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-03 e: an offered upgrade is ignored, CONNECT refused."""
    one = await upstream()
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = await client.ask(b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n" + GET_MODELS)
    assert (found.status, found.error["code"]) == (405, "method_not_allowed")
    assert found.one("allow")
    assert await client.end() == "fin"
    assert client.unread == b""
    assert one.requests == []


async def test_fc04_head_has_no_body_and_the_connection_goes_on(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-04: answers without a body, and HTTP/1.0 clients."""
    running = await edge({"eu": [await upstream()]})
    client = await running.connect()
    found = await client.ask(request(method="HEAD", path="/v1/models"), is_head=True)
    listed = await client.ask(GET_MODELS)
    assert found.status == 200
    assert found.body == b""
    assert found.one("content-length") == str(len(listed.body))


@pytest.mark.parametrize(("status", "length"), [(204, None), (304, "512")])
async def test_fc04_answers_without_a_body(
    status: int, length: str | None, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-04: answers without a body, and HTTP/1.0 clients."""
    fields = b"" if length is None else b"Content-Length: %b\r\n" % length.encode()
    one = await upstream([b"HTTP/1.1 %d Bare\r\n%b\r\n" % (status, fields)])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = await client.ask(request(chat()))
    assert (found.status, bytes(found.body)) == (status, b"")
    assert found.one("content-length") == length
    assert found.one("transfer-encoding") is None
    assert (await client.ask(request(chat()))).status == 200
    assert len(one.asked) == 1, "the upstream connection was reused"


async def test_fc04_e_an_http_10_client_gets_no_chunks(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-04 e: answers without a body, and HTTP/1.0 clients."""
    go_on = asyncio.Event()
    one = await upstream([SSE_HEAD, chunk(event("A")), go_on, chunk(DONE) + b"0\r\n\r\n"])
    running = await edge({"eu": [one]})
    client = await running.connect()
    found = client.send(request(chat(stream=True), version="1.0"))
    await until(lambda: found.body == event("A"), "the first event")
    go_on.set()
    assert await client.end() == "fin"
    assert found.one("transfer-encoding") is None
    assert found.one("content-length") is None
    assert found.one("connection") == "close"
    assert found.body == event("A") + DONE


async def test_fc05_fields_that_end_here_and_fields_that_gslb_writes(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-05: fields that end here, and one line of those that gslb writes."""
    one = await upstream(
        [
            answer(
                200, b"{}", ("Server", "uvicorn"), ("Date", "Mon, 30 Nov 2026 00:00:00 GMT"),
                ("Connection", "keep-alive, X-Up"), ("X-Up", "1"), ("Keep-Alive", "timeout=5"), ("X-Kept", "1"),
                ("X-Request-Id", "upstream-own"),
            )
        ]
    )  # fmt: skip
    running = await edge({"eu": [{"url": one.url + "/base"}]})
    fields = (
        ("Connection", "keep-alive, X-Drop-Me"), ("X-Drop-Me", "1"), ("Keep-Alive", "timeout=5"),
        ("TE", "trailers"), ("Proxy-Authorization", "Basic eDp5"), ("Proxy-Connection", "keep-alive"),
        ("X-Forwarded-For", "9.9.9.9"), ("X-Forwarded-For", "9.9.9.9"), ("Via", "1.0 x"), ("X-Passes", "yes"),
        ("X-Request-Id", "req-42"),
    )  # fmt: skip
    query = "?b=2&a=%7E%2f&c=+%20&&=&d"
    path = "/v1/chat/completions" + query
    found = await running.ask(request(chat(), path=path, fields=fields))
    (got,) = one.requests
    assert got.line == f"POST /base{path} HTTP/1.1".encode()
    assert got.all("host") == [f"127.0.0.1:{one.port}"]
    for name in ("x-drop-me", "keep-alive", "te", "proxy-authorization", "proxy-connection", "connection"):
        assert got.all(name) == [], name
    assert got.all("x-forwarded-for") == ["127.0.0.1"]
    assert got.all("via") == ["1.0 x, 1.1 gslb"]
    assert got.all("x-passes") == ["yes"]
    assert got.all("x-request-id") == ["req-42"]
    assert found.all("server") == ["uvicorn"]
    assert len(found.all("date")) == 1
    assert found.all("x-up") == found.all("keep-alive") == []
    assert found.all("x-kept") == ["1"]
    assert found.all("x-request-id") == ["req-42"]
    assert found.all("connection") == []


async def test_fc05_a_client_cannot_nominate_away_what_gslb_adds(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-05: fields that end here, and one line of those that gslb writes."""
    one = await upstream()
    running = await edge({"eu": [{"url": one.url, "api_key_env": "EU_KEY"}]}, {"EU_KEY": "up-eu"})
    nominated = "close, Authorization, X-Forwarded-For, Content-Length, Host, Via, X-Request-Id"
    found = await running.ask(request(chat(), fields=(("Connection", nominated), ("Authorization", "Bearer c"))))
    assert found.status == 200
    (got,) = one.requests
    assert got.all("authorization") == ["Bearer up-eu"]
    assert got.all("x-forwarded-for") == ["127.0.0.1"]
    assert got.one("content-length") == str(len(got.body))
    assert got.one("host")
    assert got.one("via")
    assert got.one("x-request-id")


@pytest.mark.parametrize(
    "bad", ["a b", "x" * 129, "caf\xe9", "a\tb", "", "a,b", 'a"b', "<script>"], ids=lambda text: repr(text[:9])
)
async def test_fc38_a_bad_request_id_is_replaced_by_one_line_each_way(
    bad: str, edge: MakeEdge, upstream: MakeUpstream
) -> None:
    """FC-38: nobody can make up series, lines or ids."""
    one = await upstream()
    running = await edge({"eu": [one]})
    found = await running.ask(request(chat(), fields=(("X-Request-Id", bad),)))
    given = found.one("x-request-id")
    assert given
    assert given != bad
    assert one.requests[0].all("x-request-id") == [given]
    assert (await running.record())["request_id"] == given


async def test_fc38_two_request_ids_are_nobodys(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """FC-38: nobody can make up series, lines or ids."""
    one = await upstream(stream(event("A"), DONE))
    running = await edge({"eu": [one]})
    fields = (("X-Request-Id", "a"), ("X-Request-Id", "b"))
    found = await running.ask(request(chat(stream=True), fields=fields))
    assert found.one("x-request-id") not in ("a", "b", "a, b")
    assert len(one.requests[0].all("x-request-id")) == 1
