# SPDX-License-Identifier: Apache-2.0
"""The checks of tools/check: functions that take a Tree and return a Result."""
