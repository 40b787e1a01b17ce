CREATE SOURCE ticker (symbol STRING, price DOUBLE, volume BIGINT, note STRING, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH (connector = 'memory');

CREATE STREAM v_shapes AS
SELECT symbol, began, bottom, gain, ended
FROM ticker MATCH_RECOGNIZE (
    PARTITION BY symbol ORDER BY ts
    MEASURES
        STRT.ts AS began, LAST(DOWN.price) AS bottom, LAST(UP.price) - STRT.price AS gain,
        sum(UP.volume) AS unused, MATCH_ROWTIME() AS ended
    ONE ROW PER MATCH
    AFTER MATCH SKIP TO LAST UP
    PATTERN (STRT DOWN+ UP+) WITHIN INTERVAL '1' HOUR
    DEFINE
        DOWN AS DOWN.price < PREV(DOWN.price),
        UP AS UP.price > PREV(UP.price) AND UP.volume > 10
) AS m;

-- Matches have an event time, so windows can be made of them.
CREATE STREAM an_hour AS
SELECT symbol, window_end, count(*) AS shapes
FROM v_shapes GROUP BY symbol, TUMBLE(ended, INTERVAL '1' HOUR);

-- Every match has three rows: no more need to be kept, and none waits.
CREATE STREAM three_in_a_row AS
SELECT * FROM ticker MATCH_RECOGNIZE (
    ORDER BY ts, volume DESC
    MEASURES A.symbol AS first_symbol, PREV(A.price) AS price_before, MATCH_ROWTIME() AS ended
    AFTER MATCH SKIP TO NEXT ROW
    PATTERN (A B C)
    DEFINE B AS B.symbol = A.symbol, C AS C.symbol = A.symbol AND C.note LIKE 'x%'
);

CREATE STREAM expires WITH (state_ttl = '1 day') AS
SELECT m.symbol, m.n FROM ticker AS t MATCH_RECOGNIZE (
    PARTITION BY symbol ORDER BY ts
    MEASURES count(A.*) AS n, collect_list(AB.price) AS prices
    PATTERN (A+? (B | C){2,3})
    SUBSET AB = (A, B)
    DEFINE A AS sum(A.volume) < 100, B AS B.price > avg(A.price) * 1.1 AND t.volume > 0
) AS m LATE DATA TO too_late;
