"""Several worker processes: a tenant's limit is the edge's; TLS, its rotation and its hand-over."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from pathlib import Path

from tests.support.authority import Authority
from tests.support.process import GslbProcess, worker_of
from tests.support.raw_client import Answer, RawClient, chat, request, until
from tests.support.raw_upstream import DONE, GOOD, event
from tests.system.conftest import MakeUpstream
from tests.system.test_workers import MakeGslb, close_all, config_for, endless, gslb, until_it
from tests.system.tls import Rotating, section

__all__ = ["gslb"]  # the fixture

ASK = request(chat())
STREAM = request(chat(stream=True))


async def test_fc35_a_tenants_limit_holds_for_all_workers_together(
    gslb: MakeGslb, upstream: MakeUpstream, tmp_path: Path
) -> None:
    """FC-35: max_concurrency is exact, whichever worker a connection came to; a place given back is anybody's."""
    (tmp_path / "key").write_text("sk-acme")
    gate = asyncio.Event()
    one = await upstream(*endless(gate, 3))
    tenants = {"acme": {"key_file": str(tmp_path / "key"), "max_concurrency": 3}}
    running = await gslb(config_for({"eu": [one]}, tenants=tenants))
    ask = request(chat(stream=True), fields=(("Authorization", "Bearer sk-acme"),))
    asked: list[tuple[RawClient, Answer]] = []
    for _ in range(16):
        client = await RawClient.connect(running.port)
        found = client.send(ask)
        await until(lambda: found.body, "a first event or a refusal")  # noqa: B023
        asked.append((client, found))
    pids = await running.workers()
    assert {await worker_of(client, pids) for client, _ in asked} == set(pids)
    assert [found.status for _, found in asked] == [200] * 3 + [429] * 13
    assert await running.metric("gslb_tenant_inflight") == 3
    gate.set()
    for client, found in asked[:3]:
        assert (await client.whole(found)).body == event("A") + DONE
    assert (await asked[-1][0].ask(request(chat(), fields=(("Authorization", "Bearer sk-acme"),)))).status == 200
    assert await running.metric("gslb_tenant_inflight") == 0
    close_all(asked)


async def test_fc37_a_tenants_rate_holds_for_all_workers_together(
    gslb: MakeGslb, upstream: MakeUpstream, tmp_path: Path
) -> None:
    """FC-37: a burst over connections to all workers is exact, also after a worker has died."""
    (tmp_path / "key").write_text("sk-acme")
    one = await upstream(default=[GOOD])
    tenants = {"acme": {"key_file": str(tmp_path / "key"), "rate": {"requests": 1, "per": "24h", "burst": 30}}}
    running = await gslb(config_for({"eu": [one]}, tenants=tenants))
    ask = request(chat(), fields=(("Authorization", "Bearer sk-acme"),))
    clients = [await RawClient.connect(running.port) for _ in range(16)]
    pids = await running.workers()
    assert {await worker_of(client, pids) for client in clients} == set(pids)
    statuses = [(await client.ask(ask)).status for client in clients]
    assert statuses == [200] * 16
    os.kill(pids[0], signal.SIGKILL)

    async def is_replaced() -> bool:
        now = await running.workers()
        return len(now) == len(pids) and pids[0] not in now

    await until_it(is_replaced, "another worker")
    more = [await RawClient.connect(running.port) for _ in range(30)]
    answers = [client.send(ask) for client in more]
    await until(lambda: all(found.is_complete for found in answers))
    served = [found.status for found in answers].count(200)
    # Two that go for the last place may both step back; then one that comes later gets it.
    served += [(await client.ask(ask)).status for client in more].count(200)
    assert served == 14
    assert len(one.requests) == 30
    assert await running.metric("gslb_rate_limited_total") == 60 - 14
    for client in (*clients, *more):
        client.close()


async def on_each_worker(running: GslbProcess, count: int) -> list[list[RawClient]]:
    """Connections by the worker that has accepted them, at least `count` for each."""
    pids = await running.workers()
    found: dict[int, list[RawClient]] = {pid: [] for pid in pids}
    while min(map(len, found.values())) < count:
        client = await RawClient.connect(running.port)
        found[await worker_of(client, pids)].append(client)
    return list(found.values())


async def test_what_both_workers_hold_is_counted_together_and_served(
    gslb: MakeGslb, upstream: MakeUpstream
) -> None:
    """The only place is one worker's, with more of its own waiting when it comes free; nobody tells the other."""
    gates = [asyncio.Event() for _ in range(8)]
    one = await upstream(*([gate, GOOD] for gate in gates))
    running = await gslb(config_for({"eu": [{"url": one.url, "capacity": 1, "models": ["m"]}]}))
    mine, theirs = await on_each_worker(running, 7)

    async def depth_is(wanted: int) -> bool:
        return await running.metric("gslb_queue_depth") == wanted

    answers = [mine[0].send(ASK)]
    await until(lambda: one.requests)
    answers.append(theirs[0].send(ASK))
    await until_it(lambda: depth_is(1), "one held")
    answers += [client.send(ASK) for client in mine[1:7]]
    await until_it(lambda: depth_is(7), "the held of both workers together")
    for count, gate in enumerate(gates, 1):
        await until(lambda: len(one.requests) == count)  # noqa: B023
        gate.set()
    await until(lambda: all(found.is_complete for found in answers))
    assert {found.status for found in answers} == {200}
    assert await running.metric("gslb_queue_depth") == 0
    for client in mine + theirs:
        client.close()


async def serials_shown(running: GslbProcess, tls: ssl.SSLContext, count: int = 24) -> set[str]:
    """The serial numbers that fresh handshakes are shown, enough of them that no worker is left out."""
    serials = set()
    for _ in range(count):
        client = await RawClient.connect(running.port, tls=tls)
        assert client.transport is not None
        serials.add(str(client.transport.get_extra_info("peercert")["serialNumber"]))
        client.close()
    return serials


async def test_fc06_d_every_worker_shows_the_renewed_certificate(
    gslb: MakeGslb, upstream: MakeUpstream, authority: Authority, tmp_path: Path
) -> None:
    """FC-06 d over two processes: one that caught the pair half written would go on with the old one."""
    rotating = Rotating(authority, tmp_path)
    running = await gslb(
        config_for({"eu": [await upstream()]}, tls=section((rotating.cert, rotating.key)), watch=True)
    )
    tls = authority.trusting()
    assert await serials_shown(running, tls) == {rotating.serial}
    rotating.issue()
    rotating.put_cert()
    rotating.put_key()

    async def is_renewed() -> bool:
        return await serials_shown(running, tls) == {rotating.serial}

    await until_it(is_renewed, "the new certificate everywhere")


async def test_another_process_takes_over_a_tls_port(
    gslb: MakeGslb, upstream: MakeUpstream, authority: Authority, tmp_path: Path
) -> None:
    """No handshake is lost and no request fails while one process follows another."""
    rotating = Rotating(authority, tmp_path)
    config = config_for({"eu": [await upstream()]}, tls=section((rotating.cert, rotating.key)))
    tls = authority.trusting()
    old = await gslb(config, "old")
    is_over = False
    statuses: list[int] = []

    async def keep_asking() -> None:
        while not is_over:
            client = await RawClient.connect(old.port, tls=tls)
            statuses.append((await client.ask(ASK)).status)
            client.close()

    asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
    new = await gslb(config, "new")
    await new.until_said("another process listens")
    old.signal(signal.SIGTERM)
    assert await old.ended() == 0
    before = len(statuses)
    await until(lambda: len(statuses) > before + 20, "requests to the new one alone")
    is_over = True
    await asyncio.gather(*asking)
    assert set(statuses) == {200}
