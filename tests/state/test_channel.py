"""Messages arrive whole and in order, wherever the stream was cut."""

from __future__ import annotations

import asyncio
import socket

from hypothesis import given
from hypothesis import strategies as st

from gslb.state.channel import Channel, Message
from gslb.state.cpus import usable_cpus
from tests.support.raw_client import until


@given(st.lists(st.integers(1, 9), max_size=30))
def test_any_cut_gives_the_same_messages(cuts: list[int]) -> None:
    heard: list[Message] = []
    channel = Channel(heard.append, lambda: None)
    data = b'{"say":"a"}\n{"say":"b","n":[1,2]}\n{"say":"c"}\n'
    for cut in cuts:
        channel.data_received(data[:cut])
        data = data[cut:]
    if data:
        channel.data_received(data)
    assert heard == [{"say": "a"}, {"say": "b", "n": [1, 2]}, {"say": "c"}]


async def test_both_ends_and_the_end() -> None:
    here, there = socket.socketpair()
    heard: list[Message] = []
    lost = asyncio.Event()
    one = await Channel.open(here, heard.append, lost.set)
    other = await Channel.open(there, lambda message: None, lambda: None)
    assert other.say("long", text="x" * 1_000_000)
    assert other.say("short", n=1)
    other.close()
    await until(lost.is_set)
    assert [message["say"] for message in heard] == ["long", "short"]
    assert one.say("too late") is False


def test_there_is_at_least_one_cpu() -> None:
    assert usable_cpus() >= 1
