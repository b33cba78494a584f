"""What a failed attempt means: whose fault, whether to go on, and what the client is told in the end."""

from __future__ import annotations

import json

import pytest

from gslb.proxy import failure
from gslb.proxy.failure import Failure
from gslb.proxy.pool import ConnectFailed
from gslb.routing.health import Outcome


def status(code: int, retry_after_s: int | None = None, key: bool = False) -> Failure | None:
    return failure.status_failure(code, retry_after_s, key, "eu")


def failed(code: int, retry_after_s: int | None = None) -> Failure:
    found = status(code, retry_after_s)
    assert found is not None
    return found


@pytest.mark.parametrize("code", [200, 204, 304, 400, 401, 403, 404, 408, 413, 422, 451, 501, 505])
def test_answers_that_are_the_clients_to_have(code: int) -> None:
    assert status(code) is None


@pytest.mark.parametrize(
    ("code", "result", "outcome"),
    [
        (429, "status_429", Outcome.FULL),
        *[(code, "status_5xx", Outcome.SERVER_ERROR) for code in (500, 502, 503, 504, 529)],
    ],
)
def test_answers_after_which_another_is_asked(code: int, result: str, outcome: Outcome) -> None:
    found = failed(code)
    assert (found.result, found.outcome, found.status) == (result, outcome, code)
    assert found.may_retry("any")
    assert not found.may_retry("connect_only")


@pytest.mark.parametrize("code", [401, 403])
def test_a_refused_key_of_gslbs_own(code: int) -> None:
    found = status(code, key=True)
    assert found is not None
    assert found.is_auth
    assert not found.may_pass_back
    assert found.outcome is Outcome.NEUTRAL
    assert failure.final_error([found]).code == "upstream_auth"


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_no_answer(code: int) -> None:
    found = failed(code)
    assert (found.result, found.outcome) == ("protocol_error", Outcome.SERVER_ERROR)
    assert not found.may_pass_back, "its Location is an address of the inside"
    assert failure.final_error([found]).code == "upstream_error"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (200, ("ok", Outcome.SUCCESS)), (400, ("ok", Outcome.NEUTRAL)), (404, ("ok", Outcome.NEUTRAL)),
        (429, ("status_429", Outcome.FULL)), (500, ("status_5xx", Outcome.SERVER_ERROR)),
        (503, ("status_5xx", Outcome.SERVER_ERROR)),
    ],
)  # fmt: skip
def test_status_outcome(code: int, expected: tuple[str, Outcome]) -> None:
    assert failure.status_outcome(code)[:2] == expected


REFUSED = failure.connect_failure(ConnectFailed("connect_error", "refused"), "eu")
TIMEOUT = failure.broken("timeout", "silent", "eu")
RESET = failure.broken("reset", "reset", "eu")
GARBLED = failure.broken("protocol_error", "what", "eu")


@pytest.mark.parametrize(
    ("failures", "code", "http_status", "retry_after_s"),
    [
        ([REFUSED], "no_healthy_region", 503, 1),
        ([REFUSED, failed(503, 7), failed(429, 3)], "no_healthy_region", 503, 3),
        ([failed(429, 9), failed(429, 4)], "saturated", 429, 4),
        ([failed(429)], "saturated", 429, 1),
        ([failed(429, 0)], "saturated", 429, 1),
        ([failed(429, 9), TIMEOUT], "upstream_timeout", 504, None),
        ([TIMEOUT, failed(503)], "no_healthy_region", 503, 1),
        ([RESET], "upstream_error", 502, None),
        ([RESET, RESET], "upstream_error", 502, None),
        ([GARBLED], "upstream_error", 502, None),
        ([REFUSED, RESET], "no_healthy_region", 503, 1),
        ([failure.error_event_failure("x", "eu")], "no_healthy_region", 503, 1),
    ],
)
def test_the_answer_after_the_last_attempt(
    failures: list[Failure], code: str, http_status: int, retry_after_s: int | None
) -> None:
    error = failure.final_error(failures)
    assert (error.code, error.status, error.retry_after_s) == (code, http_status, retry_after_s)
    assert "refused" not in error.message
    assert failure.final_outcome(failures) == ("timeout" if failures[-1] is TIMEOUT else "upstream_error")


def test_only_what_was_never_sent_is_replayed_under_the_strict_rule() -> None:
    assert REFUSED.may_retry("connect_only")
    for found in (TIMEOUT, RESET, GARBLED):
        assert not found.may_retry("connect_only")
        assert found.may_retry("any")


def error_event(code: int | None) -> bytes:
    return (
        b"data: " + json.dumps({"error": {"message": "x", "code": code}}, separators=(",", ":")).encode() + b"\n\n"
    )


@pytest.mark.parametrize(
    ("tail", "is_error"),
    [
        ([], False), ([b"data: [DONE]\n\n"], False), ([error_event(500)], True), ([error_event(None)], True),
        ([error_event(400)], False), ([error_event(429)], True),
        ([b"data: {}\n\n", error_event(500), b"data: [DONE]\n\n"], True),
        ([error_event(500)[:15], error_event(500)[15:]], True),
        ([b'data: {"text":"data: {\\"error\\":"}\n\n'], False),
        ([b'data: {"choices":[{"finish_reason":"abort"}]}\n\n', b"data: [DONE]\n\n"], True),
        ([b'data: {"text":"\\"finish_reason\\":\\"abort\\""}\n\n'], False),
    ],
)  # fmt: skip
def test_ends_in_error(tail: list[bytes], is_error: bool) -> None:
    assert failure.ends_in_error(b"".join(tail)) is is_error
