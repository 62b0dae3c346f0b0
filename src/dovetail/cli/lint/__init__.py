# SPDX-License-Identifier: Apache-2.0
"""`dovetail lint`."""

from dovetail.cli.lint.lint import command

__all__ = ["command"]
