# SPDX-License-Identifier: Apache-2.0
"""`dovetail install`."""

from dovetail.cli.install.install import command

__all__ = ["command"]
