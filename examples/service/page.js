// What only this service has, beside the dashboard: sessions to put, read and delete, and those that expired.
// Ids and bodies come from strangers: all goes through textContent, none through HTML.

import { make, refusal, share } from "./fleeting/script.js";

const ROWS = 5, SHOWN = 200;
const beside = path => new URL(path, import.meta.url);
const form = document.getElementById("session"), answer = form.querySelector("output");
const isolated = text => make("bdi", { title: text }, text);
const show = (...words) => answer.replaceChildren(...words);
const milliseconds = ms => ms < 10 ? `${ms.toFixed(1)} ms` : `${Math.round(ms)} ms`;

form.addEventListener("submit", async event => {
  event.preventDefault();
  const verb = event.submitter?.value ?? "put";
  const { id: { value: id }, ttl: { value: ttl }, body: { value: body } } = form.elements;
  if (id === "." || id === "..") return show("A browser can't ask for this id.");
  const address = beside(`sessions/${encodeURIComponent(id)}`);
  try {
    if (verb === "put") {
      if (ttl) address.searchParams.set("ttl", ttl);
      const response = await fetch(address, { method: "PUT", body });
      if (!response.ok) return show(await sentence(response));
      show(response.status === 201 ? "New: " : "Replaced: ", isolated(id), ttl ? ` lives for ${ttl} s.` : " lives until it is deleted.");
    } else if (verb === "read") {
      const response = await fetch(address);
      if (!response.ok) return show(await sentence(response));
      const text = await response.text();
      const body = text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text;
      show(isolated(id), body ? ": " : " has an empty body.", body && isolated(body));
    } else {
      const response = await fetch(address, { method: "DELETE" });
      if (!response.ok) return show(await sentence(response));
      show("Deleted: ", isolated(id), ".");
    }
  } catch {
    show("The service can't be reached.");
  }
});

// What was wrong, as the service says it, or else who answered for it.
async function sentence(response) {
  const isOurs = (response.headers.get("content-type") ?? "").startsWith("application/json");
  const told = isOurs ? await response.json() : {};
  return typeof told.error === "string" ? told.error : refusal(response, "application/json");
}

const rows = Array.from({ length: ROWS }, (_, row) =>
  make("tr", {}, make("td", {}, row ? "\u00a0" : "None."), make("td", {}, "\u00a0")));
document.getElementById("events").append(...rows);

let latest = [], missed = 0, isDue = false;

share(beside("events").href, {
  onEvent(name, data) {
    if (name === "lagged") missed += data.missed;
    else latest = [data, ...latest].slice(0, ROWS);
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      latest.forEach(({ key, lag_ms }, row) => {
        rows[row].cells[0].replaceChildren(isolated(key));
        rows[row].cells[1].textContent = lag_ms === null ? "–" : milliseconds(lag_ms);
      });
      if (missed) document.getElementById("missed").textContent = `Since this page was opened; ${missed} came too fast to be shown`;
    });
  },
  // The dashboard shows problems of the connection.
  onProblem() {},
});
