// SPDX-License-Identifier: Apache-2.0
// docs/guide/packages.md speaks of no name that it does not declare: see extract.py.
#pragma once
