"""How the admin API answers: JSON, errors in the OpenAI shape, and who may change things."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import hdrs, web

from gslb.errors import ApiError, Dialect, error_body

log = logging.getLogger("gslb.admin")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_JSON_OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


def json_answer(document: Any, status: int = 200) -> web.Response:
    """`document` as JSON, never cached."""
    return _answer(orjson.dumps(document, option=_JSON_OPTIONS), status)


def error_answer(error: ApiError) -> web.Response:
    """An error as the OpenAI API writes it."""
    answer = _answer(error_body(error, Dialect.OPENAI), error.status)
    if error.status == 401:
        answer.headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
    return answer


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns every failure into a JSON error; one that nobody expected is logged and becomes a plain 500."""
    try:
        return await handler(request)
    except ApiError as error:
        return error_answer(error)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        message = f"{request.path} takes {allowed}, not {request.method}"
        answer = error_answer(ApiError("method_not_allowed", message))
        answer.headers[hdrs.ALLOW] = allowed
        return answer
    except web.HTTPNotFound:
        return error_answer(ApiError("not_found", f"there is no {request.path} in the admin API"))
    except web.HTTPRequestEntityTooLarge:
        return error_answer(ApiError("payload_too_large", "the body is too large for an admin call"))
    except web.HTTPException as error:
        return error_answer(ApiError("bad_request", error.reason, status=error.status))
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        message = "gslb failed at this; its log says how"
        return error_answer(ApiError("internal_error", message, status=500))


def require_token(request: web.Request, token: str | None) -> None:
    """Raises ApiError unless the request carries the admin token.

    Compared as bytes and in constant time: a strange byte in the header is a wrong token, not a failure (FC-32).
    """
    if token is None:
        message = "changing calls need a token: set admin.token_env in the configuration"
        raise ApiError("admin_token_unset", message, status=403)
    lines = request.headers.getall(hdrs.AUTHORIZATION, [])
    scheme, _, given = lines[0].partition(" ") if len(lines) == 1 else ("", "", "")
    is_right = hmac.compare_digest(
        given.strip(" \t").encode("utf-8", "surrogateescape"), token.encode("utf-8", "surrogateescape")
    )
    if scheme.lower() != "bearer" or not is_right:
        raise ApiError("invalid_api_key", "send the admin token: Authorization: Bearer TOKEN")


def _answer(body: bytes, status: int) -> web.Response:
    return web.Response(
        body=body,
        status=status,
        content_type="application/json",
        headers={hdrs.CACHE_CONTROL: "no-store"},
    )
