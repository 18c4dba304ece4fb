// A button for each state of the page of ideas; without a script the page shows all of them.
document.addEventListener("DOMContentLoaded", () => {
  const counts = document.querySelector(".idea-counts");
  const rows = [...document.querySelectorAll("section section tr")].filter((row) => row.querySelector(".idea-state"));
  const bar = document.createElement("div");
  bar.className = "idea-filter";
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "Show ideas by state");
  const show = (state) => {
    for (const row of rows) row.hidden = state !== "all" && row.querySelector(".idea-state").dataset.state !== state;
    for (const section of document.querySelectorAll("section section"))
      section.hidden = [...section.querySelectorAll("tbody tr")].every((row) => row.hidden);
    for (const button of bar.children) button.setAttribute("aria-pressed", String(button.dataset.state === state));
  };
  const add = (state, number) => {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.state = state;
    button.textContent = `${state} (${number})`;
    button.addEventListener("click", () => show(state));
    bar.append(button);
  };
  add("all", rows.length);
  for (const row of counts.querySelectorAll("tbody tr")) add(row.cells[0].textContent.trim(), row.cells[1].textContent);
  counts.after(bar);
  show("all");
});
