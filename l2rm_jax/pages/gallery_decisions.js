// The decisions: a log that the browser keeps under the key of the audit, and `decisions.csv`. Both
// have the rows of the data; the log here has the places of the page.

const Z = 1.6448536269514722; // of a 90% interval
const STORED = /^(\d+),(fits|wrong|unsure),(\d*),(\w[\w .-]*)$/; // row, decision, caption, door

class Decisions {
  // `decided` are earlier decisions, as rows of the data: [row, decision, caption or -1, door].
  constructor(key, fingerprint, weights, decided) {
    this.prefix = `l2rm-audit:${key}:`;
    this.fingerprint = fingerprint; // of the pairs, for `decisions.csv`
    this.weights = weights; // by row of the review's pairs
    try {
      this.storage = window.localStorage;
      this.storage.setItem(`${this.prefix}test`, "1");
      this.storage.removeItem(`${this.prefix}test`);
    } catch {
      this.storage = null; // private windows, blocked storage
    }
    this.unsaved = false;
    const earlier = decided.map(([row, decision, caption, door]) =>
      [row, decision, caption < 0 ? null : caption, door].join());
    this.keep(earlier);
    this.take(earlier);
    this.read();
  }

  // Store earlier decisions, once: this page may change them and take them back.
  keep(earlier) {
    const name = `${this.prefix}earlier`;
    try {
      if (!this.storage || !earlier.length || this.storage.getItem(name) !== null) return;
      earlier.forEach((line, n) => this.storage.setItem(this.prefix + n, line));
      this.storage.setItem(name, "1");
    } catch {
      this.storage = null; // full
    }
  }

  // Read the stored decisions, as after a decision in another tab.
  read() {
    if (!this.storage) return;
    const lines = [];
    for (let n = 0, line; (line = this.storage.getItem(this.prefix + n)) !== null; n++) lines.push(line);
    this.take(lines);
    this.unsaved = this.storage.getItem(`${this.prefix}unsaved`) !== null;
  }

  // Make lines the log, up to one that is no decision on a pair of this page.
  take(lines) {
    this.log = [];
    for (const line of lines) {
      const stored = STORED.exec(line);
      if (!stored) break;
      const [row, caption] = [placeOf(Number(stored[1])), stored[3] === "" ? null : placeOf(Number(stored[3]))];
      if (row < 0 || (caption !== null && caption < 0)) break; // not of this page
      // A review with another sample, of the same data, may have stored it: it has no weight here.
      const door = this.weights.has(row) ? stored[4] : "list";
      this.log.push({ row, decision: stored[2], caption, door });
    }
    this.byRow = new Map(this.log.map((entry) => [entry.row, entry]));
  }

  // The share of wrong pairs among all, by the review, as `audit/review.py` estimates it: by strata
  // of equal weight, whose intervals by Wilson are joined. Null without
  // decided pairs.
  rate() {
    const strata = new Map();
    for (const [row, weight] of this.weights) {
      const stratum = strata.get(weight) || { size: 0, decided: 0, wrong: 0 };
      strata.set(weight, stratum);
      stratum.size += weight;
      const entry = this.of(row);
      if (!entry || entry.door === "list" || entry.decision === "unsure") continue;
      stratum.decided++;
      stratum.wrong += entry.decision === "wrong";
    }
    const used = [...strata.values()].filter((stratum) => stratum.decided);
    if (!used.length) return null;
    const total = used.reduce((sum, { size }) => sum + size, 0);
    let [estimate, below, above] = [0, 0, 0];
    for (const { size, decided: n, wrong } of used) {
      const [share, p] = [size / total, wrong / n];
      const middle = (p + Z ** 2 / (2 * n)) / (1 + Z ** 2 / n);
      const half = Z / (1 + Z ** 2 / n) * Math.sqrt(p * (1 - p) / n + Z ** 2 / (4 * n ** 2));
      estimate += share * p;
      below += (share * (p - Math.min(p, Math.max(0, middle - half)))) ** 2;
      above += (share * (p - Math.max(p, Math.min(1, middle + half)))) ** 2;
    }
    return {
      estimate, low: Math.max(0, estimate - Math.sqrt(below)),
      high: Math.min(1, estimate + Math.sqrt(above)),
      pairs: used.reduce((sum, { decided }) => sum + decided, 0),
      wrong: used.reduce((sum, { wrong }) => sum + wrong, 0),
    };
  }

  of(row) {
    return this.byRow.get(row) || null;
  }

  add(entry) {
    this.log.push(entry);
    this.byRow.set(entry.row, entry);
    const { row, decision, caption, door } = entry;
    const name = this.prefix + (this.log.length - 1);
    const stored = [rowOf(row), decision, caption === null ? null : rowOf(caption), door];
    this.write(() => this.storage.setItem(name, stored.join()));
  }

  // Take back the last decision and return it; null if there is none.
  undo() {
    const entry = this.log.pop();
    if (!entry) return null;
    const before = this.log.findLast((other) => other.row === entry.row);
    if (before) this.byRow.set(entry.row, before);
    else this.byRow.delete(entry.row);
    this.write(() => this.storage.removeItem(this.prefix + this.log.length));
    return entry;
  }

  write(change) {
    this.unsaved = true;
    if (!this.storage) return;
    try {
      change();
      this.storage.setItem(`${this.prefix}unsaved`, "1");
    } catch {
      this.storage = null; // full
    }
  }

  csv() {
    const entries = [...this.byRow.values()].sort((a, b) => a.row - b.row);
    const lines = entries.map(({ row, decision, caption, door }) =>
      [rowOf(row), decision, caption === null ? null : rowOf(caption), door,
        door === "list" ? null : this.weights.get(row), this.fingerprint].join());
    return ["row,decision,caption,door,weight,pairs", ...lines, ""].join("\n");
  }

  download() {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([this.csv()], { type: "text/csv" }));
    link.download = "decisions.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
    this.unsaved = false;
    this.storage?.removeItem(`${this.prefix}unsaved`);
  }
}
