/* A formula in a line of text cannot be broken: one that is wider than the text gets to scroll by itself. */
"use strict";

window.addEventListener("load", () => {
  const maths = window.MathJax && window.MathJax.startup;
  if (!maths) return;
  const mark = () => {
    const formulas = [...document.querySelectorAll("span.math mjx-container")];
    formulas.forEach((formula) => formula.classList.remove("wide"));
    const room = (formula) => formula.closest("p, li, dd, td, article").clientWidth;
    const wide = formulas.filter((formula) => formula.getBoundingClientRect().width > room(formula));
    wide.forEach((formula) => formula.classList.add("wide"));
  };
  maths.promise.then(() => {
    mark();
    window.addEventListener("resize", mark);
  });
});
