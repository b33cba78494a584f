"""Why a decision is as it is: every candidate ranked by its milliseconds, every drop named; also in one line."""

from __future__ import annotations

from gslb.routing.candidates import Candidates
from gslb.routing.health import LAST_RESORT
from gslb.routing.predict import Option
from gslb.routing.slate import Slate
from gslb.routing.snapshot import EndpointView
from gslb.types import Dropped, Explanation, Ranked


def explanation_of(chosen: Option | None, reason: str, candidates: Candidates, slate: Slate) -> Explanation:
    """The explanation of a decision among `candidates`: which was `chosen`, if any, and the `reason` in a word."""
    entries = [entry for tier in candidates.tiers for entry in tier.entries]
    options = [option for entry in entries if (option := slate.option(entry)) is not None]
    dropped = list(candidates.dropped)
    if candidates.live_tiers and not candidates.is_panic:
        ill = [option for option in options if option.view.suspicion >= LAST_RESORT]
        options = [option for option in options if option.view.suspicion < LAST_RESORT]
        dropped += [_drop_ill(option.view) for option in ill]
    options.sort(key=lambda option: option.total_ms)
    return Explanation(
        choice=None if chosen is None else _ranked(chosen, slate),
        home=candidates.home or None,
        reason=reason,
        ranked=tuple([_ranked(option, slate) for option in options]),
        dropped=tuple(dropped),
    )


def _drop_ill(view: EndpointView) -> Dropped:
    return Dropped(view.endpoint.region.name, view.endpoint.key, "health", f"{view.state.value}: {view.reason}")


def _ranked(option: Option, slate: Slate) -> Ranked:
    view = option.view
    region = view.endpoint.region.name
    notes = [] if view.suspicion == 0 else [view.state.value]
    if view.share < 1.0:
        notes.append(f"slow start at {view.share:.0%}")
    if region != slate.home and slate.gate_is_shut(region):
        notes.append("gate shut")
    return Ranked(
        region=region,
        endpoint=view.endpoint.key,
        total_ms=round(option.total_ms, 3),
        network_ms=round(option.network_ms, 3),
        queue_ms=round(option.queue_ms, 3),
        prefill_ms=round(option.prefill_ms, 3),
        tax_ms=option.tax_ms,
        has_room=option.has_room,
        note=", ".join(notes),
    )


def one_line(explanation: Explanation) -> str:
    """The decision in one line of printable ASCII, for a header or a log."""
    parts = []
    if (choice := explanation.choice) is not None:
        parts.append(
            f"{choice.endpoint} {choice.total_ms:.0f}ms = network {choice.network_ms:.0f} + queue "
            f"{choice.queue_ms:.0f} + prefill {choice.prefill_ms:.0f} + tax {choice.tax_ms:.0f}"
        )
    parts.append(f"home {explanation.home or '-'} ({explanation.reason})")
    chosen = choice.endpoint if choice else None
    others = [f"{r.endpoint} {r.total_ms:.0f}ms" for r in explanation.ranked if r.endpoint != chosen]
    if others:
        parts.append("then " + ", ".join(others[:3]))
    if explanation.dropped:
        parts.append("dropped " + ", ".join(f"{d.endpoint} by {d.rule}" for d in explanation.dropped[:6]))
    return "".join(c if " " <= c <= "~" else "?" for c in "; ".join(parts))
