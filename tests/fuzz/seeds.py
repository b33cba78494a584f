"""Where the fuzzer starts from: the tables of the other tests, and every case it has found so far."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.exchange import BREAK
from tests.proxy.test_upstream import ANSWERS
from tests.support.raw_client import chat, request
from tests.support.raw_upstream import DONE, GOOD, ROLE_EVENT, SSE_HEAD, answer, chunk, event
from tests.wire.test_request_reader import CONNECTIONS, H2C, post
from tests.wire.test_sse import CASES

FOUND = Path(__file__).parent / "found"
"""`found/<target>/<what it was>`: inputs that once failed."""

_MAX_SEED_BYTES = 20_000
_ASK = b"c" + request(chat("nick"))
_STREAM = b"c" + request(chat(stream=True))
_TOKENS = b"u" + SSE_HEAD + chunk(ROLE_EVENT) + chunk(event("A"))
_END = b"u" + chunk(DONE) + b"0\r\n\r\n"
_EXCHANGES: dict[str, list[bytes]] = {
    "answered": [_ASK, b"o", b"u" + GOOD, _ASK, b"u" + GOOD],
    "streamed": [_STREAM, b"o", _TOKENS, _END, _STREAM, _TOKENS, _END],
    "bytewise": [b"C" + _STREAM[1:], b"o", b"U" + _TOKENS[1:], b"U" + _END[1:]],
    "cut between events": [_STREAM, b"o", _TOKENS, b"e"],
    "cut in an event": [_STREAM, b"o", _TOKENS[:-9], b"r"],
    "refused, then elsewhere": [_ASK, b"n", b"o", b"u" + GOOD],
    "503, then elsewhere": [_ASK, b"o", b"u" + answer(503, b"{}"), b"o", b"u" + answer(429, b"{}")],
    "died unseen": [_ASK, b"o", b"u" + GOOD, _ASK, b"r", b"o", b"u" + GOOD],
    "error event": [_STREAM, b"o", b"u" + SSE_HEAD + chunk(b'data: {"error": {"code": 500}}\n\n'), b"o", b"e"],
    "leaves": [_STREAM, b"o", _TOKENS, b"E"],
    "leaves while connecting": [_ASK, b"R"],
    "slow": [_STREAM, b"o", _TOKENS, b"p", _TOKENS[85:], b"q", _END],
    "late": [_STREAM, b"o", _TOKENS, b"tttt"],
    "never": [_ASK, b"o", b"tttt", b"o", b"tttt"],
    "pipelined": [_ASK + _STREAM[1:] + b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n", b"o", b"u" + GOOD, _TOKENS,
    _END],
    "stops": [_STREAM, b"o", _TOKENS, b"s", _END],
    "stops now": [_STREAM, b"o", _TOKENS, b"sx"],
    "held, then served": [b"fxxx", _ASK, b"f", b"o", b"u" + GOOD],
    "held, leaves": [b"fxxx", _STREAM, b"E", b"f"],
    "held too long": [b"fxxx", _ASK, b"ttttt", b"f", _ASK, b"o", b"u" + GOOD],
    "held, reloads, stops": [b"fxxx", _STREAM, b"g", b"f", b"o", _TOKENS, b"fxxx", _END, _ASK, b"sx"],
    "held and looked for": [b"fxxx", _ASK, b"t", b"f", b"tttt"],
    "reloads": [_ASK, b"o", b"g", b"u" + GOOD, _ASK],
    "until close": [_ASK, b"o", b"uHTTP/1.1 200 OK\r\n\r\nall of it", b"e"],
    "1.0": [b"c" + request(chat(stream=True), version="1.0"), b"o", _TOKENS, _END],
    "head": [b"c" + request(method="HEAD", path="/v1/models") + _ASK[1:], b"o", b"u" + GOOD],
    "early": [_ASK[:-5], b"u" + GOOD, b"c" + _ASK[-5:], b"o", b"u" + GOOD + GOOD],
    "continue": [b"c" + post(b'{"model":"m"}', b"Expect: 100-continue")[:-3], b"cm\"}", b"o", b"u" + GOOD],
    "h2c": [b"c" + post(b'{"model":"m"}', *H2C).replace(b"/v1/x?q=1", b"/v1/completions"), b"o", b"u" + GOOD],
    "garbled": [_ASK, b"o", b"uSSH-2.0\r\n", b"o", b"u" + GOOD],
    "interim": [_ASK, b"o", b"uHTTP/1.1 103 X\r\nA: b\r\n\r\n" + GOOD],
    "bad request": [b"cPOST / HTTP/1.1\r\n\r\n", b"t"],
    "comment": [_STREAM, b"o", b"u" + SSE_HEAD + chunk(b": warming\n\n"), _TOKENS[85:], _END],
}  # fmt: skip


_BODIES = (
    b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}',
    b'{"messages":[{"content":[{"type":"text","text":"h\\u00e9"},{"text":["a",{"content":"b"}]}]},7],"model":"m"}',
    b'{"model":"a","prompt":[1,2,3],"model":"b","x":{"model":"c"},"y":["model",{"model":1}]}',
    b' {"m\\u006fdel" : "q" , "input":["a","b"],"z":-1.5e3,"t":[true,null,[]]} ',
    b'{"model":"m","system":"s","messages":[]}',
    b'{"model":7}',
    b'{"model":""}',
    b"[1]",
    b'{"model":"m"',
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n',
)
_DATED = b"HTTP/1.1 200 OK\r\ndate: Mon, 30 Nov 2026 02:31:%02d GMT\r\nserver: x\r\n%bcontent-length: %d\r\n\r\n%b"
_PAIRS = {
    "the same": (_DATED % (1, b"", 2, b"ok"), _DATED % (1, b"", 2, b"ok")),
    "another date and length": (_DATED % (1, b"", 2, b"ok"), _DATED % (2, b"", 3, b"yes")),
    "bytes behind": (_DATED % (1, b"", 2, b"ok"), _DATED % (1, b"", 2, b"okay")),
    "too short": (_DATED % (1, b"", 2, b"ok"), _DATED % (1, b"", 9, b"okay")),
    "close": (_DATED % (1, b"connection: close\r\n", 2, b"ok"), _DATED % (2, b"connection: close\r\n", 3, b"yes")),
    "keep-alive": (_DATED % (1, b"keep-alive: timeout=5\r\n", 2, b"ok"),
                   _DATED % (2, b"keep-alive: timeout=6\r\n", 3, b"yes")),
    "two lengths": (_DATED % (1, b"", 2, b"ok"), _DATED % (1, b"content-length: 2\r\n", 2, b"ok")),
}  # fmt: skip
"""What one connection of an endpoint was answered, and then another."""


def seeds_of(target: str) -> dict[str, bytes]:
    """Inputs of `target` by name."""
    tables = {
        "request": CONNECTIONS,
        "response": {name: row[0] for name, row in ANSWERS.items()},
        "events": {name: row[0] for name, row in CASES.items()},
    }
    if target == "request":
        tables["request"] = tables["request"] | {f"body {i}": post(body) * 2 for i, body in enumerate(_BODIES)}
    if target == "exchange":
        return {name: BREAK.join(records) for name, records in _EXCHANGES.items()}
    if target == "response":
        tables["response"] |= {name: BREAK.join(pair) for name, pair in _PAIRS.items()}
    return {name: b"\0" + raw for name, raw in tables[target].items() if len(raw) < _MAX_SEED_BYTES}


def found_for(target: str) -> Iterator[tuple[str, bytes]]:
    """(name, input) of what the fuzzer has found."""
    for path in sorted((FOUND / target).glob("*")):
        yield path.name, path.read_bytes()
