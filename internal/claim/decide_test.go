package claim_test

import (
	"testing"

	"github.com/onelane/onelane/internal/claim"
)

// The first row that holds decides about a key. Each row has its fate, and the fate with RunAgain.
func TestDecide(t *testing.T) {
	t.Parallel()
	const keep, free, unknown, again = claim.Keep, claim.Free, claim.Unknown, claim.Again
	said := func(f claim.Fate) *claim.Fate { return &f }
	all := claim.Facts{Failed: true, GaveUp: true, NoHandler: true, Unauthenticated: true, NoAnswer: true, RanElsewhere: true, Recovered: true}
	for name, row := range map[string]struct {
		said  *claim.Fate
		facts claim.Facts
		want  claim.Fate
		again claim.Fate
	}{
		"kept":                            {nil, claim.Facts{}, keep, keep},
		"free by the table":               {nil, claim.Facts{Verdict: free}, free, free},
		"unknown by the table":            {nil, claim.Facts{Verdict: unknown}, unknown, again},
		"server error":                    {nil, claim.Facts{ServerError: true}, keep, again},
		"nothing done, even with a panic": {said(free), all, free, free},
		"Recover is still unknown":        {said(unknown), claim.Facts{Verdict: free}, unknown, again},
		"not rendered":                    {said(claim.NotKept), claim.Facts{Verdict: free}, claim.NotKept, claim.NotKept},
		"left to an outer middleware":     {said(claim.Unanswered), claim.Facts{}, claim.Unanswered, again},
		"panic":                           {nil, all, unknown, again},
		"gave up":                         {nil, claim.Facts{GaveUp: true, Verdict: free, NoHandler: true}, unknown, again},
		"gave up with a server error":     {nil, claim.Facts{GaveUp: true, ServerError: true}, unknown, again},
		"inner refusal":                   {nil, claim.Facts{NoHandler: true, RanElsewhere: true}, free, free},
		"inner refusal in Recover":        {nil, claim.Facts{NoHandler: true, Recovered: true}, unknown, again},
		"401 over Decide":                 {nil, claim.Facts{Unauthenticated: true, Verdict: keep}, free, free},
		"401 of Recover":                  {nil, claim.Facts{Unauthenticated: true, Recovered: true}, unknown, again},
		"no status, over Decide":          {nil, claim.Facts{NoAnswer: true, Verdict: free}, unknown, again},
		"another server ran it":           {nil, claim.Facts{RanElsewhere: true, Verdict: free}, unknown, again},
		"another server, kept":            {nil, claim.Facts{RanElsewhere: true}, keep, keep},
		"free after Recover answered":     {nil, claim.Facts{Recovered: true, Verdict: free}, unknown, again},
		"kept after Recover answered":     {nil, claim.Facts{Recovered: true}, keep, keep},
	} {
		if got := claim.Decide(row.said, row.facts, false); got != row.want {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
		if got := claim.Decide(row.said, row.facts, true); got != row.again {
			t.Errorf("%s, with RunAgain: %v, want %v", name, got, row.again)
		}
	}
}
