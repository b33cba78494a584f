"""Text in, tokens out, and back: deterministic stand-ins for a tokenizer and a model."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

BYTES_PER_TOKEN = 4
"""About what English costs with the tokenizers in use; the mock counts tokens by it and nothing else."""

# Some words are not ASCII on purpose: a stream cut inside a character is a case every relay must survive.
VOCABULARY = (
    "the", "river", "runs", "under", "a", "stone", "bridge", "and", "carries", "light", "to", "every",
    "town", "café", "along", "its", "way", "where", "people", "wait", "for", "news", "of", "rain",
    "über", "hills", "that", "nobody", "has", "seen", "한국어", "since", "spring", "while", "boats",
    "move", "slowly", "past", "old", "naïve", "walls", "with", "bread", "tea", "salt", "東京", "letters",
    "maps", "and", "small", "warm", "lamps", "🚲", "until", "morning", "comes", "again", "quietly", "over",
    "fields", "of", "green", "wheat", "then",
)  # fmt: skip


def token_count(text: bytes) -> int:
    """Tokens of `text`: one per BYTES_PER_TOKEN bytes, rounded up, at least 1."""
    return max(1, -(-len(text) // BYTES_PER_TOKEN))


def token_ids(text: bytes) -> list[int]:
    """One id per token, such that `text_of` gives the text back: the token's bytes as a big-endian number
    with a leading 1 (so that leading zero bytes survive)."""
    step = BYTES_PER_TOKEN
    return [int.from_bytes(b"\x01" + text[i : i + step], "big") for i in range(0, len(text), step)]


def text_of(tokens: Sequence[int]) -> str:
    """The inverse of `token_ids`; ids that it never makes become U+FFFD."""
    parts = []
    for token in tokens:
        raw = token.to_bytes((token.bit_length() + 7) // 8, "big") if token > 0 else b""
        parts.append(raw[1:] if raw[:1] == b"\x01" else "\N{REPLACEMENT CHARACTER}".encode())
    return b"".join(parts).decode("utf-8", "replace")


def block_hashes(prompt: bytes, block_size: int, salt: str) -> list[int]:
    """Chained hashes of the full blocks of `prompt` (`block_size` tokens each). Equal prefixes give equal
    leading hashes, for the same `salt` (the model or adapter) and within one process."""
    step = block_size * BYTES_PER_TOKEN
    chained, previous = [], hash(salt)
    for start in range(0, len(prompt) - step + 1, step):
        previous = hash((previous, prompt[start : start + step]))
        chained.append(previous)
    return chained


class Speech:
    """The text of one answer, one word a token. The same seed, identity and prompt say the same."""

    __slots__ = ("_identity", "_start", "_stride")

    def __init__(self, seed: int, identity: str, prompt: bytes) -> None:
        digest = crc32(prompt, seed & 0xFFFFFFFF)
        self._start = digest
        self._stride = 1 + 2 * (digest >> 8 & 31)  # odd, so that it visits all 64 words
        self._identity = identity

    def token(self, index: int) -> str:
        """Text of token `index` (from 0), with the space that parts it from the one before."""
        if index == 0 and self._identity:
            return self._identity
        word = VOCABULARY[(self._start + index * self._stride) % len(VOCABULARY)]
        return word if index == 0 else " " + word

    def between(self, start: int, stop: int) -> str:
        """Text of tokens `start` up to, not including, `stop`."""
        return "".join(map(self.token, range(start, stop)))
