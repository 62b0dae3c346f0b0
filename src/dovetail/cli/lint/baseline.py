# SPDX-License-Identifier: Apache-2.0
"""Known findings, which a run leaves out: a repository can fail on new ones before all old ones are fixed.

A finding is known by file, rule, object, field and message, not by its line, so that it stays known when text above it
changes. A finding that is there more often than in the baseline is new.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.cli.lint.settings import BadSettings
from dovetail.cli.manifest_files import replace_file, shown_name
from dovetail.core.json_text import JsonError, decode_json
from dovetail.kube.manifests.documents import STDIN, BytesNotRead, ManifestError, content

if TYPE_CHECKING:
    from dovetail.advice.lint.engine import LintFinding

_Known = tuple[str, str, str, str, str]
_FIELDS = ("file", "rule", "object", "path", "message")


def read_baseline(file: Path) -> Counter[_Known]:
    """How often each finding is known. Raises BadSettings."""
    if file.is_dir():
        raise BadSettings(f"{file}: is a folder, not the file that --write-baseline writes")
    try:
        entries = decode_json(content(file.absolute()), list[dict[str, str]])
        return Counter(_from(one) for one in entries)
    except ManifestError as error:
        # What else manifests could be read from is of no use here.
        why = error.message if isinstance(error, BytesNotRead) else error.message.partition(":")[0]
        raise BadSettings(f"{file}: {why}; --write-baseline writes it") from error
    except (JsonError, KeyError) as error:
        raise BadSettings(f"{file}: is no baseline: {error}; --write-baseline writes it") from error


def new_findings(found: Iterable[LintFinding], known: Counter[_Known], folder: Path) -> list[LintFinding]:
    """The findings that are not known."""
    left = Counter(known)
    new = []
    for one in found:
        key = _key(one, folder)
        if left[key] > 0:
            left[key] -= 1
        else:
            new.append(one)
    return new


def write_baseline(file: Path, found: Sequence[LintFinding]) -> None:
    """Write the findings as a baseline; the old one stays if that fails. Raises ClickException."""
    entries = [dict(zip(_FIELDS, _key(one, file.parent), strict=True)) for one in found]
    replace_file(file, f"{json.dumps(entries, indent=1, ensure_ascii=False)}\n".encode())


def _from(entry: Mapping[str, str]) -> _Known:
    return entry["file"], entry["rule"], entry["object"], entry["path"], entry["message"]


def _key(one: LintFinding, folder: Path) -> _Known:
    """The file counts from the folder of the baseline, wherever the command runs."""
    real, root = Path(one.file).absolute(), folder.absolute()
    file = real.relative_to(root).as_posix() if one.file != STDIN and real.is_relative_to(root) else one.file
    return shown_name(file), one.rule, one.object, one.path, one.message
