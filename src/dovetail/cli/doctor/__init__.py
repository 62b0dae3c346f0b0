# SPDX-License-Identifier: Apache-2.0
"""`dovetail doctor`."""

from dovetail.cli.doctor.doctor import command

__all__ = ["command"]
