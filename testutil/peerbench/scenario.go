package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// kind says what a contender is there for.
type kind string

const (
	ours      kind = "ours"
	theirs    kind = "peer"
	reference kind = "reference" // what it would cost without a library, or without the kit: no peer to be faster than
)

// scenario puts one question to several contenders, on the same servers with the same keys.
type scenario struct {
	name, about string
	columns     []column // the first is what is compared
	open        func(b *bench) ([]contender, error)
	note        func(ctx context.Context, b *bench) (string, error) // of the servers, after about; may be nil
	targets     []target
	// limits has, by the name of a contender, the one whose figures its design cannot beat.
	limits map[string]string
}

// column is a figure that each contender has.
type column struct {
	name  string
	lower bool // is better
}

// contender runs once in each round, each time for about the same time.
type contender struct {
	name  string
	kind  kind
	once  bool // in the first round only, since it takes very long
	run   func(ctx context.Context, d time.Duration) (sample, error)
	close func()
}

// sample has a figure for each column.
type sample []float64

// target is a promise about the figures of a scenario, which may have several rows.
type target struct {
	text    string
	figure  func(result) float64
	atLeast float64
	atMost  float64 // where atLeast is 0
}

func (t target) met(figure float64) bool {
	return t.atLeast > 0 && figure >= t.atLeast || t.atLeast == 0 && figure <= t.atMost
}

// number is written as JSON as null where it is not known: JSON has no NaN.
type number float64

func (n number) MarshalJSON() ([]byte, error) {
	if !finite(float64(n)) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// figures are one for each column.
type figures []float64

func (fs figures) MarshalJSON() ([]byte, error) {
	numbers := make([]number, len(fs))
	for i, f := range fs {
		numbers[i] = number(f)
	}
	return json.Marshal(numbers)
}

// result is what came out of a scenario.
type result struct {
	Scenario string    `json:"scenario"`
	About    string    `json:"about"`
	Columns  []string  `json:"columns"`
	Rows     []row     `json:"rows"`
	Targets  []verdict `json:"targets,omitempty"`
}

// row is one contender's figures over all rounds.
type row struct {
	Name   string  `json:"name"`
	Kind   kind    `json:"kind"`
	Median figures `json:"median"`
	Min    figures `json:"min"`
	Max    figures `json:"max"`
	// Ratio says how many times better than the best peer the first column is; 0 where there is no
	// peer.
	Ratio  float64 `json:"ratio,omitempty"`
	Rounds int     `json:"rounds"`
}

type verdict struct {
	Text   string `json:"text"`
	Figure number `json:"figure"` // NaN where it is not known
	Met    bool   `json:"met"`
	// Limit is there where a target that was missed cannot be met here: the figure with LimitOf, the
	// scenario's limit, in place of ours.
	Limit   float64 `json:"limit,omitempty"`
	LimitOf string  `json:"limit_of,omitempty"`
}

// run asks all contenders once per round, each round in another order, so that what else the
// machine does falls on all.
func (s scenario) run(ctx context.Context, b *bench, rounds int, d time.Duration, progress io.Writer) (result, error) {
	fmt.Fprintf(progress, "%s …\n", s.name)
	contenders, err := s.open(b)
	defer func() {
		for _, c := range contenders {
			if c.close != nil {
				c.close()
			}
		}
	}()
	if err != nil {
		return result{}, fmt.Errorf("%s: %w", s.name, err)
	}
	asked := slices.DeleteFunc(slices.Clone(contenders), func(c contender) bool { return b.contender != nil && !b.contender.MatchString(c.name) })
	if len(asked) == 0 {
		return result{}, fmt.Errorf("%s: -contender %v names nobody", s.name, b.contender)
	}
	r, err := s.rounds(ctx, asked, rounds, d)
	if len(asked) < len(contenders) { // targets that are about others
		r.Targets = slices.DeleteFunc(r.Targets, func(v verdict) bool { return !finite(float64(v.Figure)) })
	}
	if err == nil && s.note != nil {
		var note string
		note, err = s.note(ctx, b)
		r.About += " " + note
	}
	return r, err
}

func (s scenario) rounds(ctx context.Context, contenders []contender, rounds int, d time.Duration) (result, error) {
	samples := make([][]sample, len(contenders))
	for round := range rounds {
		for i := range contenders {
			i = (i + round) % len(contenders)
			c := contenders[i]
			if c.once && len(samples[i]) > 0 {
				continue
			}
			figures, err := c.run(ctx, d)
			if err != nil {
				return result{}, fmt.Errorf("%s: %s: %w", s.name, c.name, err)
			}
			samples[i] = append(samples[i], figures)
		}
	}
	return s.summarize(contenders, samples), nil
}

func (s scenario) summarize(contenders []contender, samples [][]sample) result {
	r := result{Scenario: s.name, About: s.about}
	for _, c := range s.columns {
		r.Columns = append(r.Columns, c.name)
	}
	for i, c := range contenders {
		w := row{Name: c.name, Kind: c.kind, Rounds: len(samples[i])}
		for column := range s.columns {
			var all []float64
			for _, figures := range samples[i] {
				all = append(all, figures[column])
			}
			slices.Sort(all)
			w.Median, w.Min, w.Max = append(w.Median, median(all)), append(w.Min, all[0]), append(w.Max, all[len(all)-1])
		}
		r.Rows = append(r.Rows, w)
	}
	best := 0.0
	for _, w := range r.Rows {
		if w.Kind == theirs && (best == 0 || s.better(w.Median[0], best)) {
			best = w.Median[0]
		}
	}
	for i, w := range r.Rows {
		if best > 0 && w.Median[0] > 0 {
			r.Rows[i].Ratio = w.Median[0] / best
			if s.columns[0].lower {
				r.Rows[i].Ratio = best / w.Median[0]
			}
		}
	}
	for _, t := range s.targets {
		r.Targets = append(r.Targets, s.verdict(t, r))
	}
	return r
}

func (s scenario) verdict(t target, r result) verdict {
	f := t.figure(r)
	v := verdict{Text: t.text, Figure: number(f), Met: t.met(f)}
	for name, limit := range s.limits {
		if most := t.figure(r.as(name, limit)); !v.Met && finite(most) && most != f && !t.met(most) {
			v.Limit, v.LimitOf = most, limit
		}
	}
	return v
}

// as is the result if a contender had another one's figures.
func (r result) as(name, other string) result {
	r.Rows = slices.Clone(r.Rows)
	for i, w := range r.Rows {
		switch w.Name {
		case name:
			r.Rows[i].Name = ""
		case other:
			r.Rows[i].Name = name
		}
	}
	return r
}

func (s scenario) better(a, b float64) bool { return a > b != s.columns[0].lower }

func sorted(figures []float64) []float64 {
	slices.Sort(figures)
	return figures
}

// median of sorted figures.
func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// of is the median of a contender's column, NaN if it did not run.
func (r result) of(name, column string) float64 {
	i := slices.Index(r.Columns, column)
	for _, w := range r.Rows {
		if w.Name == name && i >= 0 {
			return w.Median[i]
		}
	}
	return math.NaN()
}

func finite(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }

// best is the median of the best peer in a column, of those with such names if there are any.
func (r result) best(column string, lower bool, names ...string) float64 {
	best := math.NaN()
	for _, w := range r.Rows {
		if w.Kind != theirs || len(names) > 0 && !slices.Contains(names, w.Name) {
			continue
		}
		if f := r.of(w.Name, column); math.IsNaN(best) || f > best != lower {
			best = f
		}
	}
	return best
}

// times is a target's figure: how many times a's column is b's.
func times(a, b, column string) func(result) float64 {
	return func(r result) float64 { return r.of(a, column) / r.of(b, column) }
}

// timesBest is a target's figure: how many times a's column is the best peer's.
func timesBest(a, column string, lower bool) func(result) float64 {
	return func(r result) float64 { return r.of(a, column) / r.best(column, lower) }
}

// timesBestOf is timesBest among the peers with such names.
func timesBestOf(a string, names []string, column string, lower bool) func(result) float64 {
	return func(r result) float64 { return r.of(a, column) / r.best(column, lower, names...) }
}
