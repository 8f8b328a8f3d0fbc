-- The bill: one row per attempt, append-only. No foreign keys: a bill outlives what it names.
--
-- `occurred_at` is the time inside the request's UUIDv7, so that a redelivered event meets its own partition and
-- the key really is (request_id, attempt).
CREATE TABLE usage_events (
    request_id        uuid NOT NULL, -- the response's x-request-id
    attempt           smallint NOT NULL CONSTRAINT usage_events_attempt_positive CHECK (attempt >= 1),
    final             boolean NOT NULL,
    occurred_at       timestamptz NOT NULL,
    tenant_id         uuid NOT NULL,
    api_key_id        uuid NOT NULL,
    model_id          uuid NOT NULL,
    tier              smallint NOT NULL,
    prompt_tokens     bigint NOT NULL CONSTRAINT usage_events_prompt_range CHECK (prompt_tokens >= 0),
    cached_tokens     bigint NOT NULL CONSTRAINT usage_events_cached_range CHECK (cached_tokens BETWEEN 0 AND prompt_tokens),
    completion_tokens bigint NOT NULL CONSTRAINT usage_events_completion_range CHECK (completion_tokens >= 0),
    recomputed_tokens bigint NOT NULL CONSTRAINT usage_events_recomputed_range CHECK (recomputed_tokens >= 0),
    finish            text NOT NULL,
    ttft_ms           bigint CONSTRAINT usage_events_ttft_range CHECK (ttft_ms >= 0),
    total_ms          bigint NOT NULL CONSTRAINT usage_events_total_range CHECK (total_ms >= 0),
    cost_micro        bigint, -- null: no price applied
    worker            text NOT NULL,
    gateway           text NOT NULL,
    xid               xid8 NOT NULL DEFAULT pg_current_xact_id(), -- lets a billing cursor see late commits
    CONSTRAINT usage_events_pk PRIMARY KEY (request_id, attempt, occurred_at)
) PARTITION BY RANGE (occurred_at);
CREATE INDEX usage_events_tenant ON usage_events (tenant_id, occurred_at);
CREATE INDEX usage_events_xid ON usage_events (xid);
CREATE TABLE usage_events_default PARTITION OF usage_events DEFAULT;

-- Events that cannot become rows, whole, for a person to look at. The digest makes a redelivery harmless.
CREATE TABLE usage_rejected (
    digest      bytea CONSTRAINT usage_rejected_pk PRIMARY KEY,
    payload     bytea NOT NULL,
    reason      text NOT NULL,
    rejected_at timestamptz NOT NULL DEFAULT now()
);

-- Make the partitions of today (UTC) and of `p_days` days ahead. One caller at a time; a day whose rows are already in
-- the default partition stays there. A new table is attached rather than created in place, because that lets
-- inserts and long readers of the parent go on. Returns how many were made.
CREATE FUNCTION make_usage_partitions(p_days integer) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public SET lock_timeout = '2s' SET timezone = 'UTC' AS $$
DECLARE
    day  date;
    name text;
    made integer := 0;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('forebay.usage_partitions'));
    FOR ahead IN 0 .. p_days LOOP
        day := current_date + ahead;
        name := 'usage_events_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('public.' || name) IS NOT NULL;
        CONTINUE WHEN EXISTS (
            SELECT FROM usage_events_default d WHERE d.occurred_at >= day AND d.occurred_at < day + 1);
        EXECUTE format('CREATE TABLE public.%I (LIKE public.usage_events INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
        EXECUTE format('ALTER TABLE public.usage_events ATTACH PARTITION public.%I FOR VALUES FROM (%L) TO (%L)',
                       name, day::timestamptz, (day + 1)::timestamptz);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;

-- What the ledger does after it inserted final events: whatever reservation is left is refunded down to what all
-- attempts used, and its row goes.
CREATE FUNCTION close_reservations(p_requests uuid[], p_occurred timestamptz[]) RETURNS void
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    used bigint[];
BEGIN
    SELECT array_agg(b.tokens ORDER BY r.position) INTO used
    FROM unnest(p_requests, p_occurred) WITH ORDINALITY AS r (request_id, occurred_at, position)
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(e.prompt_tokens + e.completion_tokens), 0)::bigint AS tokens FROM usage_events e
        WHERE e.request_id = r.request_id AND e.occurred_at = r.occurred_at) AS b;
    PERFORM settle(p_requests, used);
    DELETE FROM inflight i WHERE i.request_id = ANY (p_requests);
END $$;

SELECT make_usage_partitions(7);
