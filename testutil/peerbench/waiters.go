package main

import (
	"context"
	"fmt"
	"time"
)

// waiters: many want a key that each holds for a while, once.
func waiters(name string, nProcesses, goroutines int) scenario {
	const hold, patience = 5 * time.Millisecond, 30 * time.Second
	n := nProcesses * goroutines
	s := scenario{
		name: name,
		about: fmt.Sprintf("%d waiters in %d process(es) hold one key for %v each, once. Ideal is the sum of what they held it. Commands are those that clients sent to Redis. "+
			"A peer that has not served all after %v is given up: that is its total.", n, nProcesses, hold, patience),
		columns: []column{{"total / ideal", true}, {"total ms", true}, {"ideal ms", true}, {"commands per lock", true}},
		open: func(b *bench) ([]contender, error) {
			addr, err := b.redis()
			if err != nil {
				return nil, err
			}
			if b.short {
				goroutines, n = goroutines/8, n/8
			}
			var cs []contender
			for _, p := range waiting() {
				cs = append(cs, contender{name: p.name, kind: p.kind, once: p.name == "redislock", run: func(ctx context.Context, _ time.Duration) (sample, error) {
					if err := flush(ctx, addr); err != nil {
						return nil, err
					}
					var total, ideal time.Duration
					commands, err := monitored(addr, func() error {
						ctx, cancel := context.WithTimeout(ctx, patience)
						defer cancel()
						reports, err := processes(ctx, nProcesses, order{peer: p.name, addr: addr, key: "held", goroutines: goroutines, hold: hold, each: 1})
						for _, r := range reports {
							ideal += r.Held
							total = max(total, r.Took)
						}
						if err != nil && ctx.Err() != nil && p.kind == theirs {
							total, ideal, err = patience, time.Duration(n)*hold, nil
						}
						return err
					})
					return sample{total.Seconds() / ideal.Seconds(), total.Seconds() * 1e3, ideal.Seconds() * 1e3, float64(commands) / float64(n)}, err
				}})
			}
			return cs, nil
		},
	}
	s.targets = []target{
		{"at most 1.1 × ideal", func(r result) float64 { return r.of("onelane", "total / ideal") }, 0, 1.1},
		{"at most 3 commands per lock", func(r result) float64 { return r.of("onelane", "commands per lock") }, 0, 3},
	}
	return s
}
