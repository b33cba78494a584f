"""Parity: a recording's calls made again on fresh parts, each result compared with what it was live.

The parts are the real ones, so this is a simulation whose world is the recording: nothing but what was written
down can reach a decision. Whatever differs means that a decision depends on something else (a clock, other dice,
an object's identity), or that this gslb decides otherwise than the one that recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from gslb.routing.explanation import one_line
from gslb.routing.load import InFlight, OwnLoad
from gslb.routing.router import Router
from gslb.routing.view import FleetView
from gslb.sim.codec import Unreadable, decode
from gslb.sim.recording import FORMAT, PARTS
from gslb.sim.told import told
from gslb.types import Facts, Place

DECIDING = frozenset({"route", "next_attempt", "explain"})
"""The router's methods that decide where a request goes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first call that came to something else. `explanation` is how the replay sees that request (for a
    decision)."""

    line: int
    call: str
    live: Any
    replayed: Any
    explanation: str = ""


@dataclass(slots=True)
class Parity:
    """How a replay went, so far. `calls` counts everything, `decisions` what `DECIDING` says; all of them but
    `difference` were equal. `is_cut`: the recording ends in the middle of a line, as after a kill."""

    about: Mapping[str, Any]
    calls: int = 0
    decisions: int = 0
    difference: Difference | None = None
    is_cut: bool = False

    @property
    def equal(self) -> int:
        """Decisions that were equal."""
        is_decision = self.difference is not None and self.difference.call.rpartition(".")[2] in DECIDING
        return self.decisions - is_decision


class Replay:
    """Takes a recording line by line. Stops taking after the first difference."""

    def __init__(self) -> None:
        self.parity = Parity({})
        self._named: dict[str, Any] = {}
        self._fleet: FleetView | None = None
        self._places: dict[Place, Place] = {}
        self._loads = 0
        self._number = 0

    def take(self, line: str) -> bool:
        """Do as the next line says; False when there is nothing more to compare.

        Raises Unreadable, naming the line, when it is none of a recording.
        """
        self._number += 1
        if self.parity.is_cut:
            raise Unreadable(f"line {self._number - 1}: is no JSON")
        try:
            data = json.loads(line)
        except ValueError:
            if self._number == 1:
                raise Unreadable("line 1: this is no recording of gslb") from None
            self.parity.is_cut = True  # fine if it was the last one
            return True
        try:
            if self._number == 1:
                self._begin(data)
            elif "make" in data:
                self._make(data["make"], data["part"], data["with"])
            else:
                self._call(data["call"], data["do"], data["with"], data["gave"])
        except Unreadable as error:
            raise Unreadable(f"line {self._number}: {error}") from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise Unreadable(f"line {self._number}: cannot be replayed by this gslb: {what}") from error
        return self.parity.difference is None

    def _begin(self, about: Any) -> None:
        if not isinstance(about, dict) or "format" not in about:
            raise Unreadable("this is no recording of gslb")
        if about["format"] != FORMAT:
            raise Unreadable(f"is of format {about['format']}, and this gslb reads {FORMAT}")
        self.parity.about = about
        self._named["dice"] = Random(about["seed"])

    def _make(self, name: str, part: str, members: Mapping[str, Any]) -> None:
        if part not in PARTS:
            raise Unreadable(f"this gslb has no part {part!r}: it was recorded by another version")
        kind: Any = PARTS[part][1]
        arguments = self._decoded(members)
        if kind is FleetView:
            made = self._fleet = FleetView(**arguments, own_load_of=self._own_load)
        else:
            made = kind(**arguments)
        self._named[name] = made

    def _own_load(self, _key: str) -> InFlight:
        own = self._named[f"load {self._loads}"] = OwnLoad()
        self._loads += 1
        return own

    def _call(self, name: str, method: str, members: Mapping[str, Any], live: Any) -> None:
        arguments = self._decoded(members)
        if isinstance(facts := arguments.get("facts"), Facts):
            # As the locator does it: the router keeps its lists by a place's identity.
            facts.place = self._places.setdefault(facts.place, facts.place)
        part = self._decoded({"part": {"the": name}})["part"]
        if method.startswith("_"):
            raise Unreadable(f"{method} is not for callers")
        replayed = told(getattr(part, method)(**arguments))
        parity = self.parity
        parity.calls += 1
        parity.decisions += isinstance(part, Router) and method in DECIDING
        if replayed != live:
            explanation = ""
            if isinstance(part, Router) and "facts" in arguments:
                now_s = arguments.get("now_s", 0.0)
                explanation = one_line(part.explain(arguments["facts"], arguments["snapshot"], now_s)[1])
            parity.difference = Difference(self._number, f"{name}.{method}", live, replayed, explanation)

    def _decoded(self, members: Mapping[str, Any]) -> dict[str, Any]:
        named = self._named
        if self._fleet is not None:
            named["snapshot"] = self._fleet.snapshot
        return {name: decode(value, named) for name, value in members.items()}


def replay(lines: Iterable[str]) -> Parity:
    """Replay a recording up to its end or the first difference. Raises Unreadable, naming the line."""
    taking = Replay()
    for line in lines:
        if not taking.take(line):
            break
    return taking.parity
