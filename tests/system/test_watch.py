"""Files that change are noticed however they are changed: FC-29, FC-30 and FC-31 without a signal."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
from pathlib import Path
from typing import Any

import yaml

from gslb.observe.watch import EndpointWatch
from tests.geo.shared_data import SHARED, needs_test_databases
from tests.support.edge import RunningEdge, config_of
from tests.support.raw_client import chat, request, until
from tests.system.conftest import MakeEdge, MakeUpstream
from tests.system.tls import replace

ASK = request(chat())


async def region_of(running: RunningEdge) -> str | None:
    running.note_own_loads()
    return (await running.ask(ASK)).one("x-gslb-region")


def text_of(running: RunningEdge, fleet: dict[str, Any], **sections: Any) -> str:
    config = config_of(fleet, watch=True, **sections)
    return yaml.safe_dump({"observability": {"access_log": str(running._log_path)}, **config})


async def generation(running: RunningEdge, number: int) -> None:
    await until(lambda: running.edge.counters.config_generation == number, f"generation {number}")


async def test_fc_29_a_kubernetes_swaps_its_data_link(edge: MakeEdge, upstream: MakeUpstream) -> None:
    ones = {name: await upstream() for name in ("eu", "us", "ap")}
    running = await edge({"eu": [ones["eu"]]}, watch=True)
    path = running._config_path
    path.unlink()
    path.symlink_to("..data/gslb.yaml")
    data = path.parent / "..data"
    old: Path | None = None
    for number, name in enumerate(("us", "ap", "eu"), 2):
        fresh = path.parent / f"..2026_{number}"
        fresh.mkdir()
        (fresh / "gslb.yaml").write_text(text_of(running, {name: [ones[name]]}))
        link = path.parent / "..data_tmp"
        link.symlink_to(fresh.name)
        os.replace(link, data)
        if old is not None:
            shutil.rmtree(old)
        old = fresh
        await generation(running, number)
        await until(lambda: running.serves(ones[name], "m"))  # noqa: B023 - awaited within the turn
        assert await region_of(running) == name
    assert running.edge.counters.config_reload_failures == 0


async def test_fc_29_b_an_editor_renames_over_the_file(edge: MakeEdge, upstream: MakeUpstream) -> None:
    ones = {name: await upstream() for name in ("eu", "us", "ap")}
    running = await edge({"eu": [ones["eu"]]}, watch=True)
    for number, name in enumerate(("us", "ap", "eu"), 2):
        replace(running._config_path, text_of(running, {name: [ones[name]]}))
        await generation(running, number)
        running.note_own_loads()


async def test_fc_29_c_a_file_written_in_pieces_is_read_when_it_is_whole(
    edge: MakeEdge, upstream: MakeUpstream
) -> None:
    eu, us = await upstream(), await upstream()
    running = await edge({"eu": [eu]}, watch=True)
    text = text_of(running, {"us": [us]})
    with running._config_path.open("w") as file:
        for start in range(0, len(text), 40):
            file.write(text[start : start + 40])
            file.flush()
            running.edge._watch.look()
            assert running.edge.counters.config_generation == 1
    await generation(running, 2)
    running.note_own_loads()
    assert running.edge.counters.config_reload_failures == 0


async def test_fc_29_d_a_file_that_goes_and_comes_back(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(), await upstream()
    running = await edge({"eu": [eu]}, watch=True)
    running._config_path.unlink()
    await until(lambda: running.edge.counters.config_reload_failures == 1, "the loss to be told")
    for _ in range(6):
        assert not running.edge._watch.look(), "once"
    assert await region_of(running) == "eu"
    running._config_path.write_text(text_of(running, {"us": [us]}))
    await generation(running, 2)
    running.note_own_loads()
    assert running.edge.counters.config_reload_failures == 1


async def test_fc_29_e_another_date_is_no_change(edge: MakeEdge, upstream: MakeUpstream) -> None:
    running = await edge({"eu": [await upstream()]}, watch=True)
    text = running._config_path.read_text()
    looked = counted_looks(running)
    for _ in range(2):
        replace(running._config_path, text)
        seen = len(looked)
        await until(lambda: len(looked) > seen + 3, "some looks")  # noqa: B023 - awaited within the turn
    assert not any(looked)
    assert running.edge.counters.config_generation == 1


async def test_fc_29_f_without_the_watch_a_reload_is_asked_for(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(), await upstream()
    running = await edge({"eu": [eu]}, watch=False)
    looked = counted_looks(running)
    running.write_config(config_of({"us": [us]}))
    await asyncio.sleep(1.2)
    assert looked == []
    assert running.edge.counters.config_generation == 1
    assert running.edge.reload() == []
    running.note_own_loads()
    assert running.edge.counters.config_generation == 2


async def test_fc_30_a_mistake_is_told_once_and_its_cure_noticed(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """Also where the cure comes to a file that only the refused configuration names."""
    eu, us = await upstream(), await upstream()
    running = await edge({"eu": [eu]}, watch=True)
    key = running._config_path.parent / "us.key"
    keyed: dict[str, Any] = {"us": [{"url": us.url, "api_key_file": "us.key"}]}
    replace(running._config_path, text_of(running, keyed))
    await until(lambda: running.edge.counters.config_reload_failures == 1, "the refusal")
    for _ in range(6):
        assert not running.edge._watch.look()
    assert await region_of(running) == "eu"
    key.write_text("sk-1\n")
    await generation(running, 2)
    await until(lambda: running.serves(us, "m"))
    assert await region_of(running) == "us"
    assert us.requests[0].one("authorization") == "Bearer sk-1"
    replace(key, "sk-2\n")
    await generation(running, 3)
    await running.ask(ASK)
    assert us.requests[1].one("authorization") == "Bearer sk-2"


async def test_a_signal_and_the_watch_do_not_reload_twice(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(), await upstream()
    running = await edge({"eu": [eu]}, watch=True)
    running._config_path.write_text(text_of(running, {"us": [us]}))
    assert running.edge.reload() == []
    running.note_own_loads()
    for _ in range(4):
        assert not running.edge._watch.look()
    assert running.edge.counters.config_generation == 2


async def test_fc_31_reloads_by_the_watch_leave_one_prober(edge: MakeEdge, upstream: MakeUpstream) -> None:
    eu, us = await upstream(), await upstream()
    running = await edge({"eu": [eu]}, watch=True)
    for number, fleet in enumerate(({"eu": [eu], "us": [us]}, {"us": [us]}, {"eu": [eu], "us": [us]}), 2):
        replace(running._config_path, text_of(running, fleet))
        await generation(running, number)
        running.note_own_loads()
    keys = [f"eu/127.0.0.1:{eu.port}", f"us/127.0.0.1:{us.port}"]
    assert running.edge.observer.watched == set(keys)

    def watches() -> list[str]:
        """Of every watch that something still holds on to, such as a timer of the loop."""
        gc.collect()
        alive = [found._key for found in gc.get_objects() if isinstance(found, EndpointWatch)]
        return sorted(key for key in alive if key in keys)

    await until(lambda: watches() == keys, "one watch each")


@needs_test_databases
async def test_a_location_database_is_swapped_under_traffic(edge: MakeEdge, upstream: MakeUpstream) -> None:
    """A broken one changes nothing; no request meets a moment without a database."""
    database = SHARED / "geoip" / "GeoIP2-City-Test.mmdb"
    one = await upstream()
    running = await edge({"eu": [one]})
    folder = running._config_path.parent
    current = folder / "city.mmdb"
    shutil.copy(database, current)
    geo = {"database": "city.mmdb", "trusted_proxies": ["127.0.0.0/8"], "embedded": False}
    assert running.reload(config_of({"eu": [one]}, geo=geo, watch=True)) == []
    from_britain = request(chat(), fields=(("X-Forwarded-For", "81.2.69.160"),))
    client = await running.connect()
    stopped = asyncio.Event()

    async def ask_on() -> None:
        while not stopped.is_set():
            assert (await client.ask(from_britain)).status == 200
            await asyncio.sleep(0.01)

    asking = asyncio.create_task(ask_on())
    current.write_bytes(database.read_bytes()[:-5000])  # truncated in place
    await until(lambda: running.edge.counters.config_reload_failures == 1, "the broken file to be refused")
    fresh = folder / "fresh"
    shutil.copy(database, fresh)
    fresh.rename(current)
    await generation(running, 3)
    stopped.set()
    await asking
    await until(lambda: running.open_exchanges == 0)
    assert {record["country"] for record in running.records()} == {"GB"}


def counted_looks(running: RunningEdge) -> list[bool]:
    """Every result of the watch from now on."""
    looked: list[bool] = []
    watch: Any = running.edge._watch
    look = watch.look

    def counting() -> bool:
        looked.append(look())
        return looked[-1]

    watch.look = counting
    return looked
