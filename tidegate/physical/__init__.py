"""Logical plans to stages and operators, and their explanation.

A *stage* is a stateless run of Spark SQL; an *operator* keeps state between epochs. `planner` cuts
a plan into them, `stage_sql` prints the SQL of a stage, `explain` draws a plan for people. Imports
plans and the validator; knows no Spark.
"""
