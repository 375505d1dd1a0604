// SPDX-License-Identifier: Apache-2.0
// Names that fragments of docs/guide/report.md use: see extract.py.
#pragma once

#include <trireme/trireme.h>

namespace page_report {}
