package gormlock

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"gorm.io/gorm"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/internal/gormkeys"
)

// Once runs fn in a transaction that is committed at most once for key, and returns its result.
// Later callers with that key get the same result, and fn does not run. The result is stored as
// JSON in the same transaction as the writes of fn. So the process may die before it answers, and
// Redis may lose its data.
//
//	receipt, err := gormlock.Once(ctx, db, gormlock.ClaimKey(ctx, "pay"), func(tx *gorm.DB) (Receipt, error) { … })
//
// The guarantee rests on a row with the key in the table onelane_once (see [Migrate]), which the
// first statement inserts. It holds at every isolation level. Once also holds the lock on key, as
// [Transaction] does, so that callers do not wait in the database.
//
//   - All calls on a database share one space of keys, so begin each key with the name of its
//     effect. The key has 1 to 512 bytes and is compared byte by byte.
//   - A key counts as done as long as its row is there: see [Purge].
//   - If fn fails or panics, nothing is stored and the next call runs fn.
//   - After a deadlock, a serialization failure, optimistic.ErrStale or a busy SQLite, fn runs
//     again, up to ten times in all, or as [WithRetry] says. So fn must have no effect except
//     through tx.
//   - The first caller also gets the result as it was stored. A field that JSON drops is empty for
//     everybody.
//
// Errors:
//
//   - If Once cannot get the lock in time ([WithWait]), it returns the result if the key is done.
//     Otherwise the error is core's, and fn has not run.
//   - [ErrGuardTooLate]: a transaction is open.
//   - [ErrCommitUnknown]: call Once again with the same key.
//   - [ErrMismatch], [ErrUnfinished], and fn's.
func Once[T any](ctx context.Context, db *gorm.DB, key string, fn func(tx *gorm.DB) (T, error), opts ...TransactionOption) (T, error) {
	var result T
	o, err := newOnce(db, key, opts)
	if err != nil {
		return result, err
	}
	o.bind(ctx)
	stored, err := o.run(ctx, db, func(tx *gorm.DB) ([]byte, error) {
		value, err := fn(tx)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(value)
		switch {
		case err != nil:
			return nil, o.error(fmt.Errorf("the result cannot be stored: %w", err))
		case len(text) > maxOnceResult:
			return nil, o.error(fmt.Errorf("a result of %d bytes is too large, at most %d are allowed",
				len(text), maxOnceResult))
		}
		// After COMMIT it would be too late to find out.
		var trial T
		if err := json.Unmarshal(text, &trial); err != nil {
			return nil, o.error(fmt.Errorf("the result cannot be read back: %w", err))
		}
		return text, nil
	})
	if err != nil {
		return result, err
	}
	if err := json.Unmarshal(stored, &result); err != nil {
		return result, o.error(fmt.Errorf("the stored result is no %T: %w", result, err))
	}
	return result, nil
}

// ClaimKey returns a key for [Once] in a handler behind ginlock or grpclock. It is made of a name
// and the prefix of the Locker, and of the request's key, method, path and host. The name separates
// several effects of one request. Without a claim in ctx, or with one of RefuseRepeats alone, ClaimKey
// returns "", which Once refuses. In Gin pass c.Request.Context(), because a *gin.Context does not carry the
// claim.
//
// Pass the request's context to Once, too. Once then returns [ErrMismatch] if the payload or,
// without a principal, the credentials are not those of the first request. With another context,
// such as context.Background(), it does not compare them. With a [Fingerprint], Once compares that
// instead.
func ClaimKey(ctx context.Context, name string) string {
	k, ok := claim.Keyed(ctx)
	if !ok {
		return ""
	}
	whole, hashed := claimPart(k)
	key := core.Join(name) + whole
	if len(key) > maxOnceKey || !k.Plain() { // Once locks the key, too
		key = core.Join(name) + hashed
	}
	return key
}

// claimPart returns the end of the keys that ClaimKey makes of a claim. The second one is for a key
// that is too long, or that core refuses.
func claimPart(k *claim.Claim) (whole, hashed string) {
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(k.Effects())))
	return ":" + core.Join(k.Namespace(), k.Effects()), ":" + core.Join(k.Namespace(), "sha256", sum)
}

// bind takes the fingerprint of the request whose claim the key was made of. The key alone may come
// with another payload or, without a principal, from another caller.
func (o *once) bind(ctx context.Context) {
	k, ok := claim.Keyed(ctx)
	if !ok || o.fingerprint != nil {
		return
	}
	whole, hashed := claimPart(k)
	if strings.HasSuffix(o.name, whole) || strings.HasSuffix(o.name, hashed) {
		f := k.Fingerprint()
		digest := claim.Digest(f.Payload[:], f.Credentials[:])
		o.fingerprint = digest[:]
	}
}

func newOnce(db *gorm.DB, key string, opts []TransactionOption) (*once, error) {
	o := &once{guard: guardWith(opts), name: key}
	_, open := transactionOf(db.Statement.ConnPool)
	_, err := registered(db)
	switch d, wrong := gormkeys.DialectOf(db); {
	case err != nil:
	case wrong != nil:
		err = wrong
	case o.err != nil:
		err = o.err
	case db.Error != nil:
		err = db.Error
	case key == "":
		err = fmt.Errorf("%w: it is empty; ClaimKey returns an empty key if the context has no claim, or only that of RefuseRepeats: "+
			"pass the request's context, in Gin c.Request.Context(), and put ByHeader or ByKey around the handler", core.ErrInvalidKey)
	case len(key) > maxOnceKey:
		return nil, fmt.Errorf("gormlock: Once %q…: %w: it has %d bytes, at most %d are allowed",
			key[:32], core.ErrInvalidKey, len(key), maxOnceKey)
	case open:
		err = fmt.Errorf("%w: Once needs a transaction of its own; call it outside", ErrGuardTooLate)
	case db.DryRun:
		err = gorm.ErrDryRunModeUnsupported
	default:
		o.dialect = d
		return o, nil
	}
	return nil, o.error(err)
}

// Fingerprint makes [Once] refuse, with [ErrMismatch], a key that was done with other parts. Parts
// are, for example, the amount and the currency of a payment. There is at least one. Only a salted
// hash of them is stored. A run without a fingerprint is not compared, except with a key of
// [ClaimKey].
func Fingerprint(parts ...[]byte) TransactionOption {
	return transactionOption(func(g *guard) {
		digest := claim.Digest(parts...)
		g.fingerprint = digest[:]
		if len(parts) == 0 { // all calls would be the same
			g.err = errors.New("Fingerprint(): pass at least one part, or omit the option")
		}
	})
}
