-- Leases run by a time of their own, which a step of Postgres' clock cannot carry past them; an admission reads what a
-- scope holds once, however many caps and budgets it has; and nothing that requests wait for reads a whole table.

-- The time of leases goes on with the clock from its last renewal, but neither back nor by more than half of a lease:
-- whichever gateway lives renews more often than that. By the clock alone, a step forward of more than a lease (NTP, a
-- virtual machine that had been paused) ended all leases at once and gave back what running requests hold, and a step
-- back of an hour kept the places of gateways that had died for an hour. Each `expires_at` of a lease is in this time.
ALTER TABLE limiter_epoch
    ADD COLUMN lease_at timestamptz NOT NULL DEFAULT clock_timestamp(), -- the time of leases at the last renewal
    ADD COLUMN clock_at timestamptz NOT NULL DEFAULT clock_timestamp(); -- what the clock said then

CREATE FUNCTION lease_time(p_lease_at timestamptz, p_clock_at timestamptz, p_now timestamptz) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE AS $$
    SELECT p_lease_at + least(greatest(p_now - p_clock_at, interval '0'), interval '7.5 seconds')
$$;

CREATE FUNCTION lease_now() RETURNS timestamptz
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM current_epoch();
    RETURN (SELECT lease_time(e.lease_at, e.clock_at, clock_timestamp()) FROM limiter_epoch e);
END $$;

-- As in 0008 but for the time: the first to renew carries it on.
CREATE OR REPLACE FUNCTION renew(p_gateway text, p_requests uuid[], p_lease_ms integer, OUT gateways integer, OUT epoch bigint)
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    now_at timestamptz := lease_now();
    until  timestamptz := now_at + p_lease_ms * interval '1 millisecond';
BEGIN
    epoch := current_epoch();
    UPDATE limiter_epoch e SET lease_at = now_at, clock_at = clock_timestamp()
    WHERE e.one IN (SELECT o.one FROM limiter_epoch o WHERE o.lease_at <= now_at FOR UPDATE SKIP LOCKED);
    UPDATE inflight i SET expires_at = until
    FROM (SELECT o.request_id FROM inflight o WHERE o.request_id = ANY (p_requests) AND o.state <> 'settled'
          ORDER BY o.request_id FOR UPDATE SKIP LOCKED) AS mine
    WHERE i.request_id = mine.request_id;
    DELETE FROM gateways g WHERE g.id IN (
        SELECT o.id FROM gateways o WHERE o.expires_at < now_at FOR UPDATE SKIP LOCKED);
    INSERT INTO gateways AS g (id, expires_at) VALUES (p_gateway, until)
    ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at;
    gateways := (SELECT count(*) FROM gateways g WHERE g.expires_at >= now_at);
END $$;

-- As in 0008 but for the time.
CREATE OR REPLACE FUNCTION restore(
    p_gateway text, p_lease_ms integer, p_requests uuid[], p_tenants uuid[], p_keys uuid[], p_models uuid[], p_running boolean[],
    p_tokens bigint[], p_costs_micro bigint[]) RETURNS void
    LANGUAGE sql AS $$
    WITH now_at AS MATERIALIZED (SELECT lease_now() AS at)
    INSERT INTO inflight (
        request_id, tenant_id, api_key_id, model_id, gateway, state, tokens, cost_micro, keys, bursts, expires_at)
    SELECT r.request_id, r.tenant_id, r.api_key_id, r.model_id, p_gateway, CASE WHEN r.running THEN 'running' ELSE 'queued' END,
           r.tokens, r.cost_micro, '{}', '{}', now_at.at + p_lease_ms * interval '1 millisecond'
    FROM unnest(p_requests, p_tenants, p_keys, p_models, p_running, p_tokens, p_costs_micro)
        AS r (request_id, tenant_id, api_key_id, model_id, running, tokens, cost_micro), now_at
    WHERE NOT EXISTS (SELECT FROM usage_events e WHERE e.request_id = r.request_id AND e.final)
    ORDER BY r.request_id
    ON CONFLICT DO NOTHING
$$;

-- What one scope holds of each cap and budget, in this order: concurrency, queued requests, queued tokens, tokens of the
-- day, cost of the month. Read by one statement, so of one moment: of a budget it is what was spent and what requests
-- hold, and the ledger moves an amount from there to here in one transaction. Without `p_budgets` the last two are not
-- complete. A reservation whose lease has lapsed (0013), at -infinity, holds nothing. Reads by plain index scans, which
-- mark the entries of dead rows so that the next reader passes over them. Bitmap scans never do: after a burst each
-- admission read all that had come and gone since the last vacuum.
CREATE FUNCTION scope_held(
    p_tenant uuid, p_key uuid, p_model uuid, p_by_key boolean, p_by_model boolean, p_budgets boolean, p_now timestamptz,
    p_lease_now timestamptz)
    RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    by_index boolean := p_by_key AND NOT p_budgets; -- the key's, which has no settled rows
    scope_is text := budget_scope(p_tenant, p_key, p_model, p_by_key, p_by_model);
    today    timestamptz := budget_start('day_tokens', p_now);
    month    timestamptz := budget_start('month_cost', p_now);
BEGIN
    RETURN (
        SELECT ARRAY[
            count(*) FILTER (WHERE r.is_open),
            count(*) FILTER (WHERE r.is_open AND r.state = 'queued'),
            coalesce(sum(r.tokens) FILTER (WHERE r.is_open AND r.state = 'queued'), 0)::bigint,
            coalesce(sum(r.tokens) FILTER (WHERE r.admitted_at >= today), 0)::bigint + coalesce((
                SELECT b.spent FROM budget_state b
                WHERE p_budgets AND b.scope = scope_is AND b.metric = 'day_tokens' AND b.period_start = today), 0),
            coalesce(sum(r.cost_micro) FILTER (WHERE r.admitted_at >= month), 0)::bigint + coalesce((
                SELECT b.spent FROM budget_state b
                WHERE p_budgets AND b.scope = scope_is AND b.metric = 'month_cost' AND b.period_start = month), 0)]
        FROM (SELECT i.state, i.tokens, i.cost_micro, i.admitted_at, i.expires_at > p_lease_now AS is_open FROM inflight i
              WHERE NOT by_index AND i.tenant_id = p_tenant AND i.state <> 'settled' AND i.expires_at > '-infinity'
                AND (NOT p_by_key OR i.api_key_id = p_key) AND (NOT p_by_model OR i.model_id = p_model)
              UNION ALL
              SELECT i.state, i.tokens, i.cost_micro, i.admitted_at, i.expires_at > p_lease_now FROM inflight i
              WHERE by_index AND i.api_key_id = p_key AND i.state <> 'settled' AND i.expires_at > '-infinity'
                AND (NOT p_by_model OR i.model_id = p_model)
              UNION ALL
              SELECT i.state, i.tokens, i.cost_micro, i.admitted_at, false FROM inflight i
              WHERE p_budgets AND i.tenant_id = p_tenant AND i.state = 'settled'
                AND (NOT p_by_key OR i.api_key_id = p_key) AND (NOT p_by_model OR i.model_id = p_model)) AS r);
END $$;

-- As in 0008 but for the time of leases, and for what it reads: each scope of its caps and budgets once, and not each cap by
-- itself. `cap_held` and `budget_held` stay for admissions that wait for this migration: they go on with what they were.
CREATE OR REPLACE FUNCTION admit(
    p_request uuid, p_tenant uuid, p_key uuid, p_model uuid, p_gateway text, p_lease_ms integer, p_tokens bigint, p_cost_micro bigint,
    p_keys text[], p_per_minute bigint[], p_bursts bigint[], p_amounts bigint[], p_enforced boolean[],
    p_caps text[], p_caps_by_key boolean[], p_caps_by_model boolean[], p_caps_allowed bigint[], p_caps_amounts bigint[],
    p_caps_enforced boolean[],
    OUT refused integer, OUT retry_after_us bigint, OUT levels bigint[], OUT held bigint[], OUT missed integer[], OUT epoch bigint)
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    buckets   integer := cardinality(p_keys);
    budgets   boolean := p_caps && '{day_tokens,month_cost}';
    present   integer;
    lease_at  timestamptz;
    clock_at  timestamptz;
    lease_now timestamptz;
    now_at    timestamptz;
    now_us    bigint;
    at_us     bigint[];
    missing   bigint;
    wait_us   bigint;
    found_in  bigint[] := '{}'; -- five for each scope that was read
    place     integer;
    keys      text[];
    bursts    bigint[];
    amounts   bigint[];
BEGIN
    held := '{}';
    missed := '{}';
    levels := '{}';
    IF cardinality(p_caps) > 0 THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(p_tenant::text, 8));
    END IF;
    LOOP
        SELECT e.epoch, e.lease_at, e.clock_at, (SELECT count(*) FROM limiter_state s WHERE s.key = ANY (p_keys))
        INTO admit.epoch, lease_at, clock_at, present FROM limiter_epoch e;
        IF NOT FOUND THEN
            PERFORM current_epoch();
            CONTINUE;
        END IF;
        -- Made before any is locked: who makes one may wait for another who makes it too, and that one for a lock.
        IF present < buckets THEN
            INSERT INTO limiter_state (key, level, at_us)
            SELECT b.key, b.burst * 60000000, clock_us() FROM unnest(p_keys, p_bursts) AS b (key, burst)
            ON CONFLICT DO NOTHING;
        END IF;
        EXIT WHEN buckets = 0;
        SELECT coalesce(array_agg(l.level ORDER BY l.key), '{}'), array_agg(l.at_us ORDER BY l.key) INTO levels, at_us
        FROM (SELECT s.key, s.level, s.at_us FROM limiter_state s
              WHERE s.key = ANY (p_keys) ORDER BY s.key FOR UPDATE) AS l;
        EXIT WHEN cardinality(levels) = buckets;
    END LOOP;
    now_at := clock_timestamp();
    now_us := (extract(epoch FROM now_at) * 1000000)::bigint;
    lease_now := lease_time(lease_at, clock_at, now_at);
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
        place := CASE WHEN p_caps_by_key[c] THEN 5 ELSE 0 END + CASE WHEN p_caps_by_model[c] THEN 10 ELSE 0 END;
        IF found_in[place + 1] IS NULL THEN
            found_in[place + 1 : place + 5] := scope_held(
                p_tenant, p_key, p_model, p_caps_by_key[c], p_caps_by_model[c], budgets, now_at, lease_now);
        END IF;
        held[c] := found_in[place + array_position('{concurrency,queued_requests,queued_tokens,day_tokens,month_cost}', p_caps[c])];
        CONTINUE WHEN held[c] + p_caps_amounts[c] <= p_caps_allowed[c];
        IF NOT p_caps_enforced[c] THEN
            missed := missed || buckets + c;
            CONTINUE;
        END IF;
        CONTINUE WHEN refused IS NOT NULL AND retry_after_us IS NULL;
        wait_us := NULL;
        IF p_caps[c] NOT IN ('day_tokens', 'month_cost') AND p_caps_amounts[c] <= p_caps_allowed[c] THEN
            wait_us := cap_wait_us(p_caps[c], p_tenant, p_key, p_model, p_caps_by_key[c], p_caps_by_model[c], lease_now,
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
    keys := p_keys;
    bursts := p_bursts;
    amounts := p_amounts;
    IF missed <> '{}' THEN
        SELECT coalesce(array_agg(b.key ORDER BY b.place), '{}'), coalesce(array_agg(b.burst ORDER BY b.place), '{}'),
               coalesce(array_agg(b.amount ORDER BY b.place), '{}')
        INTO keys, bursts, amounts
        FROM unnest(p_keys, p_bursts, p_amounts) WITH ORDINALITY AS b (key, burst, amount, place) WHERE b.place <> ALL (missed);
    END IF;
    INSERT INTO inflight (
        request_id, tenant_id, api_key_id, model_id, gateway, state, tokens, cost_micro, keys, bursts, amounts, admitted_at,
        expires_at)
    VALUES (
        p_request, p_tenant, p_key, p_model, p_gateway, 'queued', p_tokens, p_cost_micro, keys, bursts, amounts, now_at,
        lease_now + p_lease_ms * interval '1 millisecond')
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

-- A connection plans a statement once, most likely while these tables are nearly empty: then a scan of the whole table is the
-- cheapest, and it stays so for as long as the plan is kept, while thousands of rows come and go between two vacuums.
ALTER FUNCTION started(uuid[]) SET enable_seqscan = off SET enable_bitmapscan = off;
ALTER FUNCTION close_reservations(uuid[], timestamptz[]) SET enable_seqscan = off SET enable_bitmapscan = off;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'forebay_app') THEN
        GRANT UPDATE (lease_at, clock_at) ON limiter_epoch TO forebay_app;
    END IF;
END $$;
