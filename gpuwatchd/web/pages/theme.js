// Before anything is drawn: the colours that were chosen here, so that nothing flashes.
(() => {
  try {
    const chosen = localStorage.getItem("gpuwatchd-theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch {
    // Then it is as the system has it.
  }
})();
