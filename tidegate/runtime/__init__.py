"""What a pipeline has besides its plan: where its data lives, what it remembers, what it counts.

`connector` is what the Spark side of a connector must offer, `directory` is the data directory and
its lock, `record` remembers what a pipeline read and what its operators meant, `control` tells it
that its input has ended, `counters` and `reports` add up what its epochs report. Knows no Spark.
"""
