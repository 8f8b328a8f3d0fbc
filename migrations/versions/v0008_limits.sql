-- Every limit, and who holds what of it.
SELECT 1;
