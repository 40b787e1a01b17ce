SELECT person.name, person.city, person.state, auction.id
FROM auction, person
WHERE auction.seller = person.id
    AND auction.category = 10
    AND person.state IN ('OR', 'ID', 'CA');
