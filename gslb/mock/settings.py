"""What one mock server is: its models, its speed, its distance, its habits."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field

VLLM_VERSION = "0.32.0"


@dataclass(slots=True)
class MockSettings:
    """Everything that can be set on a mock vLLM. All of it may be changed while the server runs,
    except the engine's own numbers (`slots` .. `queue_limit`, `time_scale`), which count from the next start.

    `models` are names of one base model (the first is the root), `loras` maps adapter to base model name.
    `queue_limit` is the number of requests that may wait (None: without bound, vLLM's default).
    `wan` lists `(CIDR, round trip in ms)`, first match wins, `wan_default_ms` for everybody else.
    `time_scale` multiplies every simulated duration (engine and WAN): 0.1 is ten times quicker.
    `identity` is who answers: it ends `system_fingerprint` and is the first word of every generated text.
    `shutdown_timeout_s` 0 is vLLM's default (SIGTERM refuses at once, what runs falls silent), above 0 drains.
    Flags named `has_*` stand for vLLM's switches of the same meaning (all off by default there too).
    """

    models: Sequence[str] = ("mock-model",)
    loras: dict[str, str] = field(default_factory=dict)
    slots: int = 256
    prefill_ms_per_token: float = 0.05
    itl_ms: float = 10.0
    itl_per_seq_ms: float = 0.1
    block_size: int = 16
    kv_blocks: int = 8192
    max_batched_tokens: int = 2048
    queue_limit: int | None = None
    time_scale: float = 1.0
    api_key: str | None = None
    max_model_len: int = 131_072
    default_max_tokens: int = 64
    sse_keep_alive_s: float = 0.0
    keep_alive_s: float = 5.0
    wan: Sequence[tuple[str, float]] = ()
    wan_default_ms: float = 0.0
    shutdown_timeout_s: float = 0.0
    seed: int = 0
    identity: str = ""
    metrics_dialect: str = "current"
    engines: int = 1
    request_log_size: int = 10_000
    has_load_tracking: bool = False
    has_request_id_headers: bool = False
    has_prompt_tokens_details: bool = False
    has_pooling: bool = True
    has_realtime: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError naming the setting that cannot be."""
        if not self.models:
            raise ValueError("models: at least one model name is needed")
        for name in ("slots", "block_size", "kv_blocks", "max_batched_tokens", "max_model_len", "engines"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.default_max_tokens < 1:
            raise ValueError(f"default_max_tokens: must be at least 1, got {self.default_max_tokens}")
        for name in ("prefill_ms_per_token", "itl_ms", "itl_per_seq_ms", "time_scale", "wan_default_ms"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: must be a finite number of at least 0, got {getattr(self, name)}")
        if self.queue_limit is not None and self.queue_limit < 0:
            raise ValueError(f"queue_limit: must be at least 0, got {self.queue_limit}")
        WanTable(self.wan, self.wan_default_ms)

    @property
    def fingerprint(self) -> str:
        """The `system_fingerprint` of answers: version, then who answers."""
        return f"vllm-{VLLM_VERSION}-{self.identity or format(self.seed & 0xFFFFFFFF, '08x')}"


class WanTable:
    """Round trips by client address: so one host can stand for several continents."""

    __slots__ = ("default_ms", "rules")

    def __init__(self, wan: Sequence[tuple[str, float]], default_ms: float) -> None:
        """`wan` as in MockSettings. Raises ValueError for a bad CIDR or a negative time."""
        self.rules: list[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, float]] = []
        for cidr, rtt_ms in wan:
            if not 0 <= rtt_ms < float("inf"):
                raise ValueError(f"wan: the round trip of {cidr} must be a finite number of at least 0 ms")
            try:
                self.rules.append((ipaddress.ip_network(cidr, strict=False), rtt_ms))
            except ValueError as error:
                raise ValueError(f"wan: {cidr!r} is not an address range such as 10.0.0.0/8: {error}") from error
        self.default_ms = default_ms

    def rtt_ms(self, address: str) -> float:
        """Round trip to `address` in ms; the default for addresses of no range and for non-addresses."""
        if not self.rules:
            return self.default_ms
        try:
            ip = ipaddress.ip_address(address.strip().strip("[]"))
        except ValueError:
            return self.default_ms
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        for network, rtt_ms in self.rules:
            if ip in network:
                return rtt_ms
        return self.default_ms
