-- How long a tier's requests may wait, and how many of them. Null is no bound of its own, 0 lets nothing wait. The
-- defaults let urgent work give up early: by then its client has a better use for the answer "come back later".
ALTER TABLE tiers
    ADD COLUMN wait_ms_max         integer NOT NULL DEFAULT 60000 -- from arrival until a worker has started it
               CONSTRAINT tiers_wait_range CHECK (wait_ms_max BETWEEN 1 AND 3600000),
    ADD COLUMN first_token_ms_max  integer -- that load may add before the first token; null: only the wait above counts
               CONSTRAINT tiers_first_token_range CHECK (first_token_ms_max BETWEEN 1 AND 3600000),
    ADD COLUMN queued_requests_max integer -- of all tenants of the tier, in one pool's queue
               CONSTRAINT tiers_queued_requests_range CHECK (queued_requests_max >= 0),
    ADD COLUMN queued_tokens_max   bigint -- prompt tokens, the same
               CONSTRAINT tiers_queued_tokens_range CHECK (queued_tokens_max >= 0);

UPDATE tiers SET first_token_ms_max = 30000 WHERE id = 0;
UPDATE tiers SET first_token_ms_max = 60000 WHERE id = 1;
UPDATE tiers SET first_token_ms_max = 120000, wait_ms_max = 120000 WHERE id = 2;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'forebay_app') THEN
        GRANT UPDATE (wait_ms_max, first_token_ms_max, queued_requests_max, queued_tokens_max) ON tiers TO forebay_app;
    END IF;
END $$;
