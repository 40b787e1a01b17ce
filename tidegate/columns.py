"""Names of the columns that Tidegate adds to rows.

Python workers import this module; it imports nothing, so that workers do not load the parser.
"""

from __future__ import annotations

# The operation of a changelog row, and its four values.
OP = "_op"
INSERT, BEFORE, AFTER, DELETE = "+I", "-U", "+U", "-D"
OPS = (INSERT, BEFORE, AFTER, DELETE)
# On every row that a source reads: its source and partition, its event time in microseconds, and
# whether all filters accept it. CONTROL has control messages, which travel next to the rows of
# stages in Spark SQL: task reports, watermark updates and dead letters.
ORIGIN, EVENT_TIME, SELECTED, CONTROL = (
    "_tg_origin",
    "_tg_event_time",
    "_tg_selected",
    "_tg_control",
)
# The source partition of a row, if each partition has its own watermark. ORIGIN packs both numbers:
# the partition is in the bits above PARTITION_SHIFT, the source in those below.
PARTITION, PARTITION_SHIFT = "_tg_partition", 32
# The event time of a malformed record, which does not advance the watermark and is only counted.
MALFORMED_EVENT_TIME = -(2**63)
# The processing time of the epoch, for windows over processing time.
NOW = "_tg_now"
# The position of a row in its source: sorted by file, then by row (in Kafka: by partition, then by
# offset), rows are in arrival order. Only operators that depend on this order read them.
ARRIVAL_FILE, ARRIVAL_ROW = "_tg_file", "_tg_row"
ARRIVAL = (ARRIVAL_FILE, ARRIVAL_ROW)
# The first byte of a dead letter among control messages, and the fields of a dead letter that
# contains a row on which an expression failed.
DEAD_LETTER = "D"
DEAD_LETTER_FIELDS = ("stream", "expression", "record")
# The fields that a late row has after its columns, with their types: why it was late.
LATE_FIELDS = (
    ("late_operator", "STRING"),
    ("late_window_start", "TIMESTAMP"),
    ("late_window_end", "TIMESTAMP"),
    ("late_watermark", "TIMESTAMP"),
)
# The text of a malformed record. If the source declares dead letters, also the reason, the column,
# and for every record its file and its line (or row).
MALFORMED_RECORD, MALFORMED_REASON, MALFORMED_COLUMN = (
    "_malformed_record",
    "_tg_reason",
    "_tg_column",
)
RECORD_FILE, RECORD_LINE = "_tg_path", "_tg_line"
# The columns of rows on their way to a stateful operator: a hash of the keys, the number of rows
# that a row stands for, and its weight in a changelog.
HASH, ROWS, WEIGHT = "_hash", "_rows", "_weight"
# The first column of shuffled and stored rows is a number whose meaning depends on the operator.
# Its name is always the same, so that every store can keep the groups of every aggregate.
# - PANE: in a window aggregate, the start of the pane that a row belongs to; 0 without windows.
# - STORE_TIME: the time by which a store sorts a row and the watermark emits, closes or drops it.
# - GROUP_ID: in OVER and MATCH_RECOGNIZE, the row, frame, partition or match that is aggregated.
PANE = STORE_TIME = GROUP_ID = "_pane"
# The number of input rows that a row stands for, to count late rows. In a group it counts additions
# and retractions; elsewhere it includes the rows that were dropped before the shuffle.
INPUT_ROWS = "_input_rows"
