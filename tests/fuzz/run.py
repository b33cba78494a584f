"""Coverage-guided fuzzing of one target: `python -m tests.fuzz.run TARGET [SECONDS] [DIRECTORY]`.

Needs atheris (the `fuzz` extra; `make fuzz` sees to it). Inputs that reach new code are kept in DIRECTORY between
runs. A failing input is written to `DIRECTORY/failed-*`: put it into `found/TARGET/` under a name that says
what it was, and it is a test from then on.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["gslb.wire", "gslb.proxy", "gslb.routing"]):
    from tests.fuzz.seeds import found_for, seeds_of
    from tests.fuzz.targets import TARGETS

_MAX_INPUT_BYTES = 4096
_WORDS = (
    b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"Connection: ", b"close", b"upgrade", b"Upgrade: h2c",
    b"Host: a\r\n", b"\r\n\r\n", b"0\r\n\r\n", b"HTTP/1.1 ", b"HTTP/1.0", b"POST ", b"GET ", b" 200 OK\r\n",
    b" 100 ",
    b"Expect: 100-continue", b"\x00|", b"\x00|o", b"\x00|u", b"\x00|c", b"\x00|e", b"\x00|t", b"data: ", b"\n\n",
    b"event: error\n", b"[DONE]", b'"finish_reason":"abort"', b'{"error":', b"text/event-stream", b'"model":"m"',
    b"Trailer", b"_", b"chunked, ", b"identity", b"\r", b"\n", b"\t", b":", b";",
)  # fmt: skip


def main(target: str, seconds: int, directory: Path) -> None:
    """Fuzz until the time is over or something fails (exit status 77)."""
    corpus = directory / target
    corpus.mkdir(parents=True, exist_ok=True)
    for name, data in (*seeds_of(target).items(), *found_for(target)):
        (corpus / f"seed-{name.replace('/', ' ')}").write_bytes(data)
    words = directory / "words.txt"
    words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in _WORDS))
    options = [
        f"-max_total_time={seconds}", f"-max_len={_MAX_INPUT_BYTES}", f"-dict={words}", "-timeout=300",
        f"-artifact_prefix={directory}/failed-{target}-", "-print_final_stats=1", str(corpus),
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main(
        sys.argv[1],
        int(sys.argv[2]) if len(sys.argv) > 2 else 60,
        Path(sys.argv[3] if len(sys.argv) > 3 else ".fuzz"),
    )
