# SPDX-License-Identifier: Apache-2.0
"""The keys of the screen: what each is bound to, and what the list of keys has of it."""

from __future__ import annotations

from msgspec import Struct
from textual.binding import Binding


class WatchKey(Struct, frozen=True):
    """`keys` in Textual's names, separated by commas; `shown` as users call them. `action` is that of a page."""

    keys: str
    action: str
    shown: str
    help: str


KEYS = (
    WatchKey("1", "list('jobs')", "1", "the jobs, as of dovetail jobs"),
    WatchKey("2", "list('queue')", "2", "the waiting jobs in queue order, as of dovetail queue"),
    WatchKey("3", "list('nodes')", "3", "the GPU nodes, as of dovetail nodes"),
    WatchKey("tab", "next_list(1)", "tab", "the next list"),
    WatchKey("shift+tab", "next_list(-1)", "shift-tab", "the list before it"),
    WatchKey("up,k", "move(-1)", "up, k", "up"),
    WatchKey("down,j", "move(1)", "down, j", "down"),
    WatchKey("left,h", "shift(-1)", "left, h", "left, where the screen is too narrow"),
    WatchKey("right,l", "shift(1)", "right, l", "right"),
    WatchKey("pageup,ctrl+b", "turn(-1)", "page up, ctrl-b", "a page up"),
    WatchKey("pagedown,ctrl+f,space", "turn(1)", "page down, ctrl-f, space", "a page down"),
    WatchKey("home,g", "edge(-1)", "home, g", "to the beginning"),
    WatchKey("end,G", "edge(1)", "end, G", "to the end"),
    WatchKey(
        "enter",
        "open",
        "enter",
        "of a job why; from there its nodes; of a node the holders of its GPUs; of a holder why",
    ),
    WatchKey("w", "why", "w", "why a job runs there or waits, as of dovetail why"),
    WatchKey("n", "node", "n", "the node of a job with the holders of its GPUs; of several nodes their list"),
    WatchKey("escape", "back", "esc", "back; in a list without the filter"),
    WatchKey("slash", "filter", "/", "only rows with all these words"),
    WatchKey("s", "sort", "s", "sort by the next column; after the last one as listed"),
    WatchKey("S", "reverse", "S", "the other way round"),
    WatchKey("colon", "command", ":", "a list by its name: jobs, queue, nodes; q ends"),
    WatchKey("r", "read", "r", "read the cluster now"),
    WatchKey("question_mark", "keys", "?", "these keys"),
    WatchKey("q", "quit", "q", "end"),
)
"""What each page is bound to. Ctrl-C ends too, as an interrupt."""
# With priority the actions come in the order of the keys, and what is typed after / or : goes to the line of input also
# if it comes at once. A key that comes before its page is there has no action then; it comes again when it is, without.
BINDINGS = [
    Binding(one.keys, one.action, one.help, show=False, priority=priority) for one in KEYS for priority in (True, False)
]
