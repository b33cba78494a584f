"""How far an endpoint's prefix cache keeps what is expected of it: a factor from 0 to 1, learnt.

An endpoint starts trusted. Two things tell better: the `cached_tokens` of own answers, and, where answers do not
tell, the growth of the engine's prefix-cache counters. An engine without prefix caching ends near 0, one whose
cache is smaller or busier than believed in between. Never above 1: what others had cached is nobody's to expect.
"""

from __future__ import annotations

from typing import Final

from gslb.types import LoadSample

_PRIOR_TOKENS: Final = 4096.0
"""The trust an endpoint starts with weighs as much as so many tokens found cached as expected."""
_HORIZON_TOKENS: Final = 100_000.0
"""What is older than so many expected tokens fades: some fifty turns of a chat."""
_TOLD_FOR_SAMPLES: Final = 10
"""As long after an answer that told, counters are not needed. Some engines do not tell when nothing was cached: of
those the counters say it in the end."""


class _Window:
    """What happened between two looks at the counters: of own prompts their tokens and how many of these were
    expected to be cached; of all the engine's prompts what it looked up and what it found."""

    __slots__ = ("asked", "expected", "hits", "queries")

    def __init__(self) -> None:
        self.asked = self.expected = self.hits = self.queries = 0.0


class HitRate:
    """One endpoint's. `trust` multiplies the cached tokens expected of it."""

    __slots__ = ("_expected", "_found", "_last", "_load", "_now", "_spare_hits", "_told_for", "trust")

    def __init__(self) -> None:
        self.trust = 1.0
        self._expected = self._found = 0.0
        self._told_for = 0
        self._load: LoadSample | None = None
        self._last, self._now = _Window(), _Window()
        self._spare_hits = 0.0

    def answered(self, expected: float, cached: float) -> None:
        """An answer told that `cached` tokens of its prompt were, where `expected` should have been."""
        self._told_for = _TOLD_FOR_SAMPLES
        self._learn(expected, cached)

    def prefilled(self, prompt_tokens: int, expected: int) -> None:
        """An own prompt has been prefilled here."""
        self._now.asked += prompt_tokens
        self._now.expected += expected

    def sampled(self, load: LoadSample) -> bool:
        """The engine's counters were read; True when they began anew: it has restarted, its cache is empty."""
        before, self._load = self._load, load
        if before is not None and load.at_s <= before.at_s:
            return False
        last, now = self._last, self._now
        self._last, self._now = now, _Window()
        has_restarted = before is not None and _has_restarted(before, load)
        if before is None or has_restarted:
            self._last = _Window()
            self._spare_hits = 0.0
            return has_restarted
        hits = _growth(before.prefix_hits_total, load.prefix_hits_total)
        queries = _growth(before.prefix_queries_total, load.prefix_queries_total)
        self._told_for -= self._told_for > 0
        if hits is None or queries is None:
            self._last = _Window()
            return False
        now.hits, now.queries = hits, queries
        self._judge(last, now)
        return False

    def _judge(self, last: _Window, now: _Window) -> None:
        """Compare what was expected in the last window but one with what was found.

        A hit is counted when a prompt is scheduled, its request here when its first token comes, and the counters
        were read some time before they are looked at: so the hits may lie in the window before or after.
        """
        hits = self._spare_hits + now.hits
        found = min(last.expected, hits)
        self._spare_hits = min(hits - found, last.hits + now.hits)
        if not self._told_for:
            # The less of the traffic is ours, the less the counters say of it.
            queries = max(last.queries, now.queries)
            share = min(1.0, last.asked / queries) if queries else 1.0
            self._learn(last.expected * share, found * share)

    @property
    def kv_tokens(self) -> float | None:
        """How many tokens the engine says its cache holds."""
        return None if self._load is None else self._load.kv_tokens

    def _learn(self, expected: float, real: float) -> None:
        self._expected += expected
        self._found += min(real, expected)
        if self._expected > _HORIZON_TOKENS:
            fade = _HORIZON_TOKENS / self._expected
            self._expected *= fade
            self._found *= fade
        self.trust = (_PRIOR_TOKENS + self._found) / (_PRIOR_TOKENS + self._expected)


def _growth(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else max(0.0, now - before)


def _has_restarted(before: LoadSample, now: LoadSample) -> bool:
    return (
        _fell(before.prompt_tokens_total, now.prompt_tokens_total)
        or _fell(before.generation_tokens_total, now.generation_tokens_total)
        or _fell(before.prefix_queries_total, now.prefix_queries_total)
    )


def _fell(before: float | None, now: float | None) -> bool:
    return before is not None and now is not None and now < before
