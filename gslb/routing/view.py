"""The fleet as known now: one writer, whole snapshots.

`FleetView` is the only writer; readers hold a `Snapshot`, which never changes under them. A snapshot's
`roster` number moves only when something other than load changed (health, models, the operator's hand,
round trips), so candidate lists computed from it can be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, Final

from gslb.routing.ejection import Standing, may_be_lost, others_have_room
from gslb.routing.health import Cause, HealthMachine, HealthMarks, Outcome, State
from gslb.routing.learn import Kin, Moments, ServiceFit, kin_key
from gslb.routing.load import InFlight, OwnLoad, guests_key
from gslb.routing.progress import judge_progress, patience_s
from gslb.routing.snapshot import EndpointView, Known, Record, Snapshot, others_in
from gslb.types import Endpoint, ForcedState, LoadSample

_USUAL_WEIGHT: Final = 0.05
"""Of one sample in the average of others' requests: it remembers about twenty."""
_LEARNS_ALONE_S: Final = 2.0
"""What was seen of an endpoint without a sample for so long is taken in by `tick`."""
_SETS_PER_LEAST: Final = 50


class FleetView:
    """The one writer. Everything observed comes in here; `snapshot` is what everybody else reads."""

    def __init__(
        self,
        marks: HealthMarks,
        assumes_models: bool = False,
        own_load_of: Callable[[str], InFlight] = lambda _key: OwnLoad(),
        on_change: Callable[[str], None] = lambda _key: None,
        dice: Random | None = None,
    ) -> None:
        """`own_load_of` makes the counter of a new endpoint's running requests, by its key, or of a region's
        foreign ones (`load.guests_key`); `on_change` is called with the key of an endpoint of which something new
        is known; `dice` spread the ends of ejections."""
        self.on_news: Callable[[], None] = _nothing
        """Called after every new snapshot: somebody may have room now."""
        self._dice = dice
        self._marks = marks
        self._own_load_of = own_load_of
        self._on_change = on_change
        self._assumes_models = assumes_models
        self._records: dict[str, Record] = {}
        self._guests: dict[str, InFlight] = {}
        self._kin: dict[tuple[object, ...], Kin] = {}
        self._index: dict[str, int] = {}
        self.known_models: frozenset[str] = frozenset()
        """Every model name any endpoint serves: the only ones that may become a metric's label."""
        self._roster = 0
        self._generation = 0
        self._until_least = 0
        self.snapshot = Snapshot((), 0, 0, assumes_models)

    def configure(self, endpoints: Iterable[Endpoint], marks: HealthMarks) -> None:
        """A new config generation: state of endpoints that stay survives, by key; the rest goes."""
        self._marks = marks
        endpoints = tuple(endpoints)
        names = {endpoint.region.name for endpoint in endpoints}
        self._guests = {name: guests for name, guests in self._guests.items() if name in names}
        old = self._records
        self._records = {}
        self._kin = {key: self._kin.get(key) or Kin(one) for one in endpoints for key in (kin_key(one),)}
        for endpoint in endpoints:
            kin = self._kin[kin_key(endpoint)]
            record = old.get(endpoint.key)
            if record is None:
                own = self._own_load_of(endpoint.key)
                record = Record(endpoint, self._machine(endpoint.key), own, own, ServiceFit(kin))
            else:
                record.health.set_marks(marks)
                record.fit.believe(kin)
                if record.endpoint.models is not None and endpoint.models is None:
                    record.models, record.model_cards = None, ()  # declared before, now to be learnt
            record.endpoint = endpoint
            record.guests = self._guests_in(endpoint.region.name)
            if endpoint.models is not None:
                record.models = endpoint.models
                record.model_cards = tuple({"id": name} for name in sorted(endpoint.models))
            self._records[endpoint.key] = record
        self._generation += 1
        self._publish_all()

    def _guests_in(self, region: str) -> InFlight:
        if region not in self._guests:
            self._guests[region] = self._own_load_of(guests_key(region))
        return self._guests[region]

    # --- what observers and the data path report -------------------------------------------------

    def probe_passed(self, key: str, now_s: float) -> None:
        """The light probe of `key` came back good."""
        if (record := self._records.get(key)) and record.health.probe_passed(now_s):
            self._publish(record, roster=True)

    def probe_failed(self, key: str, now_s: float, why: str, is_refused: bool = False) -> None:
        """The light probe of `key` failed or timed out; `is_refused`: not even a connection came about."""
        if (record := self._records.get(key)) and record.health.probe_failed(now_s, why, is_refused):
            self._publish(record, roster=True)
            self._suspect_neighbours(record)

    def outcome(self, key: str, outcome: Outcome, now_s: float, why: str = "", count: int = 1) -> bool:
        """An attempt at `key` ended, or `count` that ended alike; True when that changed its state (a reason to
        probe at once it and its `neighbours`)."""
        record = self._records.get(key)
        if record is None:
            return False
        was_out = record.health.state is State.EJECTED
        is_news = record.health.observe(outcome, now_s, why, count)
        if is_news:
            self._publish(record, roster=True)
        if outcome is Outcome.SUCCESS:
            record.progress.succeeded(now_s)
        elif not was_out and (outcome is Outcome.BROKEN or (is_news and outcome is Outcome.SERVER_ERROR)):
            self._suspect_neighbours(record)
        return is_news

    def tick(self, now_s: float) -> None:
        """Let ejections run out and shares grow, and take in what was learnt. Call about once a second."""
        changed: list[Record] = []
        roster = False
        for record in self._records.values():
            health = record.health
            share = health.share
            is_moved = health.tick(now_s)
            # What is sampled regularly learns with its samples.
            has_learnt = record.load_age_s(now_s) > _LEARNS_ALONE_S and self._learn(record)
            if is_moved or has_learnt or health.share != share:
                changed.append(record)
            roster = roster or is_moved
        if changed:
            self._publish(*changed, roster=roster)

    def load_sampled(self, key: str, sample: LoadSample) -> None:
        """A scrape or an ORCA header told the load of `key`; signals it lacks stay as they were known."""
        self.loads_sampled(((key, sample),))

    def loads_sampled(self, samples: Iterable[tuple[str, LoadSample]]) -> None:
        """The same of several endpoints at once, which costs one snapshot."""
        changed: list[Record] = []
        for key, sample in samples:
            if record := self._records.get(key):
                self._take_sample(record, sample)
                changed.append(record)
        if changed:
            self._publish(*changed, roster=False)

    def _take_sample(self, record: Record, sample: LoadSample) -> None:
        previous = record.load
        if sample.running is None and previous is not None and previous.running is not None:
            # An ORCA header tells the queue only: what runs stays as last scraped, and as old.
            waiting = previous.waiting if sample.waiting is None else sample.waiting
            kv_usage = previous.kv_usage if sample.kv_usage is None else sample.kv_usage
            record.load = replace(previous, waiting=waiting, kv_usage=kv_usage)
            record.others = others_in(record.load)
        else:
            record.load = sample
            record.load_error = None
            record.fit.kin.sampled(previous, sample)
            self._learn(record)
            record.others = others = others_in(sample)
            is_first = previous is None or previous.running is None  # a header alone told nothing of what is usual
            record.usual_others += (1.0 if is_first else _USUAL_WEIGHT) * (others - record.usual_others)
            record.learnt_slots.sampled(previous, sample)
            if self._marks.stall_s:
                self._judge_progress(record, sample)

    def _learn(self, record: Record) -> bool:
        """Take in what was seen at an endpoint; True when there was anything."""
        return record.learn()

    def first_token_seen(self, key: str, work: float, ahead: float, wait_ms: float) -> None:
        """A first token came `wait_ms` after its request reached the engine of `key`, with `work` of its own to do
        and `ahead` before it. Not to be told of waits in a full engine's queue."""
        if record := self._records.get(key):
            record.fit.note(record.seen, work, ahead, wait_ms)

    def answer_seen(self, key: str, hold_ms: float) -> None:
        """A whole answer of `key` held its slot for `hold_ms`."""
        if record := self._records.get(key):
            record.seen.answer(hold_ms)

    def learnt_elsewhere(self, key: str, seen: Moments) -> None:
        """First tokens and answers of `key` that another process has seen."""
        if record := self._records.get(key):
            record.seen.add(seen)

    def load_failed(self, key: str, why: str) -> None:
        """A scrape failed: the last sample stays and ages."""
        if record := self._records.get(key):
            record.load_error = why

    def models_learnt(self, key: str, cards: Iterable[Mapping[str, Any]]) -> None:
        """`/v1/models` of `key` answered with these entries (each has an `id`)."""
        record = self._records.get(key)
        if record is None or record.endpoint.models is not None:
            return
        record.model_cards = tuple(cards)
        models = frozenset(str(card["id"]) for card in record.model_cards)
        if models != record.models:
            record.models = models
            self._publish(record, roster=True)

    def rtt_measured(self, key: str, blended_ms: float, *, orders: bool = True) -> None:
        """The blended round trip edge -> `key`. Small moves are not worth a new roster; nor is any where it does
        not order endpoints, as at an edge that stands nowhere."""
        record = self._records.get(key)
        if record is None:
            return
        before = record.rtt_ms
        if before is None or abs(blended_ms - before) > max(2.0, 0.05 * before):
            record.rtt_ms = blended_ms
            self._publish(record, roster=orders)

    def force(self, key: str, forced: ForcedState) -> bool:
        """The operator's hand on `key`. False when there is no such endpoint."""
        record = self._records.get(key)
        if record is None:
            return False
        record.forced = forced
        self._publish(record, roster=True)
        return True

    # --- what binds one endpoint's health to the others' --------------------------------------------

    def neighbours(self, key: str) -> list[str]:
        """Keys of the other endpoints on the node of `key`, in its region."""
        record = self._records.get(key)
        if record is None or record.endpoint.node is None:
            return []
        node = (record.endpoint.region.name, record.endpoint.node)
        return [
            other
            for other, one in self._records.items()
            if other != key and (one.endpoint.region.name, one.endpoint.node) == node
        ]

    def _suspect_neighbours(self, record: Record) -> None:
        ill = record.endpoint
        for key in self.neighbours(ill.key):
            neighbour = self._records[key]
            if neighbour.health.suspect(f"shares node {ill.node} with {ill.key}, which is in doubt"):
                self._publish(neighbour, roster=True)

    def _judge_progress(self, record: Record, sample: LoadSample) -> None:
        bound_s = self._marks.stall_s

        def most_s() -> float:
            return patience_s(bound_s, record.own.pending_tokens, record.endpoint.prefill_ms_per_token)

        if judge_progress(record.progress, record.health, sample, bound_s, most_s):
            self._publish(record, roster=True)
            if record.health.cause is Cause.PROGRESS:
                self._suspect_neighbours(record)

    def _machine(self, key: str) -> HealthMachine:
        def may_eject(now_s: float, is_for_fullness: bool) -> bool:
            fleet = self._standings()
            if is_for_fullness and not others_have_room(key, fleet, now_s, self._marks.min_success):
                return False
            return may_be_lost(key, fleet, self._marks.kept_capacity)

        is_new = self._generation > 0
        return HealthMachine(self._marks, self._dice, may_eject, is_new=is_new)

    def _standings(self) -> list[Standing]:
        return [
            Standing(
                key, record.models or frozenset(), record.slots,
                record.health.state not in (State.EJECTED, State.PROBING), record.health.recent,
            )
            for key, record in self._records.items()
            if record.forced is ForcedState.NONE
        ]  # fmt: skip

    # --- what one process tells another -----------------------------------------------------------

    def known(self, key: str) -> Known | None:
        """All that is known of `key`, for `take_over` in another process's view of the same fleet."""
        record = self._records.get(key)
        if record is None:
            return None
        health = record.health
        return Known(
            health.state, health.cause, health.reason, health.failed_requests, health.share, record.load,
            record.models, record.model_cards, record.forced, record.rtt_ms, record.learnt_slots.slots,
            record.usual_others, record.fit.beliefs,
        )  # fmt: skip

    def take_over(self, key: str, known: Known) -> None:
        """Know of `key` what another view knows, which has the say: this one judges no health of its own."""
        record = self._records.get(key)
        if record is None:
            return
        health = record.health
        before = (health.suspicion, health.state, record.models, record.model_cards, record.forced, record.rtt_ms)
        health.state, health.cause, health.reason = known.state, known.cause, known.reason
        health.failed_requests, health.share = known.failed_requests, known.share
        record.load, record.learnt_slots.slots = known.load, known.learnt_slots
        record.others = others_in(known.load)
        record.usual_others = known.usual_others
        record.fit.take_over(known.beliefs)
        if record.endpoint.models is None:
            record.models, record.model_cards = known.models, known.model_cards
        record.forced, record.rtt_ms = known.forced, known.rtt_ms
        after = (health.suspicion, health.state, record.models, record.model_cards, record.forced, record.rtt_ms)
        self._publish(record, roster=before != after)

    # --- what services read -----------------------------------------------------------------------

    def own_load(self, key: str) -> InFlight | None:
        """The ticket counter of `key`, shared with every snapshot."""
        record = self._records.get(key)
        return record.own if record else None

    def model_cards(self) -> list[Mapping[str, Any]]:
        """The `/v1/models` entries of all endpoints not ejected, endpoint by endpoint."""
        return [
            card
            for record in self._records.values()
            if record.health.state is not State.EJECTED
            for card in record.model_cards
        ]

    def is_doubted(self, key: str) -> bool:
        """True while `key` is suspect or ejected."""
        record = self._records.get(key)
        return record is not None and record.health.state in (State.SUSPECT, State.EJECTED)

    def is_ejected(self, key: str) -> bool:
        """True while `key` is ejected."""
        record = self._records.get(key)
        return record is not None and record.health.state is State.EJECTED

    def load_error(self, key: str) -> str | None:
        """Why the last scrape of `key` failed, or None."""
        record = self._records.get(key)
        return record.load_error if record else None

    def _publish(self, *records: Record, roster: bool) -> None:
        if roster:
            self._list_models()
            self._roster += 1
        views = list(self.snapshot.endpoints)
        least_ms = self.snapshot.least_rate_ms
        for record in records:
            view = EndpointView(record)
            views[self._index[record.endpoint.key]] = view
            if view.rate_ms < least_ms:
                least_ms = view.rate_ms
        self._set(tuple(views), least_ms)
        for record in records:
            self._on_change(record.endpoint.key)
        self.on_news()

    def _set(self, views: tuple[EndpointView, ...], least_ms: float) -> None:
        """A new snapshot, in which no rate is below `least_ms`. The least of all is looked for now and then only:
        between that it may be too low, never too high."""
        self._until_least -= 1
        if self._until_least < 0:
            self._until_least = _SETS_PER_LEAST
            least_ms = min((view.rate_ms for view in views), default=0.0)
        self.snapshot = Snapshot(views, self._roster, self._generation, self._assumes_models, least_ms)

    def _list_models(self) -> None:
        self.known_models = frozenset().union(*(record.models or () for record in self._records.values()))

    def _publish_all(self) -> None:
        self._roster += 1
        self._list_models()
        self._index = {key: i for i, key in enumerate(self._records)}
        views = tuple(EndpointView(record) for record in self._records.values())
        self._until_least = 0
        self._set(views, 0.0)
        self.on_news()


def _nothing() -> None:
    """Nobody waits for news."""
