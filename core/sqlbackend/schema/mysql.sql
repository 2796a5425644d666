-- The table of onelane/core/sqlbackend on MariaDB 10.3 and MySQL 5.7, or later.
-- Names and owners are binary: with a collation "k" and "K " would be one key. Times are microseconds since 1970 in UTC,
-- by the database's clock.

-- The locks. state: 0 free, 1 held, 2 sealed. After expires_at a held key is orphaned for the time in
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
