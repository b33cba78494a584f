"""A recording: every call that the core's parts got from outside, in order, and what each came to.

The core is pure: the same calls in the same order, with the same times and dice, must give the same decisions.
`sim.parity` makes the calls again, on fresh parts, and compares one by one. One JSON object a line:

    {"gslb": ..., "format": 1, "seed": ..., ...}                          once, first
    {"make": "fleet", "part": "FleetView", "with": {...}}                  a part was made
    {"call": "fleet", "do": "probe_passed", "with": {"key": ..., "now_s": ...}, "gave": null}

What a request asked is there as the decision sees it: model, tenant, the client's country and place, token counts,
hashes. No prompt, no answer, no key, no address; texts in which an upstream may have quoted a prompt (`why`) are
left out.

Not recorded: attributes that are set on a part from outside. The core has none that decisions depend on.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, ParamSpec, TypeVar

from gslb.routing.affinity import Affinity
from gslb.routing.load import InFlight, OwnLoad
from gslb.routing.making import Making
from gslb.routing.router import Router
from gslb.routing.snapshot import Snapshot
from gslb.routing.view import FleetView
from gslb.sim.codec import NotRecordable, encode
from gslb.sim.told import told

P = ParamSpec("P")
T = TypeVar("T")

FORMAT = 1

READERS = frozenset({"known", "own_load", "model_cards", "is_doubted", "is_ejected", "load_error", "neighbours"})
"""Methods that only look: making them again would prove nothing."""

_NOT_KEPT = "why"

PARTS: Mapping[str, tuple[str, type]] = {
    "FleetView": ("fleet", FleetView),
    "Router": ("router", Router),
    "OwnLoad": ("load", OwnLoad),
    "Affinity": ("affinity", Affinity),
}
"""The core's parts by class, and what theirs are named by."""


class Recording(Making):
    """Makes parts that write down what is asked of them, a line at a time, by `write`.

    A fault of recording (a full disk, a value it does not know) never reaches a request: it is told once, by
    `on_fault`, and nothing is recorded after it, so that what there is can be replayed.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        on_fault: Callable[[Exception], None],
        seed: int,
        about: Mapping[str, Any],
    ) -> None:
        """`seed` is that of the parts' dice; `about` goes into the first line for whoever reads it."""
        super().__init__(Random(seed))
        self._write = write
        self._on_fault = on_fault
        self._is_open = True
        self._is_inside = False
        self._fleet: FleetView | None = None
        self._names: dict[int, str] = {id(self.dice): "dice"}
        self._parts: list[object] = []
        self._classes = {name: self._recorded(part) for name, (_, part) in PARTS.items()}
        self._line({**about, "format": FORMAT, "seed": seed})

    def make(self, part: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A part that is recorded; as `Making.make` for what is no class of PARTS."""
        name = getattr(part, "__name__", "")
        if name not in PARTS:
            return part(*args, **kwargs)
        members = inspect.signature(part).bind(*args, **kwargs).arguments
        number = sum(1 for one in self._parts if type(one) is self._classes[name])
        prefix = PARTS[name][0]
        called = f"{prefix} {number}" if number else prefix
        encoded = self._encoded(members)
        made: Any
        if part is FleetView:
            made = self._fleet = self._classes[name](*args, **kwargs, own_load_of=self._own_load)
        else:
            made = self._classes[name](*args, **kwargs)
        self._parts.append(made)
        self._names[id(made)] = called
        self._line({"make": called, "part": name, "with": encoded})
        result: T = made
        return result

    def _own_load(self, _key: str) -> InFlight:
        """Made by the fleet view inside of a call, which makes them again when it is replayed: named by number."""
        made = self._classes["OwnLoad"]()
        self._names[id(made)] = f"load {sum(1 for one in self._parts if isinstance(one, OwnLoad))}"
        self._parts.append(made)
        own: InFlight = made
        return own

    # --- calls -------------------------------------------------------------------------------------

    def _recorded(self, part: type) -> Any:
        """A subclass of `part` whose public methods are written down."""
        methods = {
            name: self._noted(name, method)
            for name, method in inspect.getmembers(part, inspect.isfunction)
            if not name.startswith("_") and name not in READERS
        }
        return type(f"Recorded{part.__name__}", (part,), methods)

    def _noted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        names = tuple(inspect.signature(method).parameters)[1:]

        def noted(part: object, *args: Any, **kwargs: Any) -> Any:
            if self._is_inside or not self._is_open:
                return method(part, *args, **kwargs)  # by itself or by another part: follows from that call
            members = dict(zip(names, args, strict=False)) | kwargs
            if _NOT_KEPT in members:
                members[_NOT_KEPT] = ""
            encoded = self._encoded(members)
            self._is_inside = True
            try:
                result = method(part, *args, **kwargs)
            finally:
                self._is_inside = False
            called = self._names[id(part)]
            self._line({"call": called, "do": name, "with": encoded, "gave": told(result)})
            return result

        return noted

    # --- lines -------------------------------------------------------------------------------------

    def _encoded(self, members: Mapping[str, object]) -> dict[str, Any]:
        if not self._is_open:
            return {}
        try:
            return {name: encode(value, self._name_of) for name, value in members.items()}
        except NotRecordable as error:
            self._end(error)
            return {}

    def _name_of(self, value: object) -> str | None:
        if isinstance(value, Snapshot):
            if self._fleet is None or value is not self._fleet.snapshot:
                raise NotRecordable("a recording cannot hold a snapshot that is not the present one")
            return "snapshot"
        return self._names.get(id(value))

    def _line(self, members: Mapping[str, Any]) -> None:
        if not self._is_open:
            return
        try:
            self._write(json.dumps(members, separators=(",", ":")) + "\n")
        except (OSError, TypeError, ValueError) as error:
            self._end(error)

    def _end(self, fault: Exception) -> None:
        self._is_open = False
        self._on_fault(fault)
