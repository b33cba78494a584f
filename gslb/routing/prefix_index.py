"""Which endpoints likely hold which leading blocks of a prompt in their prefix cache: an approximate index.

One dict leads from a block's hash to a bitmask of the endpoints that hold it, so that one walk along a request's
chained hashes finds how deep *every* endpoint goes. What is in the index is what this edge has had prefilled
there; what an engine has dropped since is guessed by dropping in the same order, least recently used first and
of one prompt the last blocks first (vLLM frees a finished request's blocks from its tail).

A prompt is held whole or up to some block: noting one makes each block more recent than the next, so that the
oldest block of an endpoint never has a successor there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

NOTHING: Mapping[str, int] = MappingProxyType({})
"""What is held of most prompts."""
_MOST_NAMED_MASKS: Final = 4096
_SHED_SHARE: Final = 16
"""Over the bound of all endpoints together the fullest drops this part of its blocks at once: finding it costs."""


class PrefixIndex:
    """Blocks by endpoint, at most `limit_blocks` each unless told otherwise, and `most_blocks` (some 200 bytes
    each) over all."""

    __slots__ = (
        "_by_block", "_free_numbers", "_held", "_keys", "_named", "_numbers", "blocks", "limit_blocks",
        "most_blocks",
    )  # fmt: skip

    def __init__(self, limit_blocks: int, most_blocks: int = 131_072) -> None:
        self.limit_blocks = limit_blocks
        self.most_blocks = most_blocks
        self.blocks = 0
        """Held over all endpoints: one held by two counts twice."""
        self._by_block: dict[int, int] = {}
        self._numbers: dict[str, int] = {}
        """An endpoint's bit, kept from its first block until it is forgotten."""
        self._keys: list[str] = []
        self._free_numbers: list[int] = []
        self._held: list[OrderedDict[int, None]] = []
        """By number: the blocks held there, least recently used first."""
        self._named: dict[int, tuple[str, ...]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._numbers

    @property
    def keys(self) -> list[str]:
        """The endpoints that have been noted and not forgotten."""
        return list(self._numbers)

    def blocks_of(self, key: str) -> int:
        """How many blocks `key` holds."""
        number = self._numbers.get(key)
        return 0 if number is None else len(self._held[number])

    def cached_blocks(self, blocks: Sequence[int]) -> Mapping[str, int]:
        """Endpoint key -> how many leading `blocks` it holds, of those that hold any. Changes nothing."""
        by_block = self._by_block
        mask = by_block.get(blocks[0], 0) if blocks else 0
        if not mask:
            return NOTHING
        depths: dict[str, int] = {}
        depth = 0
        for block in blocks:
            held = by_block.get(block, 0) & mask
            if held != mask:
                for key in self._names(mask ^ held):
                    depths[key] = depth
                if not held:
                    return depths
                mask = held
            depth += 1
        for key in self._names(mask):
            depths[key] = depth
        return depths

    def note(self, key: str, blocks: Sequence[int], limit_blocks: int | None = None) -> None:
        """`key` has prefilled a prompt with these leading blocks; it holds at most `limit_blocks` (default: the
        index's) from now on. Of a longer prompt the first blocks are kept."""
        limit = self.limit_blocks if limit_blocks is None else limit_blocks
        number = self._number(key)
        held, by_block, bit = self._held[number], self._by_block, 1 << number
        for block in reversed(blocks[:limit]):
            mask = by_block.get(block, 0)
            if mask & bit:
                held.move_to_end(block)
            else:
                by_block[block] = mask | bit
                held[block] = None
                self.blocks += 1
        if len(held) > limit:
            self._drop(number, len(held) - limit)
        while self.blocks > self.most_blocks:
            fullest = max(range(len(self._held)), key=self._size)
            self._drop(fullest, max(1, self._size(fullest) // _SHED_SHARE))

    def forget(self, key: str) -> None:
        """`key` holds nothing any more: it has restarted or is gone."""
        number = self._numbers.pop(key, None)
        if number is None:
            return
        self._drop(number, self._size(number))
        self._free_numbers.append(number)
        self._named.clear()

    def _size(self, number: int) -> int:
        return len(self._held[number])

    def _number(self, key: str) -> int:
        number = self._numbers.get(key)
        if number is not None:
            return number
        if self._free_numbers:
            number = self._free_numbers.pop()
            self._keys[number] = key
        else:
            number = len(self._keys)
            self._keys.append(key)
            self._held.append(OrderedDict())
        self._numbers[key] = number
        return number

    def _drop(self, number: int, count: int) -> None:
        """The `count` least recently used blocks of an endpoint go."""
        held, by_block, bit = self._held[number], self._by_block, 1 << number
        for _ in range(count):
            block, _none = held.popitem(last=False)
            mask = by_block[block] ^ bit
            if mask:
                by_block[block] = mask
            else:
                del by_block[block]
        self.blocks -= count

    def _names(self, mask: int) -> tuple[str, ...]:
        """The endpoints of a mask. Few masks occur: a common prefix is held by all, the rest by one or two."""
        names = self._named.get(mask)
        if names is None:
            if len(self._named) >= _MOST_NAMED_MASKS:
                self._named.clear()
            found = []
            rest = mask
            while rest:
                lowest = rest & -rest
                found.append(self._keys[lowest.bit_length() - 1])
                rest ^= lowest
            names = self._named[mask] = tuple(found)
        return names
