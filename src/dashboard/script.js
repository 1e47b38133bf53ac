// Script of the dashboard. It requests metrics relative to its own address, and renders them into #fleeting, on any page.
//
// 1. Names and keys may come from untrusted clients: all texts are set through textContent, never as HTML.
// 2. A missing number is shown as a dash, and an answer other than 200 as a sentence.
// 3. Browsers open six connections to a server, and a stream takes one. So one of all tabs receives the stream, requests
//    the samples that it announces, and forwards them to the others (`share`). A tab that receives nothing polls.

// Time without an event after which a tab polls, and interval of polls, in ms; longest pause between retries, in s.
// A service that cannot be reached may be restarting, and costs nothing to ask.
const SILENCE = 12_000, POLL = 2_000, LONGEST_PAUSE = 15, PAUSE_OF_RESTART = 2;
const UNREACHABLE = "The service is unreachable.";
const relative = path => new URL(path, import.meta.url);

// --- Receiving ---------------------------------------------------------------------------------------------------

// Receives a stream of events in one of all tabs. There it calls `resolve(name, data)` for each event, which returns the
// message for all tabs, or a sentence as its `problem`, or null. By default, the message is the event. In each tab, it
// calls `onOpen()` when the stream begins, `onEvent(name, data)` with the message, and `onProblem(sentence, seconds)` if
// the stream fails and is retried after `seconds`. `current()` returns the last message for tabs that join later. Returns null if the browser cannot do
// this, as on a page over plain HTTP.
export function share(address, options) {
  const { onOpen = () => {}, onEvent, onProblem, current = () => null } = options;
  const { resolve = (name, data) => ({ name, data }) } = options;
  if (!navigator.locks || !window.BroadcastChannel) return null;
  const name = `fleeting ${address}`;
  const channel = new BroadcastChannel(name);
  let isLeader = false;
  const broadcast = message => { channel.postMessage(message); deliver(message); };
  const deliver = message => {
    if (message.problem) onProblem(message.problem, message.seconds);
    else if (message.isOpen) onOpen();
    else if (message.name) onEvent(message.name, message.data);
  };
  channel.onmessage = ({ data }) => {
    if (!data.ask) return deliver(data);
    const answer = isLeader ? current() : null;
    if (answer) channel.postMessage(answer);
  };
  // This tab holds the lock until it is closed; then another tab gets it.
  navigator.locks.request(name, async () => {
    isLeader = true;
    for (let pause = 0; ;) {
      const began = performance.now();
      const opened = () => broadcast({ isOpen: true });
      let problem = await listen(address, opened, async (name, data) => {
        const message = await resolve(name, data);
        if (message?.problem) return message.problem;
        pause = 0;
        if (message) broadcast(message);
        return null;
      });
      // Without a pause, a stream that always ends at once would be requested in a busy loop.
      const lasted = performance.now() - began;
      if (!problem && lasted > 1000) continue;
      if (lasted > SILENCE) pause = 0;
      problem ??= "The stream was interrupted.";
      pause = Math.min(2 * pause || 1, longestPause(problem));
      broadcast({ problem, seconds: pause });
      await wait(pause * 1000);
    }
  });
  return { ask: () => channel.postMessage({ ask: true }) };
}

// Reads the stream until it ends, or until `onEvent` returns a sentence; returns a sentence if there is a problem. It uses
// `fetch`, because an EventSource does not retry after an error of a proxy, and does not report the status.
async function listen(address, onOpen, onEvent) {
  const stop = new AbortController();
  let timeout, hasEvents = false;
  const restartTimer = () => {
    clearTimeout(timeout);
    timeout = setTimeout(() => stop.abort(), 2 * SILENCE);
  };
  restartTimer();
  try {
    const answer = await fetch(address, { signal: stop.signal, headers: { accept: "text/event-stream" } });
    const problem = refusal(answer, "text/event-stream");
    if (problem) return problem;
    onOpen();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ;) {
      const { value, done } = await reader.read();
      // A stream that ends without an event counts as a failure.
      if (done) return hasEvents ? null : "The service ended the stream.";
      restartTimer();
      const events = (text + value).split("\n\n");
      text = events.pop();
      for (const event of events) {
        let name = "message", data = "";
        for (const line of event.split("\n")) {
          if (line.startsWith("event:")) name = line.slice(6).trim();
          if (line.startsWith("data:")) data += line.slice(5).trimStart();
        }
        if (!data) continue;
        hasEvents = true;
        const problem = await onEvent(name, JSON.parse(data));
        if (problem) return problem;
      }
    }
  } catch {
    return hasEvents && !stop.signal.aborted ? null : UNREACHABLE;
  } finally {
    clearTimeout(timeout);
    stop.abort();
  }
}

const longestPause = problem => problem === UNREACHABLE ? PAUSE_OF_RESTART : LONGEST_PAUSE;

// Describes the problem of an answer as a sentence; null if there is none.
export function refusal(answer, type) {
  const status = answer.status;
  if (status === 401 || status === 403) return `Access denied (${status}): log in again.`;
  if (status === 429) return "The service rejects the request: too many requests (429).";
  if (status >= 502 && status <= 504) return `A proxy cannot reach the service (${status}).`;
  if (!answer.ok) return `The service answers with ${status}.`;
  if (!(answer.headers.get("content-type") ?? "").startsWith(type)) {
    return "The answer is not from the service: possibly a login page.";
  }
  return null;
}

// Waits, but not longer than until the user returns to the page or the browser is online again.
function wait(ms) {
  return new Promise(resolve => {
    const end = () => {
      clearTimeout(timer);
      removeEventListener("online", end);
      document.removeEventListener("visibilitychange", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    addEventListener("online", end);
    document.addEventListener("visibilitychange", end);
  });
}

// --- State -------------------------------------------------------------------------------------------------------

const POINTS = 300;
let all = null, shownAt = null, lastEventAt = -Infinity;
// The history of the last hour by the key of a group, while it is shown; null while five minutes are shown.
let hour = null, onRange = () => {};
const place = document.getElementById("fleeting");
const state = document.getElementById("fleeting-state");
const key = group => `${group.kind} ${group.name}`;

const shared = share(relative("stream").href, {
  resolve: (_, news) => requestNews(news),
  onEvent(name, data) {
    lastEventAt = performance.now();
    if (name === "metrics") showAll(data);
    else addSample(data);
  },
  onProblem(sentence, seconds) {
    // A visible tab polls on its own, and shows the result of that.
    lastEventAt = -Infinity;
    if (document.hidden) showProblem(sentence, seconds);
  },
  current: () => all && { name: "metrics", data: all },
});

// Requests what the stream announces: the next sample, or everything if this tab missed one. Returns null if it is known.
async function requestNews({ boot, number }) {
  const isKnown = all?.boot === boot;
  if (isKnown && number <= all.number) return null;
  if (isKnown && number === all.number + 1) {
    const { problem, data } = await request("sample");
    if (problem) return { problem };
    // A later one, if this tab was slow.
    if (data.boot === boot && data.number === number) return { name: "sample", data };
  }
  return { name: "metrics", ...await request("metrics") };
}

function showAll(metrics) {
  all = metrics;
  showLive();
}

function addSample(sample) {
  if (!all || sample.boot !== all.boot || sample.number !== all.number + 1) {
    // This tab missed a sample: request everything from the tab with the stream. An older sample is ignored.
    if (!all || sample.boot !== all.boot || sample.number > all.number) shared.ask();
    return;
  }
  const known = new Map(all.groups.map(group => [key(group), group.history]));
  for (const group of sample.groups) {
    group.history = known.get(key(group)) ?? {};
    for (const [line] of CHARTS[group.kind].flatMap(([, lines]) => lines)) {
      const point = group.rates[line] ?? group.levels[line];
      // An unknown value is null, and has its point, too: without it, all older ones would move.
      if (point === undefined) continue;
      const points = group.history[line] ??= [];
      points.push(point);
      points.splice(0, points.length - POINTS);
    }
  }
  all = sample;
  showLive();
}

// Polls while no event arrives.
async function poll() {
  for (let pause = 0; ;) {
    if (document.hidden || performance.now() - lastEventAt <= SILENCE) {
      pause = 0;
    } else {
      const problem = await ask();
      pause = problem ? Math.min(2 * pause || 2, longestPause(problem)) : 0;
      // The stream may have returned in the meantime.
      if (problem && performance.now() - lastEventAt > SILENCE) showProblem(problem, pause);
    }
    await wait(Math.max(POLL, pause * 1000));
  }
}

// Requests JSON; returns it as `data`, or a sentence as `problem`.
async function request(path) {
  const answer = await fetch(relative(path), { signal: AbortSignal.timeout(SILENCE) });
  const problem = refusal(answer, "application/json");
  return problem ? { problem } : { data: await answer.json() };
}

// Requests the metrics once; returns a sentence if there is a problem.
async function ask() {
  try {
    const { problem, data } = await request("metrics");
    if (!problem) showAll(data);
    return problem;
  } catch {
    return UNREACHABLE;
  }
}

// Requests the history of the last hour every ten seconds, while it is shown. After a failure the old one stays.
async function pollHour() {
  for (;;) {
    if (hour && !document.hidden) {
      try {
        const answer = await fetch(relative("hour"), { signal: AbortSignal.timeout(SILENCE) });
        if (answer.ok) {
          const { groups } = await answer.json();
          if (hour) hour = new Map(groups.map(group => [key(group), group.history]));
          draw();
        }
      } catch {
        // The state of the connection is shown by the other requests.
      }
    }
    await Promise.race([wait(10_000), new Promise(resolve => onRange = resolve)]);
  }
}

function showLive() {
  setState("live", `Live. fleeting ${all.version}.`);
  const { host, id, since_ms } = all.process;
  set(processLine, `Process ${id}${host ? ` on ${host}` : ""}, since ${new Date(since_ms).toLocaleString("en-GB")} (${age(Date.now() - since_ms)}).`);
  for (const [output, { sentence, since }] of failed) {
    // Long enough to be read, as a single request may fail while the stream continues.
    if (performance.now() - since < 5_000) continue;
    if (output.textContent === sentence) output.textContent = "\u00a0";
    failed.delete(output);
  }
  draw();
}

function showProblem(sentence, seconds) {
  const old = shownAt ? ` Showing data from ${shownAt.toLocaleTimeString("en-GB")}.` : "";
  setState("problem", `${sentence} Next try in ${seconds} s.${old}`);
}

function setState(kind, sentence) {
  if (kind === "live") shownAt = new Date();
  state.className = kind;
  // Old values are dimmed.
  place.classList.toggle("stale", kind === "problem");
  // Only on a change: screen readers announce every assignment.
  if (state.textContent !== sentence) state.textContent = sentence;
}

const failed = new Map();

// Shows in the output of a form why its request did not reach the service, until the service is reachable again.
export function showFailure(output, sentence = UNREACHABLE) {
  output.textContent = sentence;
  failed.set(output, { sentence, since: performance.now() });
}

// --- Rendering ---------------------------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const is = number => typeof number === "number" && Number.isFinite(number);
const count = number => !is(number) ? "–" : Math.abs(number) < 1e6 ? whole.format(number) : short.format(number);
const rate = number => !is(number) ? "–" : number < 10 && number % 1 ? number.toFixed(1) : count(number);
const share100 = ratio => is(ratio) ? `${(100 * ratio).toFixed(1)} %` : "–";
const time = ms => !is(ms) ? "–"
  : ms < 10 ? `${+ms.toFixed(2)} ms` : ms < 10_000 ? `${count(ms)} ms` : `${count(ms / 1000)} s`;
const age = ms => ms < 6e5 ? time(ms) : ms < 72e5 ? `${count(ms / 6e4)} min` : ms < 1728e5 ? `${count(ms / 36e5)} h` : `${count(ms / 864e5)} days`;

export function make(tag, attributes = {}, ...children) {
  const element = ["svg", "path"].includes(tag)
    ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A text whose direction (left to right or right to left) does not affect the text around it.
const isolated = (text, kind = "") => make("bdi", { class: kind, title: text }, text);

// Sections of the page, in this order.
const KINDS = {
  cache: "Caches", limiter: "Limiters", dict: "Timeout dictionaries", queue: "Directory queues", spool: "Spools",
  set: "Expiring sets", redis_cache: "Caches on Redis, as this process sees them",
  redis_limiter: "Limiters on Redis, as this process sees them", redis_client: "Connections to Redis, by key prefix",
};
// Kinds that are shown in the section of another, with a note after their names.
const SECTIONS = { redis_dict: ["dict", "on Redis"] };
const sectionKind = kind => SECTIONS[kind]?.[0] ?? kind;

// For each chart: its title, its lines with their words, and its unit.
const CHARTS = {
  cache: [["Hits and misses", [["hits", "hits"], ["misses", "misses"]], "/s"],
    ["Expired and evicted", [["expired", "expired"], ["evicted", "evicted"]], "/s"]],
  limiter: [["Allowed and denied", [["allowed", "allowed"], ["denied", "denied"]], "/s"]],
  dict: [["Due and leased entries", [["waiting", "due"], ["leased", "leased"]], ""],
    ["Acknowledged and failed", [["acked", "acknowledged"], ["failed", "failed"]], "/s"]],
  queue: [["Waiting and locked elements", [["waiting", "waiting"], ["locked", "locked"]], ""],
    ["Added and removed by this process", [["added", "added"], ["removed", "removed"]], "/s"]],
  spool: [["Backlog", [["backlog", "backlog"]], ""], ["Written", [["written", "written"]], "/s"]],
  set: [["Expired", [["expired", "expired"]], "/s"]],
  redis_cache: [["Hits and misses", [["hits", "hits"], ["misses", "misses"]], "/s"], ["Expired", [["expired", "expired"]], "/s"]],
  redis_limiter: [["Allowed and denied", [["allowed", "allowed"], ["denied", "denied"]], "/s"]],
  redis_client: [["Commands and failures", [["commands", "commands"], ["failures", "failures"]], "/s"]],
};
CHARTS.redis_dict = CHARTS.dict;

// Rows that several kinds have. A row is a label, a value, a note, and true if a threshold is exceeded.
const hitRatio = ({ rates, recent }) => ["Hit ratio", share100(recent.hit_ratio),
  is(recent.hit_ratio) ? `last minute, ${rate(rates.hits + rates.misses)} reads/s` : "no reads in the last minute"];
const perSecond = (label, { counts, rates }, name) => [label, rate(rates[name]), `${count(counts[name])} total`];
const deniedShare = ({ recent }) => ["Denied, share", share100(recent.denied_ratio),
  is(recent.denied_ratio) ? "last minute" : "no calls in the last minute", recent.denied_ratio > .5];
const missed = ({ counts, levels, recent }) => ["Missed by slow subscribers", count(counts.missed),
  recent.missed ? `${count(recent.missed)} in the last minute`
    : levels.overflow > 0 ? `${count(levels.overflow)} above a lossless capacity` : "events",
  recent.missed > 0 || levels.overflow > 0];
const overflow = ({ levels }) => ["Lossless events above capacity", count(levels.overflow), "", levels.overflow > 0];
const dead = ({ levels }, word) => ["Dead", count(levels.dead), word, levels.dead > 0];
// Durations are rounded up by at most a quarter, and a sweep takes time too.
const delayBound = ({ levels, recent }) => levels.delay_bound_ms > 0
  ? 1.25 * (levels.delay_bound_ms + (recent.sweep_p99_ms ?? 0)) : Infinity;
const lag = group => {
  const { levels, recent } = group, isLate = recent.lag_p99_ms > delayBound(group);
  const note = !is(recent.lag_p99_ms) ? (levels.subscribers ? "no event in the last minute" : "no subscribers")
    : isLate ? `above ${time(levels.delay_bound_ms)}` : `p50 ${time(recent.lag_p50_ms)}, last minute`;
  return ["Event lag, p99", time(recent.lag_p99_ms), note, isLate];
};

// The rows of each kind: large on a card, and the columns of the table of many.
const METRICS = {
  cache: group => [
    ["Entries", count(group.levels.entries), group.levels.weight !== group.levels.entries ? `weight ${count(group.levels.weight)}` : `${count(group.rates.sets)} set/s`],
    ["Full", group.levels.limit ? share100(group.levels.weight / group.levels.limit) : "–", group.levels.limit ? `of ${count(group.levels.limit)}` : "no bound"],
    hitRatio(group), perSecond("Expired/s", group, "expired"), perSecond("Evicted/s", group, "evicted"),
    lag(group), missed(group),
  ],
  limiter: group => [
    perSecond("Allowed/s", group, "allowed"), perSecond("Denied/s", group, "denied"), deniedShare(group),
    ["Keys", count(group.levels.keys), "in memory"],
  ],
  dict: group => [
    ["Due", count(group.levels.waiting), group.recent.not_drained ? "none taken for a minute" : "not leased", group.recent.not_drained],
    ["Leased", count(group.levels.leased), `${rate(group.rates.claims)} claims/s`],
    ["Resting", count(group.levels.resting), "failed, will be retried"], dead(group, "letters"),
    ["Oldest", group.levels.waiting ? age(group.levels.oldest_ms) : "–", group.levels.waiting === 0 ? "nothing is due" : "since it was due"],
    perSecond("Acknowledged/s", group, "acked"), perSecond("Failed/s", group, "failed"),
    ["Entries", count(group.levels.entries), "in all states"],
  ],
  queue: group => [
    ["Length", count(group.levels.length), is(group.levels.length) ? "measured on the disk"
      : group.recent.unmeasured ? "the disk does not answer" : "not measured yet", group.recent.unmeasured],
    ["Waiting", count(group.levels.waiting), group.recent.not_drained ? "not fewer for a minute" : "not locked", group.recent.not_drained],
    ["Locked", count(group.levels.locked), "by all processes"],
    ["Resting", count(group.levels.resting), "failed, in backoff"], dead(group, "letters"),
    ["Oldest", group.levels.oldest_ms ? age(group.levels.oldest_ms) : "–", "since it was added"],
    perSecond("Added/s", group, "added"), perSecond("Removed/s", group, "removed"),
  ],
  spool: group => [
    ["Backlog", count(group.levels.backlog), "events in memory"], perSecond("Written/s", group, "written"),
    ["Stalled", group.levels.stalled_ms ? age(group.levels.stalled_ms) : "no", group.levels.stalled_ms ? "the queue rejects writes" : "writes succeed", group.levels.stalled_ms > 0],
    ["Failures", count(group.counts.failures), "of attempts to write"],
    ["Lost", count(group.counts.unwritable + group.counts.skipped), "events", group.counts.unwritable + group.counts.skipped > 0],
  ],
  set: group => [
    ["Members", count(group.levels.entries), "in memory"], perSecond("Expired/s", group, "expired"), lag(group), missed(group),
  ],
  redis_cache: group => [
    hitRatio(group), ["Hits", count(group.counts.hits), `${count(group.counts.misses)} misses`],
    ["Expired/s", rate(group.rates.expired), is(group.counts.expired) ? `${count(group.counts.expired)} total` : "no subscribers in this process"],
    missed(group),
  ],
  redis_limiter: group => [
    perSecond("Allowed/s", group, "allowed"), perSecond("Denied/s", group, "denied"), deniedShare(group), breaker(group),
  ],
  redis_client: group => [
    connection(group), perSecond("Commands/s", group, "commands"), perSecond("Failures/s", group, "failures"),
    ["Failed, share", share100(group.recent.failed_ratio),
      is(group.recent.failed_ratio) ? "last minute" : "no commands in the last minute", group.recent.failed_ratio > 0.05],
    ["Recoveries", count(group.counts.reconnects), "replies after failures"],
  ],
};
// Other processes may take entries, too. Their leases are not known: the leased entries are the claims of this one.
METRICS.redis_dict = group => METRICS.dict(group).map(([label, value, note, isAlarm]) => [label, value,
  label === "Leased" ? "by this process" : label === "Due" && !is(group.levels.waiting) ? "not measured"
    : label === "Due" && isAlarm ? "not fewer for a minute" : note, isAlarm]);

// While a server is unreachable, calls do not wait for it.
function connection({ counts, levels }) {
  if (levels.unreachable > 0) return ["Connection", "lost", `calls fail, for ${age(levels.unreachable_ms)}`, true];
  return ["Connection", counts.commands ? "works" : "–", counts.commands ? "no outage" : "not used yet"];
}

function breaker({ counts, levels }) {
  const isOpen = levels.breakers_open + levels.breakers_half_open > 0;
  const word = levels.breakers_open ? "open" : isOpen ? "half open" : "closed";
  return ["Circuit breaker", word, `${count(counts.errors)} failed calls`, isOpen];
}

// Further metrics, in a table that can be expanded.
const MORE = {
  cache: ({ counts, levels, rates, recent }) => [
    ["Hits", count(counts.hits)], ["Misses", count(counts.misses)], ["Set", count(counts.sets)],
    ["Removed", count(counts.removed)], ["Replaced", count(counts.replaced)],
    ["Max. expiry delay", time(levels.staleness_ms), "", levels.staleness_ms > delayBound({ levels, recent })],
    ["Max. expiry delay by the settings of sweeps", levels.delay_bound_ms ? time(levels.delay_bound_ms) : "–"],
    ["Sweeps/s", rate(rates.sweeps)], ["Duration of sweeps, p99", time(recent.sweep_p99_ms)],
    ["Examined by sweeps/s", count(rates.looked_at)], ["Subscribers", count(levels.subscribers)], overflow({ levels }),
  ],
  limiter: ({ counts }) => [
    ["Admitted after waiting", count(counts.waited)], ["Would be denied (dry run)", count(counts.shadowed)],
    ["Checks of keys above max_keys", count(counts.overflowed)],
  ],
  redis_limiter: ({ counts }) => [
    ["Admitted after waiting", count(counts.waited)], ["Would be denied (dry run)", count(counts.shadowed)],
    ["Decided without the server", count(counts.by_policy)],
  ],
  spool: ({ counts }) => [
    ["Events that could not be written as JSON", count(counts.unwritable)],
    ["Events too large for the queue", count(counts.skipped)], ["Events not synced to the disk", count(counts.unsynced)],
  ],
  set: ({ levels }) => [
    ["Max. expiry delay by the settings of sweeps", time(levels.delay_bound_ms)],
    ["Subscribers", count(levels.subscribers)], overflow({ levels }),
  ],
};

// More objects of a kind than this are shown as a table, whose rows open their cards.
const MOST_CARDS = 5;
const cards = new Map(), sections = new Map();
let isScheduled = false;

// At most once per frame, and not at all in a hidden tab.
function draw() {
  if (isScheduled || !all) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    const seen = new Set();
    for (const group of all.groups) {
      seen.add(key(group));
      if (!cards.has(key(group))) cards.set(key(group), cardOf(group));
    }
    for (const [name, card] of cards) {
      if (seen.has(name)) continue;
      card.remove();
      cards.delete(name);
    }
    for (const section of sections.values()) {
      const size = section.list.childElementCount;
      section.element.hidden = !size;
      section.table.element.hidden = size <= MOST_CARDS;
    }
    // After the number of cards is known, because it decides which of them are visible.
    const marked = new Map();
    for (const group of all.groups) {
      if (!cards.get(key(group)).show(group)) continue;
      const kind = sectionKind(group.kind);
      marked.set(kind, [...marked.get(kind) ?? [], group.name]);
    }
    const words = [...marked].map(([kind, names]) =>
      `${KINDS[kind].split(",")[0]} (${names.length > 2 ? names.length : names.join(", ")})`);
    set(summary, words.length ? `Above a threshold: ${words.join(", ")}.` : "");
    summary.hidden = !words.length;
    nothing.hidden = cards.size > 0;
    range.hidden = !cards.size;
  });
}

const nothing = make("p", { class: "soft" }, "This process has no cache, limiter, dictionary, set, queue or spool.");
nothing.hidden = true;

// The choice between five minutes and an hour.
const range = make("div", { class: "range", role: "group", "aria-label": "Time shown by the charts" });
for (const [label, isHour] of [["5 minutes", false], ["1 hour", true]]) {
  const button = make("button", { type: "button", class: "quiet", "aria-pressed": String(!isHour) }, label);
  button.addEventListener("click", () => {
    hour = isHour ? hour ?? new Map() : null;
    for (const other of range.children) other.setAttribute("aria-pressed", String(other === button));
    onRange();
    draw();
  });
  range.append(button);
}
range.hidden = true;
// The sections with marked values, which may be far below: the names of one or two objects, or their number.
const summary = make("p", { class: "summary alarm", dir: "auto" });
summary.hidden = true;
// For operators of several instances.
const processLine = make("p", { class: "process soft", dir: "auto" });
place.replaceChildren(processLine, nothing, range, summary);

function sectionOf(of) {
  const kind = sectionKind(of);
  let section = sections.get(kind);
  if (!section) {
    const id = `fleeting-${kind}`;
    const list = make("div", { class: "cards" }), table = tableOf(kind);
    const element = make("section", { "aria-labelledby": id }, make("h2", { id }, KINDS[kind]), table.element, list);
    sections.set(kind, section = { element, list, table });
    for (const kind of Object.keys(KINDS)) if (sections.has(kind)) place.append(sections.get(kind).element);
  }
  return section;
}

let ids = 0;

function cardOf({ kind, name }) {
  const id = `fleeting-card-${++ids}`;
  const title = () => SECTIONS[kind] ? [isolated(name), make("span", { class: "soft" }, ` ${SECTIONS[kind][1]}`)] : [isolated(name)];
  const heading = make("h3", { id }, ...title());
  const metrics = rowsOf("dl", "metrics", ([label], value, note) =>
    make("div", label.length > 14 ? { class: "wide" } : {}, make("dt", {}, label), value, note),
  () => make("dd", { class: "big" }), () => make("dd", { class: "soft" }));
  const charts = CHARTS[kind].map(chart => chartOf(...chart));
  const element = make("article", { class: "card", "aria-labelledby": id }, heading, metrics.element,
    make("div", { class: "charts" }, ...charts.map(chart => chart.element)));
  const denied = kind.endsWith("limiter") ? deniedOf() : null;
  if (denied) element.append(denied.element);
  const more = MORE[kind] && rowsOf("tbody", "", ([label], value) =>
    make("tr", {}, make("th", { scope: "row" }, label), value), () => make("td"));
  const moreHeading = make("summary", {}, "More metrics");
  if (more) element.append(make("details", {}, moreHeading, make("table", {}, more.element)));
  let search = null;
  const { list, table } = sectionOf(kind);
  insertByName(list, element, name);
  const row = table.rowOf(name, title(), element);
  return {
    remove() {
      element.remove();
      row.element.remove();
    },
    show(group) {
      const rows = METRICS[kind](group), others = MORE[kind]?.(group) ?? [];
      const countMarked = rows => rows.filter(([, , , isAlarm]) => isAlarm).length;
      const hidden = countMarked(others), isMarked = countMarked(rows) + hidden > 0;
      metrics.show(rows);
      element.classList.toggle("alarm", isMarked);
      // The marked ones may not be visible.
      set(moreHeading, hidden ? `More metrics, ${hidden} above a threshold` : "More metrics");
      moreHeading.classList.toggle("alarm", hidden > 0);
      const isTable = !table.element.hidden;
      if (isTable) row.show(rows, isMarked);
      element.hidden = isTable && !row.isOpen();
      denied?.show(group.denied_keys);
      more?.show(others);
      if (group.searchable && !search) element.append(search = searchOf(name));
      if (!element.hidden) for (const chart of charts) chart.show((hour ? hour.get(key(group)) : group.history) ?? {});
      return isMarked;
    },
  };
}

function insertByName(list, element, name) {
  element.dataset.name = name;
  list.insertBefore(element, [...list.children].find(other => other.dataset.name > name) ?? null);
}

// Rows of a label, texts, and whether a threshold is exceeded, created when first shown. Only changed texts are set.
function rowsOf(tag, kind, rowOf, ...cellsOf) {
  const element = make(tag, kind ? { class: kind } : {});
  let rows = null;
  return {
    element,
    show(all) {
      rows ??= all.map(row => {
        const cells = cellsOf.map(cellOf => cellOf());
        element.append(rowOf(row, ...cells));
        return cells;
      });
      all.forEach(([, ...texts], row) => rows[row].forEach((cell, column) => {
        set(cell, texts[column]);
        cell.classList.toggle("alarm", !!texts[2]);
      }));
    },
  };
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A table of all objects of a kind, one per row. The button of a row opens its card.
function tableOf(kind) {
  const head = make("tr", {}, make("th", { scope: "col" }, "Name")), body = make("tbody");
  const element = make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": `Table: ${KINDS[kind]}` },
    make("table", { class: "compact" }, make("thead", {}, head), body));
  element.hidden = true;
  return {
    element,
    rowOf(name, title, card) {
      const button = make("button", { type: "button", class: "link", "aria-expanded": "false" }, ...title);
      const isOpen = () => button.getAttribute("aria-expanded") === "true";
      const rowHead = make("th", { scope: "row" }, button);
      const row = make("tr", {}, rowHead);
      let cells = null;
      button.addEventListener("click", () => {
        button.setAttribute("aria-expanded", String(!isOpen()));
        card.hidden = !isOpen();
        draw();
      });
      insertByName(body, row, name);
      return {
        element: row,
        isOpen,
        show(rows, isMarked) {
          // The marked value may be out of view, or have no column.
          rowHead.classList.toggle("alarm", isMarked);
          if (head.childElementCount === 1) head.append(...rows.map(([label]) => make("th", { scope: "col" }, label)));
          if (!cells) row.append(...cells = rows.map(() => make("td")));
          rows.forEach(([, value, , isAlarm], column) => {
            set(cells[column], value);
            cells[column].classList.toggle("alarm", !!isAlarm);
          });
        },
      };
    },
  };
}

// A chart of one or two lines. The value at a point is shown under the pointer, and with the arrow keys.
function chartOf(title, lines, unit) {
  const top = make("span"), half = make("span");
  const middle = make("path", { class: "middle" }), area = make("path", { class: "area" }), cursor = make("path", { class: "cursor" }), restart = make("path", { class: "restart" });
  const paths = lines.map((_, line) => make("path", { class: line ? "second" : "first" }));
  const svg = make("svg", { preserveAspectRatio: "none", "aria-hidden": "true" }, middle, area, restart, ...paths, cursor);
  const plot = make("div", { class: "plot", role: "slider", tabindex: "0", "aria-label": title, "aria-valuemin": "0" }, svg);
  const legend = make("div", { class: "legend axis" }, ...lines.map(([, word], number) => make("span", {},
    make("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" }, make("path", { class: number ? "second" : "first", d: "M0,4H24" })), `${word}${unit}`)));
  const from = make("span"), to = make("span"), reading = make("span", { class: "reading" }), caption = make("figcaption");
  const element = make("figure", { class: "chart" }, legend,
    make("div", { class: "y axis", "aria-hidden": "true" }, top, half, make("span", {}, `0${unit}`)), plot,
    make("div", { class: "x axis", "aria-hidden": "true" }, from, reading, to), caption);
  let points = lines.map(() => []), length = POINTS, step = 1, at = null;
  const last = () => length - 1;
  const ago = seconds => seconds < 1 ? "now" : seconds < 60 ? `${seconds} s ago` : `${Math.floor(seconds / 60)} min ${seconds % 60} s ago`;
  const valueAt = (values, at) => values[at - (length - values.length)];
  function read() {
    const words = at === null ? [] : lines.map(([, word], line) => `${word} ${rate(valueAt(points[line], at))}${unit}`);
    const text = at === null ? "" : `${ago((last() - at) * step)}: ${words.join(", ")}`;
    set(reading, text);
    cursor.setAttribute("d", at === null ? "" : `M${at},0V100`);
    return text;
  }
  function move(to) {
    at = to === null ? null : Math.max(0, Math.min(last(), to));
    const text = read();
    // Only when the user moves: a screen reader announces each change.
    plot.setAttribute("aria-valuenow", at ?? last());
    plot.setAttribute("aria-valuetext", text || "now");
  }
  plot.addEventListener("pointermove", event => {
    const { left, width } = plot.getBoundingClientRect();
    move(Math.round((event.clientX - left) / width * last()));
  });
  plot.addEventListener("pointerleave", () => move(null));
  plot.addEventListener("blur", () => move(null));
  plot.addEventListener("keydown", event => {
    const now = at ?? last(), far = Math.round(length / 10);
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, ArrowDown: now - 1, ArrowUp: now + 1, PageDown: now - far,
      PageUp: now + far, Home: 0, End: last(), Escape: null }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    move(to);
  });
  return {
    element,
    show(history) {
      if (length !== (hour ? 360 : POINTS) || !svg.hasAttribute("viewBox")) {
        [length, step] = hour ? [360, 10] : [POINTS, 1];
        svg.setAttribute("viewBox", `0 0 ${last()} 100`);
        middle.setAttribute("d", `M0,50H${last()}`);
        plot.setAttribute("aria-valuemax", last());
        move(null);
      }
      points = lines.map(([line]) => history[line] ?? []);
      const now = Date.now(), clock = time => new Date(time).toLocaleTimeString("en-GB", { timeStyle: "short" });
      set(from, clock(now - last() * step * 1000));
      set(to, clock(now));
      // The process was started within the range: totals begin there.
      const since = (now - all.process.since_ms) / 1000 / step;
      restart.setAttribute("d", since < last() ? `M${(last() - since).toFixed(1)},0V100` : "");
      const most = above(Math.max(0, ...points.flat().filter(is)));
      set(top, `${rate(most)}${unit}`);
      // Counts have no halves.
      set(half, unit || most % 2 === 0 ? `${rate(most / 2)}${unit}` : "");
      points.forEach((points, line) => {
        const runs = runsOf(points, length - points.length);
        const draw = run => run.map(([x, point]) => `${x},${(100 - 100 * point / most).toFixed(2)}`).join("L");
        // A single point is drawn as a short line.
        paths[line].setAttribute("d", runs.map(run => `M${draw(run)}${run.length > 1 ? "" : "h.5"}`).join(""));
        if (!line) area.setAttribute("d", runs.map(run => `M${run[0][0]},100L${draw(run)}V100Z`).join(""));
      });
      read();
      // Text alternative of the chart for screen readers.
      const words = lines.map(([, word], at) => `${word} ${rate(points[at].at(-1))}, peak ${rate(Math.max(0, ...points[at].filter(is)))}`);
      set(caption, `${title}${unit && " per second"}, last ${hour ? "hour" : "five minutes"}. Now: ${words.join("; ")}.`);
    },
  };
}

// Splits points at unknown ones into runs of known ones, each with its place; the place of the first point is `first`.
function runsOf(points, first) {
  const runs = [];
  points.forEach((point, at) => {
    if (!is(point)) return;
    if (!is(points[at - 1])) runs.push([]);
    runs.at(-1).push([first + at, point]);
  });
  return runs;
}

// The smallest of 1, 2, 5, 10, 20, 50, ... that is at least `number`.
function above(number) {
  let most = 1;
  for (let step = 0; most < number; step++) most = [1, 2, 5][step % 3] * 10 ** Math.floor(step / 3);
  return most;
}

function deniedOf() {
  const ROWS = 5;
  const rows = Array.from({ length: ROWS }, () => make("tr", {}, make("td", {}, "–"), make("td")));
  const element = make("table", {}, make("caption", { class: "soft" }, "Denied most often in the last two minutes"),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Key"), make("th", { scope: "col" }, "Denials"))),
    make("tbody", {}, ...rows));
  return {
    element,
    show(keys) {
      rows.forEach((row, at) => {
        const denied = keys[at];
        const text = !denied ? (at ? "\u00a0" : "None.") : denied.plain ? denied.key : `# ${denied.key}`;
        if (row.cells[0].textContent !== text) {
          row.cells[0].replaceChildren(isolated(text, denied ? "code" : "soft"));
        }
        set(row.cells[1], denied ? `${count(denied.denials)}` : "\u00a0");
      });
    },
  };
}

function searchOf(name) {
  const input = make("input", { name: "key", required: "", autocomplete: "off", spellcheck: "false" });
  const answer = make("output", { class: "soft" }, "\u00a0");
  const form = make("form", {}, make("label", {}, "TTL of a key", input),
    make("button", { class: "quiet" }, "Search"), answer);
  form.addEventListener("submit", async event => {
    event.preventDefault();
    const key = input.value;
    const show = (...words) => answer.replaceChildren(...words);
    try {
      const response = await fetch(relative("ttl"), {
        method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ name, key }),
      });
      const isOurs = (response.headers.get("content-type") ?? "").startsWith("application/json");
      const reply = isOurs ? await response.json() : {};
      if (!response.ok && reply.error) show(reply.error);
      else if (!response.ok || !isOurs) showFailure(answer, refusal(response, "application/json"));
      else if (reply.ttl === "missing") show(isolated(key), " has no live value.");
      else if (reply.ttl === "persistent") show(isolated(key), " has no deadline.");
      else show(isolated(key), ` expires in ${time(reply.ms)}.`);
    } catch {
      showFailure(answer);
    }
  });
  return form;
}

if (shared) {
  shared.ask();
  // The tab with the stream answers immediately. If no answer comes within 3 s, this tab polls.
  lastEventAt = performance.now() - SILENCE + 3_000;
}
poll();
pollHour();
