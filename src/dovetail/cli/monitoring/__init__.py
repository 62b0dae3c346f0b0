# SPDX-License-Identifier: Apache-2.0
"""`dovetail monitoring`."""

from dovetail.cli.monitoring.group import command

__all__ = ["command"]
