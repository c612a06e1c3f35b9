// Keys, and what has to outlive a page that is replaced while a run trains: what is unfolded, and what is chosen.
"use strict";

const rows = () => [...document.querySelectorAll("tr[data-row], article.action")];
const chosen = () => document.querySelector(".chosen");

function choose(row) {
  chosen()?.classList.remove("chosen");
  row.classList.add("chosen");
  row.scrollIntoView({ block: row.matches("tr") ? "nearest" : "start", behavior: "instant" });
  // The address leads back to the action that is looked at.
  if (row.matches("article")) history.replaceState(null, "", `#${row.id}`);
}

function step(by) {
  const all = rows();
  if (all.length === 0) return;
  const at = all.indexOf(chosen());
  choose(all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1)]);
}

function unfold() {
  const folds = [...(chosen() ?? document).querySelectorAll("article.action details, .chosen details")];
  const open = folds.some((fold) => !fold.open);
  folds.forEach((fold) => (fold.open = open));
}

async function copy(button) {
  try {
    const { completion } = await (await fetch(button.dataset.copy)).json();
    await navigator.clipboard.writeText(completion.text);
    button.textContent = "copied";
  } catch {
    button.textContent = "the browser refused";
  }
  setTimeout(() => (button.textContent = "copy"), 1500);
}

const actions = {
  j: () => step(1),
  k: () => step(-1),
  Enter: () => chosen()?.dataset.row && location.assign(chosen().dataset.row),
  x: unfold,
  y: () => chosen()?.querySelector("[data-copy]")?.click(),
  "?": () => document.getElementById("keys").showModal(),
  "/": () => {
    const search = document.querySelector("input[type=search]");
    if (search) search.focus();
    else location.assign(document.querySelector("[data-key=t]")?.href ?? "/");
  },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "Enter" && event.target.matches("a, button, summary")) return;
  const link = [...document.querySelectorAll("[data-key]")].find((one) => one.dataset.key === event.key);
  if (link) link.click();
  else if (Object.hasOwn(actions, event.key)) actions[event.key]();
  else return;
  event.preventDefault();
});

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-open]");
  if (opener) document.getElementById(opener.dataset.open).showModal();
  const copier = event.target.closest("[data-copy]");
  if (copier) copy(copier);
  const row = event.target.closest("tr[data-row]");
  if (row && !event.target.closest("a, input, button") && getSelection().isCollapsed) location.assign(row.dataset.row);
});

const chooseNamed = () => {
  const named = document.getElementById(location.hash.slice(1));
  if (named?.matches("article.action")) choose(named);
};
window.addEventListener("hashchange", chooseNamed);
document.addEventListener("DOMContentLoaded", chooseNamed);

// A page that nobody looks at asks for nothing, and no text is taken away while it is being marked.
document.addEventListener("htmx:beforeRequest", (event) => {
  const polls = event.detail.elt.getAttribute("hx-trigger")?.startsWith("every");
  if (polls && (document.hidden || !getSelection().isCollapsed)) event.preventDefault();
});

// What asks again tells what it shows, so that it is sent nothing where nothing is new.
document.addEventListener("htmx:configRequest", (event) => {
  const seen = event.detail.elt.dataset.seen;
  if (seen) event.detail.headers["Mappa-Seen"] = seen;
});

let kept = null;
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.target.id !== "page") return;
  const folds = [...event.detail.target.querySelectorAll("details[id]")];
  kept = {
    open: new Map(folds.map((fold) => [fold.id, fold.open])),
    lazy: new Map(folds.map((fold) => [fold.id, fold.querySelector(".lazy")?.innerHTML])),
    chosen: rows().indexOf(chosen()),
  };
});
document.addEventListener("htmx:afterSwap", () => {
  if (kept === null) return;
  for (const [id, open] of kept.open) {
    const fold = document.getElementById(id);
    if (!fold) continue;
    const text = kept.lazy.get(id);
    if (text) fold.querySelector(".lazy").innerHTML = text;
    fold.open = open;
  }
  if (kept.chosen >= 0) rows()[kept.chosen]?.classList.add("chosen");
  kept = null;
});
