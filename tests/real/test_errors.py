"""Errors reach the official client as its own exception types, with a message, and blame no server."""

from __future__ import annotations

import openai
import pytest

from tests.real.fleet import Fleet
from tests.real.processes import MODEL, MODEL_LEN


def message_of(error: openai.APIStatusError) -> str:
    """The message in the body's `error` object, as the client hands it over."""
    assert isinstance(error.body, dict)
    message = error.body["message"]
    assert isinstance(message, str)
    return message


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_model_is_a_404_that_says_so(fleet: Fleet, stream: bool) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        fleet.client().chat.completions.create(
            model="no-such-model", messages=[{"role": "user", "content": "Hi"}], stream=stream
        )
    assert isinstance(caught.value, openai.APIStatusError)
    assert caught.value.code == "model_not_found"
    assert "no-such-model" in message_of(caught.value)
    assert caught.value.request_id


@pytest.mark.parametrize("stream", [False, True])
def test_too_long_a_prompt_is_the_servers_own_400(fleet: Fleet, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        fleet.client().completions.create(model=MODEL, prompt="x " * MODEL_LEN, stream=stream)
    assert str(MODEL_LEN) in message_of(caught.value)
    assert caught.value.response.headers["x-gslb-attempts"] == "1"
    assert fleet.gslb.states() == {"eu": "admitting", "us": "admitting"}


def test_a_bad_value_is_the_servers_own_400(fleet: Fleet) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        fleet.client().completions.create(model=MODEL, prompt="Hello", temperature=-1)
    assert message_of(caught.value)
    assert caught.value.response.headers["x-gslb-attempts"] == "1"


def test_a_pin_to_no_region_is_a_400(fleet: Fleet) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        fleet.client(pinned="mars").completions.create(model=MODEL, prompt="Hello")
    assert "mars" in message_of(caught.value)
