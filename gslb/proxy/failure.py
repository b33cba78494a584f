"""What can go wrong with an attempt before the commit point, and what the client is told when all did.

One table of meanings: the attempts label, what it says about the endpoint's health, and whether the request
may be sent again. The rules are DESIGN section 3 ("Failover before commit", "After the last attempt").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gslb.errors import ApiError
from gslb.proxy.pool import ConnectFailed
from gslb.routing.health import Outcome
from gslb.routing.router import Refusal
from gslb.wire.sse import ABORTED, has_engine_error

_FAILOVER_STATUS = frozenset((429, 500, 502, 503, 504, 529))


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt. `result` is its metrics label, `why` is for operators, never for clients."""

    result: str
    outcome: Outcome
    why: str
    region: str
    status: int = 0
    retry_after_s: int | None = None
    never_sent: bool = False
    """No byte of the request was written: replaying it is always safe."""
    is_auth: bool = False

    @property
    def may_pass_back(self) -> bool:
        """May the client have this answer when nobody else can be asked? Not one that tells of the inside: a
        refused key of gslb's own, a redirect to an address that clients cannot know."""
        return not self.is_auth and not 300 <= self.status < 400

    def may_retry(self, replay: str) -> bool:
        """May another endpoint be asked, by the operator's replay rule (`any` or `connect_only`)?"""
        return self.never_sent or replay == "any"


def connect_failure(failed: ConnectFailed, region: str) -> Failure:
    """No connection: nothing was sent."""
    return Failure(failed.result, Outcome.BROKEN, failed.why, region, never_sent=True)


def broken(result: str, why: str, region: str) -> Failure:
    """The connection broke, stayed silent, or spoke nonsense."""
    return Failure(result, Outcome.BROKEN, why, region)


def out_of_time(why: str, region: str) -> Failure:
    """The whole exchange took too long: nobody's fault in particular."""
    return Failure("timeout", Outcome.NEUTRAL, why, region)


def error_event_failure(why: str, region: str) -> Failure:
    """A stream whose first event is an error."""
    return Failure("error_event", Outcome.SERVER_ERROR, why, region, status=500)


def status_failure(status: int, retry_after_s: int | None, gateway_key: bool, region: str) -> Failure | None:
    """The failure an answer's status means, or None when the answer is the client's to have.

    With a key of gslb's own (`gateway_key`) a 401 or 403 is gslb's configuration, not the client's doing. So is
    a redirect: no engine sends one, what stands in its place does.
    """
    if status in (401, 403) and gateway_key:
        return Failure("auth_error", Outcome.NEUTRAL, f"status {status}: check this endpoint's key", region,
                       status, is_auth=True)  # fmt: skip
    if 300 <= status < 400 and status != 304:
        return Failure("protocol_error", Outcome.SERVER_ERROR, f"status {status}: no engine redirects; check this "
                       "endpoint's url", region, status)  # fmt: skip
    if status not in _FAILOVER_STATUS:
        return None
    result, outcome, why = status_outcome(status)
    return Failure(result, outcome, why, region, status, retry_after_s)


def status_outcome(status: int) -> tuple[str, Outcome, str]:
    """(attempts label, health outcome, why) of an answer with `status`. Of 4xx only a 429 says something of the
    endpoint, and it does not count as a failure (FC-21)."""
    if status == 429:
        return "status_429", Outcome.FULL, "status 429"
    if status >= 500:
        return "status_5xx", Outcome.SERVER_ERROR, f"status {status}"
    return "ok", Outcome.NEUTRAL if status >= 400 else Outcome.SUCCESS, ""


def final_error(failures: Sequence[Failure]) -> ApiError:
    """The answer after the last attempt failed."""
    last = failures[-1]
    waits = [failed.retry_after_s for failed in failures if failed.retry_after_s is not None]
    retry_after_s = min(waits) if waits else None
    if all(failed.status == 429 for failed in failures):
        return ApiError(
            "saturated", "every endpoint is at its limit", retry_after_s=retry_after_s or 1, status=429
        )
    if last.is_auth:
        return ApiError(
            "upstream_auth", "the endpoint refused the gateway's own key; this is not your key's fault"
        )
    if last.result == "timeout":
        return ApiError("upstream_timeout", "the endpoint did not answer in time")
    if last.result in ("protocol_error", "reset") and len({failed.result for failed in failures}) == 1:
        return ApiError("upstream_error", "the endpoint broke off or did not answer in HTTP")
    return ApiError("no_healthy_region", "no region could serve this request", retry_after_s=retry_after_s or 1)


def final_outcome(failures: Sequence[Failure]) -> str:
    """The access log's outcome after the last attempt failed."""
    return "timeout" if failures[-1].result == "timeout" else "upstream_error"


def refusal_error(refusal: Refusal) -> ApiError:
    """The answer to a request that the router refuses."""
    param = {"model_not_found": "model", "bad_request": "x-gslb-region"}.get(refusal.code)
    return ApiError(refusal.code, refusal.message, param, refusal.retry_after_s)


def shutting_down() -> ApiError:
    """The answer to a request that an edge at its end takes no more, or does not finish."""
    return ApiError("shutting_down", "this edge is shutting down; ask again", retry_after_s=1)


def ends_in_error(tail: bytes) -> bool:
    """True when the last events of a stream tell an error that is not the caller's own (a killed vLLM sends
    one, then `[DONE]`), or that the engine gave up."""
    return ABORTED in tail or has_engine_error(tail)
