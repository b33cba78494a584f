"""What knowing the engines' prefix caches costs: `python -m benchmarks.affinity [--endpoints N] [--blocks N]`.

The smallest CPU time of several rounds, in microseconds of one call.

- `hash`: the chained hashes of a chat prompt of so many blocks, from its parsed body, and what that is per KB.
- `miss`: asking the full index for a prompt that nobody has; the usual case.
- `hit`: a prompt whose first third (a system prompt) every endpoint has, and one endpoint all of it.
- `worst`: every endpoint has another depth.
- `tokens`: what one endpoint is expected to have of it.
- `prefilled`: noting a prompt that was there already; `new`: one that pushes as many old blocks out.
- `rendezvous`: choosing among ten near-equals.
"""

from __future__ import annotations

import argparse
import tracemalloc
from collections.abc import Sequence
from random import Random

from benchmarks.decision import build_fleet, us_per_call
from gslb.routing.affinity import Affinity
from gslb.routing.predict import Option
from gslb.routing.prefix_index import PrefixIndex
from gslb.routing.rendezvous import rendezvous
from gslb.types import Facts
from gslb.wire.prefix import BLOCK_BYTES, BLOCK_TOKENS, prefix_blocks, prefix_space

LIMIT_BLOCKS = 2048


def facts(blocks: Sequence[int]) -> Facts:
    """A request with such a prompt."""
    tokens = len(blocks) * BLOCK_TOKENS
    return Facts("m", prompt_tokens=tokens, prefix_blocks=tuple(blocks), block_tokens=BLOCK_TOKENS)


def measure(endpoints: int, depth: int) -> dict[str, float]:
    """Microseconds by what is done, and bytes per block."""
    dice = Random(1)
    keys = [f"region/{number}" for number in range(endpoints)]

    def fresh(count: int) -> tuple[int, ...]:
        return tuple(dice.getrandbits(64) for _ in range(count))

    system = fresh(depth // 3)
    affinity = Affinity(LIMIT_BLOCKS)
    for key in keys:
        while affinity.index.blocks_of(key) < LIMIT_BLOCKS:
            affinity.prefilled(key, facts(system + fresh(depth)), 0.0)
    known = facts(system + fresh(depth - len(system)))
    affinity.prefilled(keys[0], known, 0.0)
    unknown = facts(fresh(depth))
    text = "The quick brown fox jumps over the lazy dog. " * (depth * BLOCK_BYTES // 45 + 1)
    tree = {"messages": [{"role": "user", "content": text[: depth * BLOCK_BYTES]}]}
    space = prefix_space("", "m")
    found = {
        "hash": us_per_call(lambda: prefix_blocks(tree, space)),
        "miss": us_per_call(lambda: affinity.expected(unknown, 1.0)),
        "hit": us_per_call(lambda: affinity.expected(known, 1.0)),
    }
    found["hash per KB"] = found["hash"] / (depth * BLOCK_BYTES / 1000)
    expected = affinity.expected(known, 1.0)
    assert expected is not None
    found["tokens"] = us_per_call(lambda: expected.tokens(keys[0]))
    found["prefilled"] = us_per_call(lambda: affinity.prefilled(keys[0], known, 1.0))
    prompts = iter([facts(fresh(depth)) for _ in range(30_000)])
    found["new"] = us_per_call(lambda: affinity.prefilled(keys[1 % endpoints], next(prompts), 1.0))
    various = PrefixIndex(LIMIT_BLOCKS)
    for number, key in enumerate(keys):
        various.note(key, unknown.prefix_blocks[: 1 + number % depth])
    found["worst"] = us_per_call(lambda: various.cached_blocks(unknown.prefix_blocks))
    options = [Option(view, 0.0, 0.0, 0.0, 0, True) for view in build_fleet(10).snapshot.endpoints]
    found["rendezvous"] = us_per_call(lambda: rendezvous(42, options))
    found["bytes per block"] = bytes_per_block(dice)
    return {what: round(figure, 2) for what, figure in found.items()}


def bytes_per_block(dice: Random) -> float:
    """What one block held by one endpoint takes."""
    tracemalloc.start()
    index = PrefixIndex(65_536)
    for _ in range(2048):
        index.note("a", tuple(dice.getrandbits(64) for _ in range(32)))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / index.blocks


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.affinity", description="Cost of prefix affinity.")
    parser.add_argument("--endpoints", type=int, default=40, metavar="N")
    parser.add_argument("--blocks", type=int, default=24, metavar="N", help="of 2,048 bytes, about 512 tokens")
    asked = parser.parse_args()
    if min(asked.endpoints, asked.blocks) < 1:
        parser.error("there must be at least one of each")
    print(f"prompts of {asked.blocks} blocks, {asked.endpoints} endpoints with {LIMIT_BLOCKS} blocks each, us:")
    for what, figure in measure(asked.endpoints, asked.blocks).items():
        print(f"  {what:16} {figure:9.2f}")


if __name__ == "__main__":
    main()
