"""Kills everything around a pipeline between real systems, and compares what each sink has.

`python -m tests.chaos --kills 300 --seed 1`: two topics go through windows, a join, a lookup and a
top-N into Kafka, PostgreSQL, Delta and files at once, while the pipeline, its JVM, its workers, the
broker and the database are killed with -9 at random moments. `feed` fills the topics, `program` is the
pipeline, `campaign` kills, `batch` says what should be there and what is.
"""
