// Package pagetest looks at the page of examples/seckill in a real browser, and at what its metrics
// say. It is a separate module, so that nobody who uses the kit has a browser driver or a query
// engine among its dependencies.
package pagetest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// number is a figure of a lane, as an expression in the page.
func number(lane, name string) string {
	const figure = `Number(document.querySelector('#%s [data-n=%s]').textContent.replaceAll(',', ''))`
	return fmt.Sprintf(figure, lane, name)
}

// set fills in the settings of the sale.
func set(t *testing.T, ctx context.Context, buyers, stock, seconds int) {
	t.Helper()
	do(t, ctx, chromedp.Evaluate(fmt.Sprintf(`
		for (const [name, v] of Object.entries({buyers: %d, stock: %d, seconds: %d})) {
			document.querySelector('[name=' + name + ']').value = v;
		}`, buyers, stock, seconds), nil))
}

const (
	click   = `document.querySelector('#start').click()` // unlike chromedp.Click it does not scroll
	running = `document.querySelector('#start').textContent.startsWith('Stop')`
	over    = `document.querySelector('#status').textContent.includes('over')`
)

// The page shows a whole sale well, on a wide screen and on a phone, in light and dark, in both languages.
func TestPage_Sale(t *testing.T) {
	for _, v := range views {
		t.Run(v.name, func(t *testing.T) {
			address, _ := serve(t)
			ctx := browser(t, address, v)
			if got := eval[string](t, ctx, `document.documentElement.dataset.theme`); (got == "dark") != v.dark {
				t.Errorf("the theme is %q", got)
			}
			look(t, ctx, v, "before")
			// The naive shop most likely sells too much, but not certainly.
			oversold := 0
			for try := 0; try < 5 && oversold == 0; try++ {
				set(t, ctx, 120, 60, 12)
				do(t, ctx, chromedp.Evaluate(click, nil))
				until(t, ctx, running)
				if try == 0 {
					until(t, ctx, number("guarded", "sold")+" >= 15")
					look(t, ctx, v, "during")
				}
				until(t, ctx, over)
				for _, lane := range []string{"sale-lane", "guarded"} {
					if sold := eval[int](t, ctx, number(lane, "sold")); sold != 60 {
						t.Errorf("the shop of %s sold %d of 60", lane, sold)
					}
					rate := fmt.Sprintf(`parseInt(document.querySelector('#%s [data-n=rate]').textContent)`, lane)
					if n := eval[int](t, ctx, rate); n <= 0 {
						t.Errorf("the shop of %s sold %d a second", lane, n)
					}
				}
				oversold = eval[int](t, ctx, number("naive", "oversold"))
			}
			for lane, says := range map[string]string{
				"naive":     "Wrong: ",
				"guarded":   "Right: 60 sold of 60, none oversold, nobody charged twice.",
				"sale-lane": "Right: 60 sold of 60, none oversold, nobody charged twice.",
			} {
				if got := eval[string](t, ctx, verdict(lane)); !strings.HasPrefix(got, says) {
					t.Errorf("the verdict of %s is %q", lane, got)
				}
			}
			look(t, ctx, v, "after")
		})
	}
}

func verdict(lane string) string {
	return fmt.Sprintf(`document.querySelector('#%s .verdict').textContent`, lane)
}

// look checks what must be so at any time, in both languages, and takes a picture of each.
func look(t *testing.T, ctx context.Context, v view, phase string) {
	t.Helper()
	for _, language := range []string{"en", "zh"} {
		name := fmt.Sprintf("%s-%s-%s", v.name, phase, language)
		if wide := eval[int64](t, ctx, `document.documentElement.scrollWidth`); wide > v.width {
			t.Errorf("%s: the page is %d wide", name, wide)
		}
		for _, hidden := range eval[[]string](t, ctx, belowFold) {
			t.Errorf("%s: %s is not on the first screen", name, hidden)
		}
		for _, pale := range eval[[]string](t, ctx, paleTexts) {
			t.Errorf("%s: too little contrast: %s", name, pale)
		}
		screenshot(t, ctx, name)
		do(t, ctx, chromedp.Evaluate(`document.querySelector('#lang').click()`, nil))
	}
}

// Two quick clicks are one order with the kit and two without.
func TestPage_BuyTwice(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	answered := func(shop string, n int) {
		t.Helper()
		until(t, ctx, fmt.Sprintf(`(() => {
			const all = [...document.querySelectorAll('#%s-shop li')];
			return all.length === %d && all.every((li) => !li.textContent.includes('waiting'));
		})()`, shop, n))
	}
	for _, shop := range []string{"naive", "guarded"} {
		do(t, ctx, chromedp.Evaluate(fmt.Sprintf(`(() => {
			const b = document.querySelector('#%s-shop .buy');
			b.click();
			b.click();
		})()`, shop), nil))
		answered(shop, 2)
	}
	do(t, ctx, chromedp.Click("#guarded-shop .buy")) // after the answer: a replay
	answered("guarded", 3)
	until(t, ctx, number("naive", "sold")+" === 2")
	until(t, ctx, number("guarded", "sold")+" > 0")
	if sold := eval[int](t, ctx, number("guarded", "sold")); sold != 1 {
		t.Errorf("two clicks were %d orders with the kit", sold)
	}
	const third = `document.querySelector('#guarded-shop li:last-child').textContent`
	if last := eval[string](t, ctx, third); !strings.Contains(last, "again") {
		t.Errorf("the third click was told %q", last)
	}
}

// node switches a node and waits until the page says so.
func node(t *testing.T, ctx context.Context, n int, says string) {
	t.Helper()
	item := fmt.Sprintf("#nodes li:nth-child(%d)", n)
	do(t, ctx, chromedp.Click(item+" button"))
	until(t, ctx, fmt.Sprintf(`document.querySelector('%s span').textContent.endsWith(': %s')`, item, says))
}

// With one node of three cut off the shop sells; with two it refuses; when they are back it sells
// again.
func TestPage_NodesCutOff(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	buy := func(says string) {
		t.Helper()
		do(t, ctx, chromedp.Click("#guarded-shop .fresh"), chromedp.Click("#guarded-shop .buy"))
		until(t, ctx, fmt.Sprintf(
			`document.querySelector('#guarded-shop li')?.textContent.includes('%s')`, says))
	}
	node(t, ctx, 1, "off")
	buy("placed")
	node(t, ctx, 2, "off")
	buy("refused: HTTP 503, ")
	do(t, ctx, chromedp.Click("#sale-shop .buy")) // a declared sale needs no node
	until(t, ctx, `document.querySelector('#sale-shop li')?.textContent.includes('placed')`)
	node(t, ctx, 1, "up")
	node(t, ctx, 2, "up")
	// Clients dial again with a delay, so the first orders may still be refused.
	until(t, ctx, `(() => {
		const last = document.querySelector('#guarded-shop li')?.textContent ?? 'none';
		if (last.includes('placed')) return true;
		if (!last.includes('waiting')) {
			for (const b of ['fresh', 'buy']) document.querySelector('#guarded-shop .' + b).click();
		}
		return false;
	})()`)
	until(t, ctx, number("guarded", "sold")+" === 2")
}

// A sale without a majority stalls: the page says so, counts the stalls and refusals, and shows the
// last error.
func TestPage_Outage(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	set(t, ctx, 3000, 1500, 300) // on a busy machine, too, it lasts until it is stopped
	do(t, ctx, chromedp.Click("#start"))
	until(t, ctx, number("guarded", "sold")+" > 0")
	node(t, ctx, 1, "off")
	node(t, ctx, 2, "off")
	until(t, ctx, verdict("guarded")+`.startsWith('Stalled, no majority of nodes: ')`)
	until(t, ctx, number("trouble", "refusals")+" > 0")
	until(t, ctx, `document.querySelector('#last').textContent.startsWith('Last error: HTTP 503: ')`)
	until(t, ctx, `document.querySelectorAll('#chart .outage').length === 1`)
	look(t, ctx, desktop, "outage")
	do(t, ctx, chromedp.EmulateViewport(phone.width, phone.height))
	look(t, ctx, phone, "outage")
	node(t, ctx, 1, "up")
	node(t, ctx, 2, "up")
	sold := eval[int](t, ctx, number("guarded", "sold"))
	until(t, ctx, fmt.Sprintf("%s > %d", number("guarded", "sold"), sold))
	do(t, ctx, chromedp.Click("#start")) // it stops the sale
	until(t, ctx, over)
	said := eval[string](t, ctx, verdict("guarded"))
	if !strings.HasPrefix(said, "Stopped: ") ||
		!strings.HasSuffix(said, "none oversold, nobody charged twice.") {
		t.Errorf("after the outage the verdict is %q", said)
	}
}

// Everything can be done with the keyboard, in the order of the page.
func TestPage_Keyboard(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	do(t, ctx, chromedp.Evaluate(`document.querySelector('#settings').open = true`, nil))
	var names []string
	for range 20 {
		do(t, ctx, chromedp.KeyEvent("\t"))
		names = append(names, eval[string](t, ctx, `(() => {
			const e = document.activeElement;
			return e.id || e.name || e.className || e.textContent;
		})()`))
	}
	all := strings.Join(names, " ")
	for _, want := range []string{
		"lang theme start Settings buyers stock submits seconds", "Cut off Cut off Cut off", "buy fresh",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the order of the Tab key is %q, without %q", all, want)
		}
	}
	set(t, ctx, 20, 10, 1)
	do(t, ctx, chromedp.Focus("[name=buyers]"), chromedp.KeyEvent("\r"))
	until(t, ctx, over) // there was no other sale, and this one may be too short to be seen running
}

// A buyer who wants a second order, with another key, is not charged twice.
func TestPage_NewOrder(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	for n := 1; n <= 2; n++ {
		do(t, ctx, chromedp.Click("#guarded-shop .fresh"), chromedp.Click("#guarded-shop .buy"))
		until(t, ctx, fmt.Sprintf("%s === %d", number("guarded", "sold"), n))
	}
	const want = "Ready. 2 sold, none oversold, nobody charged twice."
	if got := eval[string](t, ctx, verdict("guarded")); got != want {
		t.Errorf("two orders with two keys are %q", got)
	}
}

// A new answer is added to the list, which is a live region: the old ones are not said again.
func TestPage_AnswersStay(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	answered := func(n int) {
		t.Helper()
		do(t, ctx, chromedp.Click("#guarded-shop .buy"))
		until(t, ctx, fmt.Sprintf(`(() => {
			const all = [...document.querySelectorAll('#guarded-shop li')];
			return all.length === %d && all.every((li) => !li.textContent.includes('waiting'));
		})()`, n))
	}
	answered(1)
	do(t, ctx, chromedp.Evaluate(`document.querySelector('#guarded-shop li').marked = true`, nil))
	answered(2)
	if !eval[bool](t, ctx, `document.querySelector('#guarded-shop li').marked === true`) {
		t.Error("the first answer was made anew, so a screen reader says it again")
	}
}

// A sale makes new books, in which the order of an old key is not.
func TestPage_KeyAfterSale(t *testing.T) {
	address, _ := serve(t)
	ctx := browser(t, address, desktop)
	do(t, ctx, chromedp.Click("#guarded-shop .buy"))
	until(t, ctx, number("guarded", "sold")+" === 1")
	set(t, ctx, 5, 20, 1)
	do(t, ctx, chromedp.Click("#start"))
	until(t, ctx, over)
	do(t, ctx, chromedp.Click("#guarded-shop .buy"))
	const answer = `(document.querySelector('#guarded-shop li:last-child')?.textContent ?? 'waiting')`
	until(t, ctx, `!`+answer+`.includes('waiting')`)
	if got := eval[string](t, ctx, answer); !strings.Contains(got, "placed") {
		t.Errorf("the new books have no order, and the page says %q", got)
	}
}
