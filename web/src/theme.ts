// Runs before the page shows, so that it never shows in the wrong theme.

const wanted = localStorage.getItem("loadplane-theme");
const dark = wanted ? wanted === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
document.documentElement.dataset.theme = dark ? "dark" : "light";
