-- Token buckets and reservations. Unlogged: a crash of Postgres empties them, which refills every bucket (bounded
-- by one burst) and forgets reservations that would only have refilled it further. Nothing here is money.
--
-- A level is in units of 1/60,000,000 token, so that elapsed microseconds times the limit per minute is exact: no
-- rounding at any rate. `gateway/admission/bucket.py` is the same arithmetic; a test drives both with one history.

CREATE UNLOGGED TABLE limiter_state (
    key   text COLLATE "C" CONSTRAINT limiter_state_pk PRIMARY KEY, -- <scope>/<metric>
    level bigint NOT NULL,  -- below 0: debt from a time when Postgres was away
    at_us bigint NOT NULL   -- Unix microseconds up to which `level` has been refilled
) WITH (fillfactor = 50);   -- every admission updates in place (HOT)

-- One row per reservation. Settled rows wait for the ledger, which deletes them with the final usage event.
CREATE UNLOGGED TABLE inflight (
    request_id uuid CONSTRAINT inflight_pk PRIMARY KEY,
    tenant_id  uuid NOT NULL,
    api_key_id uuid NOT NULL,
    gateway    text NOT NULL,
    state      text NOT NULL DEFAULT 'open' CONSTRAINT inflight_state_known CHECK (state IN ('open', 'settled')),
    tokens     bigint NOT NULL,   -- reserved in each of the token buckets below
    keys       text[] NOT NULL,   -- token buckets, the refundable ones
    bursts     bigint[] NOT NULL, -- their capacities, in tokens
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX inflight_expires ON inflight (expires_at);

-- Gateways that renewed lately: what a local share is divided by while Postgres is away.
CREATE UNLOGGED TABLE gateways (
    id         text CONSTRAINT gateways_pk PRIMARY KEY,
    expires_at timestamptz NOT NULL
);

-- The level of a bucket at `now_us`. `elapsed` is clamped to what fills the bucket before it is multiplied, or
-- idle days would overflow; a clock that steps back refills nothing.
CREATE FUNCTION bucket_level(level bigint, at_us bigint, now_us bigint, per_minute bigint, burst bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN level >= burst * 60000000 THEN burst * 60000000
        ELSE least(
            burst * 60000000,
            level + per_minute * least(greatest(now_us - at_us, 0), (burst * 60000000 - level) / per_minute + 1))
    END
$$;

CREATE FUNCTION clock_us() RETURNS bigint
    LANGUAGE sql VOLATILE AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- Reserve `amounts` in all buckets or in none. Idempotent by request: a repeat reserves nothing more. Keys are sorted
-- and distinct, limits positive (0 and unlimited are answered before); the refund keys are those of token buckets.
-- Locks are taken in key order; the clock is read after them. `refused` is the 1-based bucket that keeps the request
-- out the longest, null when admitted; `retry_after_us` is null when it can never pass; `levels` are those after the
-- decision. A refusal writes nothing but full rows of buckets that were never seen.
CREATE FUNCTION admit(
    p_request uuid, p_tenant uuid, p_key uuid, p_gateway text, p_lease_ms integer, p_tokens bigint,
    p_keys text[], p_per_minute bigint[], p_bursts bigint[], p_amounts bigint[],
    p_refund_keys text[], p_refund_bursts bigint[],
    OUT refused integer, OUT retry_after_us bigint, OUT levels bigint[])
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    buckets integer := cardinality(p_keys);
    now_us  bigint;
    at_us   bigint[];
    missing bigint;
BEGIN
    levels := '{}';
    WHILE cardinality(levels) < buckets LOOP
        SELECT coalesce(array_agg(l.level ORDER BY l.key), '{}'), array_agg(l.at_us ORDER BY l.key) INTO levels, at_us
        FROM (SELECT s.key, s.level, s.at_us FROM limiter_state s
              WHERE s.key = ANY (p_keys) ORDER BY s.key FOR UPDATE) AS l;
        IF cardinality(levels) < buckets THEN
            INSERT INTO limiter_state (key, level, at_us)
            SELECT b.key, b.burst * 60000000, clock_us() FROM unnest(p_keys, p_bursts) AS b (key, burst)
            ON CONFLICT DO NOTHING;
        END IF;
    END LOOP;
    now_us := clock_us();
    FOR b IN 1 .. buckets LOOP
        levels[b] := bucket_level(levels[b], at_us[b], now_us, p_per_minute[b], p_bursts[b]);
        CONTINUE WHEN refused IS NOT NULL AND retry_after_us IS NULL;
        IF p_amounts[b] > p_bursts[b] THEN
            refused := b;
            retry_after_us := NULL;
        ELSIF levels[b] < p_amounts[b] * 60000000 THEN
            missing := p_amounts[b] * 60000000 - levels[b];
            missing := missing / p_per_minute[b] + (missing % p_per_minute[b] > 0)::integer;
            IF refused IS NULL OR missing > retry_after_us THEN
                refused := b;
                retry_after_us := missing;
            END IF;
        END IF;
    END LOOP;
    IF refused IS NOT NULL THEN
        IF EXISTS (SELECT FROM inflight i WHERE i.request_id = p_request) THEN
            refused := NULL;
            retry_after_us := NULL;
        END IF;
        RETURN;
    END IF;
    INSERT INTO inflight (request_id, tenant_id, api_key_id, gateway, tokens, keys, bursts, expires_at)
    VALUES (p_request, p_tenant, p_key, p_gateway, p_tokens, p_refund_keys, p_refund_bursts,
            clock_timestamp() + p_lease_ms * interval '1 millisecond')
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR b IN 1 .. buckets LOOP
        levels[b] := levels[b] - p_amounts[b] * 60000000;
        UPDATE limiter_state s SET level = levels[b], at_us = greatest(s.at_us, now_us) WHERE s.key = p_keys[b];
    END LOOP;
END $$;

-- Give back what open reservations did not use and mark them settled. Unknown and settled ones are left alone, so
-- whoever comes first refunds, once. A refund needs no clock: filling up before or after it gives the same level.
-- It never lowers a bucket whose limit was raised meanwhile. Returns how many were open.
CREATE FUNCTION settle(p_requests uuid[], p_used bigint[]) RETURNS integer
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    open_requests uuid[];
    refund_keys   text[];
    refunds       bigint[];
    caps          bigint[];
BEGIN
    SELECT coalesce(array_agg(l.request_id), '{}') INTO open_requests
    FROM (SELECT i.request_id FROM inflight i
          WHERE i.request_id = ANY (p_requests) AND i.state = 'open' ORDER BY i.request_id FOR UPDATE) AS l;
    IF open_requests = '{}' THEN
        RETURN 0;
    END IF;
    WITH closed AS (
        UPDATE inflight i SET state = 'settled', expires_at = clock_timestamp() + interval '1 day'
        WHERE i.request_id = ANY (open_requests)
        RETURNING i.request_id, i.tokens, i.keys, i.bursts),
    refund AS (
        SELECT b.key, max(b.burst) AS burst, sum(c.tokens - least(c.tokens, greatest(u.used, 0))) AS tokens
        FROM (SELECT a.request_id, max(a.used) AS used
              FROM unnest(p_requests, p_used) AS a (request_id, used) GROUP BY a.request_id) AS u
        JOIN closed c ON c.request_id = u.request_id
        CROSS JOIN LATERAL unnest(c.keys, c.bursts) AS b (key, burst)
        GROUP BY b.key)
    SELECT array_agg(r.key ORDER BY r.key), array_agg(least(r.tokens, 2 * r.burst)::bigint ORDER BY r.key),
           array_agg(r.burst ORDER BY r.key)
    INTO refund_keys, refunds, caps FROM refund r WHERE r.tokens > 0;
    PERFORM FROM limiter_state s WHERE s.key = ANY (refund_keys) ORDER BY s.key FOR UPDATE;
    UPDATE limiter_state s SET level = greatest(s.level, least(r.cap * 60000000, s.level + r.refund * 60000000))
    FROM unnest(refund_keys, refunds, caps) AS r (key, refund, cap) WHERE s.key = r.key;
    RETURN cardinality(open_requests);
END $$;

-- Extend the leases of a gateway's open requests and say how many gateways are alive. An UPDATE and never an upsert:
-- a row that the ledger or expiry took must not come back. Rows that somebody is settling are skipped.
CREATE FUNCTION renew_leases(p_gateway text, p_requests uuid[], p_lease_ms integer) RETURNS integer
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    until timestamptz := clock_timestamp() + p_lease_ms * interval '1 millisecond';
BEGIN
    UPDATE inflight i SET expires_at = until
    FROM (SELECT o.request_id FROM inflight o WHERE o.request_id = ANY (p_requests) AND o.state = 'open'
          ORDER BY o.request_id FOR UPDATE SKIP LOCKED) AS mine
    WHERE i.request_id = mine.request_id;
    DELETE FROM gateways g WHERE g.id IN (
        SELECT o.id FROM gateways o WHERE o.expires_at < clock_timestamp() FOR UPDATE SKIP LOCKED);
    INSERT INTO gateways AS g (id, expires_at) VALUES (p_gateway, until)
    ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at;
    RETURN (SELECT count(*) FROM gateways g WHERE g.expires_at >= clock_timestamp());
END $$;

-- Take away reservations whose lease ran out: open ones get everything back, settled ones are leftovers that no
-- usage event ever closed. Returns how many were open.
CREATE FUNCTION expire_leases(p_rows_max integer) RETURNS integer
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    victims  uuid[];
    refunded integer;
BEGIN
    SELECT coalesce(array_agg(v.request_id), '{}') INTO victims
    FROM (SELECT i.request_id FROM inflight i WHERE i.expires_at < clock_timestamp()
          ORDER BY i.request_id LIMIT p_rows_max FOR UPDATE SKIP LOCKED) AS v;
    refunded := settle(victims, array_fill(0::bigint, ARRAY[cardinality(victims)]));
    DELETE FROM inflight i WHERE i.request_id = ANY (victims);
    RETURN refunded;
END $$;

-- Charge what was admitted without asking, while Postgres was away. May go into debt, by one burst at the most.
CREATE FUNCTION debit_buckets(p_keys text[], p_per_minute bigint[], p_bursts bigint[], p_amounts bigint[]) RETURNS void
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    now_us bigint;
BEGIN
    INSERT INTO limiter_state (key, level, at_us)
    SELECT b.key, b.burst * 60000000, clock_us() FROM unnest(p_keys, p_bursts) AS b (key, burst) ORDER BY b.key
    ON CONFLICT DO NOTHING;
    PERFORM FROM limiter_state s WHERE s.key = ANY (p_keys) ORDER BY s.key FOR UPDATE;
    now_us := clock_us();
    UPDATE limiter_state s
    SET level = greatest(
            -b.burst * 60000000,
            bucket_level(s.level, s.at_us, now_us, b.per_minute, b.burst) - least(b.amount, 2 * b.burst) * 60000000),
        at_us = greatest(s.at_us, now_us)
    FROM unnest(p_keys, p_per_minute, p_bursts, p_amounts) AS b (key, per_minute, burst, amount) WHERE s.key = b.key;
END $$;
