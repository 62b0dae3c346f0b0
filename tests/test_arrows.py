# SPDX-License-Identifier: Apache-2.0
"""Allowed imports between packages: the imports of every module are read, and any arrow that is not in the table fails.

`core` decides from values alone: no clock, chance, environment, log, file, socket or thread can be reached from it. So
the modules that it may import are listed one by one, and the builtins that read, write or run a text are not for it.
`kubecel` is the same, and a package of its own.
"""

import ast
import re
import symtable
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.statements import statements

SOURCE = ROOT / "src"
ROOMS = {
    "__init__": {"__native__"},
    "__native__": set(),
    "kubecel": set(),
    "core": {"kubecel"},
    "topology": {"core"},
    "kube": {"core"},
    "recording": {"core"},
    "aggregated": {"core", "kube"},
    "scheduler": {"aggregated", "core", "kube", "recording"},
    "agent": {"core", "history", "kube", "monitoring"},
    "operator": {"core", "kube", "monitoring"},
    "apiserver": {"core"},
    "playground": {"apiserver", "core", "kube"},
    "plane": {"core", "kube"},
    "agentplanes": {"apiserver", "core", "kube", "plane"},
    "monitoring": set(),
    "viewserver": {"aggregated", "core", "kube", "recording", "views"},
    "views": {"core", "kube", "kubecel", "monitoring", "topology"},
    "dashboard": {
        *("advice", "aggregated", "core", "cost", "history", "historyserver", "jobs", "kube", "recording", "views"),
        "viewserver",
    },
    "jobs": {"core", "kube", "views"},
    "idlepolicy": {"core", "jobs", "kube"},
    "sleeping": {"core", "kube"},
    "sim": {"core"},
    "replicas": {"core", "kube", "monitoring", "views"},
    "advice": {"core", "history", "kube", "monitoring"},
    "history": {"aggregated", "core", "kube", "monitoring"},
    "cost": {"advice", "core", "history"},
    "historyserver": {"advice", "aggregated", "core", "cost", "history", "kube"},
    "cli": {
        "advice",
        "agentplanes",
        "core",
        "cost",
        "dashboard",
        "history",
        "historyserver",
        "idlepolicy",
        "jobs",
        "kube",
        "scheduler",
        "playground",
        "views",
        "sim",
        "recording",
        "agent",
        "apiserver",
        "monitoring",
        "operator",
        "plane",
        "replicas",
        "sleeping",
        "topology",
    },
}
"""The rooms of `dovetail` and the package `kubecel`: what each may import besides itself."""
OURS = ("dovetail", "kubecel")
"""The packages below SOURCE."""
KUBE_FOR_CLI = {
    *(
        "api.config",
        "api.errors",
        "api.gc_pause",
        "api.rights",
        "fabric_changes",
        "maintenances",
        "namespaces",
        "objects.history",
        "objects.views",
        "queue_budgets",
        "queue_changes",
    ),
    *("reading.gpu_exporters", "reading.lists", "reading.live_cluster", "reading.prometheus", "reading.prometheus_api"),
    "reading.network_events",
    "reading.engines",
    *("reading.names", "reading.redaction", "reading.snapshot", "reading.state", "reading.views"),
    *("manifests.cluster", "manifests.documents", "manifests.folders", "manifests.record", "manifests.templates"),
    "manifests.workloads",
    *("translate.annotation_values", "translate.durations", "translate.quarantine_budget", "yaml_text"),
}
"""The modules of `kube` that a command may import: which cluster it is, what went wrong there and which right is
missing, where deploy/ puts Dovetail, the readers of a cluster, of manifests and of YAML, what writes queues and the
maintenance of nodes, and the forms of durations and of budgets. A command makes no request of its own."""
LIBRARIES = {
    "core": {
        *("__future__", "abc", "bisect", "collections", "collections.abc", "contextlib", "dataclasses", "difflib"),
        *("enum", "fractions", "functools", "hashlib", "heapq", "itertools", "math", "operator", "re", "typing"),
        *("weakref", "msgspec", "msgspec.json", "msgspec.structs", "mypy_extensions"),
        *("numpy", "numpy.lib.stride_tricks", "numpy.typing"),
    },
    "kubecel": {
        *("__future__", "base64", "collections.abc", "dataclasses", "functools", "ipaddress", "itertools", "math"),
        *("re", "typing", "unicodedata", "urllib.parse", "msgspec"),
    },
}
"""The modules of others that a pure room may import; the rooms that are not named here may import any."""
BUILTINS = {"__builtins__", "__import__", "breakpoint", "compile", "eval", "exec", "input", "open", "print"}
"""Not for a pure room."""
_LIKELY_BUILTIN = re.compile(rf"\b(?:{'|'.join(BUILTINS)})\b")


def wrong_arrows(room: str, source: str) -> Iterator[str]:
    """What the module of this room must not import, line by line; imports inside functions count."""
    for node in statements(source):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield f"line {node.lineno}: relative import"
            continue
        for module in _imported(node, others=room in LIBRARIES):
            if not _allowed(room, module):
                yield f"line {node.lineno}: {room} imports {module}"
    if room in LIBRARIES:
        yield from _reached(room, ast.parse(source))
    if room in LIBRARIES and _LIKELY_BUILTIN.search(source):
        yield from _builtins(symtable.symtable(source, room, "exec"))


def _imported(node: ast.stmt, *, others: bool = True) -> list[str]:
    """The modules that a statement imports. Without `others` what is taken out of a module that is not ours counts as
    that module, and need not be loaded."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        inside = [f"{module}.{alias.name}" for alias in node.names]
        if module == "dovetail":
            return inside
        if not others and module.partition(".")[0] not in OURS:
            return [module]
        return list(dict.fromkeys(m if _is_module(m) else module for m in inside))
    return []


def _allowed(room: str, module: str) -> bool:
    library, _, inside = module.partition(".")
    if library == "dovetail":
        other, _, module_of_room = inside.partition(".")
        if (room, other) == ("cli", "kube"):
            return module_of_room in KUBE_FOR_CLI
        return other in {room, *ROOMS[room]} - {"kubecel"} or (other not in ROOMS and other.startswith("__"))
    if library == "kubecel":
        return "kubecel" in {room, *ROOMS[room]}
    return room not in LIBRARIES or module in LIBRARIES[room]


def _reached(room: str, tree: ast.Module) -> Iterator[str]:
    """Modules that are not imported by their names, but taken out of one that is: `np.random`."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                aliases[alias.asname or name] = name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            module = f"{aliases[node.value.id]}.{node.attr}"
            if _is_module(module) and not any(m == module or m.startswith(f"{module}.") for m in LIBRARIES[room]):
                yield f"line {node.lineno}: {room} reaches {module}"


@cache
def _is_module(name: str) -> bool:
    library, *inside = name.split(".")
    if library in OURS:
        place = SOURCE.joinpath(library, *inside)
        return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of something that is no package
        return False


def _builtins(module: symtable.SymbolTable) -> Iterator[str]:
    """Where one of BUILTINS is meant, and not something of that name that the module, or a function, has made."""
    own = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    tables = [module]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if name in BUILTINS - own and symbol.is_referenced() and (symbol.is_global() or table is module):
                yield f"in {table.get_name()}, line {table.get_lineno()}: {name}"


def room_of(path: Path) -> str:
    package, *inside = path.relative_to(SOURCE).parts
    if package == "kubecel":
        return package
    return inside[0] if len(inside) > 1 else path.stem


PATHS = [(room_of(path), path) for path in sorted(SOURCE.rglob("*.py"))]


def test_each_room_has_a_line_in_the_table() -> None:
    assert sorted({room for room, _ in PATHS}) == sorted(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_module_imports_only_what_its_room_may(room: str) -> None:
    found = {path: list(wrong_arrows(room, path.read_text())) for of, path in PATHS if of == room}
    assert {str(path.relative_to(SOURCE)): wrong for path, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("room", LIBRARIES)
def test_a_pure_room_may_import_nothing_that_it_does_not(room: str) -> None:
    paths = [path for path in SOURCE.rglob("*.py") if room_of(path) == room]
    used = {module for path in paths for node in statements(path.read_text()) for module in _imported(node)}
    assert sorted(LIBRARIES[room] - used) == []


def test_a_command_may_import_nothing_of_kube_that_none_does() -> None:
    paths = [path for path in SOURCE.rglob("*.py") if room_of(path) == "cli"]
    used = {m for path in paths for node in statements(path.read_text()) for m in _imported(node, others=False)}
    assert sorted({f"dovetail.kube.{module}" for module in KUBE_FOR_CLI} - used) == []


BAD = [
    ("core", "import dovetail.kube.api.client"),
    ("core", "from dovetail import kube"),
    ("core", "from dovetail import kubecel"),
    ("core", "import aiohttp"),
    ("core", "from . import model"),
    ("core", "from ..kube import client"),
    ("core", "def now():\n    import time\n    return time.time()"),
    ("core", "class A:\n    def f(self):\n        from os import environ"),
    ("core", "if False:\n    import numpy, random"),
    ("core", "from datetime import datetime"),
    ("core", "import os.path"),
    ("core", "import subprocess"),
    ("core", "import io"),
    ("core", "from builtins import open as reading"),
    ("core", "from concurrent import futures"),
    ("core", "from urllib.request import urlopen"),
    ("core", "from numpy import random"),
    ("core", "import numpy.random"),
    ("core", "import numpy as np\nnp.random.shuffle([])"),
    ("core", "import numpy\nx = numpy.ctypeslib"),
    ("core", "__import__('time')"),
    ("core", "import importlib\nimportlib.import_module('time')"),
    ("core", "def f(path):\n    with open(path) as file:\n        return file.read()"),
    ("core", "print('x')"),
    ("core", "class A:\n    x = [input() for _ in 'a']"),
    ("core", "def f():\n    breakpoint()"),
    ("core", "run = exec"),
    ("core", "def f(compile):\n    return compile('1')\ng = [eval(x) for x in 'a']"),
    ("core", "def f():\n    return compile('1', '', 'eval')\ndef g(compile):\n    return compile('1')"),
    ("core", "def f():\n    return __builtins__['open']"),
    ("kubecel", "import dovetail"),
    ("kubecel", "from dovetail.core.model import Pod"),
    ("kubecel", "import numpy"),
    ("kubecel", "from urllib import request"),
    ("kubecel", "from time import time"),
    ("kubecel", "def f():\n    print('x')"),
    ("kube", "from dovetail.scheduler import driver"),
    ("kube", "import dovetail"),
    ("kube", "import kubecel"),
    ("sim", "from kubecel.selector import compile"),
    ("scheduler", "from dovetail.views import why"),
    ("playground", "from dovetail.scheduler.binder import Binder"),
    ("apiserver", "from dovetail.playground.faults import Fault"),
    ("views", "from dovetail.cli import main"),
    ("sim", "def run():\n    from dovetail.kube import feed"),
    ("cli", "from dovetail.kube.api.client import Client"),
    ("cli", "from dovetail.kube.api import client"),
    ("cli", "def run():\n    from dovetail.kube.api.listing import list_all"),
    ("cli", "import dovetail.kube.api.discovery"),
    ("cli", "from dovetail.kube.api.resources import PODS"),
    ("cli", "from dovetail.kube.objects.pods import Pod"),
    ("cli", "from dovetail import kube"),
]


@pytest.mark.parametrize(("room", "source"), BAD)
def test_a_wrong_arrow_is_found(room: str, source: str) -> None:
    assert len(list(wrong_arrows(room, source))) == 1


GOOD = [
    ("core", "import re\nimport numpy as np\nfrom dovetail.core.model import Pod\nfrom collections import abc"),
    ("core", "import kubecel\nfrom kubecel.selector import compile\ncompile('true')"),
    ("core", "import re\nre.compile('a')"),
    ("core", "import numpy as np\nx = np.lib.stride_tricks.as_strided(np.zeros(1))"),
    ("core", "def open(gate):\n    return gate\n\ndef f(gate):\n    return open(gate)"),
    ("core", "class A:\n    def __init__(self, compile):\n        self.compile = compile\n        self.compile('a')"),
    ("core", "class A:\n    open: bool = True\n\ndef f(a, input):\n    a.print()\n    return a.open or input"),
    ("kubecel", "import kubecel\nfrom kubecel import types\nfrom urllib.parse import unquote_to_bytes"),
    ("kube", "import asyncio, aiohttp\nfrom dovetail.core import events"),
    ("scheduler", "from dovetail import __version__\nfrom dovetail.kube.api.client import Client"),
    ("views", "import kubecel\nprint(open('x').read())"),
    ("cli", "from dovetail.playground.faults import Fault\nfrom dovetail.views import why"),
    ("cli", "from dovetail.kube.reading.state import read_cluster\nfrom dovetail.kube.api.errors import KubeError"),
]


@pytest.mark.parametrize(("room", "source"), GOOD)
def test_a_right_arrow_passes(room: str, source: str) -> None:
    assert list(wrong_arrows(room, source)) == []
