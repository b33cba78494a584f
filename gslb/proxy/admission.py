"""From a whole request to the facts of a decision: path, key, body, budget. The first of the five rooms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gslb.counters import Counters
from gslb.errors import ApiError
from gslb.policy.quota import ConcurrencyLimit
from gslb.policy.rate import RateLimit
from gslb.policy.tenants import TenantRights
from gslb.proxy.generation import Generation
from gslb.types import Facts, Place
from gslb.wire.http1 import KEY_FIELDS, Field, RequestHead, key_lines
from gslb.wire.openai import BodyFacts, read_json_facts, read_multipart_facts, replace_model
from gslb.wire.paths import Route, find_route
from gslb.wire.prefix import BLOCK_TOKENS, affinity_hash, affinity_mark, prefix_blocks, prefix_space
from gslb.wire.rate_fields import rate_fields, wait_field
from gslb.wire.websocket import check_handshake, offered_keys, read_model

_NO_RIGHTS = TenantRights("")
_PRIORITIES = {b"high": 1, b"normal": 0, b"low": -1}


class Admitted:
    """A request that may be routed. `facts` is None for what is served from memory. `body` goes upstream."""

    __slots__ = ("body", "facts", "is_counted", "rate_lines", "reading")

    def __init__(self, reading: Reading, facts: Facts | None, body: bytes) -> None:
        self.reading = reading
        self.facts = facts
        self.body = body
        self.is_counted = False
        """It holds one of its tenant's places, until `count_out`."""
        self.rate_lines = b""
        """What its tenant has left per time, as field lines for the answer."""

    def count_in(self, running: ConcurrencyLimit) -> None:
        """Take one of the tenant's places. Raises ApiError `concurrency_limit` when all are taken."""
        rights = self.reading.rights
        if not rights.name:
            return
        if not running.try_start(rights.name, rights.max_concurrency):
            raise ApiError(
                "concurrency_limit", f"your key may run {rights.max_concurrency} requests at once; end one first",
                retry_after_s=1,
            )  # fmt: skip
        self.is_counted = True

    def charge(self, limit: RateLimit, counters: Counters, now_s: float) -> None:
        """Take what it asks for from what its tenant has per time. Raises ApiError `rate_limit` when that is less.

        What becomes of it makes no difference: a request that fails was asked for as well.
        """
        rights = self.reading.rights
        if not rights.rates or self.facts is None:
            return
        taking = limit.take(rights.name, rights.rates, self.facts.prompt_tokens, now_s)
        fields: list[Field] = []
        for left in taking.standings:
            fields += rate_fields(left.counts, left.limit, left.remaining, left.reset_s)
        if taking.short:
            counters.rate_limited[(rights.name, taking.short)] += 1
            raise ApiError(
                "rate_limit", f"your key has no {taking.short} left for now; ask again in {taking.wait_s:.3f} s",
                retry_after_s=taking.wait_s, headers=[*fields, wait_field(taking.wait_s)],
            )  # fmt: skip
        self.rate_lines = b"".join(b"%b: %b\r\n" % field for field in fields)

    def count_out(self, running: ConcurrencyLimit) -> None:
        """Give the place back, however the request ended."""
        if self.is_counted:
            self.is_counted = False
            running.end(self.reading.rights.name)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a head alone says, under one configuration: kept with the head, which a connection repeats.

    `keys` are the lines of the client's own key, `asks_why` whether it wants the decision told, `session` the hash
    of the conversation it names.
    """

    generation: Generation
    route: Route
    rights: TenantRights
    budget_ms: float | None
    pinned_region: str | None
    keys: bytes
    asks_why: bool
    until_s: float
    priority: int
    session: int | None


def admit(head: RequestHead, body: bytes, place: Place, generation: Generation, wall_s: float) -> Admitted:
    """Check path, key and body of a request and read its facts.

    Raises ApiError with the right status; nothing has been sent anywhere then.
    """
    reading = head.reading
    if not isinstance(reading, Reading) or reading.generation is not generation or wall_s >= reading.until_s:
        reading = head.reading = _read_head(head, generation, wall_s)
    route = reading.route
    rights = reading.rights
    if route.kind == "models":
        return Admitted(reading, None, b"")
    asks = read_json_facts(body) if route.kind == "json" else _read_other(route, head, body)
    if rights.models is not None and asks.model not in rights.models:
        raise _unknown_model(asks.model)
    model = generation.settings.aliases.get(asks.model)
    if model is not None and route.kind != "realtime":  # whose model stands in the target
        if route.kind != "json":
            raise ApiError("bad_request", "a model alias cannot be used in a form; use the model's own name")
        body = replace_model(body, model)
    facts = Facts(
        model or asks.model, place, rights.name, asks.prompt_tokens, asks.is_stream, reading.budget_ms,
        reading.pinned_region, rights.jurisdictions, reading.priority, reading.session,
    )  # fmt: skip
    if asks.tree is not None:
        _read_affinity(facts, asks.tree, generation)
    return Admitted(reading, facts, body)


def _read_affinity(facts: Facts, tree: Mapping[str, Any], generation: Generation) -> None:
    """What marks the request as belonging to others, and its prompt's leading blocks."""
    affinity = generation.affinity
    if affinity.session and facts.affinity_key is None:
        facts.affinity_key = affinity_mark(tree, facts.tenant)
    if affinity.prefix and facts.prompt_tokens >= BLOCK_TOKENS:
        facts.prefix_blocks = prefix_blocks(tree, prefix_space(facts.tenant, facts.model))
        facts.block_tokens = BLOCK_TOKENS


def _read_head(head: RequestHead, generation: Generation, wall_s: float) -> Reading:
    route = find_route(head.method, head.path)
    rights = _authenticate(head, generation, wall_s)
    if route.kind not in ("models", "realtime"):
        _check_media_type(head, route)
    until_s = math.inf if rights.expires_at is None else rights.expires_at
    budget_ms = _budget_ms(head, rights, generation)
    asks_why = head.first(b"x-gslb-explain") == b"1"
    return Reading(
        generation, route, rights, budget_ms, _pinned_region(head), key_lines(head), asks_why, until_s,
        _priority(head, rights), _session(head, rights, generation),
    )  # fmt: skip


def _authenticate(head: RequestHead, generation: Generation, wall_s: float) -> TenantRights:
    tenants = generation.settings.tenants
    own = head.own
    if tenants is None:
        if any(len(own.get(name, ())) > 1 for name in KEY_FIELDS):
            # One line would have to be chosen, and the engine might choose the other.
            raise ApiError("bad_request", "a key may be sent once: Authorization or X-Api-Key came twice")
        return _NO_RIGHTS
    keys = own.get(b"x-api-key") or (offered_keys(head) if head.is_handshake else ())
    rights = tenants.authenticate(own.get(b"authorization", ()), wall_s, keys)
    if rights is None:
        raise ApiError(
            "invalid_api_key", "a valid API key is needed: Authorization: Bearer KEY",
            headers=[(b"WWW-Authenticate", b"Bearer")],
        )  # fmt: skip
    return rights


def _check_media_type(head: RequestHead, route: Route) -> None:
    coding = head.first(b"content-encoding")
    if coding is not None and coding.lower() != b"identity":
        raise ApiError("unsupported_media_type", "a compressed request body is not served; send it as it is")
    media_type = (head.first(b"content-type") or b"").partition(b";")[0].strip().lower()
    if route.kind == "multipart":
        if media_type != b"multipart/form-data":
            raise ApiError("unsupported_media_type", "this path takes multipart/form-data")
    elif media_type and media_type != b"application/json" and not media_type.endswith(b"+json"):
        raise ApiError("unsupported_media_type", "this path takes application/json")


def _read_other(route: Route, head: RequestHead, body: bytes) -> BodyFacts:
    if route.kind == "realtime":
        check_handshake(head)
        return BodyFacts(read_model(head.target), True, 0)
    return read_multipart_facts(body, head.first(b"content-type") or b"")


def _budget_ms(head: RequestHead, rights: TenantRights, generation: Generation) -> float | None:
    text = head.first(b"x-gslb-latency-budget-ms")
    if text is None:
        return rights.budget_ms if rights.budget_ms is not None else generation.budget_ms
    try:
        budget_ms = float(text)
    except ValueError:
        budget_ms = math.nan
    if not 0 < budget_ms < 86_400_000:
        raise ApiError("bad_request", "x-gslb-latency-budget-ms must be a number of milliseconds above 0")
    return budget_ms


def _pinned_region(head: RequestHead) -> str | None:
    text = head.first(b"x-gslb-region")
    return text.decode("utf-8", "replace")[:63] if text else None


def _priority(head: RequestHead, rights: TenantRights) -> int:
    """The class the request is held in. A tenant may go below its own, never above; a client without a tenant may
    say what it likes."""
    text = head.first(b"x-gslb-priority")
    if text is None:
        return rights.priority
    asked = _PRIORITIES.get(text.lower())
    if asked is None:
        raise ApiError("bad_request", "x-gslb-priority must be high, normal or low")
    return min(asked, rights.priority) if rights.name else asked


def _session(head: RequestHead, rights: TenantRights, generation: Generation) -> int | None:
    text = head.first(b"x-gslb-session")
    return affinity_hash(rights.name, "session", text) if text and generation.affinity.session else None


def _unknown_model(model: str) -> ApiError:
    # The same answer as for a model that nobody has: a key must not learn what others may use.
    return ApiError("model_not_found", f"the model {model!r} does not exist", param="model")
