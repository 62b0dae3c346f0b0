# SPDX-License-Identifier: Apache-2.0
"""Regular expressions with matching time linear in the text for any pattern. Selectors come from users, and some
patterns take `re` exponential time.

Rules: the leftmost match wins, and among those that start there the one that a backtracking search finds first. States
are created on demand and cached.
Source: Russ Cox, "Regular Expression Matching: the Virtual Machine Approach", swtch.com/~rsc/regexp; Go's regexp.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kubecel import regex_syntax
from kubecel.regex_syntax import Char, Choice, Edge, Holds, RegexError, Repeat, Sequence, Tree
from kubecel.values import Abort

_MAX_INSTRUCTIONS: Final = 20_000
_MAX_STATES: Final = 5_000
_MAX_STEPS: Final = 2_000_000
_END: Final = -1
"""The instruction that completes a match."""
_ENDS: Final = frozenset(("text_start", "text_end"))
_NOWHERE: Final[frozenset[str]] = frozenset()


class _State:
    """Threads in order of preference, before the instructions that consume no character. `done` caches the result by
    the edges at the position."""

    __slots__ = ("done", "threads")

    def __init__(self, threads: tuple[int, ...]) -> None:
        self.threads = threads
        self.done: dict[frozenset[str], _Closed] = {}


class _Closed:
    """Threads that wait for a character, and whether a match ends here. `after` caches the next state by character."""

    __slots__ = ("after", "matched", "waiting")

    def __init__(self, waiting: tuple[int, ...], matched: bool) -> None:
        self.waiting = waiting
        self.matched = matched
        self.after: dict[str, _State] = {}


class Regex:
    """A compiled pattern. Raises RegexError."""

    def __init__(self, pattern: str) -> None:
        self._program: list[tuple[Holds | str | None, int, int]] = []
        """(condition: a character test, the name of an edge, or None; next instruction; alternative instruction)"""
        self._kinds: set[str] = set()
        # The tree is compiled from the end to the start.
        self._start = self._compile(regex_syntax.parse(pattern), _END)
        self._searching = self._emit(None, self._start, 0)
        anything = self._emit(regex_syntax.any_char, self._searching, _END)
        self._program[self._searching] = (None, self._start, anything)
        self._states: dict[tuple[int, ...], _State] = {}

    def matches(self, text: str) -> bool:
        """Whether the pattern matches anywhere in the text."""
        return self._run(text, 0, self._searching, anywhere=True) is not None

    def find(self, text: str, at: int = 0) -> tuple[int, int] | None:
        """Start and end of the leftmost match from `at` on."""
        steps = 0
        for start in range(at, len(text) + 1):
            end = self._run(text, start, self._start, anywhere=False)
            if end is not None:
                return start, end
            steps += len(text) - start
            if steps > _MAX_STEPS:
                raise Abort("operation cancelled: the regular expression takes too long on a text of this length")
        return None

    def find_all(self, text: str, count: int = -1) -> list[str]:
        """All matches that do not overlap, at most `count`. An empty match directly after a match does not count."""
        found: list[str] = []
        at, after = 0, -1
        while at <= len(text) and (count < 0 or len(found) < count) and (match := self.find(text, at)):
            start, end = match
            if end > start or start != after:
                found.append(text[start:end])
            after = end
            at = end if end > at else at + 1
        return found

    def _run(self, text: str, at: int, start: int, anywhere: bool) -> int | None:
        state = self._state((start,))
        end = None
        last = len(text)
        looks_around = not self._kinds <= _ENDS
        for i in range(at, last + 1):
            edges = _edges(text, i) if looks_around or i == 0 or i == last else _NOWHERE
            closed = state.done.get(edges)
            if closed is None:
                closed = state.done[edges] = self._closed(state.threads, edges)
            if closed.matched:
                end = i
                if anywhere:
                    break
            if i == last or not closed.waiting:
                break
            char = text[i]
            following = closed.after.get(char)
            if following is None:
                following = closed.after[char] = self._after(closed, char)
            state = following
        return end

    def _after(self, closed: _Closed, char: str) -> _State:
        threads = []
        for at in closed.waiting:
            holds, following, _ = self._program[at]
            if holds(char):  # type: ignore[operator,misc]
                threads.append(following)
        return self._state(tuple(dict.fromkeys(threads)))

    def _state(self, threads: tuple[int, ...]) -> _State:
        state = self._states.get(threads)
        if state is None:
            if len(self._states) >= _MAX_STATES:
                self._states.clear()
            state = self._states[threads] = _State(threads)
        return state

    def _closed(self, threads: tuple[int, ...], edges: frozenset[str]) -> _Closed:
        waiting: list[int] = []
        seen: set[int] = set()
        stack = list(reversed(threads))
        while stack:
            at = stack.pop()
            if at == _END:
                return _Closed(tuple(waiting), matched=True)
            if at in seen:
                continue
            seen.add(at)
            needs, following, other = self._program[at]
            if needs is None:
                stack.append(other)
                stack.append(following)
            elif isinstance(needs, str):
                if needs in edges:
                    stack.append(following)
            else:
                waiting.append(at)
        return _Closed(tuple(waiting), matched=False)

    def _emit(self, needs: Holds | str | None, following: int, other: int) -> int:
        if len(self._program) >= _MAX_INSTRUCTIONS:
            raise RegexError("error parsing regexp: expression too large")
        self._program.append((needs, following, other))
        return len(self._program) - 1

    def _compile(self, tree: Tree, following: int) -> int:
        """Compile the tree, continuing at `following`. Returns its first instruction."""
        match tree:
            case Char(holds):
                return self._emit(holds, following, _END)
            case Edge(kind):
                self._kinds.add(kind)
                return self._emit(kind, following, _END)
            case Sequence(parts):
                for part in reversed(parts):
                    following = self._compile(part, following)
                return following
            case Choice(options):
                start = self._compile(options[-1], following)
                for option in reversed(options[:-1]):
                    start = self._emit(None, self._compile(option, following), start)
                return start
            case Repeat():
                return self._repeated(tree, following)

    def _repeated(self, tree: Repeat, following: int) -> int:
        if tree.most is None:
            start = self._at_least_one(tree, following)
            if tree.least == 0:
                return self._fork(tree, start, following)
            for _ in range(tree.least - 1):
                start = self._compile(tree.of, start)
            return start
        start = following
        for _ in range(tree.most - tree.least):
            start = self._fork(tree, self._compile(tree.of, start), following)
        for _ in range(tree.least):
            start = self._compile(tree.of, start)
        return start

    def _at_least_one(self, tree: Repeat, following: int) -> int:
        again = self._emit(None, following, following)
        start = self._compile(tree.of, again)
        self._program[again] = (None, start, following) if tree.greedy else (None, following, start)
        return start

    def _fork(self, tree: Repeat, inside: int, following: int) -> int:
        return self._emit(None, *((inside, following) if tree.greedy else (following, inside)))


def _edges(text: str, at: int) -> frozenset[str]:
    """The edges at the position before the character `at`."""
    before = text[at - 1] if at else None
    after = text[at] if at < len(text) else None
    at_word = _is_word(before) != _is_word(after)
    return _edge_names(before is None, after is None, before == "\n", after == "\n", at_word)


def _is_word(char: str | None) -> bool:
    return char is not None and regex_syntax.is_word(char)


@lru_cache(maxsize=64)
def _edge_names(start: bool, end: bool, after_line: bool, before_line: bool, word: bool) -> frozenset[str]:
    holds = {
        "text_start": start, "text_end": end, "line_start": start or after_line, "line_end": end or before_line,
        "word": word, "inner": not word,
    }  # fmt: skip
    return frozenset(name for name, held in holds.items() if held)


@lru_cache(maxsize=64)
def compiled(pattern: str) -> Regex:
    """The pattern, compiled once. Raises RegexError."""
    return Regex(pattern)
