"use strict";
// Words that are pointed at, tapped or focused show the regions that they matched.

let shown = null; // the word whose regions are visible
let pinned = null; // the word that stays when the pointer leaves: tapped, or focused by keyboard

function regionsOf(word) {
  const digits = word.dataset.regions;
  return Array.from({ length: digits.length / 2 }, (_, i) => parseInt(digits.slice(2 * i, 2 * i + 2), 36) / 1000);
}

function percent(share) {
  return share > 0 && share < 0.005 ? "<1%" : `${Math.round(100 * share)}%`;
}

// The line below the picture, of the hit or of the query, that lists the regions.
function lineOf(word) {
  const hit = word.closest(".hit");
  const asked = word.closest(".query").querySelector(".asked");
  const inHit = hit.querySelector(".stage") || !asked;
  return (inHit ? hit : asked).querySelector(".regions");
}

function hide() {
  if (!shown) return;
  lineOf(shown).textContent = "";
  shown.removeAttribute("aria-current");
  shown = null;
}

function show(word) {
  if (word === shown) return;
  hide();
  if (!word) return;
  shown = word;
  word.setAttribute("aria-current", "true");
  lineOf(word).textContent = describe(word, regionsOf(word));
}

// A region stands out if its share is half of the highest or more, and clearly above an even share.
function standsOut(share, shares) {
  return share >= Math.max(...shares) / 2 && share * shares.length >= 1.5;
}

// The word's weight, and its best three regions.
function describe(word, shares) {
  const best = [...shares.keys()].sort((a, b) => shares[b] - shares[a]).slice(0, 3);
  const regions = best.filter((i) => standsOut(shares[i], shares));
  const where = regions.map((i) => `region ${i + 1} (${percent(shares[i])})`).join("; ");
  return `${percent(Number(word.dataset.share))} of the weight, ${where || "spread over all regions"}`;
}

const wordAt = (event) => event.target instanceof Element ? event.target.closest(".word") : null;

document.addEventListener("pointerover", (event) => {
  if (event.pointerType === "mouse") show(wordAt(event) || pinned);
});
document.addEventListener("focusin", (event) => {
  pinned = wordAt(event);
  show(pinned);
});
document.addEventListener("focusout", (event) => {
  if (event.relatedTarget) return; // focusin follows
  pinned = null;
  show(null);
});
document.addEventListener("click", (event) => {
  const word = wordAt(event);
  if (!word) return;
  word.focus(); // Safari does not focus a button that is clicked
  pinned = word;
  show(word);
});

document.addEventListener("keydown", (event) => {
  const word = wordAt(event);
  if (event.key === "Escape") {
    pinned = null;
    show(null);
  }
  if (!word || event.ctrlKey || event.metaKey || event.altKey) return;
  const next = neighbour(word, event.key);
  if (!next) return;
  event.preventDefault();
  for (const other of next.parentElement.children) other.tabIndex = other === next ? 0 : -1;
  next.focus();
});

// Left and right within the words of a hit; up and down to the hit before or after.
function neighbour(word, key) {
  const words = [...word.parentElement.children];
  const index = words.indexOf(word);
  const forwards = getComputedStyle(word.parentElement).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
  if (key === "Home") return words[0];
  if (key === "End") return words.at(-1);
  if (key === "ArrowLeft" || key === "ArrowRight") return words[index + (key === forwards ? 1 : -1)];
  if (key !== "ArrowUp" && key !== "ArrowDown") return null;
  const groups = [...word.closest(".query").querySelectorAll(".words")];
  const group = groups[groups.indexOf(word.parentElement) + (key === "ArrowDown" ? 1 : -1)];
  return group && (group.children[index] || group.lastElementChild);
}
