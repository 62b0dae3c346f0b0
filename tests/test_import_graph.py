# SPDX-License-Identifier: Apache-2.0
"""No module imports itself by way of others: each can be read, tested and compiled after those that it builds on.

Imports inside functions and under TYPE_CHECKING count. That a package is loaded before its modules does not.
"""

import ast
from collections.abc import Container, Iterator, Mapping

from tests.paths import ROOT
from tests.statements import statements

SOURCE = ROOT / "src"


def import_graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Which of these modules, texts by name, each of them imports."""
    return {
        name: {other for node in statements(text) for other in _imported(node, sources) if other in sources}
        for name, text in sources.items()
    }


def _imported(node: ast.AST, modules: Container[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name if name in modules else node.module for name in names)


def cycles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Modules that reach each other, in groups; one alone where it imports itself."""
    graph = _without_ends(graph)
    reached = {name: _reached(graph, name) for name in graph}
    groups = {name: frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return [set(group) for group in sorted(set(groups.values()) - {frozenset()}, key=sorted)]


def _without_ends(graph: Mapping[str, set[str]]) -> Mapping[str, set[str]]:
    """The graph without modules that import none of the others that are left: none of them is in a cycle."""
    while ends := {name for name, others in graph.items() if not others}:
        graph = {name: others - ends for name, others in graph.items() if name not in ends}
    return graph


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def sources() -> dict[str, str]:
    paths = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    return {name.removesuffix(".__init__"): path.read_text() for name, path in paths.items()}


def test_there_are_no_cycles() -> None:
    assert cycles(import_graph(sources())) == []


def test_cycles_are_found() -> None:
    graph = import_graph({
        "a": "import a.b",
        "a.b": "def f():\n    from a import c",
        "a.c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a.b\nimport os",
        "a.d": "from a import f",
        "e": "import e",
        "f": "from a.c import X\nfrom g import Y",
        "g": "",
    })  # fmt: skip
    assert graph == {
        "a": {"a.b"}, "a.b": {"a.c"}, "a.c": {"a.b"}, "a.d": {"a"}, "e": {"e"}, "f": {"a.c", "g"}, "g": set(),
    }  # fmt: skip
    assert cycles(graph) == [{"a.b", "a.c"}, {"e"}]
