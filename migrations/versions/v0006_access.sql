-- Who may call, in full: keys that rotate, models that are granted, uses by day, what administrators did, and the
-- answers that a repeated call of theirs gets again.

-- Some clients send fields that nobody has documented; a tenant of theirs may ask that they be skipped.
ALTER TABLE tenants ADD COLUMN ignore_unknown_fields boolean NOT NULL DEFAULT false;

-- A rotation changes the secret and nothing else: quotas, budgets and bills stay with the row. The secret before it
-- works until `former_until`. Null lists allow everything, empty ones nothing.
ALTER TABLE api_keys
    DROP CONSTRAINT api_keys_scopes_known,
    ADD CONSTRAINT api_keys_scopes_known
        CHECK (scopes <@ '{inference,admin,admin:read}' AND cardinality(scopes) > 0),
    ADD COLUMN former_digest bytea CONSTRAINT api_keys_former_digest_length CHECK (octet_length(former_digest) = 32),
    ADD COLUMN former_until timestamptz,
    ADD COLUMN models uuid[] CONSTRAINT api_keys_models_whole CHECK (array_position(models, NULL) IS NULL),
    ADD COLUMN networks cidr[] CONSTRAINT api_keys_networks_whole CHECK (array_position(networks, NULL) IS NULL),
    ADD CONSTRAINT api_keys_former_whole CHECK ((former_digest IS NULL) = (former_until IS NULL));

-- An open model is everybody's; a granted one is for tenants that have a grant of their own or by their plan. Taking
-- the last grant away therefore closes it and never opens it.
ALTER TABLE models
    ADD COLUMN access text NOT NULL DEFAULT 'open' CONSTRAINT models_access_known CHECK (access IN ('open', 'granted'));

CREATE TABLE model_grants (
    id         uuid CONSTRAINT model_grants_pk PRIMARY KEY DEFAULT gen_random_uuid(),
    model_id   uuid NOT NULL CONSTRAINT model_grants_model_fk REFERENCES models (id) ON DELETE CASCADE,
    plan_id    uuid CONSTRAINT model_grants_plan_fk REFERENCES plans (id) ON DELETE CASCADE,
    tenant_id  uuid CONSTRAINT model_grants_tenant_fk REFERENCES tenants (id) ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT model_grants_one_scope CHECK (num_nonnulls(plan_id, tenant_id) = 1),
    CONSTRAINT model_grants_unique UNIQUE NULLS NOT DISTINCT (model_id, plan_id, tenant_id)
);

-- Apart from api_keys, so that a use is no change that gateways have to read.
CREATE TABLE key_uses (
    api_key_id   uuid CONSTRAINT key_uses_pk PRIMARY KEY
                 CONSTRAINT key_uses_key_fk REFERENCES api_keys (id) ON DELETE CASCADE,
    last_used_on date NOT NULL
);

-- What was changed, by whom and from where; written in the transaction of the change. Never a secret.
CREATE TABLE audit_log (
    id          bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT audit_log_pk PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor       text NOT NULL, -- key:<public id>, cli:<user>, system
    actor_ip    inet,
    action      text NOT NULL, -- create, update, rotate, ...
    object_type text NOT NULL,
    object_id   text NOT NULL,
    before      jsonb,
    after       jsonb,
    request_id  uuid -- the response's x-request-id
);
CREATE INDEX audit_log_object ON audit_log (object_type, object_id, id);
CREATE INDEX audit_log_actor ON audit_log (actor, id);

CREATE FUNCTION refuse_rewriting() RETURNS trigger
    LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_rewriting();

-- Answers to calls that carried an Idempotency-Key, written in the transaction of the change they tell of: a row is
-- there if and only if the change is. Secrets that were shown once are not in `body`.
CREATE TABLE idempotent_answers (
    tenant_id   uuid NOT NULL,
    key         text NOT NULL CONSTRAINT idempotent_answers_key_length CHECK (length(key) BETWEEN 1 AND 255),
    fingerprint bytea NOT NULL,
    status      smallint NOT NULL,
    body        bytea NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT idempotent_answers_pk PRIMARY KEY (tenant_id, key)
);
CREATE INDEX idempotent_answers_age ON idempotent_answers (created_at);

CREATE TRIGGER models_changed AFTER INSERT OR UPDATE OR DELETE ON models FOR EACH STATEMENT EXECUTE FUNCTION config_changed();
CREATE TRIGGER models_emptied AFTER TRUNCATE ON models FOR EACH STATEMENT EXECUTE FUNCTION config_changed();
CREATE TRIGGER model_grants_changed AFTER INSERT OR UPDATE OR DELETE ON model_grants FOR EACH ROW EXECUTE FUNCTION config_changed('tenant_id');
CREATE TRIGGER model_grants_emptied AFTER TRUNCATE ON model_grants FOR EACH STATEMENT EXECUTE FUNCTION config_changed();

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'forebay_app') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON model_grants, idempotent_answers TO forebay_app;
        GRANT SELECT, INSERT, UPDATE ON key_uses TO forebay_app;
        GRANT UPDATE (access) ON models TO forebay_app;
        GRANT SELECT, INSERT ON audit_log TO forebay_app;
    END IF;
END $$;
