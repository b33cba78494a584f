"""Requests that have split proxies and servers before, each with what must come of it.

Every vector is followed, on the same connection, by SMUGGLED, whose path tells it from all others: that may reach
an upstream only where it is a request of its own by any reading. `python -m tests.system.smuggling_table` prints
each vector with the answers it gets and what the upstream received.
"""

from __future__ import annotations

from dataclasses import dataclass

BODY = b'{"model":"m"}'
SMUGGLED = b"POST /v1/completions?smuggled HTTP/1.1\r\nHost: evil\r\nContent-Length: 13\r\n\r\n" + BODY
MARK = b"?smuggled"
HEAD_LIMIT_BYTES, COUNT_LIMIT, BODY_LIMIT_BYTES = 32 * 1024, 100, 1024 * 1024
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk"


@dataclass(frozen=True)
class Vector:
    """`raw` gets one answer of each of `answers` (sets of statuses); `crosses` requests of it reach an upstream.

    With `goes_on` SMUGGLED is answered as a request of its own; without, the connection ends and it is not.
    """

    kind: str
    name: str
    raw: bytes
    answers: tuple[frozenset[int], ...] = (frozenset({400}),)
    crosses: int = 0
    goes_on: bool = False
    is_head: bool = False
    choice: str = ""


def post(*lines: bytes, body: bytes = b"", start: bytes = b"POST /v1/completions HTTP/1.1",
    host: bytes = b"Host: a",
         end: bytes = b"\r\n") -> bytes:  # fmt: skip
    """A request's bytes; an empty `host` leaves the field out."""
    return end.join(line for line in (start, host, *lines) if line) + end + end + body


def sized(*lines: bytes, start: bytes = b"POST /v1/completions HTTP/1.1", host: bytes = b"Host: a") -> bytes:
    """A request with a good body and length."""
    return post(*lines, b"Content-Length: 13", body=BODY, start=start, host=host)


CHUNKS = b"d\r\n" + BODY + b"\r\n0\r\n\r\n"
CODED = b"Transfer-Encoding: chunked"


def chunked(body: bytes, *lines: bytes) -> bytes:
    """A request whose body is framed by hand."""
    return post(*lines, CODED, body=body)


def _rows(kind: str, rows: dict[str, bytes], *, answers: tuple[set[int], ...] = ({400},), crosses: int = 0,
          goes_on: bool = False, is_head: bool = False, choice: str = "") -> list[Vector]:  # fmt: skip
    sets = tuple(frozenset(each) for each in answers)
    return [Vector(kind, name, raw, sets, crosses, goes_on, is_head, choice) for name, raw in rows.items()]


def _refused(kind: str, rows: dict[str, bytes], status: int = 400, choice: str = "") -> list[Vector]:
    return _rows(kind, rows, answers=({status},), choice=choice)


def _taken(kind: str, rows: dict[str, bytes], choice: str = "") -> list[Vector]:
    return _rows(kind, rows, answers=({200},), crosses=1, goes_on=True, choice=choice)


def _answered(kind: str, rows: dict[str, bytes], status: int, choice: str = "") -> list[Vector]:
    """An error of gslb's own that leaves the connection as it is."""
    return _rows(kind, rows, answers=({status},), goes_on=True, choice=choice)


_FC_02 = [
    *_refused("FC-02", {
        "1 length, then chunked": post(b"Content-Length: 5", CODED, body=b"0\r\n\r\n"),
        "2 chunked, then length": post(CODED, b"Content-Length: 5", body=b"0\r\n\r\n"),
        "3 chunked, gzip": post(b"Transfer-Encoding: chunked, gzip", body=b"0\r\n\r\n"),
        "4 chunked twice": post(CODED, CODED, body=b"0\r\n\r\n"),
        "6 length twice": post(b"Content-Length: 3", b"Content-Length: 3", body=b"abc"),
        "7 length list": post(b"Content-Length: 3, 3", body=b"abc"),
        "8 length +3": post(b"Content-Length: +3", body=b"abc"),
        "9 chunked in HTTP/1.0": post(CODED, body=b"0\r\n\r\n", start=b"POST /v1/completions HTTP/1.0"),
    }),
    *_refused("FC-02", {"5 gzip, chunked": post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n")}, 501),
]  # fmt: skip

_FC_36 = [
    *_refused("FC-36", {
        "a length above the limit": post(b"Content-Length: %d" % (BODY_LIMIT_BYTES + 1)),
        "b chunks above the limit": chunked(b"100001\r\n" + b" " * (BODY_LIMIT_BYTES + 1) + b"\r\n0\r\n\r\n"),
        "d endless chunks": chunked(b"10000\r\n%b\r\n" % (b" " * 65536) * 17),
        "a length above any": post(b"Content-Length: 999999999999999999"),
    }, 413),
    *_taken("FC-36", {
        "c chunks that fill the limit": chunked(b"d\r\n%b\r\nffff3\r\n%b\r\n0\r\n\r\n" % (BODY, b" " * 0xFFFF3)),
    }),
    *_refused("FC-36", {"e an extension of 1 MB": chunked(b"d;" + b"x" * 1_000_000 + b"\r\n" + CHUNKS[3:])}),
    *_refused("FC-36", {
        "f a field of 1 MB": sized(b"X-A: " + b"y" * 1_000_000),
        "g 10,000 fields": sized(*[b"X-A: y"] * 10_000),
        "a target of 1 MB": sized(start=b"POST /" + b"y" * 1_000_000 + b" HTTP/1.1"),
    }, 431),
]  # fmt: skip

_LENGTH = [
    *_refused("length", {
        f"value {value!r}": post(b"Content-Length:" + value, body=BODY)
        for value in (
            b" -13", b" 0xd", b" 1e1", b" 13.0", b" 13;", b' "13"', b" 1 3", b" 13 13", b" 13,", b" ,13", b"",
            b" \t",
            b" 99999999999999999999", b" 13\x0b", b" \x0013", b" 13\xa0", b" \xd9\xa1\xd9\xa3", b" 13\r", b"\n 13",
            b"\r\n 13", b" 13\r\n ", b" 13\r\n\t13",
        )
    }),
    *_refused("length", {
        "twice, differing": post(b"Content-Length: 13", b"Content-Length: 0", body=BODY),
        "twice, in two spellings": post(b"Content-Length: 13", b"CONTENT-LENGTH: 13", body=BODY),
        "space before the colon": post(b"Content-Length : 13", body=BODY),
        "tab before the colon": post(b"Content-Length\t: 13", body=BODY),
        "space before the name": post(b" Content-Length: 13", body=BODY),
        "space in the name": post(b"Content Length: 13", body=BODY),
        "NUL in the name": post(b"Content-Length\x00: 13", body=BODY),
    }),
    *_taken("length", {
        "blanks around it": post(b"Content-Length:\t 13 \t", body=BODY),
        "leading zeros": post(b"Content-Length: 00000013", body=BODY),
        "nominated by Connection": sized(b"Connection: content-length"),
        "an underscored double": sized(b"Content_Length: 5"),
    }),
    *_rows("length", {"an underscored one alone": post(b"Content_Length: 13", body=BODY)}, answers=({400}, {400})),
    *_rows("length", {"0, and a body": post(b"Content-Length: 0", body=BODY)}, answers=({400}, {400})),
    *_rows("length", {"shorter than the body": post(b"Content-Length: 12", body=BODY)}, answers=({400}, {400})),
    *_rows("length", {"a request behind the body, within the length":
                      post(b"Content-Length: %d" % (13 + len(SMUGGLED)), body=BODY + SMUGGLED)},
           goes_on=True, choice="it is a body, and no JSON"),
]  # fmt: skip

_CODING = [
    *_rows("coding", {
        f"value {value!r}": post(b"Transfer-Encoding:" + value, body=CHUNKS)
        for value in (
            b" xchunked", b" chunkedx", b" chunked,", b" ,chunked", b" chunked;q=1", b' "chunked"', b" identity",
            b" identity, chunked", b" gzip", b" chunked, chunked", b" chunked, identity", b"", b" \x0bchunked",
            b" chunked\x0b", b" \xa0chunked", b" chunked\x00", b" chun\xe2\x84\xaaed", b" cow, chunked",
            b" chunked-bo",
            b"\r\n chunked", b" chunked\r\n\t", b"\n chunked",
        )
    }, answers=({400, 501},), choice="501 where httptools sees an unknown coding, 400 where it sees a fault"),
    *_refused("coding", {
        "space before the colon": post(b"Transfer-Encoding : chunked", body=CHUNKS),
        "NUL in the name": post(b"Transfer-Encoding\x00: chunked", body=CHUNKS),
        "behind a bare LF": post(b"X-A: b\nTransfer-Encoding: chunked", body=CHUNKS),
        "behind a bare CR": post(b"X-A: b\rTransfer-Encoding: chunked", body=CHUNKS),
        "gzip and chunked on two lines": post(b"Transfer-Encoding: gzip", CODED, body=CHUNKS),
        "chunked and identity on two lines": post(CODED, b"Transfer-Encoding: identity", body=CHUNKS),
        "in two spellings": post(CODED, b"transfer-ENCODING: chunked", body=CHUNKS),
        "a tab behind it": post(b"Transfer-Encoding: chunked\t", body=CHUNKS),
        "beside a length, h2c offered": post(H2C, CODED, b"Content-Length: 13", body=CHUNKS),
    }),
    *_taken("coding", {
        "blanks around it": post(b"Transfer-Encoding:\t chunked  ", body=CHUNKS),
        "upper case": post(b"TRANSFER-ENCODING: CHUNKED", body=CHUNKS),
        "nominated by Connection": chunked(CHUNKS, b"Connection: transfer-encoding"),
        "an underscored one beside a length": sized(b"Transfer_Encoding: chunked"),
        "another name": sized(b"TransferEncoding: chunked"),
        "TE: chunked": sized(b"TE: chunked"),
    }),
    *_answered("coding", {"as Content-Encoding": sized(b"Content-Encoding: chunked")}, 415),
]  # fmt: skip

_HOST = [
    *_refused("host", {
        f"value {value!r}": sized(host=b"Host:" + value)
        for value in (b" a b", b" a\tb", b" a, b", b" a/b", b" u@a", b" a#b", b" a?b", b" \x80", b" a\x00",
            b" http://a",
                      b" a\\b", b' "a"', b" <a>")
    }),
    *_refused("host", {
        "none": sized(host=b""),
        "twice": sized(b"Host: a"),
        "twice, in two spellings": sized(b"HOST: b"),
        "space before the colon": sized(host=b"Host : a"),
        "only in a fold": sized(b"X-A: b\r\n Host: a", host=b""),
    }),
    *_taken("host", {"empty": sized(host=b"Host:"), "with a port": sized(host=b"Host: [::1]:80")}),
    *_rows("host", {"none in HTTP/1.0": sized(start=b"POST /v1/completions HTTP/1.0", host=b"")},
           answers=({200},), crosses=1),
]  # fmt: skip

_TARGET = [
    *_refused("target", {
        f"{target!r}": sized(start=b"POST %b HTTP/1.1" % target)
        for target in (
            b"http://a/v1/completions", b"http://evil/v1/completions", b"https://a/", b"a:443", b"*",
            b"v1/completions",
            b"?x", b"/v1/completions#x", b"/v1/ completions", b"/v1/\tcompletions", b"/v1/completions\x00",
            b"/\x80",
            b"/v1/completions\x7f", b"/v1/completions\r\nX-A: b", b"http:/v1/completions", b"",
        )
    }),
    *_answered("target", {
        f"{target!r}": sized(start=b"POST %b HTTP/1.1" % target)
        for target in (
            b"//v1/completions", b"/../v1/completions", b"/v1/./completions", b"/v1/%2e%2e/metrics",
            b"/v1/completions%00",
            b"/v1/completions%0d%0aX-A:%20b", b"/v1\\completions", b"/v1/completions;x", b"/V1/completions",
            b"/v1/completions/", b"/metrics",
        )
    }, 404),
    *_taken("target",
        {"a query of everything": sized(start=b"POST /v1/completions??a=/../&b=http://x/%00;\\^ HTTP/1.1")}),
]  # fmt: skip

_METHOD = [
    *_refused("method", {
        f"{method!r}": sized(start=method + b" /v1/completions HTTP/1.1")
        for method in (b"post", b"Post", b"BREW", b"POST,", b"PO ST", b"POST\t", b"\x00POST", b"", b"PRI",
            b"POST:")
    }),
    *_answered("method", {
        f"{method!r} with a body": sized(start=method + b" /v1/completions HTTP/1.1")
        for method in (b"GET", b"PUT", b"DELETE", b"TRACE", b"OPTIONS", b"PATCH", b"PURGE", b"M-SEARCH", b"SOURCE")
    }, 405),
    *_rows("method", {"HEAD with a body": sized(start=b"HEAD /v1/completions HTTP/1.1")}, answers=({405},),
        goes_on=True,
           is_head=True),
    *_rows("method", {"GET whose body is a request": post(b"Content-Length: %d" % len(SMUGGLED), body=SMUGGLED,
                                                          start=b"GET /v1/models HTTP/1.1")},
           answers=({200},), goes_on=True),
    *_refused("method", {
        "CONNECT": post(start=b"CONNECT evil:443 HTTP/1.1"),
        "CONNECT with a path and a body": sized(start=b"CONNECT /v1/completions HTTP/1.1"),
    }, 405),
]  # fmt: skip

_VERSION = [
    *_refused("version", {
        f"{version!r}": sized(start=b"POST /v1/completions" + version)
        for version in (
            b" HTTP/1.2", b" HTTP/0.9", b" HTTP/2.0", b" HTTP/2", b" HTTP/3.0", b" HTTP/1.10", b" HTTP/1.1x",
            b" HTTP/1.1 ",
            b" http/1.1", b" HTTP/1,1", b" HTTP /1.1", b" HTTP/01.1", b" HTTP/1", b"", b"\tHTTP/1.1",
            b" HTTP/1.1\x00",
            b" XTTP/1.1", b" HTTPS/1.1",
        )
    }),
    *_rows("version", {
        "HTTP/1.0": sized(start=b"POST /v1/completions HTTP/1.0"),
        "HTTP/1.0 with keep-alive": sized(b"Connection: keep-alive", start=b"POST /v1/completions HTTP/1.0"),
    }, answers=({200},), crosses=1),
    *_taken("version", {"RTSP/1.1": sized(start=b"POST /v1/completions RTSP/1.1")},
            "httptools does not tell the name; the framing is HTTP's, and the line is written anew"),
]  # fmt: skip

_LINES = [
    *_refused("lines", {
        "bare LF throughout": post(b"Content-Length: 13", body=BODY, end=b"\n"),
        "bare CR throughout": post(b"Content-Length: 13", body=BODY, end=b"\r"),
        "LF CR throughout": post(b"Content-Length: 13", body=BODY, end=b"\n\r"),
        "bare LF behind the request line": sized(start=b"POST /v1/completions HTTP/1.1\nX-A: b"),
        "bare LF behind a field": sized(b"X-A: b\nX-C: d"),
        "bare CR in a value": sized(b"X-A: b\rc"),
        "CR CR LF": sized(b"X-A: b\r"),
        "CR CR LF at the end": post(b"Content-Length: 13\r\n\r", body=BODY),
        "LF alone as the blank line": sized().replace(b"\r\n\r\n", b"\r\n\n"),
        "a blank as the blank line": post(b"Content-Length: 13", b" ", body=BODY),
        "a folded value": sized(b"X-A: b\r\n c"),
        "a folded empty value": sized(b"X-A:\r\n c"),
        "a fold of nothing but a blank": sized(b"X-A: b\r\n "),
        "a fold behind the request line": sized(host=b" Host: a"),
        "a blank before the method": b" " + sized(),
        "a tab before the method": b"\t" + sized(),
    }),
    *_taken("lines", {
        "blank lines before it": b"\r\n\r\n" + sized(),
        "bare line ends before it": b"\n\r\n\r\r" + sized(),
        "two blanks in the request line": sized(start=b"POST  /v1/completions  HTTP/1.1"),
    }, "RFC 9112 2.2 and 3 allow it before and within the request line, which is written anew"),
]  # fmt: skip

_FIELDS = [
    *_refused("fields", {
        f"name {name!r}": sized(name + b": b")
        for name in (b"X A", b"X-A ", b"X\x00A", b"X\x7fA", b"X\xe9A", b"", b"X(A)", b"X/A", b'"X-A"', b"X@A",
            b"X-A\x0b",
                     b"[X]", b"X=A", b"{X}", b"X?A")
    }),
    *_refused("fields", {
        f"value {value!r}": sized(b"X-A:" + value)
        for value in (b" a\x00b", b" a\x01b", b" a\x0bb", b" a\x0cb", b" a\x1bb", b" a\x7fb", b"\x0b")
    }),
    *_refused("fields", {"no colon": sized(b"X-A"),
        "a second request line": sized(SMUGGLED.split(b"\r\n")[0][:-9])}),
    *_taken("fields", {
        "obs-text in a value": sized(b"X-A: caf\xe9 \xff"),
        "a tab in a value": sized(b"X-A: a\tb"),
        "blanks around a value": sized(b"X-A: \t b\t "),
        "an empty value": sized(b"X-A:"),
        "every token byte in a name": sized(b"!#$%&'*+-.^_`|~0aZ: b"),
        "underscored fields of gslb": sized(b"X_Forwarded_For: 6.6.6.6", b"X_Request_Id: evil", b"x_api_key: k"),
        "a request in a value": sized(b"X-A: " + SMUGGLED.split(b"\r\n")[0]),
    }),
]  # fmt: skip

_CHUNKS = [
    *_refused("chunks", {
        f"{body[:40]!r}": chunked(body)
        for body in (
            b"d\n" + CHUNKS[3:], b"d\r" + CHUNKS[3:], b"xyz\r\n" + CHUNKS[3:], b"-d\r\n" + CHUNKS[3:],
            b"+d\r\n" + CHUNKS[3:],
            b"0xd\r\n" + CHUNKS[3:], b" d\r\n" + CHUNKS[3:], b"d \r\n" + CHUNKS[3:], b"d\t\r\n" + CHUNKS[3:],
            b"d;\r\n" + CHUNKS[3:], b"d;a\n" + CHUNKS[3:], b"d;a\rb\r\n" + CHUNKS[3:], b"d;a\x00\r\n" + CHUNKS[3:],
            b"d ;a\r\n" + CHUNKS[3:], b"d,a\r\n" + CHUNKS[3:], b"\r\nd\r\n" + CHUNKS[3:],
            b"d\r\n" + BODY + b"\n0\r\n\r\n",
            b"d\r\n" + BODY + b"\r0\r\n\r\n", b"d\r\n" + BODY + b"0\r\n\r\n", b"c\r\n" + BODY + b"\r\n0\r\n\r\n",
            b"10000000000000000d\r\n" + CHUNKS[3:], b"d\r\n" + BODY + b"\r\n0\n\n",
            b"d\r\n" + BODY + b"\r\n0\r\n\n",
            b"d\r\n" + BODY + b"\r\n-0\r\n\r\n", b"d\r\n\r\n" + BODY + b"\r\n0\r\n\r\n", b"d\x00\r\n" + CHUNKS[3:],
            b"\xef\xbc\x94\r\n" + CHUNKS[3:],
        )
    }),
    *_refused("chunks", {"a size of 2^64 - 1": chunked(b"ffffffffffffffff\r\n" + b" " * (BODY_LIMIT_BYTES + 1))},
        413),
    *_rows("chunks", {"one chunk takes the next in": chunked(b"%x\r\n%b" % (13 + len(SMUGGLED) + 9, BODY))},
           answers=({408},), choice="it never ends: the clock of the body"),
    *_taken("chunks", {
        "extensions": chunked(b'd;a=b;c="x;y"\r\n%b\r\n0;z\r\n\r\n' % BODY),
        "leading zeros": chunked(b"0000000000000000000d\r\n%b\r\n000\r\n\r\n" % BODY),
        "upper case": chunked(b"D\r\n" + CHUNKS[3:]),
        "byte by byte": chunked(b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"),
    }),
    *_rows("chunks", {"none, and a body": chunked(b"0\r\n\r\n" + BODY)}, answers=({400}, {400})),
    *_rows("chunks", {"a request as a chunk": chunked(b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED))},
           goes_on=True, choice="it is a body, and no JSON"),
]  # fmt: skip


def _with_trailer(*lines: bytes) -> bytes:
    return chunked(CHUNKS[:-2] + b"".join(line + b"\r\n" for line in lines) + b"\r\n")


_TRAILERS = [
    *_refused("trailers", {
        f"{line!r}": _with_trailer(line)
        for line in (
            b"Content-Length: 13", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Connection: close",
            b"Connection: upgrade\r\nUpgrade: h2c", b"Upgrade: h2c", b"Proxy-Connection: close", b"Host: evil",
            b"X-A: b\r\n c", b"X-A", b"X-A : b", b"X-A: b\nX-C: d", b"X-A: \x00", b": b",
        )
    }),
    *_refused("trailers", {
        "10,000 of them": _with_trailer(*[b"X-A: b"] * 10_000),
        "one of 40,000 bytes": _with_trailer(b"X-A: " + b"b" * 40_000),
    }, 431),
    *_taken("trailers", {
        "ordinary ones": _with_trailer(b"X-A: b", b"X-C: d"),
        "a key and an address": _with_trailer(b"Authorization: Bearer k", b"X-Forwarded-For: 6.6.6.6"),
        "announced": post(CODED, b"Trailer: X-A", body=CHUNKS[:-2] + b"X-A: b\r\n\r\n"),
    }),
]  # fmt: skip

_PIPELINES = [
    *_rows("pipelined", {"a stray byte behind it": sized() + b"G"}, answers=({200}, {400}), crosses=1),
    *_rows("pipelined", {"junk behind it": sized() + b"\x00\r\n\r\n"}, answers=({200}, {400}), crosses=1),
    *_rows("pipelined", {"a good one, then two lengths": sized() + _FC_02[4].raw}, answers=({200}, {400}),
        crosses=1),
    *_rows("pipelined",
        {"a head without its end takes the next in": sized() + b"POST /x HTTP/1.1\r\nX-A: b" + SMUGGLED},
           answers=({200}, {404}), crosses=1, goes_on=True),
    *_rows("pipelined", {"two good ones": sized() + chunked(CHUNKS)}, answers=({200}, {200}), crosses=2,
        goes_on=True),
    *_rows("pipelined", {"blank lines between": sized() + b"\r\n\r\n"}, answers=({200},), crosses=1, goes_on=True),
    *_rows("pipelined", {
        "behind Connection: close": sized(b"Connection: close"),
        "behind Proxy-Connection: close": sized(b"Proxy-Connection: close"),
        "behind close in a list": sized(b"Connection: x, CLOSE"),
    }, answers=({200},), crosses=1, choice="what follows a close is not read (RFC 9112 9.6)"),
]  # fmt: skip

_UPGRADES = [
    *_taken("upgrades", {
        "h2c with a length": sized(H2C),
        "h2c in chunks": chunked(CHUNKS, H2C),
        "h2c twice": sized(H2C, b"Upgrade: h2c"),
        "websocket": sized(b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Key: x"),
        "Upgrade without Connection": sized(b"Upgrade: h2c"),
        "Connection without Upgrade": sized(b"Connection: upgrade"),
        "by Proxy-Connection": sized(b"Proxy-Connection: upgrade", b"Upgrade: h2c"),
        "Expect: 100-continue": sized(b"Expect: 100-continue"),
        "h2c and Expect": sized(H2C, b"Expect: 100-continue"),
    }),
    *_rows("upgrades", {"h2c whose body is a request": post(H2C, b"Content-Length: %d" % len(SMUGGLED),
        body=SMUGGLED)},
           goes_on=True, choice="it is a body, and no JSON"),
    *_answered("upgrades", {"h2c on a GET": post(H2C, start=b"GET /v1/nothing HTTP/1.1")}, 404),
    *_refused("upgrades", {
        "HTTP/2 with prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
        "h2c and trailers that offer it again": chunked(CHUNKS[:-2] + H2C + b"\r\n\r\n", H2C),
    }),
    *_refused("upgrades", {
        "another expectation": sized(b"Expect: 200-ok"),
        "two expectations": sized(b"Expect: 100-continue", b"Expect: more"),
        "an expectation list": sized(b"Expect: 100-continue, 100-continue"),
    }, 417),
]  # fmt: skip

VECTORS: tuple[Vector, ...] = (
    *_FC_02, *_FC_36, *_LENGTH, *_CODING, *_HOST, *_TARGET, *_METHOD, *_VERSION, *_LINES, *_FIELDS, *_CHUNKS,
    *_TRAILERS, *_PIPELINES, *_UPGRADES,
)  # fmt: skip
KINDS = tuple(dict.fromkeys(vector.kind for vector in VECTORS))
