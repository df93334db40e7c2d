// The decisions: a log that the browser keeps under the key of the audit, and `decisions.csv`. Both
// have the rows of the data; the log here has the places of the page.

const STORED = /^(\d+),(fits|wrong|unsure),(\d*),(list|review)$/; // row, decision, caption, door

class Decisions {
  constructor(key, fingerprint, weights) {
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
    this.log = [];
    this.byRow = new Map();
    this.read();
  }

  // Take over what is stored, as after a decision in another tab.
  read() {
    if (!this.storage) return;
    this.log = [];
    for (let n = 0; ; n++) {
      const stored = STORED.exec(this.storage.getItem(this.prefix + n));
      if (!stored) break;
      const [row, caption] = [placeOf(Number(stored[1])), stored[3] === "" ? null : placeOf(Number(stored[3]))];
      if (row < 0 || (caption !== null && caption < 0)) break; // not of this page
      // A review with another sample, of the same data, may have stored it: it has no weight here.
      const door = this.weights.has(row) ? stored[4] : "list";
      this.log.push({ row, decision: stored[2], caption, door });
    }
    this.byRow = new Map(this.log.map((entry) => [entry.row, entry]));
    this.unsaved = this.storage.getItem(`${this.prefix}unsaved`) !== null;
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
        door === "review" ? this.weights.get(row) : null, this.fingerprint].join());
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
