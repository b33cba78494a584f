"""The block prefix cache of one simulated engine: what is kept of prompts, and what may be thrown out.

Blocks are chained ids (equal id, equal prompt up to its end). A block is *pinned* while a running sequence uses it
and *idle* otherwise; idle ones are thrown out, least recently used first, when running sequences need the room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Blocks by id. `pinned_tokens` and `idle_tokens` are what the two kinds occupy of the KV memory."""

    __slots__ = ("_idle", "_pinned", "idle_tokens", "pinned_tokens")

    def __init__(self) -> None:
        self._pinned: dict[int, list[int]] = {}
        """Block -> [sequences that use it, its tokens]."""
        self._idle: OrderedDict[int, int] = OrderedDict()
        self.pinned_tokens = 0
        self.idle_tokens = 0

    def leading(self, blocks: Sequence[int], most: int) -> tuple[int, int]:
        """How many of the first `most` blocks are kept in a row from the start, and how many of those are idle."""
        pinned, idle = self._pinned, self._idle
        found = found_idle = 0
        for block in blocks:
            if found == most:
                break
            if block in pinned:
                found += 1
            elif block in idle:
                found += 1
                found_idle += 1
            else:
                break
        return found, found_idle

    def pin(self, blocks: Sequence[int], start: int, end: int, block_tokens: int) -> int:
        """Let one more sequence use `blocks[start:end]`; returns the tokens of those that nobody used before."""
        pinned, idle = self._pinned, self._idle
        newly = 0
        for i in range(start, end):
            block = blocks[i]
            entry = pinned.get(block)
            if entry is not None:
                entry[0] += 1
                continue
            tokens = idle.pop(block, 0)
            if tokens:
                self.idle_tokens -= tokens
            else:
                tokens = block_tokens
            pinned[block] = [1, tokens]
            newly += tokens
        self.pinned_tokens += newly
        return newly

    def unpin(self, blocks: Sequence[int], count: int) -> int:
        """One sequence no longer uses the first `count` blocks; returns the tokens of those that nobody uses now.

        The end of a prompt becomes the older, so that it is thrown out before what it hangs on."""
        pinned, idle = self._pinned, self._idle
        freed = 0
        for i in range(count - 1, -1, -1):
            block = blocks[i]
            entry = pinned[block]
            entry[0] -= 1
            if not entry[0]:
                del pinned[block]
                idle[block] = entry[1]
                freed += entry[1]
        self.pinned_tokens -= freed
        self.idle_tokens += freed
        return freed

    def shrink(self, room_tokens: int) -> None:
        """Throw out idle blocks until they occupy at most `room_tokens`."""
        idle = self._idle
        while self.idle_tokens > room_tokens and idle:
            self.idle_tokens -= idle.popitem(last=False)[1]

    def clear(self) -> None:
        """Forget everything."""
        self._pinned.clear()
        self._idle.clear()
        self.pinned_tokens = self.idle_tokens = 0
