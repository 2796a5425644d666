package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A verdict is what the checker counts in histories.
type verdict struct {
	Trials int `json:"trials"`
	// Double are holders that still believed to have the lock when the next one had it.
	Double int `json:"double"`
	// Lost and LostFenced are updates that were acknowledged and are not in the counter.
	Lost       int64 `json:"lost"`
	LostFenced int64 `json:"lostFenced"`
	// Back are holders whose token is not greater than that of an earlier holder.
	Back int `json:"tokensBack"`
	// Stuck are trials in which nobody got the key within TTL and grace after the fault.
	Stuck int `json:"stuck"`
	// Longest is the longest wait of a worker that the fault did not strike.
	Longest time.Duration `json:"longestWaitNs"`
	// Free is the longest time from the fault until another worker got the key.
	Free     time.Duration `json:"longestTakeoverNs"`
	Refused  int           `json:"refusedByFence"`
	Findings []string      `json:"findings,omitempty"`
}

// check judges one history. A holder believes that it has the lock from the return of Acquire on. It
// asks the library every 2 ms, and the belief ends with the last answer that the lock is held.
func check(h history) verdict {
	v := verdict{Trials: 1, Refused: h.Refused}
	find := func(format string, args ...any) { v.Findings = append(v.Findings, fmt.Sprintf(format, args...)) }
	start := h.Ended // that of the first hold; what comes before it is the servers' start
	for _, b := range h.Holds {
		start = min(start, b.At)
	}
	ms := func(i Instant) string { return fmt.Sprintf("%d ms", i.since(start).Milliseconds()) }

	holds := slices.Clone(h.Holds)
	slices.SortStableFunc(holds, func(a, b hold) int { return cmp.Compare(a.At, b.At) })
	for i, a := range holds {
		var within []hold // those that began while a was still believed to be held
		for _, b := range holds[i+1:] {
			switch {
			case min(a.Until, b.Until) > b.At:
				within = append(within, b)
			case a.Token > 0 && b.Token <= a.Token && b.Until > b.At:
				v.Back++
				find("worker %d has token %d at %s, after worker %d had %d", b.Worker, b.Token, ms(b.At), a.Worker, a.Token)
			}
		}
		if len(within) > 0 {
			v.Double++
			b := within[0]
			find("two holders: worker %d from %s to %s (%s), worker %d from %s to %s (%s), and %d more",
				a.Worker, ms(a.At), ms(a.Until), a.How, b.Worker, ms(b.At), ms(b.Until), b.How, len(within)-1)
		}
	}
	if v.Lost = h.Plain.Writes - h.Plain.Value; v.Lost > 0 {
		find("%d of %d updates lost without a fence", v.Lost, h.Plain.Writes)
	}
	if v.LostFenced = h.Fenced.Writes - h.Fenced.Value; v.LostFenced > 0 {
		find("%d of %d updates lost with a fence", v.LostFenced, h.Fenced.Writes)
	}

	next := slices.IndexFunc(holds, func(b hold) bool { return b.takes(h.Healed) })
	if next < 0 {
		v.Stuck++
		find("nobody got the key in the %v after the fault, which ended at %s", h.Ended.since(h.Healed).Round(time.Millisecond), ms(h.Healed))
	}
	for _, w := range h.Waits {
		if w.Worker != h.Hit && w.Till > start {
			v.Longest = max(v.Longest, w.Till.since(max(w.From, start)))
		}
	}
	v.Free = h.Ended.since(h.Fault)
	for _, b := range holds {
		if b.At > h.Fault && b.Worker != h.Hit {
			v.Free = b.At.since(h.Fault)
			break
		}
	}
	return v
}

// add adds another verdict of the same library and fault.
func (v *verdict) add(o verdict) {
	v.Trials += o.Trials
	v.Double += o.Double
	v.Lost += o.Lost
	v.LostFenced += o.LostFenced
	v.Back += o.Back
	v.Stuck += o.Stuck
	v.Refused += o.Refused
	v.Longest = max(v.Longest, o.Longest)
	v.Free = max(v.Free, o.Free)
	v.Findings = append(v.Findings, o.Findings...)
}
