// The chart: the units that the lanes sold over time, on one scale.

const space = { left: 44, right: 14, top: 18, bottom: 22 };

// scale returns a round maximum that is not below n, and the round step between its ticks.
export function scale(n, ticks) {
  const rough = Math.max(n, 1) / ticks, power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].find((m) => m * power >= rough) * power);
  return { step, most: Math.ceil(Math.max(n, 1) / step) * step };
}

function steps({ step, most }) { return Array.from({ length: Math.round(most / step) + 1 }, (_, i) => i * step); }

// outages returns the spans of time in which samples saw no majority of the nodes.
function outages(samples) {
  const spans = [];
  samples.forEach((sample, i) => {
    if (sample.majority) return;
    const next = samples[i + 1]?.at ?? sample.at, last = spans.at(-1);
    if (i > 0 && last && !samples[i - 1].majority) last.to = next;
    else spans.push({ from: sample.at, to: next });
  });
  return spans;
}

// draw returns the greatest number on the scale of units. view has samples, stock and seconds.
export function draw(svg, view, t) {
  const { width, height } = svg.getBoundingClientRect();
  const { samples, stock } = view;
  const units = scale(samples.reduce((n, s) => Math.max(n, s.naive, s.guarded, s.sale), stock * 1.1), 4);
  const time = scale(Math.max(view.seconds, samples.at(-1)?.at ?? 0), width < 500 ? 4 : 6);
  const x = (at) => +(space.left + (width - space.left - space.right) * at / time.most).toFixed(1);
  const y = (n) => +(space.top + (height - space.top - space.bottom) * (1 - n / units.most)).toFixed(1);
  const number = (n) => n.toLocaleString(t.number);
  const line = (lane) => `<polyline class="line ${lane}" points="${samples.map((s) => `${x(s.at)},${y(s[lane])}`).join(" ")}"/>`;
  const [from, to] = [x(0), x(time.most)];
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.innerHTML = [
    `<rect class="over" x="${from}" width="${to - from}" y="${y(units.most)}" height="${y(stock) - y(units.most)}"/>`,
    ...outages(samples).map((o) => `<rect class="outage" x="${x(o.from)}" width="${Math.max(2, x(o.to) - x(o.from))}" y="${y(units.most)}" height="${y(0) - y(units.most)}"/>`),
    ...steps(units).map((n) => `<line class="grid" x1="${from}" x2="${to}" y1="${y(n)}" y2="${y(n)}"/><text class="units" data-v="${n}" x="${from - 6}" y="${y(n)}">${number(n)}</text>`),
    ...steps(time).map((n) => `<text class="time" data-v="${n}" x="${x(n)}" y="${height - 6}">${t.timeAxis(number(n))}</text>`),
    `<text class="name" x="${from}" y="11">${t.unitsAxis}</text>`,
    `<line class="limit" x1="${from}" x2="${to}" y1="${y(stock)}" y2="${y(stock)}"/><text class="stock" x="${to - 4}" y="${y(stock) + 14}">${t.limit(number(stock))}</text>`,
    line("naive"), line("guarded"), line("sale"),
  ].join("");
  return units.most;
}
