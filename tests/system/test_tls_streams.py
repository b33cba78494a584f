"""What holds in plain holds over TLS: the tests of streams, cut streams, back-pressure and departures again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.authority import Authority
from tests.support.edge import RunningEdge, config_of, running_edge
from tests.system.conftest import MakeEdge
from tests.system.test_disconnect import (  # noqa: F401 - collected here with this module's `edge`
    test_fc12_a_before_the_head,
    test_fc12_b_after_the_head,
    test_fc12_c_between_events,
    test_fc12_d_while_uploading,
    test_fc12_e_while_another_endpoint_is_tried,
    test_fc12_while_connecting,
)
from tests.system.test_streaming import (  # noqa: F401 - the same
    test_fc07_payload_passes_as_bytes_and_a_comment_at_once,
    test_fc07_payload_received_is_payload_sent_in_any_segmentation,
    test_fc07_the_same_bytes_come_out_wherever_they_are_cut,
    test_fc08_a_cut_stream_never_looks_complete,
    test_fc08_an_http_10_client_is_reset_when_its_stream_is_cut,
    test_fc08_c_a_short_answer_with_a_length,
    test_fc08_e_an_answer_that_ends_at_close_is_complete,
    test_fc09_a_one_error_event_between_events,
    test_fc11_events_pass_one_by_one_without_compression,
    test_fc11_no_delay_on_both_sockets,
    test_fc13_a_client_that_vanishes_while_paused_frees_the_upstream,
    test_fc13_a_slow_client_holds_the_upstream_back_and_gets_every_byte,
)
from tests.system.tls import section


@pytest.fixture
async def edge(tmp_path: Path, authority: Authority, localhost: tuple[Path, Path]) -> AsyncIterator[MakeEdge]:
    """As everywhere, over TLS."""
    async with AsyncExitStack() as stack:

        async def start(
            fleet: Mapping[str, Any], environ: Mapping[str, str] | None = None, **sections: Any
        ) -> RunningEdge:
            config = config_of(fleet, **{"tls": section(localhost), **sections})
            running = await stack.enter_async_context(running_edge(config, tmp_path, environ))
            running.tls = authority.trusting()
            return running

        yield start
