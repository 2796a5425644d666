const texts = {
  en: {
    title: "One flash sale, with and without the kit",
    intro: "The same naive handler twice, each with its own database. The crowd double-clicks and retries in both. On the right, two lines of onelane stand before it.",
    buyers: "Buyers", stock: "Units for sale", submits: "Clicks per buyer", start: "Start the sale", theme: "Light / dark",
    naive: "Without the kit", guarded: "With onelane",
    nodes: "The Redis nodes under the lock",
    nodesText: "Cut one off during a sale and the majority goes on. Cut two off and buyers are refused, but nothing is ever oversold. Bring them back and it sells again.",
    cut: "Cut off", back: "Bring back", up: "up", down: "cut off", node: "Node",
    buy: "Buy", fresh: "New order",
    buyText: "Click Buy twice, quickly: both clicks carry one Idempotency-Key, as a form or an app would send them. New order takes a new key.",
    idle: "No sale yet. Press Start.", running: "Both sales are running…", over: "Both sales are over.", offline: "The connection to the program is lost.",
    selling: "Selling…", unsold: "Open. Nothing is wrong yet.",
    good: "The books are right: nothing oversold, nobody charged twice.",
    incomplete: "The books are right: nothing oversold, nobody charged twice. Some buyers got an error, since the lock was not to be had.",
    bad: (s) => `The books are wrong: ${s.oversold} units sold that are not there, ${s.doubled} buyers charged twice or more.`,
    chart: (s) => `Units sold over time: ${s.sold}. The dashed line is the stock, ${s.stock}; above it units are sold that do not exist.`,
    sold: "Orders", left: "Left in stock", oversold: "Oversold", doubled: "Charged twice", requests: "Requests", replayed: "Replayed",
    refused: "Duplicates refused", sold_out: "Told: sold out", errors: "Errors", p99_ms: "Answer p99", wait50: "Lock wait p50", wait99: "Lock wait p99",
    ms: (v) => v < 0 ? "over 15 min" : `${v < 10 ? v.toFixed(1) : Math.round(v)} ms`,
    answer: { created: (n) => `order ${n} taken`, replayed: (n) => `order ${n} again: the first answer, no second order`, flight: "refused: your first click is still under way", gone: "sold out", other: (n) => `refused with HTTP ${n}` },
    language: "中文", number: "en",
  },
  zh: {
    title: "同一场秒杀：用与不用这套工具",
    intro: "同一段最朴素的代码跑两遍，各用各的数据库。两边的买家都会连点和重试。右边只多了 onelane 的两行。",
    buyers: "买家人数", stock: "库存件数", submits: "每人点击次数", start: "开始秒杀", theme: "浅色 / 深色",
    naive: "不用", guarded: "用 onelane",
    nodes: "锁背后的 Redis 节点",
    nodesText: "秒杀中断开一个节点，多数派照常工作。断开两个，买家会被拒绝，但绝不超卖。恢复之后继续售卖。",
    cut: "断开", back: "恢复", up: "正常", down: "已断开", node: "节点",
    buy: "购买", fresh: "新订单",
    buyText: "快速点两下“购买”：两次点击带同一个 Idempotency-Key，和表单或 App 重复提交一样。“新订单”会换一个新的键。",
    idle: "还没有开始，请点“开始秒杀”。", running: "两边正在售卖……", over: "两边都已结束。", offline: "与程序的连接已断开。",
    selling: "售卖中……", unsold: "已开张，目前没有问题。",
    good: "账目正确：没有超卖，没有人被重复扣款。",
    incomplete: "账目正确：没有超卖，没有人被重复扣款。部分买家收到错误，因为当时拿不到锁。",
    bad: (s) => `账目错误：超卖 ${s.oversold} 件，${s.doubled} 位买家被重复扣款。`,
    chart: (s) => `随时间售出的件数：${s.sold}。虚线是库存 ${s.stock}，线以上卖的是不存在的货。`,
    sold: "订单", left: "剩余库存", oversold: "超卖", doubled: "重复扣款", requests: "请求", replayed: "重放首次响应",
    refused: "拒绝的重复请求", sold_out: "告知已售罄", errors: "错误", p99_ms: "响应 p99", wait50: "等锁 p50", wait99: "等锁 p99",
    ms: (v) => v < 0 ? "超过 15 分钟" : `${v < 10 ? v.toFixed(1) : Math.round(v)} 毫秒`,
    answer: { created: (n) => `下单成功，订单 ${n}`, replayed: (n) => `仍是订单 ${n}：返回首次响应，没有第二个订单`, flight: "已拒绝：第一次点击还在处理", gone: "已售罄", other: (n) => `被拒绝，HTTP ${n}` },
    language: "English", number: "zh-CN",
  },
};

const $ = (selector, root = document) => root.querySelector(selector);
const stored = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
const store = (name, value) => { try { localStorage.setItem(name, value); } catch { /* private window: not kept */ } };

let language = stored("language") ?? (navigator.language.startsWith("zh") ? "zh" : "en");
let latest = null; // the latest state
let offline = false;
const lanes = Object.fromEntries(["naive", "guarded"].map((name) => [name, { root: document.getElementById(name), history: [], answers: [], key: freshKey() }]));
const numbers = {
  naive: ["sold", "left", "oversold", "doubled", "requests", "sold_out", "errors", "p99_ms"],
  guarded: ["sold", "left", "oversold", "doubled", "requests", "replayed", "refused", "sold_out", "errors", "p99_ms", "wait50", "wait99"],
};

function freshKey() { return `"${Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("")}"`; }

for (const [name, lane] of Object.entries(lanes)) {
  lane.root.append($("#lane").content.cloneNode(true));
  for (const number of numbers[name]) {
    const cell = document.createElement("div");
    cell.innerHTML = `<dt data-t="${number}"></dt><dd data-n="${number}"></dd>`;
    $("dl", lane.root).append(cell);
  }
  $(".buy", lane.root).addEventListener("click", () => buy(name));
  $(".fresh", lane.root).addEventListener("click", () => { lane.key = freshKey(); lane.answers = []; answers(lane); });
}

// setText changes an element only where it differs, so that screen readers say what is new and nothing else.
function setText(element, text) { if (element.textContent !== text) element.textContent = text; }

function translate() {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  const t = texts[language];
  for (const element of document.querySelectorAll("[data-t]")) setText(element, t[element.dataset.t]);
  setText($("#lang"), t.language);
  $("#lang").lang = language === "zh" ? "en" : "zh-CN";
  document.title = `onelane: ${t.title}`;
  Object.values(lanes).forEach(answers);
  render();
}

function answers(lane) {
  const t = texts[language].answer;
  $("ol", lane.root).replaceChildren(...lane.answers.map(([kind, n]) => {
    const item = document.createElement("li");
    item.textContent = typeof t[kind] === "function" ? t[kind](n) : t[kind];
    return item;
  }));
}

function render() {
  const t = texts[language];
  setText($("#status"), offline ? t.offline : !latest || !latest.guarded.requests && !latest.running ? t.idle : latest.running ? t.running : t.over);
  $("#start").disabled = offline || !latest || latest.running;
  if (!latest) return;
  for (const [name, lane] of Object.entries(lanes)) {
    const s = { ...latest[name], wait50: latest.waits.p50_ms, wait99: latest.waits.p99_ms };
    for (const cell of lane.root.querySelectorAll("dd")) {
      const n = cell.dataset.n, v = s[n];
      setText(cell, n.endsWith("_ms") || n.startsWith("wait") ? t.ms(v) : v.toLocaleString(t.number));
      cell.classList.toggle("bad", (n === "oversold" || n === "doubled") && v > 0);
    }
    const bad = s.oversold > 0 || s.doubled > 0;
    const verdict = $(".verdict", lane.root);
    verdict.className = `verdict ${bad ? "bad" : s.done && s.ok ? "good" : ""}`;
    // While it runs the figures move: only the end is said in full.
    setText(verdict, s.error || (latest.running && !s.done ? t.selling : bad ? t.bad(s) : !s.requests ? t.unsold : s.errors ? t.incomplete : t.good));
    lane.root.classList.toggle("bad", bad);
    chart(lane, s, t);
  }
  nodes(t);
}

// chart draws the units sold over time against the stock.
function chart(lane, s, t) {
  const points = lane.history, svg = $("svg", lane.root);
  const most = Math.max(s.stock * 1.25, ...points.map((p) => p[1])), last = Math.max(points.at(-1)?.[0] ?? 0, 1);
  const y = (n) => 155 - 150 * n / most;
  $(".sold", svg).setAttribute("points", points.map(([x, n]) => `${600 * x / last},${y(n)}`).join(" "));
  for (const end of ["y1", "y2"]) $(".limit", svg).setAttribute(end, y(s.stock));
  $(".over", svg).setAttribute("height", y(s.stock));
  svg.setAttribute("aria-label", t.chart(s));
  setText($("figcaption", lane.root), t.chart(s));
}

function nodes(t) {
  const list = $("#nodes");
  latest.nodes.forEach((node, i) => {
    let item = list.children[i];
    if (!item) {
      item = document.createElement("li");
      item.append(document.createElement("span"), document.createElement("button"));
      $("button", item).addEventListener("click", () => send("PUT", `api/nodes/${i}`, { up: !latest.nodes[i].up }));
      list.append(item);
    }
    setText($("span", item), `${t.node} ${i + 1}: ${node.up ? t.up : t.down}`);
    $("span", item).className = node.up ? "" : "down";
    setText($("button", item), node.up ? t.cut : t.back);
    $("button", item).setAttribute("aria-label", `${node.up ? t.cut : t.back}: ${t.node} ${i + 1}`);
  });
}

async function send(method, url, body) {
  const answer = await fetch(url, { method, body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
  if (!answer.ok) setText($("#status"), await answer.text());
}

async function buy(name) {
  const lane = lanes[name];
  let line;
  try {
    const answer = await fetch(`${name}/orders`, {
      method: "POST", body: '{"units":1}',
      headers: { "Content-Type": "application/json", Authorization: "Bearer you", "Idempotency-Key": lane.key },
    });
    const { order, code } = await answer.json();
    if (answer.status === 201) line = [answer.headers.get("Idempotency-Replayed") ? "replayed" : "created", order];
    else if (code?.endsWith("_in_flight")) line = ["flight"];
    else line = answer.status === 410 ? ["gone"] : ["other", answer.status];
  } catch {
    line = ["other", "–"];
  }
  lane.answers = [...lane.answers, line].slice(-20);
  answers(lane);
}

$("#sale").addEventListener("submit", (event) => {
  event.preventDefault();
  for (const lane of Object.values(lanes)) { lane.history = [[0, 0]]; lane.answers = []; answers(lane); }
  const form = new FormData(event.target);
  send("POST", "api/sale", Object.fromEntries([...form].map(([k, v]) => [k, Number(v)])));
});

$("#lang").addEventListener("click", () => { language = language === "zh" ? "en" : "zh"; store("language", language); translate(); });

function theme(name) { document.documentElement.dataset.theme = name; }
theme(stored("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
$("#theme").addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  theme(next);
  store("theme", next);
});

const events = new EventSource("api/events");
events.onmessage = (event) => {
  offline = false;
  latest = JSON.parse(event.data);
  for (const [name, lane] of Object.entries(lanes)) {
    const s = latest[name], final = s.done && lane.history.at(-1)?.[0] === s.seconds;
    if (s.requests && !final) lane.history.push([s.seconds, s.sold]);
  }
  render();
};
events.onerror = () => { offline = true; render(); };

translate();
