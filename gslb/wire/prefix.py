"""Chained hashes of the leading blocks of a request's prompt: equal hash, equal prompt up to there.

A block is 2,048 bytes, about 512 tokens: some 25 ms of prefill on an H100 with a 70B model, twice what decisions
take for equal. Finer blocks would cost more (each is a hash, and an entry in an index) and decide little else.

What is hashed is what a chat template makes tokens of, in its order: tools, then the system prompt, then each
message's role and content. It is taken from the parsed body, so blanks, escapes and the order of members do not
matter. Pictures, sound and files count as a digest: each is one thing that is equal or not, and its bytes tell
nothing of its tokens.

The chain starts with a `space`: who shares cached prompts as far as gslb is concerned. With tenants each has its
own, and so has each model. The engines' caches know nothing of tenants: a prefix that two of them share is found
cached there and not expected here. That is meant, for where a request goes and what `x-gslb-explain` predicts
would otherwise tell one tenant what another one has asked.

No text is kept: a hash is 8 bytes of BLAKE2b. Who saw hashes could recognise a block that they can guess together
with all that stands before it; nothing can be computed back. They stay in this process's memory, and they are the
same in every process and edge, which rendezvous hashing needs.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

import orjson

BLOCK_BYTES: Final = 2048
BLOCK_TOKENS: Final = 512
MOST_BLOCKS: Final = 256
"""131,072 tokens: what lies behind is not looked at."""
_MOST_BYTES = MOST_BLOCKS * BLOCK_BYTES
_MOST_TOKENS = MOST_BLOCKS * BLOCK_TOKENS
_HASH_BYTES: Final = 8
_MOST_LEVELS: Final = 8
_MEDIA = frozenset(
    (
        "image_url", "input_image", "image", "image_embeds", "input_audio", "audio_url", "audio", "audio_embeds",
        "video_url", "video", "file", "input_file", "document",
    )
)  # fmt: skip
_PLAIN = frozenset(("role", "content"))
_WANDERS: Final = "cache_control"
"""Clients mark the end of what is to be cached with it, in each turn another message."""
_BEFORE: Final = "\x1e"
_AFTER: Final = "\x1f"
"""What stands before a role and after it: JSON text may hold them, prose does not."""


def prefix_space(tenant: str, model: str) -> bytes:
    """Who shares cached prompts: the requests of one tenant (empty: all) for one model."""
    return f"{tenant}\0{model}\0".encode("utf-8", "surrogatepass")


def prefix_blocks(tree: Mapping[str, Any], space: bytes) -> tuple[int, ...]:
    """The chained 64-bit hashes of the whole leading blocks of the prompt in a request's parsed body, at most
    MOST_BLOCKS. Never raises: what is no prompt has no blocks."""
    salt = tree.get("cache_salt")  # vLLM's: who sends another one shares nothing
    if isinstance(salt, str):
        space += salt.encode("utf-8", "surrogatepass")
    return hash_blocks(_content_of(tree), space)


def hash_blocks(content: bytes, space: bytes) -> tuple[int, ...]:
    """The chained hashes of the whole leading blocks of `content`, at most MOST_BLOCKS."""
    most = min(len(content), _MOST_BYTES)
    if most < BLOCK_BYTES:
        return ()
    chain = blake2b(space, digest_size=_HASH_BYTES)
    view = memoryview(content)
    hashes: list[int] = []
    for end in range(BLOCK_BYTES, most + 1, BLOCK_BYTES):
        chain.update(view[end - BLOCK_BYTES : end])
        hashes.append(int.from_bytes(chain.digest(), "little"))
    return tuple(hashes)


def affinity_hash(tenant: str, kind: str, value: bytes) -> int:
    """64 bits for a mark of requests that belong together: equal marks of one tenant and kind have equal ones."""
    mark = b"%b\0%b" % (f"{tenant}\0{kind}".encode("utf-8", "surrogatepass"), value)
    return int.from_bytes(blake2b(mark, digest_size=_HASH_BYTES).digest(), "little")


def affinity_mark(tree: Mapping[str, Any], tenant: str) -> int | None:
    """The hash of what a parsed body says of requests that belong together: `prompt_cache_key`, else `user`, else
    `metadata.user_id` (the Anthropic dialect's); None when it says nothing."""
    kind = "prompt_cache_key"
    value = tree.get(kind)
    if value is None:
        kind = "user"
        value = tree.get(kind)
        if value is None and (metadata := tree.get("metadata")) is not None:
            value = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(value, str) or not value:
        return None
    return affinity_hash(tenant, kind, value.encode("utf-8", "surrogatepass"))


# --- the prompt as bytes ------------------------------------------------------------------------------


class _Text:
    """Pieces of a prompt, until there is as much as is looked at."""

    __slots__ = ("pieces", "room")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.room = _MOST_BYTES

    def add(self, text: str) -> None:
        """Take in more of it."""
        if self.room > 0:
            self.pieces.append(text if len(text) <= self.room else text[: self.room])
            self.room -= len(text)

    def add_json(self, value: Any, *, is_media: bool = False) -> None:
        """Take in what is no text, as JSON or as the digest of that."""
        try:
            written = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        except TypeError:  # nested deeper than it writes: the prompt ends here
            self.room = 0
            return
        if is_media:
            self.add(blake2b(written, digest_size=_HASH_BYTES).hexdigest())
        else:
            self.add(written.decode())


def _content_of(tree: Mapping[str, Any]) -> bytes:
    text = _Text()
    if (tools := tree.get("tools")) is not None:
        text.add_json(tools)
    for name in ("system", "instructions"):
        if (system := tree.get(name)) is not None:
            text.add(_BEFORE + "system" + _AFTER)
            _add(text, system)
    messages = tree.get("messages")
    if messages is None:
        messages = tree.get("input")
    if isinstance(messages, list):
        _add_messages(text, messages)
    elif isinstance(messages, str):
        text.add(messages)
    elif (prompt := tree.get("prompt")) is not None:
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            prompt = prompt[0]  # several prompts in one request: where the first one is cached
        if isinstance(prompt, list):
            return _token_bytes(prompt)
        _add(text, prompt)
    return "".join(text.pieces).encode("utf-8", "surrogatepass")


def _add_messages(text: _Text, messages: list[Any]) -> None:
    for message in messages:
        if text.room <= 0:
            return
        if not isinstance(message, dict):
            _add(text, message)
            continue
        role = message.get("role")
        text.add(_BEFORE + role + _AFTER if isinstance(role, str) else _BEFORE)
        content = message.get("content")
        if isinstance(content, str):
            text.add(content)
        elif content is not None:
            _add(text, content)
        if not message.keys() <= _PLAIN:
            for name in sorted(message.keys() - _PLAIN):
                if message[name] is not None and name != _WANDERS:
                    text.add(_BEFORE + name + _AFTER)
                    _add(text, message[name])


def _add(text: _Text, value: Any, levels: int = _MOST_LEVELS) -> None:
    """Content: text, parts, and lists of those."""
    if text.room <= 0:
        return
    if isinstance(value, str):
        text.add(value)
    elif isinstance(value, list) and levels:
        for i, part in enumerate(value):
            if i:
                text.add(_BEFORE)
            _add(text, part, levels - 1)
    elif isinstance(value, dict) and levels:
        inner = value.get("text", value.get("content"))
        if isinstance(inner, str) or (isinstance(inner, list) and inner):
            _add(text, inner, levels - 1)
        else:
            kept = {name: value[name] for name in value if name != _WANDERS}
            text.add_json(kept, is_media=str(value.get("type")) in _MEDIA)
    else:
        text.add_json(value)


def _token_bytes(tokens: list[Any]) -> bytes:
    """Token ids, four bytes each: a block is 512 of them."""
    try:
        return array("I", tokens[:_MOST_TOKENS]).tobytes()
    except (TypeError, OverflowError):
        return b""
