"use strict";
// The page holds everything; this sorts tables, copies commands and opens everything for printing.
(() => {
  // --- tables: a header sorts by its column, a second click reverses the order; cells without a value stay last
  const valueOf = (cell, kind) => {
    const raw = cell.dataset.value ?? (kind === "text" ? cell.textContent : "");
    const number = Number(raw);
    return raw === "" ? null : Number.isNaN(number) || kind === "text" ? raw : number;
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.querySelector("button")?.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row.cells[column], head.dataset.kind), row]);
        rows.sort(([a], [b]) => a === null || b === null
          ? (a === null) - (b === null) : (down ? -1 : 1) * compare(a, b));
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  }

  // --- commands: copied if the browser allows it
  for (const code of document.querySelectorAll(".code")) {
    const button = code.querySelector(".copy");
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(code.querySelector("code").textContent); button.textContent = "Copied"; }
      catch { button.textContent = "Not allowed"; }
    });
  }

  // --- on paper everything is open
  addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
})();
