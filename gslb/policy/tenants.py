"""Who is asking: API keys to tenants and their rights. Pure; the wall clock is an argument.

Keys are kept and compared as SHA-256 digests in a dict. How long a look-up takes depends only on the digest
of what the client sent, which nobody can steer towards the digest of a configured key, so timing tells nothing
about how near a guess is. `hmac.compare_digest` over all tenants would hide no more and cost more with each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from gslb.policy.rate import Rate

_OWS = b" \t"
_SCHEME = b"bearer "  # RFC 9110 11.1: the scheme is case-insensitive; 11.4: spaces, not tabs, follow it


@dataclass(frozen=True, slots=True)
class TenantRights:
    """What a tenant may do. None means unrestricted.

    `models` it may name, `jurisdictions` it may be served in (a region needs one of them), `expires_at` unix
    seconds from which on its key is void, `budget_ms` its time-to-first-token budget, `max_concurrency` how many
    of its requests may run at once, `rates` how much it may ask for per time, `priority` (1, 0, -1) the highest
    class they may be held in.
    """

    name: str
    models: frozenset[str] | None = None
    jurisdictions: frozenset[str] | None = None
    expires_at: float | None = None
    budget_ms: float | None = None
    max_concurrency: int | None = None
    rates: tuple[Rate, ...] = ()
    priority: int = 0


class TenantDirectory:
    """Finds the tenant of a request by the key it carries."""

    __slots__ = ("_by_digest",)

    def __init__(self, entries: Iterable[tuple[bytes, TenantRights]]) -> None:
        """`entries` are (key, rights). Raises ValueError for an empty key or one that two entries share."""
        self._by_digest: dict[bytes, TenantRights] = {}
        for key, rights in entries:
            digest = sha256(key).digest()
            if not key:
                raise ValueError(f"the key of tenant {rights.name!r} is empty")
            if digest in self._by_digest:
                raise ValueError(f"tenants {self._by_digest[digest].name!r} and {rights.name!r} share a key")
            self._by_digest[digest] = rights

    def __len__(self) -> int:
        return len(self._by_digest)

    def authenticate(
        self,
        authorization_values: Sequence[bytes],
        wall_s: float,
        x_api_key_values: Sequence[bytes] = (),
    ) -> TenantRights | None:
        """The tenant whose valid key the request carries, or None (answer 401 `invalid_api_key`).

        Takes the raw values of all Authorization lines and of all X-Api-Key lines (the way of the Anthropic
        dialect), and unix seconds. Authorization decides where both are present. Two lines of either kind are
        nobody's: a proxy that takes the first and a server that takes the last would disagree. Never raises.
        """
        if len(x_api_key_values) > 1:
            return None
        if authorization_values:
            if len(authorization_values) > 1:
                return None
            value = authorization_values[0].strip(_OWS)
            if value[:7].lower() != _SCHEME:
                return None
            key = value[7:].lstrip(_OWS)
        elif x_api_key_values:
            key = x_api_key_values[0].strip(_OWS)
        else:
            return None
        rights = self._by_digest.get(sha256(key).digest())
        if rights is None or (rights.expires_at is not None and wall_s >= rights.expires_at):
            return None
        return rights
