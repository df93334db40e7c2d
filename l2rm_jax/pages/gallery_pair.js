// The selected pair: picture, caption, results of the audit, and captions that may fit better.

const KIND_TEXTS = {
  matched: "more likely right than wrong",
  near_duplicate: "also a caption of a near duplicate of this image, so it is kept",
  suspicious: "this caption, the only one of its image, is more likely wrong than right",
  swapped_caption: "this caption alone is more likely wrong than right",
  swapped_set: "all captions of this image seem to belong to another image",
  uninformative: "too vague to judge: it would fit many images equally well",
  unlike: "fits worse than 95% of the trusted pairs, but is more likely right, so it is kept",
  placeholder: "its picture is stored with many unrelated captions",
};

const kindName = (kind) => about.kinds[kind].replace("_", " ");

// An element with properties and children. Strings become text, never markup.
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function describeDecision({ decision, caption }) {
  if (decision !== "wrong") return decision;
  return caption === null ? "wrong, none fits" : `wrong, this fits: ${data.captions[caption]}`;
}

// Elements of the pane. `decided` is the decision that counts in this door, or null; `blind` hides
// the results of the audit; `take` is called with the row of a proposed caption, unless null.
function describePair(row, { decided, blind, take }) {
  const image = data.image[row];
  const id = make("bdi", { textContent: data.ids[image] });
  const facts = make("p", { className: "facts" });
  if (!blind) facts.append(make("strong", { textContent: `suspicion ${percent(data.posterior[row])}` }));
  facts.append(make("span", { textContent: nameOf(row) }), make("span", {}, id));
  const heading = make("div", { className: "heading" },
    make("h2", { id: "caption", dir: "auto", textContent: data.captions[row] }), facts);
  if (decided) {
    const words = make("bdi", { textContent: describeDecision(decided) });
    heading.append(make("p", { className: `decision ${decided.decision}` }, "You said: ", words));
  }
  const text = make("div", { className: "text" });
  if (!blind) text.append(...describeJudgement(row, decided, take));
  const others = [...pairsOfImage(image)].filter((other) => other !== row);
  text.append(...describeCaptions("Other captions of this image", others.map((other) => data.captions[other])));
  return [heading, showPicture(image), text];
}

function describeJudgement(row, decided, take) {
  const kind = data.kind[row];
  const judgement = make("p", { className: "judgement" }, make("strong", { textContent: kindName(kind) }),
    `: ${KIND_TEXTS[about.kinds[kind]]}. Information ${informationOf(row)}; random captions have 0.`);
  const said = describeCaptions("Captions of the most similar trusted pictures", witnessesOf(row));
  const proposals = proposalsOf(row);
  if (!proposals.length) return [judgement, ...said];
  const items = proposals.map(({ caption, probability }, i) => {
    const taken = decided !== null && decided.caption === caption;
    return proposalButton(i + 1, data.captions[caption], probability, taken, take && (() => take(caption)));
  });
  const none = decided !== null && decided.decision === "wrong" && decided.caption === null;
  items.push(proposalButton("n", "none of these fits", data.none_fits[row], none, take && (() => take(null))));
  const list = make("ul", {}, ...items.map((item) => make("li", {}, item)));
  return [judgement, make("h3", { textContent: "Captions that may fit this image better" }), list, ...said];
}

function proposalButton(key, text, probability, taken, onclick) {
  const button = make("button", { type: "button", className: "proposal", disabled: onclick === null, onclick },
    make("kbd", { textContent: key }),
    make("span", { className: "words", dir: "auto", textContent: text }),
    make("span", { className: "share", textContent: percent(probability) }));
  button.setAttribute("aria-pressed", taken);
  return button;
}

function describeCaptions(title, texts) {
  if (!texts.length) return [];
  const items = texts.map((text) => make("li", { dir: "auto", textContent: text }));
  return [make("h3", { textContent: title }), make("ul", { className: "captions" }, ...items)];
}

function showPicture(image) {
  const figure = make("div", { className: "picture" });
  const address = addressOf(image);
  if (address === null) {
    figure.append(...standIn(image, "These data have no photographs."));
    return figure;
  }
  const photograph = make("img", { alt: `photograph ${data.ids[image]}`, decoding: "async" });
  photograph.onerror = () => {
    const place = make("bdi", { textContent: data.files[image] });
    figure.replaceChildren(...standIn(image, "This photograph cannot be shown: ", place));
  };
  photograph.src = address;
  figure.append(photograph);
  return figure;
}

// Without a picture, captions of the nearest images suggest its content.
function standIn(image, ...reason) {
  const note = make("p", { className: "reason" }, ...reason);
  if (!data.near) return [note];
  const near = [...data.near.subarray(3 * image, 3 * image + 3)].filter((other) => other >= 0);
  const first = near.map((other) => pairsOfImage(other)[0]).filter((row) => row !== undefined);
  const texts = first.map((row) => data.captions[row]);
  return [note, ...describeCaptions("Possible content: a caption of each of the three most similar images", texts)];
}
