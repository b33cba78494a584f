"""`gslb mock-vllm`: one mock vLLM server as a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import click
import uvloop

from gslb.mock.faults import Fault, FaultError, parse_faults
from gslb.mock.metrics import DIALECTS
from gslb.mock.settings import MockSettings
from gslb.mock.vllm import MockVllm


def _read_wan(
    _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, float], ...]:
    read = []
    for value in values:
        cidr, _, rtt_ms = value.rpartition("=")
        try:
            read.append((cidr, float(rtt_ms)))
        except ValueError:
            raise click.BadParameter(f"{value!r} is not CIDR=MS, such as 10.1.0.0/16=85") from None
    return tuple(read)


def _read_faults(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> list[Fault]:
    read: list[Fault] = []
    for value in values:
        try:
            read += parse_faults(json.loads(value))
        except (FaultError, json.JSONDecodeError) as error:
            raise click.BadParameter(f"{value!r}: {error}") from None
    return read


@click.command("mock-vllm")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=0, show_default="a free one", type=click.IntRange(0, 65535))
@click.option("--model", "models", multiple=True, help="Model name; repeat for aliases of the same model.")
@click.option("--lora", "loras", multiple=True, metavar="NAME[=BASE]", help="Adapter and its base model.")
@click.option("--slots", default=256, show_default=True, help="Sequences that run at once (max_num_seqs).")
@click.option("--prefill-ms-per-token", default=0.05, show_default=True, help="Per uncached prompt token.")
@click.option("--itl-ms", default=10.0, show_default=True, help="Inter-token time of a lone sequence.")
@click.option("--itl-per-seq-ms", default=0.1, show_default=True, help="Added per further sequence.")
@click.option("--api-key", help="Key that /v1/* asks for (default: none).")
@click.option("--queue-limit", type=int, help="Requests that may wait before 503 (default: no limit).")
@click.option(
    "--wan",
    multiple=True,
    callback=_read_wan,
    metavar="CIDR=MS",
    help="Round trip of clients in a range; the first match wins.",
)
@click.option("--wan-default-ms", default=0.0, show_default=True, help="Round trip of all other clients.")
@click.option("--shutdown-timeout", default=0.0, show_default=True, help="Seconds to drain on SIGTERM.")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    callback=_read_faults,
    metavar="JSON",
    help='Such as \'{"status":503,"count":2}\'.',
)
@click.option("--time-scale", default=1.0, show_default=True, help="Multiplies all simulated durations.")
@click.option("--seed", default=0, show_default=True, help="Of texts and ids.")
@click.option("--max-model-len", default=131_072, show_default=True, help="Context length in tokens.")
@click.option("--default-max-tokens", default=64, show_default=True, help="Answer length when none is asked.")
@click.option("--kv-blocks", default=8192, show_default=True, help="KV cache size in blocks of 16 tokens.")
@click.option("--sse-keep-alive", default=0.0, show_default=True, help="Seconds between comments while queued.")
@click.option("--metrics-dialect", default="current", show_default=True, type=click.Choice(DIALECTS))
@click.option("--realtime", "has_realtime", is_flag=True, help="Serve /v1/realtime: a WebSocket that echoes.")
@click.option("--identity", default="", help="Who answers: in system_fingerprint and as the first word.")
def mock_vllm(
    models: tuple[str, ...],
    loras: tuple[str, ...],
    wan: tuple[tuple[str, float], ...],
    faults: list[Fault],
    host: str,
    port: int,
    shutdown_timeout: float,
    sse_keep_alive: float,
    **plain: object,
) -> None:
    """Run a stand-in for a vLLM server: streaming, batching with a queue, prefix cache, metrics, faults.

    Faults can be changed while it runs: POST (set) or DELETE (clear) /mock/faults; GET /mock/state tells its load.
    SIGTERM behaves as vLLM's does, see --shutdown-timeout; SIGINT stops at once.
    """
    names = models or ("mock-model",)
    try:
        settings = MockSettings(
            models=names,
            loras={adapter: base or names[0] for adapter, _, base in (lora.partition("=") for lora in loras)},
            wan=wan,
            shutdown_timeout_s=shutdown_timeout,
            sse_keep_alive_s=sse_keep_alive,
            **plain,  # type: ignore[arg-type]
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(MockVllm(settings), host, port, faults))
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


async def _serve(mock: MockVllm, host: str, port: int, faults: list[Fault]) -> None:
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[signal.Signals] = loop.create_future()

    def ask(which: signal.Signals) -> None:
        if not asked.done():
            asked.set_result(which)
        elif which is signal.SIGINT:
            # A second thought: no more patience with clients that stay.
            mock.kill()

    for which in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(which, ask, which)
    await mock.start(host, port)
    mock.set_faults(*faults)
    click.echo(f"mock-vllm ready on {mock.url}")
    sys.stdout.flush()
    if await asked is signal.SIGTERM:
        await mock.terminate()
    else:
        await mock.stop()
