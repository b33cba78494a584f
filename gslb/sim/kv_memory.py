"""The KV memory of one simulated engine: what running sequences hold, and the blocks of prompts and answers that
are kept beside that.

Blocks are chained ids (equal id, equal prompt up to its end). A block is *pinned* while a running sequence uses it
and *idle* otherwise; idle ones are thrown out, least recently used first, when running sequences need the room.
"""

from __future__ import annotations

from collections import OrderedDict

from gslb.sim.sequence import Sequence


class KvMemory:
    """`tokens` in all, of which running sequences leave `free`; idle blocks take `idle_tokens` of those.

    Pinned blocks are counted here. What a sequence has of its own (`Sequence.private`, and a token a step) the
    engine takes from `free` and gives back, and calls `shrink` where idle blocks lie in the way.
    """

    __slots__ = ("_idle", "_pinned", "free", "idle_tokens", "tokens")

    def __init__(self, tokens: int) -> None:
        self.tokens = self.free = tokens
        self._pinned: dict[int, list[int]] = {}
        """Block -> [sequences that use it, its tokens]."""
        self._idle: OrderedDict[int, int] = OrderedDict()
        self.idle_tokens = 0

    @property
    def held_tokens(self) -> int:
        """What running sequences hold, as of the engine's last change."""
        return self.tokens - self.free

    def leading(self, sequence: Sequence) -> tuple[int, int]:
        """How many of a prompt's blocks are kept in a row from its start, and how many of those are idle. The last
        token is always computed: a block that ends with it does not count."""
        most = min(sequence.target - 1, sequence.prompt_tokens) // sequence.block_tokens
        pinned, idle = self._pinned, self._idle
        found = found_idle = 0
        for block in sequence.blocks:
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

    def pin(self, sequence: Sequence, count: int) -> None:
        """Let a sequence use the first `count` blocks of its prompt, whatever it has pinned of them before."""
        pinned, idle, blocks = self._pinned, self._idle, sequence.blocks
        newly = 0
        for i in range(sequence.pinned, count):
            block = blocks[i]
            entry = pinned.get(block)
            if entry is not None:
                entry[0] += 1
                continue
            tokens = idle.pop(block, 0)
            if tokens:
                self.idle_tokens -= tokens
            else:
                tokens = sequence.block_tokens
            pinned[block] = [1, tokens]
            newly += tokens
        self.free -= newly
        sequence.pinned = count

    def keep(self, sequence: Sequence) -> None:
        """A prompt is computed: its whole blocks are the sequence's own no more, but pinned."""
        block_tokens, held = sequence.block_tokens, sequence.pinned
        full = min(len(sequence.blocks), sequence.prompt_tokens // block_tokens)
        if full > held:
            moved = (full - held) * block_tokens
            sequence.private -= moved
            self.free += moved
            self.pin(sequence, full)

    def keep_answer(self, sequence: Sequence) -> None:
        """An answer is whole: its whole blocks stay, idle, in what is the sequence's own until it gives that back.
        To be called before that and before `unpin`: they are thrown out before the prompt that they hang on."""
        pinned, idle = self._pinned, self._idle
        for block in reversed(sequence.answer_blocks):
            if block not in pinned and block not in idle:
                idle[block] = sequence.block_tokens
                self.idle_tokens += sequence.block_tokens

    def unpin(self, sequence: Sequence) -> None:
        """A sequence uses its blocks no longer. The end of a prompt becomes the older, so that it is thrown out
        before what it hangs on."""
        pinned, idle, blocks = self._pinned, self._idle, sequence.blocks
        freed = 0
        for i in range(sequence.pinned - 1, -1, -1):
            block = blocks[i]
            entry = pinned[block]
            entry[0] -= 1
            if not entry[0]:
                del pinned[block]
                idle[block] = entry[1]
                freed += entry[1]
        self.idle_tokens += freed
        self.free += freed
        sequence.pinned = 0

    def shrink(self) -> None:
        """Throw out idle blocks until they fit into what is free."""
        idle = self._idle
        while self.idle_tokens > self.free and idle:
            self.idle_tokens -= idle.popitem(last=False)[1]

    def clear(self) -> None:
        """Forget everything."""
        self._pinned.clear()
        self._idle.clear()
        self.idle_tokens = 0
        self.free = self.tokens
