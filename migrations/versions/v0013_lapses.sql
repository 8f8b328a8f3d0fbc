-- A gateway that was cut off is not dead, and neither are its requests. A reservation whose lease ran out *lapses*: its
-- buckets get back what it took, no cap and no budget counts it, and its row stays for whoever comes back. `expires_at`
-- says so, by -infinity, and `amounts` is what the buckets still lack of it. From there
--   renew            makes it count again, as it would any other lease (the function is that of 0012),
--   settle           charges what was used, since that is more than what is taken,
--   the ledger       does the same when its final bill comes first, and deletes the row,
-- and all of them lock the row first, so each amount is given back once and charged once, in whatever order they come.
-- Gateways of the version before call the same functions.

-- As in 0011, but that a bucket of which less is taken than was used is charged the difference: as if it had been taken
-- when the bucket was last written, so this needs no clock either. A debt goes no deeper than one burst.
CREATE OR REPLACE FUNCTION settle(p_requests uuid[], p_tokens_used bigint[], p_costs_micro bigint[]) RETURNS integer
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    open_requests uuid[];
    tokens_used   bigint[];
    costs_micro   bigint[];
    changed_keys  text[];
    changes       bigint[];
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
    SELECT array_agg(c.key ORDER BY c.key),
           array_agg(greatest(-2 * c.burst, least(c.amount, 2 * c.burst))::bigint ORDER BY c.key),
           array_agg(c.burst ORDER BY c.key)
    INTO changed_keys, changes, caps
    FROM (
        SELECT b.key, max(b.burst) AS burst,
               sum(coalesce(b.amount, i.tokens) - CASE
                       WHEN b.key NOT LIKE '%/requests' THEN least(i.tokens, u.tokens)
                       WHEN i.state = 'queued' AND u.tokens = 0 THEN 0
                       ELSE 1 END) AS amount
        FROM unnest(open_requests, tokens_used) AS u (request_id, tokens)
        JOIN inflight i ON i.request_id = u.request_id
        CROSS JOIN LATERAL unnest(i.keys, i.bursts, i.amounts) AS b (key, burst, amount)
        GROUP BY b.key) AS c
    WHERE c.amount <> 0;
    IF 0 = ANY (tokens_used) THEN
        DELETE FROM inflight i USING unnest(open_requests, tokens_used) AS u (request_id, tokens)
        WHERE i.request_id = u.request_id AND i.state = 'queued' AND u.tokens = 0;
    END IF;
    UPDATE inflight i
    SET state = 'settled',
        expires_at = CASE WHEN i.expires_at > '-infinity' THEN i.expires_at ELSE lease_now() END + interval '1 day',
        tokens = least(i.tokens, u.tokens), cost_micro = least(i.cost_micro, u.cost_micro)
    FROM unnest(open_requests, tokens_used, costs_micro) AS u (request_id, tokens, cost_micro)
    WHERE i.request_id = u.request_id;
    PERFORM FROM limiter_state s WHERE s.key = ANY (changed_keys) ORDER BY s.key FOR UPDATE;
    UPDATE limiter_state s SET level = CASE
        WHEN c.change > 0 THEN greatest(s.level, least(c.cap * 60000000, s.level + c.change * 60000000))
        ELSE least(s.level, greatest(-c.cap * 60000000, s.level + c.change * 60000000)) END
    FROM unnest(changed_keys, changes, caps) AS c (key, change, cap) WHERE s.key = c.key;
    RETURN cardinality(open_requests);
END $$;

-- Let reservations lapse whose lease ran out: tokens go back, and the place among the requests of the minute of what no
-- worker has started. Delete what nobody will close any more: lapsed ones long after any request has ended, and settled
-- ones whose bill never came. Returns how many lapsed.
CREATE OR REPLACE FUNCTION expire_leases(p_rows_max integer) RETURNS integer
    LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    now_at       timestamptz := lease_now();
    ended        uuid[];
    lapsed       integer;
    refund_keys  text[];
    refunds      bigint[];
    caps         bigint[];
BEGIN
    SELECT coalesce(array_agg(v.request_id), '{}') INTO ended
    FROM (SELECT i.request_id FROM inflight i
          WHERE i.expires_at > '-infinity' AND i.expires_at < now_at
          ORDER BY i.request_id LIMIT p_rows_max FOR UPDATE SKIP LOCKED) AS v;
    SELECT array_agg(r.key ORDER BY r.key), array_agg(least(r.amount, 2 * r.burst)::bigint ORDER BY r.key),
           array_agg(r.burst ORDER BY r.key)
    INTO refund_keys, refunds, caps
    FROM (
        SELECT b.key, max(b.burst) AS burst, sum(coalesce(b.amount, i.tokens)) AS amount
        FROM inflight i CROSS JOIN LATERAL unnest(i.keys, i.bursts, i.amounts) AS b (key, burst, amount)
        WHERE i.request_id = ANY (ended) AND i.state <> 'settled'
          AND (b.key NOT LIKE '%/requests' OR i.state = 'queued')
        GROUP BY b.key) AS r
    WHERE r.amount > 0;
    DELETE FROM inflight i WHERE i.request_id = ANY (ended) AND i.state = 'settled';
    UPDATE inflight i
    SET expires_at = '-infinity',
        amounts = (SELECT coalesce(array_agg(
                              CASE WHEN b.key LIKE '%/requests' AND i.state = 'running' THEN b.amount ELSE 0 END ORDER BY b.place), '{}')
                   FROM unnest(i.keys, i.amounts) WITH ORDINALITY AS b (key, amount, place))
    WHERE i.request_id = ANY (ended);
    GET DIAGNOSTICS lapsed = ROW_COUNT;
    PERFORM FROM limiter_state s WHERE s.key = ANY (refund_keys) ORDER BY s.key FOR UPDATE;
    UPDATE limiter_state s SET level = greatest(s.level, least(r.cap * 60000000, s.level + r.refund * 60000000))
    FROM unnest(refund_keys, refunds, caps) AS r (key, refund, cap) WHERE s.key = r.key;
    DELETE FROM inflight i WHERE i.request_id IN (
        SELECT o.request_id FROM inflight o
        WHERE o.expires_at = '-infinity' AND o.admitted_at < clock_timestamp() - interval '2 hours'
        ORDER BY o.request_id LIMIT p_rows_max FOR UPDATE SKIP LOCKED);
    RETURN lapsed;
END $$;
