# SPDX-License-Identifier: Apache-2.0
"""The manifest files of a folder.

Rules
- They are all *.yaml, *.yml and *.json below it, also with .gz, in the order of their paths. Folders named .git and
  node_modules are never read, and links to folders are not followed.
- A folder that cannot be listed is among the files: whoever reads it gets the reason.
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

    def excludes(self, file: str) -> bool:
        """Whether the patterns name the file, or a folder that has it."""
        own = _own(self)
        return bool(own) and _is_out(Path(file).absolute(), own, False)


class _Patterns(Struct, frozen=True):
    folder: Path
    spec: GitIgnoreSpec


def files_in(folder: Path, ignored: Ignored | None = None) -> Iterator[str]:
    """The files, without those that are left out; and folders that cannot be listed."""
    ignored = ignored if ignored is not None else Ignored()
    real = folder.resolve()
    yield from _walked(str(folder), real, _own(ignored), _above(real) if ignored.git else [], ignored.git)


def _walked(folder: str, real: Path, own: Sequence[_Patterns], above: Sequence[_Patterns], git: bool) -> Iterator[str]:
    rules = list(above)
    if git and (here := _read(real)) is not None:
        rules.append(here)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        yield folder
        return
    begins = "" if folder == "." else f"{folder.removesuffix('/')}/"
    patterns = [some for some in (own, rules) if some]

    def is_out(name: str, is_folder: bool) -> bool:
        return any(_is_out(real / name, some, is_folder) for some in patterns)

    for entry in entries:
        name = entry.name
        if entry.is_dir(follow_symlinks=False):
            if name not in _NEVER and not is_out(name, True):
                yield from _walked(begins + name, real / name, own, rules, git)
        elif name.endswith(SUFFIXES) and _may_be_file(entry) and not is_out(name, False):
            yield begins + name


def _may_be_file(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file, or a link that cannot be followed: the error of reading it names the reason."""
    try:
        return entry.is_file()
    except OSError:
        return True


def _own(ignored: Ignored) -> list[_Patterns]:
    return [_patterns(folder, lines) for folder, lines in ignored.excluded if lines]


def _above(folder: Path) -> list[_Patterns]:
    """The .gitignore files above the folder in its repository, the highest first; none if they ignore the folder."""
    parents = list(folder.parents)
    root = next((at for at, parent in enumerate(parents) if _is_repository(parent)), None)
    if _is_repository(folder) or root is None:
        return []
    found = [one for parent in reversed(parents[: root + 1]) if (one := _read(parent)) is not None]
    return [] if _is_out(folder, found, True) else found


def _is_repository(folder: Path) -> bool:
    try:
        return (folder / ".git").exists()
    except OSError:
        return False


def _read(folder: Path) -> _Patterns | None:
    """The patterns of the folder's .gitignore; None where there is none that can be read."""
    try:
        lines = (folder / _GITIGNORE).read_text(errors="replace").splitlines()
    except OSError:
        return None
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
