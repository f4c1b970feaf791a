// Drives a browser for the tests of this folder. Every line of standard input
// is a step as JSON, every line of standard output its result. Expressions are
// evaluated by the protocol of the developer tools, not by eval in the page, so
// that the page's security policy neither forbids nor reports them.
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-dev-shm-usage"],
});
const pages = new Map();
let opened = 0;

// watched keeps what a page does that nobody may make it do.
function watched(page, origin) {
  const happened = { dialogs: [], errors: [], console: [], foreign: [] };
  page.on("dialog", (dialog) => {
    happened.dialogs.push(dialog.message());
    dialog.dismiss().catch(() => {});
  });
  page.on("pageerror", (error) => happened.errors.push(String(error)));
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") {
      happened.console.push(message.text());
    }
  });
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol !== "data:" && url.protocol !== "blob:" && url.origin !== origin) {
      happened.foreign.push(request.url());
    }
  });
  return happened;
}

// noteViolations runs in the page before its own code.
function noteViolations() {
  window.violations = [];
  document.addEventListener("securitypolicyviolation", (event) => {
    window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`);
  });
}

async function open({ url, width, height, scheme }) {
  const context = await browser.newContext({
    viewport: { width, height },
    colorScheme: scheme,
    reducedMotion: "reduce",
  });
  const page = await context.newPage();
  const happened = watched(page, new URL(url).origin);
  await page.addInitScript(noteViolations);
  const response = await page.goto(url, { waitUntil: "domcontentloaded" });
  const cdp = await context.newCDPSession(page);
  // Times of the processor, not of the clock: others may use it too.
  await cdp.send("Performance.enable", { timeDomain: "threadTicks" });
  const id = ++opened;
  pages.set(id, { context, page, happened, cdp });
  return { page: id, status: response.status(), headers: response.headers() };
}

async function evaluate({ cdp }, { code, limit }) {
  const asked = cdp.send("Runtime.evaluate", { expression: code, awaitPromise: true, returnByValue: true });
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("the page did not answer in time")), limit);
  });
  try {
    const { result, exceptionDetails } = await Promise.race([asked, late]);
    if (exceptionDetails) {
      throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    }
    return result.value ?? null;
  } finally {
    clearTimeout(timer);
    asked.catch(() => {});
  }
}

// wait evaluates an expression again and again until its value is true.
async function wait(target, { code, limit }) {
  const end = Date.now() + limit;
  for (;;) {
    const value = await evaluate(target, { code, limit: Math.max(1, end - Date.now()) });
    if (value) {
      return value;
    }
    if (Date.now() > end) {
      throw new Error("it did not come true in time");
    }
    await new Promise((done) => setTimeout(done, 50));
  }
}

const steps = {
  eval: evaluate,
  wait,
  async press({ page }, { keys }) {
    for (const key of keys) {
      await page.keyboard.press(key);
    }
  },
  type: ({ page }, { text }) => page.keyboard.type(text),
  click: ({ page }, { selector, limit }) => page.click(selector, { timeout: limit }),
  hover: ({ page }, { selector, limit }) => page.hover(selector, { timeout: limit }),
  async look({ page }, { width, height, scheme }) {
    await page.setViewportSize({ width, height });
    await page.emulateMedia({ colorScheme: scheme, reducedMotion: "reduce" });
  },
  async shot({ page }, { path, whole }) {
    await page.screenshot({ path, fullPage: whole, timeout: 60_000 });
  },
  // spent is the processor time of the page's thread so far, milliseconds.
  async spent({ cdp }) {
    const { metrics } = await cdp.send("Performance.getMetrics");
    const of = (name) => metrics.find((m) => m.name === name).value * 1000;
    return { all: of("TaskDuration"), script: of("ScriptDuration"), layout: of("LayoutDuration") + of("RecalcStyleDuration") };
  },
  async happened(target, { limit }) {
    const violations = await evaluate(target, { code: "window.violations", limit });
    return { ...target.happened, violations };
  },
  async close({ context }, { page }) {
    pages.delete(page);
    await context.close();
  },
};

async function take(step) {
  if (step.do === "open") {
    return open(step);
  }
  const target = pages.get(step.page);
  if (!target || !steps[step.do]) {
    throw new Error(`there is no page ${step.page} or no step ${step.do}`);
  }
  return steps[step.do](target, step);
}

const answer = (value) => process.stdout.write(JSON.stringify(value) + "\n");

answer({ value: browser.version() });
for await (const line of createInterface({ input: process.stdin })) {
  try {
    answer({ value: (await take(JSON.parse(line))) ?? null });
  } catch (error) {
    answer({ error: String(error?.message ?? error) });
  }
}
await browser.close();
