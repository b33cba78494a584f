"""What can befall one attempt at one upstream, and whether that explains what its client saw. Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random


class Fate(enum.Enum):
    """What an upstream does to one attempt."""

    GOOD = "good"
    BEFORE_HEAD = "before_head"
    IN_HEAD = "in_head"
    BEFORE_CONTENT = "before_content"
    """After the head, or after the role-only first event of a stream."""
    MID = "mid"
    AFTER = "after"
    """The connection is reset behind the whole answer."""
    STATUS_503 = "status_503"
    STATUS_429 = "status_429"


BREAKS = (Fate.BEFORE_HEAD, Fate.IN_HEAD, Fate.BEFORE_CONTENT, Fate.MID, Fate.AFTER)
CUTTING = frozenset((Fate.MID.value, Fate.AFTER.value))
"""Fates that may end an answer behind its first content. A reset takes with it what was not delivered yet, so
AFTER is one of them."""


def draw_fate(rng: Random, break_share: float, sick: Fate | None) -> Fate:
    """The fate of one attempt: a break with `break_share`; of the others `sick`, where there is one, for half."""
    if rng.random() < break_share:
        return rng.choice(BREAKS)
    return sick if sick is not None and rng.random() < 0.5 else Fate.GOOD


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which an endpoint refused connections, in seconds of CLOCK_MONOTONIC."""

    endpoint: int
    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Incident:
    """A request that did not end well, as its client saw it. `kind` is one of `soak_clients.KINDS`."""

    kind: str
    seed: int
    from_s: float
    until_s: float
    what: str


def refusing(windows: Sequence[Window], from_s: float, until_s: float) -> set[int]:
    """Endpoints that refused at any moment between these two."""
    return {window.endpoint for window in windows if window.from_s <= until_s and window.until_s >= from_s}


def is_explained(
    incident: Incident, fates: Mapping[int, str], refused: Collection[int], attempts_allowed: int
) -> bool:
    """Whether injected faults explain an incident.

    `fates`: endpoint -> the last fault this request met there. Each attempt of a request goes to another
    endpoint, so a failure before content needs faults at as many endpoints as attempts are allowed; endpoints
    that refused meanwhile count, since no upstream sees a refused attempt. A cut needs an endpoint that cut.
    Nothing explains an answer with wrong bytes, a dropped connection, or a request that hangs.
    """
    if incident.kind == "cut":
        return bool(CUTTING & set(fates.values()))
    if incident.kind == "failed":
        return len(set(fates) | set(refused)) >= attempts_allowed
    return False
