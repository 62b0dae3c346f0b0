# SPDX-License-Identifier: Apache-2.0
"""Kubernetes objects on the wire, as far as they are read or written here."""
