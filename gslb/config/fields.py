"""Field types of the schema that check a text's form: names, addresses, URLs, networks.

Messages of these validators never repeat a text that may carry a credential.
"""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from gslb.config.units import parse_time_s

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Ratio = Annotated[float, Field(ge=0, le=1)]

_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/@]+):([0-9]{1,5})")
_URL_FORM = "write http://HOST:PORT or https://HOST[:PORT][/BASE]"
_MOST_WORKERS = 256
_DEFAULT_PORT = {"http": 80, "https": 443}


def split_host_port(text: str) -> tuple[str, int]:
    """`127.0.0.1:8080` or `[::]:8080` -> (host without brackets, port). Raises ValueError otherwise."""
    match = _HOST_PORT.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise ValueError(f"{text[:80]!r} is no address: write HOST:PORT, for example 127.0.0.1:8080 or [::]:8080")
    return match[1].strip("[]"), int(match[2])


def _host_port(text: str) -> str:
    split_host_port(text)
    return text


def _worker_count(value: object) -> object:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if value == "auto" or (is_number and value in range(1, _MOST_WORKERS + 1)):
        return value
    raise ValueError(f"write auto, or a number of processes from 1 to {_MOST_WORKERS}")


def _network(text: str) -> str:
    try:
        ip_network(text, strict=False)
    except ValueError:
        raise ValueError(
            f"{text[:80]!r} is no IP network: write for example 10.0.0.0/8 or 2001:db8::/32"
        ) from None
    return text


def _split_url(value: str) -> SplitResult:
    """The parts of an endpoint URL. Raises ValueError, in words that repeat no credential."""
    if "@" in value:
        raise ValueError("credentials do not belong in a URL: use api_key_env or api_key_file")
    if not re.fullmatch(r"[\x21-\x7e]+", value):
        raise ValueError(f"an endpoint URL is ASCII without spaces: {_URL_FORM} (an IDN host in its xn-- form)")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise ValueError(f"{value[:80]!r} has no valid host and port: {_URL_FORM}") from None
    if parts.scheme not in _DEFAULT_PORT or not parts.hostname or port == 0:
        raise ValueError(f"{value[:80]!r} is no endpoint URL: {_URL_FORM}")
    _host_name(parts.hostname)
    if "?" in value or "#" in value:
        raise ValueError("an endpoint URL has no query or fragment: remove what follows ? or #")
    return parts


def _host_name(name: str) -> str:
    """A name that can be looked up and asked for by SNI (RFC 1035 2.3.4), or an address."""
    labels = [name] if ":" in name else name.removesuffix(".").split(".")
    if ":" not in name and (len(name) > 253 or any(not 0 < len(label) < 64 for label in labels)):
        raise ValueError(f"{name[:80]!r} is no host name: parts of 1 to 63 characters with single dots between")
    return name


def _endpoint_url(value: str) -> str:
    parts = _split_url(value)
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")


def endpoint_address(url: str) -> str:
    """`host:port` plus the base path of an endpoint URL, ports made explicit: what tells endpoints apart.

    >>> endpoint_address("http://Llm.example/vllm/")
    'llm.example:80/vllm'

    Raises ValueError as the schema does for a URL that is none.
    """
    parts = _split_url(url)
    host = parts.hostname or ""
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{parts.port or _DEFAULT_PORT[parts.scheme]}{parts.path.rstrip('/')}"


def _time(text: str) -> str:
    parse_time_s(text)
    return text


HostPort = Annotated[str, AfterValidator(_host_port)]
"""`HOST:PORT` to listen on; an IPv6 host stands in brackets, port 0 asks the system for one."""

WorkerCount = Annotated[
    Annotated[int, Field(ge=1, le=_MOST_WORKERS)] | Literal["auto"], BeforeValidator(_worker_count)
]
"""A number of processes, or `auto`: one for each CPU that may be used."""

Network = Annotated[str, AfterValidator(_network)]
"""An IP network or address; host bits may be set."""

EndpointUrl = Annotated[str, AfterValidator(_endpoint_url)]
"""An http or https URL without credentials, query or fragment; a trailing slash is dropped."""

HostName = Annotated[str, AfterValidator(_host_name)]
"""The name of a host."""

TimeText = Annotated[str, AfterValidator(_time)]
"""An ISO 8601 date-time with its offset."""

UrlPath = Annotated[str, Field(pattern=r"^/[!-~]*$")]
"""The path of an HTTP request."""
