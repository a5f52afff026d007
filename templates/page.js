"use strict";
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => (each.open = true)));

// Where in the page a reader is.
(() => {
  const links = new Map([...document.querySelectorAll("nav a")].map((each) => [each.hash.slice(1), each]));
  const places = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
  const mark = () => {
    const passed = places.filter((each) => each.getBoundingClientRect().top < innerHeight / 3);
    const here = (scrollY > 0 && passed[passed.length - 1])?.id ?? places[0]?.id;
    for (const [id, link] of links) {
      if (id === here) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  addEventListener("scroll", () => requestAnimationFrame(mark), { passive: true });
  mark();
})();

// Words of the mark that a reader points at.
(() => {
  const box = document.createElement("div");
  box.className = "tip";
  box.hidden = true;
  document.body.append(box);
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest ? event.target.closest("[data-tip]") : null;
    box.hidden = !mark;
    if (!mark) return;
    box.textContent = mark.dataset.tip;
    const right = document.documentElement.clientWidth - box.offsetWidth - 8;
    box.style.setProperty("left", `${Math.max(4, Math.min(event.pageX + 12, right))}px`);
    box.style.setProperty("top", `${event.pageY + 16}px`);
  });
})();

// A button beside each text to copy.
for (const text of document.querySelectorAll(".tab pre")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  text.parentElement.append(button);
  button.addEventListener("click", () => {
    getSelection().selectAllChildren(text);
    const done = () => (button.textContent = "Copied");
    if (navigator.clipboard) navigator.clipboard.writeText(text.textContent).then(done, () => document.execCommand("copy") && done());
    else if (document.execCommand("copy")) done();
  });
}

// Filters and sorting of the tables of measurements; without it they are all there, in the order of the run.
(() => {
  const tables = [...document.querySelectorAll("table.sortable")];
  const rows = tables.flatMap((table) => [...table.tBodies[0].rows]);
  if (!rows.length) return;

  const FIRST_NUMBER = 4; // the columns before hold words

  const make = (name, given, ...inside) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  };

  const words = (row, column) => row.cells[column].textContent.trim();
  const chosen = { 1: "pass", 2: "target", 3: "method" };
  const text = make("input", { type: "search", placeholder: "ring, tile=512 ..." });
  const selects = Object.entries(chosen).map(([column, name]) => {
    const values = [...new Set(rows.map((row) => words(row, column)))];
    const select = make("select", {}, make("option", { value: "" }, "all"));
    select.append(...values.map((value) => make("option", { value }, value)));
    return { column, name, select, values };
  });
  const count = make("p", { role: "status", class: "soft" });

  const filter = () => {
    const parts = text.value.toLowerCase().split(/[\s]+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const plan = row.textContent.toLowerCase();
      const fits = parts.every((part) => plan.includes(part));
      row.hidden = !(fits && selects.every((each) => !each.select.value || words(row, each.column) === each.select.value));
      shown += !row.hidden;
    }
    for (const table of tables)
      table.closest(".measured").hidden = [...table.tBodies[0].rows].every((row) => row.hidden);
    count.textContent = `${shown} of ${rows.length} rows`;
  };

  const bar = document.getElementById("filters");
  bar.append(make("label", {}, "Filter rows ", text));
  for (const each of selects)
    if (each.values.length > 1) bar.append(make("label", {}, `${each.name} `, each.select));
  bar.append(count);
  bar.addEventListener("input", filter);
  filter();

  const key = (row, column) => {
    const cell = row.cells[column];
    if (!cell || cell.colSpan > 1) return null;
    if (column >= FIRST_NUMBER) return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
    return words(row, column);
  };
  for (const table of tables) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = make("button", { type: "button" }, ...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const body = table.tBodies[0];
        const order = [...body.rows].map((row) => [key(row, column), row]).sort(([a], [b]) => {
          if (a === null || b === null) return (a === null) - (b === null);
          return (a < b ? -1 : a > b ? 1 : 0) * (up ? 1 : -1);
        });
        body.append(...order.map(([, row]) => row));
      });
    });
  }
})();
