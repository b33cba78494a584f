from __future__ import annotations

import pytest

from gslb.routing.profiles import PROFILES, Profile
from gslb.sim.capacity import requests_per_s
from gslb.sim.setting import EngineSpec

EVEN = Profile(10.0, 0.0, 0.0, 0.1, 0.1)


def test_the_formula_by_hand() -> None:
    spec = EngineSpec("e", EVEN, slots=10, kv_tokens=100_000)
    # A step of ten answers with 100 tokens each ends 0.1 of one, and prefills 100 ms for the next one: 10 + 10 ms.
    assert requests_per_s(spec, [(1000, 100)]) == pytest.approx(10 / (1.0 + 10 * 0.1))
    assert requests_per_s(spec, [(1000, 100)], cached_share=0.5) == pytest.approx(10 / (1.0 + 10 * 0.05))
    assert requests_per_s(spec, [(500, 50), (1500, 150)]) == pytest.approx(5.0)


def test_memory_bounds_the_batch() -> None:
    wide = EngineSpec("e", EVEN, slots=1000, kv_tokens=2100)
    narrow = EngineSpec("e", EVEN, slots=2, kv_tokens=10**9)
    assert requests_per_s(wide, [(1000, 100)]) == requests_per_s(narrow, [(1000, 100)])
    assert requests_per_s(EngineSpec("e", EVEN, kv_tokens=1), [(1000, 100)]) > 0


def test_faster_hardware_takes_more() -> None:
    chat = [(1155, 211)]
    h100 = requests_per_s(EngineSpec("e", PROFILES["h100-70b-tp8"]), chat)
    a100 = requests_per_s(EngineSpec("e", PROFILES["a100-70b-tp8"]), chat)
    assert h100 > 1.4 * a100


def test_without_lengths_there_is_none() -> None:
    with pytest.raises(ValueError, match="no lengths"):
        requests_per_s(EngineSpec("e", EVEN), [])
