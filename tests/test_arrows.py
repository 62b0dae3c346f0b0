# SPDX-License-Identifier: Apache-2.0
"""Who may import whom: the imports of every module are read, and any arrow that is not in the table fails.

`core` decides from values alone: no clock, chance, environment, log, file, socket or thread can be reached from it.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "dovetail"
ROOMS = {
    "__init__": {"__native__"},
    "__native__": set(),
    "core": set(),
    "topology": {"core"},
    "kube": {"core"},
    "recording": {"core"},
    "scheduler": {"core", "kube", "recording"},
    "agent": {"core", "kube"},
    "playground": {"core", "kube"},
    "views": {"core", "kube", "topology"},
    "sim": {"core"},
    "advice": {"core", "kube"},
    "cli": {"advice", "core", "kube", "scheduler", "playground", "views", "sim", "recording", "agent"},
}
CORE_LIBRARIES = {"msgspec", "mypy_extensions", "numpy"}
IMPURE = {"time", "random", "os", "logging", "asyncio", "socket", "pathlib", "datetime", "uuid", "threading"}
DYNAMIC = {"__import__", "import_module", "exec", "eval"}


def wrong_arrows(room: str, source: str) -> Iterator[str]:
    """What the module of this room must not import, line by line; imports inside functions count."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield f"line {node.lineno}: relative import"
        elif isinstance(node, ast.ImportFrom) and node.module == "dovetail":
            yield from _wrong(room, node.lineno, [f"dovetail.{alias.name}" for alias in node.names])
        elif isinstance(node, ast.ImportFrom):
            yield from _wrong(room, node.lineno, [node.module or ""])
        elif isinstance(node, ast.Import):
            yield from _wrong(room, node.lineno, [alias.name for alias in node.names])
        elif room == "core" and isinstance(node, ast.Name | ast.Attribute) and _name(node) in DYNAMIC:
            yield f"line {node.lineno}: {_name(node)}"


def _name(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _wrong(room: str, line: int, modules: list[str]) -> Iterator[str]:
    for module in modules:
        library, _, inside = module.partition(".")
        other = inside.partition(".")[0]
        if library == "dovetail":
            allowed = other in {room, *ROOMS[room]} or (other not in ROOMS and other.startswith("__"))
        else:
            allowed = room != "core" or library in CORE_LIBRARIES | (sys.stdlib_module_names - IMPURE)
        if not allowed:
            yield f"line {line}: {room} imports {module}"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_its_room_may(path: Path) -> None:
    inside = path.relative_to(SOURCE).parts
    room = inside[0] if len(inside) > 1 else path.stem
    assert room in ROOMS, f"give the room {room!r} a line in the table"
    assert list(wrong_arrows(room, path.read_text())) == []


BAD = [
    ("core", "import dovetail.kube.api.client"),
    ("core", "from dovetail import kube"),
    ("core", "import aiohttp"),
    ("core", "from . import model"),
    ("core", "from ..kube import client"),
    ("core", "def now():\n    import time\n    return time.time()"),
    ("core", "class A:\n    def f(self):\n        from os import environ"),
    ("core", "if False:\n    import numpy, random"),
    ("core", "from datetime import datetime"),
    ("core", "import os.path"),
    ("core", "__import__('time')"),
    ("core", "import importlib\nimportlib.import_module('time')"),
    ("kube", "from dovetail.scheduler import driver"),
    ("kube", "import dovetail"),
    ("scheduler", "from dovetail.views import why"),
    ("playground", "from dovetail.scheduler.binder import Binder"),
    ("views", "from dovetail.cli import main"),
    ("sim", "def run():\n    from dovetail.kube import feed"),
]


@pytest.mark.parametrize(("room", "source"), BAD)
def test_a_wrong_arrow_is_found(room: str, source: str) -> None:
    assert len(list(wrong_arrows(room, source))) == 1


GOOD = [
    ("core", "import re\nimport numpy as np\nfrom dovetail.core.model import Pod\nfrom collections import abc"),
    ("kube", "import asyncio, aiohttp\nfrom dovetail.core import events"),
    ("scheduler", "from dovetail import __version__\nfrom dovetail.kube.api.client import Client"),
    ("cli", "from dovetail.playground.server import Server\nfrom dovetail.views import why"),
]


@pytest.mark.parametrize(("room", "source"), GOOD)
def test_a_right_arrow_passes(room: str, source: str) -> None:
    assert list(wrong_arrows(room, source)) == []
