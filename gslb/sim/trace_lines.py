"""Lines of a trace file out of its bytes, however they are cut, and what is said of a bad one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_LONGEST_BYTES = 16 * 1024 * 1024


class TraceError(ValueError):
    """A trace cannot be used. The text is `FILE:LINE:COLUMN NAME: MESSAGE`; `name` is a CSV column or a JSON
    member (empty: the line as a whole), `column` where it stands in the line, counted from 1 like lines."""

    def __init__(self, file: str, line: int, column: int, name: str, message: str) -> None:
        super().__init__(f"{file}:{line}:{column}{' ' + name if name else ''}: {message}")
        self.file = file
        self.line = line
        self.column = column
        self.name = name
        self.message = message


def lines_of(chunks: Iterable[bytes], filename: str) -> Iterator[tuple[int, str]]:
    """(number, text without its end) of every line that is not blank. A byte order mark is dropped.

    Raises TraceError for a line that is not UTF-8, or longer than 16 MiB.
    """
    number = 1
    rest = b""
    for chunk in chunks:
        if b"\n" not in chunk:
            rest += chunk
            _check_length(rest, filename, number)
            continue
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            text = _text_of(line, filename, number)
            if text:
                yield number, text
            number += 1
    text = _text_of(rest, filename, number)
    if text:
        yield number, text


def _check_length(line: bytes, filename: str, number: int) -> None:
    if len(line) > _LONGEST_BYTES:
        raise TraceError(
            filename, number, 1, "", f"this line is longer than {_LONGEST_BYTES} bytes: is it a trace?"
        )


def _text_of(line: bytes, filename: str, number: int) -> str:
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"byte 0x{line[error.start]:02x} is not UTF-8"
        raise TraceError(filename, number, error.start + 1, "", message) from None
    return text.rstrip("\r \t")
