package core

import (
	"math/rand/v2"
	"time"

	"github.com/onelane/onelane/internal/ownertext"
)

const (
	firstPause   = 2 * time.Millisecond
	longestPause = 64 * time.Millisecond
	// longestSignal is the longest pause of a waiter that is signaled. It covers lost signals.
	longestSignal = time.Second

	// A polling waiter often misses the gap between two holders. After hungryAfter without a turn
	// it looks every hungryPause.
	hungryAfter = time.Second
	hungryPause = 8 * time.Millisecond

	firstOutagePause   = 20 * time.Millisecond
	longestOutagePause = 500 * time.Millisecond
)

// backoff decides how long a waiter pauses between two tries. All but jitter begins at zero.
type backoff struct {
	jitter func(time.Duration) time.Duration
	spread int // a factor, for a waiter that is one of many; 0 is 1

	// The last pause of each kind.
	poll, contested, outage time.Duration

	holder string
	began  time.Time // of the polling, or since one holder holds for long
	turned time.Time // when the holder changed
}

// longer doubles a pause within bounds.
func longer(pause, first, longest time.Duration) time.Duration {
	return min(max(2*pause, first), longest)
}

// taken returns the pause after the key was found taken.
func (b *backoff) taken(t *TakenError, signaled bool) time.Duration {
	b.outage = 0
	if t.Contested {
		// Perhaps nobody holds the key, and then no release will be signaled.
		b.contested = longer(b.contested, firstPause, longestPause)
		return b.jitter(b.contested)
	}
	b.contested = 0
	pause := longestSignal
	foreign := t.Holder != "" && !ownertext.Ours(t.Holder) // redsync and others signal no release
	if foreign || !signaled {
		pause = b.nextPoll(t.Holder)
	}
	pause = b.jitter(pause * time.Duration(max(b.spread, 1)))
	if t.RetryAfter > 0 && t.RetryAfter < pause {
		return t.RetryAfter
	}
	return pause
}

func (b *backoff) nextPoll(holder string) time.Duration {
	now := time.Now()
	if b.began.IsZero() {
		b.began = now
	}
	if holder != b.holder {
		b.holder, b.turned = holder, now
	} else if now.Sub(b.turned) > hungryAfter {
		b.began = now // one holder holds for long: no gap is missed
	}
	if now.Sub(b.began) > hungryAfter {
		return hungryPause
	}
	b.poll = longer(b.poll, firstPause, longestPause)
	return b.poll
}

// unavailable returns the pause after the backend did not answer.
func (b *backoff) unavailable() time.Duration {
	b.outage = longer(b.outage, firstOutagePause, longestOutagePause)
	return b.jitter(b.outage)
}

// jitter spreads d over half of it to one and a half.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d/2 + rand.N(d)
}
