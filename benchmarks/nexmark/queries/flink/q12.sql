-- By event time: windows of processing time that are open at the end of the input never fire.
SELECT bidder, COUNT(*) AS bid_count, window_start AS starttime, window_end AS endtime
FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(rowtime), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end
