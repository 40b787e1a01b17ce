"""Kill the systems around a pipeline at random, and compare every sink with a batch run.

`python -m tests.chaos --kills 300 --seed 1`: two topics go through windows, a join, a lookup and a
top-N into Kafka, PostgreSQL, Delta and files, while the pipeline, its JVM, its workers, the
broker and the database are killed with -9 at random moments. `feed` fills the topics, `program` is the
pipeline, `campaign` kills, `batch` computes the expected rows and compares them.
"""
