-- Group roles for whoever runs the programs. Roles belong to the whole cluster and making them needs a privilege that
-- the owner of one database may lack: then they are left to the operator, and the grants apply to those that exist.
DO $$
DECLARE
    role text;
BEGIN
    IF NOT (SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user) THEN
        RAISE NOTICE 'no privilege to create roles; forebay_app, forebay_billing and forebay_migrate are not made';
        RETURN;
    END IF;
    FOREACH role IN ARRAY ARRAY['forebay_app', 'forebay_billing', 'forebay_migrate'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL; -- another database of this cluster was quicker
            END;
        END IF;
    END LOOP;
END $$;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'forebay_app') THEN
        GRANT USAGE ON SCHEMA public TO forebay_app;
        GRANT SELECT ON alembic_version, tiers, config_changes TO forebay_app;
        GRANT SELECT, INSERT, UPDATE, DELETE ON plans, tenants, api_keys, quotas TO forebay_app;
        GRANT SELECT, INSERT ON models, usage_events, usage_rejected TO forebay_app;
        GRANT SELECT, INSERT, UPDATE, DELETE ON limiter_state, inflight, gateways TO forebay_app;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'forebay_billing') THEN
        GRANT USAGE ON SCHEMA public TO forebay_billing;
        GRANT SELECT ON usage_events, usage_rejected, tenants, plans, tiers, models TO forebay_billing;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'forebay_migrate') THEN
        GRANT USAGE, CREATE ON SCHEMA public TO forebay_migrate;
    END IF;
END $$;
