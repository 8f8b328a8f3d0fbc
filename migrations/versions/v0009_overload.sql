-- How long each tier may wait.
SELECT 1;
