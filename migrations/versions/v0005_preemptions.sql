-- How often a sequence of the request lost its place to others and was computed again. Costs the tenant nothing but
-- time; many of them say that a worker takes in more than it can hold.
ALTER TABLE usage_events
    ADD COLUMN preemptions integer NOT NULL DEFAULT 0 CONSTRAINT usage_events_preemptions_range CHECK (preemptions >= 0);
