"use strict";
// The page already holds everything except the examples; this sorts, filters and copies.
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);

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

  // --- examples: texts go into the page as text
  const list = document.getElementById("examples-list");
  if (list) {
    const page = 25;
    const examples = data.examples.flatMap((part) =>
      part.examples.map((example) => ({ ...example, run: part.run, task: part.task })));
    const order = ["invalid", "wrong", "right"];
    examples.sort((a, b) => order.indexOf(a.verdict) - order.indexOf(b.verdict));
    const field = (id) => document.getElementById(`filter-${id}`);
    const fields = ["task", "run", "verdict", "text"].map(field);
    const count = document.getElementById("examples-count");
    const more = document.getElementById("examples-more");
    let found = [], shown = 0;

    const made = (name, text, className) => {
      const element = document.createElement(name);
      if (text !== undefined) element.textContent = text;
      if (className) element.className = className;
      return element;
    };
    const answer = (name, text) => {
      const part = made("span");
      part.append(made("b", `${name} `), text === "" ? made("i", "(empty)") : document.createTextNode(text));
      return part;
    };
    const item = (example) => {
      const entry = made("li", undefined, example.verdict);
      const top = made("div", undefined, "top");
      const place = [...new Set([example.task, example.run, example.where])];
      top.append(made("span", example.verdict, "verdict"), ...place.map((text) => made("span", text)));
      const answers = made("div", undefined, "answers");
      answers.append(answer("answer", example.prediction));
      if (example.target !== null) answers.append(answer("target", example.target));
      entry.append(top);
      if (example.inputs !== null) entry.append(made("p", example.inputs));
      entry.append(answers);
      return entry;
    };
    const showMore = () => {
      list.append(...found.slice(shown, shown + page).map(item));
      shown = Math.min(shown + page, found.length);
      more.hidden = shown >= found.length;
      more.textContent = `Show more (${found.length - shown} left)`;
    };
    const filter = () => {
      const [task, run, verdict] = fields.map((select) => select.value);
      const text = fields[3].value.trim().toLowerCase();
      found = examples.filter((example) =>
        (!task || example.task === task) && (!run || example.run === run) && (!verdict || verdict.split(", ").includes(example.verdict)) &&
        (!text || [example.inputs, example.prediction, example.target].some((part) => part && part.toLowerCase().includes(text))));
      count.textContent = `${found.length} of ${examples.length} examples match`;
      list.replaceChildren();
      shown = 0;
      showMore();
    };
    for (const one of fields) one.addEventListener("input", filter);
    more.addEventListener("click", () => {
      const before = shown;
      showMore();
      const first = list.children[before];
      if (first) { first.tabIndex = -1; first.focus(); }
    });
    filter();
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
