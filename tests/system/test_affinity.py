"""What a client may say of what its request belongs to and how urgent it is; what the edge learns of answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gslb.routing.affinity import Affinity
from gslb.types import Facts
from gslb.wire.openai import read_json_facts
from gslb.wire.prefix import BLOCK_TOKENS, affinity_hash, prefix_blocks, prefix_space
from tests.support.edge import RunningEdge, config_of
from tests.support.raw_client import chat, request, until
from tests.support.raw_upstream import DONE, GOOD, HANG, ROLE_EVENT, answer, event, stream
from tests.system.conftest import MakeEdge, MakeMock, MakeUpstream

SYSTEM = "".join(f"{number:07d} " for number in range(1024))  # four blocks
TENANTS: dict[str, Any] = {
    "acme": {"key_env": "ACME"},
    "zeta": {"key_env": "ZETA", "priority": "high"},
    "cheap": {"key_env": "CHEAP", "priority": "low"},
}
KEYS = {"ACME": "gk-1", "ZETA": "gk-2", "CHEAP": "gk-3"}


def usage(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    """A usage as vLLM writes it."""
    details = None if cached is None else {"cached_tokens": cached}
    return {
        "prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion,
        "prompt_tokens_details": details,
    }  # fmt: skip


def answered(**members: Any) -> list[bytes]:
    """The script of a whole answer."""
    return [answer(200, json.dumps({"choices": [], **members}, separators=(",", ":")).encode())]


def cached_at(running: RunningEdge) -> Affinity:
    return running.edge._door.affinity


def key_of(running: RunningEdge) -> str:
    (view,) = running.edge.fleet.snapshot.endpoints
    return view.endpoint.key


async def facts_of(
    edge: MakeEdge, upstream: MakeUpstream, raw: bytes, environ: dict[str, str] | None = None, **sections: Any
) -> Facts:
    """What the edge makes of a request."""
    running = await edge({"eu": [await upstream([HANG])]}, environ, **sections)
    client = await running.connect()
    client.send(raw)
    await until(lambda: running.in_flight == 1, "the request at the endpoint")
    (connection,) = running.edge._listener.connections
    exchange = connection._exchange
    assert exchange is not None
    assert exchange.admitted is not None
    assert exchange.admitted.facts is not None
    return exchange.admitted.facts


# --- what a request says ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "members", "mark"),
    [
        ({}, {}, None),
        ({"x-gslb-session": "s"}, {"prompt_cache_key": "k", "user": "u"}, ("session", "s")),
        ({"x-gslb-session": ""}, {"prompt_cache_key": "k", "user": "u"}, ("prompt_cache_key", "k")),
        ({}, {"user": "u", "metadata": {"user_id": "m"}}, ("user", "u")),
        ({}, {"metadata": {"user_id": "m"}}, ("user", "m")),
        ({}, {"prompt_cache_key": 7}, None),
    ],
)
async def test_what_marks_requests_that_belong_together(
    edge: MakeEdge,
    upstream: MakeUpstream,
    fields: dict[str, str],
    members: dict[str, Any],
    mark: tuple[str, str] | None,
) -> None:
    found = await facts_of(edge, upstream, request(chat(**members), fields=tuple(fields.items())))
    assert found.affinity_key == (None if mark is None else affinity_hash("", mark[0], mark[1].encode()))
    assert found.prefix_blocks == ()


async def test_a_long_prompt_is_known_by_its_blocks(edge: MakeEdge, upstream: MakeUpstream) -> None:
    found = await facts_of(edge, upstream, request(chat(prompt=SYSTEM)))
    assert found.prefix_blocks == prefix_blocks(chat(prompt=SYSTEM), prefix_space("", "m"))
    assert (len(found.prefix_blocks), found.block_tokens) == (4, BLOCK_TOKENS)


async def test_tenants_share_nothing(edge: MakeEdge, upstream: MakeUpstream) -> None:
    raw = request(
        chat(prompt=SYSTEM, user="u"), fields=(("Authorization", "Bearer gk-1"), ("x-gslb-session", "s"))
    )
    found = await facts_of(edge, upstream, raw, KEYS, tenants=TENANTS)
    assert found.affinity_key == affinity_hash("acme", "session", b"s") != affinity_hash("", "session", b"s")
    assert found.prefix_blocks == prefix_blocks(chat(prompt=SYSTEM), prefix_space("acme", "m"))


async def test_both_can_be_turned_off(edge: MakeEdge, upstream: MakeUpstream) -> None:
    raw = request(chat(prompt=SYSTEM, user="u"), fields=(("x-gslb-session", "s"),))
    off = {"affinity": {"session": False, "prefix": False}}
    found = await facts_of(edge, upstream, raw, routing=off)
    assert (found.affinity_key, found.prefix_blocks) == (None, ())


@pytest.mark.parametrize(("asked", "priority"), [(None, 0), ("high", 1), ("Normal", 0), ("LOW", -1)])
async def test_priority(edge: MakeEdge, upstream: MakeUpstream, asked: str | None, priority: int) -> None:
    fields = () if asked is None else (("x-gslb-priority", asked),)
    found = await facts_of(edge, upstream, request(chat(), fields=fields))
    assert found.priority == priority


@pytest.mark.parametrize(
    ("key", "asked", "priority"),
    [
        ("gk-1", None, 0), ("gk-1", "high", 0), ("gk-1", "low", -1),
        ("gk-2", None, 1), ("gk-2", "high", 1), ("gk-2", "normal", 0), ("gk-2", "low", -1),
        ("gk-3", None, -1), ("gk-3", "high", -1),
    ],
)  # fmt: skip
async def test_a_tenant_may_lower_its_priority_not_raise_it(
    edge: MakeEdge, upstream: MakeUpstream, key: str, asked: str | None, priority: int
) -> None:
    fields = [("Authorization", f"Bearer {key}")]
    if asked is not None:
        fields.append(("x-gslb-priority", asked))
    raw = request(chat(), fields=tuple(fields))
    assert (await facts_of(edge, upstream, raw, KEYS, tenants=TENANTS)).priority == priority


@pytest.mark.parametrize("asked", ["", "1", "urgent", "high,low"])
async def test_a_priority_that_is_none_is_refused(edge: MakeEdge, upstream: MakeUpstream, asked: str) -> None:
    one = await upstream()
    running = await edge({"eu": [one]})
    found = await running.ask(request(chat(), fields=(("x-gslb-priority", asked),)))
    assert (found.status, found.error["code"]) == (400, "bad_request")
    assert "high, normal or low" in found.error["message"]
    assert one.requests == []


# --- what answers teach -------------------------------------------------------------------------------


async def test_a_prompt_is_noted_with_its_first_token(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream([HANG], stream(ROLE_EVENT, event("A"), DONE))
    running = await edge({"eu": [one]})
    index = cached_at(running).index
    client = await running.connect()
    client.send(request(chat(prompt=SYSTEM, stream=True)))
    await until(lambda: one.requests)
    client.close()
    await until(lambda: running.open_exchanges == 0)
    assert index.blocks == 0, "nobody knows whether it was computed"
    await running.ask(request(chat(prompt=SYSTEM, stream=True)))
    assert index.blocks_of(key_of(running)) == 4


async def test_an_error_is_no_prompt_computed(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"eu": [await upstream([answer(400, b'{"error":{"message":"too long"}}')])]})
    assert (await running.ask(request(chat(prompt=SYSTEM)))).status == 400
    assert cached_at(running).index.blocks == 0


async def test_only_who_answered_has_it_cached(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"eu": [await upstream(["rst"])], "us": [await upstream(answered())]})
    assert (await running.ask(request(chat(prompt=SYSTEM)))).one("x-gslb-region") == "us"
    (key,) = cached_at(running).index.keys
    assert key.startswith("us/")


async def test_a_conversation_is_expected_with_its_answer(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"eu": [await upstream(answered(usage=usage(2000, 300)))]})
    session = (("x-gslb-session", "s"),)
    await running.ask(request(chat(prompt=SYSTEM), fields=session))
    document = chat(prompt=SYSTEM)
    document["messages"] += [{"role": "assistant", "content": "x" * 4000}]
    facts = Facts(
        "m", prompt_tokens=4000, affinity_key=affinity_hash("", "session", b"s"),
        prefix_blocks=prefix_blocks(document, prefix_space("", "m")), block_tokens=BLOCK_TOKENS,
    )  # fmt: skip
    expected = cached_at(running).expected(facts, running.edge._door.loop.time())
    assert expected is not None
    assert len(facts.prefix_blocks) == 5
    # four blocks by their hashes, but for the rest of the turn the engine's own count
    assert expected.tokens(key_of(running)) == 4 * BLOCK_TOKENS + len("user") // 4 + 4 + 300


@pytest.mark.parametrize("is_stream", [False, True])
async def test_answers_teach_whether_the_cache_keeps_its_word(
    edge: MakeEdge, upstream: MakeUpstream, is_stream: bool
) -> None:
    told = json.dumps({"choices": [], "usage": usage(2053, 1, 0)}, separators=(",", ":")).encode()
    script = stream(event("A"), b"data: " + told + b"\n\n", DONE) if is_stream else [answer(200, told)]
    running = await edge({"eu": [await upstream(default=script)]})
    for _ in range(8):
        await running.ask(request(chat(prompt=SYSTEM, stream=is_stream)))
    assert cached_at(running).trust(key_of(running)) < 0.3


def page(generated: int, queries: int = 0) -> str:
    """An engine's metrics; it has never found a prompt in its cache."""
    values = {
        "num_requests_running": 0, "num_requests_waiting": 0, "generation_tokens_total": generated,
        "prefix_cache_queries_total": queries, "prefix_cache_hits_total": 0,
    }  # fmt: skip
    return "".join(f"vllm:{name} {value}\n" for name, value in values.items())


async def test_counters_teach_it_where_answers_do_not(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream(default=answered())
    one.metrics = page(1)
    running = await edge({"eu": [one]}, health={"scrape_interval": "50ms"})
    ask = request(chat(prompt=SYSTEM))
    await running.ask(ask)
    await until(lambda: running.edge.fleet.snapshot.endpoints[0].load)
    cached_at(running).observed(running.edge.fleet.snapshot.endpoints)  # from here on counters tell growth
    for _ in range(12):
        await running.ask(ask)
    one.metrics = page(12, 12 * 2053)
    await until(lambda: cached_at(running).trust(key_of(running)) < 0.5, "the edge to look at the counters")


async def test_a_restarted_engine_has_nothing_cached(edge: MakeEdge, upstream: MakeUpstream) -> None:
    one = await upstream(default=answered())
    one.metrics = page(500)
    running = await edge({"eu": [one]}, health={"scrape_interval": "50ms"})
    index = cached_at(running).index
    await running.ask(request(chat(prompt=SYSTEM)))
    assert index.blocks == 4

    def scraped(generated: int) -> bool:
        (view,) = running.edge.fleet.snapshot.endpoints
        return view.load is not None and view.load.generation_tokens_total == generated

    await until(lambda: scraped(500))
    cached_at(running).observed(running.edge.fleet.snapshot.endpoints)
    assert index.blocks == 4
    one.metrics = page(3)
    await until(lambda: index.blocks == 0, "the edge to look")


async def test_an_endpoint_that_left_is_forgotten_within_a_second(edge: MakeEdge, upstream: MakeUpstream) -> None:
    first, second = await upstream(default=answered()), await upstream(default=answered())
    running = await edge({"eu": [first]})
    await running.ask(request(chat(prompt=SYSTEM)))
    assert cached_at(running).index.blocks == 4
    assert running.reload(config_of({"eu": [second]}, routing={"affinity": {"index_blocks": 3}})) == []
    await until(lambda: running.serves(second, "m"))
    await running.ask(request(chat(prompt=SYSTEM)))
    await until(lambda: cached_at(running).index.keys == [key_of(running)])
    assert cached_at(running).index.blocks == 3


# --- beside an engine -----------------------------------------------------------------------------------


async def conversation(running: RunningEdge, turns: int) -> list[tuple[float, float]]:
    """(share of the prompt expected to be cached, share that was) for each turn of a chat that grows."""
    messages: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
    shares = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{turn}: {SYSTEM[:700]}"})
        document = {"model": "m", "messages": messages, "max_tokens": 40}
        found = read_json_facts(json.dumps(document).encode())
        facts = Facts(
            "m", prompt_tokens=found.prompt_tokens, affinity_key=affinity_hash("", "session", b"s"),
            prefix_blocks=prefix_blocks(document, prefix_space("", "m")), block_tokens=BLOCK_TOKENS,
        )  # fmt: skip
        expected = cached_at(running).expected(facts, running.edge._door.loop.time())
        tokens = 0 if expected is None else expected.undoubted(key_of(running))
        told = json.loads((await running.ask(request(document, fields=(("x-gslb-session", "s"),)))).body)
        cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
        shares.append((tokens / facts.prompt_tokens, cached / told["usage"]["prompt_tokens"]))
        messages.append({"role": "assistant", "content": told["choices"][0]["message"]["content"]})
    return shares


async def test_what_is_expected_of_a_conversation_is_what_an_engine_finds(edge: MakeEdge, mock: MakeMock) -> None:
    running = await edge({"eu": [await mock(has_prompt_tokens_details=True)]})
    shares = await conversation(running, 6)
    assert shares[0] == (0.0, 0.0)
    for expected, found in shares[1:]:
        assert found > 0.7
        assert expected == pytest.approx(found, abs=0.1)
    assert cached_at(running).trust(key_of(running)) > 0.95


async def test_an_engine_that_says_it_can_keep_nothing_is_believed(edge: MakeEdge, mock: MakeMock) -> None:
    running = await edge({"eu": [await mock(has_prompt_tokens_details=True, kv_blocks=1)]})
    await conversation(running, 1)
    await until(lambda: running.edge.fleet.snapshot.endpoints[0].load)
    cached_at(running).observed(running.edge.fleet.snapshot.endpoints)
    shares = await conversation(running, 4)
    assert all(expected == 0.0 and found < 0.02 for expected, found in shares[1:])


# --- waiting for a cache ------------------------------------------------------------------------------


@pytest.mark.parametrize(("per_token", "is_waited_for"), [("10ms", True), ("0.01ms", False)])
async def test_the_full_endpoint_that_has_the_prompt_is_waited_for_as_long_as_that_saves(
    edge: MakeEdge, upstream: MakeUpstream, per_token: str, is_waited_for: bool
) -> None:
    """Two endpoints with one place each. A place is believed to come free in seconds: the prompt saves 20 s, or
    20 ms."""
    members = [await upstream(), await upstream()]
    places = [{"url": one.url, "capacity": 1} for one in members]
    running = await edge({"eu": places}, routing={"prefill_per_token": per_token})
    for one in members:
        one.next_script = lambda: [GOOD]  # type: ignore[method-assign]
    talk = request(chat(prompt=SYSTEM))
    client = await running.connect()
    assert (await client.ask(talk)).status == 200
    has, other = sorted(members, key=lambda one: -len(one.requests))
    gates = {one: asyncio.Event() for one in members}
    has.next_script = lambda: [gates[has], GOOD]  # type: ignore[method-assign]
    other.next_script = lambda: [gates[other], GOOD]  # type: ignore[method-assign]
    fillers = [await running.connect() for _ in range(2)]
    filled = [one.send(request(chat())) for one in fillers]
    await until(lambda: running.in_flight == 2, "both places taken")
    gates[other].set()
    await until(lambda: running.in_flight == 1, "room at the other")

    told = client.send(talk)
    if is_waited_for:
        await until(lambda: running.edge.counters.queue_depth == 1, "it waits")
        assert len(other.requests) == 1
        gates[has].set()
    assert (await client.whole(told)).status == 200
    assert len((has if is_waited_for else other).requests) == (3 if is_waited_for else 2)
    gates[has].set()
    for one, answer_of in zip(fillers, filled, strict=True):
        assert (await one.whole(answer_of)).status == 200
