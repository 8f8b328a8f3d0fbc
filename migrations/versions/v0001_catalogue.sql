-- Who may call, what they may use, and how much of it. Every table here is cached by gateways; the triggers at the
-- end tell them of each change, whoever made it and by whatever way.

CREATE TABLE tiers (
    id   smallint CONSTRAINT tiers_pk PRIMARY KEY CONSTRAINT tiers_id_range CHECK (id BETWEEN 0 AND 9), -- 0 is the most urgent
    name text NOT NULL CONSTRAINT tiers_name_unique UNIQUE
);

CREATE TABLE plans (
    id         uuid CONSTRAINT plans_pk PRIMARY KEY DEFAULT gen_random_uuid(),
    name       text NOT NULL CONSTRAINT plans_name_unique UNIQUE
               CONSTRAINT plans_name_form CHECK (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    tier       smallint NOT NULL CONSTRAINT plans_tier_fk REFERENCES tiers (id),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE tenants (
    id         uuid CONSTRAINT tenants_pk PRIMARY KEY DEFAULT gen_random_uuid(),
    name       text NOT NULL CONSTRAINT tenants_name_unique UNIQUE
               CONSTRAINT tenants_name_form CHECK (name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    status     text NOT NULL DEFAULT 'active' CONSTRAINT tenants_status_known CHECK (status IN ('active', 'suspended')),
    plan_id    uuid NOT NULL CONSTRAINT tenants_plan_fk REFERENCES plans (id),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE api_keys (
    id            uuid CONSTRAINT api_keys_pk PRIMARY KEY DEFAULT gen_random_uuid(),
    public_id     text NOT NULL CONSTRAINT api_keys_public_id_unique UNIQUE
                  CONSTRAINT api_keys_public_id_form CHECK (public_id ~ '^[0-9a-z]{12}$'),
    tenant_id     uuid NOT NULL CONSTRAINT api_keys_tenant_fk REFERENCES tenants (id),
    env           text NOT NULL CONSTRAINT api_keys_env_form CHECK (env ~ '^[a-z]{1,8}$'),
    secret_digest bytea NOT NULL CONSTRAINT api_keys_digest_length CHECK (octet_length(secret_digest) = 32),
    last4         text NOT NULL,
    name          text NOT NULL DEFAULT '',
    scopes        text[] NOT NULL DEFAULT '{inference}'
                  CONSTRAINT api_keys_scopes_known CHECK (scopes <@ '{inference,admin}' AND cardinality(scopes) > 0),
    expires_at    timestamptz,
    revoked_at    timestamptz,
    created_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX api_keys_tenant ON api_keys (tenant_id);

-- A plan's quota holds for each of its tenants unless the tenant has its own of that metric. A key's quota holds
-- besides the tenant's. No row and null are unlimited; 0 refuses everything. The upper bound keeps the limiter's
-- arithmetic inside a bigint (amounts times 60,000,000, see 0002).
CREATE TABLE quotas (
    id         uuid CONSTRAINT quotas_pk PRIMARY KEY DEFAULT gen_random_uuid(),
    plan_id    uuid CONSTRAINT quotas_plan_fk REFERENCES plans (id) ON DELETE CASCADE,
    tenant_id  uuid CONSTRAINT quotas_tenant_fk REFERENCES tenants (id) ON DELETE CASCADE,
    api_key_id uuid CONSTRAINT quotas_key_fk REFERENCES api_keys (id) ON DELETE CASCADE,
    metric     text NOT NULL CONSTRAINT quotas_metric_known CHECK (metric IN ('rpm', 'tpm', 'max_context')),
    allowed    bigint CONSTRAINT quotas_allowed_range CHECK (allowed BETWEEN 0 AND 10000000000),
    burst      bigint CONSTRAINT quotas_burst_range CHECK (burst BETWEEN 1 AND 10000000000), -- null: one minute's worth
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT quotas_one_scope CHECK (num_nonnulls(plan_id, tenant_id, api_key_id) = 1),
    CONSTRAINT quotas_scope_metric_unique UNIQUE NULLS NOT DISTINCT (plan_id, tenant_id, api_key_id, metric)
);
CREATE INDEX quotas_tenant ON quotas (tenant_id) WHERE tenant_id IS NOT NULL;
CREATE INDEX quotas_key ON quotas (api_key_id) WHERE api_key_id IS NOT NULL;

CREATE TABLE models (
    id             uuid CONSTRAINT models_pk PRIMARY KEY DEFAULT gen_random_uuid(),
    alias          text NOT NULL CONSTRAINT models_alias_unique UNIQUE,
    context_length integer NOT NULL CONSTRAINT models_context_positive CHECK (context_length > 0),
    vocab_size     integer NOT NULL CONSTRAINT models_vocab_positive CHECK (vocab_size > 0),
    card           text NOT NULL, -- digest of the model card that first announced it
    created_at     timestamptz NOT NULL DEFAULT now()
);

-- Append-only. A reader asks for rows with xid >= the oldest transaction that was still open at its last look, and
-- so misses none that commits late; writers never wait for each other as they would on a version row.
CREATE TABLE config_changes (
    id         bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT config_changes_pk PRIMARY KEY,
    tenant_id  uuid, -- null: may concern every tenant
    xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    changed_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX config_changes_xid ON config_changes (xid);

-- The trigger's argument is the column that names the tenant; null there, or no such column, means every tenant.
CREATE FUNCTION config_changed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
BEGIN
    IF TG_LEVEL = 'STATEMENT' THEN
        INSERT INTO config_changes (tenant_id) VALUES (NULL);
    ELSE
        INSERT INTO config_changes (tenant_id)
        SELECT DISTINCT (version.data ->> TG_ARGV[0])::uuid
        FROM (VALUES (to_jsonb(OLD)), (to_jsonb(NEW))) AS version (data)
        WHERE version.data IS NOT NULL;
    END IF;
    RETURN NULL;
END $$;

-- Rows older than any reader's memory: one that was away longer reads everything again.
CREATE FUNCTION prune_config_changes() RETURNS void
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
    DELETE FROM config_changes WHERE changed_at < now() - interval '1 day'
$$;

CREATE TRIGGER tiers_changed AFTER INSERT OR UPDATE OR DELETE ON tiers FOR EACH STATEMENT EXECUTE FUNCTION config_changed();
CREATE TRIGGER plans_changed AFTER INSERT OR UPDATE OR DELETE ON plans FOR EACH STATEMENT EXECUTE FUNCTION config_changed();
CREATE TRIGGER tenants_changed AFTER INSERT OR UPDATE OR DELETE ON tenants FOR EACH ROW EXECUTE FUNCTION config_changed('id');
CREATE TRIGGER api_keys_changed AFTER INSERT OR UPDATE OR DELETE ON api_keys FOR EACH ROW EXECUTE FUNCTION config_changed('tenant_id');
CREATE TRIGGER quotas_changed AFTER INSERT OR UPDATE OR DELETE ON quotas FOR EACH ROW EXECUTE FUNCTION config_changed('tenant_id');
CREATE TRIGGER tiers_emptied AFTER TRUNCATE ON tiers FOR EACH STATEMENT EXECUTE FUNCTION config_changed();
CREATE TRIGGER plans_emptied AFTER TRUNCATE ON plans FOR EACH STATEMENT EXECUTE FUNCTION config_changed();
CREATE TRIGGER tenants_emptied AFTER TRUNCATE ON tenants FOR EACH STATEMENT EXECUTE FUNCTION config_changed();
CREATE TRIGGER api_keys_emptied AFTER TRUNCATE ON api_keys FOR EACH STATEMENT EXECUTE FUNCTION config_changed();
CREATE TRIGGER quotas_emptied AFTER TRUNCATE ON quotas FOR EACH STATEMENT EXECUTE FUNCTION config_changed();

-- One plan without quotas for each tier, so that a first tenant needs no plan of its own.
INSERT INTO tiers (id, name) VALUES (0, 'interactive'), (1, 'standard'), (2, 'economy');
INSERT INTO plans (name, tier) VALUES ('interactive', 0), ('standard', 1), ('economy', 2);
