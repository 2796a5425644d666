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

-- Locks that live in the database (Table). state: 0 free, 1 held, 2 sealed. After expires_at a held key is orphaned for the time in
-- orphan.
CREATE TABLE IF NOT EXISTS onelane_locks (
  name        VARBINARY(1700) NOT NULL PRIMARY KEY,
  state       SMALLINT        NOT NULL,
  owner       VARBINARY(512)  NOT NULL,
  token       BIGINT          NOT NULL,
  fence       BIGINT          NOT NULL,
  value       LONGBLOB        NULL,
  acquired_at BIGINT          NOT NULL,
  expires_at  BIGINT          NOT NULL,
  orphan      BIGINT          NOT NULL DEFAULT 0
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
