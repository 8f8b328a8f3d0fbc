-- What tokens cost, and what billing reads. Money is whole micro-units (a millionth of the currency's unit); a price is
-- micro-units per million tokens. `gateway/ledger/pricing.py` is the arithmetic, docs/adr/0013 the rules.

CREATE EXTENSION IF NOT EXISTS btree_gist; -- trusted: the owner of the database may

-- A model's price for one plan, or (plan null) for every plan without its own. Never changed but to end it: what was
-- billed by it names it. The upper bound keeps the cost of any event inside a bigint.
CREATE TABLE prices (
    id               uuid CONSTRAINT prices_pk PRIMARY KEY DEFAULT gen_random_uuid(),
    model_id         uuid NOT NULL CONSTRAINT prices_model_fk REFERENCES models (id),
    plan_id          uuid CONSTRAINT prices_plan_fk REFERENCES plans (id),
    input_upm        bigint NOT NULL CONSTRAINT prices_input_range CHECK (input_upm BETWEEN 0 AND 1000000000000),
    cached_input_upm bigint NOT NULL CONSTRAINT prices_cached_range CHECK (cached_input_upm BETWEEN 0 AND input_upm),
    output_upm       bigint NOT NULL CONSTRAINT prices_output_range CHECK (output_upm BETWEEN 0 AND 1000000000000),
    currency         text NOT NULL CONSTRAINT prices_currency_form CHECK (currency ~ '^[A-Z]{3}$'),
    valid_from       timestamptz NOT NULL,
    valid_to         timestamptz, -- exclusive; null: until another one begins
    created_at       timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT prices_period CHECK (valid_to > valid_from),
    CONSTRAINT prices_no_overlap EXCLUDE USING gist (
        model_id WITH =, coalesce(plan_id, '00000000-0000-0000-0000-000000000000') WITH =,
        tstzrange(valid_from, valid_to) WITH &&),
    -- Budgets and totals add what different models cost.
    CONSTRAINT prices_one_currency EXCLUDE USING gist (currency WITH <>)
);
CREATE INDEX prices_model ON prices (model_id, valid_from);
CREATE TRIGGER prices_changed AFTER INSERT OR UPDATE OR DELETE ON prices FOR EACH STATEMENT EXECUTE FUNCTION config_changed();
CREATE TRIGGER prices_emptied AFTER TRUNCATE ON prices FOR EACH STATEMENT EXECUTE FUNCTION config_changed();

-- Which plan a tenant had when. The first row of each tenant has no beginning, so that clocks that differ a little leave
-- no request without a plan. Kept by the trigger, by whatever way a tenant's plan is changed; outlives the tenant.
CREATE TABLE tenant_plans (
    tenant_id  uuid NOT NULL,
    plan_id    uuid NOT NULL,
    valid_from timestamptz NOT NULL,
    valid_to   timestamptz,
    CONSTRAINT tenant_plans_pk PRIMARY KEY (tenant_id, valid_from),
    CONSTRAINT tenant_plans_period CHECK (valid_to > valid_from)
);
INSERT INTO tenant_plans (tenant_id, plan_id, valid_from) SELECT id, plan_id, '-infinity' FROM tenants;

-- The clock is read after the tenant's row is locked, so changes are in order; one that steps back replaces the plan
-- that was to begin later.
CREATE FUNCTION tenant_plan_changed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
DECLARE
    changed_at timestamptz := clock_timestamp();
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO tenant_plans (tenant_id, plan_id, valid_from) VALUES (NEW.id, NEW.plan_id, '-infinity');
        RETURN NULL;
    END IF;
    UPDATE tenant_plans p SET plan_id = NEW.plan_id
    WHERE p.tenant_id = NEW.id AND p.valid_to IS NULL AND p.valid_from >= changed_at;
    IF NOT FOUND THEN
        UPDATE tenant_plans p SET valid_to = changed_at WHERE p.tenant_id = NEW.id AND p.valid_to IS NULL;
        INSERT INTO tenant_plans (tenant_id, plan_id, valid_from) VALUES (NEW.id, NEW.plan_id, changed_at);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER tenants_plan_given AFTER INSERT ON tenants FOR EACH ROW EXECUTE FUNCTION tenant_plan_changed();
CREATE TRIGGER tenants_plan_changed AFTER UPDATE OF plan_id ON tenants FOR EACH ROW
    WHEN (OLD.plan_id <> NEW.plan_id) EXECUTE FUNCTION tenant_plan_changed();

-- The price of each of many events, by the time at which its request was made: the one for the plan that the tenant had
-- then, else the one for every plan. Places without a price are left out.
CREATE FUNCTION prices_at(p_models uuid[], p_tenants uuid[], p_times timestamptz[])
    RETURNS TABLE (place integer, id uuid, input_upm bigint, cached_input_upm bigint, output_upm bigint)
    LANGUAGE sql STABLE AS $$
    SELECT e.place::integer, p.id, p.input_upm, p.cached_input_upm, p.output_upm
    FROM unnest(p_models, p_tenants, p_times) WITH ORDINALITY AS e (model_id, tenant_id, at, place)
    LEFT JOIN tenant_plans h
        ON h.tenant_id = e.tenant_id AND h.valid_from <= e.at AND e.at < coalesce(h.valid_to, 'infinity')
    CROSS JOIN LATERAL (
        SELECT * FROM prices c
        WHERE c.model_id = e.model_id AND (c.plan_id IS NULL OR c.plan_id = h.plan_id)
            AND c.valid_from <= e.at AND e.at < coalesce(c.valid_to, 'infinity')
        ORDER BY c.plan_id NULLS LAST LIMIT 1) AS p
$$;

-- The price by which a row was billed, kept with its cost. Both null: no price applied.
ALTER TABLE usage_events
    ADD COLUMN price_id uuid,
    ADD CONSTRAINT usage_events_priced CHECK ((price_id IS NULL) = (cost_micro IS NULL)),
    ADD CONSTRAINT usage_events_cost_range CHECK (cost_micro >= 0);
DROP INDEX usage_events_xid;
CREATE INDEX usage_events_position ON usage_events (xid, request_id, attempt);

-- Corrections. An event never changes: what was billed wrongly is put right by a line of its own, in the event's own
-- hour, with whoever did it and why. `micro` is added to the bill; negative gives back.
CREATE TABLE usage_adjustments (
    id          uuid CONSTRAINT usage_adjustments_pk PRIMARY KEY DEFAULT gen_random_uuid(),
    request_id  uuid NOT NULL,
    attempt     smallint NOT NULL,
    occurred_at timestamptz NOT NULL, -- the event's
    tenant_id   uuid NOT NULL,
    api_key_id  uuid NOT NULL,
    model_id    uuid NOT NULL,
    tier        smallint NOT NULL,
    micro       bigint NOT NULL
                CONSTRAINT usage_adjustments_micro_range CHECK (micro <> 0 AND abs(micro) <= 1000000000000000000),
    reason      text NOT NULL CONSTRAINT usage_adjustments_reason_length CHECK (length(reason) BETWEEN 1 AND 500),
    actor       text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    xid         xid8 NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT usage_adjustments_event_fk FOREIGN KEY (request_id, attempt, occurred_at)
        REFERENCES usage_events (request_id, attempt, occurred_at)
);
CREATE INDEX usage_adjustments_position ON usage_adjustments (xid, request_id, attempt, id);
CREATE INDEX usage_adjustments_occurred ON usage_adjustments (occurred_at);

-- Every line of a bill: usage and adjustments. (xid, request_id, attempt, adjustment_id) is a line's position, in which
-- no line can come in before one that has been read, as long as readers stop below `lines_end()`.
CREATE VIEW usage_lines AS
SELECT 'usage' AS kind, e.xid, e.request_id, e.attempt, '00000000-0000-0000-0000-000000000000'::uuid AS adjustment_id,
       e.occurred_at, e.final, e.tenant_id, e.api_key_id, e.model_id, e.tier,
       e.prompt_tokens, e.cached_tokens, e.completion_tokens, e.recomputed_tokens, e.finish,
       e.price_id, e.cost_micro, NULL::text AS reason
FROM usage_events e
UNION ALL
SELECT 'adjustment', a.xid, a.request_id, a.attempt, a.id, a.occurred_at, false, a.tenant_id, a.api_key_id, a.model_id,
       a.tier, 0, 0, 0, 0, '', NULL, a.micro, a.reason
FROM usage_adjustments a;

-- Transactions below this one have ended: what they wrote is visible, and nothing can be added to it.
CREATE FUNCTION lines_end() RETURNS xid8
    LANGUAGE sql STABLE AS $$ SELECT pg_snapshot_xmin(pg_current_snapshot()) $$;

-- Sums of lines by UTC hour and day. Invariant: each holds exactly the lines below the cursor `rollups`, so that it
-- equals the sum of these whenever it is looked at, and a late line is added to its own hour.
CREATE TABLE usage_hourly (
    hour              timestamptz NOT NULL,
    tenant_id         uuid NOT NULL,
    api_key_id        uuid NOT NULL,
    model_id          uuid NOT NULL,
    requests          bigint NOT NULL, -- events marked final
    events            bigint NOT NULL,
    unpriced_events   bigint NOT NULL,
    prompt_tokens     bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    recomputed_tokens bigint NOT NULL,
    cost_micro        bigint NOT NULL, -- of events
    adjustments       bigint NOT NULL,
    adjusted_micro    bigint NOT NULL, -- to be added to the cost
    CONSTRAINT usage_hourly_pk PRIMARY KEY (hour, tenant_id, api_key_id, model_id)
);
CREATE TABLE usage_daily (LIKE usage_hourly);
ALTER TABLE usage_daily RENAME COLUMN hour TO day;
ALTER TABLE usage_daily ADD CONSTRAINT usage_daily_pk PRIMARY KEY (day, tenant_id, api_key_id, model_id);

-- How far each reader of lines has come: everything up to and with this position is taken. `rollups` is our own.
CREATE TABLE billing_cursors (
    consumer      text CONSTRAINT billing_cursors_pk PRIMARY KEY
                  CONSTRAINT billing_cursors_form CHECK (consumer ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    xid           xid8 NOT NULL DEFAULT '0',
    request_id    uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    attempt       smallint NOT NULL DEFAULT 0,
    adjustment_id uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    updated_at    timestamptz NOT NULL DEFAULT now()
);
INSERT INTO billing_cursors (consumer) VALUES ('rollups');

-- The sums by hour or day of the lines with p_since <= xid < p_until that occurred in [p_from, p_to).
CREATE FUNCTION sum_lines(p_grain text, p_since xid8, p_until xid8, p_from timestamptz, p_to timestamptz)
    RETURNS SETOF usage_hourly
    LANGUAGE sql STABLE AS $$
    SELECT date_trunc(p_grain, l.occurred_at, 'UTC'), l.tenant_id, l.api_key_id, l.model_id,
           count(*) FILTER (WHERE l.final), count(*) FILTER (WHERE l.kind = 'usage'),
           count(*) FILTER (WHERE l.cost_micro IS NULL),
           sum(l.prompt_tokens)::bigint, sum(l.cached_tokens)::bigint, sum(l.completion_tokens)::bigint,
           sum(l.recomputed_tokens)::bigint,
           coalesce(sum(l.cost_micro) FILTER (WHERE l.kind = 'usage'), 0)::bigint,
           count(*) FILTER (WHERE l.kind = 'adjustment'),
           coalesce(sum(l.cost_micro) FILTER (WHERE l.kind = 'adjustment'), 0)::bigint
    FROM usage_lines l
    WHERE l.xid >= p_since AND l.xid < p_until AND l.occurred_at >= p_from AND l.occurred_at < p_to
    GROUP BY 1, 2, 3, 4
$$;

CREATE FUNCTION add_to_rollups(p_since xid8, p_until xid8, p_from timestamptz, p_to timestamptz) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, public AS $$
DECLARE
    rollup record;
BEGIN
    FOR rollup IN SELECT * FROM (VALUES ('usage_hourly', 'hour'), ('usage_daily', 'day')) AS r (name, grain) LOOP
        EXECUTE format($sql$
            INSERT INTO public.%1$I AS r SELECT * FROM sum_lines(%2$L, $1, $2, $3, $4)
            ON CONFLICT (%2$I, tenant_id, api_key_id, model_id) DO UPDATE SET
                requests = r.requests + excluded.requests,
                events = r.events + excluded.events,
                unpriced_events = r.unpriced_events + excluded.unpriced_events,
                prompt_tokens = r.prompt_tokens + excluded.prompt_tokens,
                cached_tokens = r.cached_tokens + excluded.cached_tokens,
                completion_tokens = r.completion_tokens + excluded.completion_tokens,
                recomputed_tokens = r.recomputed_tokens + excluded.recomputed_tokens,
                cost_micro = r.cost_micro + excluded.cost_micro,
                adjustments = r.adjustments + excluded.adjustments,
                adjusted_micro = r.adjusted_micro + excluded.adjusted_micro
            $sql$, rollup.name, rollup.grain) USING p_since, p_until, p_from, p_to;
    END LOOP;
END $$;

-- Take the lines that have been committed since the last call into the rollups, about p_rows_max at a time (whole
-- transactions). One caller at a time. Returns whether more are waiting.
CREATE FUNCTION roll_up_usage(p_rows_max integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
DECLARE
    since xid8;
    until xid8 := lines_end();
    full_at xid8;
BEGIN
    SELECT c.xid INTO since FROM billing_cursors c WHERE c.consumer = 'rollups' FOR UPDATE SKIP LOCKED;
    IF since IS NULL OR since >= until THEN
        RETURN false;
    END IF;
    SELECT e.xid INTO full_at FROM usage_events e WHERE e.xid >= since AND e.xid < until
    ORDER BY e.xid OFFSET p_rows_max - 1 LIMIT 1;
    IF FOUND THEN
        SELECT e.xid INTO full_at FROM usage_events e WHERE e.xid > full_at AND e.xid < until ORDER BY e.xid LIMIT 1;
        until := coalesce(full_at, until);
    END IF;
    PERFORM add_to_rollups(since, until, '-infinity', 'infinity');
    UPDATE billing_cursors SET xid = until, updated_at = now() WHERE consumer = 'rollups';
    RETURN full_at IS NOT NULL;
END $$;

-- Make the rollups of whole days (UTC, p_to exclusive) anew from the lines that they should hold.
CREATE FUNCTION rebuild_rollups(p_from date, p_to date) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public SET timezone = 'UTC' AS $$
DECLARE
    until xid8;
BEGIN
    SELECT c.xid INTO until FROM billing_cursors c WHERE c.consumer = 'rollups' FOR UPDATE;
    DELETE FROM usage_hourly WHERE hour >= p_from AND hour < p_to;
    DELETE FROM usage_daily WHERE day >= p_from AND day < p_to;
    PERFORM add_to_rollups('0', until, p_from, p_to);
END $$;

-- Rows of the rollups of whole days that are not what they should be, and those that should be and are not.
CREATE FUNCTION rollup_drift(p_from date, p_to date) RETURNS SETOF usage_hourly
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, public SET timezone = 'UTC' AS $$
DECLARE
    until xid8;
BEGIN
    SELECT c.xid INTO until FROM billing_cursors c WHERE c.consumer = 'rollups';
    RETURN QUERY (
        (SELECT * FROM usage_hourly WHERE hour >= p_from AND hour < p_to
         EXCEPT SELECT * FROM sum_lines('hour', '0', until, p_from, p_to))
        UNION ALL
        (SELECT * FROM sum_lines('hour', '0', until, p_from, p_to)
         EXCEPT SELECT * FROM usage_hourly WHERE hour >= p_from AND hour < p_to)
        UNION ALL
        (SELECT * FROM usage_daily WHERE day >= p_from AND day < p_to
         EXCEPT SELECT * FROM sum_lines('day', '0', until, p_from, p_to))
        UNION ALL
        (SELECT * FROM sum_lines('day', '0', until, p_from, p_to)
         EXCEPT SELECT * FROM usage_daily WHERE day >= p_from AND day < p_to));
END $$;

-- Every event that NATS had acknowledged before `complete_until` is booked (or set aside in usage_rejected). One row,
-- written by ledgers; it never goes back.
CREATE TABLE usage_completeness (
    single         boolean CONSTRAINT usage_completeness_pk PRIMARY KEY DEFAULT true
                   CONSTRAINT usage_completeness_one_row CHECK (single),
    complete_until timestamptz NOT NULL,
    pending        bigint NOT NULL, -- events that waited in NATS when it was last looked at
    observed_at    timestamptz NOT NULL
);

-- What each worker says that it has billed since its start, as gateways last heard it. A worker's name is new at each
-- start, so that a restart is another row and nothing is forgotten but what was billed after its last beat.
CREATE TABLE worker_counters (
    worker            text CONSTRAINT worker_counters_pk PRIMARY KEY,
    bills             bigint NOT NULL,
    prompt_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    observed_at       timestamptz NOT NULL,
    first_observed_at timestamptz NOT NULL DEFAULT now()
);

-- What was handed out: the lines that occurred before `period_to`, written below `until_xid`, and occurred at or after
-- `period_from` or else were written at or above `late_xid` (too late for the closing export of the period before).
-- So a repetition finds the same lines. Of closing exports each line is in exactly one.
CREATE TABLE billing_exports (
    id          uuid CONSTRAINT billing_exports_pk PRIMARY KEY DEFAULT gen_random_uuid(),
    period_from timestamptz NOT NULL,
    period_to   timestamptz NOT NULL,
    late_xid    xid8,
    until_xid   xid8 NOT NULL,
    closing     boolean NOT NULL,
    format      text NOT NULL CONSTRAINT billing_exports_format_known CHECK (format IN ('csv', 'parquet')),
    row_count   bigint NOT NULL,
    total_micro bigint NOT NULL,
    sha256      bytea NOT NULL CONSTRAINT billing_exports_digest_length CHECK (octet_length(sha256) = 32),
    created_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT billing_exports_period CHECK (period_to > period_from),
    CONSTRAINT billing_exports_closed_once EXCLUDE USING gist (tstzrange(period_from, period_to) WITH &&) WHERE (closing)
);

-- Views for billing. Names and columns stay; new columns come at the end.
CREATE VIEW billing_lines AS
SELECT l.kind, l.xid, l.request_id, l.attempt, l.adjustment_id, l.occurred_at,
       l.tenant_id, t.name AS tenant, l.api_key_id, l.model_id, m.alias AS model, l.tier,
       l.prompt_tokens, l.cached_tokens, l.completion_tokens, l.recomputed_tokens, l.finish,
       l.price_id, p.currency, l.cost_micro, l.reason
FROM usage_lines l
LEFT JOIN tenants t ON t.id = l.tenant_id
LEFT JOIN models m ON m.id = l.model_id
LEFT JOIN prices p ON p.id = l.price_id;
COMMENT ON VIEW billing_lines IS 'One row per usage event and per adjustment. Read new ones with billing_read.';
COMMENT ON COLUMN billing_lines.kind IS 'usage or adjustment';
COMMENT ON COLUMN billing_lines.xid IS 'transaction that wrote the line; with request_id, attempt, adjustment_id its position';
COMMENT ON COLUMN billing_lines.request_id IS 'the x-request-id of the answer; a line is (request_id, attempt, adjustment_id)';
COMMENT ON COLUMN billing_lines.adjustment_id IS 'all zeros for usage';
COMMENT ON COLUMN billing_lines.occurred_at IS 'when the request was made; for an adjustment, the request that it adjusts';
COMMENT ON COLUMN billing_lines.prompt_tokens IS 'with the cached ones; 0 for an adjustment, as all tokens';
COMMENT ON COLUMN billing_lines.recomputed_tokens IS 'computed again after a loss, free';
COMMENT ON COLUMN billing_lines.cost_micro IS 'millionths of the currency''s unit; null: no price applied; of an adjustment, what it adds';

CREATE VIEW billing_hourly AS
SELECT h.*, t.name AS tenant, m.alias AS model, h.cost_micro + h.adjusted_micro AS total_micro
FROM usage_hourly h LEFT JOIN tenants t ON t.id = h.tenant_id LEFT JOIN models m ON m.id = h.model_id;
COMMENT ON VIEW billing_hourly IS 'Sums by UTC hour, tenant, key and model of the lines that were booked a few seconds ago';
CREATE VIEW billing_daily AS
SELECT d.*, t.name AS tenant, m.alias AS model, d.cost_micro + d.adjusted_micro AS total_micro
FROM usage_daily d LEFT JOIN tenants t ON t.id = d.tenant_id LEFT JOIN models m ON m.id = d.model_id;
COMMENT ON VIEW billing_daily IS 'As billing_hourly, by UTC day';

CREATE VIEW billing_prices AS
SELECT p.id AS price_id, p.model_id, m.alias AS model, p.plan_id, n.name AS plan, p.input_upm, p.cached_input_upm,
       p.output_upm, p.currency, p.valid_from, p.valid_to
FROM prices p JOIN models m ON m.id = p.model_id LEFT JOIN plans n ON n.id = p.plan_id;
COMMENT ON VIEW billing_prices IS 'Micro-units per million tokens; plan null: every plan without its own; valid_to exclusive';

CREATE VIEW billing_completeness AS
SELECT c.complete_until, c.pending, c.observed_at, (SELECT count(*) FROM usage_rejected) AS rejected
FROM usage_completeness c;
COMMENT ON VIEW billing_completeness IS
    'Every bill that was durable in NATS before complete_until is in billing_lines, but for those rejected';

-- The next lines for a consumer, in order of position, and no line before one that is still to be committed. Locks the
-- consumer's cursor until the end of the transaction, in which the caller stores what it made of the lines and calls
-- billing_advance with the last one's position: nothing is skipped, nothing is taken twice.
CREATE FUNCTION billing_read(p_consumer text, p_rows_max integer) RETURNS SETOF billing_lines
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
DECLARE
    past  billing_cursors;
    until xid8; -- not beyond the transactions that fill the page, so that a long backlog is not sorted for each page
BEGIN
    IF p_consumer = 'rollups' THEN
        RAISE EXCEPTION 'the cursor rollups is not for consumers';
    END IF;
    INSERT INTO billing_cursors (consumer) VALUES (p_consumer) ON CONFLICT DO NOTHING;
    SELECT * INTO past FROM billing_cursors c WHERE c.consumer = p_consumer FOR UPDATE;
    SELECT e.xid INTO until FROM usage_events e
    WHERE (e.xid, e.request_id, e.attempt) >= (past.xid, past.request_id, past.attempt) AND e.xid < lines_end()
    ORDER BY e.xid, e.request_id, e.attempt OFFSET p_rows_max LIMIT 1;
    RETURN QUERY
        SELECT * FROM billing_lines l
        WHERE (l.xid, l.request_id, l.attempt, l.adjustment_id)
            > (past.xid, past.request_id, past.attempt, past.adjustment_id)
            AND l.xid >= past.xid AND l.xid <= coalesce(until, lines_end()) AND l.xid < lines_end()
        ORDER BY l.xid, l.request_id, l.attempt, l.adjustment_id LIMIT p_rows_max;
END $$;

CREATE FUNCTION billing_advance(p_consumer text, p_xid xid8, p_request uuid, p_attempt smallint, p_adjustment uuid)
    RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
BEGIN
    UPDATE billing_cursors c
    SET xid = p_xid, request_id = p_request, attempt = p_attempt, adjustment_id = p_adjustment, updated_at = now()
    WHERE c.consumer = p_consumer AND p_consumer <> 'rollups' AND p_xid < lines_end()
        AND (c.xid, c.request_id, c.attempt, c.adjustment_id) <= (p_xid, p_request, p_attempt, p_adjustment);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the cursor of % does not go there', p_consumer;
    END IF;
END $$;

REVOKE EXECUTE ON FUNCTION roll_up_usage, rebuild_rollups, billing_read, billing_advance FROM PUBLIC;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'forebay_app') THEN
        GRANT SELECT, INSERT ON prices, usage_adjustments, billing_exports TO forebay_app;
        GRANT UPDATE (valid_to) ON prices TO forebay_app;
        GRANT SELECT ON tenant_plans, usage_lines, usage_hourly, usage_daily, billing_cursors, billing_lines,
            billing_hourly, billing_daily, billing_prices, billing_completeness TO forebay_app;
        GRANT SELECT, INSERT, UPDATE ON usage_completeness TO forebay_app;
        GRANT SELECT, INSERT, UPDATE, DELETE ON worker_counters TO forebay_app;
        GRANT EXECUTE ON FUNCTION roll_up_usage, rebuild_rollups TO forebay_app;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'forebay_billing') THEN
        GRANT SELECT ON billing_lines, billing_hourly, billing_daily, billing_prices, billing_completeness,
            billing_exports, billing_cursors, usage_adjustments TO forebay_billing;
        GRANT EXECUTE ON FUNCTION billing_read, billing_advance TO forebay_billing;
    END IF;
END $$;
