// Parts that make a phone's page long are folded there, and open on a wide screen.
const parts = document.querySelectorAll("details.part");
if (matchMedia("(min-width: 46rem)").matches) parts.forEach((part) => { part.open = true; });
const reveal = () => parts.forEach((part) => { part.open ||= `#${part.id}` === location.hash; });
addEventListener("hashchange", reveal);
reveal();
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const block = document.getElementById(button.dataset.copy);
    block.closest("details")?.setAttribute("open", "");
    getSelection().selectAllChildren(block);
    try {
      await navigator.clipboard.writeText(block.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}
const folded = () => document.querySelectorAll("details:not([open])");
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...folded()];
  opened.forEach((box) => { box.open = true; });
});
addEventListener("afterprint", () => { opened.forEach((box) => { box.open = false; }); });
