"""The columns that Tidegate adds to rows. Python workers read them: nothing else is here, so that
a worker does not load the parser."""

from __future__ import annotations

# What a row of a changelog does, and the four things it can do.
OP = "_op"
INSERT, BEFORE, AFTER, DELETE = "+I", "-U", "+U", "-D"
OPS = (INSERT, BEFORE, AFTER, DELETE)
# Where a row came from, its event time, whether it is still a row, and what passes by on its side:
# notes for the driver, and rows that came too late.
ORIGIN, EVENT_TIME, SELECTED, CONTROL = (
    "_tg_origin",
    "_tg_event_time",
    "_tg_selected",
    "_tg_control",
)
# The partition of a source that a row came from, where each has a watermark of its own; together
# with the source it is one number, the partition above these bits.
PARTITION, PARTITION_SHIFT = "_tg_partition", 32
# The event time of a record that cannot be used: it is counted, and that is all.
INVALID_TIME = -(2**63)
# The processing time of an epoch, where windows are made of it.
NOW = "_tg_now"
# Where a row stood: rows sort by file, then row, in the order in which they arrived. Only
# operators for which the order of rows counts read them.
ARRIVAL_FILE, ARRIVAL_ROW = "_tg_file", "_tg_row"
ARRIVAL = (ARRIVAL_FILE, ARRIVAL_ROW)
# The first byte of a dead letter of a stream among what passes in SIDE, and what it tells.
LETTER = "D"
LETTER_COLUMNS = ("stream", "expression", "record")
# The text of a record that a reader could not read. Where somebody keeps dead letters, also why,
# the column to blame, and of every record its file and its line (or row) there.
BAD_RECORD, BAD_REASON, BAD_COLUMN = "_bad_record", "_tg_reason", "_tg_column"
RECORD_FILE, RECORD_LINE = "_tg_path", "_tg_line"
# The columns of rows on their way to a stateful operator: the pane of the window that a row belongs
# to, a hash of its keys, the number of rows that a row stands for, and its weight in a changelog.
PANE, HASH, ROWS, WEIGHT = "_pane", "_hash", "_rows", "_weight"
# The number of input rows of a group, also if rows and retractions cancel out.
SEEN = "_seen"
