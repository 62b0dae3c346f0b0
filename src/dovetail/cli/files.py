# SPDX-License-Identifier: Apache-2.0
"""Files that a command is told to read."""

from __future__ import annotations

import click


def text_of(file: str, encoding: str = "utf-8") -> str:
    """What is in a file, or on standard input for -. `encoding` is UTF-8, or utf-8-sig where spreadsheets write the
    file, which begin it with a mark. Raises ClickException."""
    try:
        with click.open_file(file, "rb") as stream:
            return bytes(stream.read()).decode(encoding)
    except OSError as error:
        raise click.ClickException(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file}: is not UTF-8 text: {error.reason} at byte {error.start}") from error
