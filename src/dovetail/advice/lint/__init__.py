# SPDX-License-Identifier: Apache-2.0
"""What is wrong with manifests, before anything is submitted: rules, findings, and edits that mend."""
