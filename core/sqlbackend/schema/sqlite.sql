-- The table of onelane/core/sqlbackend on SQLite 3.24 or later.
-- Names and owners are binary: with a collation "k" and "K " would be one key. Times are microseconds since 1970 in UTC,
-- by the database's clock.

-- The locks. state: 0 free, 1 held, 2 sealed. After expires_at a held key is orphaned for the time in
-- orphan.
CREATE TABLE IF NOT EXISTS onelane_locks (
  name          BLOB     NOT NULL PRIMARY KEY,
  state         INTEGER  NOT NULL,
  owner         BLOB     NOT NULL,
  token         INTEGER  NOT NULL,
  fence         INTEGER  NOT NULL,
  value         BLOB     NULL,
  acquired_at   INTEGER  NOT NULL,
  expires_at    INTEGER  NOT NULL,
  orphan        BIGINT   NOT NULL DEFAULT 0
);
