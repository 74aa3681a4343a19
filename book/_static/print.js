// On paper the book is light, and its proofs, solutions and folded cells are open. Afterwards all is as it was.
(() => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
  let folded = null;
  const prepare = () => {
    root.dataset.theme = "light";
    if (folded) return;
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((one) => { one.open = true; });
  };
  const restore = () => {
    if (!folded) return;
    folded.forEach((one) => { one.open = false; });
    folded = null;
    const mode = root.dataset.mode;  // the theme's: light, dark, or as the system has it
    root.dataset.theme = mode == "light" || mode == "dark" ? mode : dark.matches ? "dark" : "light";
  };
  addEventListener("beforeprint", prepare);
  addEventListener("afterprint", restore);
  matchMedia("print").addEventListener("change", (one) => one.matches ? prepare() : restore());
})();
