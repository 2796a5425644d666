-- The table of onelane/core/sqlbackend on PostgreSQL 9.6 or later.
-- Names and owners are binary: with a collation "k" and "K " would be one key. Times are microseconds since 1970 in UTC,
-- by the database's clock.

-- The locks. state: 0 free, 1 held, 2 sealed. After expires_at a held key is orphaned for the time in
-- orphan. waited: somebody waits for a NOTIFY.
CREATE TABLE IF NOT EXISTS onelane_locks (
  name          BYTEA    NOT NULL PRIMARY KEY,
  state         SMALLINT NOT NULL,
  owner         BYTEA    NOT NULL,
  token         BIGINT   NOT NULL,
  fence         BIGINT   NOT NULL,
  value         BYTEA    NULL,
  acquired_at   BIGINT   NOT NULL,
  expires_at    BIGINT   NOT NULL,
  orphan        BIGINT   NOT NULL DEFAULT 0,
  waited        BOOLEAN  NOT NULL DEFAULT FALSE
);
