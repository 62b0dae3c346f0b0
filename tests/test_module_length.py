# SPDX-License-Identifier: Apache-2.0
"""No module below `src` is longer than a reader can hold: what has a second idea is split by it."""

from collections.abc import Mapping

from tests.paths import ROOT

SOURCE = ROOT / "src"
MOST = 400
"""Lines of a module, with those that are empty."""


def long_modules(sources: Mapping[str, str]) -> dict[str, int]:
    """The modules with more lines than MOST, texts by path."""
    lines = {path: len(text.splitlines()) for path, text in sources.items()}
    return {path: count for path, count in lines.items() if count > MOST}


def test_no_module_has_more_lines_than_it_may() -> None:
    sources = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in SOURCE.rglob("*.py")}
    assert len(sources) > 1000
    assert long_modules(sources) == {}


def test_long_modules_are_found() -> None:
    assert long_modules({"right.py": "\n" * MOST, "wrong.py": "\n" * MOST + "x"}) == {"wrong.py": MOST + 1}
