# SPDX-License-Identifier: Apache-2.0
"""The screen of `dovetail top`: what is shown, and what each key does to it.

Rules
- A list of GPUs, nodes, jobs, teams or replicas; Enter opens the GPUs of a line, and then one GPU with its
  containers. Escape goes back. The selected line is followed when the order changes.
- It draws as many lines as the terminal has, each at most as wide. Only what is visible is rendered.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Literal, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from dovetail.cli.top.detail import detail
from dovetail.cli.top.lines import NOTHING, Line, Lines, clipped, gpu_lines, group_lines, printable, summary
from dovetail.cli.top.replicas import NO_ENGINES, ReplicaRow, replica_lines, replicas_of
from dovetail.views.top import By, Order, Top, TopGroup, TopQuery, members_of, top
from dovetail.views.top_rows import GpuRow, TopReading

T = TypeVar("T")
ScreenRow = GpuRow | TopGroup | ReplicaRow
View = Literal["gpu", "node", "job", "team", "replica"]
_VIEWS: dict[str, View] = {"g": "gpu", "n": "node", "j": "job", "t": "team", "r": "replica"}
_ORDERS: tuple[Order, ...] = ("name", "use", "memory", "power", "temperature", "class")
_FEWEST_ROWS = 1
_HINTS = "q quit  ? help  / filter  s sort  g GPUs  n nodes  j jobs  t teams  r replicas  enter open  esc back"
_HELP = """\
up, down, page up, page down, home, end    move
enter, right    open: the GPUs of a node, job, team or replica; the containers of a GPU
esc, left       back
g n j t r       GPUs, nodes, jobs, teams, replicas of inference engines
/               filter: words in names of nodes, pods, jobs, queues, users, models, classes, or "free"; enter keeps it,
                esc removes it
s, S            next, previous order: name, use, memory, power, temperature, class
space           pause, and go on
q, Ctrl-C       quit

USE     real use: 35 % SM, 35 % tensor cores, 20 % memory interface, 10 % engine
SM% TC% MEM%    SMs, tensor cores, memory interface
green computes    yellow held and idle, or used and not held    red unhealthy or hung    dim free"""


class Opened(Struct, frozen=True):
    """What was opened: the GPUs of a node, job, team or replica, or one GPU (`view` is "gpu")."""

    view: View
    name: str


class Screen(Struct):
    """The state of the screen. `fault` is why the last reading failed."""

    view: View = "gpu"
    order: Order = "name"
    words: str = ""
    opened: list[Opened] = field(default_factory=list)
    typing: bool = False
    helping: bool = False
    paused: bool = False
    fault: str = ""
    selected: str = ""
    _index: int = 0
    _first: int = 0
    _names: list[str] = field(default_factory=list)
    _page: int = 10
    _shown: tuple[TopReading, TopQuery, View, tuple[Opened, ...], Top, list[ScreenRow]] | None = None

    def press(self, key: str) -> bool:
        """Do what the key means. False if it ends the program."""
        if self.typing:
            self._type(key)
        elif self.helping:
            self.helping = False
        elif key == "q":
            return False
        elif key in ("?", "h"):
            self.helping = True
        elif key == "/":
            self.typing = True
        elif key == " ":
            self.paused = not self.paused
        elif key in ("s", "S"):
            step = 1 if key == "s" else -1
            self.order = _ORDERS[(_ORDERS.index(self.order) + step) % len(_ORDERS)]
        elif key in _VIEWS:
            self.view = _VIEWS[key]
            self.opened.clear()
            self._select(0)
        elif key in ("enter", "right"):
            self._open()
        elif key in ("escape", "left", "backspace"):
            self._back()
        else:
            self._move(key)
        return True

    def _type(self, key: str) -> None:
        if key == "enter":
            self.typing = False
        elif key == "escape":
            self.typing, self.words = False, ""
        elif key == "backspace":
            self.words = self.words[:-1]
        elif len(key) == 1:
            self.words += key

    def _open(self) -> None:
        if self.selected and not (self.opened and self.opened[-1].view == "gpu"):
            self.opened.append(Opened("gpu" if self.opened else self.view, self.selected))
            self._select(0)

    def _back(self) -> None:
        if self.opened:
            name = self.opened.pop().name
            self._select(0)
            self.selected = name
        elif self.words:
            self.words = ""

    def _move(self, key: str) -> None:
        last = max(0, len(self._names) - 1)
        to = {
            "up": self._index - 1, "down": self._index + 1, "page-up": self._index - self._page,
            "page-down": self._index + self._page, "home": 0, "end": last,
        }.get(key)  # fmt: skip
        if to is not None and self._names:
            self._select(min(last, max(0, to)))

    def _select(self, index: int) -> None:
        self._index = index
        self.selected = self._names[index] if index < len(self._names) else ""

    def frame(self, reading: TopReading | None, width: int, height: int) -> list[Line]:
        """The lines of the whole screen."""
        lines = self._frame(reading, width, max(1, height))[: max(1, height)]
        return [clipped(line, width) for line in lines]

    def _frame(self, reading: TopReading | None, width: int, height: int) -> list[Line]:
        if self.helping:
            return [[("dovetail top: keys", "bold")], [], *([(line, "")] for line in _HELP.splitlines())]
        if reading is None:
            return [[(self.fault or "reading ...", "red" if self.fault else "")]]
        if not reading.nodes and not reading.engines:
            return [[(line, "")] for line in wrap(NOTHING, max(1, width))]
        answer, rows = self._rows(reading)
        head = self._head(answer)
        if self.opened and self.opened[-1].view == "gpu":
            found = [row for row in rows if isinstance(row, GpuRow) and _key(row) == self.opened[-1].name]
            body = detail(found[0], width) if found else [[("this GPU is gone; esc goes back", "")]]
        else:
            body = self._list(rows, width, height - len(head) - 1)
        blank: list[Line] = [[]] * max(0, height - len(head) - len(body) - 1)
        return [*[*head, *body, *blank][: height - 1], self._foot()]

    def _rows(self, reading: TopReading) -> tuple[Top, list[ScreenRow]]:
        """The answer and the lines of the list; kept until the reading or the question changes."""
        by: By = "node" if self.view == "gpu" else self.view
        query, opened = TopQuery(by, self.order, self.words), tuple(self.opened)
        if self._shown is not None and self._shown[0] is reading and self._shown[1:4] == (query, self.view, opened):
            return self._shown[4:]
        answer = top(reading, query)
        rows: list[ScreenRow]
        if opened and opened[0].view != "gpu":
            inside: By = opened[0].view
            rows = [row for row in answer.gpus if opened[0].name in members_of(row, inside)]
        elif self.view == "replica":
            rows = list(replicas_of(answer))
        else:
            rows = list(answer.gpus) if self.view == "gpu" else list(answer.groups)
        self._shown = reading, query, self.view, opened, answer, rows
        return answer, rows

    def _head(self, answer: Top) -> list[Line]:
        where = " > ".join([f"{self.view}s", *(printable(one.name) for one in self.opened)])
        title: Line = [("dovetail top ", "bold"), (where, "")]
        title.append((f"  sorted by {self.order}" if self.order != "name" else "", ""))
        title.append((f"  filter: {printable(self.words)}" if self.words and not self.typing else "", "yellow"))
        title.append(("  paused" if self.paused else "", "yellow"))
        lines = [title, [(summary(answer), "")]]
        if self.fault:
            lines.append([(printable(self.fault), "red")])
        else:
            lines += [[(printable(note), "yellow")] for note in answer.notes[:1]]
            if answer.faults:
                name, fault = next(iter(answer.faults.items()))
                more = f" (and {len(answer.faults) - 1} more)" if len(answer.faults) > 1 else ""
                lines.append([(f"node {printable(name)}: {printable(fault)}{more}", "red")])
        return [*lines, []]

    def _foot(self) -> Line:
        return [("filter: " + printable(self.words) + "_", "bold")] if self.typing else [(_HINTS, "dim")]

    def _list(self, rows: list[ScreenRow], width: int, height: int) -> list[Line]:
        self._names = [_key(row) for row in rows]
        self._page = max(_FEWEST_ROWS, height - 1)
        if not rows:
            replicas_asked = self.view == "replica" and not self.opened
            what = "replica" if replicas_asked else "GPU"
            nothing = NO_ENGINES if replicas_asked else "nothing to show"
            return [[(f"no {what} matches the filter" if self.words else nothing, "dim")]]
        if self.selected in self._names:
            self._index = self._names.index(self.selected)
        self._select(min(self._index, len(rows) - 1))
        self._first = max(0, min(self._first, self._index, len(rows) - self._page))
        self._first = max(self._first, self._index - self._page + 1)
        gpus = [row for row in rows if isinstance(row, GpuRow)]
        if gpus:
            return self._table(gpu_lines(gpus, width), gpus, width)
        replicas = [row for row in rows if isinstance(row, ReplicaRow)]
        if replicas:
            return self._table(replica_lines(replicas, width), replicas, width)
        groups = [row for row in rows if isinstance(row, TopGroup)]
        by: By = "node" if self.view == "gpu" else self.view
        return self._table(group_lines(groups, by, width), groups, width)

    def _table(self, table: Lines[T], rows: Sequence[T], width: int) -> list[Line]:
        lines = [table.heading]
        for number, row in enumerate(rows[self._first : self._first + self._page], self._first):
            line = table.line(row)
            if number == self._index:
                line = [("".join(text for text, _ in line).ljust(width), "reverse")]
            lines.append(line)
        return lines


def _key(row: ScreenRow) -> str:
    if isinstance(row, ReplicaRow):
        return row.load.name
    return row.name if isinstance(row, TopGroup) else "/".join(filter(None, (row.node, row.uuid, row.instance)))


def started(screen: Screen, by: By) -> Screen:
    """The screen for the option `--by`."""
    return replace(screen, view="gpu" if by == "node" else by)
