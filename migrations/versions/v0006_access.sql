-- Who may call, in full.
SELECT 1;
