"""Collects what is wrong with a file, layer by layer, so that one mistake is told once."""

from __future__ import annotations

from gslb.config.problems import KeyPath, Mark, Problem, path_text
from gslb.config.yaml_source import Source


class Report:
    """Problems of one file. What one layer (YAML, shape, meaning) says of a value, later ones do not repeat."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._problems = list(source.problems)
        self._found_now: set[KeyPath] = set()

    def add(self, path: KeyPath, message: str, *, is_key: bool = False) -> None:
        """Report `message` of the value at `path`, or with `is_key` of the key there, which may be missing."""
        place = self.source.locate(path)
        if place is None:
            return
        if len(place.path) < len(path) and not isinstance(place.node.value, dict):
            path = place.path  # pydantic looks inside a short form, where the file has one text
        if path in self.source.flawed:
            return
        mark: Mark = place.node.mark
        if is_key and place.key_mark is not None:
            mark = place.key_mark
        self._problems.append(Problem(self.source.filename, *mark, path_text(path), message))
        self._found_now.add(path)

    def end_layer(self) -> None:
        """From here on, values already reported are flawed: they are neither judged nor reported again."""
        self.source.flawed |= self._found_now
        self._found_now.clear()

    @property
    def problems(self) -> list[Problem]:
        """All problems, in the order of the file."""
        return sorted(self._problems, key=lambda problem: (problem.line, problem.col, problem.path))
