"""What is likely cached where: the tokens of a prompt that an endpoint need not prefill again.

Affinity is worth the milliseconds these tokens save, no more: they are taken off the prefill term, and yield when
the wait there is longer. Three sources, combined: blocks of prompts that were prefilled there (`PrefixIndex`), the
conversation's last turn with its answer (`Sessions`), and how far the endpoint's cache keeps its word (`HitRate`).

    expected -> (the decision) -> prefilled, when the first token comes -> answered, when the usage is known
    observed, about once a second: counters, restarts, endpoints that are gone
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gslb.routing.hit_rate import HitRate
from gslb.routing.prefix_index import PrefixIndex
from gslb.routing.sessions import Sessions, Turn
from gslb.routing.snapshot import EndpointView
from gslb.types import Facts


class Expected:
    """What is likely cached of one prompt, by endpoint; worked out where it is asked for."""

    __slots__ = ("_depths", "_last_key", "_last_tokens", "_prompt_tokens", "_rates", "_size")

    def __init__(
        self, facts: Facts, depths: Mapping[str, int], turn: Turn | None, rates: Mapping[str, HitRate]
    ) -> None:
        self._depths = depths
        self._size = facts.block_tokens
        self._prompt_tokens = facts.prompt_tokens
        self._last_key = "" if turn is None else turn.key
        self._last_tokens = 0 if turn is None else turn.tokens
        self._rates = rates

    def undoubted(self, key: str) -> int:
        """Tokens that `key` has cached if it keeps all it was given."""
        tokens = self._depths.get(key, 0) * self._size
        if key == self._last_key and self._last_tokens > tokens:
            tokens = self._last_tokens
        return min(tokens, self._prompt_tokens)

    def tokens(self, key: str) -> int:
        """Tokens that need not be prefilled at `key`: as many as its cache is trusted with."""
        tokens = self.undoubted(key)
        rate = self._rates.get(key) if tokens else None
        return tokens if rate is None else int(tokens * rate.trust)

    @property
    def most_tokens(self) -> int:
        """No endpoint has more."""
        deepest = max(self._depths.values(), default=0)
        return min(max(deepest * self._size, self._last_tokens), self._prompt_tokens)


class Affinity:
    """One process's knowledge of its fleet's prefix caches. Bounded in memory; the clock is an argument."""

    __slots__ = ("_rates", "_sessions", "index")

    def __init__(self, limit_blocks: int = 2048) -> None:
        """`limit_blocks`: what an endpoint is believed to hold until it has told the size of its cache."""
        self.index = PrefixIndex(limit_blocks)
        self._sessions = Sessions()
        self._rates: dict[str, HitRate] = {}

    def bound(self, limit_blocks: int) -> None:
        """A reload: what an endpoint is believed to hold from now on, until it tells."""
        self.index.limit_blocks = limit_blocks

    # --- for decisions -----------------------------------------------------------------------------

    def expected(self, facts: Facts, now_s: float) -> Expected | None:
        """What is likely cached of this prompt; None, and next to no time spent, when nothing is."""
        blocks, session = facts.prefix_blocks, facts.affinity_key
        depths = self.index.cached_blocks(blocks)
        turn = None if session is None else self._sessions.last(session, now_s)
        if turn is not None and not turn.goes_on_in(blocks, depths.get(turn.key, 0)):
            turn = None
        return Expected(facts, depths, turn, self._rates) if depths or turn is not None else None

    def trust(self, key: str) -> float:
        """How far the cache of `key` keeps its word, 0..1."""
        rate = self._rates.get(key)
        return 1.0 if rate is None else rate.trust

    # --- what became of them -----------------------------------------------------------------------

    def prefilled(self, key: str, facts: Facts, now_s: float) -> int:
        """The first token of a request came from `key`, so its prompt is cached there from now on.

        Returns how many of its tokens should have been cached before, without any doubt of the cache: what
        `answered` compares.
        """
        blocks, session = facts.prefix_blocks, facts.affinity_key
        if not blocks and session is None:
            return 0
        held = self.expected(facts, now_s)
        expected = 0 if held is None else held.undoubted(key)
        self._rate(key).prefilled(facts.prompt_tokens, expected)
        if blocks:
            self.index.note(key, blocks, self._limit_blocks(key, facts.block_tokens))
        if session is not None:
            self._sessions.note(session, Turn(key, facts.prompt_tokens, blocks, now_s))
        return expected

    def answered(
        self,
        key: str,
        facts: Facts,
        expected: int,
        usage: tuple[int | None, int | None, int | None],
        now_s: float,
    ) -> None:
        """The answer of `key` is over. `usage` says how many tokens the prompt had, the answer had, and of the
        prompt's were cached (None: it does not say); `expected` is what `prefilled` returned."""
        prompt_tokens, completion_tokens, cached_tokens = usage
        if expected and prompt_tokens and cached_tokens is not None:
            # The engine counts tokens, the facts estimate them: compared is the share of the prompt.
            self._rate(key).answered(expected, cached_tokens * facts.prompt_tokens / prompt_tokens)
        session = facts.affinity_key
        if session is not None and completion_tokens:
            turn = Turn(key, facts.prompt_tokens + completion_tokens, facts.prefix_blocks, now_s)
            self._sessions.note(session, turn)

    # --- what is observed --------------------------------------------------------------------------

    def observed(self, views: Sequence[EndpointView]) -> None:
        """The fleet as known now, all of it: what has restarted or gone holds nothing any more."""
        rates = self._rates
        for view in views:
            rate = rates.get(view.endpoint.key)
            if rate is not None and view.load is not None and rate.sampled(view.load):
                self.forget([view.endpoint.key])
        gone = rates.keys() - {view.endpoint.key for view in views}
        if gone:
            self.forget(gone, is_gone=True)

    def forget(self, keys: Iterable[str], *, is_gone: bool = False) -> None:
        """Nothing is cached at these endpoints any more; `is_gone`: nor is anything to be remembered of them."""
        forgotten = frozenset(keys)
        for key in forgotten:
            self.index.forget(key)
            if is_gone:
                self._rates.pop(key, None)
        if forgotten:
            self._sessions.forget(forgotten)

    def _rate(self, key: str) -> HitRate:
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = HitRate()
        return rate

    def _limit_blocks(self, key: str, block_tokens: int) -> int:
        """What the endpoint's cache holds, by its own word where it has given it."""
        kv_tokens = self._rate(key).kv_tokens
        return self.index.limit_blocks if kv_tokens is None else int(kv_tokens // block_tokens)
