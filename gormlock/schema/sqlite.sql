-- The tables of onelane/gormlock on SQLite 3.24 or later.
-- Names and owners are binary: with a collation "k" and "K " would be one key. Times are microseconds since 1970 in UTC,
-- by the database's clock.

-- The largest fencing token that has registered under each key (Fenced).
CREATE TABLE IF NOT EXISTS onelane_fences (
  name          BLOB     NOT NULL PRIMARY KEY,
  token         INTEGER  NOT NULL,
  owner         BLOB     NOT NULL,
  registered_at INTEGER  NOT NULL
);

-- What has been done once, with its result (Once).
CREATE TABLE IF NOT EXISTS onelane_once (
  name          BLOB     NOT NULL PRIMARY KEY,
  attempt       BLOB     NOT NULL,
  fingerprint   BLOB     NULL,
  result        BLOB     NULL,
  created_at    INTEGER  NOT NULL
);
CREATE INDEX IF NOT EXISTS onelane_once_created_at ON onelane_once (created_at);
