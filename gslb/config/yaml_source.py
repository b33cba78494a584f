"""YAML text -> a tree of values that remembers where each stood, with everything wrong in it collected.

Built on PyYAML's event parser, which does not recurse, so that nesting, size and alias expansion are bounded
here. Not supported, each with a message: several documents, merge keys (`<<` is no part of YAML 1.2), tags
other than `!!str`, keys that are not text, tabs between tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from gslb.config.problems import KeyPath, Mark, Problem, path_text, shown
from gslb.config.scalars import Plain, ScalarTrap, resolve_plain

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST = 32
_MOST_NODES = 200_000
_LONGEST_CHARACTERS = 4 * 1024 * 1024
_STR_TAGS = frozenset(("!", "tag:yaml.org,2002:str"))
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINE_END = re.compile("\r\n|[\r\n\x85\u2028\u2029]")


@dataclass(slots=True)
class Node:
    """A value and where it stands. `value` of a mapping maps key to Node, of a list is a list of Nodes.

    `text` is a scalar as written. `node_count` counts this node and all below, aliases expanded.
    """

    value: Plain | dict[str, Node] | list[Node]
    mark: Mark
    text: str = ""
    key_marks: dict[str, Mark] = field(default_factory=dict)
    node_count: int = 1


class Place(NamedTuple):
    """What stands at a path, as far as it leads: the deepest node met and the path that led to it."""

    path: KeyPath
    node: Node
    key_mark: Mark | None


@dataclass(slots=True)
class Source:
    """One parsed file. `root` is None when nothing below a syntax error or a wrong top level can be used."""

    filename: str
    root: Node | None
    problems: list[Problem]
    flawed: set[KeyPath]

    def plain(self) -> Any:
        """The tree as dicts, lists and scalars; a scalar that was a trap stands as its text."""
        return _plain(self.root) if self.root is not None else None

    def locate(self, path: KeyPath) -> Place | None:
        """The deepest node on the way along `path`, or None for an unusable file."""
        if self.root is None:
            return None
        place = Place((), self.root, None)
        for depth, step in enumerate(path):
            value = place.node.value
            key_mark = None
            if isinstance(value, dict) and isinstance(step, str) and step in value:
                child, key_mark = value[step], place.node.key_marks[step]
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                child = value[step]
            else:
                break
            place = Place(path[: depth + 1], child, key_mark)
        return place

    def find(self, *pattern: str | int) -> Iterator[tuple[KeyPath, Node]]:
        """Every (path, node) that `pattern` leads to; `*` stands for any key or index."""
        if self.root is not None:
            yield from _find(self.root, (), pattern)

    def texts(self, *pattern: str | int) -> Iterator[tuple[KeyPath, str]]:
        """As `find`, for values that are text and not already known to be flawed."""
        for path, node in self.find(*pattern):
            if isinstance(node.value, str) and path not in self.flawed:
                yield path, node.value


def _plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: _plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(child) for child in node.value]
    return node.value


def _find(node: Node, path: KeyPath, pattern: KeyPath) -> Iterator[tuple[KeyPath, Node]]:
    if not pattern:
        yield path, node
        return
    step, rest = pattern[0], pattern[1:]
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            if step in ("*", key):
                yield from _find(child, (*path, key), rest)
    elif isinstance(node.value, list):
        for index, child in enumerate(node.value):
            if step in ("*", index):
                yield from _find(child, (*path, index), rest)


def parse_yaml(text: str, filename: str) -> Source:
    """Parse one YAML document whose top is a mapping. Never raises: what is wrong is in `problems`."""
    text = text.removeprefix("\ufeff")
    builder = _Builder(text, filename)
    try:
        root = builder.build()
    except _Stop as stop:
        builder.report((), stop.mark, stop.message)
        root = None
    return Source(filename, root, builder.problems, builder.flawed)


class _Stop(Exception):
    """Nothing after this point can be understood."""

    def __init__(self, mark: Mark, message: str) -> None:
        super().__init__(message)
        self.mark = mark
        self.message = message


@dataclass(slots=True)
class _Frame:
    """A mapping or list that is still open. `key` is the pending key of a mapping, None where one is due."""

    node: Node
    anchor: str | None
    path: KeyPath
    key: tuple[str, Mark] | None = None
    key_is_skipped: bool = False


class _Builder:
    """Turns parse events into Nodes with a stack of its own."""

    def __init__(self, text: str, filename: str) -> None:
        self.problems: list[Problem] = []
        self.flawed: set[KeyPath] = set()
        self._text = text
        self._filename = filename
        self._stack: list[_Frame] = []
        self._anchors: dict[str, Node] = {}
        self._node_count = 0
        self._root: Node | None = None

    def report(self, path: KeyPath, mark: Mark, message: str) -> None:
        self.flawed.add(path)
        self.problems.append(Problem(self._filename, *mark, path_text(path), message))

    def build(self) -> Node:
        """The root mapping. Raises _Stop."""
        self._check_characters()
        documents = 0
        try:
            for event in yaml.parse(self._text, Loader=_LOADER):
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        raise _Stop(_mark(event), "a second document starts here: one file is one document")
                else:
                    self._take(event)
        except yaml.YAMLError as error:
            raise self._syntax_error(error) from None
        root = self._root
        if root is None or (root.value is None and not root.text):
            raise _Stop(Mark(1, 1), "the file is empty: at least `regions` is needed")
        if not isinstance(root.value, dict):
            raise _Stop(root.mark, "the top of the file must be a mapping of sections such as `regions:`")
        return root

    def _check_characters(self) -> None:
        if len(self._text) > _LONGEST_CHARACTERS:
            raise _Stop(Mark(1, 1), f"the file is longer than {_LONGEST_CHARACTERS} characters")
        bad = _UNPRINTABLE.search(self._text)
        if bad is not None:
            mark = self._mark_of_index(bad.start())
            raise _Stop(mark, f"character U+{ord(bad[0]):04X} is not allowed in YAML: remove it")

    def _mark_of_index(self, index: int) -> Mark:
        breaks = [found.end() for found in _LINE_END.finditer(self._text, 0, index)]
        return Mark(len(breaks) + 1, index - (breaks[-1] if breaks else 0) + 1)

    def _syntax_error(self, error: yaml.YAMLError) -> _Stop:
        at = getattr(error, "problem_mark", None)
        if at is None:
            return _Stop(Mark(1, 1), f"this is no YAML: {error}")
        if self._text[at.index : at.index + 1] == "\t":
            return _Stop(Mark(at.line + 1, at.column + 1), "a tab stands here: write spaces")
        parts = (getattr(error, "problem", None), getattr(error, "context", None))
        words = ", ".join(part for part in parts if part)
        return _Stop(Mark(at.line + 1, at.column + 1), f"this is no YAML: {words}")

    # --- events -------------------------------------------------------------------------------------------

    def _take(self, event: Any) -> None:
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._open(event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            frame = self._stack.pop()
            self._attach(frame.node, frame.anchor)
        elif isinstance(event, yaml.ScalarEvent):
            self._check_tab(event)
            if not self._is_key_due():
                self._attach(self._scalar(event), event.anchor)
            else:
                self._take_key(event)
        elif isinstance(event, yaml.AliasEvent):
            self._take_alias(event)

    def _is_key_due(self) -> bool:
        frame = self._stack[-1] if self._stack else None
        return frame is not None and frame.key is None and isinstance(frame.node.value, dict)

    def _next_path(self) -> KeyPath:
        """The path of the value that comes next."""
        if not self._stack:
            return ()
        frame = self._stack[-1]
        if isinstance(frame.node.value, list):
            return (*frame.path, len(frame.node.value))
        return (*frame.path, frame.key[0]) if frame.key is not None else frame.path

    def _open(self, event: Any) -> None:
        mark = _mark(event)
        if len(self._stack) >= _DEEPEST:
            raise _Stop(mark, f"nested more than {_DEEPEST} deep")
        self._check_tab(event)
        path = self._next_path()
        if self._is_key_due():
            raise _Stop(mark, "a key must be text, not a list or a mapping")
        if event.tag is not None:
            self.report(path, mark, f"tags are not supported: remove {event.tag[:40]!r}")
        value: dict[str, Node] | list[Node] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._stack.append(_Frame(Node(value, mark), event.anchor, path))

    def _check_tab(self, event: Any) -> None:
        """libyaml takes tabs between tokens in flow style and after a colon; other parsers do not."""
        start = event.start_mark
        before = self._text[start.index - start.column : start.index]
        blank = before[len(before.rstrip(" \t")) :]
        if "\t" in blank:
            col = start.column - len(blank) + blank.index("\t") + 1
            self.report(self._next_path(), Mark(start.line + 1, col), "a tab stands here: write spaces")

    def _scalar(self, event: Any) -> Node:
        path, mark = self._next_path(), _mark(event)
        if event.tag is not None and event.tag not in _STR_TAGS:
            self.report(path, mark, f"tags are not supported: remove {event.tag[:40]!r}")
        if not _is_plain(event):
            return Node(event.value, mark, event.value)
        try:
            return Node(resolve_plain(event.value), mark, event.value)
        except ScalarTrap as trap:
            self.report(path, mark, f"{shown(event.value, path)} {trap}")
            return Node(event.value, mark, event.value)

    def _take_key(self, event: Any) -> None:
        frame, mark, key = self._stack[-1], _mark(event), event.value
        path = (*frame.path, key)
        frame.key, frame.key_is_skipped = (key, mark), False
        if event.anchor is not None:
            self._anchors[event.anchor] = Node(key, mark, key)
        if _is_plain(event):
            if key == "<<":
                frame.key_is_skipped = True
                self.report(path, mark, "merge keys (<<) are no part of YAML 1.2: write the keys out")
                return
            self._check_key_text(path, mark, key)
        members = frame.node.key_marks
        if key in members:
            frame.key_is_skipped = True
            self.report(path, mark, f"the key stands twice: first on line {members[key].line}")

    def _check_key_text(self, path: KeyPath, mark: Mark, key: str) -> None:
        try:
            value = resolve_plain(key)
        except ScalarTrap as trap:
            self.report(path, mark, f"the key {key[:80]!r} is {trap.reading}: quote it")
            return
        if not isinstance(value, str):
            self.report(path, mark, f"a key must be text, and {key[:80]!r} is {kind_of(value)}: quote it")

    def _take_alias(self, event: Any) -> None:
        mark, name = _mark(event), event.anchor
        target = self._anchors.get(name)
        if target is None:
            is_inside = any(frame.anchor == name for frame in self._stack)
            raise _Stop(mark, f"*{name} stands inside its own &{name}" if is_inside else f"no &{name} above")
        if self._is_key_due():
            raise _Stop(mark, "an alias cannot be a key: write the key out")
        self._attach(target, None)

    def _attach(self, node: Node, anchor: str | None) -> None:
        """Put a finished node where it belongs, and count it: that bounds what aliases can blow up to."""
        if anchor is not None:
            self._anchors[anchor] = node
        if not self._stack:
            self._root = node
            return
        frame = self._stack[-1]
        owner = frame.node
        owner.node_count += node.node_count
        if owner.node_count > _MOST_NODES:
            raise _Stop(node.mark, f"more than {_MOST_NODES} values, aliases expanded")
        if isinstance(owner.value, list):
            owner.value.append(node)
        elif isinstance(owner.value, dict) and frame.key is not None:
            key, mark = frame.key
            if not frame.key_is_skipped:
                owner.value[key] = node
                owner.key_marks[key] = mark
            frame.key = None


def _mark(event: Any) -> Mark:
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


def _is_plain(event: Any) -> bool:
    """Neither quoted, nor a block, nor tagged (the two parsers write "no style" differently)."""
    return not event.style and event.tag is None


def kind_of(value: object) -> str:
    """What a YAML value is, in words: `a boolean`, `a number`, `a list` ..."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "a mapping"
