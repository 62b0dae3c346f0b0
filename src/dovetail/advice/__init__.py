# SPDX-License-Identifier: Apache-2.0
"""Advice on jobs before they are submitted, and on clusters: pure functions without input or output of their own."""
