"""MATCH_RECOGNIZE: patterns over the rows of a partition in the order of event time.

Start with `matcher`, the operator. `search` finds the match that starts at a row, by backtracking,
and evaluates the conditions of DEFINE.

May import `operators`, its `kernels` and `store`, and `aggregate` for the measures.
"""
