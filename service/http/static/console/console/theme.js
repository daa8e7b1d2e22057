// Before the page is drawn: the theme that was chosen here before. "auto" follows the system.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("forage.theme");
  } catch {
    // A browser that keeps nothing follows the system.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
