"use strict";
const value = (row, place) => {
  const text = row.children[place].dataset.value;
  return text === "" ? NaN : isNaN(text) ? text : Number(text);
};
const sortBy = (button) => {
  const header = button.parentElement, table = header.closest("table"), body = table.tBodies[0];
  const place = Array.from(header.parentElement.children).indexOf(header);
  const turned = header.getAttribute("aria-sort") === header.dataset.first;
  const way = turned ? { ascending: "descending", descending: "ascending" }[header.dataset.first] : header.dataset.first;
  const rows = Array.from(body.rows).map((row) => [value(row, place), row]);
  // Rows without a number stay below, whichever way is sorted.
  rows.sort(([a], [b]) => {
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
    const order = typeof a === "string" ? a.localeCompare(b) : a - b;
    return way === "ascending" ? order : -order;
  });
  for (const other of header.parentElement.children) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", way);
  for (const [, row] of rows) body.append(row);
};
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => sortBy(button));
const field = document.querySelector("#filter");
field.closest("label").hidden = false;
field.addEventListener("input", () => {
  const wanted = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.querySelectorAll("tr[data-words]"))
    row.hidden = !wanted.every((word) => row.dataset.words.includes(word));
  for (const board of document.querySelectorAll(".board"))
    board.hidden = wanted.length > 0 && !board.querySelector("tr[data-words]:not([hidden])");
});
