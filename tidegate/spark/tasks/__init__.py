"""Code that runs in Spark's Python workers, and in the process of the local executor.

Start reading at `levels`, which runs the levels of a job graph: it reads splits (`read`), steps
operators (`step`), evaluates branches and writes to shuffles (`shuffle`) or sinks (`sink_write`).
`task_functions` has the functions that Spark calls, `protocol` the epoch spec that the driver
writes for tasks, and the control messages among the rows of stages in Spark SQL. These modules
import neither pyspark, except for the number of a task, nor the parser: workers start often.
"""
