# SPDX-License-Identifier: Apache-2.0
"""The linter of manifests: rules, findings, and edits that fix findings."""
