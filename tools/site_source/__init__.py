# SPDX-License-Identifier: Apache-2.0
"""What tools/docs gives Doxygen to read: headers and pages, rewritten where Doxygen would misread them."""
