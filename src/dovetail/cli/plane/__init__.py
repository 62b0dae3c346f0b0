# SPDX-License-Identifier: Apache-2.0
"""`dovetail plane`."""

from dovetail.cli.plane.group import command

__all__ = ["command"]
