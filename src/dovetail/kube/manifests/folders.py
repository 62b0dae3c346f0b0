# SPDX-License-Identifier: Apache-2.0
"""The manifest files of a folder.

Rules
- They are all *.yaml, *.yml and *.json below it, also with .gz, in the order of their paths. Folders named .git and
  node_modules are never read, and links to folders are not followed.
- With `Ignored`, .gitignore files count as in git: those of the folder, below it, and above it up to the repository. A
  folder that is ignored itself was named by the user, so only the .gitignore files in it count.
- Patterns that exclude are in .gitignore's syntax, and relative to a folder of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

SUFFIXES = (".yaml", ".yml", ".json", ".yaml.gz", ".yml.gz", ".json.gz")
_NEVER = frozenset({".git", "node_modules"})
_GITIGNORE = ".gitignore"


class Ignored(Struct, frozen=True):
    """What is left out of folders: what .gitignore files name, with `git`, and what the patterns of `excluded` name,
    each list relative to a folder."""

    git: bool = False
    excluded: tuple[tuple[Path, tuple[str, ...]], ...] = ()

    def excludes(self, file: Path) -> bool:
        """Whether the patterns name the file, or a folder that has it."""
        return _is_out(file.absolute(), _own(self), False)


class _Patterns(Struct, frozen=True):
    folder: Path
    spec: GitIgnoreSpec


def files_in(folder: Path, ignored: Ignored | None = None) -> Iterator[Path]:
    """The files, without those that are left out."""
    ignored = ignored if ignored is not None else Ignored()
    own = _own(ignored)
    above = _above(folder.resolve()) if ignored.git else []
    yield from sorted(_walked(folder, folder.resolve(), own, above, ignored.git))


def _walked(
    folder: Path, real: Path, own: Sequence[_Patterns], above: Sequence[_Patterns], git: bool
) -> Iterator[Path]:
    rules = list(above)
    if git and (real / _GITIGNORE).is_file():
        rules.append(_read(real))
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        inner = real / entry.name
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in _NEVER and not any(_is_out(inner, one, True) for one in (own, rules)):
                yield from _walked(folder / entry.name, inner, own, rules, git)
            continue
        is_manifest = entry.name.endswith(SUFFIXES) and entry.is_file()
        if is_manifest and not any(_is_out(inner, one, False) for one in (own, rules)):
            yield folder / entry.name


def _own(ignored: Ignored) -> list[_Patterns]:
    return [_patterns(folder, lines) for folder, lines in ignored.excluded if lines]


def _above(folder: Path) -> list[_Patterns]:
    """The .gitignore files above the folder in its repository, the highest first; none if they ignore the folder."""
    parents = list(folder.parents)
    root = next((at for at, parent in enumerate(parents) if (parent / ".git").exists()), None)
    if (folder / ".git").exists() or root is None:
        return []
    found = [_read(parent) for parent in reversed(parents[: root + 1]) if (parent / _GITIGNORE).is_file()]
    return [] if _is_out(folder, found, True) else found


def _read(folder: Path) -> _Patterns:
    try:
        lines = (folder / _GITIGNORE).read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    return _patterns(folder, lines)


def _patterns(folder: Path, lines: Sequence[str]) -> _Patterns:
    # Imported here: most folders need none, and a command starts faster without it.
    from pathspec import GitIgnoreSpec

    return _Patterns(folder, GitIgnoreSpec.from_lines(lines))


def _is_out(path: Path, rules: Sequence[_Patterns], is_folder: bool) -> bool:
    """Whether the patterns name the path; those of the lowest folder that have it decide."""
    for one in reversed(rules):
        if path.is_relative_to(one.folder):
            relative = path.relative_to(one.folder).as_posix()
            named = one.spec.check_file(f"{relative}/" if is_folder else relative).include
            if named is not None:
                return named
    return False
