"""One request in a simulated engine, and who is told of it."""

from __future__ import annotations

from typing import Protocol, TypeVar


class Sequence:
    """One request in an engine: its lengths, and what is the engine's own. `cached_tokens` is what its first
    admission found in the prefix cache, `answer_blocks` go on from its prompt's when all is said."""

    __slots__ = (
        "answer_blocks", "block_tokens", "blocks", "cached_tokens", "computed", "end_step", "has_first", "is_gone",
        "left", "pinned", "private", "prompt_tokens", "since_step", "target",
    )  # fmt: skip

    def __init__(
        self,
        prompt_tokens: int,
        output_tokens: int,
        blocks: tuple[int, ...] = (),
        block_tokens: int = 0,
        answer_blocks: tuple[int, ...] = (),
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.left = output_tokens
        """Tokens still to make, as of `since_step`."""
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.answer_blocks = answer_blocks
        self.target = prompt_tokens
        """Tokens to compute before the next one can be made: the prompt, after a preemption also what was made."""
        self.computed = 0
        self.cached_tokens = 0
        self.private = 0
        """KV tokens of its own, as of `since_step`."""
        self.pinned = 0
        """Leading blocks it holds in the cache."""
        self.since_step = 0
        """The engine's step count when it began to decode."""
        self.end_step = -1
        """The step that makes its last token; negative while it does not decode."""
        self.has_first = False
        self.is_gone = False


S = TypeVar("S", bound=Sequence)
S_contra = TypeVar("S_contra", bound=Sequence, contravariant=True)


class Listener(Protocol[S_contra]):
    """Who is told what becomes of a sequence. Called while the engine advances: it must not call back into it."""

    def first_token(self, sequence: S_contra, now_s: float) -> None:
        """The prompt is computed and the first token made."""

    def finished(self, sequence: S_contra, now_s: float) -> None:
        """The last token is made (after `first_token`, perhaps at the same moment)."""
