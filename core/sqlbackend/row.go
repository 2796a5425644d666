package sqlbackend

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/leases"
	"github.com/onelane/onelane/internal/sqltable"
)

// The limits of the columns of onelane_locks: a core key of 512 bytes with a prefix of 128, every
// byte escaped.
const (
	maxKey   = 1700
	maxOwner = 512
	maxValue = 16 << 20 // core's limit
)

const (
	tokens    = 64 // fencing tokens reserved for a lease
	takeTries = 5
)

// The values of the column state.
const (
	rowHeld   = 1 // orphaned from expires_at on, for as long as orphan says; then free
	rowSealed = 2
)

// The statements. All times are microseconds by the database's clock: no client's clock is among
// the arguments. A row that is taken keeps its fence, which only grows. MySQL assigns from left to
// right, so no expression reads a column that was assigned before it.
const (
	readRow = `SELECT state, owner, token, CASE WHEN state = 2 THEN value END, orphan, expires_at - {now}, {waited}
FROM onelane_locks WHERE name = ?`

	insertRow = `INSERT INTO onelane_locks (name, state, owner, token, fence, acquired_at, expires_at, orphan)
VALUES (?, 1, ?, {start}, {start} + 63, {now}, {now} + ?, ?) {conflict}`

	takeRow = `UPDATE onelane_locks SET state = 1, owner = ?, token = {greatest}(fence + 1, {start}), fence = {greatest}(fence + 1, {start}) + 63,
value = NULL, acquired_at = {now}, expires_at = {now} + ?, orphan = ?{unwaited}
WHERE name = ? AND (state = 0 OR expires_at + orphan <= {now} OR state = 1 AND expires_at <= {now} AND owner = ?)`

	whileHeld     = ` WHERE name = ? AND owner = ? AND state = 1 AND expires_at > {now}`
	untilOrphaned = ` WHERE name = ? AND owner = ? AND state = 1 AND expires_at + orphan > {now}`

	extendRow  = `UPDATE onelane_locks SET expires_at = {greatest}(expires_at, {now} + ?)` + whileHeld
	orphanRow  = `UPDATE onelane_locks SET expires_at = {now}` + whileHeld
	releaseRow = `UPDATE onelane_locks SET state = 0, orphan = 0` + untilOrphaned
	sealRow    = `UPDATE onelane_locks SET state = 2, token = ?, value = ?, expires_at = {now} + ?, orphan = 0` + untilOrphaned
	unsealRow  = `UPDATE onelane_locks SET state = 0, value = NULL, orphan = 0
WHERE name = ? AND (state = 2 OR state = 1 AND expires_at <= {now})`

	// markRow asks for a NOTIFY when the key may be free. Without the mark there is none, because a
	// transaction with a NOTIFY makes others wait for its COMMIT.
	markRow = `UPDATE onelane_locks SET waited = TRUE WHERE name = ? AND state <> 0 AND NOT waited`

	notify = `WITH changed AS (%s RETURNING waited)
SELECT CASE WHEN waited THEN CAST(pg_notify('onelane_locks', ?) AS text) END FROM changed`
)

// sqlOf writes a statement for the database. Only PostgreSQL has the column waited, and a clock that
// may go back within a statement: {start} is the same time in all of it.
func sqlOf(d sqltable.Dialect, statement string) string {
	waited, unwaited, start := "0", "", "{now}"
	if d.Name == sqltable.Postgres {
		waited, unwaited = "waited", ", waited = FALSE"
		start = "CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT)"
	}
	return d.SQL(strings.NewReplacer("{waited}", waited, "{unwaited}", unwaited, "{start}", start).Replace(statement))
}

// row is what the table says about a key now.
type row struct {
	missing bool // there is no row
	status  core.Status
	owner   string // of the lease, the orphan or the seal
	token   int64
	value   []byte
	left    time.Duration // of the lease, the orphan or the seal
	since   time.Time     // when an orphan's lease ended
	asked   time.Time     // before the row was read
	waited  bool          // there will be a NOTIFY
}

// row reads a key from the primary: a replica may lag behind.
func (b *backend) row(ctx context.Context, key string) (row, error) {
	var r row
	d, err := b.dialect(ctx)
	if err != nil {
		return r, unavailable(key, err)
	}
	query := sqlOf(d, d.AtWriter(readRow, "onelane_locks"))
	err = sqltable.Retry(ctx, func() error {
		var state, orphan, left int64
		var owner []byte
		r = row{asked: time.Now()}
		err := b.db.QueryRowContext(ctx, query, []byte(key)).Scan(&state, &owner, &r.token, &r.value, &orphan, &left, &r.waited)
		if errors.Is(err, sql.ErrNoRows) {
			r = row{missing: true}
			return nil
		}
		r.owner = string(owner)
		r.decide(state, duration(left), duration(orphan))
		return err
	})
	if err != nil {
		return r, unavailable(key, fmt.Errorf("reading onelane_locks, which sqlbackend.Migrate makes: %w", err))
	}
	return r, nil
}

// decide sets the status from what is left of the lease or seal, which is negative if it ended.
func (r *row) decide(state int64, left, orphan time.Duration) {
	switch {
	case state == rowSealed && left > 0:
		r.status, r.left = core.Sealed, left
	case state == rowHeld && left > 0:
		r.status, r.left = core.Held, left
	case state == rowHeld && left+orphan > 0:
		r.status, r.left, r.since = core.Orphaned, left+orphan, time.Now().Add(left)
	}
}

// deadline is until when the lease of the row is certain to be valid.
func (r row) deadline() time.Time { return leases.Deadline(r.asked, r.left) }

// ownedBy reports whether the key has one of the statuses in the owner's name.
func (r row) ownedBy(owner string, statuses ...core.Status) bool {
	return r.owner == owner && slices.Contains(statuses, r.status)
}

// exec returns how many rows were changed. MySQL may or may not count a row that was found and
// stays as it is. After a statement that may free the key, PostgreSQL notifies the waiters.
func (b *backend) exec(ctx context.Context, key, statement string, args ...any) (n int64, err error) {
	d, err := b.dialect(ctx)
	if err != nil {
		return 0, err
	}
	if d.Name == sqltable.Postgres && slices.Contains([]string{orphanRow, releaseRow, sealRow, unsealRow}, statement) {
		statement, args = fmt.Sprintf(notify, statement), append(args, note(key))
	}
	err = sqltable.Retry(ctx, func() error {
		result, err := b.db.ExecContext(ctx, sqlOf(d, statement), args...)
		if err != nil {
			return err
		}
		n, err = result.RowsAffected()
		return err
	})
	return n, err
}

// unavailable returns the error of a call that failed. A database of another kind is no outage: trying
// again would not help.
func unavailable(key string, err error) error {
	if errors.Is(err, errUnknown) {
		return err
	}
	return &core.UnavailableError{Key: key, Nodes: []error{err}}
}

func duration(micros int64) time.Duration { return time.Duration(micros) * time.Microsecond }
