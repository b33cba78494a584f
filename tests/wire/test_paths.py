"""The paths that may pass, and what is told of the others."""

from __future__ import annotations

import pytest

from gslb.errors import ApiError, Dialect
from gslb.wire.paths import ROUTES, dialect_of, find_route, model_id_of


@pytest.mark.parametrize("path", ROUTES)
def test_routes_take_post_only(path: bytes) -> None:
    assert find_route(b"POST", path) is ROUTES[path]
    for method in (b"GET", b"HEAD", b"PUT", b"", b"post"):
        with pytest.raises(ApiError) as raised:
            find_route(method, path)
        assert (raised.value.status, raised.value.headers) == (405, [(b"Allow", b"POST")])


@pytest.mark.parametrize("path", [b"/v1/models", b"/v1/models/", b"/v1/models/a/b"])
def test_models_take_get_and_head(path: bytes) -> None:
    assert find_route(b"GET", path).kind == find_route(b"HEAD", path).kind == "models"
    with pytest.raises(ApiError) as raised:
        find_route(b"DELETE", path)
    assert raised.value.headers == [(b"Allow", b"GET, HEAD")]


@pytest.mark.parametrize("path", [b"", b"/", b"/v1/modelsx", b"/metrics", b"/v1/chat/completions/", b"/V1/models"])
def test_others_are_not_found(path: bytes) -> None:
    with pytest.raises(ApiError) as raised:
        find_route(b"GET", path)
    assert raised.value.code == "not_found"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"/v1/models", None), (b"/v1/models/", None), (b"/v1/models/m", "m"), (b"/v1/models/org/m", "org/m"),
        (b"/v1/models/org%2Fm", "org/m"), (b"/v1/models/%ff", "\ufffd"), (b"/v1/models/a%20b/", "a b"),
        (b"/v1/models/%", "%"),
    ],
)  # fmt: skip
def test_model_ids(path: bytes, name: str | None) -> None:
    assert model_id_of(path) == name


def test_dialects() -> None:
    assert dialect_of(b"/v1/messages") is Dialect.ANTHROPIC
    assert dialect_of(b"/v1/responses") is Dialect.RESPONSES
    assert dialect_of(b"/v1/chat/completions") is dialect_of(b"/nowhere") is Dialect.OPENAI
