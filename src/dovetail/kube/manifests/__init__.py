# SPDX-License-Identifier: Apache-2.0
"""Manifests on disk: read, completed as an API server would, and written."""
