"use strict";
// The pairs: columns as typed arrays and texts as arrays of strings, by place of the pair or image.
// Where the page holds some of many pairs, a place is not the row of the data: see `rowOf`.

const about = JSON.parse(document.getElementById("about").textContent);
const UNKNOWN = 65535; // code of a number that is not known; others are 0 to 65534
const data = {}; // filled by `unpackAll`

// Bytes of a block. Its elements hold gzip in base64; they are removed, to free their memory.
async function unpack(name) {
  const gzip = new DecompressionStream("gzip");
  const unpacked = new Response(gzip.readable).arrayBuffer();
  const writer = gzip.writable.getWriter();
  for (const element of document.querySelectorAll(`script[data-block="${name}"]`)) {
    const text = atob(element.textContent);
    element.remove();
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    await writer.write(bytes);
  }
  await writer.close();
  return unpacked;
}

async function unpackLines(name) {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(await unpack(name)).split("\n");
}

const hasBlock = (name) => document.querySelector(`script[data-block="${name}"]`) !== null;

async function unpackAll() {
  for (const name of ["posterior", "information", "probability", "none_fits"]) {
    data[name] = new Uint16Array(await unpack(name));
  }
  data.kind = new Uint8Array(await unpack("kind"));
  for (const name of ["image", "proposal", "order", "near", "row", "line", "witness"]) {
    if (hasBlock(name)) data[name] = new Int32Array(await unpack(name));
  }
  data.captions = await unpackLines("captions");
  data.ids = await unpackLines("ids");
  if (hasBlock("said")) data.said = await unpackLines("said");
  if (hasBlock("files")) data.files = await unpackLines("files");
  data.embedded = new Map();
  for (const element of document.querySelectorAll("script[data-image]")) {
    data.embedded.set(Number(element.dataset.image), element);
  }
  data.inCaptions = new TextSearch(data.captions);
  data.inIds = new TextSearch(data.ids);
  [data.firstOfImage, data.ofImages] = pairsOfImages();
}

// The row of a pair in the data, and back; -1 for one that this page does not hold.
const rowOf = (place) => data.row ? data.row[place] : place;
const placeOf = (row) => data.row ? data.row.indexOf(row) : row < data.image.length ? row : -1;

// The number of a pair for a person, and its name: "line 12".
const lineOf = (place) => data.line ? data.line[place] : rowOf(place);
const nameOf = (place) => `${about.word} ${lineOf(place)}`;

// Pairs in the order of their images; those of image i stand from firstOfImage[i] to that of i + 1.
function pairsOfImages() {
  const first = new Int32Array(data.ids.length + 1);
  for (const image of data.image) first[image + 1]++;
  for (let i = 0; i < data.ids.length; i++) first[i + 1] += first[i];
  const next = first.slice();
  const pairs = new Int32Array(data.image.length);
  for (let row = 0; row < pairs.length; row++) pairs[next[data.image[row]]++] = row;
  return [first, pairs];
}

function pairsOfImage(image) {
  return data.ofImages.subarray(data.firstOfImage[image], data.firstOfImage[image + 1]);
}

// Finds the texts that have some words, without regard to case. One search of all texts in a row is
// several times faster than one in each. The copy in lower case is made when it is first needed.
class TextSearch {
  constructor(texts) {
    this.texts = texts;
  }

  // 1 for each text that has the words, else 0.
  has(words) {
    this.joined ??= this.texts.join("\n").toLowerCase();
    const found = new Uint8Array(this.texts.length);
    let [index, newline] = [0, this.joined.indexOf("\n")]; // the text that ends at this newline
    for (let at = this.joined.indexOf(words); at >= 0; at = this.joined.indexOf(words, newline)) {
      for (; newline >= 0 && newline < at; index++) newline = this.joined.indexOf("\n", newline + 1);
      found[index] = 1;
      if (newline < 0) break;
    }
    return found;
  }
}

// Address of a picture: of the one in this page, else of its file; null if there is none.
function addressOf(image) {
  const element = data.embedded.get(image);
  if (element) return `data:${element.type};base64,${element.textContent}`;
  return data.files ? data.files[image] : null;
}

function percent(code) {
  if (code === UNKNOWN) return "unknown";
  const share = code / (UNKNOWN - 1);
  if (share > 0 && share < 0.005) return "<1%";
  if (share < 1 && share >= 0.995) return ">99%";
  return `${Math.round(100 * share)}%`;
}

function informationOf(row) {
  const [low, high] = about.information;
  const code = data.information[row];
  return code === UNKNOWN ? "unknown" : `${(low + (code / (UNKNOWN - 1)) * (high - low)).toFixed(1)} nats`;
}

// Captions of the most similar trusted images, three for each pair.
function witnessesOf(row) {
  const each = data.witness ? data.witness.length / data.image.length : 0;
  const places = [...(data.witness ?? []).slice(row * each, (row + 1) * each)];
  return places.filter((place) => place >= 0).map((place) => data.said[place]);
}

// The proposed captions of a pair: rows of captions and codes of their probabilities, best first.
function proposalsOf(row) {
  const proposals = [];
  for (let i = row * about.top; i < (row + 1) * about.top; i++) {
    if (data.proposal[i] >= 0) proposals.push({ caption: data.proposal[i], probability: data.probability[i] });
  }
  return proposals;
}
