"""Vectorized functions over Arrow tables that several operators share.

Start with `keys`: which values are equal as keys, grouping and hashing by them. `arrays` converts
between Arrow and NumPy and reduces rows by group. `ordering` sorts and ranks rows as ORDER BY does,
`weighted_rows` consolidates changelogs, and `join_condition` finds the rows of two tables that
join. Imports `columns`, `errors` and the operator contract; neither `aggregate` nor `store`.
"""
