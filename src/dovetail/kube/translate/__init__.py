# SPDX-License-Identifier: Apache-2.0
"""Translates Kubernetes objects to the events and records of the core."""
