-- A reservation that used nothing and was never started is over: no bill comes for most of them (what load or a fault
-- refused after it was reserved, an admission in doubt), and one that comes has nothing to close. Their rows stood for
-- a day, and each admission under a budget went through all of its tenant's: 100,000 of them, which a failing pool
-- leaves in minutes, made it 80 ms instead of 0.5. As in 0008 but for that.
CREATE OR REPLACE FUNCTION settle(p_requests uuid[], p_tokens_used bigint[], p_costs_micro bigint[]) RETURNS integer
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
    IF 0 = ANY (tokens_used) THEN
        DELETE FROM inflight i USING unnest(open_requests, tokens_used) AS u (request_id, tokens)
        WHERE i.request_id = u.request_id AND i.state = 'queued' AND u.tokens = 0;
    END IF;
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
