// A list of any length of which only the rows in view are in the page.

const HEIGHT = 56; // of a row, in CSS pixels
const TALLEST = 15_000_000; // browsers cut elements off: Firefox at 17.9 million pixels, others at 33

class PairList {
  // fill(element, row, index) puts a pair into the element of a row; changed(row) is told of each selection.
  constructor(box, fill, changed) {
    Object.assign(this, { box, fill, changed, view: [], index: 0, top: 0, elements: [] });
    this.rows = document.createElement("div");
    this.rows.className = "rows"; // stays in view; its rows move
    this.rows.setAttribute("role", "presentation");
    this.space = document.createElement("div"); // gives the scroll bar its length
    box.replaceChildren(this.rows, this.space);
    box.style.setProperty("--row", `${HEIGHT}px`);
    box.addEventListener("scroll", () => this.scrolled());
    box.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    box.addEventListener("click", (event) => {
      const element = event.target.closest(".row");
      if (element) this.select(Number(element.dataset.index));
    });
    new ResizeObserver(() => this.measure()).observe(box);
  }

  get row() {
    return this.view.length ? this.view[this.index] : null;
  }

  // Show the pairs of `view`, rows in their order, and select the one at `index`.
  show(view, index) {
    this.view = view;
    this.elements.forEach((element) => { element.dataset.index = ""; });
    this.measure();
    this.select(index, true);
  }

  // A list that is taller than an element may be has a shorter one, whose scrolling counts for more.
  measure() {
    const wasVisible = this.isVisible(this.index);
    this.visible = this.box.clientHeight;
    this.total = this.view.length * HEIGHT;
    const tall = Math.min(this.total, TALLEST);
    this.scale = tall < this.total ? (this.total - this.visible) / (tall - this.visible) : 1;
    this.rows.style.height = `${this.visible}px`;
    this.space.style.height = `${Math.max(tall - this.visible, 0)}px`;
    const count = Math.ceil(this.visible / HEIGHT) + 1;
    while (this.elements.length < count) this.elements.push(this.newRow());
    while (this.elements.length > count) this.elements.pop().remove();
    this.elements.forEach((element) => { element.dataset.index = ""; });
    this.scrollTo(this.top);
    if (wasVisible) this.reveal(this.index);
  }

  newRow() {
    const element = document.createElement("div");
    element.className = "row";
    element.setAttribute("role", "option");
    this.rows.append(element);
    return element;
  }

  scrolled() {
    // Where this script has scrolled to, `top` is exact, and the bar only near it.
    if (Math.abs(this.box.scrollTop - this.top / this.scale) > 1) this.top = this.box.scrollTop * this.scale;
    this.draw();
  }

  wheel(event) {
    if (this.scale === 1 || event.ctrlKey) return;
    event.preventDefault();
    this.scrollTo(this.top + event.deltaY * (event.deltaMode ? HEIGHT : 1));
  }

  scrollTo(top) {
    this.top = Math.max(0, Math.min(top, this.total - this.visible));
    this.box.scrollTop = this.top / this.scale;
    this.draw();
  }

  select(index, centred = false) {
    this.index = Math.max(0, Math.min(index, this.view.length - 1));
    if (centred && !this.isVisible(this.index)) this.scrollTo(this.index * HEIGHT - (this.visible - HEIGHT) / 2);
    else this.reveal(this.index);
    this.changed(this.row);
  }

  isVisible(index) {
    return index * HEIGHT >= this.top && (index + 1) * HEIGHT <= this.top + this.visible;
  }

  // Scroll no further than it takes to see a row and the one next to it.
  reveal(index) {
    const beside = this.visible > 4 * HEIGHT ? HEIGHT : 0;
    const [least, most] = [(index + 1) * HEIGHT + beside - this.visible, index * HEIGHT - beside];
    this.scrollTo(Math.min(Math.max(this.top, least), most));
  }

  // Put rows into view. An element keeps its pair while that is in view, so that pictures stay.
  draw(again = false) {
    const first = Math.floor(this.top / HEIGHT);
    this.elements.forEach((_, i) => {
      const index = first + i;
      const element = this.elements[index % this.elements.length];
      element.hidden = index >= this.view.length;
      if (element.hidden) {
        element.id = element.dataset.index = "";
        return;
      }
      if (again || element.dataset.index !== String(index)) {
        element.dataset.index = index;
        element.id = `pair-${index}`;
        element.setAttribute("aria-posinset", index + 1);
        element.setAttribute("aria-setsize", this.view.length);
        this.fill(element, this.view[index], index);
      }
      element.setAttribute("aria-selected", index === this.index);
      element.style.transform = `translateY(${index * HEIGHT - this.top}px)`;
    });
    if (this.view.length) this.box.setAttribute("aria-activedescendant", `pair-${this.index}`);
    else this.box.removeAttribute("aria-activedescendant");
  }
}
