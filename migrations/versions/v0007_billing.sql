-- What tokens cost, and what billing reads.
SELECT 1;
