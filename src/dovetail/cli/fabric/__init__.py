# SPDX-License-Identifier: Apache-2.0
"""`dovetail fabric`."""

from dovetail.cli.fabric.group import command

__all__ = ["command"]
