"""Rendezvous hashing with bounded load: edges and workers agree where a prompt belongs without talking.

Each endpoint has a weight for each key and the highest wins (Thaler and Ravishankar 1998), so that an endpoint
that goes moves its own keys only. Whoever has more than 1.25 times the average load is passed over (Mirrokni,
Thorup and Zadimoghaddam, SODA 2018), so that one popular prefix cannot drown its endpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from gslb.routing.predict import Option
from gslb.types import Facts

_LOAD_BOUND: Final = 1.25
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_ODD = 0x9E37_79B9_7F4A_7C15  # 2^64 / golden ratio


@lru_cache(maxsize=8192)
def salt_of(endpoint_key: str) -> int:
    """An endpoint's 64 bits: the same in every process."""
    return int.from_bytes(blake2b(endpoint_key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def weight(key: int, salt: int) -> int:
    """The weight (64 bits) of one endpoint for one key. Both are hashes already: one multiplication, its halves
    folded, makes all orders of endpoints equally likely."""
    product = (key ^ salt) * _ODD
    return (product ^ (product >> 64)) & _MASK


def rendezvous(key: int, options: Sequence[Option]) -> Option:
    """The option (of at least one) that `key` belongs to, of those with room under the load bound.

    The bound is `ceil(1.25 * (requests + 1) / options)` requests of this edge's own: with the one to be placed
    counted, so that the least loaded always qualifies.
    """
    loads = [option.view.own.requests for option in options]
    count = len(loads)
    bound = -int(-_LOAD_BOUND * (sum(loads) + 1) // count)
    best, heaviest = options[0], -1
    for option, load in zip(options, loads, strict=True):
        if load < bound:
            mine = weight(key, salt_of(option.view.endpoint.key))
            if mine > heaviest:
                best, heaviest = option, mine
    return best


def rendezvous_key(facts: Facts) -> int | None:
    """What requests that belong together have in common: their affinity key, else the prompt's first block."""
    if facts.affinity_key is not None:
        return facts.affinity_key
    return facts.prefix_blocks[0] if facts.prefix_blocks else None
