// Shows the overview of the invalidator, and keeps up with it. It decides nothing: states, problems and remedies come
// from the process (invalidator/process/overview.py). Texts of the data become text, never markup: only textContent.

const ADDRESS = "v1/overview";
const SILENCE_SECONDS = 10; // without an event the connection counts as lost, also where it is open
const SILENCE_SHOWN_SECONDS = 4;
const RETRY_SECONDS = [1, 2, 4, 8];
const TOKEN = "freshness.token";

const find = (id) => document.getElementById(id);

// -- texts ------------------------------------------------------------------------------------------------------

function formatSeconds(seconds) {
  if (seconds === null) return "–";
  const size = Math.abs(seconds);
  if (size < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (size < 1) return `${+(seconds * 1000).toPrecision(2)} ms`;
  if (size < 120) return `${seconds.toFixed(1)} s`;
  return size < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

const formatTime = (seconds) => `${new Date(seconds * 1000).toISOString().slice(11, 19)} UTC`;
const formatDay = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 10);
const formatRate = (number) =>
  `${number >= 100 ? Math.round(number).toLocaleString("en") : +number.toPrecision(2)}/s`;

function formatMoment(seconds, now) {
  return formatDay(seconds) === formatDay(now) ? formatTime(seconds) : `${formatDay(seconds)} ${formatTime(seconds)}`;
}

function formatClock(difference) {
  if (difference === null) return "not known";
  const middle = (difference.at_least + difference.at_most) / 2;
  const error = (difference.at_most - difference.at_least) / 2;
  return `${middle < 0 ? "−" : "+"}${formatSeconds(Math.abs(middle))} ± ${formatSeconds(error)}`;
}

// -- elements ---------------------------------------------------------------------------------------------------

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, kind = "", text = "") {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  if (text) element.textContent = text;
  return element;
}

function mark(element, kind, text) {
  const name = `mark ${kind}`;
  if (element.className !== name) element.className = name;
  put(element, text);
}

// One child of `parent` for each entry, in their order. Those of the same name stay, so that focus and selection do.
function showEach(parent, entries, nameOf, create, show) {
  const held = new Map([...parent.children].map((child) => [child.dataset.name, child]));
  entries.forEach((entry, at) => {
    const name = nameOf(entry);
    let child = held.get(name);
    if (child === undefined) {
      child = create(entry);
      child.dataset.name = name;
    }
    held.delete(name);
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] ?? null);
    show(child, entry);
  });
  for (const child of held.values()) child.remove();
}

// -- parts of the page ------------------------------------------------------------------------------------------

const SHARD_KINDS = { streaming: "good", connecting: "warn", waiting: "bad", stopped: "bad" };
const NODE_KINDS = { open: "good", closed: "warn", lapsed: "bad", "not joined": "bad" };
const LEVEL_KINDS = { WARNING: "warn", ERROR: "bad", CRITICAL: "bad" };

function createItem() {
  const item = make("li", "item");
  item.append(make("span"), " ", make("strong"), make("p"), make("p", "remedy"));
  return item;
}

function showItem(item, kind, word, where, message, remedy) {
  const [sign, title, text, hint] = item.children;
  mark(sign, kind, word);
  put(title, where);
  put(text, message);
  put(hint, remedy);
  hint.hidden = !remedy;
}

function showProblems(problems) {
  find("problem-section").hidden = problems.length === 0;
  showEach(
    find("problems"),
    problems,
    (each) => each.where,
    createItem,
    (item, each) => {
      const kind = each.severity === "error" ? "bad" : "warn";
      showItem(item, kind, each.severity, each.where, each.message, each.remedy);
    },
  );
}

const FACTS = [
  ["behind", "Behind, at most", "big"],
  ["lag", "Lag: median, 99 %, highest", "wide"],
  ["transactions", "Transactions", "big"],
  ["keys", "Keys invalidated"],
  ["log", "Log read from"],
  ["clock", "Primary's clock"],
];

function createShard() {
  const card = make("article", "card");
  const title = make("h3");
  title.append(make("span"), make("span"));
  const facts = make("dl");
  for (const [name, label, kind] of FACTS) {
    const fact = make("div", kind);
    const value = make("dd");
    value.dataset.fact = name;
    fact.append(make("dt", "", label), value);
    facts.append(fact);
  }
  const plots = make("div", "plots");
  plots.append(createPlot(), createPlot());
  card.append(title, facts, plots, make("p", "position soft"));
  return card;
}

function showShard(card, shard) {
  const [title, facts, plots, position] = card.children;
  put(title.children[0], shard.lineage);
  const isClosed = !shard.serving && shard.state === "streaming";
  mark(title.children[1], isClosed ? "none" : SHARD_KINDS[shard.state], isClosed ? "followed, does not serve" : shard.state);
  const fact = (name) => facts.querySelector(`[data-fact=${name}]`);
  const lag = shard.lag_seconds;
  put(fact("behind"), formatSeconds(shard.behind_seconds));
  put(fact("lag"), [lag.median, lag.p99, lag.max].map(formatSeconds).join(", "));
  put(fact("transactions"), formatRate(shard.transactions_per_second));
  put(fact("keys"), formatRate(shard.keys_per_second));
  const server = shard.log_server || "no server";
  put(fact("log"), shard.log_server === shard.primary ? `${server}, the primary` : `${server}; the primary is ${shard.primary}`);
  put(fact("clock"), formatClock(shard.primary_clock_seconds));
  const { bucket_seconds: seconds, transactions, lag_max_seconds: lags } = shard.history;
  const rates = transactions.map((count) => count / seconds);
  showPlot(plots.children[0], lags, "Lag", formatSeconds);
  showPlot(plots.children[1], rates, "Transactions", formatRate);
  put(position, shard.position ? `Position ${shard.position}` : "No position yet");
}

const SVG = "http://www.w3.org/2000/svg";

function createPlot() {
  const figure = make("figure");
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("preserveAspectRatio", "none");
  picture.setAttribute("aria-hidden", "true"); // the caption says it
  picture.append(document.createElementNS(SVG, "path"));
  figure.append(picture, make("figcaption"));
  return figure;
}

// A bar for each value; none where the value is null.
function showPlot(figure, values, title, format) {
  const [picture, caption] = figure.children;
  const known = values.filter((value) => value !== null);
  const top = Math.max(...known, 0);
  const bars = values.map((value, at) => {
    const height = value === null || top === 0 ? 0 : Math.max((value / top) * 100, value > 0 ? 2 : 0);
    return height ? `M${at} ${100 - height}h.8V100h-.8z` : "";
  });
  picture.setAttribute("viewBox", `0 0 ${values.length} 100`);
  picture.firstChild.setAttribute("d", bars.join(""));
  put(caption, `${title}, 5 minutes: ${known.length ? `at most ${format(top)}` : "none"}`);
}

function createNode() {
  const row = make("tr");
  row.setAttribute("role", "row");
  for (const title of document.querySelectorAll("#nodes th")) {
    const cell = make("td");
    cell.setAttribute("role", "cell");
    cell.dataset.title = title.textContent;
    cell.append(make("span"));
    row.append(cell);
  }
  return row;
}

function showNode(row, node, isServing) {
  const [name, shard, state, lease, heartbeat, progress, stripes] = [...row.children].map((cell) => cell.firstChild);
  const isClosed = node.state === "closed" && !isServing;
  put(name, node.node);
  put(shard, node.lineage);
  mark(state, isClosed ? "none" : NODE_KINDS[node.state], node.state);
  put(lease, formatSeconds(node.lease_seconds_left));
  put(heartbeat, node.heartbeat_age_seconds === null ? "–" : `${formatSeconds(node.heartbeat_age_seconds)} old`);
  put(progress, node.progress || "–");
  put(stripes, node.state === "not joined" ? "–" : node.has_all_stripes ? "all" : "some are missing");
}

function showReshards(reshards) {
  find("reshard-section").hidden = reshards.length === 0;
  const shards = reshards.flatMap((reshard) => reshard.shards.map((shard) => ({ ...reshard, ...shard })));
  showEach(
    find("reshards"),
    shards,
    (each) => each.lineage,
    createItem,
    (item, each) => {
      const beside = each.beside.length ? each.beside.join(", ") : "no shard";
      const continues = each.continues.length ? `It continues ${each.continues.join(", ")}. ` : "";
      const message = `${continues}Its keys are served by ${beside}. Topology ${each.topology}.`;
      showItem(item, "none", "does not serve", each.lineage, message, "");
    },
  );
}

function showTroubles(troubles, now) {
  find("no-troubles").hidden = troubles.length > 0;
  showEach(
    find("troubles"),
    troubles,
    (each) => `${each.logger} ${each.message}`,
    createItem,
    (item, each) => {
      const last = formatMoment(each.last_at, now);
      const when = each.count === 1 ? last : `${last}, ${each.count} times since ${formatMoment(each.first_at, now)}`;
      // The remedy stands at the end of most messages
      const told = each.hint && each.message.includes(each.hint) ? each.message.replace(` (${each.hint})`, "") : each.message;
      showItem(item, LEVEL_KINDS[each.level] ?? "warn", each.level.toLowerCase(), when, told, each.hint);
    },
  );
}

function showOverview(overview) {
  put(find("namespace"), overview.namespace);
  put(find("version"), `freshness ${overview.version}, topology ${overview.topology}`);
  showProblems(overview.problems);
  showReshards(overview.reshards);
  const previous = overview.previous_nodes;
  find("previous-nodes").hidden = previous.length === 0;
  const sentence = "keys are sent to the previous nodes, too. invalidator nodes says who still reads by these";
  put(find("previous-nodes"), `Nodes are added or removed: ${sentence}: ${previous.join(", ")}.`);
  showEach(find("shards"), overview.shards, (each) => each.lineage, createShard, showShard);
  const serving = new Set(overview.shards.filter((each) => each.serving).map((each) => each.lineage));
  showEach(
    document.querySelector("#nodes tbody"),
    overview.nodes,
    (each) => `${each.node} ${each.lineage}`,
    createNode,
    (row, each) => showNode(row, each, serving.has(each.lineage)),
  );
  showTroubles(overview.troubles, overview.now);
}

// -- the connection ---------------------------------------------------------------------------------------------

const state = { overview: null, heardAt: 0, failure: "" }; // heardAt: by performance.now()

function showVerdict() {
  const { overview, failure } = state;
  const silent = overview === null ? Infinity : (performance.now() - state.heardAt) / 1000;
  const isStale = silent > SILENCE_SHOWN_SECONDS || failure !== "";
  const connection = find("connection");
  find("main").className = isStale ? "stale" : "";
  connection.className = isStale && overview !== null ? "lost" : "";
  const banner = find("verdict");
  let kind = "none";
  let verdict = failure ? "Nothing is known" : "Nothing is known yet";
  if (overview === null) {
    put(connection, failure ? `${failure}; trying again …` : "Connecting …");
    if (failure) kind = "bad";
  } else if (isStale) {
    kind = "bad";
    verdict = `No connection since ${formatMoment(overview.now, Date.now() / 1000)}: what stands below is of then`;
    const why = failure ? `${failure}; ` : "";
    put(connection, `Last news ${formatSeconds(silent)} ago; ${why}trying again …`);
  } else {
    const isBad = overview.problems.some((each) => each.severity === "error");
    kind = isBad ? "bad" : overview.problems.length ? "warn" : "good";
    verdict = overview.summary;
    put(connection, `Live, as of ${formatTime(overview.now)}`);
  }
  if (banner.className !== `banner ${kind}`) banner.className = `banner ${kind}`;
  put(banner, verdict);
  const sign = { good: "✓", warn: "▲", bad: "✕", none: "…" }[kind];
  const name = overview === null ? "freshness" : overview.namespace;
  document.title = `${sign} ${verdict} – ${name} invalidator`;
}

function hear(overview) {
  Object.assign(state, { overview, heardAt: performance.now(), failure: "" });
  showOverview(overview);
  showVerdict();
}

// The events of a body of text/event-stream; for lines that our service writes.
async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      const data = event.split("\n").filter((line) => line.startsWith("data: "));
      yield JSON.parse(data.map((line) => line.slice(6)).join("\n"));
    }
  }
}

async function describeRefusal(response) {
  try {
    const { message, hint } = (await response.json()).detail;
    return hint ? `${message} (${hint})` : message;
  } catch {
    return `the answer is ${response.status}`;
  }
}

async function follow() {
  const aborting = new AbortController();
  let heard = performance.now();
  const watching = setInterval(() => {
    if (performance.now() - heard > SILENCE_SECONDS * 1000) aborting.abort();
  }, 500);
  const token = sessionStorage.getItem(TOKEN);
  const headers = { Accept: "text/event-stream", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  try {
    const response = await fetch(ADDRESS, { headers, signal: aborting.signal, cache: "no-store" });
    if (!response.ok) {
      state.failure = await describeRefusal(response);
      if (response.status === 401 || response.status === 403) await askForToken(token ? state.failure : "");
      return false;
    }
    for await (const overview of readEvents(response.body)) {
      heard = performance.now();
      hear(overview);
    }
    state.failure = "the service ended the stream";
    return true;
  } catch {
    state.failure = aborting.signal.aborted ? "the service is silent" : "the service is not reached";
    return false;
  } finally {
    clearInterval(watching);
  }
}

function askForToken(refusal) {
  sessionStorage.removeItem(TOKEN);
  const form = find("access");
  form.hidden = false;
  find("refusal").hidden = !refusal;
  put(find("refusal"), refusal);
  showVerdict();
  find("token").focus();
  return new Promise((resolve) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(TOKEN, find("token").value.trim());
      find("token").value = "";
      form.hidden = true;
      state.failure = "";
      resolve();
    };
  });
}

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

async function main() {
  setInterval(showVerdict, 1000);
  for (let failures = 0; ; failures += 1) {
    if (await follow()) failures = 0;
    showVerdict();
    await pause(RETRY_SECONDS[Math.min(failures, RETRY_SECONDS.length - 1)]);
  }
}

main();
