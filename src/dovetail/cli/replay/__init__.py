# SPDX-License-Identifier: Apache-2.0
"""`dovetail replay`."""

from dovetail.cli.replay.replay import command

__all__ = ["command"]
