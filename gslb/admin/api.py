"""The admin API on its own listener: liveness, metrics, status, explanations; with a token, the operator's hand.

Liveness never depends on upstreams; readiness only on having a configuration and not stopping.
"""

from __future__ import annotations

import asyncio
from inspect import isawaitable
from ipaddress import ip_address

import orjson
from aiohttp import hdrs, web
from prometheus_client.exposition import choose_encoder

from gslb.admin.answers import Handler, errors_as_json, json_answer, require_token
from gslb.admin.edge import AdminEdge, ExplainQuery
from gslb.admin.metrics import registry_of
from gslb.admin.status import edge_status, upstream_states
from gslb.errors import ApiError
from gslb.proxy.handover import HANDSHAKE_S, close_for_others, inode_of
from gslb.types import ForcedState

_BODY_BYTES = 64 * 1024
_EXPLAIN_PARAMETERS = ("ip", "model", "tenant", "prompt_tokens", "region")
_MOST_PROMPT_TOKENS = 100_000_000


def admin_app(edge: AdminEdge) -> web.Application:
    """The aiohttp application that serves the admin API of `edge`."""
    app = web.Application(middlewares=[errors_as_json], client_max_size=_BODY_BYTES)
    app.router.add_get("/healthz", _healthz)
    app.router.add_get("/readyz", _readyz(edge))
    app.router.add_get("/metrics", _metrics(edge))
    app.router.add_get("/api/v1/status", _status(edge))
    app.router.add_get("/api/v1/config", _config(edge))
    app.router.add_get("/api/v1/explain", _explain(edge))
    app.router.add_post("/api/v1/reload", _reload(edge))
    app.router.add_post("/api/v1/drain", _force(edge, ForcedState.DRAINING))
    app.router.add_post("/api/v1/undrain", _force(edge, ForcedState.NONE, only=ForcedState.DRAINING))
    app.router.add_post("/api/v1/cordon", _force(edge, ForcedState.CORDONED))
    app.router.add_post("/api/v1/uncordon", _force(edge, ForcedState.NONE, only=ForcedState.CORDONED))
    return app


class AdminServer:
    """The admin API on a TCP port."""

    def __init__(self, edge: AdminEdge) -> None:
        self._runner = web.AppRunner(admin_app(edge), access_log=None, handle_signals=False, shutdown_timeout=1.0)
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen, beside another process of the same user that may be giving the port over to this one
        (SO_REUSEPORT). Port 0 takes a free one. Raises OSError when the address cannot be had."""
        await self._runner.setup()
        assert self._runner.server is not None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._runner.server, host, port, reuse_port=True)

    @property
    def is_listening(self) -> bool:
        """True between `start` and `stop`."""
        return self._server is not None

    @property
    def port(self) -> int:
        """The port listened on. Raises RuntimeError before `start`."""
        if self._server is None:
            raise RuntimeError("the admin server is not listening: start it first")
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def inodes(self) -> list[int]:
        """What identifies the listening sockets; empty while there are none."""
        sockets = self._server.sockets if self._server is not None else ()
        return [inode_of(sock.fileno()) for sock in sockets]

    async def stop(self, *, is_followed: bool = False) -> None:
        """Close the listener and its connections. Harmless when not started.

        `is_followed`: another process listens there too, so that calls which come this way are still answered.
        """
        server, self._server = self._server, None
        if server is not None and is_followed:
            assert self._runner.server is not None
            await close_for_others(server, self._runner.server)
            await asyncio.sleep(HANDSHAKE_S)  # the calls of those accepted last
        if server is not None:
            server.close()
        await self._runner.cleanup()


# --- reading ------------------------------------------------------------------------------------------


async def _healthz(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _readyz(edge: AdminEdge) -> Handler:
    async def readyz(_request: web.Request) -> web.Response:
        is_ready, detail = edge.is_ready()
        document = {**detail, "ready": is_ready, "upstreams": upstream_states(edge)}
        return json_answer(document, 200 if is_ready else 503)

    return readyz


def _metrics(edge: AdminEdge) -> Handler:
    registry = registry_of(edge)

    async def metrics(request: web.Request) -> web.Response:
        await edge.synced()
        encode, content_type = choose_encoder(request.headers.get(hdrs.ACCEPT, ""))
        return web.Response(body=encode(registry), headers={hdrs.CONTENT_TYPE: content_type})

    return metrics


def _status(edge: AdminEdge) -> Handler:
    async def status(_request: web.Request) -> web.Response:
        await edge.synced()
        return json_answer(edge_status(edge))

    return status


def _config(edge: AdminEdge) -> Handler:
    async def config(_request: web.Request) -> web.Response:
        # Holds names of variables and files with secrets, never the secrets.
        return json_answer(
            {
                "generation": edge.counters.config_generation,
                "config": edge.settings().config.model_dump(mode="json"),
            }
        )

    return config


def _explain(edge: AdminEdge) -> Handler:
    async def explain(request: web.Request) -> web.Response:
        query = _explain_query(request)
        try:
            return json_answer(dict(edge.explain(query)))
        except ValueError as error:
            raise ApiError("bad_request", str(error)) from error

    return explain


def _explain_query(request: web.Request) -> ExplainQuery:
    for name in request.query:
        if name not in _EXPLAIN_PARAMETERS:
            raise ApiError("bad_request", f"unknown parameter: use {', '.join(_EXPLAIN_PARAMETERS)}", name[:64])
        if len(request.query.getall(name)) > 1:
            raise ApiError("bad_request", f"{name} is given twice: once, please", name)
    ip = request.query.get("ip") or None
    if ip is not None:
        try:
            ip = str(ip_address(ip))
        except ValueError:
            raise ApiError("bad_request", "ip must be an IPv4 or IPv6 address", "ip") from None
    tokens = request.query.get("prompt_tokens") or "0"
    if not (tokens.isascii() and tokens.isdigit() and len(tokens) <= 9 and int(tokens) <= _MOST_PROMPT_TOKENS):
        raise ApiError("bad_request", f"prompt_tokens must be 0..{_MOST_PROMPT_TOKENS}", "prompt_tokens")
    return ExplainQuery(
        ip=ip,
        model=request.query.get("model") or None,
        tenant=request.query.get("tenant") or None,
        prompt_tokens=int(tokens),
        region=request.query.get("region") or None,
    )


# --- changing -----------------------------------------------------------------------------------------


def _reload(edge: AdminEdge) -> Handler:
    async def reload(request: web.Request) -> web.Response:
        require_token(request, edge.settings().admin_token)
        problems = edge.reload()
        if isawaitable(problems):
            problems = await problems
        if problems:
            raise ApiError("config_refused", "\n".join(problems), status=422)
        return json_answer({"generation": edge.counters.config_generation})

    return reload


def _force(edge: AdminEdge, forced: ForcedState, only: ForcedState | None = None) -> Handler:
    """`only`: lift nothing but this hand, so that undraining a region leaves its cordoned endpoints cordoned."""

    async def force(request: web.Request) -> web.Response:
        require_token(request, edge.settings().admin_token)
        target = await _target(request)
        views = [v for v in edge.fleet.snapshot.endpoints if target in (v.endpoint.key, v.endpoint.region.name)]
        if not views:
            raise ApiError("not_found", f"no region or endpoint is called {target[:200]!r}", "target")
        touched = [
            view.endpoint.key
            for view in views
            if (only is None or view.forced is only) and edge.force(view.endpoint.key, forced)
        ]
        await edge.synced()
        return json_answer({"target": target, "forced": forced.value, "endpoints": touched})

    return force


async def _target(request: web.Request) -> str:
    try:
        document = orjson.loads(await request.read())
    except orjson.JSONDecodeError:
        document = None
    target = document.get("target") if isinstance(document, dict) else None
    if not isinstance(target, str) or not target:
        raise ApiError("bad_request", 'send {"target": "REGION or ENDPOINT KEY"}', "target")
    return target
