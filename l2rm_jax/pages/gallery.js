// The page: two views or "doors" (the list and the blind review), filters, search, decisions, keys.

const find = (id) => document.getElementById(id);
const count = (number) => number.toLocaleString("en");
let door = "list";
let filter = "all"; // "all", "decided" or the number of a kind
let decisions, list;

// The decision of a pair that counts in this door: the review asks again about pairs decided in the list.
function decisionOf(row) {
  const entry = decisions.of(row);
  return entry && (door === "list" || entry.door !== "list") ? entry : null;
}

const isBlind = (row) => door === "review" && !decisionOf(row);

function say(text) {
  find("status").textContent = text;
}

// Pairs in the list.

function pairsInView() {
  if (door === "review") return Int32Array.from(about.review);
  const words = find("search").value.trim().replace(/\s+/g, " ").toLowerCase();
  if (filter === "all" && !words) return data.order;
  const [captions, ids] = words ? [data.inCaptions.has(words), data.inIds.has(words)] : [null, null];
  return data.order.filter((row) => {
    if (filter === "decided" ? !decisions.of(row) : filter !== "all" && data.kind[row] !== filter) return false;
    return !words || captions[row] || ids[data.image[row]] || String(lineOf(row)) === words;
  });
}

// Show the pairs again; select `row` if it is among them, else the first undecided pair.
function refresh(row = null) {
  const view = pairsInView();
  let index = row === null ? -1 : view.indexOf(row);
  if (index < 0) index = view.findIndex((other) => !decisionOf(other));
  list.show(view, Math.max(index, 0));
}

function openDoor(name, row = null) {
  door = name;
  find("status").textContent = "";
  document.body.dataset.door = door;
  find("list-door").setAttribute("aria-pressed", door === "list");
  find("review-door").setAttribute("aria-pressed", door === "review");
  refresh(row);
}

function chooseFilter(name) {
  filter = name;
  for (const button of find("filters").children) {
    button.setAttribute("aria-pressed", button.dataset.filter === String(name));
  }
  refresh(list.row);
}

function addFilters() {
  const counts = about.kinds.map(() => 0);
  for (const kind of data.kind) counts[kind]++;
  const suspiciousFirst = [...about.kinds.keys()].slice(2).concat(1, 0);
  const kinds = suspiciousFirst.map((kind) => [kind, kindName(kind), counts[kind]]);
  const filters = [["all", "all", data.kind.length], ...kinds, ["decided", "decided", 0]];
  find("filters").replaceChildren(...filters.map(([value, text, number]) => {
    const button = make("button", { type: "button", onclick: () => chooseFilter(value) },
      `${text} `, make("span", { className: "count", textContent: count(number) }));
    button.disabled = value !== "decided" && !number;
    button.dataset.filter = value;
    button.setAttribute("aria-pressed", value === filter);
    return button;
  }));
}

// Display of a pair: its row in the list, and the pane next to it.

const MARKS = { fits: "\u2713", wrong: "\u2717", unsure: "?" };

function fillRow(element, row, index) {
  const embedded = data.embedded.get(data.image[row]);
  const frame = make("span", { className: "thumb" });
  if (embedded) frame.append(make("img", { src: addressOf(data.image[row]), alt: "", decoding: "async" }));
  const entry = decisionOf(row);
  element.classList.toggle("decided", entry !== null);
  const mark = make("span", { className: "mark" });
  if (entry) {
    mark.className += ` ${entry.decision}`;
    mark.append(make("span", { textContent: MARKS[entry.decision], ariaHidden: "true" }),
      make("span", { className: "hidden", textContent: `, ${entry.decision}` }));
  }
  const lead = door === "review" ? count(index + 1) : percent(data.posterior[row]);
  element.replaceChildren(frame, make("span", { className: "lead", textContent: lead }),
    make("span", { className: "words", dir: "auto", textContent: data.captions[row] }), mark);
}

function showPair(row) {
  const pane = find("pair");
  if (row === null) {
    pane.replaceChildren(make("p", { className: "reason", textContent: "No pairs found. Press Esc in the search field to clear it." }));
    return;
  }
  const decided = decisionOf(row);
  const take = isLocked(row) && decided.decision !== "wrong" ? null : (caption) => decide("wrong", caption);
  const hadFocus = pane.contains(document.activeElement);
  pane.replaceChildren(...describePair(row, { decided, blind: isBlind(row), take }));
  pane.scrollTop = 0;
  if (hadFocus) pane.focus({ preventScroll: true });
  if (pane.getBoundingClientRect().top < 0) pane.scrollIntoView(); // a small window, scrolled down
}

function showProgress() {
  const reviewed = about.review.filter((row) => isLocked(row)).length;
  document.body.dataset.blind = door === "review" && reviewed < about.review.length;
  find("review-door").textContent = `Review ${count(about.review.length)}, blind`;
  find("progress").textContent = door === "review"
    ? `${count(reviewed)} of ${count(about.review.length)} decided`
    : `${count(decisions.byRow.size)} decided`;
  find("filters").lastElementChild.lastElementChild.textContent = count(decisions.byRow.size);
  const isDone = about.review.length > 0 && reviewed === about.review.length;
  showRate(isDone);
  find("door-note").textContent = noteOfDoor(isDone);
}

// Describe the pairs of this door; `isDone`: whether the whole review is decided.
function noteOfDoor(isDone) {
  if (!decisions.storage) {
    return "This browser does not store decisions for this page: download them before you close it.";
  }
  if (door === "review") {
    return isDone ? "All pairs of the review are decided."
      : `Begin here: the results of the audit are hidden until you have decided. ${about.goal}`;
  }
  return data.row
    ? `${count(data.order.length)} of ${count(about.pairs)} pairs, the most suspicious first.`
    : "All pairs, the most suspicious first.";
}

// The end of the review: the rate by eye, and the command that uses the decisions.
function showRate(isDone) {
  const rate = isDone ? decisions.rate() : null;
  find("by-eye").hidden = !isDone;
  if (!isDone) return;
  const share = (value) => (100 * value).toFixed(1);
  const found = rate === null ? "All pairs of the review are unsure, so they give no rate."
    : `${count(rate.wrong)} of ${count(rate.pairs)} reviewed pairs are wrong: by eye, about ` +
      `${share(rate.estimate)}% of all pairs (90% CI: ${share(rate.low)}-${share(rate.high)}%).`;
  const begin = about.goal ? "Next, for the certificate" : "Next";
  const next = about.command ? `${begin}: download the decisions (d) to where you run commands, and run`
    : `${begin}: download the decisions (d).`;
  find("by-eye").replaceChildren(make("p", {}, make("strong", { textContent: found })), make("p", { textContent: next }));
  if (about.command) find("by-eye").append(make("code", { textContent: about.command }));
}

function changed(row) {
  showPair(row);
  showProgress();
  // Screen readers follow the list on their own while the list has the focus.
  if (row !== null && document.activeElement !== find("pairs")) {
    const suspicion = isBlind(row) ? "" : `, suspicion ${percent(data.posterior[row])}`;
    find("announced").textContent = `${list.index + 1} of ${list.view.length}${suspicion}: ${data.captions[row]}`;
  }
}

// Decisions.

function isLocked(row) {
  const entry = decisions.of(row);
  return entry !== null && entry.door !== "list";
}

function decide(decision, caption = null) {
  const row = list.row;
  if (row === null) return;
  if (isLocked(row) && (decisions.of(row).decision !== decision || caption === null)) {
    say("Decided in the blind review, so it cannot be changed. Undo (z) takes back decisions, the latest first.");
    return;
  }
  const entry = { row, decision, caption, door: isLocked(row) ? decisions.of(row).door : door };
  decisions.add(entry);
  say(`Decided, ${nameOf(row)}: ${describeDecision(entry)}`);
  moveOn();
}

function moveOn() {
  const { view, index } = list;
  let next = index + 1;
  while (next < view.length && decisionOf(view[next])) next++;
  if (next < view.length) {
    list.draw(true);
    list.select(next);
    return;
  }
  list.draw(true);
  list.select(index);
  const left = view.some((row) => !decisionOf(row));
  say(left
    ? "End of the list. Some pairs above are undecided."
    : `All pairs of this ${door} are decided. Download the decisions (d).`);
}

function undo() {
  const entry = decisions.undo();
  if (!entry) {
    say("There is nothing to undo.");
    return;
  }
  if (entry.door === "list" && !list.view.includes(entry.row)) {
    find("search").value = "";
    chooseFilter("all");
  }
  openDoor(entry.door === "list" ? "list" : "review", entry.row);
  say(`Undone, ${nameOf(entry.row)}: ${describeDecision(entry)}`);
}

function download() {
  if (!decisions.byRow.size) {
    say("Nothing is decided yet.");
    return;
  }
  decisions.download();
  say(`decisions.csv has ${count(decisions.byRow.size)} decisions.`);
}

function take(number) {
  const row = list.row;
  const proposal = row === null || isBlind(row) ? null : proposalsOf(row)[number - 1];
  if (proposal) decide("wrong", proposal.caption);
  else if (row !== null && isBlind(row)) say("Proposals are hidden until you have decided.");
  else say(`There is no proposal ${number}.`);
}

// Keys, and the buttons that do the same.

const ACTIONS = {
  y: ["fits", () => decide("fits")],
  n: ["wrong", () => decide("wrong")],
  u: ["unsure", () => decide("unsure")],
  z: ["undo", undo],
  k: ["previous", () => list.select(list.index - 1)],
  j: ["next", () => list.select(list.index + 1)],
  d: ["download", download],
  "?": ["help", () => find("help").showModal()],
};

function addKeys() {
  const buttons = Object.entries(ACTIONS).map(([key, [text, act]]) => {
    const button = make("button", { type: "button", onclick: act }, make("kbd", { textContent: key }), ` ${text}`);
    button.setAttribute("aria-keyshortcuts", key);
    if ("ynu".includes(key)) button.className = "decides";
    return button;
  });
  const numbers = make("kbd", { textContent: about.top > 1 ? `1-${about.top}` : "1" });
  if (about.top) buttons.splice(3, 0, make("span", { className: "key" }, numbers, " take proposal"));
  find("keys").replaceChildren(...buttons);
  find("kinds").replaceChildren(...about.kinds.flatMap((kind, n) =>
    [make("dt", { textContent: kindName(n) }), make("dd", { textContent: `${KIND_TEXTS[kind]}.` })]));
}

function moveByKey(key) {
  const page = Math.max(1, Math.floor(list.visible / HEIGHT) - 1);
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
  if (!(key in steps)) return false;
  list.select(list.index + steps[key]);
  return true;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || find("help").open) return;
  if (event.target === find("search")) {
    if (event.key === "Escape") event.target.value = "";
    if (event.key !== "Escape" && event.key !== "Enter") return;
    event.preventDefault();
    refresh(list.row);
    find("pairs").focus();
    return;
  }
  if (event.target === find("pairs") && moveByKey(event.key)) {
    event.preventDefault();
    return;
  }
  if (!find("letters").checked) return;
  const key = event.key.toLowerCase();
  if (event.repeat && key !== "j" && key !== "k") return; // a key that is held down decides once
  if (key === "/" && door === "list") find("search").focus();
  else if (/^[1-9]$/.test(key)) take(Number(key));
  else if (Object.hasOwn(ACTIONS, key)) ACTIONS[key][1]();
  else return;
  event.preventDefault();
}

async function start() {
  await unpackAll();
  const weights = new Map(about.review.map((row, n) => [row, about.weights[n]]));
  decisions = new Decisions(about.key, about.fingerprint, weights, about.decided);
  list = new PairList(find("pairs"), fillRow, changed);
  find("review-door").hidden = !about.review.length;
  // Each door keeps its place: the list must not reveal the results for the pair shown in the review.
  const places = { list: null, review: null };
  for (const name of ["list", "review"]) {
    find(`${name}-door`).onclick = () => {
      places[door] = list.row;
      openDoor(name, places[name]);
    };
  }
  let waiting;
  find("search").oninput = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => refresh(list.row), 150);
  };
  addFilters();
  addKeys();
  document.body.dataset.pictures = data.files ? "files" : "none";
  const isOpen = !about.review.every(isLocked);
  openDoor(isOpen ? "review" : "list"); // the review comes first, as the help says
  document.addEventListener("keydown", onKey);
  window.addEventListener("storage", (event) => {
    if (!event.key?.startsWith(decisions.prefix)) return;
    decisions.read();
    list.draw(true);
    changed(list.row);
  });
  window.addEventListener("beforeunload", (event) => {
    if (decisions.unsaved) event.preventDefault();
  });
  document.querySelector("main").removeAttribute("aria-busy");
}

start().catch((error) => {
  find("pair").textContent = typeof DecompressionStream === "undefined"
    ? "This browser cannot unpack the pairs. Chrome 80, Firefox 113, Safari 16.4 and later can."
    : `This page cannot be read: ${error.message}`;
});
