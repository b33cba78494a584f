"""Answers of an endpoint that have mixed up proxies, each with what the client and the connection must come to."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.raw_upstream import FIN, LAST, Step, chunk

OK = b"HTTP/1.1 200 OK\r\n"
CODED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
STOLEN = OK + b"Content-Length: 6\r\n\r\nstolen"
"""What a client must never get for another request."""
_CHUNKS = chunk(b"abc") + LAST
_THREE = CODED + chunk(b"abc")


@dataclass(frozen=True)
class AnswerVector:
    """`script` is played for one request. The client gets `payload` whole, 502 (`payload` None), or a cut answer.

    `is_kept`: the connection serves the next request.
    """

    name: str
    script: tuple[Step, ...]
    payload: bytes | None = None
    is_cut: bool = False
    is_kept: bool = False
    status: int = 200


def _garbled(rows: dict[str, bytes]) -> list[AnswerVector]:
    return [AnswerVector(name, (raw,)) for name, raw in rows.items()]


def _lost(rows: dict[str, bytes]) -> list[AnswerVector]:
    return [AnswerVector(name, (raw, FIN)) for name, raw in rows.items()]


def _cut(rows: dict[str, bytes], *ends: Step) -> list[AnswerVector]:
    return [AnswerVector(name, (raw, *ends), is_cut=True) for name, raw in rows.items()]


def _whole(rows: dict[str, bytes], payload: bytes, *, is_kept: bool, status: int = 200) -> list[AnswerVector]:
    return [AnswerVector(name, (raw,), payload, is_kept=is_kept, status=status) for name, raw in rows.items()]


def _length(value: bytes, body: bytes = b"abc") -> bytes:
    return OK + b"Content-Length: " + value + b"\r\n\r\n" + body


ANSWER_VECTORS: tuple[AnswerVector, ...] = (
    *_garbled({
        f"length {value!r}": _length(value)
        for value in (b"-3", b"+3", b"0x3", b"3, 3", b"", b"3 3", b"18446744073709551616",
            b"3\r\nContent-Length: 3",
                      b"3\r\nContent-Length: 9", b"3\r\nTransfer-Encoding: chunked")
    }),
    *_garbled({
        f"coding {value!r}": OK + b"Transfer-Encoding: " + value + b"\r\n\r\n" + chunk(b"abc") + LAST
        for value in (b"gzip, chunked", b"chunked, gzip", b"identity", b"xchunked", b"chunked,", b"",
                      b"chunked\r\nTransfer-Encoding: chunked", b"chunked\r\nContent-Length: 3")
    }),
    *_garbled({
        f"start {start!r}": start + b"\r\nContent-Length: 3\r\n\r\nabc"
        for start in (b"HTTP/2.0 200 OK", b"HTTP/0.9 200 OK", b"HTTP/1.2 200 OK", b"HTTP/1.1 2000 OK",
            b"HTTP/1.1 20 OK",
                      b"HTTP/1.1 099 OK", b"HTTP/1.1 000 OK", b"HTTP/1.1  200 OK", b"HTTP/1.1 -20 OK",
                      b"http/1.1 200 OK",
                      b"HTTP/1.1 200OK", b"200 OK", b"GET / HTTP/1.1", b"SSH-2.0-OpenSSH")
    }),
    *_garbled({
        "chunked in HTTP/1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"abc") + LAST,
        "chunked and kept in HTTP/1.0":
            b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + _CHUNKS,
        "a status below 100, then an answer": b"HTTP/1.1 099 No\r\nContent-Length: 1\r\n\r\nx" + STOLEN,
        "199 with chunks, then an answer": CODED.replace(b"200", b"199") + chunk(b"abc") + LAST + STOLEN,
        "103 with a length, then an answer": b"HTTP/1.1 103 Early\r\nContent-Length: 6\r\n\r\nstolen" + STOLEN,
        "100 with a length, then an answer": b"HTTP/1.1 100 Go on\r\nContent-Length: 0\r\n\r\n" + STOLEN,
        "101": b"HTTP/1.1 101 Now\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n" + STOLEN,
        "101 without Upgrade": b"HTTP/1.1 101 Now\r\n\r\n" + STOLEN,
        "endless interim answers": b"HTTP/1.1 103 Early\r\nX-A: b\r\n\r\n" * 3000,
        "10,000 fields": OK + b"X-A: b\r\n" * 10_000 + b"Content-Length: 3\r\n\r\nabc",
        "a field of 100 kB": OK + b"X-A: " + b"b" * 100_000,
        "a reason of 100 kB": b"HTTP/1.1 200 " + b"x" * 100_000,
        "NUL in a value": OK + b"X-A: \x00\r\nContent-Length: 3\r\n\r\nabc",
        "NUL in a name": OK + b"X\x00A: b\r\nContent-Length: 3\r\n\r\nabc",
        "bare LF": b"HTTP/1.1 200 OK\nContent-Length: 3\n\nabc",
        "bare CR in a value": OK + b"X-A: a\rb\r\nContent-Length: 3\r\n\r\nabc",
        "a folded length": OK + b"Content-Length:\r\n 3\r\n\r\nabc",
        "a folded value": OK + b"X-A: b\r\n c\r\nContent-Length: 3\r\n\r\nabc",
        "a blank before the colon": OK + b"Content-Length : 3\r\n\r\nabc",
        "no colon": OK + b"Content-Length\r\n\r\nabc",
        "a bad first chunk": CODED + b"zz\r\nabc\r\n",
        "a negative first chunk": CODED + b"-3\r\nabc\r\n",
        "a chunk of 2^68": CODED + b"100000000000000000\r\nabc\r\n",
    }),
    *_lost({
        "nothing": b"",
        "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
        "a head alone": _length(b"9", b""),
        "an interim answer alone": b"HTTP/1.1 100 Go on\r\n\r\n",
        "half a chunk size": CODED + b"3",
    }),
    *_cut({
        "a short length": _length(b"9"),
        "a length of 2^64 - 1": _length(b"18446744073709551615"),
        "chunks without an end": _THREE,
        "a chunk of 2^64 - 1": CODED + b"ffffffffffffffff\r\nabc",
        "no blank line behind the last chunk": _THREE + b"0\r\n",
    }, FIN),
    *_cut({
        "a bad second chunk": _THREE + b"zz\r\n",
        "a chunk longer than its size": CODED + b"3\r\nabcdef\r\n" + LAST,
        "a chunk without its line end": CODED + b"3\r\nabc3\r\nabc\r\n" + LAST,
        "a bare LF behind a size": _THREE + b"3\nabc\r\n" + LAST,
        "a length in a trailer": _THREE + b"0\r\nContent-Length: 3\r\n\r\n",
        "NUL in a trailer": _THREE + b"0\r\nX-A: \x00\r\n\r\n",
    }),
    AnswerVector("an endless trailer", (_THREE + b"0\r\nX-A: ", *[b"b" * 65_536] * 64), is_cut=True),
    AnswerVector("an endless extension", (_THREE + b"3;", *[b"b" * 65_536] * 64), is_cut=True),
    *_whole({
        "length": _length(b"3"),
        "leading zeros": _length(b"0003"),
        "chunks": _THREE + LAST,
        "extensions and zeros": CODED + b'0003;a="b"\r\nabc\r\n000;c\r\n\r\n',
        "trailers": _THREE + b"0\r\nX-A: b\r\nX-Request-Id: evil\r\n\r\n",
        "interim answers": b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 103 Early\r\nX-A: b\r\n\r\n" + _length(b"3"),
        "a reason with NUL and more": _length(b"3").replace(b" OK", b" \x00\x01\x1b[2J"),
        "no reason": _length(b"3").replace(b" OK", b""),
        "Upgrade in a 200": _length(b"3\r\nConnection: upgrade\r\nUpgrade: h2c"),
        "kept in HTTP/1.0": _length(b"3\r\nConnection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"),
        "nominates its own length": _length(b"3\r\nConnection: content-length, transfer-encoding"),
    }, b"abc", is_kept=True),
    *_whole({
        "two answers": _length(b"3") + STOLEN,
        "junk behind it": _length(b"3") + b"\x00junk",
        "half an answer behind it": _length(b"3") + STOLEN[:20],
        "an answer behind the last chunk": _THREE + LAST + STOLEN,
        "close": _length(b"3\r\nConnection: close") + STOLEN,
        "close in a trailer": _THREE + b"0\r\nConnection: close\r\n\r\n",
        "HTTP/1.0": _length(b"3").replace(b"HTTP/1.1", b"HTTP/1.0"),
    }, b"abc", is_kept=False),
    *_whole({
        "204": b"HTTP/1.1 204 No\r\n\r\n",
        "204 with a length of 0": b"HTTP/1.1 204 No\r\nContent-Length: 0\r\n\r\n",
    }, b"", is_kept=True, status=204),
    *_whole({
        "204 with a body": b"HTTP/1.1 204 No\r\nContent-Length: 6\r\n\r\nstolen",
        "204 that announces a body": b"HTTP/1.1 204 No\r\nContent-Length: 6\r\n\r\n",
        "204 that announces chunks": b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n",
        "204, then an answer": b"HTTP/1.1 204 No\r\n\r\n" + STOLEN,
    }, b"", is_kept=False, status=204),
    *_whole({"304 with a length": b"HTTP/1.1 304 Same\r\nContent-Length: 6\r\n\r\n"}, b"", is_kept=True,
        status=304),
    *_whole({"304 with chunks": b"HTTP/1.1 304 Same\r\nTransfer-Encoding: chunked\r\n\r\n" + _CHUNKS},
            b"", is_kept=False, status=304),
    AnswerVector("junk later", (_length(b"3"), 0.02, b"\x00junk"), b"abc"),
    AnswerVector("a second answer later", (_length(b"3"), 0.02, STOLEN), b"abc"),
    AnswerVector("until close", (OK + b"\r\nall" + STOLEN, FIN), b"all" + STOLEN),
)  # fmt: skip
