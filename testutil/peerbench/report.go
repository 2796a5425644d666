package main

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// markdown writes a result as a table.
func (r result) markdown(w io.Writer) {
	fmt.Fprintf(w, "\n### %s\n\n%s\n\n", r.Scenario, r.About)
	ratios := false
	for _, row := range r.Rows {
		ratios = ratios || row.Ratio > 0
	}
	head := append([]string{""}, r.Columns...)
	if ratios {
		head = append(head, "× best peer")
	}
	fmt.Fprintf(w, "| %s |\n|---%s\n", strings.Join(head, " | "), strings.Repeat("|--:", len(head)-1)+"|")
	for _, row := range r.Rows {
		cells := []string{row.Name}
		for i, f := range row.Median {
			cell := figure(f)
			if i == 0 && row.Rounds > 1 {
				cell += fmt.Sprintf(" (%s–%s)", figure(row.Min[0]), figure(row.Max[0]))
			}
			cells = append(cells, cell)
		}
		if ratios {
			cells = append(cells, figure(row.Ratio))
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
	}
	for i, t := range r.Targets {
		if i == 0 {
			fmt.Fprintln(w)
		}
		verdict := "missed"
		switch {
		case t.Met:
			verdict = "met"
		case !finite(float64(t.Figure)):
			verdict = "not known here"
		}
		if t.LimitOf != "" {
			verdict += fmt.Sprintf("; here “%s” reaches %s", t.LimitOf, figure(t.Limit))
		}
		fmt.Fprintf(w, "- %s: **%s**, %s\n", t.Text, figure(float64(t.Figure)), verdict)
	}
}

// figure writes a number with three digits that count.
func figure(f float64) string {
	switch {
	case !finite(f):
		return "–"
	case f == 0:
		return "0"
	case math.Abs(f) >= 100:
		return fmt.Sprintf("%.0f", f)
	case math.Abs(f) >= 10:
		return fmt.Sprintf("%.1f", f)
	case math.Abs(f) >= 0.1:
		return fmt.Sprintf("%.2f", f)
	default:
		return fmt.Sprintf("%.4f", f)
	}
}
