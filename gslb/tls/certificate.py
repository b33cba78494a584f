"""What a certificate says of itself: the names it is for and when it ends.

The standard library decodes a certificate only after a handshake, and from the peer's side. Two fields of DER
(ITU-T X.690; the certificate's layout is RFC 5280 section 4.1) do not warrant a dependency.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

_FIRST_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----\s(.+?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _OCTETS, _OBJECT_ID, _UTC_TIME = 0x30, 0x04, 0x06, 0x17
_VERSION, _EXTENSIONS, _DNS_NAME = 0xA0, 0xA3, 0x82
_SUBJECT_ALT_NAME = b"\x55\x1d\x11"
"""2.5.29.17, RFC 5280 section 4.2.1.6."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """`names`: its DNS names in lower case, wildcards as written. `ends_at`: seconds since 1970."""

    names: tuple[str, ...]
    ends_at: float


def read_certificate(pem: bytes) -> Certificate:
    """The first certificate of a PEM file, which is the server's own (RFC 8446 section 4.4.2).

    The common name does not count (RFC 9525 section 2). Raises ValueError when there is none or it is damaged.
    """
    block = _FIRST_BLOCK.search(pem)
    if block is None:
        raise ValueError("the file holds no PEM certificates")
    try:
        whole = base64.b64decode(b"".join(block[1].split()), validate=True)
        (_, outer), *_ = _items(whole)
        (_, signed), *_ = _items(outer)
        fields = [item for item in _items(signed) if item[0] != _VERSION]
        (_, _), (end_tag, end) = _items(fields[3][1])  # serial, algorithm, issuer, validity
        extensions = next((value for tag, value in fields if tag == _EXTENSIONS), b"")
        return Certificate(tuple(_dns_names(extensions)), _time(end_tag, end))
    except (ValueError, IndexError, binascii.Error):
        raise ValueError("the first certificate in the file is damaged") from None


def _items(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each DER item in `data`. Raises ValueError or IndexError where that ends too early."""
    at = 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            width = length & 0x7F
            length = int.from_bytes(data[at : at + width], "big")
            at += width
        if at + length > len(data):
            raise ValueError("an item longer than what holds it")
        yield tag, data[at : at + length]
        at += length


def _dns_names(extensions: bytes) -> Iterator[str]:
    for _, listed in _items(extensions):
        for _, extension in _items(listed):
            parts = list(_items(extension))
            if parts[0] != (_OBJECT_ID, _SUBJECT_ALT_NAME) or parts[-1][0] != _OCTETS:
                continue
            for _, names in _items(parts[-1][1]):
                yield from (value.decode("ascii").lower() for tag, value in _items(names) if tag == _DNS_NAME)


def _time(tag: int, value: bytes) -> float:
    """UTCTime has two digits for the year, 50 and above are of the last century (RFC 5280 4.1.2.5.1)."""
    text = value.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text >= "5" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
