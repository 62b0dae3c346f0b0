# SPDX-License-Identifier: Apache-2.0
"""`dovetail agent`."""

from dovetail.cli.agent.group import command

__all__ = ["command"]
