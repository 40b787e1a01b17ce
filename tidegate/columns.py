"""Names of the columns that Tidegate adds to rows.

Python workers import this module; it imports nothing, so that workers do not load the parser.
"""

from __future__ import annotations

# The operation of a changelog row, and its four values.
OP = "_op"
INSERT, BEFORE, AFTER, DELETE = "+I", "-U", "+U", "-D"
OPS = (INSERT, BEFORE, AFTER, DELETE)
# The origin of a row, its event time in microseconds, whether filters have selected it, and control
# messages: task reports, watermark updates, late rows and dead letters.
ORIGIN, EVENT_TIME, SELECTED, CONTROL = (
    "_tg_origin",
    "_tg_event_time",
    "_tg_selected",
    "_tg_control",
)
# The source partition of a row, if each partition has its own watermark. An origin id contains the
# partition above these bits.
PARTITION, PARTITION_SHIFT = "_tg_partition", 32
# The event time of a malformed record: it is only counted.
MALFORMED_EVENT_TIME = -(2**63)
# The processing time of the epoch, for windows over processing time.
NOW = "_tg_now"
# The position of a row in its source: by file, then by row, rows sort in arrival order. Only
# operators that depend on the arrival order read them.
ARRIVAL_FILE, ARRIVAL_ROW = "_tg_file", "_tg_row"
ARRIVAL = (ARRIVAL_FILE, ARRIVAL_ROW)
# The first byte of a dead letter among control messages, and the fields of a dead letter.
DEAD_LETTER = "D"
DEAD_LETTER_FIELDS = ("stream", "expression", "record")
# The text of a malformed record. If the source declares dead letters, also the reason, the column,
# and for every record its file and its line (or row).
MALFORMED_RECORD, MALFORMED_REASON, MALFORMED_COLUMN = (
    "_malformed_record",
    "_tg_reason",
    "_tg_column",
)
RECORD_FILE, RECORD_LINE = "_tg_path", "_tg_line"
# The columns of rows on their way to a stateful operator: the pane of the window that a row belongs
# to, a hash of its keys, the number of rows that a row stands for, and its weight in a changelog.
PANE, HASH, ROWS, WEIGHT = "_pane", "_hash", "_rows", "_weight"
# The number of input rows of a group, also if rows and retractions cancel out.
SEEN = "_seen"
