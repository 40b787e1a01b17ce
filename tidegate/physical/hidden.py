"""Hidden columns of the stages below an operator. Python workers read them: nothing else is here,
so that a worker does not load the parser."""

from __future__ import annotations

# Where a row came from, its event time, whether it is still a row, and late rows that pass by.
ORIGIN, MARK, LIVE, LATE = "_tg_origin", "_tg_mark", "_tg_live", "_tg_late"
# Where a row stood; only operators for which the order of rows counts read them.
ARRIVAL_FILE, ARRIVAL_ROW = "_tg_file", "_tg_row"
