"""The official client gets what it asks for, at the client's home region."""

from __future__ import annotations

import openai
import pytest

from tests.real.fleet import FRANKFURT, NEW_YORK, Fleet
from tests.real.processes import MODEL

TOKENS = 24
ANY_LENGTH = {"ignore_eos": True}  # random weights end where they like: ask for exactly TOKENS


def test_models_are_listed_and_found(fleet: Fleet) -> None:
    client = fleet.client()
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


@pytest.mark.parametrize("region", ["eu", "us"])
def test_chat_streamed_and_not_says_the_same(fleet: Fleet, region: str) -> None:
    client = fleet.client(pinned=region)
    whole = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Where are you?"}],
        temperature=0,
        max_tokens=TOKENS,
        extra_body=ANY_LENGTH,
    )
    assert whole.choices[0].message.content
    assert whole.usage is not None
    assert whole.usage.completion_tokens == TOKENS
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Where are you?"}],
            temperature=0,
            max_tokens=TOKENS,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=ANY_LENGTH,
        )
    )
    assert chunks[-1].usage == whole.usage
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "length"


@pytest.mark.parametrize("region", ["eu", "us"])
def test_completion_streamed_and_not_says_the_same(fleet: Fleet, region: str) -> None:
    client = fleet.client(pinned=region)
    whole = client.completions.create(
        model=MODEL, prompt="The quick", temperature=0, max_tokens=TOKENS, extra_body=ANY_LENGTH
    )
    assert whole.choices[0].text
    chunks = list(
        client.completions.create(
            model=MODEL, prompt="The quick", temperature=0, max_tokens=TOKENS, stream=True, extra_body=ANY_LENGTH
        )
    )
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize(("address", "home"), [(FRANKFURT, "eu"), (NEW_YORK, "us")])
def test_an_idle_fleet_serves_at_home(fleet: Fleet, address: str, home: str) -> None:
    raw = fleet.client(address).completions.with_raw_response.create(model=MODEL, prompt="Hello", max_tokens=4)
    assert raw.headers["x-gslb-region"] == home
    assert raw.headers["x-gslb-attempts"] == "1"
    record = fleet.gslb.record(raw.headers["x-request-id"])
    assert (record["home"], record["region"], record["outcome"]) == (home, home, "ok")
