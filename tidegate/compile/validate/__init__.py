"""Checks that reject queries which cannot run as a stream, with a hint for each.

`validator` lists all checks in the order in which they run. They are grouped by subject: `bounds`
(state that would grow forever), `emit`, `joins`, `windows`, `side_streams` and `sinks`. A check
takes a `Subject` and returns `Finding`s (`finding`); a finding becomes an error or a warning,
depending on the validator mode.

May import `plan` and `catalog`.
"""
