package gormlock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/onelane/onelane/core"
)

// What fits into the columns of onelane_locks: a core key of 512 bytes with a prefix of 128, every byte escaped.
const (
	maxTableKey = 1700
	maxOwner    = 512
)

// The statements. All times are the database's own: no clock of a client is among the arguments. A row that is to be
// taken keeps its fence, which only grows; MySQL assigns from left to right, so no expression reads an earlier column.
const (
	readRow = `SELECT CASE WHEN expires_at > {now} THEN state ELSE 0 END, owner, token,
CASE WHEN state = 2 AND expires_at > {now} THEN value END, expires_at - {now} FROM onelane_locks WHERE name = ?`

	insertRow = `INSERT INTO onelane_locks (name, state, owner, token, fence, acquired_at, expires_at)
VALUES (?, 1, ?, {now}, {now} + 63, {now}, {now} + ?) {conflict}`

	takeRow = `UPDATE onelane_locks SET state = 1, owner = ?, token = {greatest}(fence + 1, {now}), fence = {greatest}(fence + 1, {now}) + 63,
value = NULL, acquired_at = {now}, expires_at = {now} + ? WHERE name = ? AND (state = 0 OR expires_at <= {now})`

	whileHeld = ` WHERE name = ? AND owner = ? AND state = 1 AND expires_at > {now}`

	extendRow  = `UPDATE onelane_locks SET expires_at = {greatest}(expires_at, {now} + ?)` + whileHeld
	releaseRow = `UPDATE onelane_locks SET state = 0` + whileHeld
	sealRow    = `UPDATE onelane_locks SET state = 2, token = ?, value = ?, expires_at = {now} + ?` + whileHeld
	unsealRow  = `UPDATE onelane_locks SET state = 0, value = NULL WHERE name = ? AND state = 2`
)

// row is what the table says of a key now.
type row struct {
	missing bool // no row
	status  core.Status
	owner   string // of a held key
	token   int64
	value   []byte
	left    time.Duration
}

func (b *table) row(ctx context.Context, key string) (row, error) {
	var r row
	err := retry(ctx, func() error {
		var state, left int64
		var owner []byte
		r = row{}
		err := b.db.QueryRowContext(ctx, b.dialect.sql(readRow), []byte(key)).Scan(&state, &owner, &r.token, &r.value, &left)
		if errors.Is(err, sql.ErrNoRows) {
			r.missing = true
			return nil
		}
		switch state {
		case 1:
			r.status, r.owner = core.Held, string(owner)
		case 2:
			r.status = core.Sealed
		}
		r.left = max(time.Duration(left)*time.Microsecond, time.Microsecond)
		return err
	})
	if err != nil {
		return r, unavailable(key, fmt.Errorf("reading onelane_locks, which gormlock.Migrate makes: %w", err))
	}
	return r, nil
}

// exec returns how many rows were changed; on MySQL a row that was found and stays as it is may count or not.
func (b *table) exec(ctx context.Context, statement string, args ...any) (n int64, err error) {
	err = retry(ctx, func() error {
		result, err := b.db.ExecContext(ctx, b.dialect.sql(statement), args...)
		if err != nil {
			return err
		}
		n, err = result.RowsAffected()
		return err
	})
	return n, err
}

func unavailable(key string, err error) error {
	return &core.UnavailableError{Key: key, Nodes: []error{err}}
}

// micros is d as the table counts it, rounded up.
func micros(d time.Duration) int64 {
	n := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		n++
	}
	return n
}

// deadline is until when a lease granted by a statement sent then is certain to be valid: less 1 % and 2 ms for clocks
// that run at different speeds.
func deadline(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(ttl - ttl/100 - 2*time.Millisecond)
}
