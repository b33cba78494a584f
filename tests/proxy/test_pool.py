"""Connections to one endpoint: what is kept how long, and what a failed connect is called."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import patch

import pytest

from gslb.proxy.pool import ConnectFailed, EndpointPool, Resolver
from gslb.proxy.upstream import UpstreamConnection
from tests.support.raw_client import until
from tests.support.raw_upstream import RawUpstream

Opened = UpstreamConnection | ConnectFailed


async def opened(pool: EndpointPool) -> Opened:
    """One fresh connection, or why there is none."""
    found: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
    pool.open(found.set_result)
    return await asyncio.wait_for(found, 8)


@asynccontextmanager
async def listening(host: str = "127.0.0.1") -> AsyncIterator[RawUpstream]:
    one = RawUpstream()
    await one.start(host)
    try:
        yield one
    finally:
        one.stop()


def pool_of(url: str, **more: Any) -> EndpointPool:
    return EndpointPool(asyncio.get_running_loop(), url, **more)


async def test_opened_given_back_taken_again() -> None:
    async with listening() as one:
        pool = pool_of(one.url)
        connection = await opened(pool)
        assert isinstance(connection, UpstreamConnection)
        assert pool.take_idle(0) is None
        pool.give_back(connection, None)
        now_s = connection.idle_until_s - 0.1
        assert pool.take_idle(now_s) is connection
        assert pool.take_idle(now_s) is None
        assert pool.opened == len(one.links) == 1
        pool.close()
        await until(lambda: one.links[0].is_closed or one.links[0].ended)


async def test_the_last_used_comes_first_and_the_old_are_retired() -> None:
    async with listening() as one:
        pool = pool_of(one.url, idle_s=4.0)
        made = [await opened(pool) for _ in range(3)]
        for age, connection in enumerate(made):
            assert isinstance(connection, UpstreamConnection)
            pool.give_back(connection, None)
            connection.idle_until_s = 104.0 + age
        assert pool.take_idle(103.9) is made[2]
        pool.retire(104.5)
        await until(lambda: sum(link.is_closed or bool(link.ended) for link in one.links) == 1)
        assert pool.take_idle(106.0) is None, "too old, though nobody retired it"
        await until(lambda: sum(link.is_closed or bool(link.ended) for link in one.links) == 2)
        pool.close()


async def test_a_connection_that_was_lost_is_not_handed_out() -> None:
    async with listening() as one:
        pool = pool_of(one.url)
        connection = await opened(pool)
        assert isinstance(connection, UpstreamConnection)
        pool.give_back(connection, None)
        await until(lambda: one.links)
        one.links[0].close()
        await until(lambda: connection.is_lost)
        assert pool.take_idle(connection.idle_until_s - 1.0) is None


@pytest.mark.parametrize(("announced_s", "kept_s"), [(None, 4.0), (60.0, 4.0), (4.5, 4.0), (1.0, 0.5)])
async def test_limits_on_idleness(announced_s: float | None, kept_s: float) -> None:
    async with listening() as one:
        pool = pool_of(one.url, idle_s=4.0)
        connection = await opened(pool)
        assert isinstance(connection, UpstreamConnection)
        for age_s, found in ((kept_s - 0.1, connection), (kept_s + 0.1, None)):
            pool.give_back(connection, announced_s)
            assert pool.take_idle(asyncio.get_running_loop().time() + age_s) is found
        pool.close()


async def test_what_one_connection_was_told_binds_no_other() -> None:
    """Found by fuzzing: one answer with `Keep-Alive: timeout=0` ended all reuse of its endpoint for good."""
    async with listening() as one:
        pool = pool_of(one.url, idle_s=4.0)
        first, second = await opened(pool), await opened(pool)
        assert isinstance(first, UpstreamConnection)
        assert isinstance(second, UpstreamConnection)
        pool.give_back(first, 0.0)
        assert first.is_lost
        pool.give_back(second, None)
        assert pool.take_idle(second.idle_until_s - 0.1) is second
        pool.close()


async def test_a_replaced_pool_keeps_nothing() -> None:
    async with listening() as one:
        pool = pool_of(one.url)
        idle, busy = await opened(pool), await opened(pool)
        assert isinstance(idle, UpstreamConnection)
        assert isinstance(busy, UpstreamConnection)
        pool.give_back(idle, None)
        pool.close_idle()
        assert idle.is_lost
        assert not busy.is_lost
        pool.give_back(busy, None)
        assert busy.is_lost


async def test_refused() -> None:
    async with listening() as one:
        pool = pool_of(one.url)
    failed = await opened(pool)
    assert isinstance(failed, ConnectFailed)
    assert failed.result == "connect_error"
    assert "127.0.0.1" not in failed.why


async def test_fc10_e_a_connect_that_hangs_is_given_up() -> None:
    """FC-10 e and a: separate clocks."""
    with socket.socket() as full:  # its queue is full, so that further connects wait
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        held = [socket.socket() for _ in range(4)]
        for each in held:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        failed = await opened(pool_of(f"http://127.0.0.1:{port}", connect_s=0.2))
        for each in held:
            each.close()
    assert isinstance(failed, ConnectFailed)
    assert failed.result == "connect_error"
    assert "0.2 s" in failed.why


async def test_giving_up_a_connect_leaves_nothing_open() -> None:
    async with listening() as one:
        pool = pool_of(one.url)
        handed: list[Opened] = []
        for rounds in range(6):
            task = pool.open(handed.append)
            for _ in range(rounds):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for connection in handed:
            assert isinstance(connection, UpstreamConnection)
            connection.abort()
        await until(
            lambda: all(link.is_closed or link.ended for link in one.links), "what was given up to be closed"
        )


async def test_tls_to_a_plain_port_is_a_tls_error() -> None:
    import ssl

    async with listening() as one:
        one.on_connect = [b"HTTP/1.1 400 Bad Request\r\n\r\n"]
        pool = pool_of(one.url.replace("http:", "https:"), tls=ssl.create_default_context())
        failed = await opened(pool)
    assert isinstance(failed, ConnectFailed)
    assert failed.result == "tls_error"


@pytest.mark.parametrize(
    ("url", "base_path", "host"),
    [
        ("http://a.example", b"", b"a.example"), ("http://a.example:8000/base", b"/base", b"a.example:8000"),
        ("http://[::1]:8000", b"", b"[::1]:8000"),
    ],
)  # fmt: skip
async def test_host_and_path(url: str, base_path: bytes, host: bytes) -> None:
    pool = pool_of(url, api_key="k")
    assert pool.base_path == base_path
    assert pool.fields == b"Host: %b\r\nAuthorization: Bearer k\r\n" % host
    assert pool.has_key
    assert pool_of(url).fields == b"Host: %b\r\n" % host


# --- names --------------------------------------------------------------------------------------------


class Names:
    """A loop whose look-ups answer what a test says."""

    def __init__(self, *addresses: str) -> None:
        self.addresses: tuple[str, ...] | OSError = addresses
        self.asked = 0
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    async def getaddrinfo(self, host: str, port: int, type: int) -> list[Any]:
        self.asked += 1
        if isinstance(self.addresses, OSError):
            raise self.addresses
        return [(0, type, 0, "", (address, port)) for address in self.addresses]


def resolver(names: Names, host: str = "vllm.internal", keep_s: float = 10.0) -> Resolver:
    return Resolver(cast(asyncio.AbstractEventLoop, names), host, 80, keep_s)


async def test_an_address_is_never_looked_up() -> None:
    names = Names()
    assert await resolver(names, "::1").addresses() == ["::1"]
    one = resolver(names, "10.0.0.1")
    one.doubt()
    assert await one.addresses() == ["10.0.0.1"]
    assert names.asked == 0


async def test_fc15_f_a_name_is_kept_for_its_time_and_no_longer() -> None:
    """FC-15 f and a: pooled connections that the endpoint closes."""
    names = Names("10.0.0.2", "10.0.0.2")
    one = resolver(names)
    assert await one.addresses() == ["10.0.0.2"]
    names.addresses = ("10.0.0.3",)
    names.now_s = 9.9
    assert await one.addresses() == ["10.0.0.2"]
    names.now_s = 10.0
    assert await one.addresses() == ["10.0.0.3"]
    assert names.asked == 2


async def test_fc15_f_a_failed_connect_looks_again_at_once() -> None:
    """FC-15 f and a: pooled connections that the endpoint closes."""
    names = Names("10.0.0.2")
    one = resolver(names)
    await one.addresses()
    names.addresses = ("10.0.0.3",)
    one.doubt()
    assert await one.addresses() == ["10.0.0.3"]


async def test_fc15_f_a_failed_look_up_keeps_what_was_known() -> None:
    """FC-15 f and a: pooled connections that the endpoint closes."""
    names = Names("10.0.0.2")
    one = resolver(names)
    await one.addresses()
    names.addresses = socket.gaierror(socket.EAI_AGAIN, "try again")
    names.now_s = 100
    assert await one.addresses() == ["10.0.0.2"]
    with pytest.raises(ConnectFailed, match="not resolved"):
        await resolver(names).addresses()


async def test_fc15_f_a_name_that_moved_is_found_by_the_next_connection() -> None:
    """FC-15 f and a: pooled connections that the endpoint closes."""
    loop = asyncio.get_running_loop()
    async with listening("127.0.0.2") as old, listening("127.0.0.3") as new:
        new.stop()
        new.port = old.port
        await new.start("127.0.0.3")
        places = ["127.0.0.2"]

        async def found(host: str, port: int, type: int) -> list[Any]:
            return [(0, type, 0, "", (place, port)) for place in places]

        names = Names()
        with patch.object(names, "getaddrinfo", found):
            pool = EndpointPool(loop, f"http://vllm.internal:{old.port}", dns_s=1000)
            pool._resolver._loop = cast(asyncio.AbstractEventLoop, names)
            assert isinstance(await opened(pool), UpstreamConnection)
            places[:] = ["127.0.0.3"]
            old.stop()
            assert isinstance(await opened(pool), ConnectFailed)
            assert isinstance(await opened(pool), UpstreamConnection)
        await until(lambda: new.links)
        pool.close()


async def test_whatever_goes_wrong_who_asked_hears_of_it() -> None:
    """An error that is no OSError (here of IDNA) once left the request waiting for ever."""
    pool = pool_of("http://a..b:9001")
    found = await opened(pool)
    assert isinstance(found, ConnectFailed)
    assert found.result == "connect_error"
