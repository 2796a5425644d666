package core

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// recordKept is how long the record of a job's last slot stays. Its age is recordKept minus what is
// left of it, by the backend's clock. It is never changed, since the age would change, too.
const recordKept = 3 * 366 * 24 * time.Hour

// record is the last slot of a job. It is a seal, whose value has a number that goes up with each slot.
// After it come how long after its time the slot was recorded, an id, and the instance that ran the slot. It
// is written under the lock of the job. One call of Every uses it.
//
// A seal cannot be replaced in one step, so two keys take turns, and the larger number counts. A process
// that stood still may unseal a key later than another one sealed it. Then the slot before counts, and runs
// are still due at the same times.
type record struct {
	locker *Locker
	keys   [2]string
	newest int   // which key has the record
	number int64 // of the record, or 0 if there is none

	// When this process first saw the record with that id, and its age then. A backend that does not
	// count for a moment, or sets its clock back, cannot make it younger.
	id  string
	at  time.Time
	age time.Duration
}

// read returns when the last slot was due, by this process's monotonic clock.
func (r *record) read(ctx context.Context) (due time.Time, found bool, err error) {
	var late, left time.Duration
	var id string
	var asked time.Time
	r.number = 0
	for i, key := range r.keys {
		began := time.Now()
		st, err := r.locker.Inspect(ctx, key)
		if err != nil {
			return due, false, err
		}
		if st.Status != Sealed {
			continue
		}
		var number, after int64
		var text string
		if _, err := fmt.Sscan(string(st.Value), &number, &after, &text); err != nil || number < 1 {
			return due, false, fmt.Errorf("core: key %q: the value is no record of a job; unseal the key to let the job begin anew", key)
		}
		if number > r.number {
			r.newest, r.number = i, number
			asked, id, late, left = began, text, time.Duration(after)*time.Microsecond, st.ExpiresIn
		}
	}
	if r.number == 0 {
		return due, false, nil
	}
	age := max(recordKept-left, 0)
	if r.id == id {
		age = max(age, r.age+asked.Sub(r.at))
	} else {
		r.id, r.at, r.age = id, asked, age
	}
	return asked.Add(-age - late), true, nil
}

// write replaces the record while k is held, even if ctx is done. It tries again as long as it can: a
// slot that ran and is not recorded runs again. If ctx is done, only outages are worth another try.
func (r *record) write(caller context.Context, k *Lock, due time.Time, as AcquireOption) error {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(caller))
	defer cancel(nil)
	k.OnLoss(cancel)
	pauses := backoff{jitter: r.locker.chance.jitter}
	for {
		err := r.replace(ctx, due, as)
		if over := k.Err(); over != nil && err != nil {
			return fmt.Errorf("the slot is not recorded and may run again: %w: %w", over, err)
		}
		u, outage := errors.AsType[*UnavailableError](err)
		if err == nil || caller.Err() != nil && (!outage || u.Permanent) {
			return err
		}
		r.locker.logger.Warn("core: a slot of a job ran and cannot be recorded; it is tried again while the job's lock is held; look at the error",
			"key", r.keys[0], "error", err)
		select {
		case <-time.After(pauses.unavailable()):
		case <-ctx.Done():
		}
	}
}

// replace makes one attempt to write. If the process dies in the middle, the record before counts.
func (r *record) replace(ctx context.Context, due time.Time, as AcquireOption) error {
	next := 1 - r.newest
	if err := r.locker.Unseal(ctx, r.keys[next]); err != nil {
		return err
	}
	k, err := r.locker.Acquire(ctx, r.keys[next], as)
	if err != nil {
		return err
	}
	id, sealing := rand.Text(), time.Now()
	value := fmt.Sprintf("%d %d %s %s", r.number+1, sealing.Sub(due).Microseconds(), id, r.locker.instance)
	if err := k.Seal(ctx, []byte(value), recordKept); err != nil {
		return errors.Join(err, k.Release(ctx))
	}
	r.newest, r.number = next, r.number+1
	r.id, r.at, r.age = id, sealing, 0
	return nil
}

const outcomeSucceeded = "succeeded"

// jobMetrics are the instruments of one job.
type jobMetrics struct {
	duration metric.Float64Histogram
	outcomes map[string]labels
	skipped  metric.Int64Counter
	job      metric.AddOption
}

func newJobMetrics(c *config, name string) (m jobMetrics, err error) {
	job := attribute.String("onelane.job", name)
	m.outcomes = each("onelane.outcome", []attribute.KeyValue{job}, outcomeSucceeded, outcomeFailed, outcomeCancelled, outcomeLost)
	m.job = metric.WithAttributeSet(attribute.NewSet(job))
	var failed error
	m.duration, err = c.meter().Float64Histogram("onelane.every.duration", metric.WithUnit("s"),
		metric.WithDescription("How long the runs of a job took."),
		metric.WithExplicitBucketBoundaries(.01, .1, 1, 10, 30, 60, 300, 900, 3600, 14400))
	m.skipped, failed = c.meter().Int64Counter("onelane.every.skipped", metric.WithUnit("{slot}"),
		metric.WithDescription("Slots of a job that had no run of their own."))
	return m, errors.Join(err, failed)
}

func (m jobMetrics) ran(outcome string, d time.Duration) {
	m.duration.Record(context.Background(), d.Seconds(), m.outcomes[outcome].record...)
}
