-- The tables of onelane/gormlock on PostgreSQL 9.6 or later.
-- Names and owners are binary: with a collation "k" and "K " would be one key. Times are microseconds since 1970 in UTC,
-- by the database's clock.

-- The largest fencing token that has registered under each key (Fenced).
CREATE TABLE IF NOT EXISTS onelane_fences (
  name          BYTEA    NOT NULL PRIMARY KEY,
  token         BIGINT   NOT NULL,
  owner         BYTEA    NOT NULL,
  registered_at BIGINT   NOT NULL
);

-- What has been done once, with its result (Once).
CREATE TABLE IF NOT EXISTS onelane_once (
  name          BYTEA    NOT NULL PRIMARY KEY,
  attempt       BYTEA    NOT NULL,
  fingerprint   BYTEA    NULL,
  result        BYTEA    NULL,
  created_at    BIGINT   NOT NULL
);
CREATE INDEX IF NOT EXISTS onelane_once_created_at ON onelane_once (created_at);
