SELECT DISTINCT person.id, person.name, time_bucket(INTERVAL 10 SECOND, person.date_time) AS starttime
FROM person
WHERE EXISTS (
    FROM auction
    WHERE auction.seller = person.id
        AND time_bucket(INTERVAL 10 SECOND, auction.date_time)
            = time_bucket(INTERVAL 10 SECOND, person.date_time)
);
