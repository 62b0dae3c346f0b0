# SPDX-License-Identifier: Apache-2.0
"""Text files that commands read."""

from __future__ import annotations

import click


def text_of(file: str, encoding: str = "utf-8", most_bytes: int = -1) -> str:
    """The text of a file, or of standard input for -. `encoding` is utf-8, or utf-8-sig for files of spreadsheets,
    which begin with a byte order mark. A file of more than `most_bytes` is refused; -1 is no bound.
    Raises ClickException."""
    try:
        with click.open_file(file, "rb") as stream:
            found = bytes(stream.read(most_bytes + 1 if most_bytes >= 0 else -1))
        if 0 <= most_bytes < len(found):
            raise click.ClickException(f"{file}: more than {most_bytes:,} bytes: split it")
        return found.decode(encoding)
    except OSError as error:
        raise click.ClickException(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file}: not UTF-8 text: {error.reason} at byte {error.start}") from error
