"""OVER: window functions over the rows of a partition.

Start with `streaming`, the operator along event time, which emits a row when the watermark has
passed its frame. `partitions` evaluates whole partitions instead and is used by the operators of
`top_n`, when a window closes, at the end of the input, or as a changelog. `functions` has the
functions and the states of their frames, `frames` computes the bounds of frames, `history` defines
the stored tables of a partition.

May import `operators`, its `kernels` and `store`, `aggregate` and `top_n`.
"""
