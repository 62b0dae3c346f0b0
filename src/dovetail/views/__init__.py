# SPDX-License-Identifier: Apache-2.0
"""Read models that every way of looking shares (command line, later the dashboard): one question, one answer."""
