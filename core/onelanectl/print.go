package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/onelane/onelane/core"
	"github.com/onelane/onelane/internal/claim"
	"github.com/onelane/onelane/internal/ownertext"
)

// printer writes states as text or as JSON.
type printer struct {
	w           io.Writer
	json, value bool
	table       *tabwriter.Writer
}

// state is what -json prints. A duration of 0 is none.
type state struct {
	Key       string `json:"key"`
	Status    string `json:"status"`
	Owner     string `json:"owner,omitempty"`
	Tag       string `json:"tag,omitempty"`
	Token     uint64 `json:"token,omitempty"`
	ExpiresMS int64  `json:"expires_in_ms,omitempty"`
	// Since is when the lease of an orphaned key ended, or since when a key is held.
	Since time.Time   `json:"since,omitzero"`
	Size  *int        `json:"value_bytes,omitempty"`
	Value []byte      `json:"value,omitempty"`
	Claim *requestRun `json:"claim,omitempty"`
}

// requestRun is what -json prints about the run of an idempotent request.
type requestRun struct {
	Begun     time.Time `json:"begun,omitzero"`
	Instance  string    `json:"instance,omitempty"`
	RequestID string    `json:"request_id,omitempty"`
	Answer    string    `json:"answer,omitempty"`
	Encrypted string    `json:"encrypted_with,omitempty"`
	Payload   string    `json:"payload,omitempty"`
}

func runOf(key string, st core.State) *requestRun {
	d, ok := claim.Describe(key, st)
	if !ok {
		return nil
	}
	r := &requestRun{Begun: d.Run.Begun, Instance: d.Run.Instance, RequestID: d.Run.RequestID, Encrypted: d.Encrypted, Payload: d.Payload}
	switch {
	case st.Status == core.Orphaned && d.Again:
		r.Answer = "none: the run failed or died, and a retry with the same payload runs again (RunAgain)"
	case st.Status == core.Orphaned && d.Encrypted != "":
		r.Answer = "unknown, unless the route has RunAgain, which is encrypted: find out what the request did"
	case st.Status == core.Orphaned:
		r.Answer = "unknown: find out what the request did, then answer it, or unseal the key to let it run again"
	case d.NotKept:
		r.Answer = "given, and not kept"
	case d.Status != 0:
		r.Answer = fmt.Sprint("status ", d.Status)
	}
	return r
}

// lines prints what is known of the run.
func (r *requestRun) lines(line func(name, value string)) {
	if !r.Begun.IsZero() {
		line("begun", r.Begun.Format(time.RFC3339))
	}
	for _, field := range []struct{ name, value string }{
		{"instance", r.Instance}, {"request", r.RequestID}, {"answer", r.Answer}, {"encrypted with", r.Encrypted}, {"payload", r.Payload},
	} {
		if field.value != "" {
			line(field.name, text(field.value))
		}
	}
}

func (p *printer) state(key string, st core.State) state {
	s := state{Key: key, Status: st.Status.String(), Owner: st.Owner, Token: st.Token, ExpiresMS: st.ExpiresIn.Milliseconds(), Since: st.Since}
	_, s.Tag = ownertext.Split(st.Owner)
	s.Claim = runOf(key, st)
	if st.Status == core.Sealed {
		size := len(st.Value)
		s.Size = &size
		if p.value {
			s.Value = st.Value
		}
	}
	return s
}

// one prints all that is known of a key.
func (p *printer) one(key string, st core.State) error {
	s := p.state(key, st)
	if p.json {
		return json.NewEncoder(p.w).Encode(s)
	}
	t := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)
	line := func(name, value string) { fmt.Fprintf(t, "%s\t%s\n", name, value) }
	line("key", text(s.Key))
	line("status", s.Status)
	if s.Owner != "" {
		line("owner", text(s.Owner))
	}
	if s.Tag != "" && s.Claim == nil {
		line("tag", text(s.Tag))
	}
	if s.Token != 0 {
		line("token", fmt.Sprint(s.Token))
	}
	if !s.Since.IsZero() {
		line(s.Status+" since", s.Since.Format(time.RFC3339))
	}
	if s.Claim != nil {
		s.Claim.lines(line)
	}
	if st.Status != core.Free {
		line("expires", expires(st))
	}
	if s.Size != nil {
		line("value", fmt.Sprintf("%d bytes", *s.Size))
	}
	if s.Value != nil {
		line("", fmt.Sprintf("%q", s.Value))
	}
	return t.Flush()
}

// row prints a key as a line of a table.
func (p *printer) row(key string, st core.State) error {
	if p.json {
		return p.one(key, st)
	}
	if p.table == nil {
		p.table = tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(p.table, "KEY\tSTATUS\tSINCE\tEXPIRES\tTOKEN\tOWNER")
	}
	s := p.state(key, st)
	token := "-"
	if s.Token != 0 {
		token = fmt.Sprint(s.Token)
	}
	since := "-"
	if !s.Since.IsZero() {
		since = s.Since.Format(time.DateTime)
	}
	_, err := fmt.Fprintf(p.table, "%s\t%s\t%s\t%s\t%s\t%s\n", text(key), s.Status, since, expires(st), token, cmp.Or(text(s.Owner), "-"))
	return err
}

func (p *printer) flush() error {
	if p.table == nil {
		return nil
	}
	return p.table.Flush()
}

// done says what happened to a key.
func (p *printer) done(key, what string) error {
	if p.json {
		return json.NewEncoder(p.w).Encode(map[string]string{"key": key, "done": what})
	}
	_, err := fmt.Fprintf(p.w, "%s %s\n", what, text(key))
	return err
}

func expires(st core.State) string {
	if st.ExpiresIn == 0 {
		return "never"
	}
	return "in " + st.ExpiresIn.Round(time.Millisecond).String()
}

// text returns s, quoted if a terminal would not show it as it is.
func text(s string) string {
	if q := fmt.Sprintf("%q", s); q != `"`+s+`"` {
		return q
	}
	return s
}
