"""One GET: https is verified, by the operator's own authority and name where configured; size is bounded."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from gslb.observe.fetch import Answer, Fetcher, FetchFailed, Target
from gslb.tls.contexts import client_tls


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for `llm.example` and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    ask = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=llm.example"
    name = ["-addext", "subjectAltName=DNS:llm.example"]
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", *ask.split(), *name, *files], check=True, capture_output=True)
    return cert, key


@pytest.fixture
async def url(certificate: tuple[Path, Path]) -> AsyncIterator[str]:
    async def health(_request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_get("/health", health)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetcher]:
    fetcher = Fetcher()
    yield fetcher
    fetcher.close()


async def ask(fetcher: Fetcher, target: Target, path: str, timeout_s: float, limit_bytes: int) -> Answer:
    """The answer to one GET. Raises FetchFailed."""
    ended: asyncio.Future[Answer | FetchFailed] = asyncio.get_running_loop().create_future()
    fetcher.get(target, path, timeout_s, limit_bytes, ended.set_result)
    result = await ended
    if isinstance(result, FetchFailed):
        raise result
    return result


async def test_own_authority_and_name(url: str, certificate: tuple[Path, Path], fetcher: Fetcher) -> None:
    target = Target(url, server_name="llm.example", tls=client_tls(certificate[0]))
    assert (await ask(fetcher, target, "/health", 10, 1000)).status == 200
    fetcher.start_over()
    assert (await ask(fetcher, target, "/health", 10, 1000)).status == 200


@pytest.mark.parametrize("server_name", [None, "other.example"])
async def test_another_name_is_refused(
    url: str, certificate: tuple[Path, Path], fetcher: Fetcher, server_name: str | None
) -> None:
    target = Target(url, server_name=server_name, tls=client_tls(certificate[0]))
    with pytest.raises(FetchFailed) as caught:
        await ask(fetcher, target, "/health", 10, 1000)
    assert caught.value.reason == "tls_error"


async def test_an_unknown_authority_is_refused(url: str, fetcher: Fetcher) -> None:
    with pytest.raises(FetchFailed) as caught:
        await ask(fetcher, Target(url, server_name="llm.example", tls=client_tls()), "/health", 10, 1000)
    assert caught.value.reason == "tls_error"


async def test_an_endless_answer_is_cut(fetcher: Fetcher) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 1000)

    app = web.Application()
    app.router.add_get("/metrics", endless)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        with pytest.raises(FetchFailed) as caught:
            await ask(fetcher, Target(f"http://127.0.0.1:{runner.addresses[0][1]}"), "/metrics", 10, 50_000)
        assert caught.value.reason == "too_large"
    finally:
        await runner.cleanup()
