# SPDX-License-Identifier: Apache-2.0
"""`dovetail memory`."""

from dovetail.cli.memory.memory import command

__all__ = ["command"]
