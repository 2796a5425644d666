-- The tables of onelane/gormlock on MariaDB 10.3 and MySQL 5.7, or later.
-- Names and owners are binary: with a collation "k" and "K " would be one key. Times are microseconds since 1970 in UTC,
-- by the database's clock.

-- The largest fencing token that has registered under each key (Fenced).
CREATE TABLE IF NOT EXISTS onelane_fences (
  name          VARBINARY(512) NOT NULL PRIMARY KEY,
  token         BIGINT         NOT NULL,
  owner         VARBINARY(512) NOT NULL,
  registered_at BIGINT         NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- What has been done once, with its result (Once).
CREATE TABLE IF NOT EXISTS onelane_once (
  name        VARBINARY(512) NOT NULL PRIMARY KEY,
  attempt     VARBINARY(32)  NOT NULL,
  fingerprint VARBINARY(64)  NULL,
  result      LONGBLOB       NULL,
  created_at  BIGINT         NOT NULL,
  KEY onelane_once_created_at (created_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
