"""One request on its way through the mock: routed, checked, given to the engine, answered, or broken."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gslb.mock import answers_plain, realtime, refusals, routes
from gslb.mock.answers import KEEP_ALIVE_COMMENT, Answer, Framing
from gslb.mock.asks import Ask, decode_object, read_ask
from gslb.mock.engine import QueueFull, Token, Work
from gslb.mock.faults import NO_FAULT, Fault
from gslb.mock.http1 import JSON_TYPE, LAST_CHUNK, VARY, body_headers, chunk, head, stream_headers
from gslb.mock.refusals import Headers, Refusal
from gslb.mock.sabotage import Sabotage
from gslb.mock.words import Speech, block_hashes

if TYPE_CHECKING:
    from gslb.mock.connection import Connection, RequestRecord
    from gslb.mock.vllm import MockVllm


class Exchange:
    """One request and its answer. `begin` is called when the request has arrived at the server (half an RTT
    after it was received), `abandon` when the server learns that the client has left."""

    def __init__(self, server: MockVllm, connection: Connection, record: RequestRecord, half_rtt_s: float) -> None:
        self.server = server
        self.connection = connection
        self.record = record
        self.half_rtt_s = half_rtt_s
        self.work_id = server.next_id()
        self.is_done = False
        self.fault: Fault = NO_FAULT
        self._loop = asyncio.get_running_loop()
        self._sabotage: Sabotage | None = None
        self._timer: asyncio.TimerHandle | None = None
        close_asked = "close" in (record.header("connection") or "").lower()
        self.is_closing = close_asked or record.http_version == "1.0"

    def begin(self) -> None:
        """Look at the request and start answering."""
        if self.is_done:
            return
        path = self.record.target.partition("?")[0]
        self.fault = self._take_fault(path)
        if self.fault.slow_headers_ms > 0:
            self._timer = self._loop.call_later(self.fault.slow_headers_ms / 1e3, self._route, path)
        else:
            self._route(path)

    def abandon(self) -> None:
        """The client is gone: free what is held."""
        if not self.is_done:
            self.server.aborted += 1
        self._end()

    def drop(self) -> None:
        """The server itself goes: nothing more is done, and nobody is blamed for leaving."""
        self._end()

    def _take_fault(self, path: str) -> Fault:
        book = self.server.book
        if path == "/health":
            return book.take_for_health()
        if path == "/metrics":
            return book.take_for_metrics()
        is_inference = (self.record.method == "POST" and path in routes.APIS) or self._is_realtime(path)
        return book.take_for_request() if is_inference else NO_FAULT

    def _route(self, path: str) -> None:
        fault = self.fault
        if fault.hang or fault.health_hang or fault.metrics_hang:
            return
        if fault.garbage:
            self._write(b"\x16\x03\x01 not http at all \xff\xfe\r\n\r\n\x00\x01\x02")
            self._leave(is_reset=False)
            return
        if fault.reset:
            self._leave(is_reset=True)
            return
        try:
            self._answer(path)
        except Refusal as refusal:
            self._refuse(refusal)

    def _answer(self, path: str) -> None:
        status = self.fault.status or self.fault.health_status or self.fault.metrics_status
        if status is not None:
            raise refusals.scripted(status, self.fault.retry_after)
        self._check_key(path)
        if self._is_realtime(path):
            headers = realtime.switch_headers(self.record.header("sec-websocket-key") or "")
            self._write(head(101, headers, self.server.unix_s()))
            self.connection.echo = realtime.Echo()
            return
        api = routes.api_of(path, self.server.settings)
        if api is None:
            content_type, body = routes.answer_plain(self.server, self.record, path)
            self._send_body(200, body, content_type)
            return
        if self.record.method != "POST":
            raise refusals.method_not_allowed("POST")
        if self.server.is_draining:
            raise refusals.shutting_down()
        document = decode_object(self.record.body, self.record.header("content-type") or "")
        try:
            ask = read_ask(api, document, self.server.settings)
            self._start(ask)
        except Refusal as refusal:
            raise (routes.as_anthropic(refusal) if api == "messages" else refusal) from None

    def _is_realtime(self, path: str) -> bool:
        is_offered = (self.record.header("upgrade") or "").lower() == "websocket"
        return is_offered and path == realtime.PATH and self.server.settings.has_realtime

    def say(self, data: bytes) -> None:
        """What an opened WebSocket says."""
        self._write(data)

    def hang_up(self) -> None:
        """The closing handshake is done: the server closes first (RFC 6455 7.1.1)."""
        self._leave(is_reset=False)

    def _check_key(self, path: str) -> None:
        key = self.server.settings.api_key
        if key is None or not path.startswith("/v1"):
            return
        scheme, _, token = (self.record.header("authorization") or "").partition(" ")
        if scheme.lower() != "bearer" or token != key:
            raise refusals.unauthorized()

    def _start(self, ask: Ask) -> None:
        settings = self.server.settings
        if ask.is_stream and self.fault != NO_FAULT:
            self._sabotage = Sabotage.of(self.fault)
        elif self.fault.error_event or self.fault.error_event_after is not None:
            raise refusals.engine_dead()
        work = Work(
            self.work_id,
            ask.prompt_tokens,
            ask.max_tokens,
            block_hashes(ask.prompt, settings.block_size, ask.model),
            ask.finish_reason,
        )
        given_id = self.record.header("x-request-id")
        framing = Framing(
            request_id=given_id or self.server.hex_id(self.work_id),
            created_s=int(self.server.unix_s()),
            fingerprint=settings.fingerprint,
            has_prompt_tokens_details=settings.has_prompt_tokens_details,
        )
        answer = routes.answer_for(ask, framing)
        speech = Speech(settings.seed, settings.identity, ask.prompt)
        taker = Taker(self, ask, framing, answer, speech)
        try:
            self.server.driver.submit(work, taker.on_token)
        except QueueFull:
            raise refusals.queue_full() from None
        if ask.is_stream and answer is not None:
            self._begin_stream(answer)

    def _begin_stream(self, answer: Answer) -> None:
        headers = stream_headers(self.is_closing, self._id_headers())
        self._write(head(200, headers, self.server.unix_s()))
        self.send_events(answer.greeting(), is_last=False)
        if not self.is_done and self.server.settings.sse_keep_alive_s > 0:
            self._timer = self._loop.call_later(self.server.settings.sse_keep_alive_s, self._keep_alive)

    def _keep_alive(self) -> None:
        self._write(chunk(KEEP_ALIVE_COMMENT))
        self._timer = self._loop.call_later(self.server.settings.sse_keep_alive_s, self._keep_alive)

    def stop_keep_alive(self) -> None:
        """The first token is here: no more comments."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def send_events(self, events: list[bytes], is_last: bool) -> None:
        """Put SSE events on the wire, one HTTP chunk each, in one write; end the stream after the last."""
        if self.is_done:
            return
        if self._sabotage is None:
            data = b"".join(map(chunk, events))
            if is_last:
                data += LAST_CHUNK
        else:
            data = self._sabotage.passed(events)
            if is_last and not self._sabotage.is_tripped:
                data += LAST_CHUNK
        if data:
            self._write(data)
        if self._sabotage is not None and self._sabotage.is_tripped:
            self._trip(self._sabotage.ending)
        elif is_last:
            self._finish()

    def _trip(self, ending: str) -> None:
        self.server.driver.abort(self.work_id)
        self.stop_keep_alive()
        if ending == "clean":
            self._finish()
        elif ending in ("reset", "fin"):
            self._leave(is_reset=ending == "reset")

    def send_json(self, body: bytes) -> None:
        """Send a whole answer, with the load header if it was asked for."""
        orca = answers_plain.orca_header(
            self.record.header("endpoint-load-metrics-format") or "",
            self.server.driver.waiting,
            self.server.driver.kv_usage,
        )
        before: Headers = () if orca is None else (orca,)
        sabotage = Sabotage.of(self.fault)
        if sabotage is None:
            self._send_body(200, body, JSON_TYPE, before)
            return
        half = body[: len(body) // 2]
        if sabotage.is_bad_chunk:
            framing = (*before, (b"content-type", JSON_TYPE), VARY, (b"transfer-encoding", b"chunked"))
            self._write(head(200, framing, self.server.unix_s()) + chunk(half) + b"zz\r\n")
        else:
            headers = body_headers(len(body), before=before, behind=self._behind())
            self._write(head(200, headers, self.server.unix_s()) + half)
        self._trip(sabotage.ending)

    def _send_body(
        self,
        status: int,
        body: bytes,
        content_type: bytes | None,
        before: Headers = (),
        has_vary: bool = True,
    ) -> None:
        if not self.is_done:
            headers = body_headers(
                len(body), content_type, before=before, has_vary=has_vary, behind=self._behind(has_vary)
            )
            data = head(status, headers, self.server.unix_s())
            self._write(data if self.record.method == "HEAD" else data + body)
            self._finish()

    def _refuse(self, refusal: Refusal) -> None:
        self._send_body(refusal.status, refusal.body, JSON_TYPE, refusal.headers, refusal.has_vary)

    def _id_headers(self) -> Headers:
        if not self.server.settings.has_request_id_headers:
            return ()
        given_id = self.record.header("x-request-id")
        return ((b"x-request-id", (given_id or self.server.hex_id(self.work_id) * 2).encode("latin-1")),)

    def _behind(self, has_vary: bool = True) -> Headers:
        ids = self._id_headers() if has_vary else ()
        return (*ids, (b"connection", b"close")) if self.is_closing else ids

    def _write(self, data: bytes) -> None:
        self.connection.write(data, self.half_rtt_s)

    def _leave(self, is_reset: bool) -> None:
        self._end()
        if is_reset:
            self.connection.reset(self.half_rtt_s)
        else:
            self.connection.close(self.half_rtt_s)

    def _finish(self) -> None:
        self._end()
        self.connection.exchange_done(self.is_closing, self.half_rtt_s)

    def _end(self) -> None:
        if not self.is_done:
            self.is_done = True
            self.stop_keep_alive()
            self.server.driver.abort(self.work_id)


class Taker:
    """What takes an exchange's tokens from the engine and says them in its API's words."""

    __slots__ = ("_told", "answer", "ask", "exchange", "framing", "speech")

    def __init__(
        self, exchange: Exchange, ask: Ask, framing: Framing, answer: Answer | None, speech: Speech
    ) -> None:
        self.exchange = exchange
        self.ask = ask
        self.framing = framing
        self.answer = answer
        self.speech = speech
        self._told = 0

    def on_token(self, token: Token) -> None:
        """Called by the engine's driver for every token."""
        if self.answer is None:
            self.exchange.send_json(answers_plain.pooling(self.ask, self.framing))
        elif not self.ask.is_stream:
            if token.finish_reason is not None:
                text = self.speech.between(0, token.made)
                body = self.answer.whole(text, token.made, token.finish_reason, token.cached_tokens)
                self.exchange.send_json(body)
        else:
            self._stream(token, self.answer)

    def _stream(self, token: Token, answer: Answer) -> None:
        # A reader that does not keep up gets the tokens it missed in one event later, as from vLLM: the
        # server's memory stays bounded.
        if self.exchange.connection.is_write_paused and token.finish_reason is None:
            return
        events = []
        if self._told == 0:
            self.exchange.stop_keep_alive()
            events += answer.opening()
        text = self.speech.between(self._told, token.made)
        self._told = token.made
        if token.finish_reason is None:
            events.append(answer.delta(text, token.made))
        else:
            events += answer.ending(text, token.made, token.finish_reason)
        self.exchange.send_events(events, is_last=token.finish_reason is not None)
