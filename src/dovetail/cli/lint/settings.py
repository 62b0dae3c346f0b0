# SPDX-License-Identifier: Apache-2.0
"""The configuration file of `dovetail lint`: what a repository leaves out, once for all users."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
import msgspec
from msgspec import Struct

FILE = ".dovetail-lint.yaml"


class BadSettings(click.ClickException):
    """A configuration or a baseline cannot be used."""

    exit_code = 2


class LintSettings(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The fields of the file. `exclude` are patterns in the syntax of .gitignore, `only` and `skip` ids of rules,
    `baseline` is a file with known findings. Patterns and paths count from the folder of the file."""

    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    fail_on: Literal["", "error", "warning", "info", "never"] = ""
    baseline: str = ""


def settings_of(file: str | None) -> tuple[LintSettings, Path]:
    """The settings of a file, or of the nearest FILE in the current folder or above it up to the repository; and the
    folder of that file. Raises BadSettings."""
    path = Path(file) if file is not None else _nearest()
    if path is None:
        return LintSettings(), Path.cwd()
    # Imported here: most runs have no such file.
    import yaml

    from dovetail.kube.yaml_text import decode_yaml

    try:
        settings: LintSettings = decode_yaml(path.read_text(), LintSettings)
    except OSError as error:
        raise BadSettings(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadSettings(f"{path}: is not YAML: {' '.join(str(error).split())}") from error
    except msgspec.ValidationError as error:
        raise BadSettings(f"{path}: {error}") from error
    return settings, path.resolve().parent


def _nearest() -> Path | None:
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / FILE).is_file():
            return folder / FILE
        if (folder / ".git").exists():
            return None
    return None
