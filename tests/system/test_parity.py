"""Decisions made live, under load, failures and an outage, come out the same one by one when they are replayed."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gslb.cli_replay import replay as replay_command
from gslb.config.load import load_config
from gslb.mock.faults import Fault
from gslb.mock.vllm import MockVllm
from gslb.native import is_native
from gslb.serve import serve, why_not_recorded
from gslb.sim.parity import replay
from gslb.sim.recording import Recording
from tests.support.edge import ADMIN_TOKEN, RunningEdge, config_of, running_edge
from tests.support.process import GslbProcess, free_port
from tests.support.raw_client import RawClient, chat, request, until
from tests.system.conftest import MakeMock

pytestmark = pytest.mark.skipif(is_native(), reason="compiled rooms cannot be listened to")

PROMPT = "whatever the client said in confidence"
FAULTS = (
    Fault(reset=True, count=2), Fault(status=503, count=3), Fault(error_event=True, count=2),
    Fault(fin_after_events=2, count=1), Fault(garbage=True, count=1), Fault(status=429, count=2),
)  # fmt: skip


def unexpected(fault: Exception) -> None:
    raise AssertionError(f"recording failed: {fault}")


def fleet_of(mocks: list[MockVllm]) -> dict[str, list[dict[str, Any]]]:
    """Two endpoints in each of three regions, one of each with a cap."""
    regions = ("eu", "us", "ap")
    return {
        name: [{"url": mocks[2 * i].url, "capacity": 6}, {"url": mocks[2 * i + 1].url}]
        for i, name in enumerate(regions)
    }


async def ask_away(running: RunningEdge, lot: Random, count: int, explains: bool = False) -> Counter[int]:
    """One client after the other on a connection of its own; returns the statuses."""
    statuses: Counter[int] = Counter()
    for _ in range(count):
        client = await running.connect()
        text = PROMPT + " x" * lot.randrange(2000)
        fields = [("x-gslb-latency-budget-ms", str(lot.choice((50, 2000, 60_000))))]
        if explains:
            fields.append(("x-gslb-explain", "1"))
        body = chat(prompt=text, stream=lot.random() < 0.7, max_tokens=lot.randrange(1, 12))
        asked = request(body, fields=tuple(fields))
        found = client.send(asked)
        if lot.random() < 0.15:
            await asyncio.sleep(0)
            client.close()  # leaves before it has an answer
            continue
        await until(lambda: found.is_complete or client.ended)  # noqa: B023 - awaited within the turn
        statuses[found.status] += 1
        client.close()
    return statuses


async def go_wrong(mocks: list[MockVllm], lot: Random, busy: asyncio.Event) -> None:
    """Faults here and there while clients ask; then a region is gone for a while."""
    while not busy.is_set():
        lot.choice(mocks).set_faults(lot.choice(FAULTS))
        await asyncio.sleep(0.02)


async def test_live_decisions_are_decided_again(tmp_path: Path, mock: MakeMock) -> None:
    lines: list[str] = []
    recording = Recording(lines.append, unexpected, 11, {"gslb": "test"})
    mocks = [await mock(prefill_ms_per_token=0.002) for _ in range(6)]
    sections: dict[str, Any] = {
        "health": {
            "interval": "200ms", "timeout": "200ms", "scrape_interval": "100ms", "scrape_timeout": "100ms",
            "ejection": "300ms",
        },
        "edge": {"location": "aws:eu-central-1"},
        "routing": {"over_budget": "refuse"},
    }  # fmt: skip
    config = config_of(fleet_of(mocks), **sections)
    lot = Random(5)
    statuses: Counter[int] = Counter()
    async with running_edge(config, tmp_path, making=recording) as running:

        async def load(clients: int, each: int, explains: bool = False) -> None:
            for part in await asyncio.gather(
                *(ask_away(running, Random(lot.random()), each, explains) for _ in range(clients))
            ):
                statuses.update(part)

        await load(8, 6)
        busy = asyncio.Event()
        faults = asyncio.create_task(go_wrong(mocks, lot, busy))
        await load(8, 8)
        busy.set()
        await faults
        for one in mocks[:2]:
            one.set_faults(Fault(refuse=True, health_status=500))
        await until(lambda: any('"do":"probe_failed"' in line for line in lines), "a probe to fail")
        await load(6, 6, explains=True)
        answer = await running.admin("/api/v1/drain", method="POST", body=b'{"target": "us"}', token=ADMIN_TOKEN)
        assert answer.status == 200
        await load(4, 4)
        fleet = fleet_of(mocks)
        assert running.reload(config_of({"eu": fleet["eu"], "ap": fleet["ap"][:1]}, **sections)) == []
        for one in mocks:
            one.set_faults()
        await load(6, 6)
        assert (await running.admin("/api/v1/explain?ip=203.0.113.7&model=m")).status == 200
        await until(lambda: running.open_exchanges == 0, "all exchanges to end")
        await until(lambda: any('"do":"tick"' in line for line in lines), "a second to pass")

    assert statuses[200] > 40
    parity = replay(lines)
    assert parity.difference is None
    assert parity.equal == parity.decisions > 100
    done = Counter(data["do"] for line in lines if "do" in (data := json.loads(line)))
    expected = {
        "route", "next_attempt", "explain", "open_ticket", "add", "configure", "probe_passed", "probe_failed",
        "outcome", "load_sampled", "models_learnt", "rtt_measured", "force", "tick",
    }  # fmt: skip
    assert expected <= done.keys(), "the test has seen all that a recording may hold"
    text = "".join(lines)
    assert PROMPT not in text
    assert ADMIN_TOKEN not in text
    before = set(re.findall(r"(..)127\.0\.0\.1", text))
    assert before <= {"//", "u/", "s/", "p/"}, "addresses of endpoints, in their URLs and keys, and of no client"


async def test_serve_records_and_replay_agrees(tmp_path: Path, mock: MakeMock) -> None:
    mocks = [await mock() for _ in range(6)]
    config = config_of(fleet_of(mocks), workers=1) | {"listen": f"127.0.0.1:{free_port()}"}
    config["admin"] = config["admin"] | {"listen": f"127.0.0.1:{free_port()}"}
    file = tmp_path / "decisions.jsonl"
    gslb = GslbProcess(config, tmp_path, arguments=("--record", str(file)))
    try:
        await gslb.start()
        for number in range(12):
            if number == 6:
                mocks[0].set_faults(Fault(refuse=True))
            client = await RawClient.connect(gslb.port)
            assert (await client.ask(request(chat(stream=number % 2 == 0)))).status == 200
            client.close()
        gslb.signal(signal.SIGTERM)
        assert await gslb.ended() == 0
    finally:
        await gslb.stop()
    result = CliRunner().invoke(replay_command, [str(file)])
    assert result.exit_code == 0, result.output
    decisions = int(result.stdout.split()[0])
    assert decisions >= 12
    assert result.stdout.startswith(f"{decisions} decisions, {decisions} equal")
    about = json.loads(file.read_text().partition("\n")[0])
    assert {"gslb", "config_sha256", "began", "seed", "format"} <= about.keys()


@pytest.mark.parametrize(
    ("workers", "file", "message"),
    [(2, "decisions.jsonl", "set workers: 1"), (1, "absent/decisions.jsonl", "No such file or directory")],
)
def test_what_cannot_be_recorded_is_not_started(
    workers: int, file: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gslb.yaml"
    config = config_of({"eu": [{"url": "http://127.0.0.1:9"}]}, workers=workers)
    path.write_text(yaml.safe_dump(config))
    assert serve(load_config(path, {"ADMIN_TOKEN": ADMIN_TOKEN}), str(tmp_path / file)) == 1
    said = capsys.readouterr().err
    assert said.startswith("gslb: --record: ")
    assert message in said


def test_compiled_rooms_are_not_recorded() -> None:
    assert "compiled" in (why_not_recorded(1, native=True) or "")
    assert why_not_recorded(1, native=False) is None
