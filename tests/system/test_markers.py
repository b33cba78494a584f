"""Prompts, answers and keys are nowhere but where they belong: not in logs, metrics, admin answers or files."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.edge import RunningEdge, config_of
from tests.support.raw_client import Answer, chat, request, until
from tests.support.raw_upstream import DONE, LAST, SSE_HEAD, RawUpstream, answer, chunk, event
from tests.system.conftest import MakeEdge, MakeUpstream

PROMPT, ANSWER = "PROMPTMARK7f3a", "ANSWERMARK91cc"
CLIENT_KEY, OTHER_KEY = "CLIENTKEYMARKd0d0", "WRONGKEYMARK5e5e"
ENDPOINT_KEY, TOKEN = "ENDPOINTKEYMARKabab", "ADMINTOKENMARK4242"
MARKS = (PROMPT, ANSWER, CLIENT_KEY, OTHER_KEY, ENDPOINT_KEY, TOKEN)
ENVIRON = {"ACME": CLIENT_KEY, "EU": ENDPOINT_KEY, "ADMIN_TOKEN": TOKEN}
TENANTS = {"acme": {"key_env": "ACME"}}

READS = [
    "/metrics",
    "/readyz",
    "/healthz",
    "/api/v1/status",
    "/api/v1/config",
    "/api/v1/explain?ip=127.0.0.1&model=m",
]


def ask(*, stream: bool = False, key: str = CLIENT_KEY, **more: Any) -> bytes:
    body = chat(stream=stream, prompt=f"tell me about {PROMPT}")
    fields = (("Authorization", f"Bearer {key}"), ("Cookie", f"session={OTHER_KEY}"))
    path = f"/v1/chat/completions?key={OTHER_KEY}"
    return request(more.pop("body", body), path=path, fields=(*fields, *more.pop("fields", ())), **more)


def told_as_error(status: int) -> bytes:
    body = {"error": {"message": f"cannot {ANSWER} for {ENDPOINT_KEY}: {PROMPT}"}}
    return answer(status, json.dumps(body).encode(), ("WWW-Authenticate", f'Bearer realm="{ENDPOINT_KEY}"'))


def marks_in(text: str) -> list[str]:
    return [mark for mark in MARKS if mark in text]


def files_in(directory: Path) -> dict[Path, str]:
    """The text of every file below `directory`."""
    return {path: path.read_text() for path in directory.rglob("*") if path.is_file()}


async def succeed(running: RunningEdge, eu: RawUpstream) -> None:
    """Answers that the client is meant to get."""
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
    eu.scripts.append([answer(200, json.dumps({"choices": [{"text": ANSWER}], "usage": {}}).encode())])
    eu.scripts.append([SSE_HEAD + b"".join(map(chunk, (event(ANSWER), usage, DONE))) + LAST])
    assert ANSWER.encode() in (await running.ask(ask())).body
    assert ANSWER.encode() in (await running.ask(ask(stream=True, fields=(("x-gslb-explain", "1"),)))).body


async def fail(running: RunningEdge, eu: RawUpstream, us: RawUpstream) -> list[Answer]:
    """Everything that goes wrong; returns the answers that gslb made itself."""
    eu.scripts.extend([[told_as_error(401)], [told_as_error(503)], [b"SSH " + ANSWER.encode() + b"\r\n\r\n"]])
    us.scripts.extend([[told_as_error(403)], [told_as_error(500)], ["rst"]])
    own = [await running.ask(ask(stream=stream)) for stream in (False, True, False)]
    own += [await running.ask(ask(key=key)) for key in (OTHER_KEY, CLIENT_KEY[:-1], CLIENT_KEY + "x", "")]
    bad = [
        f'{{"model":"m","prompt":"{PROMPT}",', f'["{PROMPT}"]', f'{{"prompt":"{PROMPT}"}}', PROMPT,
        f'{{"model":["{PROMPT}"]}}', f'{{"model":"m","prompt":"{PROMPT}\x01"}}',
    ]  # fmt: skip
    own += [await running.ask(ask(body=body)) for body in bad]
    own.append(await running.ask(ask(body=chat(prompt=PROMPT * 2000))))
    own.append(await running.ask(ask(fields=(("X-Big", OTHER_KEY * 1000),))))
    own.append(await running.ask(ask(fields=(("Content-Type", f"text/{PROMPT}"),))))
    own.append(await running.ask(ask(fields=(("x-gslb-latency-budget-ms", OTHER_KEY),))))
    own.append(await running.ask(ask(method="PUT")))
    own.append(await running.ask(ask().replace(b"/v1/chat/completions", b"/v1/nowhere")))
    own.append(await running.ask(b"POST / HTTP/1.1\r\nHost: a\r\nX Y: " + OTHER_KEY.encode() + b"\r\n\r\n"))
    # A cut stream, an error event, and a client that leaves.
    eu.scripts.append([SSE_HEAD + chunk(event(ANSWER)), "rst"])
    eu.scripts.append(
        [SSE_HEAD + chunk(event(ANSWER)) + chunk(b'data: {"error":"' + ANSWER.encode() + b'"}\n\n') + LAST]
    )
    eu.scripts.append([SSE_HEAD + chunk(event(ANSWER)), "hang"])
    for _ in range(3):
        client = await running.connect()
        found = client.send(ask(stream=True))
        await until(lambda: ANSWER.encode() in found.body)  # noqa: B023
        client.close()
        await until(lambda: running.open_exchanges == 0)
    return own


def bad_configs(good: dict[str, Any]) -> list[Any]:
    """Files that must be refused; some hold a secret where none belongs."""
    endpoint = dict(good["regions"]["eu"]["endpoints"][0])
    inline = {"location": "Frankfurt", "endpoints": [{**endpoint, "api_key": ENDPOINT_KEY}]}
    return [
        {**good, "regions": {"eu": inline}},
        {**good, "tenants": {"acme": {"key": CLIENT_KEY}}},
        {**good, "tenants": {"acme": {"key_env": "ACME"}, "again": {"key_env": "ACME"}}},
        {**good, "tenants": {"acme": {"key_env": "ODD"}}},
        {**good, "admin": {"listen": "127.0.0.1:0", "token": TOKEN}},
        f"regions:\n  eu: {{api_key: {ENDPOINT_KEY}, [}}\n",
        f'api_key: "{ENDPOINT_KEY}\n',
        f"api_key: {ENDPOINT_KEY}\napi_key: {ENDPOINT_KEY}\n\t- x",
    ]


async def test_markers_are_in_no_log_metric_admin_answer_error_or_file(
    edge: MakeEdge,
    upstream: MakeUpstream,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    caplog.set_level(logging.DEBUG)
    eu, us = await upstream(), await upstream()
    fleet: dict[str, Any] = {"eu": [{"url": eu.url, "api_key_env": "EU"}], "us": [us]}
    limits = {"head_bytes": "8KiB", "body_bytes": "16KiB"}
    running = await edge(fleet, ENVIRON, tenants=TENANTS, limits=limits, health={"passive_fall": 99})
    await succeed(running, eu)
    own = await fail(running, eu, us)
    running.environ["ODD"] = f"{CLIENT_KEY}\xe9 {OTHER_KEY}"
    problems = [
        problem
        for config in bad_configs(config_of(fleet, tenants=TENANTS, limits=limits))
        for problem in running.reload(config)
    ]
    assert len(problems) >= 8
    own.append(await running.admin("/api/v1/reload", method="POST", token=TOKEN))
    own.append(await running.admin("/api/v1/reload", method="POST", token=OTHER_KEY))
    own.append(await running.admin("/api/v1/drain", method="POST", token=TOKEN, body=f'{{"{PROMPT}'.encode()))
    own += [await running.admin(path) for path in READS]
    for found in own:
        assert not marks_in(bytes(found.body).decode() + str(found.fields)), found
    assert not marks_in("\n".join(problems)), problems
    assert not marks_in(running.log_text())
    assert not marks_in(caplog.text)
    assert not marks_in("".join(capfd.readouterr()))
    running.write_config("")  # the last bad file was the operator's own
    for path, text in files_in(tmp_path).items():
        assert not marks_in(text), path
    outcomes = {record["outcome"] for record in running.records()}
    assert {"ok", "client_gone", "refused", "upstream_error", "upstream_truncated"} <= outcomes, (
        "all of it happened"
    )
    # Where they belong: the prompt and the endpoint's own key went to the endpoint, the client's key to nobody.
    assert PROMPT.encode() in eu.requests[0].body
    assert {got.one("authorization") for got in eu.requests} == {f"Bearer {ENDPOINT_KEY}"}
    assert {got.one("authorization") for got in us.requests} == {None}
    assert not any(CLIENT_KEY.encode() in bytes(link.received) for link in (*eu.links, *us.links))
