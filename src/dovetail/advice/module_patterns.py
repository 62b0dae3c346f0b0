# SPDX-License-Identifier: Apache-2.0
"""Patterns of the modules of a model, as checkpoints name them.

Rules: patterns are names of modules, wildcards, or regular expressions after `re:`. A name matches modules of that name
and all inside. A regular expression is read as a wildcard, so that none takes long: `\\d+` and character classes are
`*`. One of more than 512 characters matches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from functools import cached_property

_MOST_CHOICES, _LONGEST = 64, 512


class ModulePatterns:
    """Names of modules. `globs` is the number of those with wildcards, which are compared one by one."""

    def __init__(self, names: Iterable[str]) -> None:
        spelt = {glob for name in names for glob in _globs(name.replace("language_model.", ""))}
        self._spelt_wild = sorted(glob for glob in spelt if "*" in glob or "?" in glob)
        self.plain = spelt.difference(self._spelt_wild)
        self.globs = len(self._spelt_wild)

    @cached_property
    def _wild(self) -> re.Pattern[str] | None:
        inside = "|".join(translate(one) for glob in self._spelt_wild for one in (glob, f"{glob}.*"))
        return re.compile(inside) if inside else None

    def match(self, module: str) -> bool:
        if self.plain:
            parts = module.split(".")
            runs = (".".join(parts[a:b]) for a in range(len(parts)) for b in range(a + 1, len(parts) + 1))
            if any(run in self.plain for run in runs):
                return True
        return self._wild is not None and self._wild.match(module) is not None


def _globs(name: str) -> list[str]:
    """The wildcards that a pattern is; one for each branch of its choices `(a|b)`."""
    if len(name) > _LONGEST:
        return []
    if not name.startswith(("re:", "-:")):
        return [name.strip(".")]
    text = re.sub(r"\\[dw][+*]?|\[[^\]]*\][+*]?|\.[*+]\??", "*", name[3:].removeprefix("^").removeprefix("(?:"))
    found = [text.removesuffix("$") if text.endswith("$") else f"{text}*"]
    for _ in range(_MOST_CHOICES):
        if not any("(" in one for one in found):
            break
        found = [branch for one in found for branch in _branches(one)][:_MOST_CHOICES]
    return [re.sub(r"\*+", "*", one.replace("\\", "")) for one in found]


def _branches(text: str) -> list[str]:
    choice = re.search(r"\((?:\?:)?([^()]*)\)\??", text)
    return [text[: choice.start()] + one + text[choice.end() :] for one in choice[1].split("|")] if choice else [text]
