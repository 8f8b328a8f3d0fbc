-- Every limit, and who holds what of it. A limit is a bucket (requests and tokens a minute: `limiter_state`), a cap on
-- what is open (concurrency, queued requests and tokens: rows of `inflight`) or a budget (tokens a day, cost a month:
-- `budget_state` and rows of `inflight`). Each may be a tenant's or a key's, for one model or for all.

-- The bounds keep every sum below inside a bigint; money is in micro-units.
ALTER TABLE quotas
    ADD COLUMN model_id uuid CONSTRAINT quotas_model_fk REFERENCES models (id) ON DELETE CASCADE, -- null: every model
    ADD COLUMN mode text NOT NULL DEFAULT 'enforce' CONSTRAINT quotas_mode_known CHECK (mode IN ('enforce', 'shadow')),
    DROP CONSTRAINT quotas_metric_known,
    ADD CONSTRAINT quotas_metric_known CHECK (metric IN (
        'rpm', 'tpm', 'max_context', 'max_output', 'concurrency', 'queued_requests', 'queued_tokens', 'day_tokens', 'month_cost')),
    DROP CONSTRAINT quotas_allowed_range,
    ADD CONSTRAINT quotas_allowed_range CHECK (
        allowed BETWEEN 0 AND CASE WHEN metric IN ('day_tokens', 'month_cost') THEN 1000000000000000 ELSE 10000000000 END),
    DROP CONSTRAINT quotas_scope_metric_unique,
    ADD CONSTRAINT quotas_scope_metric_unique UNIQUE NULLS NOT DISTINCT (plan_id, tenant_id, api_key_id, model_id, metric);
CREATE INDEX quotas_model ON quotas (model_id) WHERE model_id IS NOT NULL;

-- Changed once by a crash of Postgres, which empties it with the other unlogged tables: then, and only then, gateways
-- write the reservations of their open requests again.
CREATE SEQUENCE limiter_epochs;
CREATE UNLOGGED TABLE limiter_epoch (
    one   boolean DEFAULT true CONSTRAINT limiter_epoch_pk PRIMARY KEY CONSTRAINT limiter_epoch_one CHECK (one),
    epoch bigint NOT NULL
);

-- What was spent, by calendar day or month (UTC). Money, so logged. `scope` is tenant:<id> or key:<id>, and the same
-- followed by /model:<id>. Kept for every scope, so that a budget that is set today knows what was spent before.
CREATE TABLE budget_state (
    scope        text COLLATE "C" NOT NULL,
    metric       text COLLATE "C" NOT NULL CONSTRAINT budget_state_metric_known CHECK (metric IN ('day_tokens', 'month_cost')),
    period_start timestamptz NOT NULL,
    spent        bigint NOT NULL CONSTRAINT budget_state_spent_range CHECK (spent >= 0),
    CONSTRAINT budget_state_pk PRIMARY KEY (scope, metric, period_start)
) WITH (fillfactor = 70);

-- One row a request: its reservation, its lease and where it is. `keys`, `bursts` and `amounts` are the buckets that
-- were taken from. `tokens` and `cost_micro` are what it holds of budgets: the reservation while it is queued or runs,
-- what it used once it is settled, until the ledger books that and deletes the row. Rows of the version before this
-- one have no `amounts` (they name token buckets only) and count as running.
ALTER TABLE inflight
    DROP CONSTRAINT inflight_state_known,
    ALTER COLUMN state SET DEFAULT 'running',
    ADD COLUMN model_id uuid,
    ADD COLUMN amounts bigint[] NOT NULL DEFAULT '{}',
    ADD COLUMN cost_micro bigint NOT NULL DEFAULT 0,
    ADD COLUMN admitted_at timestamptz NOT NULL DEFAULT clock_timestamp();
UPDATE inflight SET state = 'running' WHERE state = 'open';
ALTER TABLE inflight
    ADD CONSTRAINT inflight_state_known CHECK (state IN ('queued', 'running', 'settled'));
CREATE INDEX inflight_tenant_open ON inflight (tenant_id, expires_at) WHERE state <> 'settled';
CREATE INDEX inflight_key_open ON inflight (api_key_id, expires_at) WHERE state <> 'settled';
CREATE INDEX inflight_tenant_settled ON inflight (tenant_id) WHERE state = 'settled';

CREATE FUNCTION budget_scope(p_tenant uuid, p_key uuid, p_model uuid, p_by_key boolean, p_by_model boolean) RETURNS text
    LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_by_key THEN 'key:' || p_key ELSE 'tenant:' || p_tenant END
        || CASE WHEN p_by_model THEN '/model:' || p_model ELSE '' END
$$;

CREATE FUNCTION budget_start(p_metric text, p_at timestamptz) RETURNS timestamptz
    LANGUAGE sql STABLE AS $$
    SELECT date_trunc(CASE p_metric WHEN 'day_tokens' THEN 'day' ELSE 'month' END, p_at, 'UTC')
$$;

-- The epoch that rows of now belong to.
CREATE FUNCTION current_epoch() RETURNS bigint
    LANGUAGE plpgsql AS $$
DECLARE
    found_epoch bigint;
BEGIN
    LOOP
        SELECT e.epoch INTO found_epoch FROM limiter_epoch e;
        IF FOUND THEN
            RETURN found_epoch;
        END IF;
        INSERT INTO limiter_epoch (epoch) VALUES (nextval('limiter_epochs')) ON CONFLICT DO NOTHING;
    END LOOP;
END $$;

-- What a scope holds of a cap. Counts live rows, and no more than `p_rows_max` of them: beyond that it is full anyway.
-- It and the next two read by plain index scans, which mark the entries of dead rows so that the next reader passes
-- over them. Bitmap scans never do: after a burst each admission read all that had come and gone since the last vacuum.
CREATE FUNCTION cap_held(
    p_metric text, p_tenant uuid, p_key uuid, p_model uuid, p_by_key boolean, p_by_model boolean, p_now timestamptz, p_rows_max bigint)
    RETURNS bigint LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN (
        SELECT coalesce(sum(live.weight), 0) FROM (
            SELECT CASE p_metric WHEN 'queued_tokens' THEN o.tokens ELSE 1 END AS weight
            FROM (SELECT i.* FROM inflight i
                  WHERE NOT p_by_key AND i.tenant_id = p_tenant AND i.state <> 'settled' AND i.expires_at > p_now
                  UNION ALL
                  SELECT i.* FROM inflight i
                  WHERE p_by_key AND i.api_key_id = p_key AND i.state <> 'settled' AND i.expires_at > p_now) AS o
            WHERE (p_metric = 'concurrency' OR o.state = 'queued') AND (NOT p_by_model OR o.model_id = p_model)
            LIMIT p_rows_max) AS live);
END $$;

-- How long until leases that nobody renews leave room for `p_amount`, in microseconds; 0 when there is room by now.
-- The one promise that can be kept: nobody knows how long a request runs, but a place whose owner died is free then.
CREATE FUNCTION cap_wait_us(
    p_metric text, p_tenant uuid, p_key uuid, p_model uuid, p_by_key boolean, p_by_model boolean, p_now timestamptz,
    p_allowed bigint, p_amount bigint)
    RETURNS bigint LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN (
        SELECT coalesce(ceil(extract(epoch FROM max(live.expires_at) - p_now) * 1000000)::bigint, 0) FROM (
            SELECT i.expires_at,
                   sum(CASE p_metric WHEN 'queued_tokens' THEN i.tokens ELSE 1 END)
                       OVER (ORDER BY i.expires_at DESC, i.request_id ROWS UNBOUNDED PRECEDING) AS held
            FROM inflight i
            WHERE i.tenant_id = p_tenant AND i.state <> 'settled' AND i.expires_at > p_now
              AND (NOT p_by_key OR i.api_key_id = p_key) AND (NOT p_by_model OR i.model_id = p_model)
              AND (p_metric = 'concurrency' OR i.state = 'queued')) AS live
        WHERE live.held > p_allowed - p_amount);
END $$;

-- What a scope has spent of a budget and what its requests hold of it, of one moment: the ledger moves an amount from
-- here to there in one transaction.
CREATE FUNCTION budget_held(
    p_metric text, p_tenant uuid, p_key uuid, p_model uuid, p_by_key boolean, p_by_model boolean, p_now timestamptz)
    RETURNS bigint LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    scope_name text := budget_scope(p_tenant, p_key, p_model, p_by_key, p_by_model);
    since      timestamptz := budget_start(p_metric, p_now);
BEGIN
    RETURN (
        SELECT coalesce(sum(part.amount), 0) FROM (
            SELECT b.spent AS amount FROM budget_state b
            WHERE b.scope = scope_name AND b.metric = p_metric AND b.period_start = since
            UNION ALL
            SELECT CASE p_metric WHEN 'day_tokens' THEN i.tokens ELSE i.cost_micro END FROM inflight i
            WHERE i.tenant_id = p_tenant AND i.state <> 'settled' AND i.admitted_at >= since
              AND (NOT p_by_key OR i.api_key_id = p_key) AND (NOT p_by_model OR i.model_id = p_model)
            UNION ALL
            SELECT CASE p_metric WHEN 'day_tokens' THEN i.tokens ELSE i.cost_micro END FROM inflight i
            WHERE i.tenant_id = p_tenant AND i.state = 'settled' AND i.admitted_at >= since
              AND (NOT p_by_key OR i.api_key_id = p_key) AND (NOT p_by_model OR i.model_id = p_model)) AS part);
END $$;

-- Reserve in all limits or in none. Idempotent by request: a repeat reserves nothing more. Buckets are sorted and
-- distinct by key, limits positive (0 and unlimited are answered before). Limits are numbered from 1, buckets first and
-- then caps and budgets: `refused` is the one that keeps the request out the longest, null when admitted;
-- `retry_after_us` is null when waiting does not help. `missed` are limits in shadow mode that would have refused: they
-- are left as they were, as by a refusal. `levels` and `held` are those after the decision.
--
-- Whoever has caps or budgets of a tenant to check does so alone, under a lock on the tenant: then come the buckets,
-- locked in key order, and then the clock is read. A refusal writes nothing but full rows of buckets never seen.
CREATE FUNCTION admit(
    p_request uuid, p_tenant uuid, p_key uuid, p_model uuid, p_gateway text, p_lease_ms integer, p_tokens bigint, p_cost_micro bigint,
    p_keys text[], p_per_minute bigint[], p_bursts bigint[], p_amounts bigint[], p_enforced boolean[],
    p_caps text[], p_caps_by_key boolean[], p_caps_by_model boolean[], p_caps_allowed bigint[], p_caps_amounts bigint[],
    p_caps_enforced boolean[],
    OUT refused integer, OUT retry_after_us bigint, OUT levels bigint[], OUT held bigint[], OUT missed integer[], OUT epoch bigint)
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    buckets  integer := cardinality(p_keys);
    now_at   timestamptz;
    now_us   bigint;
    at_us    bigint[];
    missing  bigint;
    wait_us  bigint;
    keys     text[] := '{}';
    bursts   bigint[] := '{}';
    amounts  bigint[] := '{}';
BEGIN
    epoch := current_epoch();
    held := '{}';
    missed := '{}';
    levels := '{}';
    IF cardinality(p_caps) > 0 THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(p_tenant::text, 8));
    END IF;
    WHILE cardinality(levels) < buckets LOOP
        -- Made before any is locked: who makes one may wait for another who makes it too, and that one for a lock.
        IF (SELECT count(*) FROM limiter_state s WHERE s.key = ANY (p_keys)) < buckets THEN
            INSERT INTO limiter_state (key, level, at_us)
            SELECT b.key, b.burst * 60000000, clock_us() FROM unnest(p_keys, p_bursts) AS b (key, burst)
            ON CONFLICT DO NOTHING;
        END IF;
        SELECT coalesce(array_agg(l.level ORDER BY l.key), '{}'), array_agg(l.at_us ORDER BY l.key) INTO levels, at_us
        FROM (SELECT s.key, s.level, s.at_us FROM limiter_state s
              WHERE s.key = ANY (p_keys) ORDER BY s.key FOR UPDATE) AS l;
    END LOOP;
    now_at := clock_timestamp();
    now_us := (extract(epoch FROM now_at) * 1000000)::bigint;
    FOR b IN 1 .. buckets LOOP
        levels[b] := bucket_level(levels[b], at_us[b], now_us, p_per_minute[b], p_bursts[b]);
        missing := p_amounts[b] * 60000000 - levels[b];
        CONTINUE WHEN missing <= 0;
        IF NOT p_enforced[b] THEN
            missed := missed || b;
            CONTINUE;
        END IF;
        wait_us := CASE WHEN p_amounts[b] <= p_bursts[b]
                        THEN missing / p_per_minute[b] + (missing % p_per_minute[b] > 0)::integer END;
        IF refused IS NULL OR wait_us IS NULL OR wait_us > retry_after_us THEN
            CONTINUE WHEN refused IS NOT NULL AND retry_after_us IS NULL;
            refused := b;
            retry_after_us := wait_us;
        END IF;
    END LOOP;
    FOR c IN 1 .. cardinality(p_caps) LOOP
        IF p_caps[c] IN ('day_tokens', 'month_cost') THEN
            held[c] := budget_held(p_caps[c], p_tenant, p_key, p_model, p_caps_by_key[c], p_caps_by_model[c], now_at);
        ELSE
            held[c] := cap_held(p_caps[c], p_tenant, p_key, p_model, p_caps_by_key[c], p_caps_by_model[c], now_at,
                                p_caps_allowed[c] + 1);
        END IF;
        CONTINUE WHEN held[c] + p_caps_amounts[c] <= p_caps_allowed[c];
        IF NOT p_caps_enforced[c] THEN
            missed := missed || buckets + c;
            CONTINUE;
        END IF;
        CONTINUE WHEN refused IS NOT NULL AND retry_after_us IS NULL;
        wait_us := NULL;
        IF p_caps[c] NOT IN ('day_tokens', 'month_cost') AND p_caps_amounts[c] <= p_caps_allowed[c] THEN
            wait_us := cap_wait_us(p_caps[c], p_tenant, p_key, p_model, p_caps_by_key[c], p_caps_by_model[c], now_at,
                                   p_caps_allowed[c], p_caps_amounts[c]);
        END IF;
        IF refused IS NULL OR wait_us IS NULL OR wait_us > retry_after_us THEN
            refused := buckets + c;
            retry_after_us := wait_us;
        END IF;
    END LOOP;
    IF refused IS NOT NULL THEN
        IF EXISTS (SELECT FROM inflight i WHERE i.request_id = p_request) THEN
            refused := NULL;
            retry_after_us := NULL;
        END IF;
        RETURN;
    END IF;
    FOR b IN 1 .. buckets LOOP
        CONTINUE WHEN b = ANY (missed);
        keys := keys || p_keys[b];
        bursts := bursts || p_bursts[b];
        amounts := amounts || p_amounts[b];
    END LOOP;
    INSERT INTO inflight (
        request_id, tenant_id, api_key_id, model_id, gateway, state, tokens, cost_micro, keys, bursts, amounts, admitted_at,
        expires_at)
    VALUES (
        p_request, p_tenant, p_key, p_model, p_gateway, 'queued', p_tokens, p_cost_micro, keys, bursts, amounts, now_at,
        now_at + p_lease_ms * interval '1 millisecond')
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR b IN 1 .. buckets LOOP
        CONTINUE WHEN b = ANY (missed);
        levels[b] := levels[b] - p_amounts[b] * 60000000;
        UPDATE limiter_state s SET level = levels[b], at_us = greatest(s.at_us, now_us) WHERE s.key = p_keys[b];
    END LOOP;
    FOR c IN 1 .. cardinality(p_caps) LOOP
        held[c] := held[c] + p_caps_amounts[c];
    END LOOP;
END $$;

-- A worker has accepted these: they no longer wait. Returns how many did.
CREATE FUNCTION started(p_requests uuid[]) RETURNS integer
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    rows integer;
BEGIN
    UPDATE inflight i SET state = 'running'
    FROM (SELECT q.request_id FROM inflight q WHERE q.request_id = ANY (p_requests) AND q.state = 'queued'
          ORDER BY q.request_id FOR UPDATE) AS waiting
    WHERE i.request_id = waiting.request_id;
    GET DIAGNOSTICS rows = ROW_COUNT;
    RETURN rows;
END $$;

-- Give back what open reservations did not use and mark them settled. Unknown and settled ones are left alone, so
-- whoever comes first refunds, once. What used nothing and was never started gives its place among the requests of the
-- minute back too: it was refused, or taken out of its queue. A refund needs no clock: filling up before or after it
-- gives the same level. It never lowers a bucket whose limit was raised meanwhile. Returns how many were open.
CREATE FUNCTION settle(p_requests uuid[], p_tokens_used bigint[], p_costs_micro bigint[]) RETURNS integer
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    open_requests uuid[];
    tokens_used   bigint[];
    costs_micro   bigint[];
    refund_keys   text[];
    refunds       bigint[];
    caps          bigint[];
BEGIN
    SELECT coalesce(array_agg(l.request_id ORDER BY l.request_id), '{}'), array_agg(u.tokens ORDER BY l.request_id),
           array_agg(u.cost_micro ORDER BY l.request_id)
    INTO open_requests, tokens_used, costs_micro
    FROM (SELECT i.request_id FROM inflight i
          WHERE i.request_id = ANY (p_requests) AND i.state <> 'settled' ORDER BY i.request_id FOR UPDATE) AS l
    JOIN (SELECT a.request_id, greatest(max(a.tokens), 0) AS tokens, greatest(max(a.cost_micro), 0) AS cost_micro
          FROM unnest(p_requests, p_tokens_used, p_costs_micro) AS a (request_id, tokens, cost_micro)
          GROUP BY a.request_id) AS u ON u.request_id = l.request_id;
    IF open_requests = '{}' THEN
        RETURN 0;
    END IF;
    SELECT array_agg(r.key ORDER BY r.key), array_agg(least(r.amount, 2 * r.burst)::bigint ORDER BY r.key),
           array_agg(r.burst ORDER BY r.key)
    INTO refund_keys, refunds, caps
    FROM (
        SELECT b.key, max(b.burst) AS burst,
               sum(CASE WHEN b.key NOT LIKE '%/requests' THEN coalesce(b.amount, i.tokens) - least(i.tokens, u.tokens)
                        WHEN i.state = 'queued' AND u.tokens = 0 THEN b.amount
                        ELSE 0 END) AS amount
        FROM unnest(open_requests, tokens_used) AS u (request_id, tokens)
        JOIN inflight i ON i.request_id = u.request_id
        CROSS JOIN LATERAL unnest(i.keys, i.bursts, i.amounts) AS b (key, burst, amount)
        GROUP BY b.key) AS r
    WHERE r.amount > 0;
    UPDATE inflight i
    SET state = 'settled', expires_at = clock_timestamp() + interval '1 day',
        tokens = least(i.tokens, u.tokens), cost_micro = least(i.cost_micro, u.cost_micro)
    FROM unnest(open_requests, tokens_used, costs_micro) AS u (request_id, tokens, cost_micro)
    WHERE i.request_id = u.request_id;
    PERFORM FROM limiter_state s WHERE s.key = ANY (refund_keys) ORDER BY s.key FOR UPDATE;
    UPDATE limiter_state s SET level = greatest(s.level, least(r.cap * 60000000, s.level + r.refund * 60000000))
    FROM unnest(refund_keys, refunds, caps) AS r (key, refund, cap) WHERE s.key = r.key;
    RETURN cardinality(open_requests);
END $$;

-- Extend the leases of a gateway's open requests; say how many gateways are alive, and the epoch, by which the caller
-- knows whether its rows are still there. An UPDATE and never an upsert: a row that the ledger or expiry took must not
-- come back. Rows that somebody is settling are skipped.
CREATE FUNCTION renew(p_gateway text, p_requests uuid[], p_lease_ms integer, OUT gateways integer, OUT epoch bigint)
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    until timestamptz := clock_timestamp() + p_lease_ms * interval '1 millisecond';
BEGIN
    epoch := current_epoch();
    UPDATE inflight i SET expires_at = until
    FROM (SELECT o.request_id FROM inflight o WHERE o.request_id = ANY (p_requests) AND o.state <> 'settled'
          ORDER BY o.request_id FOR UPDATE SKIP LOCKED) AS mine
    WHERE i.request_id = mine.request_id;
    DELETE FROM gateways g WHERE g.id IN (
        SELECT o.id FROM gateways o WHERE o.expires_at < clock_timestamp() FOR UPDATE SKIP LOCKED);
    INSERT INTO gateways AS g (id, expires_at) VALUES (p_gateway, until)
    ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at;
    gateways := (SELECT count(*) FROM gateways g WHERE g.expires_at >= clock_timestamp());
END $$;

-- Write reservations again that a crash of Postgres has lost. They hold no bucket: all are full now, and what is not
-- used of these must not be given to them. A request whose last bill is written already is over.
CREATE FUNCTION restore(
    p_gateway text, p_lease_ms integer, p_requests uuid[], p_tenants uuid[], p_keys uuid[], p_models uuid[], p_running boolean[],
    p_tokens bigint[], p_costs_micro bigint[]) RETURNS void
    LANGUAGE sql AS $$
    INSERT INTO inflight (
        request_id, tenant_id, api_key_id, model_id, gateway, state, tokens, cost_micro, keys, bursts, expires_at)
    SELECT r.request_id, r.tenant_id, r.api_key_id, r.model_id, p_gateway, CASE WHEN r.running THEN 'running' ELSE 'queued' END,
           r.tokens, r.cost_micro, '{}', '{}', clock_timestamp() + p_lease_ms * interval '1 millisecond'
    FROM unnest(p_requests, p_tenants, p_keys, p_models, p_running, p_tokens, p_costs_micro)
        AS r (request_id, tenant_id, api_key_id, model_id, running, tokens, cost_micro)
    WHERE NOT EXISTS (SELECT FROM usage_events e WHERE e.request_id = r.request_id AND e.final)
    ORDER BY r.request_id
    ON CONFLICT DO NOTHING
$$;

-- Take away reservations whose lease ran out: open ones get their tokens back, settled ones are leftovers that no usage
-- event ever closed. Returns how many were open.
CREATE OR REPLACE FUNCTION expire_leases(p_rows_max integer) RETURNS integer
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    victims  uuid[];
    nothing  bigint[];
    refunded integer;
BEGIN
    SELECT coalesce(array_agg(v.request_id), '{}'), array_agg(0::bigint) INTO victims, nothing
    FROM (SELECT i.request_id FROM inflight i WHERE i.expires_at < clock_timestamp()
          ORDER BY i.request_id LIMIT p_rows_max FOR UPDATE SKIP LOCKED) AS v;
    refunded := settle(victims, nothing, nothing);
    DELETE FROM inflight i WHERE i.request_id = ANY (victims);
    RETURN refunded;
END $$;

-- Add what events cost to the budgets of their scopes, in the ledger's inserting transaction and for rows that were
-- really inserted; what an adjustment gives back is negative. In key order, so that two writers wait for each other and
-- never deadlock. The bounds keep a broken worker's amounts from stopping the ledger, and what is given back of something
-- that was never counted from being spent twice. A new row is checked before it turns out to be there already, so a
-- negative amount is not in `excluded` but looked up.
CREATE FUNCTION spend(
    p_tenants uuid[], p_keys uuid[], p_models uuid[], p_occurred timestamptz[], p_tokens bigint[], p_costs_micro bigint[]) RETURNS void
    LANGUAGE sql AS $$
    WITH amounts AS (
        SELECT budget_scope(e.tenant_id, e.api_key_id, e.model_id, s.by_key, s.by_model) COLLATE "C" AS scope,
               m.metric COLLATE "C" AS metric, budget_start(m.metric, e.occurred_at) AS period_start, sum(m.amount) AS amount
        FROM unnest(p_tenants, p_keys, p_models, p_occurred, p_tokens, p_costs_micro)
            AS e (tenant_id, api_key_id, model_id, occurred_at, tokens, cost_micro)
        CROSS JOIN (VALUES (false, false), (false, true), (true, false), (true, true)) AS s (by_key, by_model)
        CROSS JOIN LATERAL (VALUES ('day_tokens', e.tokens), ('month_cost', e.cost_micro)) AS m (metric, amount)
        WHERE m.amount <> 0
        GROUP BY 1, 2, 3)
    INSERT INTO budget_state AS b (scope, metric, period_start, spent)
    SELECT a.scope, a.metric, a.period_start, greatest(0, least(a.amount, 1000000000000000000))::bigint
    FROM amounts a ORDER BY 1, 2, 3
    ON CONFLICT (scope, metric, period_start) DO UPDATE SET spent = greatest(0, least(
        b.spent::numeric + CASE WHEN excluded.spent > 0 THEN excluded.spent ELSE (
            SELECT a.amount FROM amounts a
            WHERE a.scope = b.scope AND a.metric = b.metric AND a.period_start = b.period_start) END,
        1000000000000000000))::bigint
$$;

-- Periods that no budget looks at any more.
CREATE FUNCTION prune_budget_state() RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
    DELETE FROM budget_state WHERE period_start < now() - interval '100 days'
$$;

-- What the ledger does after it inserted final events: whatever reservation is left is refunded down to what all
-- attempts used, and its row goes. What it cost is in the budgets by now, in the same transaction.
CREATE OR REPLACE FUNCTION close_reservations(p_requests uuid[], p_occurred timestamptz[]) RETURNS void
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    used bigint[];
BEGIN
    SELECT array_agg(b.tokens ORDER BY r.position) INTO used
    FROM unnest(p_requests, p_occurred) WITH ORDINALITY AS r (request_id, occurred_at, position)
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(e.prompt_tokens + e.completion_tokens), 0)::bigint AS tokens FROM usage_events e
        WHERE e.request_id = r.request_id AND e.occurred_at = r.occurred_at) AS b;
    PERFORM settle(p_requests, used, array_fill(0::bigint, ARRAY[cardinality(p_requests)]));
    DELETE FROM inflight i WHERE i.request_id = ANY (p_requests);
END $$;

-- For gateways of the version before this one, while they still run. Its `admit` stands as it was.
CREATE OR REPLACE FUNCTION settle(p_requests uuid[], p_used bigint[]) RETURNS integer
    LANGUAGE sql AS $$
    SELECT settle(p_requests, p_used, array_fill(0::bigint, ARRAY[cardinality(p_requests)]))
$$;
CREATE OR REPLACE FUNCTION renew_leases(p_gateway text, p_requests uuid[], p_lease_ms integer) RETURNS integer
    LANGUAGE sql AS $$ SELECT gateways FROM renew(p_gateway, p_requests, p_lease_ms) $$;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'forebay_app') THEN
        GRANT SELECT, INSERT, UPDATE ON budget_state TO forebay_app;
        GRANT SELECT, INSERT ON limiter_epoch TO forebay_app;
        GRANT USAGE ON SEQUENCE limiter_epochs TO forebay_app;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'forebay_billing') THEN
        GRANT SELECT ON budget_state TO forebay_billing;
    END IF;
END $$;
