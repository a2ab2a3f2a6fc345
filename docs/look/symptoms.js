// Hide the rows of the index of known issues that lack a typed word.
const field = document.getElementById("symptom");
field?.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(/\s+/);
  for (const row of document.querySelectorAll("article tbody tr")) {
    const text = row.textContent.toLowerCase() + row.querySelector("a").hash;
    row.hidden = !words.every((word) => text.includes(word));
  }
  for (const table of document.querySelectorAll("article table")) {
    const none = !table.querySelector("tbody tr:not([hidden])");
    const box = table.closest(".md-typeset__scrollwrap") ?? table;
    box.hidden = none;
    box.previousElementSibling.hidden = none;
  }
});
