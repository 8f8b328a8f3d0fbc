-- The moments that gateways decide by lie between 1970 and 9999. Postgres holds others, infinity among them, and no
-- program here can: a key with one was a fault at each of its requests, and one such price kept all others from being
-- read. What is forever says null. Rows that hold one are put right here, with the same meaning.
UPDATE api_keys SET expires_at = NULL WHERE expires_at >= '9999-01-01 00:00:00+00';
UPDATE api_keys SET expires_at = 'epoch' WHERE expires_at < 'epoch';
UPDATE api_keys SET revoked_at = 'epoch' WHERE revoked_at < 'epoch' OR revoked_at >= '9999-01-01 00:00:00+00';
UPDATE api_keys SET former_until = 'epoch' WHERE former_until < 'epoch';
UPDATE api_keys SET former_until = '9998-12-31 00:00:00+00' WHERE former_until >= '9999-01-01 00:00:00+00';
ALTER TABLE api_keys
    ADD CONSTRAINT api_keys_expires_at_range CHECK (expires_at >= 'epoch' AND expires_at < '9999-01-01 00:00:00+00'),
    ADD CONSTRAINT api_keys_revoked_at_range CHECK (revoked_at >= 'epoch' AND revoked_at < '9999-01-01 00:00:00+00'),
    ADD CONSTRAINT api_keys_former_until_range CHECK (former_until >= 'epoch' AND former_until < '9999-01-01 00:00:00+00');

DELETE FROM prices WHERE valid_to <= 'epoch' OR valid_from >= '9999-01-01 00:00:00+00';
UPDATE prices SET valid_from = 'epoch' WHERE valid_from < 'epoch';
UPDATE prices SET valid_to = NULL WHERE valid_to >= '9999-01-01 00:00:00+00';
ALTER TABLE prices
    ADD CONSTRAINT prices_valid_from_range CHECK (valid_from >= 'epoch' AND valid_from < '9999-01-01 00:00:00+00'),
    ADD CONSTRAINT prices_valid_to_range CHECK (valid_to < '9999-01-01 00:00:00+00');
