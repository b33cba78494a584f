"""Policies: a table of named, plain functions that pick one option from a slate, or None when none has room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from gslb.routing.predict import Option
from gslb.routing.rendezvous import rendezvous, rendezvous_key
from gslb.routing.slate import Slate

Policy = Callable[[Slate], Option | None]


def lighter_of_two(options: Sequence[Option], dice: Random) -> Option:
    """Two at random, the one with fewer own requests for its share: spreads evenly without a global minimum to
    herd to.

    Power of two choices, Mitzenmacher 2001.
    """
    count = len(options)
    if count == 1:
        return options[0]
    i = int(dice.random() * count)
    j = int(dice.random() * (count - 1))
    return _lighter(options[i], options[j + (j >= i)])


def _lighter(first: Option, second: Option) -> Option:
    """The one with fewer own requests; one in slow start is heavier by as much as its share is less."""
    one, other = first.view, second.view
    return second if (other.own.requests + 1) * one.share < (one.own.requests + 1) * other.share else first


def ttft(slate: Slate) -> Option | None:
    """Least predicted milliseconds among those with room; near-equals by chance; foreign regions by gate."""
    if slate.rules.objective == "cost":
        return _cheapest_in_time(slate)
    choice = None if slate.has_cached else _one_of_front(slate)
    if choice is not None:
        return choice
    near, gated = _nearly_best(slate, through_shut_gates=False)
    if not near and gated:
        near, _ = _nearly_best(slate, through_shut_gates=True)
    return _in_time(_lighter_known(near, slate), slate) if near else None


def _one_of_front(slate: Slate) -> Option | None:
    """The lighter of two of the front, when both are near-equals of the least that anything could cost.

    That is what looking at every endpoint would come to, and on a quiet fleet it spares the looking.
    """
    front = slate.tier.front
    count = len(front)
    if not count:
        return None
    i = int(slate.dice.random() * count)
    j = int(slate.dice.random() * (count - 1))
    limit_ms = slate.tier.nearest_ms + slate.least_prefill_ms + slate.rules.damping.near_equal_ms
    first = slate.option(front[i])
    if first is None or not first.has_room or first.total_ms > limit_ms:
        return None
    second = slate.option(front[j + (j >= i)]) if count > 1 else first
    if second is None or not second.has_room or second.total_ms > limit_ms:
        return None
    if not (slate.is_known(first) and slate.is_known(second)):
        return None
    choice = _lighter(first, second)
    budget_ms = slate.facts.budget_ms
    return choice if budget_ms is None or choice.total_ms <= budget_ms else None


def _nearly_best(slate: Slate, *, through_shut_gates: bool) -> tuple[list[Option], bool]:
    """Options within `near_equal_ms` of the least, and whether a shut gate kept any out.

    Where requests are held no gate yields in a region that is full but for what comes free now, unless all of home
    is gone: that is what the region's own clients wait for.

    Looks no further once even an idle endpoint could not win.
    """
    near_ms = slate.rules.damping.near_equal_ms
    keeps_out = slate.rules.holds and slate.tier.has_home  # the alternative is to wait for a slot at home
    cutoff_ms = idle_cutoff_ms = float("inf")
    near: list[Option] = []
    gated = False
    for entry in slate.tier.entries:
        if entry.idle_ms > idle_cutoff_ms:
            break  # sorted: even idle, nothing from here on comes near
        option = slate.option(entry)
        if option is None:
            continue
        slate.seen.append(option)
        if not option.has_room or option.total_ms > cutoff_ms:
            continue
        if not entry.is_home and slate.gate_is_shut(entry.region):
            gated = True
            if not through_shut_gates or (keeps_out and slate.is_brimming(entry.region)):
                continue
        near.append(option)
        if option.total_ms + near_ms < cutoff_ms:
            cutoff_ms = option.total_ms + near_ms
            idle_cutoff_ms = cutoff_ms - slate.least_prefill_ms
    return [option for option in near if option.total_ms <= cutoff_ms], gated


def _lighter_known(near: Sequence[Option], slate: Slate) -> Option:
    """One of near-equals. Those whose load nobody has told lately come after the others (FC-24): an old or
    absent number must not win by looking like zero."""
    known = [option for option in near if slate.is_known(option)]
    key = rendezvous_key(slate.facts)
    return lighter_of_two(known or near, slate.dice) if key is None else rendezvous(key, known or near)


def _in_time(choice: Option, slate: Slate) -> Option:
    """`choice`, unless it is late for the budget and another with room is quicker: neither the tax, nor a gate,
    nor chance may cost a request its budget."""
    budget_ms = slate.facts.budget_ms
    if budget_ms is None or choice.predicted_ms <= budget_ms:
        return choice
    return min(slate.with_room(), key=_predicted_ms, default=choice)


def _cheapest_in_time(slate: Slate) -> Option | None:
    """The cheapest with room that still meets the budget; without budget or price: least ms."""
    budget_ms = slate.facts.budget_ms
    options = list(slate.with_room())
    in_time = [o for o in options if budget_ms is None or o.predicted_ms <= budget_ms]
    if not in_time:
        return min(options, key=_predicted_ms, default=None)

    def price(option: Option) -> float:
        per_hour = option.view.endpoint.price_per_hour
        return float("inf") if per_hour is None else per_hour

    lowest = min(price(option) for option in in_time)
    at_price = [option for option in in_time if price(option) == lowest]
    least_ms = min(option.total_ms for option in at_price)
    near_ms = slate.rules.damping.near_equal_ms
    return _lighter_known([o for o in at_price if o.total_ms <= least_ms + near_ms], slate)


def _total_ms(option: Option) -> float:
    return option.total_ms


def _predicted_ms(option: Option) -> float:
    return option.predicted_ms


def near_room(slate: Slate) -> Option | None:
    """The nearest region with a free slot, the emptier endpoint there."""
    near: list[Option] = []
    for option in slate.with_room():
        if near and option.view.endpoint.region is not near[0].view.endpoint.region:
            break
        near.append(option)
    return lighter_of_two(near, slate.dice) if near else None


def nearest(slate: Slate) -> Option | None:
    """The nearest region, full or not: the baseline that never spills."""
    near: list[Option] = []
    for entry in slate.tier.entries:
        if near and entry.region != near[0].view.endpoint.region.name:
            break
        if (option := slate.option(entry)) is not None:
            near.append(option)
    slate.seen.extend(near)
    free = [option for option in near if not option.is_capped]
    return lighter_of_two(free, slate.dice) if free else None


def ordered(slate: Slate) -> Option | None:
    """The operator's region list: the first that is open (0.7/0.5 marks by its gate), else `near_room`."""
    options = list(slate.with_room())
    for name in slate.rules.order:
        here = [option for option in options if option.view.endpoint.region.name == name]
        if here and not slate.gate_is_shut(name):
            return lighter_of_two(here, slate.dice)
    return near_room(slate)


def gorgo(slate: Slate) -> Option | None:
    """Additive cost network + queue + prefill, no tax, no chance: the plain argmin."""
    return min(slate.with_room(), key=_predicted_ms, default=None)


def lmetric(slate: Slate) -> Option | None:
    """Uncached tokens times batch: least product of pending work and requests there."""

    def product(option: Option) -> float:
        own = option.view.own
        return (own.pending_tokens + option.work) * (own.requests + option.view.others + 1)

    return min(slate.with_room(), key=product, default=None)


def hot_cold(slate: Slate) -> Option | None:
    """Prequal's rule (NSDI 2024) with predicted ms as latency: among the cold, least ms; all hot: least load.

    Hot is above the 80th percentile of requests in flight.
    """
    options = list(slate.with_room())
    if not options:
        return None
    loads = sorted(option.view.own.requests for option in options)
    mark = loads[int(0.8 * (len(loads) - 1))]
    cold = [option for option in options if option.view.own.requests <= mark]
    return min(cold, key=_total_ms)


def least_load(slate: Slate) -> Option | None:
    """Fewest requests at the endpoint, wherever it is."""
    return min(
        slate.with_room(), key=lambda o: (o.view.own.requests + o.view.others, slate.dice.random()), default=None
    )


def round_robin(slate: Slate) -> Option | None:
    """One after another, wherever they are."""
    options = list(slate.with_room())
    return options[slate.turn % len(options)] if options else None


POLICIES: dict[str, Policy] = {
    "ttft": ttft,
    "near_room": near_room,
    "nearest": nearest,
    "ordered": ordered,
    "hot_cold": hot_cold,
    "gorgo": gorgo,
    "lmetric": lmetric,
    "least_load": least_load,
    "round_robin": round_robin,
}
