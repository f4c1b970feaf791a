"use strict";(()=>{var e=localStorage.getItem("loadplane-theme"),t=e?e==="dark":matchMedia("(prefers-color-scheme: dark)").matches;document.documentElement.dataset.theme=t?"dark":"light";})();
