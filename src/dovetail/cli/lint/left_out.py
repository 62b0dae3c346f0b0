# SPDX-License-Identifier: Apache-2.0
"""What `dovetail lint` does not check, and counts: a repository holds more than manifests.

Rules
- A template that was not rendered is left out wherever it is.
- A file or document of a folder that cannot be read, and has no `apiVersion` in its text, is no manifest. One that was
  named, or whose bytes cannot be read, is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import Struct
from msgspec.structs import replace

from dovetail.advice.lint.source import NotRendered, SourceDocument
from dovetail.cli.manifest_files import File
from dovetail.cli.output import count

_MARK = "apiVersion"


class LeftOut(Struct):
    """The counts of a run; `named` are the paths of the command line, `known` the findings of the baseline."""

    named: Collection[str]
    templates: int = 0
    others: int = 0
    known: int = 0

    def of(self, file: File) -> File:
        """The file without what is left out, which is counted."""
        is_named = file.is_lost or file.name in self.named
        if file.error is not None and not is_named and _MARK.encode() not in file.data:
            self.others += 1
            return replace(file, error=None)
        return replace(file, documents=tuple(one for one in file.documents if self._is_checked(one)))

    def _is_checked(self, document: SourceDocument) -> bool:
        if isinstance(document.error, NotRendered):
            self.templates += 1
            return False
        if document.error is not None and document.file not in self.named and _MARK not in document.text:
            self.others += 1
            return False
        return True

    def missed(self) -> Iterator[str]:
        """The counts of what was not checked, as lines of the report."""
        if self.templates:
            yield (
                f"skipped: {count(self.templates, 'template')} not rendered yet; for Helm: "
                "`helm template CHART | dovetail lint -`"
            )
        if self.others:
            yield f"skipped: {count(self.others, 'document')} that cannot be read, without an apiVersion"

    def lines(self) -> Iterator[str]:
        """The other counts, as lines of the report."""
        if self.known:
            yield f"left out: {count(self.known, 'finding')} of the baseline"
