"""Where each conversation was answered last, and how much of it must be cached there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence


class Turn:
    """The last turn of a conversation: `tokens` of prompt and answer together, at endpoint `key`.

    `depth` and `last_block` say how far the prompt's chain of blocks went: what goes on from it has that block at
    that place.
    """

    __slots__ = ("at_s", "depth", "key", "last_block", "tokens")

    def __init__(self, key: str, tokens: int, blocks: Sequence[int], at_s: float) -> None:
        self.key = key
        self.tokens = tokens
        self.depth = len(blocks)
        self.last_block = blocks[-1] if blocks else 0
        self.at_s = at_s

    def goes_on_in(self, blocks: Sequence[int], depth_held: int) -> bool:
        """Whether a prompt with these blocks, `depth_held` of which are still cached, starts with this turn.

        A user's other conversation has other blocks, and a cache that has dropped the prompt has dropped the
        answer behind it. A turn shorter than a block is believed.
        """
        depth = self.depth
        return not depth or (depth_held >= depth and blocks[depth - 1] == self.last_block)


class Sessions:
    """The last turn by affinity key: at most `limit` (some 300 bytes each), none older than `age_s` seconds."""

    __slots__ = ("_age_s", "_limit", "_turns")

    def __init__(self, limit: int = 32_768, age_s: float = 1800.0) -> None:
        self._limit = limit
        self._age_s = age_s
        self._turns: OrderedDict[int, Turn] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    def last(self, session: int, now_s: float) -> Turn | None:
        """The last turn, unless it is too old to be cached anywhere."""
        turn = self._turns.get(session)
        return turn if turn is not None and now_s - turn.at_s <= self._age_s else None

    def note(self, session: int, turn: Turn) -> None:
        """This is the last turn now."""
        turns = self._turns
        turns[session] = turn
        turns.move_to_end(session)
        if len(turns) > self._limit:
            turns.popitem(last=False)

    def forget(self, keys: Collection[str]) -> None:
        """Nothing is cached at these endpoints any more."""
        gone = [session for session, turn in self._turns.items() if turn.key in keys]
        for session in gone:
            del self._turns[session]
