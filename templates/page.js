"use strict";
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => (each.open = true)));

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
